"""Streams between the blocks: Amaranth's, whose payloads are made from the tables of ``wire``."""

from __future__ import annotations

from functools import cache
from typing import Final

from amaranth.hdl import Cat, Value
from amaranth.lib import data

from rnic.gateware.bits import lane_bits, unpack
from rnic.spec.drops import DropReason
from rnic.spec.layout import Layout
from rnic.wire.bth import BTH
from rnic.wire.opcode import OPCODES, UNSUPPORTED, OpcodeRow

WIDTHS: Final = (64, 512)
"""Bits of a beat that the blocks are tested with: a small part's, and 100 Gb/s at 250 MHz."""
LENGTH_BITS: Final = 14
"""Of a packet's length in bytes: a payload of 4 KiB with its headers, and jumbo frames."""
DROPS: Final = (None, DropReason.TOO_SHORT, DropReason.BAD_TVER, DropReason.BAD_OPCODE, DropReason.BAD_LENGTH)
"""Reasons of a drop, by the code in a header record; 0: the packet is right."""
ROWS: Final = {row.opcode: row for row in OPCODES if row is not None and not row.name.startswith("XRC")} | UNSUPPORTED
"""The meaning of each opcode that a packet may have."""


@cache
def beat(width: int) -> data.StructLayout:
    """Return a beat of a packet: byte 0 is ``data[7:0]``, ``count`` bytes count, all of them but in the ``last``."""
    lanes = width // 8
    return data.StructLayout({"data": width, "count": range(lanes + 1), "last": 1})


def _shares() -> dict[tuple[Layout, ...], list[OpcodeRow]]:
    """Return the rows of opcodes by the tables of the headers behind the BTH."""
    out: dict[tuple[Layout, ...], list[OpcodeRow]] = {}
    for row in ROWS.values():
        out.setdefault(tuple(header.layout for header in row.extended), []).append(row)
    return out


SHAPES: Final = _shares()
"""Opcodes by the headers that follow their BTH."""
HEADER_BYTES: Final = max(row.header_bytes for row in ROWS.values())
"""The longest of all headers, with the BTH."""


def _fields() -> dict[str, int]:
    widths = {field.name: field.width for field in BTH.fields}
    for layouts in SHAPES:
        for layout in layouts:
            for field in layout.fields:
                assert widths.setdefault(field.name, field.width) == field.width, field.name
    return widths


HEADER: Final = data.StructLayout(_fields() | {"payload_bytes": LENGTH_BITS, "drop": range(len(DROPS))})
"""A packet's headers as one record, under the names of :class:`rnic.wire.packet.Packet`: a field of a header that the
packet lacks is 0, and ``dma_length`` of an atomic is 8."""


def places(layouts: tuple[Layout, ...]) -> list[tuple[Layout, int]]:
    """Return each table of a packet's headers, the BTH's first, with the byte it begins at."""
    out, at = [], 0
    for layout in (BTH, *layouts):
        out.append((layout, at))
        at += layout.size
    return out


def field_of(lanes: Value, layouts: tuple[Layout, ...], name: str) -> Value | None:
    """Return a field of headers in byte lanes, ``None`` if none of them has it."""
    for layout, at in places(layouts):
        if any(field.name == name for field in layout.fields):
            return unpack(lanes, layout, name, at)
    return None


def mask_of(layout: Layout, names: tuple[str, ...], offset: int) -> int:
    """Return the bits of these fields, in byte lanes, of a structure that begins at a byte."""
    return sum(1 << place for name in names for place in lane_bits(layout, name, offset))


def cut(value: Value, count: int) -> Value:
    """Return a value with zeros above it, ``count`` bits in all."""
    return Cat(value, *([0] * (count - len(value))))[:count]
