"""Ordered accesses to memory that another process or thread looks at: descriptors first, then the word that says so.

Compiled, a store releases and a load acquires. Plain Python promises no order between processes, except on
machines that keep stores in order (x86); there too each access is one aligned word of four bytes.
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
    # one store; a packed one would clear the word first, for all to see
    memoryview(buf)[offset : offset + 4].cast("I")[0] = value & 0xFFFF_FFFF


def plain_load32(buf: Words, offset: int) -> int:
    """See :data:`load32`."""
    if offset & 3 or not 0 <= offset <= len(buf) - 4:
        raise _wrong(buf, offset)
    value: int = _WORD.unpack_from(buf, offset)[0]
    return value


def plain_fence() -> None:
    """See :data:`fence`; the interpreter orders nothing, so this only stands in its place."""


_twin = compiled_twin(__name__, "rnic.mem._order")
COMPILED = _twin is not None
"""Whether the order is promised."""

store32: Callable[[Words, int, int], None] = plain_store32 if _twin is None else _twin.store32
"""``store32(buf, offset, value)``: store the low 32 bits in host order; all stores before are seen before it.

``buf`` is writable memory, a byte an element, that starts on a multiple of 4, ``offset`` a multiple of 4 within it.
Raises ``ValueError`` otherwise.
"""

load32: Callable[[Words, int], int] = plain_load32 if _twin is None else _twin.load32
"""``load32(buf, offset)``: the 32 bits there; all loads after it see at least what was stored before them."""


class _OrderedWords:
    """Words of memory, each access as :data:`load32` and :data:`store32` have it."""

    __slots__ = ("_view",)

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __getitem__(self, index: int) -> int:
        return load32(self._view, index << 2)

    def __setitem__(self, index: int, value: int) -> None:
        store32(self._view, index << 2, value)


def shared_words(view: memoryview) -> _OrderedWords | memoryview:
    """The 32-bit words of memory by index, which :data:`load32` and :data:`store32` reach by offset.

    A value has to fit 32 bits.
    """
    return view.cast("I") if _twin is None else _OrderedWords(view)


fence: Callable[[], None] = plain_fence if _twin is None else _twin.fence
"""A full barrier: no access after it comes before one that precedes it, a load before a store included."""
