"""What happens when: a heap of numbers.

An entry is one integer, time, order and actor side by side, so that comparing two compares their times, and of those
at one time the one that was entered first comes first: every run is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

_ACTOR_BITS = 24
_ORDER_BITS = 40
_ACTOR_MASK = (1 << _ACTOR_BITS) - 1
_TIME_SHIFT = _ACTOR_BITS + _ORDER_BITS
_ORDER_MASK = (1 << _ORDER_BITS) - 1


class Agenda:
    """Virtual time in nanoseconds, and what is due in it. Call it for the time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        """How many have happened."""
        self._entered = 0
        self._heap: list[int] = []
        self._actors: list[Callable[[], None]] = []
        self._free: list[int] = []
        """Numbers of those that act no more."""

    def __call__(self) -> int:
        """The time in nanoseconds."""
        return self.now_ns

    def actor(self, act: Callable[[], None]) -> int:
        """A number for something that acts when it is due.

        Raises:
            OverflowError: there are 2^24 already.
        """
        if len(self._actors) > _ACTOR_MASK:
            raise OverflowError(f"{len(self._actors)} actors are as many as there can be: make the topology smaller")
        self._actors.append(act)
        return len(self._actors) - 1

    def once(self, time_ns: int, call: Callable[[], None]) -> None:
        """``call`` is called at ``time_ns``, and its number is free again."""

        def act() -> None:
            self._free.append(number)
            call()

        if self._free:
            number = self._free.pop()
            self._actors[number] = act
        else:
            number = self.actor(act)
        self.at(time_ns, number)

    def at(self, time_ns: int, actor: int) -> None:
        """``actor`` acts at ``time_ns``, which is not before now."""
        self._entered += 1
        heappush(self._heap, time_ns << _TIME_SHIFT | (self._entered & _ORDER_MASK) << _ACTOR_BITS | actor)

    def next_ns(self) -> int | None:
        """When something happens next; ``None`` where nothing does."""
        return self._heap[0] >> _TIME_SHIFT if self._heap else None

    def step(self) -> bool:
        """The next thing happens, and time moves there; false where there is none."""
        if not self._heap:
            return False
        entry = heappop(self._heap)
        self.now_ns = entry >> _TIME_SHIFT
        self.events += 1
        self._actors[entry & _ACTOR_MASK]()
        return True

    def run(self, count: int, end_ns: int, busy: Callable[[], object]) -> bool:
        """Up to ``count`` things happen, as long as ``busy`` says so; false where there is none, or it is late."""
        for _ in range(count):
            if not self.step() or self.now_ns > end_ns:
                return False
            if not busy():
                break
        return True
