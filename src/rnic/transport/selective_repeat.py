"""Selective repeat: the responder keeps out-of-order packets, and the requester retransmits only the missing one.

An option of rnic, not of the standard, that both peers must enable (``recovery="selective-repeat"`` of
:class:`~rnic.device.config.NicConfig`); see Mittal and others, "Revisiting Network Support for RDMA", SIGCOMM 2018, for
its benefit. The wire format is the standard's: a NAK names the first missing packet. The responder keeps later packets,
so only the missing one has to be retransmitted. When it arrives, the responder processes the kept packets and sends a
NAK for the next gap at once. A peer without the option still works, with Go-Back-N or with a NAK for each packet.

The NAK is repeated with every sixteenth kept packet. A packet that a NAK names again after two round trips is
retransmitted again, which costs a retry. Only SEND and WRITE requests are repaired this way, not READ responses and
atomics. If no more packets arrive, the tail-loss probe, with a shorter interval than otherwise, retransmits the missing
one; after an ACK timeout, Go-Back-N is used. A NIC with this option does not use the engine but runs the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rnic.spec.limits import NEVER
from rnic.spec.psn import PSN_MASK, psn_diff
from rnic.spec.syndromes import NAK_PSN_SEQUENCE
from rnic.state.record import NONE
from rnic.transport.encap import FrameBatch

if TYPE_CHECKING:
    from rnic.transport.message import Message
    from rnic.transport.qp import QueuePair
    from rnic.wire.packet import Packet

_NAK_AGAIN = 16
REPEAT_NS = 100_000
"""Shortest interval of the tail-loss probe (the paper's RTO_low): a lost retransmission stalls the queue pair."""
KEPT_MOST = 512
"""Most packets that a responder keeps, and their largest distance from the missing one; further packets are dropped."""


class SelectiveRepeat:
    """Kept out-of-order packets of one queue pair, and the packet that it must retransmit. Only exists if the option is
    on."""

    __slots__ = ("_kept", "_qp", "_repair", "_repaired_at", "_repaired_psn")

    def __init__(self, qp: QueuePair) -> None:
        self._qp = qp
        self._kept: dict[int, Packet] = {}
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self._repair: int | None = None
        self._repaired_psn: int | None = None
        self._repaired_at = NEVER

    # ------------------------------------------------------------------------------------- responder

    def keep(self, packet: Packet) -> bool:
        """Keep a copy of an out-of-order packet. Return whether there was room, or it is kept already."""
        psn = packet.psn
        if psn in self._kept:
            return True
        if psn_diff(psn, self._qp.ctx.expected_psn) > KEPT_MOST:
            return False
        if not len(self._kept) % _NAK_AGAIN and self._kept:
            # the NAK or the retransmission may be lost: repeat the NAK while packets arrive
            self._qp.responder.nak_sent = 0
        packet.payload = memoryview(bytes(packet.payload))  # the link will reuse its buffer
        self._kept[psn] = packet
        self._qp.host.counters.bump("kept_packets")
        return True

    def release_next(self, take: Callable[[Packet], None]) -> None:
        """Process the kept packets that follow the expected one, which has arrived, and send a NAK for the next gap."""
        qp = self._qp
        while (packet := self._kept.pop(expected_psn := qp.ctx.expected_psn, None)) is not None:
            take(packet)
            if qp.ctx.expected_psn == expected_psn:
                return  # refused, and the peer got a NAK
        if self._kept:
            # Go-Back-N may have retransmitted some of the kept packets: drop the copies
            for psn in [psn for psn in self._kept if psn_diff(psn, expected_psn) < 0]:
                del self._kept[psn]
        if self._kept:
            qp.responder.nak(expected_psn, NAK_PSN_SEQUENCE)

    # ------------------------------------------------------------------------------------- requester

    @property
    def due(self) -> bool:
        """True if a packet is to be retransmitted."""
        return self._repair is not None

    def nak(self, psn: int, now_ns: int) -> bool:
        """Handle a NAK that names ``psn``. Return whether only that packet is retransmitted; if not, the caller uses
        Go-Back-N."""
        requester = self._qp.requester
        if self._message(psn) is None:
            return False
        if psn == self._repaired_psn:
            peer = requester.peer
            patience = 2 * peer.srtt + 4 * peer.rttvar if peer.srtt else requester.retransmit_interval
            if now_ns - self._repaired_at < patience:
                return True  # the NAK was sent before the retransmission can have arrived
            if not requester.retry_left:
                return False
            requester.retry_left -= 1
        self._repair = self._repaired_psn = psn
        self._repaired_at = now_ns
        requester.rtt_psn = NONE  # the ACK of kept packets waits for the gap: do not measure it as a round trip
        self._qp.host.schedule(self._qp)
        return True

    def send(self, batch: FrameBatch) -> int:
        """Retransmit the missing packet. Return the number of packets sent."""
        psn, self._repair = self._repair, None
        if psn is None or (message := self._message(psn)) is None:
            return 0
        requester = self._qp.requester
        payload = requester.payload(message)
        if not payload.valid:
            return 0
        sent = requester.retransmit(message, payload, psn_diff(psn, message.first_psn), batch)
        if sent:
            self._qp.host.counters.bump("retransmitted_packets")
            self._qp.host.counters.bump("repairs")
        return sent

    def _message(self, psn: int) -> Message | None:
        """Return the SEND or WRITE that ``psn`` belongs to, if that PSN was sent and is not acknowledged."""
        requester = self._qp.requester
        if psn_diff(psn & PSN_MASK, requester.una) < 0:
            return None
        for message in requester.messages(requester.sq_head, requester.fetch_index):
            at = psn_diff(psn, message.first_psn)
            if message.packets and 0 <= at < message.sent:
                return None if message.reads else message
        return None
