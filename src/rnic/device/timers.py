"""Timers of queue pairs: a binary heap of their records, so that idle queue pairs cost nothing."""

from __future__ import annotations

from rnic.spec.limits import NEVER
from rnic.state.arena import Arena
from rnic.state.queue_pair import QP
from rnic.state.record import WORD_BYTES, WORD_SHIFT, Word, place, view
from rnic.state.scheduler import TIMERS

_ARMED = place(QP, "armed_ns")
_PLACE = place(QP, "timer_place")


@view(TIMERS)
class Timers:
    """Wakes each queue pair at its deadline or before, never after.

    Queue pairs are offsets of records. The word ``armed_ns`` of one is when the heap wakes it, or ``NEVER``;
    ``timer_place`` is its index in the heap, or 0. A record woken too early, since its deadline has moved back, must be
    armed again.

    Args:
        arena: arena of the heap and all records.
        capacity: maximum number of queue pairs.

    Raises:
        MemoryError: the arena is full.
    """

    __slots__ = ("_cells", "_heap", "record", "words")

    heap: Word
    capacity: Word
    count: Word

    def __init__(self, arena: Arena, capacity: int) -> None:
        self.record = arena.take(TIMERS.size, "timers")
        self._cells = arena.cells
        self.words = arena.words(self.record, TIMERS.size)
        heap = arena.take(WORD_BYTES * (capacity + 1), f"timers of {capacity} queue pairs")
        self.heap, self.capacity, self.count = heap, capacity, 0
        self._heap = heap >> WORD_SHIFT

    def __len__(self) -> int:
        """Return the number of queue pairs in the heap."""
        return self.count

    @staticmethod
    def room(capacity: int) -> int:
        """Return the number of arena bytes that the timers take."""
        return TIMERS.size + WORD_BYTES * (capacity + 8)

    def arm(self, qp: int, deadline_ns: int) -> None:
        """Wake ``qp`` at ``deadline_ns``, which is earlier than its ``armed_ns``."""
        cells = self._cells
        at = qp >> WORD_SHIFT
        cells[at + _ARMED] = deadline_ns
        place = cells[at + _PLACE]
        if not place:
            place = self.count = self.count + 1
        self._rise(place, qp, deadline_ns)

    def forget(self, qp: int) -> None:
        """Disarm ``qp``."""
        cells = self._cells
        at = qp >> WORD_SHIFT
        cells[at + _ARMED] = NEVER
        place = cells[at + _PLACE]
        if not place:
            return
        cells[at + _PLACE] = 0
        last = self.count
        self.count = last - 1
        if place != last:
            moved = cells[self._heap + last]
            deadline = cells[(moved >> WORD_SHIFT) + _ARMED]
            above = cells[self._heap + (place >> 1)] if place > 1 else 0
            if above and cells[(above >> WORD_SHIFT) + _ARMED] > deadline:
                self._rise(place, moved, deadline)
            else:
                self._sink(place, moved, deadline)

    def next_ns(self) -> int | None:
        """Return the time of the next wake-up, or ``None``."""
        return self._cells[(self._cells[self._heap + 1] >> WORD_SHIFT) + _ARMED] if self.count else None

    def due(self, now_ns: int) -> int:
        """Disarm and return a queue pair whose deadline has come; 0 if there is none."""
        if not self.count:
            return 0
        qp = self._cells[self._heap + 1]
        if self._cells[(qp >> WORD_SHIFT) + _ARMED] > now_ns:
            return 0
        self.forget(qp)
        return qp

    def _rise(self, place: int, qp: int, deadline: int) -> None:
        """Put ``qp`` at index ``place`` or above, moving later deadlines down."""
        cells, heap = self._cells, self._heap
        while place > 1:
            above = cells[heap + (place >> 1)]
            at = above >> WORD_SHIFT
            if cells[at + _ARMED] <= deadline:
                break
            cells[heap + place] = above
            cells[at + _PLACE] = place
            place >>= 1
        cells[heap + place] = qp
        cells[(qp >> WORD_SHIFT) + _PLACE] = place

    def _sink(self, place: int, qp: int, deadline: int) -> None:
        """Put ``qp`` at index ``place`` or below, moving earlier deadlines up."""
        cells, heap, count = self._cells, self._heap, self.count
        while (below := place << 1) <= count:
            child = cells[heap + below]
            soonest = cells[(child >> WORD_SHIFT) + _ARMED]
            if below < count:
                other = cells[heap + below + 1]
                time = cells[(other >> WORD_SHIFT) + _ARMED]
                if time < soonest:
                    below, child, soonest = below + 1, other, time
            if soonest >= deadline:
                break
            cells[heap + place] = child
            cells[(child >> WORD_SHIFT) + _PLACE] = place
            place = below
        cells[heap + place] = qp
        cells[(qp >> WORD_SHIFT) + _PLACE] = place
