"""Big-endian structures in byte lanes: packs and reads the wire's layout tables as gateware."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth.hdl import Cat, Const, Value, ValueLike

from rnic.spec.layout import Layout


def lane_bits(layout: Layout, name: str, offset: int = 0) -> list[int]:
    """Where field ``name`` lies in byte lanes, lane 0 lowest, least significant bit first.

    ``offset``: byte lane of the structure's first byte.
    """
    field = layout[name]
    out = []
    for bit in range(field.lsb, field.msb + 1):
        byte = bit // 8 if layout.endian == "little" else field.unit - 1 - bit // 8
        out.append((offset + field.byte + byte) * 8 + bit % 8)
    return out


def pack(layout: Layout, values: Mapping[str, ValueLike]) -> Value:
    """The structure as byte lanes; fields not named are zero."""
    bits: list[Value] = [Const(0, 1)] * (layout.size * 8)
    for name, value in values.items():
        wide = Value.cast(value)
        for index, place in enumerate(lane_bits(layout, name)):
            bits[place] = wide[index] if index < len(wide) else Const(0, 1)
    return Cat(*bits)


def unpack(lanes: Value, layout: Layout, name: str, offset: int = 0) -> Value:
    """Field ``name`` of the structure that starts at byte lane ``offset``."""
    return Cat(*(lanes[place] for place in lane_bits(layout, name, offset)))


def keep_count(keep: Value) -> Value:
    """Bytes of a beat whose valid lanes are the low ones: the place of the only step from 1 to 0."""
    lanes = len(keep)
    steps = [keep[lane] & ~keep[lane + 1] if lane + 1 < lanes else keep[lane] for lane in range(lanes)]
    bits = lanes.bit_length()
    return Cat(*(Cat(*(step for lane, step in enumerate(steps, 1) if lane >> bit & 1)).any() for bit in range(bits)))


def keep_mask(count: Value, lanes: int) -> Value:
    """``tkeep`` of a beat whose ``count`` low lanes are valid; more than ``lanes`` means all."""
    return Cat(*(count > lane for lane in range(lanes)))
