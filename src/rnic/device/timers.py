"""Deadlines of queue pairs: a heap with lazy deletion, so that idle queue pairs cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from rnic.spec.limits import NEVER

if TYPE_CHECKING:
    from rnic.transport.qp import QueuePair

TIMERS_PER_CALL = 1_024
"""Expired deadlines handled in one call, so that its work is bounded."""


class Timers:
    """Wakes each queue pair at its deadline or before, never after.

    ``qp.armed_ns`` is when the heap wakes it. An entry with another time is stale and skipped; a queue pair whose
    deadline has moved back is put in again when its old time comes.

    Args:
        failed: gets an exception that a queue pair's handler raised, and which queue pair it was.
    """

    __slots__ = ("_count", "_failed", "_heap")

    def __init__(self, failed: Callable[[QueuePair, Exception], None]) -> None:
        self._failed = failed
        self._heap: list[tuple[int, int, QueuePair]] = []
        self._count = 0

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return len(self._heap)

    def arm(self, qp: QueuePair) -> None:
        """Wake ``qp`` at its deadline, which lies before ``qp.armed_ns``."""
        deadline = qp.deadline_ns
        qp.armed_ns = deadline
        self._count += 1
        heappush(self._heap, (deadline, self._count, qp))

    @staticmethod
    def forget(qp: QueuePair) -> None:
        """Wake ``qp`` no more."""
        qp.armed_ns = NEVER

    def sweep(self) -> None:
        """Let go of what was forgotten; a stale entry else stays until its time comes."""
        self._heap = [entry for entry in self._heap if entry[0] == entry[2].armed_ns]
        heapify(self._heap)

    def next_ns(self) -> int | None:
        """The earliest time at which :meth:`handle` may have something to do."""
        heap = self._heap
        while heap:
            deadline, _, qp = heap[0]
            if deadline == qp.armed_ns:
                return deadline
            heappop(heap)
        return None

    def handle(self, now_ns: int) -> None:
        """Call every queue pair whose deadline has come."""
        heap = self._heap
        for _ in range(TIMERS_PER_CALL):
            if not heap or heap[0][0] > now_ns:
                return
            deadline, _, qp = heappop(heap)
            if deadline != qp.armed_ns:
                continue
            qp.armed_ns = NEVER
            try:
                if qp.deadline_ns <= now_ns:
                    qp.handle_timer(now_ns)
                if qp.deadline_ns < qp.armed_ns:
                    self.arm(qp)
            except Exception as error:  # noqa: BLE001 - the last guard
                self._failed(qp, error)
