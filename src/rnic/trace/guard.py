"""The last guard: what becomes of an exception that is a mistake of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rnic.trace.counters import Counters

Report = Callable[[str, Exception], None]
"""Called with one line that says where and whom it concerned, and the exception with its traceback."""

OWN_ERRORS = "own_errors"
"""Counts them all; ``own_errors_PLACE`` those of one place."""
MOST_REPORTS = 256
"""Different exceptions that are reported; more are only counted."""


class Guard:
    """Counts exceptions of our own, and reports each once: by its kind and the line that raised it.

    Whoever catches one fails what it concerned (a queue pair, a client) and goes on. Only ``Exception`` is meant:
    interrupts and exits pass.

    Args:
        counters: where they are counted.
        report: gets the first of each; without it they are only counted.
    """

    __slots__ = ("_seen", "counters", "report")

    def __init__(self, counters: Counters, report: Report | None = None) -> None:
        self.counters = counters
        self.report = report
        self._seen: set[tuple[str, type, str, int]] = set()

    def caught(self, place: str, error: Exception, concerned: str = "") -> None:
        """Note an exception.

        Args:
            place: what was under way, one word: ``packet``, ``turn``, ``timer``, ``command`` ...
            error: with its traceback.
            concerned: who fails because of it, for the report.
        """
        self.counters.bump(OWN_ERRORS)
        self.counters.bump(f"{OWN_ERRORS}_{place}")
        if self.report is None:
            return
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        kind = (place, type(error), *where)
        if kind in self._seen or len(self._seen) >= MOST_REPORTS:
            return
        self._seen.add(kind)
        self.report(f"a mistake in rnic itself, at a {place}{concerned and f' of {concerned}'}: {error!r}", error)

    @contextmanager
    def around(self, place: str, concerned: str = "") -> Iterator[None]:
        """For places where time does not matter: what is raised inside is caught, and only what is inside ends."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the last guard
            self.caught(place, error, concerned)
