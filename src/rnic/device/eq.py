"""Event queues: entries for completion and asynchronous events, and the interrupt vectors behind them."""

from __future__ import annotations

from collections import deque

from rnic.device.entry_ring import EntryRing
from rnic.device.uar import Uar
from rnic.trace.counters import Counters


class EventQueue(EntryRing):
    """One EQ. ``users`` counts the CQs that report to it.

    An interrupt says "new entries since the last interrupt was taken": one vector waits once, however many
    events came.
    """

    __slots__ = ("_counters", "_interrupts", "disabled", "pending", "users", "vector")

    def __init__(
        self,
        number: int,
        uar: Uar,
        block: int,
        base: int,
        size: int,
        vector: int,
        interrupts: deque[EventQueue],
        counters: Counters,
    ) -> None:
        super().__init__(number, uar, block, base, size)
        self.vector = vector
        self.users = 0
        self.pending = False
        self.disabled = False
        """The context manager lost this EQ (invalid, or its event function taken away): events are counted only."""
        self._interrupts = interrupts
        self._counters = counters

    def report(self, event_type: int, number: int, status: int = 0) -> bool:
        """Add an entry and raise the interrupt; false, and counted, where the EQ is full: software has to keep up."""
        if self.disabled:
            self._counters.bump("eq_disabled")
            return False
        stored = self.push(event_type, number, status, 0, 0, 0, 0, 0)
        if not stored:
            self._counters.bump("eq_overflows")
        if not self.pending:
            self.pending = True
            self._interrupts.append(self)
        return stored
