"""Report bugs in rnic to the logger ``rnic``, which writes to standard error by default."""

from __future__ import annotations

import functools
import logging

LOGGER = logging.getLogger("rnic")


def log_report(line: str, error: Exception) -> None:
    """Log a :data:`rnic.trace.guard.Report`: one entry of level ERROR with the traceback."""
    LOGGER.error("%s: please report it, with what follows", line, exc_info=error)


@functools.cache
def report_once(words: str) -> None:
    """Log one line, once per program: without a handler, Python's last-resort handler prints it on stderr."""
    LOGGER.warning(words)


__all__ = ["LOGGER", "log_report", "report_once"]
