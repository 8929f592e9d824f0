"""``icrc``: the invariant CRC of packets that start with the IP header, one beat of 1 to 64 bytes per cycle (Annex A17,
17.9.3).

A CRC is linear: the state after a beat is the state before, times x^(bits of the beat), plus the CRC of the beat alone.
A last beat is shifted to the end of a full one, since leading zeros do not change a state of 0. So only the state's
multiplication depends on the length; it is done in powers of 2. All matrices come from the software's CRC-32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import unreset
from rnic.gateware.roce.streams import beat, mask_of
from rnic.spec.limits import ICRC_BYTES
from rnic.wire.bth import BTH
from rnic.wire.crc import crc32
from rnic.wire.ip import IPV4_HEADER, IPV6_HEADER, UDP_HEADER

CRC_BITS: Final = 32
_ONES: Final = (1 << CRC_BITS) - 1
CRCS: Final = 8
"""Packets whose CRC is being computed or waits to be taken."""
VARIANT: Final = {
    4: ((IPV4_HEADER, ("tos", "ttl", "checksum")), (UDP_HEADER, ("checksum",)), (BTH, ("fecn", "becn", "reserved6"))),
    6: (
        (IPV6_HEADER, ("traffic_class", "flow_label", "hop_limit")),
        (UDP_HEADER, ("checksum",)),
        (BTH, ("fecn", "becn", "reserved6")),
    ),
}
"""By IP version: the headers of a packet, with the variant fields that count as ones because they may change in
transit."""


def advance(state: int, data: bytes) -> int:
    """Return the CRC state after some bytes, without the initial and final inversions."""
    return crc32(data, state ^ _ONES) ^ _ONES


SEED: Final = advance(_ONES, b"\xff" * 8)
"""The state before the IP header: after eight bytes of ones."""
RESIDUE: Final = advance(_ONES, struct.pack("<I", crc32(b"")))
"""The state after any packet and its own CRC."""


def mask(version: int) -> int:
    """Return the bits of a packet that count as ones, starting with the IP header."""
    out, at = 0, 0
    for layout, names in VARIANT[version]:
        out |= mask_of(layout, names, at)
        at += layout.size
    return out


def times(columns: Iterable[int], value: Value) -> Value:
    """Return a matrix times a bit vector: the sum of the columns whose bit is set."""
    rows = [0] * CRC_BITS  # for each bit of the result, the bits of the vector to sum
    for at, column in enumerate(columns):
        for place in range(CRC_BITS):
            rows[place] |= (column >> place & 1) << at
    return Cat(*((value & Const(row, len(value))).xor() for row in rows))


def named(m: Module, value: Value, name: str) -> Signal:
    """Return a wire for a value used more than once, since an expression is duplicated at each use."""
    wire = Signal(len(value), name=name)
    m.d.comb += wire.eq(value)
    return wire


def behind(state: Value, count: int) -> Value:
    """Return the state after ``count`` zero bytes."""
    return times((advance(1 << bit, bytes(count)) for bit in range(CRC_BITS)), state)


class Icrc(wiring.Component):
    """Takes ``beats`` of packets and outputs their CRC states in order; up to :data:`CRCS` may wait.

    ``generate``: packets have no ICRC; else they have one, and each state is :data:`RESIDUE` if the packet is intact.
    """

    def __init__(self, width: int) -> None:
        super().__init__({"beats": In(stream.Signature(beat(width))), "crc": Out(stream.Signature(CRC_BITS))})
        self.width = width

    def elaborate(self, platform: object) -> Module:
        """Mask, align to the end, reduce to 32 bits, add the state; the state of a last beat takes two more cycles."""
        m = Module()
        width, lanes = self.width, self.width // 8
        given = self.beats
        count_bits = len(given.payload.count)
        m.submodules.done = done = SyncFIFOBuffered(width=CRC_BITS, depth=CRCS)
        waiting = Signal(range(CRCS + 1))
        taken, ended = Signal(), Signal()
        m.d.comb += [
            given.ready.eq(waiting != CRCS),
            taken.eq(given.valid & given.ready),
            ended.eq(taken & given.payload.last),
            self.crc.payload.eq(done.r_data),
            self.crc.valid.eq(done.r_rdy),
            done.r_en.eq(self.crc.ready),
        ]
        m.d.sync += waiting.eq(waiting + ended - (self.crc.valid & self.crc.ready))

        # ---- fields that may change count as ones
        masks = {version: mask(version) for version in VARIANT}
        beats = -(-max(value.bit_length() for value in masks.values()) // width)
        place, first = Signal(range(beats + 1)), Signal(init=1)
        newer, is_6 = Signal(), Signal()
        ones = Signal(width)
        version = given.payload.data[4:8]
        m.d.comb += newer.eq(Mux(first, version == 6, is_6))
        with m.Switch(place):
            for at in range(beats):
                with m.Case(at):
                    old, new = (masks[each] >> at * width & (1 << width) - 1 for each in (4, 6))
                    m.d.comb += ones.eq(Mux(newer, Const(new, width), Const(old, width)))
        with m.If(taken):
            m.d.sync += [
                first.eq(given.payload.last),
                is_6.eq(newer),
                place.eq(Mux(given.payload.last, 0, Mux(place == beats, beats, place + 1))),
            ]
        masked = self._stage(m, "masked", taken, {
            "data": given.payload.data | ones, "count": given.payload.count, "last": given.payload.last, "first": first,
        })  # fmt: skip

        # ---- shift a last beat to the end
        missing = Signal(count_bits)
        m.d.comb += missing.eq(lanes - masked["count"])
        moved: Value = masked["data"]
        for bit in range(lanes.bit_length() - 1):
            further = Cat(Const(0, 8 << bit), moved[: width - (8 << bit)])
            moved = named(m, Mux(missing[bit], further, moved), f"moved_{bit}")
        aligned = self._stage(m, "aligned", masked["valid"], {
            "data": moved, "count": masked["count"], "last": masked["last"], "first": masked["first"],
        })  # fmt: skip

        # ---- CRC of the beat alone
        ones_of = [1 << bit for bit in range(8)]
        columns = [
            advance(0, bytes(lane) + bytes([one]) + bytes(lanes - lane - 1)) for lane in range(lanes) for one in ones_of
        ]
        alone = self._stage(m, "alone", aligned["valid"], {
            "crc": times(columns, aligned["data"]), "count": aligned["count"], "last": aligned["last"],
            "first": aligned["first"],
        })  # fmt: skip

        # ---- the state
        state, before = unreset(CRC_BITS), Signal(CRC_BITS)
        m.d.comb += before.eq(Mux(alone["first"], SEED, state))
        with m.If(alone["valid"]):
            m.d.sync += state.eq(behind(before, lanes) ^ alone["crc"])
        value, steps = before, alone
        ends = alone["valid"] & alone["last"]
        half = (count_bits + 1) // 2
        for name, bits in (("low", range(half)), ("high", range(half, count_bits))):
            for bit in bits:
                value = named(m, Mux(steps["count"][bit], behind(value, 1 << bit), value), f"behind_{bit}")
            steps = self._stage(m, name, ends, {"state": value, "count": steps["count"], "crc": steps["crc"]})
            value, ends = steps["state"], steps["valid"]
        m.d.comb += [done.w_data.eq(value ^ steps["crc"]), done.w_en.eq(ends)]
        return m

    @staticmethod
    def _stage(m: Module, name: str, valid: Value, values: dict[str, Value]) -> dict[str, Value]:
        """Return the registers of a stage, by name, with ``valid``."""
        out: dict[str, Value] = {"valid": Signal(name=f"{name}_valid")}
        m.d.sync += out["valid"].eq(valid)
        for each, value in values.items():
            out[each] = register = Signal(len(value), name=f"{name}_{each}", reset_less=True)
            m.d.sync += register.eq(value)
        return out


class IcrcCheck(wiring.Component):
    """Checks the ICRC of each packet of ``beats``, which begin with the IP header; outputs ``good`` in order."""

    def __init__(self, width: int) -> None:
        super().__init__({"beats": In(stream.Signature(beat(width))), "good": Out(stream.Signature(1))})
        self.width = width

    def elaborate(self, platform: object) -> Module:
        """Compare the state after the ICRC with the residue."""
        m = Module()
        m.submodules.icrc = icrc = Icrc(self.width)
        wiring.connect(m, wiring.flipped(self.beats), icrc.beats)
        m.d.comb += [
            self.good.payload.eq(icrc.crc.payload == RESIDUE),
            self.good.valid.eq(icrc.crc.valid),
            icrc.crc.ready.eq(self.good.ready),
        ]
        return m


class IcrcGenerate(wiring.Component):
    """Takes packets from IP header to pad, each a multiple of 4 bytes; ``sealed``: the packets with their ICRC."""

    DEPTH: Final = 32
    """Beats that wait for a packet's CRC: more than the CRC's latency in cycles."""

    def __init__(self, width: int) -> None:
        super().__init__({"beats": In(stream.Signature(beat(width))), "sealed": Out(stream.Signature(beat(width)))})
        self.width = width

    def elaborate(self, platform: object) -> Module:
        """Put the ICRC into the last beat, or into an additional one if that is full."""
        m = Module()
        width, lanes = self.width, self.width // 8
        given, out = self.beats, self.sealed
        m.submodules.icrc = icrc = Icrc(width)
        m.submodules.waiting = waiting = SyncFIFO(width=len(given.payload.as_value()), depth=self.DEPTH)
        head = Signal(beat(width))
        behind_it, take = Signal(), Signal()  # the beat with only the ICRC is output
        both = given.valid & waiting.w_rdy & icrc.beats.ready
        m.d.comb += [
            given.ready.eq(waiting.w_rdy & icrc.beats.ready),
            waiting.w_data.eq(given.payload),
            waiting.w_en.eq(both),
            icrc.beats.payload.eq(given.payload),
            icrc.beats.valid.eq(both),
            head.eq(waiting.r_data),
            take.eq(out.valid & out.ready),
        ]
        full = head.count == lanes
        code = ~icrc.crc.payload
        words = [
            Mux(head.count == at, code, head.data[at * 8 : (at + ICRC_BYTES) * 8]) for at in range(0, lanes, ICRC_BYTES)
        ]
        m.d.comb += [
            out.valid.eq(behind_it | (waiting.r_rdy & (~head.last | icrc.crc.valid))),
            icrc.crc.ready.eq(take & out.payload.last),
            waiting.r_en.eq(take & ~behind_it),
        ]
        with m.If(behind_it):
            m.d.comb += [out.payload.data.eq(code), out.payload.count.eq(ICRC_BYTES), out.payload.last.eq(1)]
        with m.Elif(head.last):
            m.d.comb += [
                out.payload.data.eq(Cat(*words)),
                out.payload.count.eq(Mux(full, lanes, head.count + ICRC_BYTES)),
                out.payload.last.eq(~full),
            ]
        with m.Else():
            m.d.comb += out.payload.eq(head)
        with m.If(take):
            m.d.sync += behind_it.eq(~behind_it & head.last & full)
        return m
