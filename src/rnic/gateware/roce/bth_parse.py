"""``bth_parse``: parse a packet, starting with its BTH, as :func:`rnic.wire.packet.parse` does.

The header record is output at the end of the packet, when it is known to be valid. The payload is shifted to lane 0 and
output as it arrives, without pad and ICRC; a dropped packet has none.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import unpack, unreset
from rnic.gateware.roce.streams import DROPS, HEADER, HEADER_BYTES, LENGTH_BITS, ROWS, SHAPES, beat, field_of
from rnic.spec.drops import DropReason
from rnic.spec.limits import BTH_BYTES, ICRC_BYTES
from rnic.wire.atomiceth import AtomicEth
from rnic.wire.bth import BTH

ATOMIC_BYTES = 8
CODE = {reason: code for code, reason in enumerate(DROPS)}
TRIM_BITS = 3
"""Width of the count of bytes after a payload: at most three of pad and four of ICRC."""


class BthParse(wiring.Component):
    """``beats`` begin with the BTH and end with the ICRC. ``headers``: one record per packet; ``payload``: the beats of
    its ``payload_bytes`` bytes."""

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                "beats": In(stream.Signature(beat(width))),
                "headers": Out(stream.Signature(HEADER)),
                "payload": Out(stream.Signature(beat(width))),
            }
        )
        self.width = width

    def elaborate(self, platform: object) -> Module:
        """Store the headers, shift the bytes after them down, and hold back one word until the end is known."""
        m = Module()
        width, lanes = self.width, self.width // 8
        given, out = self.beats, self.payload
        came = given.payload
        header_beats = -(-HEADER_BYTES // lanes)

        # ---- headers: the opcode's row is looked up with the first beat, and stored
        place, taken = Signal(range(header_beats + 1)), Signal()
        kept = unreset(header_beats * width)
        length = Signal(LENGTH_BITS)
        opcode, header_bytes = Signal(8), Signal(range(HEADER_BYTES + 1))
        carries, known = Signal(), Signal()
        first = place == 0
        kept_first = unreset(32)
        begin = Signal(32)  # the first word of the packet
        flush, ended = Signal(), Signal()  # a last word, then the packet's record, is pending
        m.d.comb += [
            begin.eq(Mux(first & ~flush & ~ended, came.data[:32], kept_first)),
            opcode.eq(unpack(begin, BTH, "opcode")),
        ]
        pad, tver = unpack(begin, BTH, "pad"), unpack(begin, BTH, "tver")
        with m.Switch(opcode):
            for size, carried in sorted({(row.header_bytes, row.payload) for row in ROWS.values()}):
                same = [row.opcode for row in ROWS.values() if (row.header_bytes, row.payload) == (size, carried)]
                with m.Case(*same):
                    m.d.comb += [header_bytes.eq(size), carries.eq(carried), known.eq(1)]
            with m.Default():
                m.d.comb += header_bytes.eq(BTH_BYTES)
        forwards = carries & (tver == 0)

        # ---- bytes after the headers, shifted to lane 0: the end of one beat and the beginning of the next
        skip, shift = Signal(range(header_beats + 1)), Signal(range(lanes))
        m.d.comb += [skip.eq(header_bytes // lanes), shift.eq(header_bytes % lanes)]
        shifts = sorted({row.header_bytes % lanes for row in ROWS.values()})
        before = unreset(width)
        left = Signal(range(lanes + 1))  # bytes of the last beat not yet in a word
        word, word_count = Signal(width), Signal(range(lanes + 1))
        word_valid, word_last, word_taken = Signal(), Signal(), Signal()
        beyond = came.count > shift
        joins = (place > skip) & ~first
        with m.Switch(shift):
            for by in shifts:
                with m.Case(by):
                    m.d.comb += word.eq(Cat(before[by * 8 :], came.data[: by * 8]))
        may = ~ended & ~flush
        m.d.comb += [
            word_valid.eq(flush | (given.valid & may & joins & forwards)),
            word_last.eq(flush | (came.last & ~beyond)),
            word_count.eq(Mux(flush, left, Mux(word_last, lanes - shift + came.count, lanes))),
            given.ready.eq(may & (word_taken | ~(joins & forwards))),
            taken.eq(given.valid & given.ready),
        ]
        with m.If(taken):
            m.d.sync += [
                before.eq(came.data),
                length.eq(Mux(first, 0, length) + came.count),
                kept_first.eq(begin),
                place.eq(Mux(came.last, 0, Mux(place == header_beats, header_beats, place + 1))),
            ]
            for at in range(header_beats):
                with m.If(place == at):
                    m.d.sync += kept[at * width : (at + 1) * width].eq(came.data)
            with m.If(came.last):
                with m.If(forwards & (place >= skip) & beyond):
                    m.d.sync += [flush.eq(1), left.eq(came.count - shift)]
                with m.Else():
                    m.d.sync += ended.eq(1)
        with m.If(flush & word_taken):
            m.d.sync += [flush.eq(0), ended.eq(1)]

        # ---- one word is held back: the last one may be only pad and ICRC
        held, held_count, held_valid = unreset(width), Signal(range(lanes + 1)), Signal()
        held_last = Signal()  # and it is the last of its packet, truncated to the payload
        trim = Signal(TRIM_BITS)
        rest = Signal(range(-8, lanes + 1))
        m.d.comb += [trim.eq(ICRC_BYTES + pad), rest.eq(word_count - trim)]
        passes = Signal()  # the held word is output
        m.d.comb += [
            out.payload.data.eq(held),
            out.payload.count.eq(held_count),
            out.payload.last.eq(held_last),
            out.valid.eq(held_valid & (held_last | word_valid)),
            passes.eq(out.valid & out.ready),
            word_taken.eq(word_valid & ~(held_valid & held_last) & (~held_valid | out.ready)),
        ]
        only_end = word_last & (rest <= 0)
        with m.If(held_valid & ~held_last & word_valid & only_end):
            # the held word is the last, and this one follows it
            m.d.comb += [out.payload.count.eq(lanes + rest), out.payload.last.eq(1)]
        with m.If(passes):
            m.d.sync += held_valid.eq(0)
        with m.If(word_taken):
            m.d.sync += [
                held.eq(word),
                held_count.eq(Mux(word_last, rest, lanes)),
                held_valid.eq(~only_end),
                held_last.eq(word_last),
            ]

        # ---- the record
        headers = self.headers
        record = headers.payload
        behind = Signal(range(-64, 1 << LENGTH_BITS))
        m.d.comb += [behind.eq(length - trim - header_bytes), headers.valid.eq(ended)]
        with m.If(length < BTH_BYTES + ICRC_BYTES):
            m.d.comb += record.drop.eq(CODE[DropReason.TOO_SHORT])
        with m.Elif(tver != 0):
            m.d.comb += record.drop.eq(CODE[DropReason.BAD_TVER])
        with m.Elif(~known):
            m.d.comb += record.drop.eq(CODE[DropReason.BAD_OPCODE])
        with m.Elif(behind < 0):
            m.d.comb += record.drop.eq(CODE[DropReason.TOO_SHORT])
        with m.Elif(~carries & ((behind != 0) | (pad != 0))):
            m.d.comb += record.drop.eq(CODE[DropReason.BAD_LENGTH])
        with m.Else():
            m.d.comb += record.payload_bytes.eq(behind)
        self._fields(m, record, kept)
        with m.If(ended & headers.ready):
            m.d.sync += ended.eq(0)
        return m

    @staticmethod
    def _fields(m: Module, record: Any, kept: Value) -> None:
        """Return the fields of each header that the opcode has."""
        opcode = Signal(8, name="kept_opcode")
        m.d.comb += opcode.eq(unpack(kept, BTH, "opcode"))
        for field in BTH.fields:
            m.d.comb += record[field.name].eq(unpack(kept, BTH, field.name))
        with m.Switch(opcode):
            for layouts, rows in SHAPES.items():
                names = {field.name for layout in layouts for field in layout.fields}
                with m.Case(*(row.opcode for row in rows)):
                    for name in sorted(names):
                        value = field_of(kept, layouts, name)
                        assert value is not None
                        m.d.comb += record[name].eq(value)
                    if AtomicEth.layout in layouts:
                        m.d.comb += record.dma_length.eq(Const(ATOMIC_BYTES))
