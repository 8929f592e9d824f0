"""Flat memory that holds the state of a device's data path.

References are offsets, not pointers, so the bytes can be mapped at any address. An arena's size is fixed.
"""

from __future__ import annotations

import mmap
import platform
import sys

ALIGN = 64
"""Alignment of every allocation in bytes: a cache line."""
_PAGE = 4_096
_SMALL = 1_024
_SLAB = 64 << 10
_MAP_NORESERVE = 0x4000
_COMMON_FLAGS = ("x86_64", "i386", "i686", "aarch64", "arm", "riscv", "loongarch", "s390x")
"""Machines on which Linux uses this value of :data:`_MAP_NORESERVE`."""


class Arena:
    """An allocator over ``size`` bytes of memory, zero at first.

    ``memory`` may be shared memory of another owner: all zeros, at least ``size`` bytes. Untouched memory costs nothing
    if the kernel can reserve address space without committing it.
    """

    __slots__ = ("_carved", "_end", "_free", "cells", "generations", "memory", "signed", "size")

    def __init__(self, size: int, memory: mmap.mmap | None = None) -> None:
        self.size = -(-size // _PAGE) * _PAGE
        self.memory = memoryview(private_memory(self.size) if memory is None else memory)[: self.size]
        self.cells = self.memory.cast("Q")
        """The memory as 64-bit words in host byte order."""
        self.signed = self.memory.cast("q")
        """The memory as signed 64-bit words."""
        self.generations = 0
        """Number of creations and resets of queue pairs in the arena."""
        self._end = 0
        self._free: dict[int, list[int]] = {}
        self._carved: dict[int, range] = {}
        """Never allocated pieces of the current slab, by size: their offsets."""

    def allocate(self, size: int) -> int | None:
        """Allocate ``size`` bytes without clearing them. Return their offset, or ``None`` if no room is left."""
        size = _rounded(size)
        spare = self._free.get(size)
        if spare:
            return spare.pop()
        slab = self._carved.get(size)
        if slab:
            self._carved[size] = slab[1:]
            return slab[0]
        at = self._end
        if size <= _SMALL and at + _SLAB <= self.size:
            # carve small pieces from one slab, so that they share a page
            self._end = at + _SLAB
            self._carved[size] = range(at + size, at + _SLAB // size * size, size)
            return at
        if at + size > self.size:
            return None
        self._end = at + size
        return at

    def allocate_first(self, size: int) -> int:
        """Allocate the first piece, so that no later one has offset 0.

        Raises:
            MemoryError: the arena is in use, or too small.
        """
        size = _rounded(size)
        if self._end or size > self.size:
            raise MemoryError(f"the first {size} bytes of {self.size} bytes of state are in use, or too few")
        self._end = size
        return 0

    def take(self, size: int, what: str) -> int:
        """Allocate like :meth:`allocate`; ``what`` names the object in the error.

        Raises:
            MemoryError: no room is left.
        """
        at = self.allocate(size)
        if at is None:
            raise MemoryError(f"no room for {what} in {self.size} bytes of state")
        return at

    def free(self, at: int, size: int) -> None:
        """Free a piece of ``size`` bytes from :meth:`allocate`; it must not be used anymore."""
        self._free.setdefault(_rounded(size), []).append(at)

    def words(self, at: int, size: int) -> memoryview:
        """Return ``size`` bytes at offset ``at`` as words; both are multiples of 8."""
        return self.memory[at : at + size].cast("Q")

    @property
    def used(self) -> int:
        """High-water mark of allocated bytes."""
        return self._end


def _rounded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def private_memory(size: int) -> mmap.mmap:
    """Map private zero pages, which cost nothing until they are touched; a forked child gets a copy.

    With shared pages, a child that closes inherited objects would destroy its parent's device.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # a system without it has no fork, either
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _no_reserve())


def _no_reserve() -> int:
    """Return the flag that exempts untouched pages from overcommit accounting; 0 if unknown."""
    if hasattr(mmap, "MAP_NORESERVE"):  # from Python 3.13 on
        return int(mmap.MAP_NORESERVE)
    common = sys.platform == "linux" and platform.machine().startswith(_COMMON_FLAGS)
    return _MAP_NORESERVE if common else 0
