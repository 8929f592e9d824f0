"""The lean path for messages of one packet: a descriptor to a frame, a frame to memory or to a completion.

It does in one function each what requester, responder and completer do step by step, for the plain case only:
RC, nothing to repeat, in order, memory in reach. Whatever is not plain is left to them untouched, so they stay
the truth, and a property test holds both ways equal.
"""

from __future__ import annotations

from rnic.context.qpc import OPT_CREDITS
from rnic.mem.table import MemoryEntry
from rnic.rings.sqe import FLAG_FENCE, FLAG_INLINE, FLAG_LIST, FLAG_SIGNALED, FLAG_SOLICITED, SQE_STRUCT
from rnic.spec.access import REMOTE_WRITE
from rnic.spec.limits import ICRC_BYTES, NEVER
from rnic.spec.opcodes import ACKNOWLEDGE, SEND_ONLY, WR_SEND, WR_WRITE, WRITE_ONLY
from rnic.spec.psn import PSN_MASK
from rnic.spec.states import RTS, ST_RC
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
from rnic.transport.message import Message
from rnic.transport.payload import Extent, Payload
from rnic.transport.qp import QueuePair
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow, residue, tx_delta

SMALL_BYTES = 1_024
"""Longer payloads gain nothing here: moving them costs more than deciding about them."""

_NOT_PLAIN = FLAG_FENCE | FLAG_INLINE | FLAG_LIST
_PAD_SHIFT = 52
_PAD = 3 << _PAD_SHIFT
_WRITE_HEADER_BYTES = 28
_ACK_BYTES = 20
_PADS = (b"", b"\0", b"\0\0", b"\0\0\0")
_CREDITS_INVALID = 0x1F
_TVER = 0xF << 48
_HEADS = {WR_WRITE: WRITE_ONLY << 56, WR_SEND: SEND_ONLY << 56}


class SmallMessage(Message):
    """A one-packet message that is its own work queue entry; its payload is looked up again only to repeat it."""

    __slots__ = (
        "entry",
        "fence",
        "imm",
        "index",
        "length",
        "local_addr",
        "remote_addr",
        "rkey",
        "signaled",
        "solicited",
        "wqe_id",
    )

    def __init__(self, index: int, fields: tuple[int, ...], psn: int, ssn: int, entry: MemoryEntry | None) -> None:
        (
            self.wqe_id,
            self.opcode,
            flags,
            self.local_addr,
            self.remote_addr,
            self.length,
            _,
            self.rkey,
            self.imm,
        ) = fields
        self.index = index
        self.signaled = flags & FLAG_SIGNALED
        self.solicited = flags & FLAG_SOLICITED
        self.fence = 0
        self.entry = entry
        self.first_psn = psn
        self.packets = 1
        self.sent = 1
        self.received = 0
        self.reads = False
        self.takes_receive = self.opcode == WR_SEND
        self.ssn = ssn
        self.status = 0
        self.executed = False
        self.begun = True

    @property
    def wqe(self) -> SmallMessage:  # type: ignore[override]  # it has every field of a Wqe that a plain message needs
        """The message itself."""
        return self

    @property
    def payload(self) -> Payload:  # type: ignore[override]  # made when asked for, which is seldom
        """The payload, to send it again."""
        entry = self.entry
        if entry is None:
            return Payload([])
        view = entry.slice(self.local_addr, self.length) if entry.valid else None
        return Payload([Extent(0, self.length, entry, self.local_addr, view)])


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
        or requester.backlog
        or (requester.inflight and requester.inflight[-1].status)
        or requester.probe_due
        or requester.rnr_until != NEVER
        or requester.lsn is not None
        or ctx.state != RTS
        or ctx.servtype != ST_RC
    ):
        return 0
    ring = requester.ring
    view = ring.view
    if view is None:
        return 0
    host = qp.host
    check = host.memory.check
    mtu = requester.mtu
    psn = ctx.next_send_psn & PSN_MASK
    if psn != requester.sent_psn:
        return 0  # somebody wrote the next PSN: the full path knows how to cross the gap
    budget = min(budget, requester.allowance(1))
    flow = requester.flow
    alone = (index + 1 if index + 1 < ring.entries else 0) == tail
    batch = None if alone else FrameBatch(flow, out, requester.batch_limit)
    inflight = requester.inflight
    sent = 0
    while index != tail and sent < budget:
        fields = SQE_STRUCT.unpack_from(view, index << ring.shift)
        _, opcode, flags, local_addr, remote_addr, length, lkey, rkey, _ = fields
        head = _HEADS.get(opcode)
        if head is None or flags & _NOT_PLAIN or length > SMALL_BYTES or length > mtu:
            break
        entry = None
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
        requester.ssn = requester.ssn + 1 & PSN_MASK
        inflight.append(SmallMessage(index, fields, psn, requester.ssn, entry))
        if requester.rtt_psn < 0:
            requester.rtt_psn = psn
            requester.rtt_at = now_ns
        psn = psn + 1 & PSN_MASK
        index = 0 if index + 1 == ring.entries else index + 1
        sent += 1
    if sent:
        if batch is not None:
            batch.flush()
        ctx.next_send_psn = requester.sent_psn = psn
        requester.fetch_index = index
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
        if length != _ACK_BYTES or head & _PAD or requester.reads or requester.lsn is not None:
            return False
        syndrome = buf[start + 12]
        if (psn - requester.una & PSN_MASK) >= (requester.sent_psn - requester.una & PSN_MASK):
            return False
        if syndrome != _CREDITS_INVALID or not _icrc_right(burst, buf[start:end], start, head):
            return False
        qp.host.counters["acks_received"] += 1
        requester.advance(psn + 1 & PSN_MASK, now_ns)
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
    responder.silent = False
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


__all__ = ["SMALL_BYTES", "SmallMessage", "receive_small", "send_ack", "send_small"]
