"""Replies that a responder owes its peer: ACKs, NAKs, READ responses and atomic results, in PSN order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.spec.access import REMOTE_READ
from rnic.spec.opcodes import (
    ACKNOWLEDGE,
    ATOMIC_ACKNOWLEDGE,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
)
from rnic.spec.psn import PSN_MASK
from rnic.spec.syndromes import AETH_TYPE_MASK, NAK_REMOTE_OPERATION
from rnic.state.queue_pair import QP, REPLIES, REPLY, QpMemory, QpRecord
from rnic.state.record import WORD_BYTES, Record, Run, Word, view
from rnic.transport.encap import BTH_ATOMIC_ACK_STRUCT, BTH_STRUCT, BTH_WORD_STRUCT, FrameBatch
from rnic.transport.sge import Payload, remote_payload

if TYPE_CHECKING:
    from rnic.transport.qp import QueuePair

ACK = 0
READ = 1
ATOMIC = 2


@view(REPLY)
class Reply(Record):
    """One reply: an ACK or NAK, a stream of READ response packets, or an atomic result."""

    __slots__ = ()

    kind: Word
    psn: Word
    packets: Word
    sent: Word
    syndrome: Word
    msn: Word
    again: Word
    orig: Word
    va: Word
    total: Word
    rkey: Word
    binding: Word


@view(QP, "ReplyQueue")
class ReplyQueue(QpRecord):
    """Replies waiting to be sent: a ring of slots, oldest first.

    ``pending_reads`` counts READ and atomic replies except those to duplicates, since duplicates do not count against
    the peer's limit of outstanding requests. ``guarded`` holds, by slot, the payloads of READs that a shell's guard
    admitted without a key.
    """

    __slots__ = ("_replies", "guarded", "qp")

    reply_first: Word
    reply_count: Word
    pending_reads: Word

    def __init__(self, memory: QpMemory, qp: QueuePair) -> None:
        self.qp = qp
        self._replies = Run(Reply, memory.arena.memory, memory.replies * WORD_BYTES, REPLY.size)
        self.guarded: dict[int, Payload] = {}

    def __len__(self) -> int:
        return self.reply_count

    def clear(self) -> None:
        """Forget all replies."""
        self.reply_count = self.pending_reads = 0
        self.guarded.clear()

    def _slot(self, place: int) -> int:
        return (self.reply_first + place) % REPLIES

    def _at(self, place: int) -> Reply:
        return self._replies[(self.reply_first + place) % REPLIES]

    def _new(self, kind: int, psn: int, packets: int, syndrome: int, msn: int, again: bool) -> Reply | None:
        count = self.reply_count
        if count == REPLIES:
            return None
        reply = self._at(count)
        self.reply_count = count + 1
        reply.kind = kind
        reply.psn = psn
        reply.packets = packets
        reply.sent = 0
        reply.syndrome = syndrome
        reply.msn = msn
        reply.again = again
        if kind != ACK and not again:
            self.pending_reads += 1
        return reply

    @property
    def full(self) -> bool:
        """True if the queue is full."""
        return self.reply_count == REPLIES

    def acknowledge(self, psn: int, syndrome: int, msn: int) -> bool:
        """Queue an ACK or NAK. Return true if it replaced an unsent ACK (ACK coalescing, IBA 9.7.5.1.2)."""
        count = self.reply_count
        if count:
            last = self._at(count - 1)
            if last.kind == ACK and last.syndrome & AETH_TYPE_MASK == 0:
                last.psn = psn
                last.syndrome = syndrome
                last.msn = msn
                return True
        self._new(ACK, psn, 1, syndrome, msn, False)
        return False

    def read(self, psn: int, packets: int, payload: Payload, syndrome: int, msn: int, again: bool = False) -> None:
        """Queue the response to a READ request; ``again`` if it answers a duplicate."""
        reply = self._new(READ, psn, packets, syndrome, msn, again)
        if reply is None:
            return
        reply.total = payload.total
        reply.va, _, reply.rkey = payload.sges[0] if payload.total else (0, 0, 0)
        reply.binding = payload.binding
        if payload.guarded:
            self.guarded[self._slot(self.reply_count - 1)] = payload

    def atomic(self, psn: int, orig: int, syndrome: int, msn: int, again: bool = False) -> None:
        """Queue an atomic acknowledge with the original value; ``again`` if it answers a duplicate."""
        reply = self._new(ATOMIC, psn, 1, syndrome, msn, again)
        if reply is not None:
            reply.orig = orig

    def _pop(self, reply: Reply) -> None:
        if reply.kind != ACK and not reply.again:
            self.pending_reads -= 1
        if self.guarded:
            self.guarded.pop(self.reply_first, None)
        self.reply_first = self._slot(1)
        self.reply_count -= 1

    def keep_acknowledgements(self) -> None:
        """Drop the first READ response and all replies after it, and keep the ACKs of executed requests before it."""
        for place in range(self.reply_count):
            if self._at(place).kind == READ:
                self.reply_count = place
                break

    def waiting(self, psn: int) -> bool:
        """Return whether a READ or atomic reply that starts at ``psn`` is queued and not started."""
        for place in range(self.reply_count):
            reply = self._at(place)
            if reply.psn == psn and reply.kind != ACK and reply.sent == 0:
                return True
        return False

    def produce(self, head: int, mtu: int, budget: int, batch: FrameBatch) -> tuple[int, int | None]:
        """Send up to ``budget`` packets.

        Returns:
            Packets sent, and the PSN of a READ response whose memory could not be read: the caller fails the queue
            pair.
        """
        sent = 0
        while self.reply_count and sent < budget:
            reply = self._at(0)
            kind = reply.kind
            if kind == READ:
                count = self._send_read(reply, head, mtu, budget - sent, batch)
                if count == 0:
                    self._pop(reply)
                    failed = reply.psn + reply.sent & PSN_MASK
                    if not reply.again:
                        return sent, failed
                    # The key may outlive the memory: the peer continues once the first response has arrived, and the
                    # network may duplicate the request later. A requester that still waits gets a NAK.
                    self.qp.host.counters.bump("fatal_naks_sent")
                    word = NAK_REMOTE_OPERATION << 24 | self.qp.responder.msn
                    batch.add(BTH_WORD_STRUCT.pack(head | ACKNOWLEDGE << 56, failed, word))
                    sent += 1
                    continue
                sent += count
                if reply.sent == reply.packets:
                    self._count_read(reply)
                    self._pop(reply)
                continue
            word = reply.syndrome << 24 | reply.msn
            if kind == ACK:
                batch.add(BTH_WORD_STRUCT.pack(head | ACKNOWLEDGE << 56, reply.psn, word))
            else:
                header = head | ATOMIC_ACKNOWLEDGE << 56
                batch.add(BTH_ATOMIC_ACK_STRUCT.pack(header, reply.psn, word, reply.orig))
            sent += 1
            self._pop(reply)
        return sent, None

    def _count_read(self, reply: Reply) -> None:
        """Count a message that was read under R_Key 0, where a shell translates addresses (003)."""
        qp = self.qp
        translations = qp.host.memory.translations
        if translations and reply.total and not reply.rkey:
            translation = translations.get(qp.ctx.local_qpn)
            if translation is not None:
                translation.answered()

    def _payload(self, reply: Reply) -> Payload:
        if self.guarded:
            kept = self.guarded.get(self.reply_first)
            if kept is not None:
                return kept.again()
        qp = self.qp
        ctx = qp.ctx
        sge = reply.va, reply.total, reply.rkey
        return remote_payload(qp.host.memory, qp.reply_pd(reply.rkey), sge, REMOTE_READ, ctx.local_qpn, reply.binding)

    def _send_read(self, reply: Reply, head: int, mtu: int, budget: int, batch: FrameBatch) -> int:
        """Send response packets of one READ. Return their number, 0 if its memory cannot be read."""
        payload = self._payload(reply)
        packets = reply.packets
        sent = first = reply.sent
        end = min(packets, first + budget)
        while sent < end:
            psn = reply.psn + sent & PSN_MASK
            last = sent == packets - 1
            middles = min(end, packets - 1) - sent if sent else 0
            view = payload.gather(sent * mtu, middles * mtu) if middles > 1 else None
            if view is not None:
                batch.run(head | READ_RESPONSE_MIDDLE << 56, psn, middles, view, mtu, 0)
                sent += middles
                continue
            size = min(mtu, payload.total - sent * mtu)
            data = payload.read(sent * mtu, size) if size else b""
            if data is None:
                reply.sent = sent
                return 0
            bits = head | (-size & 3) << 52
            if sent and not last:
                header = BTH_STRUCT.pack(bits | READ_RESPONSE_MIDDLE << 56, psn)
            else:
                if last:
                    operation = READ_RESPONSE_LAST if sent else READ_RESPONSE_ONLY
                else:
                    operation = READ_RESPONSE_FIRST
                header = BTH_WORD_STRUCT.pack(bits | operation << 56, psn, reply.syndrome << 24 | reply.msn)
            batch.add(header, data)
            sent += 1
        reply.sent = sent
        return sent - first
