"""Ordered accesses to shared memory: publish descriptors first, then the word that announces them.

The compiled twin has release stores and acquire loads. Plain Python orders accesses between processes only on machines
with total store order (x86); there, too, each access is one aligned 32-bit word.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

from rnic.spec.twins import compiled_twin

Words = memoryview | mmap.mmap
"""Memory that holds shared words."""

_WORD = struct.Struct("=I")


def _wrong(buf: Words, offset: int) -> ValueError:
    return ValueError(f"offset={offset}: a multiple of 4 within {len(buf)} bytes")


def plain_store32(buf: Words, offset: int, value: int) -> None:
    """See :data:`store32`."""
    if offset & 3 or not 0 <= offset <= len(buf) - 4:
        raise _wrong(buf, offset)
    # a single store; struct.pack_into would clear the word first, which other processes can see
    memoryview(buf)[offset : offset + 4].cast("I")[0] = value & 0xFFFF_FFFF


def plain_load32(buf: Words, offset: int) -> int:
    """See :data:`load32`."""
    if offset & 3 or not 0 <= offset <= len(buf) - 4:
        raise _wrong(buf, offset)
    value: int = _WORD.unpack_from(buf, offset)[0]
    return value


def plain_fence() -> None:
    """See :data:`fence`; a placeholder, since plain Python has no barrier."""


_twin = compiled_twin(__name__, "rnic.mem._order")
COMPILED = _twin is not None
"""True if ordering is guaranteed on every machine."""

store32: Callable[[Words, int, int], None] = plain_store32 if _twin is None else _twin.store32
"""``store32(buf, offset, value)``: store the low 32 bits in host order, with release semantics.

``buf`` is writable memory with byte elements, aligned to 4; ``offset`` is a multiple of 4 within it.
Raises ``ValueError`` otherwise.
"""

load32: Callable[[Words, int], int] = plain_load32 if _twin is None else _twin.load32
"""``load32(buf, offset)``: load 32 bits in host order, with acquire semantics."""


class _OrderedWords:
    """Words of memory, accessed with :data:`load32` and :data:`store32`."""

    __slots__ = ("_view",)

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __getitem__(self, index: int) -> int:
        return load32(self._view, index << 2)

    def __setitem__(self, index: int, value: int) -> None:
        store32(self._view, index << 2, value)


def shared_words(view: memoryview) -> _OrderedWords | memoryview:
    """Return memory as a sequence of 32-bit words, accessed as by :data:`load32` and :data:`store32`.

    Values must fit in 32 bits.
    """
    return view.cast("I") if _twin is None else _OrderedWords(view)


fence: Callable[[], None] = plain_fence if _twin is None else _twin.fence
"""A full barrier, which also orders an earlier store before a later load."""
