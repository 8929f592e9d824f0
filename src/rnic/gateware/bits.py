"""Pack and unpack the big-endian structures of the layout tables in byte lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value, ValueLike

from rnic.gateware.params import GROUP_LANES
from rnic.spec.layout import Layout

GROUP_BITS = (GROUP_LANES - 1).bit_length()


def unreset(shape: Any, **options: Any) -> Any:
    """Return a data register without reset; a separate valid bit has one.

    A reset of all registers would use routing resources in every slice of an FPGA.
    """
    return Signal(shape, reset_less=True, src_loc_at=1, **options)


def register_at(m: Module, port: Any) -> Any:
    """Return such a register, connected to a port."""
    register = Signal.like(port, name=f"{port.name}_held", reset_less=True)
    m.d.comb += port.eq(register)
    return register


def word_at(m: Module, place: Value, words: Mapping[int, Value]) -> Value:
    """Return the word at ``place`` of the previous cycle, or 0, from a two-level multiplexer of sixteen inputs."""
    low, high = place[:4], unreset(len(place) - 4)
    m.d.sync += high.eq(place[4:])
    word = Signal(32)
    for group in sorted({at >> 4 for at in words}):
        seen, kept = Signal(32), unreset(32)
        with m.Switch(low):
            for at, value in words.items():
                if at >> 4 == group:
                    with m.Case(at & 15):
                        m.d.comb += seen.eq(value)
        m.d.sync += kept.eq(seen)
        with m.If(high == group):
            m.d.comb += word.eq(kept)
    return word


def lane_bits(layout: Layout, name: str, offset: int = 0) -> list[int]:
    """Return the bit positions of field ``name`` in byte lanes, lane 0 lowest, least significant bit first.

    ``offset``: byte lane of the structure's first byte.
    """
    field = layout[name]
    out = []
    for bit in range(field.lsb, field.msb + 1):
        byte = bit // 8 if layout.endian == "little" else field.unit - 1 - bit // 8
        out.append((offset + field.byte + byte) * 8 + bit % 8)
    return out


def pack(layout: Layout, values: Mapping[str, ValueLike]) -> Value:
    """Return the structure as byte lanes; fields not named are zero."""
    bits: list[Value] = [Const(0, 1)] * (layout.size * 8)
    for name, value in values.items():
        wide = Value.cast(value)
        for index, place in enumerate(lane_bits(layout, name)):
            bits[place] = wide[index] if index < len(wide) else Const(0, 1)
    return Cat(*bits)


def unpack(lanes: Value, layout: Layout, name: str, offset: int = 0) -> Value:
    """Return field ``name`` of the structure that starts at byte lane ``offset``."""
    return Cat(*(lanes[place] for place in lane_bits(layout, name, offset)))


def keep_count(keep: Value) -> Value:
    """Return the byte count of a beat whose valid lanes are the low ones: the position of the step from 1 to 0.

    With many lanes, each bit of the count is set in every second run of counts, so the lanes at the ends of runs
    suffice.
    """
    lanes = len(keep)
    if lanes > GROUP_LANES:
        least = [Const(1, 1), *keep, *[Const(0, 1)] * lanes]  # this many bytes or more
        runs = [range(1 << bit, lanes + 1, 2 << bit) for bit in range(lanes.bit_length())]
        return Cat(*(Cat(*(least[at] & ~least[at + run.start] for at in run)).any() for run in runs))
    steps = [keep[lane] & ~keep[lane + 1] if lane + 1 < lanes else keep[lane] for lane in range(lanes)]
    bits = lanes.bit_length()
    return Cat(*(Cat(*(step for lane, step in enumerate(steps, 1) if lane >> bit & 1)).any() for bit in range(bits)))


def keep_mask(count: Value, lanes: int) -> Value:
    """Return ``tkeep`` of a beat whose ``count`` low lanes are valid; more than ``lanes`` means all."""
    if lanes > GROUP_LANES:
        return marked_lanes(keep_marks(count, lanes), lanes)
    return Cat(*(count > lane for lane in range(lanes)))


def keep_marks(count: Value, lanes: int) -> list[Value]:
    """Return, for many lanes, the full groups and the lanes of the next group: the first stage toward ``tkeep``."""
    groups, within = count[GROUP_BITS:], count[:GROUP_BITS]
    return [groups > at for at in range(lanes // GROUP_LANES)] + [within > at for at in range(GROUP_LANES - 1)]


def marked_lanes(marks: Sequence[Value], lanes: int) -> Value:
    """Return ``tkeep`` from :func:`keep_marks`."""
    groups = lanes // GROUP_LANES
    full, within = [Const(1, 1), *marks[:groups]], [*marks[groups:], Const(0, 1)]
    return Cat(*(full[group + 1] | (full[group] & lane) for group in range(groups) for lane in within))


def words_of(lanes: Value) -> list[Value]:
    """Return the big-endian words of 16 bits in these byte lanes."""
    return [Cat(lanes[at + 8 : at + 16], lanes[at : at + 8]) for at in range(0, len(lanes), 16)]


def sum_in_two_steps(m: Module, words: list[Value], when: Value | None = None) -> Value:
    """Return the sum of the words in two stages: groups of three were summed in the previous cycle, or in the last one
    with ``when`` high."""
    parts = []
    for at in range(0, len(words), 3):
        part = unreset(18)
        with m.If(when) if when is not None else nullcontext():
            m.d.sync += part.eq(sum(words[at : at + 3]))
        parts.append(part)
    return Value.cast(sum(parts))
