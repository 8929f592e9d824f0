"""Where mistakes of our own are told: the log of name ``rnic``, which goes to standard error unless told otherwise."""

from __future__ import annotations

import functools
import logging

LOGGER = logging.getLogger("rnic")


def log_report(line: str, error: Exception) -> None:
    """A :data:`rnic.trace.guard.Report`: one entry of level ERROR with the traceback."""
    LOGGER.error("%s: please report it, with what follows", line, exc_info=error)


@functools.cache
def report_once(words: str) -> None:
    """Log one line, once for each program: the system's last resort prints it on stderr."""
    LOGGER.warning(words)


__all__ = ["LOGGER", "log_report", "report_once"]
