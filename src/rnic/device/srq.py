"""Shared receive queues: a receive ring for many queue pairs, with a limit event."""

from __future__ import annotations

from collections import deque
from functools import partial

from rnic.device.entry_ring import QUEUE_VALID
from rnic.device.uar import Registers, Uar
from rnic.mem.dma import DmaPort
from rnic.rings.queue_block import (
    QUEUE_NUMBER,
    QUEUE_STATE,
    RQ_BASE_HI,
    RQ_BASE_LO,
    RQ_HEAD,
    RQ_SIZE,
    RQ_STRIDE,
    RQ_TAIL,
    SRQ_LIMIT,
)
from rnic.spec.events import SRQ_LIMIT as SRQ_LIMIT_EVENT
from rnic.state.queues import RECEIVE_RING, SRQ
from rnic.state.record import Word, view, within
from rnic.transport.host import Host
from rnic.transport.wqe import ReceiveRing, ReceiveWqe, SharedReceiveRing


def receive_ring(
    regs: Registers,
    base: int,
    entries: int,
    stride: int,
    kind: type[ReceiveRing] = ReceiveRing,
    port: DmaPort | None = None,
) -> ReceiveRing:
    """Return a receive ring with tail and head in registers of a queue block; publish base, size and stride there."""
    show_ring(regs, base, entries, stride)
    memory = regs.uar.port if port is None else port
    return kind(memory, base, entries, stride, partial(regs.get, RQ_TAIL), partial(regs.set, RQ_HEAD))


def show_ring(regs: Registers, base: int, entries: int, stride: int) -> None:
    """Publish a receive ring in its queue block."""
    regs.set(RQ_BASE_LO, base & 0xFFFF_FFFF)
    regs.set(RQ_BASE_HI, base >> 32)
    regs.set(RQ_SIZE, entries)
    regs.set(RQ_STRIDE, stride)


@view(SRQ, "SharedReceiveQueue")
class SharedReceiveQueue:
    """One SRQ; implements :class:`~rnic.transport.host.ReceiveSource`. ``users`` counts its queue pairs.

    Its entries belong to its own protection domain, regardless of the queue pair that takes them (IBA ch. 10).
    ``record`` is the offset of its record in the arena. ``failed``, which refuses new queue pairs, is separate from
    QUEUE_STATE, to which software may store anything. ``xrcd`` and ``cqn`` are its XRC domain and the CQ of its
    receives; 0 for an SRQ of RC queue pairs.

    Raises:
        MemoryError: the arena is full.
    """

    __slots__ = ("_host", "_returned", "base", "cqn", "record", "regs", "ring", "uar", "users", "words", "xrcd")

    number: Word
    pd: Word
    block: Word
    driver: Word
    limit: Word
    taken: Word
    returned: Word
    failed: Word

    def __init__(
        self,
        number: int,
        uar: Uar,
        block: int,
        base: int,
        entries: int,
        stride: int,
        pd: int,
        host: Host,
        xrcd: int = 0,
        cqn: int = 0,
    ) -> None:
        self.record = record = host.arena.take(SRQ.size, "a shared receive queue")
        self.words = host.arena.words(record, SRQ.size)
        self.number, self.pd = number, pd
        self.uar = uar
        self.base = base
        self.block, self.driver = block, uar.number
        self.failed = self.limit = self.taken = self.returned = 0
        self.users = 0
        self.xrcd, self.cqn = xrcd, cqn
        self._host = host
        self.regs = Registers(uar, block)
        self.regs.clear()
        self.regs.set(QUEUE_NUMBER, number)
        self.regs.set(QUEUE_STATE, QUEUE_VALID)
        self.ring = receive_ring(self.regs, base, entries, stride, SharedReceiveRing)
        self.ring.settle(self.words[within(SRQ, "", RECEIVE_RING)])
        self._returned: deque[ReceiveWqe] = deque()

    def take(self) -> ReceiveWqe | None:
        """Return the next posted entry; raise the limit event once when fewer entries than the limit are left."""
        wqe = self._returned.popleft() if self.returned else self.ring.take()
        self.returned = len(self._returned)
        if wqe is not None:
            self.taken += 1
        if self.limit and self.available() < self.limit:
            self.arm(0)
            self._host.event(SRQ_LIMIT_EVENT, self.number)
        return wqe

    def available(self) -> int:
        """Return the number of posted entries that are not taken yet."""
        return self.ring.available() + len(self._returned)

    def kept_back(self, most: int) -> int:
        """Return how many of ``most`` entries to keep back: 0 if the ring is too short."""
        return self.ring.kept_back(most)

    def readable(self) -> bool:
        """False if an entry is posted but cannot be read."""
        return bool(self.returned) or self.ring.readable()

    def give_back(self, wqe: ReceiveWqe) -> None:
        """Return the entry of a queue pair that was reset within a message: it will not complete, so others may use
        it."""
        self._returned.append(wqe)
        self.returned += 1
        self.taken -= 1

    def ring_limit(self) -> bool:
        """Apply the limit that software stored to SRQ_LIMIT. Return false, with nothing changed, if the ring has fewer
        entries."""
        limit = self.regs.get(SRQ_LIMIT)
        if limit >= self.ring.entries:
            self.regs.set(SRQ_LIMIT, self.limit)
            return False
        self.limit = limit
        return True

    def free(self) -> None:
        """Free its record when the queue is destroyed."""
        self._host.arena.free(self.record, SRQ.size)

    def arm(self, limit: int) -> None:
        """Set the limit; 0 is off."""
        self.limit = limit
        self.regs.set(SRQ_LIMIT, limit)
