"""The outstanding limit of 004 7.4: a CNP halves it; CNP_TIMER_THRD without another CNP restores it."""

from __future__ import annotations

from math import inf

from rnic.cc.control import CONTROL_LIMIT, Control, Flow
from rnic.spec.limits import NEVER
from rnic.state.queue_pair import QP
from rnic.state.record import place

_CONTROL_NS = place(QP, "control_ns")


class Limit(Control):
    """Half of the outstanding limit from a CNP until the timer expires.

    Args:
        flow, now_ns: see :class:`~rnic.cc.control.Control`.
        hold_ns: time for which a CNP lowers the limit.
        words: the words of the queue pair's record, one of which is the end of the lowered limit.
    """

    number = CONTROL_LIMIT
    waits_for_cnp = True

    def __init__(self, flow: Flow, now_ns: int, *, hold_ns: int, words: memoryview) -> None:
        super().__init__(flow, now_ns)
        self.hold_ns = hold_ns
        self._flow, self._words = flow, words

    @property
    def timer_ns(self) -> int:  # type: ignore[override]  # a word shared with the engine
        """End of the lowered limit."""
        return self._words[_CONTROL_NS]

    @property
    def allowance(self) -> float:  # type: ignore[override]  # likewise
        """Half of the outstanding limit while it is lowered."""
        return inf if self.timer_ns == NEVER else max(1, self._flow.most // 2)

    def on_cnp(self, flow: Flow, now_ns: int) -> None:
        """Halve the limit, or restart the timer if it is lowered already."""
        self._words[_CONTROL_NS] = now_ns + self.hold_ns

    def on_timer(self, flow: Flow, now_ns: int) -> None:
        """Restore the limit."""
        self._words[_CONTROL_NS] = NEVER
