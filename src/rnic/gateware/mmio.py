"""The driver's backend for a real board: registers and memory mapped from device files.

Registers come from a UIO device or ``/dev/mem``; memory from a contiguous buffer whose bus addresses are known, such as
a u-dma-buf device. Coherence: an uncached mapping needs nothing; for a cached one, the buffer's two ``sync`` files
replace the cache instructions that user space may not execute.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

REGISTER_WINDOW = 0x4000


@dataclass(frozen=True, slots=True)
class MappedMemory:
    """A buffer in device file ``path``, ``size`` bytes at bus address ``base``.

    ``sync_for_device`` and ``sync_for_cpu``: files to which a ``1`` is written to clean or to invalidate the
    processor's lines of the buffer; ``None`` if the mapping is uncached.
    """

    path: Path
    base: int
    size: int
    sync_for_device: Path | None = None
    sync_for_cpu: Path | None = None


class MappedBackend:
    """Registers of ``register_file`` at ``register_offset``, and one or more memory buffers.

    Raises:
        OSError: a file cannot be opened or mapped.
        LookupError: an address lies in none of the buffers.
    """

    def __init__(self, register_file: Path, memories: list[MappedMemory], register_offset: int = 0) -> None:
        self._maps: list[mmap.mmap] = []
        self._memories: list[tuple[MappedMemory, mmap.mmap]] = []
        try:
            self._registers = memoryview(self._map(register_file, REGISTER_WINDOW, register_offset)).cast("I")
            for memory in memories:
                self._memories.append((memory, self._map(memory.path, memory.size, 0)))
        except BaseException:
            self.close()
            raise

    def _map(self, path: Path, size: int, offset: int) -> mmap.mmap:
        descriptor = os.open(path, os.O_RDWR | os.O_SYNC)
        try:
            mapped = mmap.mmap(descriptor, size, offset=offset)
        finally:
            os.close(descriptor)
        self._maps.append(mapped)
        return mapped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the files."""
        if hasattr(self, "_registers"):
            self._registers.release()
        for mapped in self._maps:
            mapped.close()
        self._maps.clear()
        self._memories.clear()

    def read32(self, offset: int) -> int:
        """Perform a 32-bit load."""
        return self._registers[offset // 4]

    def write32(self, offset: int, value: int) -> None:
        """Perform a 32-bit store."""
        self._registers[offset // 4] = value

    def _find(self, address: int, count: int) -> tuple[MappedMemory, mmap.mmap, int]:
        for memory, mapped in self._memories:
            if memory.base <= address and address + count <= memory.base + memory.size:
                return memory, mapped, address - memory.base
        raise LookupError(f"no mapped memory at {address:#010x} for {count} bytes")

    def read(self, address: int, count: int) -> bytes:
        """Read memory as the processor sees it."""
        _memory, mapped, at = self._find(address, count)
        return mapped[at : at + count]

    def write(self, address: int, data: bytes) -> None:
        """Store as the processor does."""
        _memory, mapped, at = self._find(address, len(data))
        mapped[at : at + len(data)] = data

    def flush(self, address: int, count: int) -> None:
        """Hand the buffer to the device."""
        self._sync(self._find(address, count)[0].sync_for_device)

    def invalidate(self, address: int, count: int) -> None:
        """Take the buffer back."""
        self._sync(self._find(address, count)[0].sync_for_cpu)

    @staticmethod
    def _sync(path: Path | None) -> None:
        if path is not None:
            path.write_text("1")
