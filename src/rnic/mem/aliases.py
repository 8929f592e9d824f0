"""Short numbers for long ones: where a document's field is narrower than what the wire carries (003).

A 16-bit ``r_key`` or a 12-bit ``qpn`` of document 003 cannot hold a 32-bit R_Key or a 24-bit QPN. A device
keeps one table for each: its short numbers are entries, and the entry holds the full number.
"""

from __future__ import annotations

from errno import EEXIST, EINVAL, ENOENT, ENOMEM

from rnic.spec.errors import VerbsError


class AliasTable:
    """Short numbers of ``bits`` bits for full ones.

    Args:
        what: what the numbers are, for messages.
        bits: width of a short number; 0 is one of them unless ``first`` is 1.
        first: lowest short number that is handed out.
    """

    __slots__ = ("_first", "_full", "_short", "_what", "bits")

    def __init__(self, what: str, bits: int, first: int = 0) -> None:
        self.bits = bits
        self._what = what
        self._first = first
        self._full: dict[int, int] = {}
        self._short: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._full)

    def add(self, full: int, short: int | None = None) -> int:
        """Give ``full`` a short number, the lowest free one by default. One that it has already stays.

        Raises:
            VerbsError: ``EINVAL`` for a short number that does not fit, ``EEXIST`` for one that stands for another
                number, ``ENOMEM`` when none is free.
        """
        known = self._short.get(full)
        if known is not None and short in (None, known):
            return known
        if short is None:
            short = next((n for n in range(self._first, 1 << self.bits) if n not in self._full), None)
            if short is None:
                raise VerbsError(ENOMEM, f"all {1 << self.bits} short {self._what}s are taken: give one back first")
        elif not 0 <= short < 1 << self.bits:
            raise VerbsError(EINVAL, f"{self._what}={short:#x} does not fit in {self.bits} bits")
        if known is not None or self._full.get(short, full) != full:
            raise VerbsError(EEXIST, f"{self._what}={short:#x} or what it is to stand for has an alias already")
        self._full[short] = full
        self._short[full] = short
        return short

    def full(self, short: int) -> int:
        """The full number. ``VerbsError`` ENOENT where the short one stands for none."""
        try:
            return self._full[short]
        except KeyError:
            raise VerbsError(ENOENT, f"{self._what}={short:#x} stands for nothing: add it first") from None

    def short(self, full: int) -> int | None:
        """The short number of a full one, or ``None``."""
        return self._short.get(full)

    def remove(self, short: int) -> None:
        """Forget a short number; one that stands for nothing is ignored."""
        full = self._full.pop(short, None)
        if full is not None:
            del self._short[full]
