"""Patience: work on memory that a program shares comes to an end, whatever the program wrote there.

The reference follows indices, counts and lists in the arena of a slot. Its views bound where it reads and writes, but
not how often: a list that was bent into a ring has no end. So work on an arena has a bound in processor time, far
beyond what any right arena takes, and what reaches it costs that program its connection.

It is processor time, so that a busy machine ends nobody, and it is seen by a timer that runs with it: nothing is done
for it but to say whose arena is worked on.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

TICK_S = 0.05
"""Seconds of processor time between two looks."""
TICKS = 10
"""Looks at one piece of work, after which it has taken too long."""


class Bent(BaseException):
    """Work on an arena did not end. Nothing but the loop of the NIC process is to catch it.

    Attributes:
        whose: as :meth:`Patience.on` was given it.
    """

    def __init__(self, whose: object) -> None:
        super().__init__("the words of a program's arena lead nowhere")
        self.whose = whose


class Patience:
    """Watches work on arenas in the main thread; elsewhere, and outside of ``with``, it sees nothing."""

    def __init__(self) -> None:
        self.under_way: list[Work] = []
        self._before: Any = None

    def on(self, whose: object) -> Work:
        """A context manager: while it is entered, the work is on ``whose`` arena. It may be entered within another.

        Raises:
            Bent: when entered, and the work inside has taken ``TICKS * TICK_S`` seconds of processor time.
        """
        return Work(self, whose)

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGVTALRM, self._look)
            signal.setitimer(signal.ITIMER_VIRTUAL, TICK_S, TICK_S)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, self._before)
            self._before = None

    def _look(self, *_: object) -> None:
        if self.under_way:
            work = self.under_way[-1]
            work.ticks += 1
            if work.ticks > TICKS:
                work.ticks = 0  # what ends it takes time, too
                raise Bent(work.whose)


class Work:
    """Work on one arena, by :meth:`Patience.on`; entered again and again."""

    __slots__ = ("_patience", "ticks", "whose")

    def __init__(self, patience: Patience, whose: object) -> None:
        self._patience = patience
        self.whose = whose
        self.ticks = 0

    def __enter__(self) -> None:
        self.ticks = 0
        self._patience.under_way.append(self)

    def __exit__(self, *_: object) -> None:
        self._patience.under_way.pop()


__all__ = ["TICKS", "TICK_S", "Bent", "Patience", "Work"]
