"""An RC Link endpoint, sans I/O: packets and the time go in, packets and a deadline come out.

A host controls it through registers (:mod:`rnic.rclink.registers`), sends packets (:meth:`RcLinkEndpoint.send`) and
receives them (:meth:`RcLinkEndpoint.recv`); :mod:`rnic.rclink.driver` has the register sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rnic.rclink import packet as wire
from rnic.rclink.config import RcLinkConfig
from rnic.rclink.drops import RcLinkDrop
from rnic.rclink.header import Rh
from rnic.rclink.merge import CnpFilter
from rnic.rclink.numbers import (
    BANKS,
    CC_WINDOW_NS,
    ECN_CONGESTED,
    OP_ACK,
    OP_CNP,
    OP_SEND,
    REFUSED,
    RETRY_UNIT_NS,
    TIMESTAMP_SHIFT,
    RcLinkError,
    timestamp,
)
from rnic.rclink.qp import QueuePair
from rnic.rclink.receiver import Received, Receiver
from rnic.rclink.register_block import RegisterBlock
from rnic.rclink.sender import Sender, Sent
from rnic.trace.counters import Counters
from rnic.trace.tracer import NullTracer, Tracer
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow

IRQ_OVERSIZE, IRQ_RETRY_OUT, IRQ_OVER_CREDIT, IRQ_TX_DISABLED, IRQ_RX_DISABLED = 1, 2, 3, 4, 5
"""Interrupt messages of TYPE1 (``hardware.md`` §4)."""
IRQ_NAMES = {
    IRQ_OVERSIZE: "oversize",
    IRQ_RETRY_OUT: "retry out",
    IRQ_OVER_CREDIT: "over-credit",
    IRQ_TX_DISABLED: "TX on disabled QP",
    IRQ_RX_DISABLED: "RX on disabled QP",
}

MakeFlow = Callable[[bytes, int, int], Flow]
"""Function from the peer's address, its UDP port and a preferred source port (0: none) to a flow, such as
``Link.local_flow``."""


class RcLinkEndpoint:
    """Queue pairs 0 to ``qp_num - 1`` of TYPE1, reliable unicast.

    Args:
        config: parameters and reset values; register writes change it.
        make_flow: makes the flow to a peer.
        counters: counters of packets, drops and events.
        tracer: called for packets at stages ``"tx"``, ``"rx"`` and ``"drop"``.
    """

    def __init__(
        self,
        config: RcLinkConfig,
        make_flow: MakeFlow,
        counters: Counters | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.config = config = replace(config)
        config.retry_timer_ns = config.retry_timer_ns // RETRY_UNIT_NS * RETRY_UNIT_NS
        self.counters = Counters() if counters is None else counters
        self._tracer = tracer or NullTracer()
        self._make_flow = make_flow
        self._now_ns = 0
        """Latest time given by a caller; register writes and sends in between use it."""
        self.qps = [QueuePair(qpid, CC_WINDOW_NS[config.cc_window]) for qpid in range(config.qp_num)]
        self.sender = Sender(self.qps, config, self.counters, self._stopped)
        self._receiver = Receiver(self.qps, config, self.counters)
        self._receiver.cnp_filter.enabled = config.cnp_merge
        self._cnp_filter = CnpFilter(config.cnp_timer_ns)
        """Filter of received CNPs; the receiver has one for sent CNPs."""
        self._cnp_filter.enabled = config.cnp_merge
        self._congested: dict[int, None] = {}
        self._registers = RegisterBlock(self)

    # ------------------------------------------------------------------------------------------ the host's side

    def read(self, offset: int) -> int:
        """Read the 64-bit register at ``offset``."""
        return self._registers.read(offset)

    def write(self, offset: int, value: int) -> None:
        """Write the 64-bit register at ``offset``; see :meth:`RegisterBlock.write` for errors."""
        if not 0 <= value < 1 << 64:
            raise RcLinkError(f"register {offset:#06x}={value:#x}: use 0 to 2^64 - 1")
        self._registers.write(offset, value)

    @property
    def interrupt_line(self) -> bool:
        """True if a bit of INTR_STATUS is set."""
        return self._registers.line

    def next_interrupt(self) -> tuple[int, int] | None:
        """Return the oldest pending interrupt, (``IRQ_*``, QP), or ``None``."""
        return self._registers.next_interrupt()

    def next_congestion(self) -> int | None:
        """Return a QP for which a CNP passed the filter, or ``None``; each QP once, however many CNPs it got."""
        return self._congested.popitem()[0] if self._congested else None

    @property
    def free_slots(self) -> int:
        """Number of packets that :meth:`send` takes now."""
        return self.sender.free

    def send(self, qpid: int, payload: bytes | bytearray | memoryview, *, fack: bool = False, tag: object = None,
             kind: str = "TYPE1") -> None:  # fmt: skip
        """Send a packet on a QP; the payload is copied.

        Args:
            qpid: the local QP.
            payload: 1 to ``pkt_len`` bytes.
            fack: true if the receiver shall acknowledge at once.
            tag: returned by :meth:`next_sent` when the packet is acknowledged or discarded; ``None`` for no report.
            kind: ``"TYPE1"``; other types are refused.

        Raises:
            RcLinkError: unknown, disabled or stopped QP, invalid size, no free slot, or unsupported type. The
                interrupts of ``hardware.md`` §4 report the same.
        """
        if kind != "TYPE1":
            raise RcLinkError(REFUSED.get(kind, f"type {kind!r} is not one of {', '.join(wire.TYPES)}: use TYPE1"))
        qp = self._qp(qpid)
        size = len(payload)
        if not 1 <= size <= self.config.pkt_len:
            if size:
                self._interrupt(IRQ_OVERSIZE, qpid)
            raise RcLinkError(f"packet of {size} bytes on QP {qpid}: use 1 to {self.config.pkt_len}")
        if not qp.enabled:
            self._interrupt(IRQ_TX_DISABLED, qpid)
            raise RcLinkError(f"QP {qpid} is disabled: set qp_en after its set-up")
        if qp.stopped:
            raise RcLinkError(
                f"QP {qpid} has stopped since its peer did not answer: recover it (rnic.rclink.driver.Recovery)"
            )
        if not self.sender.free:
            self._interrupt(IRQ_OVER_CREDIT, qpid)
            raise RcLinkError(f"all {self.config.ost} slots are taken: send when free_slots is above 0")
        self.sender.write(qp, bytes(payload), fack, tag)

    def next_sent(self) -> Sent | None:
        """Return the result of the oldest completed packet with a tag, or ``None``."""
        done = self.sender.done
        return done.popleft() if done else None

    def recv(self) -> Received | None:
        """Return the oldest received packet, or ``None``."""
        inbox = self._receiver.inbox
        return inbox.popleft() if inbox else None

    @property
    def waiting(self) -> int:
        """Number of packets that wait for :meth:`recv`."""
        return len(self._receiver.inbox)

    def rtt_ns(self, qpid: int) -> int:
        """Return the round-trip time of a QP by the last ACK with a timestamp, in steps of 1.024 us; 0 before that."""
        return self._qp(qpid).rtt_ns

    def _qp(self, qpid: int) -> QueuePair:
        if not 0 <= qpid < len(self.qps):
            raise RcLinkError(f"QP {qpid}: this endpoint has QPs 0 to {len(self.qps) - 1}")
        return self.qps[qpid]

    # ---------------------------------------------------------------------------- effects of register writes

    def set_window(self, code: int) -> None:
        """Set a new rate window for all QPs."""
        self.config.cc_window = code
        for qp in self.qps:
            qp.rate.set_window(CC_WINDOW_NS[code], self._now_ns)

    def set_cnp_merge(self, timer_thr_ns: int, enabled: bool) -> None:
        """Set TIMER_THR of both CNP filters, and enable or disable them."""
        self.config.cnp_timer_ns = timer_thr_ns
        self.config.cnp_merge = enabled
        for one in (self._cnp_filter, self._receiver.cnp_filter):
            one.timer_thr_ns = timer_thr_ns
            one.enabled = enabled

    def set_rate(self, qp: QueuePair, length_thr: int) -> None:
        """Set a new ``length_thr`` for one QP."""
        self.sender.set_rate(qp, length_thr, self._now_ns)

    def control(self, qp: QueuePair, enable: bool, free: bool) -> None:
        """Enable or disable a QP, or free its slots.

        Raises:
            RcLinkError: no peer is set, its number does not fit in RH, banks differ under ``bank_rr``, slots are being
                freed, or ``free`` is set for an enabled QP.
        """
        if free and (qp.enabled or enable):
            raise RcLinkError(f"free_buf_set of QP {qp.qpid}: disable the QP first")
        if enable and not qp.enabled:
            self._enable(qp)
        elif qp.enabled and not enable:
            qp.enabled = False
            qp.flow = None
            self.sender.suspend(qp)
            self._receiver.forget(qp)
        if free:
            self.sender.start_freeing(qp)

    def _enable(self, qp: QueuePair) -> None:
        where = f"QP {qp.qpid} cannot be enabled"
        if qp.freeing or qp.stopped:
            raise RcLinkError(f"{where}: free its slots with free_buf_set first")
        if qp.dest_qp >= 1 << 13:
            raise RcLinkError(f"{where}: dest_qpid {qp.dest_qp} does not fit in the 13 bits of RH")
        if self.config.bank_rr and (qp.dest_qp ^ qp.qpid) % BANKS:
            raise RcLinkError(f"{where}: with banks its peer's number {qp.dest_qp} must end in the same two bits")
        if not qp.dest_ip and not qp.dest_ip6:
            raise RcLinkError(f"{where}: set DEST_IP to its peer first")
        address = qp.dest_ip6.to_bytes(16, "big") if qp.dest_ip6 else qp.dest_ip.to_bytes(4, "big")
        qp.flow = self._make_flow(address, qp.udp_dport or self.config.port, qp.udp_sport)
        qp.flow.tclass = self.config.tclass
        qp.enabled = True
        self.sender.resume(qp, self._now_ns)

    # ------------------------------------------------------------------------------------------- the wire's side

    def receive(self, burst: RxBurst, now_ns: int) -> None:
        """Process packets from a link. Invalid ones are counted and dropped."""
        self._now_ns = max(self._now_ns, now_ns)
        for start in range(0, burst.length, max(1, burst.segment)):
            packet = burst.buf[start : min(start + burst.segment, burst.length)]
            try:
                drop = self._receive(packet, burst, start // max(1, burst.segment))
            except Exception:  # noqa: BLE001 - last guard: an internal error stops one QP and is counted
                self._fault(packet)
                continue
            if drop is not None:
                self.counters.bump(drop.value)
                self._tracer.event(now_ns, "drop", 0, reason=drop.name)

    def _receive(self, buf: memoryview, burst: RxBurst, index: int) -> RcLinkDrop | None:
        kind = wire.classify(burst.flow, self.config.port, self.config.type2_port)
        if kind != "TYPE1":
            return RcLinkDrop.TYPE2 if kind == "TYPE2" else RcLinkDrop.TYPE3
        packet = wire.parse(buf, self.config.icrc)
        if isinstance(packet, RcLinkDrop):
            return packet
        ident = self.config.ident if burst.ident is None else burst.ident + index & 0xFFFF
        if self.config.icrc and not wire.icrc_ok(buf, burst.flow, ident, burst.frag):
            return RcLinkDrop.BAD_ICRC
        rh = packet.rh
        if rh.dest_qp >= len(self.qps):
            return RcLinkDrop.UNKNOWN_QP
        qp = self.qps[rh.dest_qp]
        if qp.flow is None:
            self._interrupt(IRQ_RX_DISABLED, qp.qpid)
            return RcLinkDrop.DISABLED
        if burst.flow.src != qp.flow.dst:
            return RcLinkDrop.WRONG_ADDRESS
        if rh.pkey != qp.rx_pkey:
            return RcLinkDrop.BAD_PKEY
        if self._tracer.enabled:
            self._tracer.event(self._now_ns, "rx", qp.qpid, opcode=rh.opcode, psn=rh.psn, syndrome=rh.len_syndrome)
        if rh.opcode == OP_SEND:
            return self._receiver.take(qp, packet, burst.ecn == ECN_CONGESTED, self._now_ns)
        if rh.opcode == OP_ACK:
            return self._receive_ack(qp, rh)
        assert rh.opcode == OP_CNP, rh
        self._receive_cnp(qp)
        return None

    def _receive_ack(self, qp: QueuePair, rh: Rh) -> RcLinkDrop | None:
        drop = self.sender.acknowledge(qp, rh.psn, rh.len_syndrome, self._now_ns)
        if drop is None and rh.ts_en:
            qp.rtt_ns = (timestamp(self._now_ns) - rh.timestamp & 0xFFFF) << TIMESTAMP_SHIFT
        return drop

    def _receive_cnp(self, qp: QueuePair) -> None:
        self.counters.bump("cnps_received")
        if self._cnp_filter.passes(qp.qpid, self._now_ns):
            self._congested[qp.qpid] = None
            self.counters.bump("cnps_reported")
        if self.config.cnp_halves:
            qp.rate.settle(self._now_ns)
            qp.rate.halve(self._now_ns + self.config.cnp_timer_ns)

    def produce(self, now_ns: int, budget: int = 64) -> list[TxBurst]:
        """Return up to ``budget`` packets to send now: responses first, then SENDs in arbiter order."""
        self._now_ns = max(self._now_ns, now_ns)
        self.sender.free_some()
        out = [self._burst(qp, rh, b"") for qp, rh in self._receiver.answers(self._now_ns, budget)]
        while len(out) < budget:
            granted = self.sender.grant(self._now_ns)
            if granted is None:
                break
            out.append(self._burst(*granted))
        return out

    def _burst(self, qp: QueuePair, rh: Rh, payload: bytes) -> TxBurst:
        assert qp.flow is not None, "a disabled QP sends nothing"
        frame = wire.build(rh, payload)
        if self.config.icrc:
            frame = wire.seal(frame, qp.flow)
        if self._tracer.enabled:
            self._tracer.event(self._now_ns, "tx", qp.qpid, opcode=rh.opcode, psn=rh.psn, syndrome=rh.len_syndrome)
        return TxBurst(qp.flow, [frame], len(frame), 1, len(frame))

    def has_work(self, now_ns: int) -> bool:
        """Return whether :meth:`produce` may return packets now."""
        return self.sender.ready() or self._receiver.ready(now_ns)

    def next_deadline_ns(self) -> int | None:
        """Return when to call :meth:`handle_timers` and :meth:`produce` if nothing arrives."""
        times = [
            time for time in (self.sender.next_deadline_ns(), self._receiver.next_deadline_ns()) if time is not None
        ]
        return min(times, default=None)

    def handle_timers(self, now_ns: int) -> None:
        """Handle all timers that are due."""
        self._now_ns = max(self._now_ns, now_ns)
        self.sender.handle_timers(self._now_ns)

    # ---------------------------------------------------------------------------------------------- internals

    def _interrupt(self, code: int, qpid: int) -> None:
        self.counters.bump("interrupts")
        self._registers.interrupt(code, qpid)

    def _fault(self, packet: memoryview) -> None:
        """Stop the QP whose packet caused an internal error, as if its peer did not answer."""
        self.counters.bump("internal_errors")
        qpid = Rh.parse(packet).dest_qp
        if qpid < len(self.qps):
            self.qps[qpid].stopped = True
            self.sender.suspend(self.qps[qpid])
            self._stopped(self.qps[qpid])

    def _stopped(self, qp: QueuePair) -> None:
        self._interrupt(IRQ_RETRY_OUT, qp.qpid)
