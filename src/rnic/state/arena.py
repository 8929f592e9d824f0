"""Flat memory in which a device keeps the state of its data path.

Places are offsets, never pointers, so that the same bytes can be mapped elsewhere. The arena has one size for life.
"""

from __future__ import annotations

import mmap
import platform
import sys

ALIGN = 64
"""Every piece begins at a multiple of this: a cache line."""
_PAGE = 4_096
_SMALL = 1_024
_SLAB = 64 << 10
_MAP_NORESERVE = 0x4000
_COMMON_FLAGS = ("x86_64", "i386", "i686", "aarch64", "arm", "riscv", "loongarch", "s390x")
"""Machines on which Linux has :data:`_MAP_NORESERVE` by that number."""


class Arena:
    """Memory of ``size`` bytes, zero at first, and what of it is in use.

    ``memory`` is that of somebody who shares it with others: zeros, and at least ``size`` bytes.
    Memory that was never touched costs nothing where the system knows how to reserve addresses alone.
    """

    __slots__ = ("_end", "_free", "cells", "generations", "memory", "signed", "size")

    def __init__(self, size: int, memory: mmap.mmap | None = None) -> None:
        self.size = -(-size // _PAGE) * _PAGE
        self.memory = memoryview(private_memory(self.size) if memory is None else memory)[: self.size]
        self.cells = self.memory.cast("Q")
        """The whole of it as 64-bit words in the host's byte order."""
        self.signed = self.memory.cast("q")
        """The same, for words with a sign."""
        self.generations = 0
        """Queue pairs that have begun in it, one that was reset once more for each time."""
        self._end = 0
        self._free: dict[int, list[int]] = {}

    def allocate(self, size: int) -> int | None:
        """The offset of ``size`` bytes, with what was there before; ``None`` where no room is left."""
        size = _rounded(size)
        spare = self._free.get(size)
        if spare:
            return spare.pop()
        at = self._end
        if size <= _SMALL and at + _SLAB <= self.size:
            # small pieces lie side by side, so that a page of memory serves several
            self._end = at + _SLAB
            last = at + (_SLAB // size - 1) * size
            self._free[size] = list(range(last, at, -size))
            return at
        if at + size > self.size:
            return None
        self._end = at + size
        return at

    def allocate_first(self, size: int) -> int:
        """:meth:`allocate` of what lies at the start, so that nothing else has the offset 0.

        Raises:
            MemoryError: the arena is in use, or too small.
        """
        size = _rounded(size)
        if self._end or size > self.size:
            raise MemoryError(f"the first {size} bytes of {self.size} bytes of state are in use, or too few")
        self._end = size
        return 0

    def take(self, size: int, what: str) -> int:
        """:meth:`allocate` for ``what``.

        Raises:
            MemoryError: no room is left.
        """
        at = self.allocate(size)
        if at is None:
            raise MemoryError(f"no room for {what} in {self.size} bytes of state")
        return at

    def free(self, at: int, size: int) -> None:
        """Give back what :meth:`allocate` gave for the same size; nobody may use it any more."""
        self._free.setdefault(_rounded(size), []).append(at)

    def words(self, at: int, size: int) -> memoryview:
        """``size`` bytes at ``at``, a multiple of 8 each, as words."""
        return self.memory[at : at + size].cast("Q")

    @property
    def used(self) -> int:
        """Bytes that were ever in use."""
        return self._end


def _rounded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def private_memory(size: int) -> mmap.mmap:
    """Zero pages that cost nothing until they are touched, and of which a forked child has a copy.

    Pages that it shared would let a child that closes what it inherited destroy its parent's device.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # nor does such a system fork
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _no_reserve())


def _no_reserve() -> int:
    """The flag by which what is not touched is not counted; 0 where it is not known."""
    if hasattr(mmap, "MAP_NORESERVE"):  # from Python 3.13 on
        return int(mmap.MAP_NORESERVE)
    common = sys.platform == "linux" and platform.machine().startswith(_COMMON_FLAGS)
    return _MAP_NORESERVE if common else 0
