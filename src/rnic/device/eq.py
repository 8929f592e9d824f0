"""Event queues: entries for completion and asynchronous events, and the interrupt vectors behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rnic.device.entry_ring import QUEUE_ERROR, EntryRing
from rnic.device.uar import Uar
from rnic.rings.queue_block import QUEUE_STATE
from rnic.trace.counters import Counters


class EventQueue(EntryRing):
    """One EQ. ``users`` counts the CQs that report to it.

    An interrupt says "new entries since the last interrupt was taken": one vector waits once, however many
    events came.

    Args:
        broken: called once, when the ring's memory refuses an entry.
    """

    __slots__ = ("_broken", "_counters", "_interrupts", "disabled", "failed", "pending", "users", "vector")

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
        broken: Callable[[EventQueue], None] = lambda eq: None,
    ) -> None:
        super().__init__(number, uar, block, base, size)
        self.vector = vector
        self.users = 0
        self.pending = False
        self.disabled = False
        """The context manager lost this EQ (invalid, or its event function taken away): events are counted only."""
        self._interrupts = interrupts
        self._counters = counters
        self._broken = broken
        self.failed = False

    def report(
        self, event_type: int, number: int, status: int = 0, *, subtype: int = 0, out_hi: int = 0, out_lo: int = 0
    ) -> bool:
        """Add an entry and raise the interrupt; false, and counted, where the EQ is full: software has to keep up.

        An EQ whose memory does not answer is not full: it fails, and the device with it.
        """
        if self.disabled:
            self._counters.bump("eq_disabled")
            return False
        stored = self.push(event_type | subtype << 8, number, status, 0, out_hi, out_lo, 0, 0)
        if not stored:
            if self.room and not self.failed:
                self.failed = True
                self.regs.set(QUEUE_STATE, QUEUE_ERROR)
                self._broken(self)
            self._counters.bump("eq_overflows")
        if not self.pending:
            self.pending = True
            self._interrupts.append(self)
        return stored
