"""``bth_build``: build a packet, from BTH to pad, from a record and a payload, as :func:`rnic.wire.packet.build`."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import keep_mask, lane_bits, unreset
from rnic.gateware.roce.streams import HEADER, HEADER_BYTES, ROWS, SHAPES, beat, places

PAD_BITS = 2


class BthBuild(wiring.Component):
    """``headers``: one record per packet; the pad count is derived from ``payload_bytes``. ``payload``: the beats of
    that many bytes. ``beats`` begin with the BTH and end before the ICRC."""

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                "headers": In(stream.Signature(HEADER)),
                "payload": In(stream.Signature(beat(width))),
                "beats": Out(stream.Signature(beat(width))),
            }
        )
        self.width = width

    def elaborate(self, platform: object) -> Module:
        """Send beats of headers only, then payload shifted up behind them, then the rest."""
        m = Module()
        width, lanes = self.width, self.width // 8
        record, given, out = self.headers, self.payload, self.beats
        header_beats = -(-HEADER_BYTES // lanes)
        lanes_of = Signal(header_beats * width)  # all headers in byte lanes
        header_bytes = Signal(range(HEADER_BYTES + 1))
        with m.Switch(record.payload.opcode):
            for size in sorted({row.header_bytes for row in ROWS.values()}):
                with m.Case(*(row.opcode for row in ROWS.values() if row.header_bytes == size)):
                    m.d.comb += header_bytes.eq(size)
        alone, shift = Signal(range(header_beats + 1)), Signal(range(lanes))
        m.d.comb += [alone.eq(header_bytes // lanes), shift.eq(header_bytes % lanes)]
        pad = Signal(PAD_BITS)
        m.d.comb += pad.eq(-record.payload.payload_bytes)
        self._headers(m, record.payload, pad, lanes_of)
        empty = record.payload.payload_bytes == 0

        place, tail = Signal(range(header_beats + 1)), Signal()
        # end of a payload beat, with which the next beat begins
        carried, left = unreset(width), unreset(range(lanes + 1))
        begun = Signal()
        part = Signal(width)  # end of the headers, before the payload in its first beat
        with m.Switch(place):
            for at in range(header_beats):
                with m.Case(at):
                    m.d.comb += part.eq(lanes_of[at * width : (at + 1) * width])
        whole_header = record.valid & (place < alone)
        body = record.valid & (place == alone) & ~tail & ~empty
        rest = record.valid & (place == alone) & ~tail & empty  # headers that do not fill a beat, without payload
        clean, keep, keep_part = Signal(width), Signal(lanes), Signal(lanes)
        m.d.comb += [
            keep.eq(keep_mask(given.payload.count, lanes)),
            keep_part.eq(keep_mask(shift, lanes)),
            clean.eq(given.payload.data & _wide(keep)),
        ]
        front, joined, over = Signal(width), Signal(width), Signal(width)
        m.d.comb += front.eq(Mux(begun, carried, part))
        with m.Switch(shift):
            for by in sorted({row.header_bytes % lanes for row in ROWS.values()}):
                with m.Case(by):
                    m.d.comb += [
                        joined.eq(Cat(front[: by * 8], clean[: width - by * 8])),
                        over.eq(Cat(clean[width - by * 8 :], Const(0, width - by * 8)) if by else 0),
                    ]
        total = Signal(range(2 * lanes + 4))  # end position of the last payload beat, and pad
        m.d.comb += total.eq(shift + given.payload.count + pad)
        spills = total > lanes
        moved = Signal()
        m.d.comb += moved.eq(out.valid & out.ready)
        with m.If(whole_header):
            m.d.comb += [
                out.valid.eq(1),
                out.payload.data.eq(part),
                out.payload.count.eq(lanes),
                out.payload.last.eq(empty & (place + 1 == alone) & (shift == 0)),
            ]
        with m.Elif(rest):
            m.d.comb += [
                out.valid.eq(1),
                out.payload.data.eq(part & _wide(keep_part)),
                out.payload.count.eq(shift),
                out.payload.last.eq(1),
            ]
        with m.Elif(tail):
            m.d.comb += [
                out.valid.eq(1),
                out.payload.data.eq(carried),
                out.payload.count.eq(left),
                out.payload.last.eq(1),
            ]
        with m.Elif(body):
            m.d.comb += [
                out.valid.eq(given.valid),
                given.ready.eq(out.ready),
                out.payload.data.eq(joined),
                out.payload.count.eq(Mux(given.payload.last & ~spills, total, lanes)),
                out.payload.last.eq(given.payload.last & ~spills),
            ]
        m.d.comb += record.ready.eq(moved & out.payload.last)
        with m.If(moved):
            with m.If(out.payload.last):
                m.d.sync += [place.eq(0), tail.eq(0), begun.eq(0)]
            with m.Elif(whole_header):
                m.d.sync += place.eq(place + 1)
            with m.Else():
                m.d.sync += [
                    begun.eq(1),
                    carried.eq(over),
                    left.eq(total - lanes),
                    tail.eq(given.payload.last),
                ]
        return m

    @staticmethod
    def _headers(m: Module, record: Any, pad: Value, lanes_of: Value) -> None:
        with m.Switch(record.opcode):
            for layouts, rows in SHAPES.items():
                bits: list[Value] = [Const(0, 1)] * len(lanes_of)
                for layout, at in places(layouts):
                    for field in layout.fields:
                        value = pad if field.name == "pad" else record[field.name]
                        for index, place in enumerate(lane_bits(layout, field.name, at)):
                            bits[place] = value[index]
                with m.Case(*(row.opcode for row in rows)):
                    m.d.comb += lanes_of.eq(Cat(*bits))


def _wide(keep: Signal) -> Value:
    """Return a bit mask from a lane mask."""
    return Cat(*(lane.replicate(8) for lane in keep))
