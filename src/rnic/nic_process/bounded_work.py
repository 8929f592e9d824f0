"""Limit the processor time of work on memory that a program shares, whatever the program wrote there.

The reference follows indices, counts and lists in the arena of a bypass slot. Its views bound where it reads and
writes, but not how often: a list with a cycle has no end. So each piece of work on an arena has a limit, far above what
a valid arena needs. A program whose arena exceeds it loses its connection.

The limit is in processor time, so that a busy machine costs no program its connection. A timer that runs with it
checks the limit: the work itself only names the owner of the arena.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from typing import Any

TICK_S = 0.05
"""Seconds of processor time between two checks."""
TICKS = 10
"""Number of checks after which one piece of work has taken too long."""


class ArenaCorrupt(BaseException):
    """Raised when work on a program's arena exceeds its limit (for example a list with a cycle).

    Only the loop of the NIC process may catch it.

    Attributes:
        owner: the argument of :meth:`WorkWatchdog.work_on`.
    """

    def __init__(self, owner: object) -> None:
        super().__init__("work on a program's arena finds no end")
        self.owner = owner


class WorkWatchdog:
    """Watches work on arenas in the main thread, between ``__enter__`` and ``__exit__``; elsewhere it does nothing."""

    def __init__(self) -> None:
        self.active: deque[BoundedWork] = deque()
        """Pieces of work in progress, the innermost last. Leaving one allocates no memory, unlike with a list."""
        self._previous_handler: Any = None

    def work_on(self, owner: object) -> BoundedWork:
        """Make a context manager around work on the arena of ``owner``. It may be entered within another.

        Raises:
            ArenaCorrupt: while it is entered, once the work has taken ``TICKS * TICK_S`` seconds of processor time.
        """
        return BoundedWork(self, owner)

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGVTALRM, self._on_tick)
            signal.setitimer(signal.ITIMER_VIRTUAL, TICK_S, TICK_S)

    def __exit__(self, *_: object) -> None:
        if self._previous_handler is not None:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, self._previous_handler)
            self._previous_handler = None

    def _on_tick(self, *_: object) -> None:
        if self.active:
            work = self.active[-1]
            work.ticks += 1
            if work.ticks > TICKS:
                work.ticks = 0  # releasing its resources takes time, too
                raise ArenaCorrupt(work.owner)


class BoundedWork:
    """Work on one arena, by :meth:`WorkWatchdog.work_on`; may be entered repeatedly."""

    __slots__ = ("_watchdog", "owner", "ticks")

    def __init__(self, watchdog: WorkWatchdog, owner: object) -> None:
        self._watchdog = watchdog
        self.owner = owner
        self.ticks = 0

    def __enter__(self) -> None:
        self.ticks = 0
        self._watchdog.active.append(self)

    def __exit__(self, *_: object) -> None:
        self._watchdog.active.pop()


__all__ = ["TICKS", "TICK_S", "ArenaCorrupt", "BoundedWork", "WorkWatchdog"]
