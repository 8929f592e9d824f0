"""Descriptors that close with their owners, whatever fails in between."""

from __future__ import annotations

import os


class Descriptor:
    """A holder for one descriptor. Make it first: a later failure, such as lack of memory, then leaks none."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = -1
        """The descriptor; -1 for none."""

    def fileno(self) -> int:
        """Return its number; -1 for none."""
        return self.number

    def detach(self) -> int:
        """Give the descriptor up to the caller, and return its number."""
        number, self.number = self.number, -1
        return number

    def close(self) -> None:
        """Close it; a second call does nothing."""
        number = self.detach()
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        """Close the descriptor if it is still open."""
        self.close()


__all__ = ["Descriptor"]
