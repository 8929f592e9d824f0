"""Exceptions for callers. Each message is one line: the object, its value, the allowed values."""

from __future__ import annotations

import os


class RnicError(Exception):
    """Base class of all exceptions that rnic raises on purpose."""


class LinkError(RnicError):
    """A link cannot be opened or used as asked. The message is one line: the object, its value, the remedy."""


class VerbsError(RnicError, OSError):
    """A verbs call failed. ``errno`` is the error number, also available as ``error_code``, as in pyverbs.

    If posting several work requests fails, ``bad_wr`` is the one that failed; those before it are posted.

    Args:
        errno: the error number; 0 for none.
        message: one line.
    """

    bad_wr: object = None

    def __init__(self, errno: int, message: str) -> None:
        OSError.__init__(self, errno, message)
        self.error_code = errno

    def __str__(self) -> str:
        return f"{self.strerror} ({os.strerror(self.errno or 0)})"


class VerbsIndexError(VerbsError, IndexError):
    """An index is outside an array."""


class VerbsKeyError(VerbsError, KeyError):
    """A peer exports no array of that name."""


class WorkCompletionError(RnicError):
    """A work request of the short API (such as ``conn.read``) completed with an error.

    ``status`` is the completion's ``IBV_WC_*`` number.

    Args:
        status: the completion's ``IBV_WC_*``.
        message: one line.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def shown(value: object) -> str:
    """Return a value as short text for a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or a nest of lists
        return f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= 60 else text[:57] + "..."
