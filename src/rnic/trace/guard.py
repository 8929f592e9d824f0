"""Last-resort handling of unexpected exceptions, which are bugs in rnic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rnic.trace.counters import Counters

Report = Callable[[str, Exception], None]
"""Called with a one-line description (place and object concerned) and the exception with its traceback."""

OWN_ERRORS = "own_errors"
"""Counter of all internal errors; ``own_errors_PLACE`` counts those at one place."""
MOST_REPORTS = 256
"""Most distinct exceptions to report; further ones are only counted."""


class Guard:
    """Counts internal errors and reports each distinct one once, by type and raising line.

    The code that catches one fails the object concerned (a queue pair, a client) and continues. Only ``Exception`` is
    caught: interrupts and exits pass.

    Args:
        counters: counters for the errors.
        report: called for the first of each; if omitted, errors are only counted.
    """

    __slots__ = ("_seen", "counters", "report")

    def __init__(self, counters: Counters, report: Report | None = None) -> None:
        self.counters = counters
        self.report = report
        self._seen: set[tuple[str, type, str, int]] = set()

    def caught(self, place: str, error: Exception, concerned: str = "") -> None:
        """Record an exception.

        Args:
            place: the operation in progress, one word: ``packet``, ``turn``, ``timer``, ``command`` ...
            error: the exception with its traceback.
            concerned: the object that fails because of it, for the report.
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
        """Catch exceptions raised in the ``with`` block. Not for the fast path."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the last guard
            self.caught(place, error, concerned)
