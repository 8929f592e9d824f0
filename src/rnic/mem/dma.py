"""The DMA port: a device's access to a driver's memory."""

from __future__ import annotations

from typing import Final, Protocol


class DmaPort(Protocol):
    """Access to one process's memory by virtual address. Faults are returned, not raised."""

    def read(self, va: int, buf: bytearray | memoryview, /) -> bool:
        """Read from ``va`` into ``buf``; return false if any byte is inaccessible, and leave ``buf`` unspecified."""

    def write(self, va: int, data: bytes | bytearray | memoryview, /) -> bool:
        """Write ``data`` at ``va``; return false if any byte is inaccessible or read-only."""

    def views(self, va: int, length: int, /) -> memoryview | None:
        """Return a view of the memory, read-only if the memory is; ``None`` if it is not accessible in one piece."""


NULL_BYTES: Final = 1 << 63
"""Longest null region: all addresses of programs."""
NULL_BASE: Final = 1 << 63
"""Base address of a null region; no program has memory there."""


class NullPort:
    """No memory (null MR): reads return zeros, writes are discarded."""

    __slots__ = ()

    def read(self, va: int, buf: bytearray | memoryview, /) -> bool:
        """Fill ``buf`` with zeros."""
        buf[:] = bytes(len(buf))
        return True

    def write(self, va: int, data: bytes | bytearray | memoryview, /) -> bool:
        """Discard ``data``."""
        return True

    def views(self, va: int, length: int, /) -> memoryview | None:
        """Return ``None``: there is no memory to view."""
        return None
