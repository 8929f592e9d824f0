"""Counters by name. They are passed in, never global."""

from __future__ import annotations


class Counters(dict[str, int]):
    """Counts by name. A name that was never incremented reads as 0 and takes no space."""

    __slots__ = ()

    def __missing__(self, name: str) -> int:
        return 0

    def bump(self, name: str, n: int = 1) -> None:
        """Add ``n`` to the counter ``name``."""
        self[name] = self.get(name, 0) + n

    def snapshot(self) -> dict[str, int]:
        """Return a plain copy sorted by name, so that equal runs print equal output."""
        return dict(sorted(self.items()))
