"""Completer, 002's requester receive control: ACKs, NAKs, READ and atomic responses (IBA 9.7.6, 9.7.7).

Every handler first places the response's PSN: before the oldest outstanding one it is stale, beyond the last
one sent it is a ghost, and both are dropped with a counter of their own.
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
    """What a queue pair does with responses to its requests."""

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
        """One response packet of a known opcode."""
        if not self._check_psn(packet):
            return
        if packet.row.read_response or packet.row.operation == ATOMIC_ACKNOWLEDGE:
            self._response(packet, now_ns)
        else:
            self._acknowledge(packet, now_ns)

    def _check_psn(self, packet: Packet) -> bool:
        """Whether it is of a packet that was sent and is not acknowledged."""
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
        """Acknowledge everything before ``psn``; false where a READ or atomic response is missing before it, or
        the QP failed.

        That is an implied NAK (IBA 9.7.6): responses come in order, so the missing one was lost.
        """
        requester = self.requester
        index = requester.read_index
        if index != NONE and psn_diff(psn, due := requester.message(index).due_psn) > 0:
            if requester.piece_count:
                self._implied_nak(due, now_ns)
            else:
                # rewound already: what was acknowledged behind the READ is sent again with it
                self.host.counters.bump(DropReason.STALE_RESPONSE.value)
                requester.advance(due, now_ns)
            return False
        return self._advance(psn, now_ns)

    def _advance(self, psn: int, now_ns: int) -> bool:
        """Everything before ``psn`` is acknowledged; false where a request among it failed and so did the QP."""
        self.requester.advance(psn, now_ns)
        return self.ctx.state != ERR

    def _implied_nak(self, psn: int, now_ns: int) -> None:
        requester = self.requester
        if not self._advance(psn, now_ns):
            return
        timed = requester.ack_timeout or requester.probing
        if psn == self.implied_psn and (timed or now_ns - self.implied_at < requester.retransmit_interval):
            # Responses from before the rewind say the same again, late ones too: they are no new loss and cost no
            # retry. If the response was lost again, a probe or the ACK timeout asks, where there is one.
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
        # the request that is refused has come: what was lost on its way, or told late, is mended
        requester.retry_left = self.ctx.retry_cnt
        requester.rewind(packet.psn)
        requester.start_rnr_wait(now_ns + rnr_timer_ns(packet.syndrome & AETH_VALUE_MASK))

    def _credits(self, packet: Packet) -> None:
        """End-to-end flow control: MSN plus credits is the last SSN that has a receive entry (9.7.7.2).

        The MSN is told from the PSN, with which it goes: by our own count of requests, which the peer's may exceed.
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
            # rewound: the request will be repeated, and the answer to the old one is of no use
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
        # a response acknowledges all requests before its own
        if not self._advance(packet.psn, now_ns):
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
            # After a retry from the middle, what the first request drew may still come: a MIDDLE may then stand
            # where the repeated request draws a FIRST. The PSN says that the bytes are the same.
            misplaced = got if row.start else not message.received
            # The answer to a probe may come when all is asked for anew.
            probed = asked or (row.start and packet.psn == requester.asked_psn)
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
        # No credits from here: common NICs put 0 into the AETH of a READ response (software.md section 4).
        self.took(1, now_ns)
        if asked and packet.row.start and packet.row.end and requester.piece_count:
            # the answer to the probe: the responses to what was asked before it would have come before it
            self._implied_nak(requester.piece().next_psn, now_ns)

    def took(self, count: int, now_ns: int) -> None:
        """``count`` response packets of the oldest request were placed in order."""
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
