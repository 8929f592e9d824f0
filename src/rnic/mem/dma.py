"""The DMA port: how a device reaches a driver's memory."""

from __future__ import annotations

from typing import Final, Protocol


class DmaPort(Protocol):
    """Access to one process's memory by virtual address. Nothing here raises: a fault is an answer."""

    def read(self, va: int, buf: bytearray | memoryview, /) -> bool:
        """Fill ``buf`` from ``va`` on; false where any byte is out of reach, and then ``buf`` is unspecified."""

    def write(self, va: int, data: bytes | bytearray | memoryview, /) -> bool:
        """Store ``data`` from ``va`` on; false where any byte is out of reach or read-only."""

    def views(self, va: int, length: int, /) -> memoryview | None:
        """The memory itself as bytes, read-only where it is so; ``None`` where it is not in reach as one piece."""


NULL_BYTES: Final = 1 << 63
"""The most that a region without memory opens: all addresses of programs."""
NULL_BASE: Final = 1 << 63
"""Where such a region says that its memory is: no program has any there."""


class NullPort:
    """No memory at all: reads give zeros, what is written goes nowhere."""

    __slots__ = ()

    def read(self, va: int, buf: bytearray | memoryview, /) -> bool:
        """Zeros."""
        buf[:] = bytes(len(buf))
        return True

    def write(self, va: int, data: bytes | bytearray | memoryview, /) -> bool:
        """Nothing."""
        return True

    def views(self, va: int, length: int, /) -> memoryview | None:
        """There is none."""
        return None
