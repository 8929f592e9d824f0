"""The receiving half: PSN check, delivery, ACK, NAK and CNP (``hardware.md`` §4)."""

from __future__ import annotations

from collections import deque

from rnic.rclink.config import RcLinkConfig
from rnic.rclink.drops import RcLinkDrop
from rnic.rclink.header import Rh
from rnic.rclink.merge import AckMerger, CnpFilter
from rnic.rclink.numbers import OP_ACK, OP_CNP, psn_add, psn_diff
from rnic.rclink.packet import RcLinkPacket
from rnic.rclink.qp import QueuePair
from rnic.spec.syndromes import AETH_ACK, AETH_NAK, AETH_RNR_NAK, AETH_TYPE_MASK, CREDITS_INVALID, NAK_PSN_SEQUENCE
from rnic.state.counters import NAKS_SENT
from rnic.trace.counters import Counters

_NAKS_SENT = {**NAKS_SENT, AETH_NAK: "naks_sent"}


class Received:
    """A received packet for the host: QP and payload."""

    __slots__ = ("payload", "qpid")

    def __init__(self, qpid: int, payload: bytes) -> None:
        self.qpid = qpid
        self.payload = payload


class Receiver:
    """Receiver of SENDs of all QPs.

    Args:
        qps: the QPs by number.
        config: parameters; fields set by registers are read at each use.
        counters: counters of packets and events.
    """

    def __init__(self, qps: list[QueuePair], config: RcLinkConfig, counters: Counters) -> None:
        self._qps = qps
        self._config = config
        self._counters = counters
        self.inbox: deque[Received] = deque()
        """Packets waiting for the host."""
        self._acks = AckMerger(len(qps))
        self._naks: dict[int, int] = {}
        """NAK syndromes to send, by QP."""
        self._cnps: dict[int, None] = {}
        self.cnp_filter = CnpFilter(config.cnp_timer_ns)
        self._merge_ns: int | None = None
        """Time at which unforced ACKs are due."""

    def take(self, qp: QueuePair, packet: RcLinkPacket, congested: bool, now_ns: int) -> RcLinkDrop | None:
        """Process a SEND for this QP; return the drop reason, or ``None`` if it is delivered."""
        rh = packet.rh
        if congested:
            self._counters.bump("ecn_received")
            if self.cnp_filter.passes(qp.qpid, now_ns):
                self._cnps[qp.qpid] = None
        if rh.ts_en:
            qp.echo = rh.timestamp
        ahead = psn_diff(rh.psn, qp.rx_epsn)
        if ahead > 0:
            # one NAK only, until the missing packet arrives
            if not qp.nak_sent:
                qp.nak_sent = True
                self._naks[qp.qpid] = NAK_PSN_SEQUENCE
            return RcLinkDrop.PSN_GAP
        if ahead < 0:
            self._owe(qp, bool(rh.fack), now_ns)
            return RcLinkDrop.DUPLICATE
        if len(self.inbox) >= self._config.rx_packets:
            qp.nak_sent = True
            self._naks[qp.qpid] = AETH_RNR_NAK | self._config.rnr_timer
            return RcLinkDrop.NOT_READY
        qp.rx_epsn = psn_add(qp.rx_epsn, 1)
        qp.nak_sent = False
        self._naks.pop(qp.qpid, None)
        self.inbox.append(Received(qp.qpid, bytes(packet.payload)))
        self._counters.bump("rx_send")
        self._owe(qp, bool(rh.fack), now_ns)
        return None

    def _owe(self, qp: QueuePair, force: bool, now_ns: int) -> None:
        self._acks.set(qp.qpid, force)
        if self._merge_ns is None:
            self._merge_ns = now_ns + self._config.ack_merge_ns

    def forget(self, qp: QueuePair) -> None:
        """Discard pending responses of a disabled QP."""
        self._acks.clear(qp.qpid)
        self._naks.pop(qp.qpid, None)
        self._cnps.pop(qp.qpid, None)
        qp.nak_sent = False

    def answers(self, now_ns: int, limit: int) -> list[tuple[QueuePair, Rh]]:
        """Return up to ``limit`` NAKs, ACKs and CNPs that are due, with their QPs."""
        out: list[tuple[QueuePair, Rh]] = []
        while self._cnps and len(out) < limit:
            qpid = next(iter(self._cnps))
            del self._cnps[qpid]
            out.append(self._answer(qpid, OP_CNP))
            self._counters.bump("cnps_sent")
        while self._naks and len(out) < limit:
            qpid, syndrome = next(iter(self._naks.items()))
            del self._naks[qpid]
            self._acks.clear(qpid)  # a NAK acknowledges all earlier packets
            qp = self._qps[qpid]
            qp.ack_sn = qp.rx_epsn
            out.append(self._answer(qpid, OP_ACK, syndrome, qp.rx_epsn))
            self._counters.bump(_NAKS_SENT[syndrome & AETH_TYPE_MASK])
        out += [self._acknowledge(qpid, forced=True) for qpid in self._acks.take_forced(limit - len(out))]
        if self._merge_ns is not None and self._merge_ns <= now_ns:
            out += [self._acknowledge(qpid, forced=False) for qpid in self._acks.take(limit - len(out))]
        if not self._acks:
            self._merge_ns = None
        return out

    def _acknowledge(self, qpid: int, forced: bool) -> tuple[QueuePair, Rh]:
        qp = self._qps[qpid]
        qp.ack_sn = qp.rx_epsn
        self._counters.bump("acks_sent")
        timed = forced or self._config.ack_time
        return self._answer(qpid, OP_ACK, AETH_ACK | CREDITS_INVALID, psn_add(qp.rx_epsn, -1), timed)

    def _answer(
        self, qpid: int, opcode: int, syndrome: int = 0, psn: int = 0, timed: bool = False
    ) -> tuple[QueuePair, Rh]:
        qp = self._qps[qpid]
        rh = Rh(
            opcode=opcode,
            ts_en=timed,
            timestamp=qp.echo if timed else 0,
            pkey=qp.tx_pkey,
            len_syndrome=syndrome,
            psn=psn,
            dest_qp=qp.dest_qp,
        )
        return qp, rh

    def ready(self, now_ns: int) -> bool:
        """Return whether :meth:`answers` has packets due."""
        if self._naks or self._cnps or self._acks.forced:
            return True
        return self._merge_ns is not None and self._merge_ns <= now_ns

    def next_deadline_ns(self) -> int | None:
        """Return when merged ACKs are due."""
        return self._merge_ns
