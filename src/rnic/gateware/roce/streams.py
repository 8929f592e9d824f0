"""Amaranth streams between the blocks, with payloads built from the tables of ``wire``."""

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
"""Beat widths with which the blocks are tested: for a small device, and for 100 Gb/s at 250 MHz."""
LENGTH_BITS: Final = 14
"""Width of a packet's length in bytes: for 4 KiB of payload with headers, and for jumbo frames."""
DROPS: Final = (None, DropReason.TOO_SHORT, DropReason.BAD_TVER, DropReason.BAD_OPCODE, DropReason.BAD_LENGTH)
"""Drop reasons, by the code in a header record; 0: the packet is valid."""
ROWS: Final = {row.opcode: row for row in OPCODES if row is not None and not row.name.startswith("XRC")} | UNSUPPORTED
"""The rows of all valid opcodes."""


@cache
def beat(width: int) -> data.StructLayout:
    """Return the layout of a beat: byte 0 is ``data[7:0]``; ``count`` bytes are valid, all of them except in the
    ``last``."""
    lanes = width // 8
    return data.StructLayout({"data": width, "count": range(lanes + 1), "last": 1})


def _shares() -> dict[tuple[Layout, ...], list[OpcodeRow]]:
    """Return the rows of opcodes, grouped by their headers after the BTH."""
    out: dict[tuple[Layout, ...], list[OpcodeRow]] = {}
    for row in ROWS.values():
        out.setdefault(tuple(header.layout for header in row.extended), []).append(row)
    return out


SHAPES: Final = _shares()
"""Opcodes, by the headers that follow the BTH."""
HEADER_BYTES: Final = max(row.header_bytes for row in ROWS.values())
"""Length of the longest header combination, with the BTH."""


def _fields() -> dict[str, int]:
    widths = {field.name: field.width for field in BTH.fields}
    for layouts in SHAPES:
        for layout in layouts:
            for field in layout.fields:
                assert widths.setdefault(field.name, field.width) == field.width, field.name
    return widths


HEADER: Final = data.StructLayout(_fields() | {"payload_bytes": LENGTH_BITS, "drop": range(len(DROPS))})
"""A packet's headers as one record, with the names of :class:`rnic.wire.packet.Packet`: fields of absent headers are 0,
and ``dma_length`` of an atomic is 8."""


def places(layouts: tuple[Layout, ...]) -> list[tuple[Layout, int]]:
    """Return the table of each header of a packet, the BTH first, with its byte offset."""
    out, at = [], 0
    for layout in (BTH, *layouts):
        out.append((layout, at))
        at += layout.size
    return out


def field_of(lanes: Value, layouts: tuple[Layout, ...], name: str) -> Value | None:
    """Return a field of headers in byte lanes; ``None`` if no header has it."""
    for layout, at in places(layouts):
        if any(field.name == name for field in layout.fields):
            return unpack(lanes, layout, name, at)
    return None


def mask_of(layout: Layout, names: tuple[str, ...], offset: int) -> int:
    """Return the bits of these fields in byte lanes, for a structure at a byte offset."""
    return sum(1 << place for name in names for place in lane_bits(layout, name, offset))


def cut(value: Value, count: int) -> Value:
    """Return a value zero-extended to ``count`` bits."""
    return Cat(value, *([0] * (count - len(value))))[:count]
