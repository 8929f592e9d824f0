"""What a responder owes its peer: ACKs, NAKs, READ responses and atomic results, in PSN order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.spec.opcodes import (
    ACKNOWLEDGE,
    ATOMIC_ACKNOWLEDGE,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
)
from rnic.spec.psn import PSN_MASK
from rnic.spec.syndromes import AETH_TYPE_MASK
from rnic.transport.encap import BTH_ATOMIC_ACK_STRUCT, BTH_STRUCT, BTH_WORD_STRUCT, FrameBatch

if TYPE_CHECKING:
    from rnic.transport.host import BurstLoops
    from rnic.transport.payload import Payload

ACK = 0
READ = 1
ATOMIC = 2


class Reply:
    """One reply: an ACK or NAK, a stream of READ response packets, or an atomic result."""

    __slots__ = ("again", "kind", "msn", "orig", "packets", "payload", "psn", "sent", "syndrome")

    def __init__(self, kind: int, psn: int, syndrome: int, msn: int) -> None:
        self.kind = kind
        self.psn = psn
        self.syndrome = syndrome
        self.msn = msn
        self.again = False
        self.packets = 1
        self.sent = 0
        self.orig = 0
        self.payload: Payload | None = None


class ReplyQueue:
    """Replies waiting to be sent.

    ``pending_reads`` counts the READ and atomic ones but for answers to duplicates, which a peer that keeps to
    its limit of outstanding requests may cause as well.
    """

    __slots__ = ("_queue", "pending_reads")

    def __init__(self) -> None:
        self._queue: list[Reply] = []
        self.pending_reads = 0

    def __len__(self) -> int:
        return len(self._queue)

    def clear(self) -> None:
        """Forget all replies."""
        self._queue.clear()
        self.pending_reads = 0

    def acknowledge(self, psn: int, syndrome: int, msn: int) -> bool:
        """Queue an ACK or NAK; true if it replaced an unsent ACK, which it covers (ACK coalescing, IBA 9.7.5.1.2)."""
        queue = self._queue
        if queue:
            last = queue[-1]
            if last.kind == ACK and last.syndrome & AETH_TYPE_MASK == 0:
                last.psn, last.syndrome, last.msn = psn, syndrome, msn
                return True
        queue.append(Reply(ACK, psn, syndrome, msn))
        return False

    def read(self, psn: int, packets: int, payload: Payload, syndrome: int, msn: int, again: bool = False) -> None:
        """Queue the response to a READ request; ``again`` if it answers a duplicate."""
        reply = Reply(READ, psn, syndrome, msn)
        reply.packets = packets
        reply.payload = payload
        self._append(reply, again)

    def atomic(self, psn: int, orig: int, syndrome: int, msn: int, again: bool = False) -> None:
        """Queue an atomic acknowledge with the original value; ``again`` if it answers a duplicate."""
        reply = Reply(ATOMIC, psn, syndrome, msn)
        reply.orig = orig
        self._append(reply, again)

    def _append(self, reply: Reply, again: bool) -> None:
        reply.again = again
        self._queue.append(reply)
        self.pending_reads += not again

    def _pop(self) -> None:
        reply = self._queue.pop(0)
        self.pending_reads -= reply.kind != ACK and not reply.again

    def keep_acknowledgements(self) -> None:
        """Drop the first reply that reads memory and all behind it: what stays says what was taken already."""
        for index, reply in enumerate(self._queue):
            if reply.kind == READ:
                del self._queue[index:]
                break

    def take_lone_ack(self) -> Reply | None:
        """Take the only reply that waits, if it is an ACK or NAK."""
        queue = self._queue
        return queue.pop() if len(queue) == 1 and queue[0].kind == ACK else None

    def waiting(self, psn: int) -> bool:
        """Whether a READ or atomic reply that starts at ``psn`` is queued and not begun."""
        return any(reply.psn == psn and reply.kind != ACK and reply.sent == 0 for reply in self._queue)

    def produce(
        self, head: int, mtu: int, budget: int, batch: FrameBatch, burst: BurstLoops
    ) -> tuple[int, Reply | None]:
        """Send up to ``budget`` packets.

        Returns:
            Packets sent, and a READ reply whose memory could not be read: the caller fails the queue pair.
        """
        queue = self._queue
        sent = 0
        while queue and sent < budget:
            reply = queue[0]
            if reply.kind == ACK:
                word = reply.syndrome << 24 | reply.msn
                batch.add(BTH_WORD_STRUCT.pack(head | ACKNOWLEDGE << 56, reply.psn, word))
                reply.sent = 1
                sent += 1
            elif reply.kind == ATOMIC:
                word = reply.syndrome << 24 | reply.msn
                head_atomic = head | ATOMIC_ACKNOWLEDGE << 56
                batch.add(BTH_ATOMIC_ACK_STRUCT.pack(head_atomic, reply.psn, word, reply.orig))
                reply.sent = 1
                sent += 1
            else:
                count = self._send_read(reply, head, mtu, budget - sent, batch, burst)
                if count == 0:
                    self._pop()
                    return sent, reply
                sent += count
            if reply.sent == reply.packets:
                self._pop()
        return sent, None

    @staticmethod
    def _send_read(reply: Reply, head: int, mtu: int, budget: int, batch: FrameBatch, burst: BurstLoops) -> int:
        payload = reply.payload
        assert payload is not None
        count = min(budget, reply.packets - reply.sent)
        done = 0
        if payload.extents and not payload.valid:
            return 0
        while done < count:
            index = reply.sent
            psn = reply.psn + index & PSN_MASK
            last = index == reply.packets - 1
            middles = min(count - done, reply.packets - 1 - index) if index else 0
            view = payload.gather(index * mtu, middles * mtu) if middles > 1 else None
            if view is not None:
                batch.run(burst, head | READ_RESPONSE_MIDDLE << 56, psn, middles, view, mtu, 0)
                reply.sent += middles
                done += middles
                continue
            size = min(mtu, payload.total - index * mtu)
            data = payload.read(index * mtu, size) if size else b""
            if data is None:
                return 0
            bits = head | (-size & 3) << 52
            if index and not last:
                header = BTH_STRUCT.pack(bits | READ_RESPONSE_MIDDLE << 56, psn)
            else:
                if last:
                    operation = READ_RESPONSE_LAST if index else READ_RESPONSE_ONLY
                else:
                    operation = READ_RESPONSE_FIRST
                header = BTH_WORD_STRUCT.pack(bits | operation << 56, psn, reply.syndrome << 24 | reply.msn)
            batch.add(header, data)
            reply.sent += 1
            done += 1
        return done
