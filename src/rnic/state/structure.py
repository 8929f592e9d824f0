"""Views of layouts with ``ctypes`` attributes: C speed without extension code.

A field of up to eight bytes becomes an attribute of the same name. A value that is too large is truncated to its field,
as in a register store; other bits are unchanged. Reserved bits, which no field covers, keep their value.
"""

from __future__ import annotations

import ctypes
from itertools import groupby
from typing import Any, Final

from rnic.spec.layout import Field, Layout
from rnic.state.arena import Arena

_UNITS: Final = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
_HALVES: Final = ("hi", "lo")
"""Suffixes of the halves of a 16-byte field, in the order of a big-endian layout."""


def structure(layout: Layout) -> list[Any]:
    """Return ``_fields_`` of a packed ``ctypes`` structure with the byte order of ``layout``.

    A 16-byte field of a big-endian layout becomes two of 8, ``_NAME_hi`` and ``_NAME_lo``; :func:`double` joins them.
    """
    out: list[Any] = []
    at = 0
    for byte, group in groupby(sorted(layout.fields, key=lambda field: field.byte), key=lambda field: field.byte):
        fields = list(group)
        if byte > at:
            out.append((f"_reserved_{at:x}", ctypes.c_uint8 * (byte - at)))
        at = byte + fields[0].unit
        if fields[0].unit == 16:
            out += [(f"_{fields[0].name}_{half}", ctypes.c_uint64) for half in _HALVES]
        elif fields[0].width == fields[0].unit * 8:
            out.append((fields[0].name, _UNITS[fields[0].unit]))
        else:
            out += _bit_fields(layout, fields)
    if layout.size > at:
        out.append((f"_reserved_{at:x}", ctypes.c_uint8 * (layout.size - at)))
    return out


def _bit_fields(layout: Layout, fields: list[Field]) -> list[Any]:
    """Return the bit fields of one unit of memory that several fields share, with gaps filled."""
    unit = fields[0].unit
    places: list[tuple[str, int, int]] = []
    low = 0
    for field in sorted(fields, key=lambda field: field.lsb):
        if field.lsb > low:
            places.append((f"_reserved_{field.byte:x}_{low}", low, field.lsb - low))
        places.append((field.name, field.lsb, field.width))
        low = field.msb + 1
    if low < unit * 8:
        places.append((f"_reserved_{fields[0].byte:x}_{low}", low, unit * 8 - low))
    if layout.endian == "big":
        places.reverse()
    return [(name, _UNITS[unit], width) for name, _, width in places]


def double(name: str, doc: str) -> property:
    """Return the 16-byte field of a big-endian layout that :func:`structure` has split."""
    high, low = (f"_{name}_{half}" for half in _HALVES)

    def get(self: Any) -> int:
        return int(getattr(self, high)) << 64 | int(getattr(self, low))

    def put(self: Any, value: int) -> None:
        setattr(self, high, value >> 64 & 0xFFFF_FFFF_FFFF_FFFF)
        setattr(self, low, value & 0xFFFF_FFFF_FFFF_FFFF)

    return property(get, put, doc=doc)


class Ground:
    """Memory of an arena, for structures that overlay it; they keep this object, and thus the memory, alive.

    The arena cannot be closed or moved while it lives.
    """

    __slots__ = ("_pin", "address", "arena")

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._pin = ctypes.c_char.from_buffer(arena.memory)
        self.address = ctypes.addressof(self._pin)
