"""A software NIC with a gateware responder, for tests: requests go to the Verilog, all else stays in software.

Software acts as driver, WQE engine and CtxMgt. It gives the responder contexts, settings, regions and receive entries,
writes its completions, and stops a queue pair after a refused request.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from rnic.context import messages as msg
from rnic.context.qpc import OPT_CREDITS
from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.device.queue_pair import DeviceQp
from rnic.gateware.roce.driver import Around, Fields, Host
from rnic.gateware.roce.mr_table import PAGE_SHIFT, RIGHTS
from rnic.gateware.roce.responder_nic import ResponderParams
from rnic.mem.mpt import MPT_ENTRY, flags_from_access
from rnic.mem.table import REGION, MemoryEntry
from rnic.rings.cqe import CQE_IMM, CQE_RECEIVE, CQE_SOLICITED
from rnic.spec.access import REMOTE_READ, REMOTE_WRITE
from rnic.spec.events import WQ_ACCESS_ERROR, WQ_CATAS_ERROR, WQ_INVAL_REQ_ERROR
from rnic.spec.opcodes import CNP, RC
from rnic.spec.states import ERR, RTR
from rnic.spec.status import REM_OP_ERR, SUCCESS
from rnic.spec.syndromes import NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATION, credit_code
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.ethernet import ETHERNET, ETHERNET_BYTES, TYPE_IPV4
from rnic.wire.flow import Flow
from rnic.wire.ip import IPV4_BYTES, IPV4_HEADER, PROTO_UDP, UDP_BYTES, UDP_HEADER
from rnic.wire.opcode import OPCODES

MAC, PEER_MAC = 0x02_00_00_00_00_01, 0x02_00_00_00_00_02
_EVENTS: Final = {NAK_INVALID_REQUEST: WQ_INVAL_REQ_ERROR, NAK_REMOTE_ACCESS: WQ_ACCESS_ERROR}
_DQPN: Final = struct.Struct(">xxxxI")
_HEADERS: Final = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES


class Simulated(Protocol):
    """A responder under simulation."""

    around: Around

    def settle(self) -> None:
        """Run until nothing is in flight."""

    def close(self) -> None:
        """Free the simulation."""


Simulate = Callable[[ResponderParams, Host, int, int], Simulated]
"""Starts a simulation; takes sizes, host, MAC address and IPv4 address."""


def frame_of(flow: Flow, payload: bytes | memoryview, ident: int, frag: int, tclass: int) -> bytes:
    """Return the Ethernet frame of a UDP payload to :data:`MAC`."""
    size = len(payload) + UDP_BYTES
    values = {
        "version": 4, "ihl": IPV4_BYTES // 4, "tos": tclass, "total_length": size + IPV4_BYTES, "identification": ident,
        "flags_fragment": frag, "ttl": flow.hop_limit, "protocol": PROTO_UDP,
        "src": int.from_bytes(flow.src, "big"), "dst": int.from_bytes(flow.dst, "big"),
    }  # fmt: skip
    total = sum(struct.unpack(">10H", IPV4_HEADER.pack(values)))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    ethernet = ETHERNET.pack({"dst_mac": MAC, "src_mac": PEER_MAC, "ethertype": TYPE_IPV4})
    udp = UDP_HEADER.pack({"sport": flow.sport, "dport": flow.dport, "length": size})
    return ethernet + IPV4_HEADER.pack(values | {"checksum": total ^ 0xFFFF}) + udp + bytes(payload)


class ResponderTarget(Nic):
    """A NIC without the C engine whose RC requests are answered by the gateware.

    Args:
        params: sizes of the responder.
        simulate: starts its simulation.
    """

    def __init__(self, config: NicConfig, *, params: ResponderParams, simulate: Simulate, **more: Any) -> None:
        size = 1 << params.table.log_entries
        super().__init__(replace(config, reference=True, max_mrs=min(config.max_mrs, size)), **more)
        self._simulated = simulate(params, self, MAC, int.from_bytes(config.address, "big"))
        self.around = self._simulated.around
        self._log_pages = params.table.log_pages
        self._regions: dict[int, tuple[Any, ...]] = {}
        self._runs: dict[int, range] = {}
        self._settings: dict[int, tuple[Any, ...]] = {}
        self._known: dict[int, tuple[int, int]] = {}
        self._given = False
        self.on_frame: Callable[[bytes, bool], None] | None = None
        """Called with each frame that reaches the gateware, or, with true, that the gateware sent."""

    def close(self) -> None:
        """Free the simulation."""
        self._simulated.close()

    # ------------------------------------------------------------------------------ packets

    def receive(self, burst: RxBurst, now_ns: int, start: int = 0) -> None:
        """Take a burst: requests to RC queue pairs, and packets for no queue pair, go to the gateware, which processes
        them together in the next :meth:`produce`."""
        self.now_ns = now_ns
        segment = burst.segment or burst.length
        for at in range(start, burst.length, segment):
            packet = burst.buf[at : min(at + segment, burst.length)]
            qp = self.running.get(_DQPN.unpack_from(packet)[0] & 0xFF_FFFF) if len(packet) >= _DQPN.size else None
            row = OPCODES[packet[0]] if len(packet) else None
            software = row is not None and (row.response or row.opcode == CNP)
            if qp is not None and (software or qp.opcodes != RC):
                super().receive(burst, now_ns, at)
                return
            self._sync()
            self._given = True
            ident = (burst.ident or 0) + at // segment
            frame = frame_of(burst.flow, packet, ident, burst.frag, burst.tclass)
            self._tell(frame, False)
            self.around.frame(frame)

    def _tell(self, frame: bytes, sent: bool) -> None:
        if self.on_frame is not None:
            self.on_frame(frame, sent)

    def _collect(self) -> list[TxBurst]:
        replies = []
        for frame in self.around.sent:
            self._tell(frame, True)
            ip, udp = frame[ETHERNET_BYTES:], frame[ETHERNET_BYTES + IPV4_BYTES :]
            address = {name: IPV4_HEADER.get(ip, name).to_bytes(4, "big") for name in ("src", "dst")}
            flow = Flow(address["src"], address["dst"], UDP_HEADER.get(udp, "sport"), UDP_HEADER.get(udp, "dport"))
            payload = frame[_HEADERS:]
            replies.append(TxBurst(flow, [payload], len(payload), 1, len(payload)))
        self.around.sent.clear()
        return replies

    def has_work(self) -> bool:
        """See :meth:`Nic.has_work <rnic.device.nic.Nic.has_work>`."""
        return self._given or super().has_work()

    def produce(self, now_ns: int, budget: int = 256) -> list[TxBurst]:
        """Run the gateware, send its replies, and do what :meth:`Nic.produce <rnic.device.nic.Nic.produce>` does."""
        if self._given:
            self._given = False
            self._simulated.settle()
        return self._collect() + super().produce(now_ns, budget)

    # ------------------------------------------------------------------------------ settings by software

    def _sync(self) -> None:
        """Pass changes of regions and queue pairs since the last packet to the gateware, between two packets."""
        told: list[tuple[str, dict[str, Any] | int]] = []
        regions = {entry.index: entry for entry in self.memory.entries() if entry.kind == REGION}
        for index in [index for index in self._regions if index not in regions]:
            told.append(("entries", {"index": index, "valid": 0}))
            del self._regions[index], self._runs[index]
        for index, entry in regions.items():
            words = (entry.key, entry.valid, entry.pd, entry.access, entry.start, entry.end, entry.base)
            if self._regions.get(index) != words:
                self._regions[index] = words
                told += self._region(index, entry)
        for number, qp in self.running.items():
            if qp.opcodes == RC and qp.ctx.state >= RTR and qp.flow is not None:
                told += self._queue_pair(number, qp, qp.flow)
        if told:
            self._simulated.settle()
            for port, values in told:
                self.around.put(port, values)
            self._simulated.settle()

    def _region(self, index: int, entry: MemoryEntry) -> list[tuple[str, dict[str, Any]]]:
        first = entry.base >> PAGE_SHIFT
        count = (entry.base + max(1, entry.length) - 1 >> PAGE_SHIFT) - first + 1
        self._runs.pop(index, None)
        run = self._runs[index] = self._room(count)
        values = {
            "key": entry.key, "pd": entry.pd, "start": entry.start, "length": entry.length, "mtt_seg": run.start,
            "address": entry.base,
        }  # fmt: skip
        image = bytearray(MPT_ENTRY.pack(values))
        struct.pack_into(">I", image, 0, flags_from_access(entry.access))
        rights = {name: MPT_ENTRY.get(image, name) for name in RIGHTS}
        pages = [("pages", {"index": place, "page": first + at}) for at, place in enumerate(run)]
        return [*pages, ("entries", {"index": index, "valid": int(bool(entry.valid)), "entry": values | rights})]

    def _room(self, count: int) -> range:
        """Return the first run of ``count`` free entries of the page list."""
        at = 0
        for run in sorted(self._runs.values(), key=lambda run: run.start):
            if run.start - at >= count:
                break
            at = max(at, run.stop)
        assert at + count <= 1 << self._log_pages, "the page list is full"
        return range(at, at + count)

    def _queue_pair(self, number: int, qp: DeviceQp, flow: Flow) -> list[tuple[str, dict[str, Any] | int]]:
        ctx = qp.ctx
        settings = {
            "remote_write": int(bool(ctx.access_flags & REMOTE_WRITE)),
            "remote_read": int(bool(ctx.access_flags & REMOTE_READ)),
            "credits": int(bool(ctx.options & OPT_CREDITS)),
            "rnr_timer": ctx.rnr_nak_timer & 0x1F, "msgmax": ctx.msgmax, "pkey": qp.pkey,
            "peer": int.from_bytes(flow.dst, "big"), "mac": PEER_MAC, "sport": flow.sport,
        }  # fmt: skip
        words = (id(qp), qp.responder.generation, *settings.values())
        begins = self._known.get(number) != (ctx.state, ctx.expected_psn)
        if self._settings.get(number) == words and not begins:
            return []
        self._settings[number] = words
        self._known[number] = ctx.state, ctx.expected_psn
        return [("settings", {"qpn": number, "values": settings}), ("forgets", number)]

    # ------------------------------------------------------------------------------ the gateware's host

    def read(self, address: int, count: int) -> bytes:
        """See :class:`~rnic.gateware.roce.driver.Host`."""
        buffer = bytearray(count)
        assert self.resources.uars[0].port.read(address, buffer)
        return bytes(buffer)

    def write(self, address: int, data: bytes) -> None:
        """See :class:`~rnic.gateware.roce.driver.Host`."""
        assert self.resources.uars[0].port.write(address, data)

    def channel(self, command: bytes, payload: bytes) -> tuple[bytes, bytes] | None:
        """See :class:`~rnic.gateware.roce.driver.Host`. The completion reports that a queue pair goes to ERR."""
        contexts, number = self.contexts, msg.ENGINE_HEADER.get(command, "addr")
        if payload:
            words = msg.ENGINE_WRITE.unpack(payload)
            if words["state"] == ERR:
                words["state"] = self.qps[number].ctx.state
            payload = msg.ENGINE_WRITE.pack(words)
            self._known[number] = words["state"], words["psn"]
        assert contexts.request(msg.EE, command, payload)
        contexts.run()
        return contexts.response(msg.EE)

    def take_receive(self, qpn: int, take: bool, keeps: bool) -> Fields:
        """See :class:`~rnic.gateware.roce.driver.Host`."""
        qp = self.qps[qpn]
        wqe = qp.take_receive() if take else None
        left = credit_code(qp.rq.available() + keeps)
        if wqe is None:
            return {"valid": 0, "credits": left}
        assert len(wqe.sges) <= 1, "the gateware takes receive entries of one piece"
        va, length, key = wqe.sges[0] if wqe.sges else (0, 0, 0)
        return {"valid": 1, "index": wqe.index, "va": va, "length": length, "key": key, "credits": left}

    def complete(self, completion: Fields) -> None:
        """See :class:`~rnic.gateware.roce.driver.Host`."""
        qp = self.qps[completion["qpn"]]
        if completion["fails"]:
            qp.responder.receive_index = completion["index"] if completion["taken"] else qp.responder.receive_index
            nak = completion["nak"]
            qp.fail_receive(completion["status"], nak, _EVENTS.get(nak))
            self._known[completion["qpn"]] = ERR, qp.ctx.expected_psn
            return
        row = OPCODES[completion["opcode"]]
        assert row is not None
        word3 = CQE_RECEIVE | row.work_request
        word3 |= (CQE_IMM if row.immdt else 0) | (CQE_SOLICITED if completion["solicited"] else 0)
        imm = completion["imm"] if row.immdt else 0
        qp.recv_cq.complete(
            completion["index"], SUCCESS, 0, completion["length"], word3, 0, 0, completion["qpn"], imm
        )  # fmt: skip

    def lost(self, qpn: int) -> None:
        """See :class:`~rnic.gateware.roce.driver.Host`."""
        self.qps[qpn].fail_receive(REM_OP_ERR, NAK_REMOTE_OPERATION, WQ_CATAS_ERROR)
