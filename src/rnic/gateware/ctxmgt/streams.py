"""Interfaces between CtxMgt's modules and to its neighbors, and vectors built from the layout tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amaranth.hdl import Cat, Const, Value, ValueLike
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.context import messages as m
from rnic.context.machines import MACHINES
from rnic.spec.layout import Layout

HEADER_BITS: Final = m.CEU_HEADER.size * 8
BEAT_BYTES: Final = 32
BEAT_BITS: Final = BEAT_BYTES * 8
EXTRACT_WORDS: Final = 12
EXTRACT_BITS: Final = EXTRACT_WORDS * 32
PARSER_REQUEST_BITS: Final = 35
READ_REQUEST_BITS: Final = 108
FAILED_BIT: Final = 127
"""Error bit of a DMA response's header: host memory failed. The document has zero there."""
OK, REFUSED, DMA_ERROR = range(3)
"""The CEU's statuses, as :class:`~rnic.context.ctxmgt.Status` has them."""

STATES: Final = {name: tuple(dict.fromkeys(state for state, _ in table)) for name, table in MACHINES.items()}
"""States of each machine; a state's code is its index."""


class ContextStream(wiring.Signature):
    """AXI4-Stream as between CEU, CtxMgt and DMA engine: the header in ``tuser``, data in ``tdata``.

    The first byte of a context, or of written data, is the highest of ``tdata``; a partial beat is padded with zeros
    below. The first of two MAP_ICM chunks in a beat is the low half. ``keep`` adds ``tkeep``, one bit for a whole beat,
    which 002 does not have: it is low in the single beat of a request without payload.
    """

    def __init__(self, keep: bool = False) -> None:
        members = {
            "tuser": Out(HEADER_BITS),
            "tdata": Out(BEAT_BITS),
            "tlast": Out(1),
            "tvalid": Out(1),
            "tready": In(1),
        }
        super().__init__(members | ({"tkeep": Out(1)} if keep else {}))


def place(layout: Layout, name: str) -> slice:
    """Return the bits of a field in its structure taken as one number, high byte first where the structure is
    big-endian."""
    field = layout[name]
    after = field.byte if layout.endian == "little" else layout.size - field.byte - field.unit
    return slice(after * 8 + field.lsb, after * 8 + field.msb + 1)


def get(vector: Value, layout: Layout, name: str) -> Value:
    """Return a field of a structure."""
    return vector[place(layout, name)]


def vector(layout: Layout, values: Mapping[str, ValueLike]) -> Value:
    """Return the structure with these fields; all others are zero, and a value is cut to its field."""
    bits: list[Value] = [Const(0, 1)] * (layout.size * 8)
    for name, value in values.items():
        wide, where = Value.cast(value), place(layout, name)
        for index, bit in enumerate(range(where.start, where.stop)):
            bits[bit] = wide[index] if index < len(wide) else Const(0, 1)
    return Cat(*bits)
