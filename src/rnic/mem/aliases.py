"""Short aliases of keys and QPNs, for fields of document 003 that are narrower than those on the wire.

A 16-bit ``r_key`` or a 12-bit ``qpn`` of document 003 cannot hold a 32-bit R_Key or a 24-bit QPN. A device has one
table for each; the short number is an index, and its entry holds the full number.
"""

from __future__ import annotations

from errno import EEXIST, EINVAL, ENOENT, ENOMEM

from rnic.spec.errors import VerbsError


class AliasTable:
    """Aliases of ``bits`` bits for full numbers.

    Args:
        what: name of the numbers, for error messages.
        bits: width of a short number; 0 is valid unless ``first`` is 1.
        first: lowest short number to allocate.
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
        """Allocate a short number for ``full``, by default the lowest free one; a second call returns the same.

        Raises:
            VerbsError: ``EINVAL`` for a short number that does not fit, ``EEXIST`` if either number has another alias,
                ``ENOMEM`` if none is free.
        """
        known = self._short.get(full)
        if known is not None and short in (None, known):
            return known
        if short is None:
            short = next((n for n in range(self._first, 1 << self.bits) if n not in self._full), None)
            if short is None:
                raise VerbsError(ENOMEM, f"all {1 << self.bits} short {self._what}s are in use: free one first")
        elif not 0 <= short < 1 << self.bits:
            raise VerbsError(EINVAL, f"{self._what}={short:#x} does not fit in {self.bits} bits")
        if known is not None or self._full.get(short, full) != full:
            raise VerbsError(EEXIST, f"{self._what}={short:#x} or its full number already has an alias")
        self._full[short] = full
        self._short[full] = short
        return short

    def full(self, short: int) -> int:
        """Return the full number; raise ``VerbsError`` (ENOENT) if the short one is not allocated."""
        try:
            return self._full[short]
        except KeyError:
            raise VerbsError(ENOENT, f"{self._what}={short:#x} is not allocated: add it first") from None

    def short(self, full: int) -> int | None:
        """Return the short number of a full one, or ``None``."""
        return self._short.get(full)

    def remove(self, short: int) -> None:
        """Free a short number; ignore one that is not allocated."""
        full = self._full.pop(short, None)
        if full is not None:
            del self._short[full]
