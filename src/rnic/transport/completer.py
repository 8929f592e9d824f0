"""Completer, 002's requester receive control: ACKs, NAKs, READ and atomic responses (IBA 9.7.6, 9.7.7).

Every handler first checks the response's PSN. A response before the oldest outstanding PSN is stale, one after the last
PSN sent is a ghost; both are dropped, each with its own counter.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rnic.spec.drops import DropReason
from rnic.spec.opcodes import ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE
from rnic.spec.psn import PSN_MASK, psn_diff
from rnic.spec.states import ERR
from rnic.spec.status import (
    BAD_RESP_ERR,
    LOC_PROT_ERR,
    REM_ACCESS_ERR,
    REM_INV_REQ_ERR,
    REM_OP_ERR,
    RNR_RETRY_EXC_ERR,
)
from rnic.spec.syndromes import (
    AETH_ACK,
    AETH_NAK,
    AETH_RNR_NAK,
    AETH_TYPE_MASK,
    AETH_VALUE_MASK,
    CREDIT_COUNTS,
    CREDITS_INVALID,
    NAK_INVALID_RD_REQUEST,
    NAK_INVALID_REQUEST,
    NAK_PSN_SEQUENCE,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATION,
    RNR_RETRY_FOREVER,
    rnr_timer_ns,
)
from rnic.state.queue_pair import QP, QpMemory, QpRecord
from rnic.state.record import NONE, Word, view
from rnic.transport.message import ATOMICS

if TYPE_CHECKING:
    from rnic.transport.qp import QueuePair
    from rnic.wire.packet import Packet

_FATAL = {
    NAK_INVALID_REQUEST: REM_INV_REQ_ERR,
    NAK_REMOTE_ACCESS: REM_ACCESS_ERR,
    NAK_REMOTE_OPERATION: REM_OP_ERR,
    NAK_INVALID_RD_REQUEST: REM_INV_REQ_ERR,
}


@view(QP, "Completer")
class Completer(QpRecord):
    """Responses to a queue pair's requests."""

    __slots__ = ("ctx", "host", "qp", "requester")

    implied_psn: Word
    implied_at: Word

    def __init__(self, memory: QpMemory, qp: QueuePair) -> None:
        self.qp = qp
        self.ctx = qp.ctx
        self.host = qp.host
        self.requester = qp.requester
        self.reset()

    def reset(self) -> None:
        """Forget the last implied NAK."""
        self.implied_psn = NONE
        self.implied_at = 0

    def receive(self, packet: Packet, now_ns: int) -> None:
        """Process one response packet of a known opcode."""
        if not self._check_psn(packet):
            return
        if packet.row.read_response or packet.row.operation == ATOMIC_ACKNOWLEDGE:
            self._response(packet, now_ns)
        else:
            self._acknowledge(packet, now_ns)

    def _check_psn(self, packet: Packet) -> bool:
        """Return whether the PSN is that of a packet that was sent and is not acknowledged."""
        requester = self.requester
        if psn_diff(packet.psn, requester.sent_psn) >= 0:
            self.host.counters.bump(DropReason.GHOST_RESPONSE.value)
            return False
        behind = psn_diff(packet.psn, requester.una)
        if behind < 0:
            acknowledges = packet.row.operation == ACKNOWLEDGE and packet.syndrome & AETH_TYPE_MASK == AETH_ACK
            if behind == -1 and acknowledges:
                self._credits(packet)  # an unsolicited ACK may repeat the last PSN to grant credits
            self.host.counters.bump(DropReason.STALE_RESPONSE.value)
        return behind >= 0

    # ---------------------------------------------------------------------------------- ACK and NAK

    def _acknowledge(self, packet: Packet, now_ns: int) -> None:
        kind = packet.syndrome & AETH_TYPE_MASK
        if kind == AETH_ACK:
            self.host.counters.bump("acks_received")
            self._credits(packet)
            self._cover(packet.psn + 1 & PSN_MASK, now_ns)
        elif kind == AETH_RNR_NAK:
            self._rnr(packet, now_ns)
        elif kind == AETH_NAK:
            self._nak(packet, now_ns)
        else:
            self.host.counters.bump(DropReason.BAD_OPCODE.value)

    def _cover(self, psn: int, now_ns: int) -> bool:
        """Acknowledge everything before ``psn``. Return false if a READ or atomic response is missing before it, or
        the QP failed.

        That is an implied NAK (IBA 9.7.6): responses come in order, so the missing one was lost.
        """
        requester = self.requester
        index = requester.read_index
        if index != NONE and psn_diff(psn, due := requester.message(index).due_psn) > 0:
            if requester.piece_count:
                self._implied_nak(due, now_ns)
            else:
                # rewound already: requests after the READ are retransmitted with it, although they were acknowledged
                self.host.counters.bump(DropReason.STALE_RESPONSE.value)
                requester.advance(due, now_ns)
            return False
        return self._advance(psn, now_ns)

    def _advance(self, psn: int, now_ns: int) -> bool:
        """Acknowledge everything before ``psn``. Return false if one of these requests failed, and the QP with it."""
        self.requester.advance(psn, now_ns)
        return self.ctx.state != ERR

    def _implied_nak(self, psn: int, now_ns: int) -> None:
        requester = self.requester
        if not self._advance(psn, now_ns):
            return
        timed = requester.ack_timeout or requester.probing
        if psn == self.implied_psn and (timed or now_ns - self.implied_at < requester.retransmit_interval):
            # Responses sent before the rewind imply the same NAK again: that is not a new loss and costs no retry.
            # If the response is lost again, a probe or the ACK timeout requests it.
            return
        self.implied_psn = psn
        self.implied_at = now_ns
        self.host.counters.bump("implied_naks")
        self.qp.retry(psn, now_ns)

    def _nak(self, packet: Packet, now_ns: int) -> None:
        if not self._cover(packet.psn, now_ns):
            return
        if packet.syndrome == NAK_PSN_SEQUENCE:
            self.host.counters.bump("sequence_naks_received")
            requester, selective = self.requester, self.qp.selective
            if requester.about_to_send(packet.psn):
                return
            if requester.resend_one(packet.psn) if selective is None else selective.nak(packet.psn, now_ns):
                return
            self.qp.retry(packet.psn, now_ns)
            return
        status = _FATAL.get(packet.syndrome)
        if status is None:
            self.host.counters.bump(DropReason.BAD_OPCODE.value)
            return
        self.host.counters.bump("fatal_naks_received")
        self.qp.fail_send(status, packet.syndrome)

    def _rnr(self, packet: Packet, now_ns: int) -> None:
        if not self._cover(packet.psn, now_ns):
            return
        requester = self.requester
        self.host.counters.bump("rnr_naks_received")
        if self.ctx.rnr_retry != RNR_RETRY_FOREVER:
            if requester.rnr_left == 0:
                self.qp.fail_send(RNR_RETRY_EXC_ERR, packet.syndrome)
                return
            requester.rnr_left -= 1
        # The refused request arrived, so an earlier loss is repaired: reset the retry count.
        requester.retry_left = self.ctx.retry_cnt
        requester.rewind(packet.psn)
        requester.start_rnr_wait(now_ns + rnr_timer_ns(packet.syndrome & AETH_VALUE_MASK))

    def _credits(self, packet: Packet) -> None:
        """Update end-to-end flow control: MSN plus credits is the last SSN that has a receive entry (9.7.7.2).

        The MSN is derived from the PSN by our own count of requests, since the peer's count may be higher.
        """
        code = packet.syndrome & AETH_VALUE_MASK
        requester = self.requester
        if code == CREDITS_INVALID:
            requester.lsn = NONE
        else:
            requester.lsn = requester.ssn_before(packet.psn + 1 & PSN_MASK) + CREDIT_COUNTS[code] & PSN_MASK
            if requester.pending:
                self.host.schedule(self.qp)

    # ------------------------------------------------------------------------------------ responses

    def _response(self, packet: Packet, now_ns: int) -> None:
        requester = self.requester
        if not requester.piece_count:
            # rewound: the request will be retransmitted, so the response to the old one is useless
            self.host.counters.bump(DropReason.STALE_RESPONSE.value)
            return
        piece = requester.piece()
        distance = psn_diff(packet.psn, piece.next_psn)
        if distance < 0:
            self.host.counters.bump(DropReason.STALE_RESPONSE.value)
            return
        if distance > 0:
            self._implied_nak(piece.next_psn, now_ns)
            return
        # a response acknowledges all requests before the one that it answers
        if packet.psn != requester.una and not self._advance(packet.psn, now_ns):
            return
        message = requester.message(piece.index)
        if packet.row.read_response == (message.opcode in ATOMICS):
            self.qp.fail_send(BAD_RESP_ERR, packet.opcode)
            return
        if packet.row.read_response:
            got, asked = piece.got, piece.asked
            offset = piece.offset + got * requester.mtu
            last = got + 1 == piece.packets
            size = len(packet.payload)
            expected = min(requester.mtu, message.length - offset)
            row = packet.row
            # After a retry from the middle, responses to the original request may still arrive: a MIDDLE instead of the
            # FIRST of the retransmitted request. The PSN shows that the bytes are the same.
            misplaced = got if row.start else not message.received
            # a packet requested alone by a probe arrives as the end of that response, or inside the longer one
            probed = asked or packet.psn == requester.asked_psn
            if size != expected or (row.end != last and not probed) or misplaced:
                self.qp.fail_send(BAD_RESP_ERR, packet.opcode)
                return
            data: memoryview | bytes = packet.payload
        else:
            offset = asked = 0
            data = packet.orig.to_bytes(8, sys.byteorder)
        payload = requester.payload(message)
        if not payload.valid or (data and not payload.write(offset, data)):
            self.qp.fail_send(LOC_PROT_ERR, 0)
            return
        # ignore the credits: common NICs put 0 into the AETH of a READ response (software.md section 4)
        self.took(1, now_ns)
        if asked and packet.row.start and packet.row.end and requester.piece_count:
            # The answer to the probe shows that the next response was lost: otherwise it would have arrived before. If
            # a SEND or WRITE precedes that response, it shows nothing: the SEND or WRITE may have been lost.
            due = requester.piece().next_psn
            if due == requester.una:
                self._implied_nak(due, now_ns)

    def took(self, count: int, now_ns: int) -> None:
        """Account for ``count`` response packets of the oldest request, placed in order."""
        requester = self.requester
        piece = requester.piece()
        message = requester.message(piece.index)
        piece.got += count
        message.received += count
        psn = piece.next_psn
        if piece.got == piece.packets:
            requester.drop_piece()
        if message.received == message.packets:
            requester.next_read()
        requester.advance(psn, now_ns)
        if requester.begun:
            self.host.schedule(self.qp)
