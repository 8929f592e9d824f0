"""The lean path for messages of one packet: a descriptor to a frame, a frame to memory or to a completion.

It does in one function each what requester, responder and completer do step by step, for the plain case only:
RC, nothing to repeat, in order, memory in reach. Whatever is not plain is left to them untouched, so they stay
the truth, and a property test holds both ways equal.
"""

from __future__ import annotations

from rnic.context.qpc import OPT_CREDITS
from rnic.rings.sqe import FLAG_FENCE, FLAG_INLINE, FLAG_LIST, FLAG_SOLICITED
from rnic.spec.access import REMOTE_WRITE
from rnic.spec.limits import ICRC_BYTES, NEVER
from rnic.spec.opcodes import ACKNOWLEDGE, SEND_ONLY, WR_SEND, WR_WRITE, WRITE_ONLY
from rnic.spec.psn import PSN_MASK
from rnic.spec.states import RTS, ST_RC
from rnic.state.record import NONE
from rnic.transport.encap import (
    ACK_REQ,
    BTH_RETH_STRUCT,
    BTH_STRUCT,
    BTH_WORD_STRUCT,
    ICRC_STRUCT,
    SOLICITED,
    FrameBatch,
    bth_base,
)
from rnic.transport.qp import QueuePair
from rnic.transport.wqe import ENTRY_STRUCT
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow, residue, tx_delta

SMALL_BYTES = 1_024
"""Longer payloads gain nothing here: moving them costs more than deciding about them."""

_NOT_PLAIN = FLAG_INLINE | FLAG_LIST
_PAD_SHIFT = 52
_PAD = 3 << _PAD_SHIFT
_WRITE_HEADER_BYTES = 28
_ACK_BYTES = 20
_PADS = (b"", b"\0", b"\0\0", b"\0\0\0")
_CREDITS_INVALID = 0x1F
_TVER = 0xF << 48
_LOW = 0xFFFF_FFFF
_HEADS = {WR_WRITE: WRITE_ONLY << 56, WR_SEND: SEND_ONLY << 56}


def send_small(qp: QueuePair, now_ns: int, budget: int, out: list[TxBurst]) -> int:
    """Send plain one-packet WRITEs and SENDs from the head of the send ring.

    Args:
        budget: packets at most.

    Returns:
        Packets sent. The first descriptor that is not plain, and all after it, wait for the full path.
    """
    requester = qp.requester
    index = requester.fetch_index
    tail = requester.tail
    ctx = qp.ctx
    if (
        index == tail
        or requester.send_index != index
        or requester.probe_due
        or requester.rnr_until != NEVER
        or requester.lsn != NONE
        or ctx.state != RTS
        or ctx.servtype != ST_RC
    ):
        return 0
    ring = requester.ring
    view = ring.view
    if view is None:
        return 0
    # nothing here begins a READ or atomic: where none is outstanding, there is none to wait for either
    refused = _NOT_PLAIN | FLAG_FENCE if requester.piece_count else _NOT_PLAIN
    last = requester.last()
    if last is not None and last.status:
        return 0
    host = qp.host
    check = host.memory.check
    longest = min(SMALL_BYTES, requester.mtu, ctx.max_msg_bytes)
    psn = ctx.next_send_psn & PSN_MASK
    if psn != requester.sent_psn:
        return 0  # somebody wrote the next PSN: the full path knows how to cross the gap
    budget = min(budget, requester.allowance(1))
    flow = requester.flow
    after, shift = ring.after, ring.shift
    alone = after(index) == tail
    batch = None if alone else FrameBatch(flow, out, requester.batch_limit)
    head_index = requester.sq_head
    ssn = requester.ssn
    sent = 0
    while index != tail and sent < budget and after(index) != head_index:
        entry_words = ENTRY_STRUCT.unpack_from(view, index << shift)  # once: software may write them meanwhile
        what, local_addr, remote_addr, size_key, keys, _, _, _ = entry_words
        opcode, flags = what >> 32 & 0xFFFF, what >> 48
        length, lkey, rkey = size_key & _LOW, size_key >> 32, keys & _LOW
        head = _HEADS.get(opcode)
        if head is None or flags & refused or length > longest:
            break
        data: memoryview | bytearray | bytes = b""
        if length:
            entry = check(lkey, ctx.pd, local_addr, length, 0, local=True)
            if entry is None:
                break
            if entry.view is not None:
                at = local_addr - entry.start
                data = entry.view[at : at + length]
            else:
                data = bytearray(length)
                if not entry.read_into(local_addr, data):
                    break
        head |= requester.head | ctx.remote_qpn | (-length & 3) << _PAD_SHIFT
        if flags & FLAG_SOLICITED and opcode == WR_SEND:
            head |= SOLICITED
        if opcode == WR_WRITE:
            header = BTH_RETH_STRUCT.pack(head, psn | ACK_REQ, remote_addr, rkey, length)
        else:
            header = BTH_STRUCT.pack(head, psn | ACK_REQ)
        if batch is None:
            out.append(_lone_frame(flow, header, data))
        else:
            batch.add(header, data)
        ssn = ssn + 1 & PSN_MASK
        requester.message(index).lean(entry_words, psn, ssn)
        if requester.rtt_psn == NONE:
            requester.rtt_psn = psn
            requester.rtt_at = now_ns
        psn = psn + 1 & PSN_MASK
        index = after(index)
        sent += 1
    if sent:
        if batch is not None:
            batch.flush()
        ctx.next_send_psn = requester.sent_psn = psn
        requester.fetch_index = requester.send_index = index
        requester.ssn = ssn
        requester.fly(sent)
        requester.watch(now_ns)
    requester.flights.turn_over(requester)
    return sent


def send_ack(qp: QueuePair, out: list[TxBurst]) -> int:
    """Send the one ACK or NAK that waits, if nothing else waits with it; 1, or 0 if the full path must look."""
    flow = qp.flow
    if flow is None:
        return 0
    reply = qp.responder.replies.take_lone_ack()
    if reply is None:
        return 0
    head = bth_base(qp.host.pkey(qp.ctx.pkey_index), qp.ctx.remote_qpn) | ACKNOWLEDGE << 56
    header = BTH_WORD_STRUCT.pack(head, reply.psn, reply.syndrome << 24 | reply.msn)
    out.append(_lone_frame(flow, header, b""))
    return 1


def _lone_frame(flow: Flow, header: bytes, payload: memoryview | bytearray | bytes) -> TxBurst:
    """A burst of one sealed frame."""
    size = len(payload)
    frame = b"".join((header, payload, _PADS[-size & 3])) if size else header
    length = len(frame) + ICRC_BYTES
    frame += ICRC_STRUCT.pack(crc32(frame, flow.seed(length)) ^ tx_delta(length))
    return TxBurst(flow, [frame], length, 1, length)


def receive_small(qp: QueuePair, burst: RxBurst, start: int, end: int, pkey: int, now_ns: int) -> bool:
    """Take one plain packet: an in-order one-packet WRITE, or an ACK of what is outstanding.

    Args:
        qp: the queue pair that the packet names, whose peer it comes from.
        start: where the packet begins in ``burst.buf``.
        end: where it ends, its ICRC included.
        pkey: the queue pair's P_Key.

    Returns:
        False, with nothing changed, if the full path must look.
    """
    ctx = qp.ctx
    buf = burst.buf
    length = end - start
    if ctx.state != RTS or ctx.servtype != ST_RC or length & 3:
        return False
    head, word = BTH_STRUCT.unpack_from(buf, start)
    if head & _TVER or head >> 32 & 0xFFFF != pkey:
        return False
    operation = head >> 56
    psn = word & PSN_MASK
    if operation == ACKNOWLEDGE:
        requester = qp.requester
        # while a READ waits, also one that was rewound, an ACK behind it says that its response was lost
        if length != _ACK_BYTES or head & _PAD or requester.read_index != NONE or requester.lsn != NONE:
            return False
        syndrome = buf[start + 12]
        if (psn - requester.una & PSN_MASK) >= (requester.sent_psn - requester.una & PSN_MASK):
            return False
        if syndrome != _CREDITS_INVALID or not _icrc_right(burst, buf[start:end], start, head):
            return False
        qp.host.counters["acks_received"] += 1
        requester.advance(psn + 1 & PSN_MASK, now_ns)
        qp.rearm()
        return True
    responder = qp.responder
    if operation != WRITE_ONLY or psn != ctx.expected_psn or responder.open or not responder.established:
        return False
    if length < _WRITE_HEADER_BYTES + ICRC_BYTES:
        return False  # less than a RETH follows
    _, _, va, rkey, size = BTH_RETH_STRUCT.unpack_from(buf, start)
    pad = head >> _PAD_SHIFT & 3
    if (
        size > ctx.mtu_bytes
        or size > ctx.max_msg_bytes
        or length != _WRITE_HEADER_BYTES + size + pad + 4
        or pad != -size & 3
        or not size
        or not ctx.access_flags & REMOTE_WRITE
        or ctx.options & OPT_CREDITS
    ):
        return False
    entry = qp.host.memory.check(rkey, ctx.pd, va, size, REMOTE_WRITE, ctx.local_qpn)
    if entry is None or not _icrc_right(burst, buf[start:end], start, head):
        return False
    data = start + _WRITE_HEADER_BYTES
    if not entry.write_from(va, buf[data : data + size]):
        return False
    ctx.expected_psn = psn + 1 & PSN_MASK
    responder.silent = 0
    responder.msn = ctx.rmsn = responder.msn + 1 & PSN_MASK
    if word & ACK_REQ:
        responder.reply(psn, _CREDITS_INVALID)
    return True


def _icrc_right(burst: RxBurst, packet: memoryview, start: int, head: int) -> bool:
    """Whether the ICRC is right for the ident that the link saw, or that a segment in its place has."""
    place = start // burst.segment if burst.segment else 0
    flow = burst.flow
    length = len(packet)
    ident = place if burst.ident is None else burst.ident + place & 0xFFFF
    return crc32(packet, flow.seed(length, ident, burst.frag)) == residue(length, head >> 24 & 0xFF)


__all__ = ["SMALL_BYTES", "receive_small", "send_ack", "send_small"]
