"""Event queue of a run: a heap of integers.

An entry is one integer of time, order and actor. So entries compare by time, then by order of insertion, and every run
is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

_ACTOR_BITS = 24
_ORDER_BITS = 40
_ACTOR_MASK = (1 << _ACTOR_BITS) - 1
_TIME_SHIFT = _ACTOR_BITS + _ORDER_BITS
_ORDER_MASK = (1 << _ORDER_BITS) - 1


def _idle() -> None:
    """Do nothing: placeholder of a free actor number, which keeps nothing alive."""


class Agenda:
    """Virtual time in nanoseconds, and its pending events. Calling it returns the time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        """Number of events that have happened."""
        self._entered = 0
        self._heap: list[int] = []
        self._actors: list[Callable[[], None]] = []
        self._free: list[int] = []
        """Numbers of actors that are no longer used."""

    def __call__(self) -> int:
        """Return the time in nanoseconds."""
        return self.now_ns

    def actor(self, act: Callable[[], None]) -> int:
        """Register a callback and return its actor number.

        Raises:
            OverflowError: there are 2^24 actors already.
        """
        if len(self._actors) > _ACTOR_MASK:
            raise OverflowError(f"{len(self._actors)} actors are as many as there can be: make the topology smaller")
        self._actors.append(act)
        return len(self._actors) - 1

    def once(self, time_ns: int, call: Callable[[], None]) -> None:
        """Call ``call`` at ``time_ns``, then free its actor number."""

        def act() -> None:
            self._free.append(number)
            self._actors[number] = _idle
            call()

        if self._free:
            number = self._free.pop()
            self._actors[number] = act
        else:
            number = self.actor(act)
        self.at(time_ns, number)

    def at(self, time_ns: int, actor: int) -> None:
        """Schedule ``actor`` at ``time_ns``, which is not before now."""
        self._entered += 1
        heappush(self._heap, time_ns << _TIME_SHIFT | (self._entered & _ORDER_MASK) << _ACTOR_BITS | actor)

    def next_ns(self) -> int | None:
        """Return the time of the next event; ``None`` if there is none."""
        return self._heap[0] >> _TIME_SHIFT if self._heap else None

    def step(self) -> bool:
        """Run the next event, and move time there. Return false if there is none."""
        if not self._heap:
            return False
        entry = heappop(self._heap)
        self.now_ns = entry >> _TIME_SHIFT
        self.events += 1
        self._actors[entry & _ACTOR_MASK]()
        return True

    def run(self, count: int, end_ns: int, busy: Callable[[], object]) -> bool:
        """Run up to ``count`` events while ``busy`` returns true. Return false if none is left or ``end_ns`` passed."""
        for _ in range(count):
            if not self.step() or self.now_ns > end_ns:
                return False
            if not busy():
                break
        return True
