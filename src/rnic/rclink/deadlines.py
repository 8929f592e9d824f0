"""Find the QP with the earliest deadline."""

from __future__ import annotations

import heapq


class Deadlines:
    """One deadline for each key. Moving one later is cheap: the queue is not touched until the old time."""

    def __init__(self) -> None:
        self._when: dict[int, int] = {}
        self._queued: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def __contains__(self, key: int) -> bool:
        return key in self._when

    def set(self, key: int, when_ns: int) -> None:
        """Set the deadline of a key, replacing an earlier one."""
        self._when[key] = when_ns
        queued = self._queued.get(key)
        if queued is None or when_ns < queued:
            heapq.heappush(self._heap, (when_ns, key))
            self._queued[key] = when_ns

    def cancel(self, key: int) -> None:
        """Remove the deadline of a key."""
        self._when.pop(key, None)

    def next_ns(self) -> int | None:
        """Return the earliest deadline, or ``None``."""
        heap = self._heap
        while heap:
            when, key = heap[0]
            if self._queued.get(key) != when:
                heapq.heappop(heap)
                continue
            wanted = self._when.get(key)
            if wanted == when:
                return when
            heapq.heappop(heap)
            del self._queued[key]
            if wanted is not None:
                self.set(key, wanted)
        return None

    def due(self, now_ns: int) -> int | None:
        """Return a key whose deadline has passed, and remove the deadline; ``None`` if there is none."""
        when = self.next_ns()
        if when is None or when > now_ns:
            return None
        _, key = heapq.heappop(self._heap)
        del self._queued[key]
        del self._when[key]
        return key
