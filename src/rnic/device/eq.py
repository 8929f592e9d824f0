"""Event queues: entries for completion and asynchronous events, and their interrupt vectors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rnic.context.eqc import EQC
from rnic.device.entry_ring import QUEUE_ERROR, EntryRing
from rnic.device.uar import Uar
from rnic.rings.queue_block import CQ_HEAD, QUEUE_STATE
from rnic.spec.events import COMP
from rnic.trace.counters import Counters

if TYPE_CHECKING:
    from rnic.context.cache import Cache, CachedEq, EqKey
    from rnic.mem.table import MemoryTable

MAX_WAITING: Final = 64
"""Asynchronous events that wait for an EQ whose context is not cached."""


class EventQueue(EntryRing):
    """One EQ.

    An interrupt says "new entries since the last interrupt was taken": a vector is pending once, however many events
    came. Events for an EQ whose context is not cached wait: completion events in their CQs, which stay armed,
    asynchronous events here.

    Args:
        key: its record: key data, and its index in the ring.
        memory: the device's regions, for a ring that a key names.
        cached: the contexts of EQs that are cached.
        broken: called once, when the ring's memory refuses an entry.
    """

    __slots__ = ("_broken", "_cached", "_counters", "_interrupts", "_waiting", "key")

    key: EqKey

    def __init__(
        self,
        number: int,
        uar: Uar,
        key: EqKey,
        memory: MemoryTable,
        cached: Cache[CachedEq],
        interrupts: deque[EventQueue],
        counters: Counters,
        broken: Callable[[EventQueue], None] = lambda eq: None,
    ) -> None:
        super().__init__(number, uar, key, memory)
        key.pending = 0
        self._cached = cached
        self._interrupts = interrupts
        self._counters = counters
        self._broken = broken
        self._waiting: list[tuple[int, int, int, int, int, int]] = []

    @property
    def vector(self) -> int:
        """Its interrupt vector."""
        return self.key.msix_vector

    @property
    def disabled(self) -> bool:
        """True if its context is invalid or disabled: events are only counted."""
        return not self.key.enabled or (self.number not in self._cached and not self.stalled)

    @property
    def stalled(self) -> bool:
        """True if its context was taken out of the cache: events wait until it is loaded."""
        return self.number in self._cached.evicted

    @property
    def ready(self) -> bool:
        """True if it takes an event now: it has room, which software makes and only the NIC uses up."""
        return self.number in self._cached and not self.disabled and bool(self.key.room or self.count_room())

    def image(self) -> bytes:
        """Return the EQC as it is now."""
        indices = {"consumer_index": self.regs.get(CQ_HEAD), "producer_index": self.key.tail}
        return EQC.pack(self.key.values() | indices)

    def back(self) -> None:
        """Report the events that waited while the context was out of the cache."""
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._store(*event)

    def report(
        self, event_type: int, number: int, status: int = 0, *, subtype: int = 0, out_hi: int = 0, out_lo: int = 0
    ) -> bool:
        """Add an entry and raise the interrupt. Return false, counted, if the EQ is full: software has to keep up.

        An EQ whose memory does not answer is not full: it fails, and the device with it.
        """
        if self.disabled:
            self._counters.bump("eq_disabled")
            return False
        event = event_type | subtype << 8, number, status, 0, out_hi, out_lo
        if self.number in self._cached:
            return self._store(*event)
        if event_type == COMP or len(self._waiting) >= MAX_WAITING:
            self._counters.bump("eq_uncached")
            return False  # the CQ stays armed
        self._waiting.append(event)
        return True

    def fail(self) -> None:
        """Take no more events: there is no ring to store them in."""
        key = self.key
        if not key.failed:
            key.failed = 1
            self.regs.set(QUEUE_STATE, QUEUE_ERROR)
            self._broken(self)

    def _store(self, w0: int, w1: int, w2: int, w3: int, w4: int, w5: int) -> bool:
        """Store an entry, and raise the interrupt."""
        key = self.key
        stored = not key.failed and self.push(w0, w1, w2, w3, w4, w5, 0, 0)
        if not stored:
            if key.room:
                self.fail()
            self._counters.bump("eq_overflows")
        if not key.pending:
            key.pending = 1
            self._interrupts.append(self)
        return stored
