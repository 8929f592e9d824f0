"""A RoCEv2 peer for a design under cocotb: an rnic NIC whose packets are AXI-Stream frames, in simulated time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import cocotb
from cocotb.triggers import Event, RisingEdge
from cocotb.utils import get_sim_time

from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.judge import Finding, Judge
from rnic.judge.rules import NOTE, RULES
from rnic.link.base import Link, parse_address
from rnic.link.faults import FaultyLink
from rnic.mem.space import SimAddressSpace
from rnic.runtime.loop import Runtime
from rnic.spec.errors import RnicError
from rnic.spec.limits import MTU_CODES
from rnic.testing.cocotb.stream import WIDTHS, Beat, FrameLink, Sink, Source, StreamError, mac_number
from rnic.trace.counters import Counters
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, WC, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP
from rnic.wire.dissect import LINKTYPE_ETHERNET

LINKTYPE_RAW_IP = 101
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
DEPTH = 64
"""Most outstanding requests, and receives, of one connection."""
RECEIVE_BYTES = 1 << 16
"""The longest message that :meth:`RocePeer.receive` accepts."""


class RoceError(RnicError):
    """An operation did not complete with success; ``status`` is the completion's, an ``IBV_WC_*`` number."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(f"{what}: {e.WC_STATUS_NAMES[status]}")
        self.status = status


class RuleBroken(AssertionError):  # noqa: N818 - what it says reads like a verdict
    """Packets on the wires broke rules; each line names the time, the direction, the rule and its clause."""


class Axis:
    """The signals of one AXI4-Stream: ``PREFIX_tdata``, ``_tvalid``, ``_tready``, ``_tlast`` and ``_tkeep``.

    ``tkeep`` may be missing if all frames have whole beats: then all lanes count. ``tready`` may be missing if the
    design is always ready.

    Args:
        dut: the design, or a handle inside it.
        prefix: prefix of the signals' names.
        clock: the stream's clock.

    Raises:
        StreamError: ``tdata`` is not 64, 128, 256 or 512 bits wide.
    """

    def __init__(self, dut: Any, prefix: str, clock: Any) -> None:
        self.clock = clock
        self._signals = {
            name: getattr(dut, f"{prefix}_{name}", None) for name in ("tdata", "tvalid", "tready", "tlast", "tkeep")
        }
        data: Any = getattr(dut, f"{prefix}_tdata")
        bits = len(data)
        if bits not in WIDTHS:
            raise StreamError(f"{prefix}_tdata has {bits} bits: {', '.join(map(str, WIDTHS))} are understood")
        self.lanes = bits // 8

    def number(self, name: str, absent: int) -> int:
        """Return a signal's value; X and Z count as 0."""
        signal = self._signals[name]
        if signal is None:
            return absent
        value = signal.value
        return int(value) if value.is_resolvable else 0

    def drive(self, name: str, value: int) -> None:
        """Set a signal if it exists."""
        signal = self._signals[name]
        if signal is not None:
            signal.value = value

    def drive_beat(self, beat: Beat | None) -> None:
        """Drive the master's side."""
        self.drive("tvalid", int(beat is not None))
        if beat is not None:
            self.drive("tdata", beat.data)
            self.drive("tkeep", beat.keep)
        self.drive("tlast", int(beat is not None and beat.last))

    def beat(self) -> Beat | None:
        """Sample the slave's side."""
        if not self.number("tvalid", 0):
            return None
        keep = self.number("tkeep", (1 << self.lanes) - 1)
        return Beat(self.number("tdata", 0), keep, bool(self.number("tlast", 0)))


class _Loop(Runtime):
    """Driven by the simulation; there is no thread."""

    def start(self) -> None:
        """Do nothing: the clock drives."""


class Memory:
    """Memory that the peer serves: the design reads and writes ``data`` at ``addr`` with ``rkey``."""

    def __init__(self, mr: MR, data: bytearray) -> None:
        self.mr = mr
        self.data = data
        self.addr: int = mr.buf
        self.rkey: int = mr.rkey


class RocePeer:
    """One RoCEv2 host with one reliable connection, at the far end of a design's network port.

    Args:
        tx: the design's transmit stream, which the peer receives.
        rx: the design's receive stream, which the peer drives.
        mac: the peer's MAC address, ``"02:00:00:00:00:01"``; ``None`` if frames begin with the IP header.
        ip: its IP address.
        mtu: path MTU, 256 to 4096 bytes.
        faults: fault script of the network (:mod:`rnic.link.fault_script`); ``"tx"`` is toward the design.
        stalls: called each cycle before a transfer to the design; true delays it.
        backpressure: called each cycle; true holds ``tready`` toward the design low.
        speed: nanoseconds of the peer's timers per simulated nanosecond. Timeouts are milliseconds, which take long to
            simulate.
        reset: active-high reset; while it is 1, the peer neither sends nor receives.
        seed: seed of all random choices.
        strict: an operation raises :class:`RuleBroken` if a rule has been broken.

    Raises:
        StreamError: streams of different widths, or a bad MAC address.
    """

    def __init__(
        self,
        tx: Axis,
        rx: Axis,
        mac: str | int | None,
        ip: str,
        *,
        mtu: int = 1024,
        faults: Sequence[Mapping[str, object]] = (),
        stalls: Callable[[], bool] | None = None,
        backpressure: Callable[[], bool] | None = None,
        speed: int = 1,
        reset: Any = None,
        seed: int = 1,
        strict: bool = True,
    ) -> None:
        if tx.lanes != rx.lanes:
            raise StreamError(f"streams of {tx.lanes * 8} and {rx.lanes * 8} bits: one network port has one width")
        self.strict = strict
        self.findings: list[Finding] = []
        """Rules broken so far, without notes, in the order of frames on the wires."""
        self._tx, self._rx, self._reset, self._speed = tx, rx, reset, speed
        self._judge = Judge(self._found, skew=0)
        self._linktype = LINKTYPE_RAW_IP if mac is None else LINKTYPE_ETHERNET
        counters = Counters()
        self.link = FrameLink(
            parse_address(ip), None if mac is None else mac_number(mac), counters, self._send, mtu=mtu + 128
        )
        self._source = Source(rx.lanes, stalls, self._sent)
        self._judging_own = False
        self._sink = Sink(tx.lanes, self._take, backpressure)
        rng = random.Random(seed)
        link: Link = self.link
        if faults:
            link = FaultyLink(link, clock=self.now_ns, rng=random.Random(rng.getrandbits(64)), script=faults)
        config = NicConfig(self.link.address, mtu=mtu, name="peer", ack_every=16)
        self.runtime = _Loop(Nic(config, rng=rng, counters=counters), link, self.now_ns)
        self.ctx = Context(runtime=self.runtime, space=SimAddressSpace())
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 4 * DEPTH)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(DEPTH, DEPTH, 1, 1, 0), self.cq, self.cq, None))
        self.psn = rng.getrandbits(24)
        """First PSN that the peer sends, which the design must expect."""
        self._landing = self.serve(RECEIVE_BYTES)
        self._done: dict[int, WC] = {}
        self._next_id = 1
        self._moved = Event()
        self._broken: StreamError | None = None
        self._task = cocotb.start_soon(self._run())

    # ---------------------------------------------------------------------------------------- the clock

    def now_ns(self) -> int:
        """Return the peer's time."""
        return int(get_sim_time("ns") * self._speed)

    async def _run(self) -> None:
        edge = RisingEdge(self._rx.clock)
        shown: Beat | None = None
        ready = True
        self._rx.drive_beat(None)
        self._tx.drive("tready", 1)
        while True:
            await edge
            if self._reset is not None and int(self._reset.value):
                continue
            try:
                ready_now = self._sink.cycle(self._tx.beat() if ready else None)
            except StreamError as error:
                self._broken = StreamError(f"{error} at {get_sim_time('ns'):g} ns")
                self._moved.set()
                return
            if ready_now != ready:
                ready = ready_now
                self._tx.drive("tready", int(ready))
            taken = bool(self._rx.number("tready", 1)) if shown is not None else False
            beat = self._source.cycle(taken)
            if beat is not shown:
                shown = beat
                self._rx.drive_beat(beat)
            self._turn()

    def _turn(self) -> None:
        """Run a round of the NIC if there is something to do."""
        runtime = self.runtime
        deadlines = (runtime.nic.next_deadline_ns(), runtime.link.next_deadline_ns())
        due = [deadline for deadline in deadlines if deadline is not None]
        if self.link.waiting or runtime.nic.has_work() or (due and min(due) <= self.now_ns()):
            runtime.progress()
            self._collect()

    def _collect(self) -> None:
        found = self.cq.poll(4 * DEPTH)[1]
        for wc in found:
            self._done[wc.wr_id] = wc
        if found:
            self._moved.set()

    # ----------------------------------------------------------------------------------------- the judge

    def _send(self, frame: bytes) -> None:
        self._source.frames.append(frame)

    def _sent(self, frame: bytes) -> None:
        """Check a frame that was sent, after all faults: the design's reaction comes later."""
        self._judging_own = True
        self._judge.frame(int(get_sim_time("ns")), self._linktype, frame, len(frame))
        self._judging_own = False

    def _take(self, frame: bytes) -> None:
        self._judge.frame(int(get_sim_time("ns")), self._linktype, frame, len(frame))
        self.link.take(frame)

    def _found(self, finding: Finding) -> None:
        # a wrong ICRC toward the design is due to the fault script
        if finding.severity != NOTE and not (self._judging_own and finding.rule == "icrc"):
            self.findings.append(finding)
            self._moved.set()

    def check(self, *, finished: bool = False) -> None:
        """Check that every packet of both directions kept the rules.

        Args:
            finished: no further packet can explain an early response.

        Raises:
            RuleBroken: a rule was broken; one line for each, with time, direction, rule and clause.
        """
        if finished:
            self._judge.finish()
        if self.findings:
            raise RuleBroken("\n".join(self._verdict(finding) for finding in self.findings))

    @staticmethod
    def _verdict(finding: Finding) -> str:
        rule = RULES[finding.rule]
        return (
            f"{finding.time_ns} ns: frame {finding.frame}: {finding.queue_pair or 'no queue pair'}: {finding.detail}"
            f" [{rule.id}: {rule.text}; {rule.clause}]"
        )

    # ------------------------------------------------------------------------------------- the connection

    @property
    def qpn(self) -> int:
        """The peer's queue pair number, which the design's packets name."""
        return self.qp.qp_num

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the peer's NIC and link."""
        return self.runtime.nic.counters

    async def connect(
        self,
        ip: str,
        qpn: int,
        psn: int = 0,
        *,
        mac: str | int | None = None,
        timeout: int = 10,
        retry_cnt: int = 7,
        rnr_retry: int = 7,
        min_rnr_timer: int = 1,
        max_rd_atomic: int = 16,
    ) -> None:
        """Connect to the design's queue pair. The design must know :attr:`qpn`, :attr:`psn`, the peer's MAC and IP.

        Args:
            ip: the design's IP address.
            qpn: its queue pair number.
            psn: first PSN that the design sends.
            mac: its MAC address; without it, the peer only responds, to the source of received frames.
            timeout: local ACK timeout, 4.096 us * 2^timeout of the peer's time.
            retry_cnt: retries until an operation fails.
            rnr_retry: the same after RNR NAKs; 7 is forever.
            min_rnr_timer: code of the wait that its own RNR NAKs ask for.
            max_rd_atomic: outstanding READs and atomics, in both directions.
        """
        await RisingEdge(self._rx.clock)
        address = parse_address(ip)
        if mac is not None:
            self.link.macs[address] = mac_number(mac)
        attr = QPAttr()
        attr.path_mtu = MTU_CODES[self.runtime.nic.config.mtu]
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = qpn, psn, self.psn
        attr.timeout, attr.retry_cnt, attr.rnr_retry = timeout, retry_cnt, rnr_retry
        attr.min_rnr_timer = min_rnr_timer
        attr.max_rd_atomic = attr.max_dest_rd_atomic = max_rd_atomic
        attr.qp_access_flags = RIGHTS
        attr.ah_attr = AHAttr(GlobalRoute(GID(address)))
        self.qp.to_rts(attr)
        own = self.link.address
        self._judge.connections.connect(
            (own, address, qpn), (address, own, self.qpn), (self.psn, psn), self.runtime.nic.config.mtu
        )

    async def connect_to(self, other: RocePeer, **more: Any) -> None:
        """Connect two peers to each other, back to back."""
        ends = ((self, other), (other, self))
        for one, there in ends:
            await one.connect(_text(there.link.address), there.qpn, there.psn, mac=there.link.mac, **more)

    # ------------------------------------------------------------------------------------------- memory

    def serve(self, size_or_data: int | bytes | bytearray, access: int = RIGHTS) -> Memory:
        """Register memory for the design to read and write: this many zeros, or a copy of some bytes."""
        data = bytearray(size_or_data)
        return Memory(MR(self.pd, data, access), data)

    # --------------------------------------------------------------------------------------- operations

    async def write(self, addr: int, data: bytes, rkey: int, *, imm: int | None = None) -> None:
        """Write ``data`` to the design's memory by RDMA WRITE; return once it is acknowledged.

        Raises:
            RoceError: it failed.
            RuleBroken: a rule was broken, with ``strict``.
        """
        opcode = e.IBV_WR_RDMA_WRITE if imm is None else e.IBV_WR_RDMA_WRITE_WITH_IMM
        await self._operate(f"WRITE of {len(data)} bytes to {addr:#x}", opcode, bytearray(data), addr, rkey, imm=imm)

    async def read(self, addr: int, length: int, rkey: int) -> bytes:
        """Read the design's memory by RDMA READ; raises as :meth:`write`."""
        target = bytearray(length)
        await self._operate(f"READ of {length} bytes at {addr:#x}", e.IBV_WR_RDMA_READ, target, addr, rkey)
        return bytes(target)

    async def send(self, data: bytes, *, imm: int | None = None) -> None:
        """Send a message; raises as :meth:`write`."""
        opcode = e.IBV_WR_SEND if imm is None else e.IBV_WR_SEND_WITH_IMM
        await self._operate(f"SEND of {len(data)} bytes", opcode, bytearray(data), imm=imm)

    async def fetch_add(self, addr: int, add: int, rkey: int) -> int:
        """Execute an atomic fetch and add. Return the original value. Raises as :meth:`write`."""
        opcode = e.IBV_WR_ATOMIC_FETCH_AND_ADD
        return await self._atomic(f"FETCH_ADD at {addr:#x}", opcode, addr, rkey, add, 0)

    async def compare_swap(self, addr: int, compare: int, swap: int, rkey: int) -> int:
        """Execute an atomic compare and swap. Return the original value. Raises as :meth:`write`."""
        opcode = e.IBV_WR_ATOMIC_CMP_AND_SWP
        return await self._atomic(f"CMP_SWAP at {addr:#x}", opcode, addr, rkey, compare, swap)

    async def _atomic(self, what: str, opcode: int, addr: int, rkey: int, first: int, second: int) -> int:
        target = bytearray(8)
        await self._operate(what, opcode, target, addr, rkey, atomic=(first, second))
        return int.from_bytes(target, "little")

    def expect(self) -> Awaitable[bytes]:
        """Post a receive now. Await the result for the message. Receives are filled in order."""
        number = self._number()
        memory = self.serve(RECEIVE_BYTES)
        self.qp.post_recv(RecvWR(number, 1, [SGE(memory.addr, RECEIVE_BYTES, memory.mr.lkey)]))

        async def message() -> bytes:
            wc = await self._completion(number, "receive")
            memory.mr.close()
            return bytes(memory.data[: wc.byte_len])

        return message()

    async def receive(self) -> bytes:
        """Return the next message that the design sends; see :meth:`expect`."""
        return await self.expect()

    async def idle(self, cycles: int = 0) -> None:
        """Wait until the peer has sent everything, and ``cycles`` cycles more."""
        edge = RisingEdge(self._rx.clock)
        while not self._source.idle or self.runtime.nic.has_work():
            await edge
        for _ in range(cycles):
            await edge

    def _number(self) -> int:
        self._next_id += 1
        return self._next_id

    async def _operate(
        self,
        what: str,
        opcode: int,
        data: bytearray,
        addr: int = 0,
        rkey: int = 0,
        *,
        imm: int | None = None,
        atomic: tuple[int, int] | None = None,
    ) -> None:
        number = self._number()
        mr = MR(self.pd, data, RIGHTS) if data else None
        sg = [SGE(mr.buf, len(data), mr.lkey)] if mr is not None else []
        wr = SendWR(number, opcode, imm_data=imm or 0, send_flags=e.IBV_SEND_SIGNALED, sg=sg)
        if atomic is not None:
            wr.set_wr_atomic(rkey, addr, *atomic)
        elif rkey or addr:
            wr.set_wr_rdma(rkey, addr)
        self.qp.post_send(wr)
        try:
            await self._completion(number, what)
        finally:
            if mr is not None:
                mr.close()

    async def _completion(self, number: int, what: str) -> WC:
        while True:
            if self._broken is not None:
                raise self._broken
            if self.strict:
                self.check()
            wc = self._done.pop(number, None)
            if wc is not None:
                if wc.status != e.IBV_WC_SUCCESS:
                    raise RoceError(what, wc.status)
                return wc
            self._moved.clear()
            self._collect()
            if number not in self._done:
                await self._moved.wait()

    def close(self) -> None:
        """Stop the peer."""
        self._task.cancel()
        self.ctx.close()


def _text(address: bytes) -> str:
    return str(GID(address)) if len(address) == 16 else ".".join(str(byte) for byte in address)
