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
"""Most asynchronous events that wait for an EQ whose context is not cached."""


class EventQueue(EntryRing):
    """One EQ.

    An interrupt means "new entries since the last interrupt was taken": a vector is pending only once, for any number
    of events. Events for an EQ whose context is not cached wait: completion events in their CQs, which stay armed,
    asynchronous events here.

    Args:
        key: its record, with key data and ring index.
        memory: the device's memory table, for a ring with a key.
        cached: the cached contexts of EQs.
        broken: called once, when an entry cannot be stored in the ring's memory.
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
        """True if its context is invalid or disabled, so events are only counted."""
        return not self.key.enabled or (self.number not in self._cached and not self.stalled)

    @property
    def stalled(self) -> bool:
        """True if its context was evicted, so events wait until it is loaded."""
        return self.number in self._cached.evicted

    @property
    def ready(self) -> bool:
        """True if it has room for an event."""
        return self.number in self._cached and not self.disabled and bool(self.key.room or self.count_room())

    def image(self) -> bytes:
        """Return the current EQC."""
        indices = {"consumer_index": self.regs.get(CQ_HEAD), "producer_index": self.key.tail}
        return EQC.pack(self.key.values() | indices)

    def back(self) -> None:
        """Report the events that waited while the context was evicted."""
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._store(*event)

    def report(
        self, event_type: int, number: int, status: int = 0, *, subtype: int = 0, out_hi: int = 0, out_lo: int = 0
    ) -> bool:
        """Add an entry and raise the interrupt. Return false and count the event if the EQ is full, since software must
        keep up.

        An EQ whose memory is not accessible is not full: it fails, and so does the device.
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
        """Accept no more events, since there is no ring to store them in."""
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
