"""Responder, 002's execution engine: receive checks as named steps in the standard's order, then execution.

A request of a reliable or unreliable connection passes :data:`STEPS` one after another (``design.md`` "order of
RC_CHK", IBA 9.7, seed 004 section 7.3). A step returns false if it ends processing of the packet; it has then counted a
drop, queued a NAK, or failed the queue pair, as the rule requires.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rnic.context.qpc import OPT_CREDITS
from rnic.rings.cqe import CQE_IMM, CQE_INV, CQE_RECEIVE, CQE_SOLICITED
from rnic.spec import reasons
from rnic.spec.access import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE
from rnic.spec.drops import DropReason
from rnic.spec.events import COMM_EST, WQ_ACCESS_ERROR, WQ_CATAS_ERROR, WQ_INVAL_REQ_ERROR
from rnic.spec.limits import NEVER
from rnic.spec.opcodes import ATOMIC_WRITE, COMPARE_SWAP, READ_REQUEST
from rnic.spec.psn import PSN_FAR, PSN_MASK, PSN_WINDOW, psn_count, psn_diff
from rnic.spec.reasons import Reason
from rnic.spec.states import RELIABLE, RTR, ST_XRC_TGT
from rnic.spec.status import LOC_LEN_ERR, LOC_PROT_ERR, REM_ACCESS_ERR, REM_INV_REQ_ERR, REM_OP_ERR, SUCCESS
from rnic.spec.syndromes import (
    AETH_RNR_NAK,
    AETH_TYPE_MASK,
    CREDITS_INVALID,
    NAK_INVALID_REQUEST,
    NAK_PSN_SEQUENCE,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATION,
    credit_code,
)
from rnic.state.counters import NAKS_SENT
from rnic.state.queue_pair import QP, SCATTER, QpMemory, QpRecord
from rnic.state.record import NONE, WORD_BYTES, Word, view
from rnic.transport.resources import Resources
from rnic.transport.response_queue import ReplyQueue
from rnic.transport.rights import flushes_region, misaligned, needed_rights
from rnic.transport.sge import NO_PAYLOAD, Payload, Sge, local_payload, remote_payload
from rnic.transport.why import Values, about_packet, why_length, why_lists, why_rights
from rnic.transport.wqe import ReceiveWqe

if TYPE_CHECKING:
    from rnic.mem.translation import Translation
    from rnic.transport.host import CompletionSink, ReceiveSource
    from rnic.transport.qp import QueuePair
    from rnic.wire.packet import Packet

NOTHING = 0
SEND = 1
WRITE = 2
"""Kind of the open message."""

OWED_NS = 100_000
"""Delay of the ACK for a message without AckReq, or 1.25 mean round trips if longer: earlier than the sender's
probe."""

_NAK_STATUS = {
    NAK_INVALID_REQUEST: REM_INV_REQ_ERR,
    NAK_REMOTE_ACCESS: REM_ACCESS_ERR,
    NAK_REMOTE_OPERATION: REM_OP_ERR,
}
_NAK_EVENT = {NAK_INVALID_REQUEST: WQ_INVAL_REQ_ERROR, NAK_REMOTE_ACCESS: WQ_ACCESS_ERROR}

_SCATTER_WORDS = SCATTER.size // WORD_BYTES
_LOW = 0xFFFF_FFFF


@view(QP, "Responder")
class Responder(QpRecord):
    """The receiving half of one connected queue pair.

    ``nak_sent`` is set after a sequence NAK or an RNR NAK: out-of-order packets are then dropped
    without another NAK until the expected one arrives. ``guarded`` is the open WRITE's payload if a shell's guard
    admitted it instead of a key; ``_checked`` is the memory that the current packet may access.
    """

    __slots__ = (
        "_arena",
        "_cells",
        "_checked",
        "_now_ns",
        "_scatters",
        "cq",
        "ctx",
        "guarded",
        "host",
        "qp",
        "replies",
        "resources",
        "rq",
    )

    open: Word
    offset: Word
    write_length: Word
    write_va: Word
    write_rkey: Word
    write_binding: Word
    receive_index: Word
    receive_sges: Word
    receive_bytes: Word
    owed_ns: Word
    nak_sent: Word
    established: Word
    generation: Word
    msn: Word

    def __init__(self, memory: QpMemory, qp: QueuePair, rq: ReceiveSource, cq: CompletionSink) -> None:
        self.qp = qp
        self.ctx = qp.ctx
        self.host = qp.host
        self._arena = memory.arena
        self._cells = memory.cells
        self._scatters = memory.scatters
        self.rq = rq
        self.cq = cq
        self.replies = ReplyQueue(memory, qp)
        self.resources = Resources(memory, qp)
        self.guarded: Payload | None = None
        self.reset()

    def reset(self) -> None:
        """Reset all state, as RESET requires."""
        self.replies.clear()
        self.resources.clear()
        self.open = NOTHING
        self.offset = 0
        self.write_length = 0
        self.guarded = None
        self._checked = NO_PAYLOAD
        self._now_ns = 0
        self.receive_index = NONE
        self.receive_sges = self.receive_bytes = 0
        self.owed_ns = NEVER
        self.nak_sent = 0
        self.established = 0
        self._arena.generations += 1
        self.generation = self._arena.generations
        self.msn = 0

    # ------------------------------------------------------------------- destination of the open message

    @property
    def receive_wqe(self) -> ReceiveWqe | None:
        """The receive entry in use."""
        index = self.receive_index
        return None if index == NONE else ReceiveWqe(index, self._sges())

    def _sges(self) -> list[Sge]:
        cells = self._cells
        sges = []
        for at in range(self._scatters, self._scatters + self.receive_sges * _SCATTER_WORDS, _SCATTER_WORDS):
            word = cells[at + 1]
            sges.append((cells[at], word & _LOW, word >> 32))
        return sges

    def use(self, wqe: ReceiveWqe) -> None:
        """Copy a receive entry for the message that begins. Software may then reuse the ring's slot."""
        cells = self._cells
        at = self._scatters
        for va, length, key in wqe.sges:
            cells[at] = va
            cells[at + 1] = length | key << 32
            at += _SCATTER_WORDS
        self.receive_index = wqe.index
        self.receive_sges = len(wqe.sges)
        self.receive_bytes = wqe.total

    def release(self) -> int | None:
        """Release the receive entry in use. Return its index, or ``None`` if none was in use."""
        index = self.receive_index
        self.receive_index = NONE
        return None if index == NONE else index

    def dest(self) -> Payload:
        """Return the destination of the open message's payload."""
        if self.open == SEND:
            return local_payload(self.host.memory, self.qp.receive_pd, self._sges(), True)
        return self._write_dest()

    def _write_dest(self) -> Payload:
        if self.guarded is not None:
            return self.guarded.again()
        ctx = self.ctx
        sge = self.write_va, self.write_length, self.write_rkey
        return remote_payload(
            self.host.memory, self.qp.request_pd, sge, REMOTE_WRITE, ctx.local_qpn, self.write_binding
        )

    def receive(self, packet: Packet, now_ns: int) -> None:
        """Receive one request packet of this QP's service. ICRC and P_Key were checked."""
        if not self.established:
            self.established = 1
            if self.ctx.state == RTR:
                self.host.event(COMM_EST, self.ctx.local_qpn)
        expected_psn = self.ctx.expected_psn
        self._now_ns = now_ns
        self._take(packet)
        selective = self.qp.selective
        if selective is not None and self.ctx.expected_psn != expected_psn:
            selective.release_next(self._take)

    def handle_timer(self, now_ns: int) -> None:
        """Send the delayed ACK if it is due."""
        if self.owed_ns <= now_ns:
            self.owed_ns = NEVER
            self.reply(self.ctx.expected_psn - 1 & PSN_MASK, self._ack_code())

    def _take(self, packet: Packet) -> None:
        for step in STEPS:
            if not step(self, packet):
                return

    # ---------------------------------------------------------------------------- the named steps

    def check_psn(self, packet: Packet) -> bool:
        """Verify the PSN (IBA 9.7, for UC 9.8; 004 RC_CHK "PSN"): expected, duplicate or out of order."""
        expected_psn = self.ctx.expected_psn
        if packet.psn == expected_psn:
            if self.nak_sent:
                self.nak_sent = 0
            return True
        if self.ctx.servtype not in RELIABLE:
            # UC: the open message is lost; a message that starts with this packet is accepted (IBA 9.8)
            self.host.counters.bump(DropReason.PSN_GAP.value)
            self._abandon()
            if packet.row.start:
                self.ctx.expected_psn = packet.psn
                return True
            return False
        ahead = psn_diff(packet.psn, expected_psn)
        if not (self.msn or self.open) and not 0 < ahead < PSN_FAR:
            self.qp.explain(reasons.PSN_UNKNOWN, psn=packet.psn, expected=expected_psn)
        if ahead > 0:
            selective = self.qp.selective
            if selective is None or not selective.keep(packet):
                self.host.counters.bump((DropReason.NAKED if self.nak_sent else DropReason.PSN_GAP).value)
            if not self.nak_sent:
                self.nak(expected_psn, NAK_PSN_SEQUENCE)
            return False
        self._duplicate(packet)
        return False

    def check_op_seq(self, packet: Packet) -> bool:
        """Check the OpCode sequence (IBA 9.7): FIRST, MIDDLE, LAST and ONLY in a legal order."""
        row = packet.row
        kind = SEND if row.send else WRITE if row.write else NOTHING
        if row.start or kind == NOTHING:
            if self.open == NOTHING:
                return True
        elif self.open == kind:
            return True
        if self.ctx.servtype not in RELIABLE:
            self.host.counters.bump(DropReason.BAD_SEQUENCE.value)
            self._abandon()
            if row.start:
                return True
            self.ctx.expected_psn = packet.psn + 1 & PSN_MASK
            return False
        return self._refuse(packet, NAK_INVALID_REQUEST, (reasons.WRONG_SEQUENCE, {}))

    def check_op_valid(self, packet: Packet) -> bool:
        """Validate the OpCode (IBA 9.7; 004 "OPCODE"): known, and allowed by the QP's access flags."""
        if self.ctx.servtype == ST_XRC_TGT and not self.qp.use_srq(packet):
            number = packet.srqn if packet.row.xrceth else 0
            return self._refuse(packet, NAK_INVALID_REQUEST, (reasons.NO_XRC_SRQ, {"number": number}))
        rights = needed_rights(packet)
        if rights:
            allowed = self.ctx.access_flags & rights == rights and not misaligned(packet)
        else:
            allowed = packet.row.send
        return allowed or self._refuse(packet, NAK_INVALID_REQUEST, why_rights(self, packet))

    def check_resources(self, packet: Packet) -> bool:
        """Check resources (IBA 9.7): a receive entry if one is needed, else RNR; a response slot if the request has
        responses."""
        row = packet.row
        if row.send:
            if row.start and not self._take_receive(packet):
                return False
        elif row.takes_receive:
            if self.receive_index == NONE:
                wqe = self._next_receive()
                if wqe is None:
                    return self._not_ready(packet)
                self.use(wqe)
        elif row.resource and self.replies.pending_reads >= self.ctx.max_dest_rd_atomic:
            most: Values = {"most": self.ctx.max_dest_rd_atomic}
            return self._refuse(packet, NAK_INVALID_REQUEST, (reasons.READ_DEPTH, most))
        return True

    def check_length(self, packet: Packet) -> bool:
        """Validate lengths (IBA C9-92, C9-94; 004 "Length"): only the last packet may be short; the message fits."""
        row = packet.row
        size = len(packet.payload)
        mtu = self.ctx.mtu_bytes
        if row.payload:
            full = not row.end
            if size > mtu or (full and size != mtu) or (row.end and not row.start and size == 0):
                return self._refuse(packet, NAK_INVALID_REQUEST, why_length(self, packet))
        if row.send:
            if (0 if row.start else self.offset) + size > self.receive_bytes:
                return self._refuse(packet, NAK_INVALID_REQUEST, why_length(self, packet), LOC_LEN_ERR)
        elif row.operation == READ_REQUEST:
            if packet.dma_length > self.ctx.max_msg_bytes or psn_count(packet.dma_length, mtu) > PSN_WINDOW:
                return self._refuse(packet, NAK_INVALID_REQUEST, why_length(self, packet))
        elif row.operation == ATOMIC_WRITE:
            if not size == packet.dma_length == 8:
                return self._refuse(packet, NAK_INVALID_REQUEST, why_length(self, packet))
        elif row.write:
            length = packet.dma_length if row.start else self.write_length
            if length > self.ctx.max_msg_bytes:
                return self._refuse(packet, NAK_INVALID_REQUEST, why_length(self, packet))
            end = (0 if row.start else self.offset) + size
            if end > length or (row.end and end != length) or (not row.end and end == length):
                return self._refuse(packet, NAK_INVALID_REQUEST, why_length(self, packet))
        return True

    def check_rkey(self, packet: Packet) -> bool:
        """Validate the R_Key (IBA C9-88; 004 "WRITE MRT"): key, PD, rights and range. Zero length needs no key."""
        row = packet.row
        if row.send:
            if not row.start:  # on start packets, the resource check has just checked the entry
                self._checked = self.dest()
            return self._checked.valid or self._refuse_receive(packet)
        if row.write and not row.start:
            self._checked = self.dest()
            open_sge = self.write_va, self.write_length, self.write_rkey
            return self._checked.valid or self._refuse_access(packet, open_sge, REMOTE_WRITE)
        length, rights = packet.dma_length, needed_rights(packet)
        va: int = packet.va
        if flushes_region(packet):
            entry = self.host.memory.lookup(packet.rkey)
            va, length = va if entry is None else entry.start, 1
        payload = self._remote(packet, va, length, rights)
        if payload is None or not self._pages_known(packet, length, rights):
            return self._refuse_access(packet, (va, length, packet.rkey), rights)
        self._checked = payload
        return True

    def execute(self, packet: Packet) -> bool:
        """Move the data. Requests with responses are finished here."""
        row = packet.row
        if row.send or row.write:
            offset = 0
            if not row.start:
                offset = self.offset
            elif row.write:
                self._begin_write(packet)
            data = packet.payload
            if len(data) and not self._checked.write(offset, data):
                return self._refuse_receive(packet) if row.send else self._refuse_memory(packet, LOC_PROT_ERR)
            if not row.end:
                self.open = SEND if row.send else WRITE
                self.offset = offset + len(data)
            return True
        ctx = self.ctx
        payload = self._checked
        msn = self.msn + 1 & PSN_MASK
        if row.operation == READ_REQUEST:
            packets = psn_count(packet.dma_length, ctx.mtu_bytes)
            self.resources.keep(packet, packets, 0, False)
            self.replies.read(packet.psn, packets, payload, self._ack_code(), msn)
            ctx.expected_psn = packet.psn + packets & PSN_MASK
        elif not row.atomic:
            # earlier data is in memory already and globally visible: a FLUSH has nothing to do
            if row.payload and not payload.write(0, packet.payload):
                return self._refuse_memory(packet)
            self.resources.keep(packet, 1, 0, False)
            self.replies.read(packet.psn, 1, NO_PAYLOAD, self._ack_code(), msn)
            ctx.expected_psn = packet.psn + 1 & PSN_MASK
        else:
            orig = self._atomic(packet, payload)
            if orig is None:
                return self._refuse_memory(packet)
            self.resources.keep(packet, 1, orig, True)
            self.replies.atomic(packet.psn, orig, self._ack_code(), msn)
            ctx.expected_psn = packet.psn + 1 & PSN_MASK
        self.msn = ctx.rmsn = msn
        self.owed_ns = NEVER  # the response acknowledges earlier requests
        self.host.schedule(self.qp)
        return False

    def _begin_write(self, packet: Packet) -> None:
        payload = self._checked
        self.write_length = packet.dma_length
        self.write_va = packet.va
        self.write_rkey = packet.rkey
        self.write_binding = payload.binding
        self.guarded = payload if payload.guarded else None

    def complete(self, packet: Packet) -> bool:
        """Advance the PSN. At the end of a message, complete its receive entry and increment the MSN.

        A CQ overflow is detected before the ACK is sent (004 RC_CHK "CQ").
        """
        row = packet.row
        ctx = self.ctx
        if not row.end:
            ctx.expected_psn = packet.psn + 1 & PSN_MASK
            return True
        if row.ieth and not self.host.memory.invalidate(packet.inv_rkey, self.qp.request_pd, ctx.local_qpn):
            return self._refuse(
                packet, NAK_REMOTE_ACCESS, (reasons.NO_WINDOW, {"key": packet.inv_rkey}), REM_INV_REQ_ERR
            )
        if row.takes_receive:
            index = self.release()
            assert index is not None
            word3 = CQE_RECEIVE | row.work_request
            imm = 0
            if row.immdt:
                word3 |= CQE_IMM
                imm = packet.imm
            elif row.ieth:
                word3 |= CQE_INV
                imm = packet.inv_rkey
            if packet.solicited:
                word3 |= CQE_SOLICITED
            length = self.write_length if row.write else len(packet.payload) + (0 if row.start else self.offset)
            if not self.cq.complete(index, SUCCESS, 0, length, word3, 0, 0, ctx.local_qpn, imm):
                return self._overflow(packet)
        ctx.expected_psn = packet.psn + 1 & PSN_MASK
        self.msn = ctx.rmsn = self.msn + 1 & PSN_MASK
        if row.write and self.write_length and (translation := self._translation(self.write_rkey)) is not None:
            translation.written()
        self._abandon()
        return True

    def acknowledge(self, packet: Packet) -> bool:
        """Send an ACK if the packet has AckReq; later ACKs cover earlier ones (IBA 9.7.5.1.2).

        A complete message without AckReq is acknowledged together with the next one that has it, or after a delay.
        """
        if self.ctx.servtype not in RELIABLE:
            return True
        if packet.ackreq:
            self.reply(packet.psn, self._ack_code())
        elif packet.row.end and self.owed_ns == NEVER:
            srtt = self.qp.requester.srtt
            self.owed_ns = self._now_ns + max(OWED_NS, srtt + (srtt >> 2))
            self.qp.rearm()
        return True

    # ------------------------------------------------------------------------------------- helpers

    def _remote(self, packet: Packet, va: int, length: int, rights: int) -> Payload | None:
        """Return the memory that a request of the peer may access; ``None`` if its key does not permit it."""
        sge = va, length, packet.rkey
        pd = self.qp.pd_of(packet)
        payload = remote_payload(self.host.memory, pd, sge, rights, self.ctx.local_qpn)
        return payload if payload.valid else None

    def _translation(self, rkey: int) -> Translation | None:
        """Return the translation for R_Key 0 if a shell translates addresses (003)."""
        translations = self.host.memory.translations
        return None if rkey or not translations else translations.get(self.ctx.local_qpn)

    def _pages_known(self, packet: Packet, length: int, rights: int) -> bool:
        """Return whether a message under R_Key 0 may start: the shell's TLB has its pages."""
        translation = self._translation(packet.rkey) if length else None
        return translation is None or translation.begin(packet.va, length, rights)

    def _next_receive(self) -> ReceiveWqe | None:
        """Return the next receive entry; ``None`` if a reliable connection's queue is almost full (004 RC_CHK).

        "Almost full" is 004's term and means the buffer: no more entries are posted than the threshold keeps back.
        """
        if self.ctx.servtype in RELIABLE and (kept := self._kept_back()) and self.rq.available() <= kept:
            return None
        return self.qp.take_receive()

    def _kept_back(self) -> int:
        return self.rq.kept_back(self.host.config.rq_almost_full)

    def _take_receive(self, packet: Packet) -> bool:
        if self.receive_index == NONE:
            wqe = self._next_receive()
            if wqe is None:
                return self._not_ready(packet)
            self.use(wqe)
        self._checked = local_payload(self.host.memory, self.qp.receive_pd, self._sges(), True)
        return self._checked.valid or self._refuse_receive(packet)

    def _not_ready(self, packet: Packet) -> bool:
        """Send an RNR NAK (IBA 9.7.5.2.8); unreliable services drop the message. An unreadable ring is a fault."""
        if not self.rq.readable():
            return self._ring_lost(packet)
        answer = "an RNR NAK lets the peer wait" if self.ctx.servtype in RELIABLE else "the message is dropped"
        if posted := self.rq.available():
            answer = f"{posted} posted, RQ_ALMOST_FULL={self._kept_back()} of them kept back; {answer}"
        self.qp.explain(reasons.NO_RECEIVE, about_packet(packet, self), answer=answer)
        if self.ctx.servtype in RELIABLE:
            self.nak(packet.psn, AETH_RNR_NAK | self.ctx.rnr_nak_timer & 0x1F)
        else:
            self.host.counters.bump(DropReason.NO_RECEIVE.value)
            self._abandon()
            self.ctx.expected_psn = packet.psn + 1 & PSN_MASK
        return False

    def _ring_lost(self, packet: Packet) -> bool:
        """Handle posted entries that cannot be read: a local fault that no completion can report
        (004 7.7)."""
        self.qp.explain(reasons.RECEIVE_RING, about_packet(packet, self))
        if self.ctx.servtype in RELIABLE:
            self.host.counters.bump("fatal_naks_sent")
            self.reply(packet.psn, NAK_REMOTE_OPERATION)
        self.qp.fail_receive(LOC_PROT_ERR, NAK_REMOTE_OPERATION, WQ_CATAS_ERROR)
        return False

    def _refuse_access(self, packet: Packet, sge: Sge, rights: int) -> bool:
        """Refuse a request whose key does not permit it."""
        va, length, key = sge
        memory, pd = self.host.memory, self.qp.request_pd
        why = memory.why_refused(key, pd, va, length, rights, self.ctx.local_qpn)
        return self._refuse(packet, NAK_REMOTE_ACCESS, why)

    def _refuse_receive(self, packet: Packet) -> bool:
        """Refuse a request because the receive entry in use cannot be written."""
        why = why_lists(self.host.memory, self.qp.receive_pd, self._sges(), LOCAL_WRITE)
        return self._refuse(packet, NAK_REMOTE_OPERATION, why, LOC_PROT_ERR)

    def _refuse_memory(self, packet: Packet, local_status: int = SUCCESS) -> bool:
        """Refuse a request because its memory cannot be accessed, although the key is right."""
        va = packet.va if packet.row.start else self.write_va + self.offset
        return self._refuse(packet, NAK_REMOTE_OPERATION, (reasons.MEMORY_GONE, {"va": va}), local_status)

    def _refuse(self, packet: Packet, nak: int, why: tuple[Reason, Values], local_status: int = SUCCESS) -> bool:
        """Refuse a request: RC sends a NAK and fails, UC drops the message.

        ``why`` is the reason shown to the program. ``local_status`` completes the receive entry in use, if the fault is
        local.
        """
        self.qp.explain(why[0], about_packet(packet, self), **why[1])
        if self.ctx.servtype not in RELIABLE:
            reason = DropReason.BAD_LENGTH if nak == NAK_INVALID_REQUEST else DropReason.ACCESS
            self.host.counters.bump(reason.value)
            if local_status == LOC_PROT_ERR and self.receive_index != NONE:
                # if it were reused for the next message, an unusable receive entry would block all messages
                self.qp.fail_receive(local_status, 0, None)
                return False
            self._abandon()
            self.ctx.expected_psn = packet.psn + 1 & PSN_MASK
            return False
        self.host.counters.bump("fatal_naks_sent")
        self.reply(packet.psn, nak)
        self.qp.fail_receive(local_status or _NAK_STATUS[nak], nak, _NAK_EVENT.get(nak))
        return False

    def _overflow(self, packet: Packet) -> bool:
        """Handle a lost completion: the message must not be acknowledged (004 "Fatal.cq_overflow")."""
        if self.ctx.servtype in RELIABLE:
            self.host.counters.bump("fatal_naks_sent")
            self.reply(packet.psn, NAK_REMOTE_OPERATION)
        self.qp.fail_receive(REM_OP_ERR, NAK_REMOTE_OPERATION, WQ_CATAS_ERROR)
        return False

    def _abandon(self) -> None:
        """Abandon the open message. Its receive entry is reused for the next one (IBA 9.8)."""
        self.open = self.offset = 0
        self.guarded = None

    def _duplicate(self, packet: Packet) -> None:
        """Answer a duplicate (IBA C9-105): an ACK for SEND and WRITE, the saved response for all others."""
        row = packet.row
        if not row.resource:
            self.host.counters.bump(DropReason.DUPLICATE.value)
            self.reply(self.ctx.expected_psn - 1 & PSN_MASK, self._ack_code())
            return
        resource = self.resources.find(packet)
        if resource is None or self.replies.full or self.replies.waiting(packet.psn):
            self.host.counters.bump(DropReason.DUPLICATE_UNMATCHED.value)
            return
        if resource.atomic:
            self.host.counters.bump("duplicate_atomics")
            self.replies.atomic(packet.psn, resource.orig, self._ack_code(), self.msn, again=True)
        elif row.operation != READ_REQUEST:
            self.host.counters.bump("duplicate_reads")
            self.replies.read(packet.psn, 1, NO_PAYLOAD, self._ack_code(), self.msn, again=True)
        else:
            payload = self._remote(packet, packet.va, packet.dma_length, REMOTE_READ)
            if payload is None:
                # the network may duplicate a READ long after its memory is gone, which must not fail the QP
                self.host.counters.bump(DropReason.DUPLICATE_UNMATCHED.value)
                return
            self.host.counters.bump("duplicate_reads")
            packets = psn_count(packet.dma_length, self.ctx.mtu_bytes)
            self.replies.read(packet.psn, packets, payload, self._ack_code(), self.msn, again=True)
        self.host.schedule(self.qp)

    def _atomic(self, packet: Packet, payload: Payload) -> int | None:
        """Execute an atomic on 64 bits in host byte order. Return the original value."""
        data = payload.read(0, 8)
        if data is None:
            return None
        orig = int.from_bytes(data, sys.byteorder)
        if packet.row.operation == COMPARE_SWAP:
            value = packet.swap_add if orig == packet.compare else orig
        else:
            value = orig + packet.swap_add & 0xFFFF_FFFF_FFFF_FFFF
        return orig if payload.write(0, value.to_bytes(8, sys.byteorder)) else None

    def _ack_code(self) -> int:
        """Return the syndrome of an ACK: end-to-end credits if they are on, else the invalid code."""
        if self.ctx.options & OPT_CREDITS and not self.qp.uses_srq:
            # include the receive entry in use, since the open message is not in the MSN yet
            usable = max(0, self.rq.available() - self._kept_back())
            return credit_code(usable + (self.receive_index != NONE))
        return CREDITS_INVALID

    def acknowledge_run(self, ask: bool) -> None:
        """Send the ACK for a run of packets, if one of them had AckReq."""
        if ask and self.ctx.servtype in RELIABLE:
            self.reply(self.ctx.expected_psn - 1 & PSN_MASK, self._ack_code())

    def nak(self, psn: int, syndrome: int) -> None:
        """Queue a NAK, which makes the peer retransmit from ``psn`` on, and count it."""
        self.nak_sent = 1
        self.host.counters.bump(NAKS_SENT[syndrome & AETH_TYPE_MASK])
        self.reply(psn, syndrome)

    def reply(self, psn: int, syndrome: int) -> None:
        """Queue an ACK or NAK."""
        if not self.replies.full:
            self.owed_ns = NEVER  # every reply acknowledges earlier requests
            if self.replies.acknowledge(psn, syndrome, self.msn):
                self.host.counters.bump("acks_coalesced")
            self.host.schedule(self.qp)


Step = Callable[[Responder, "Packet"], bool]

STEPS: tuple[Step, ...] = (
    Responder.check_psn,
    Responder.check_op_seq,
    Responder.check_op_valid,
    Responder.check_resources,
    Responder.check_length,
    Responder.check_rkey,
    Responder.execute,
    Responder.complete,
    Responder.acknowledge,
)
"""Receive checks in order. The device checks header, queue pair and P_Key before."""
