"""Store-and-forward FIFO of beats in block RAM, for both directions of the MAC: its reader sees only whole packets."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import keep_marks, keep_mask, marked_lanes, register_at
from rnic.gateware.interfaces import AxiStream
from rnic.gateware.params import GROUP_LANES


class PacketFifo(wiring.Component):
    """A beat is written if ``push`` and ``room`` are high. ``commit`` makes all beats so far visible to the reader,
    ``rollback`` drops those since the last commit. A committed packet is output without a gap.

    ``clear`` drops everything. With ``keep_begun``, a packet whose first beat was output is still completed, since a
    MAC cannot abort a frame. With ``late``, a beat arrives a cycle after ``room`` was sampled, and is written
    regardless of ``room`` in its own cycle.
    """

    def __init__(self, width: int, depth: int, keep_begun: bool = False, late: bool = False) -> None:
        super().__init__(
            {
                "data": In(width),
                "count": In(range(width // 8 + 1)),
                "last": In(1),
                "push": In(1),
                "room": Out(1, init=1),
                "commit": In(1),
                "rollback": In(1),
                "clear": In(1),
                "empty": Out(1),
                "m_axis": Out(AxiStream(width)),
                "m_count": Out(range(width // 8 + 1)),
                "begun": Out(1),
            }
        )
        self.width = width
        self.depth = depth
        self.keep_begun = keep_begun
        self.late = late

    def elaborate(self, platform: object) -> Module:
        """Build pointers one bit longer than an address, which tell full from empty. Room is registered, a cycle late:
        the last beat of the memory stays free unless beats arrive back to back."""
        m = Module()
        out, lanes = self.m_axis, self.width // 8
        # for many lanes the memory also holds marks, since decoding `tkeep` from the count takes too long
        marks = Cat(*keep_marks(self.count, lanes)) if lanes > GROUP_LANES else Cat()
        size = len(self.data) + len(self.count) + len(marks) + 1
        m.submodules.beats = beats = Memory(shape=size, depth=self.depth, init=[])
        write, read = beats.write_port(), beats.read_port()
        bits = (self.depth - 1).bit_length() + 1
        head, tail, committed = Signal(bits), Signal(bits), Signal(bits)
        next_tail = Signal(bits)
        m.d.sync += self.room.eq((tail - head)[:bits] < self.depth - 1 - self.late)
        m.d.comb += [
            write.addr.eq(tail),
            write.data.eq(Cat(self.data, self.count, marks, self.last)),
            write.en.eq(self.push if self.late else self.push & self.room),
            next_tail.eq(tail + write.en),
        ]
        m.d.sync += tail.eq(Mux(self.rollback, committed, next_tail))
        with m.If(self.commit):
            m.d.sync += committed.eq(next_tail)

        # the memory's output is slow, so it is registered
        read_valid = Signal()
        load, show = Signal(), Signal()
        # a packet that outlives a clear ends at its own last beat
        ending, end = Signal(), Signal(bits)
        inside = Signal()  # inside a packet: a beat was taken, but not the last
        stop = Signal()
        many = lanes > GROUP_LANES
        waits = Signal()  # there is a beat to load
        hollow = Signal(init=1)  # a copy of not `read_valid` near many lanes
        if many:  # registered, since `load` drives all lanes: a commit becomes visible a cycle late
            m.d.sync += waits.eq(Mux(load, (head + 1)[:bits] != committed, head != committed))
        m.d.comb += [
            stop.eq(ending & out.tvalid & out.tlast),
            show.eq((~out.tvalid | out.tready) & read_valid & ~stop),
            load.eq((~read_valid | ~out.tvalid | out.tready) & (waits if many else head != committed) & ~stop),
            read.addr.eq(head),
            read.en.eq((hollow | ~out.tvalid | out.tready) & waits & ~stop if many else load),
            self.begun.eq(out.tvalid | inside),
            self.empty.eq((head == committed) & ~read_valid & ~out.tvalid),
        ]
        with m.If(out.tvalid & out.tready):
            m.d.sync += inside.eq(~out.tlast)
        with m.If(load):
            m.d.sync += [head.eq(head + 1), read_valid.eq(1)]
            if many:
                m.d.sync += hollow.eq(0)
        with m.Elif(show):
            m.d.sync += read_valid.eq(0)
            if many:
                m.d.sync += hollow.eq(1)
        shown = [register_at(m, port) for port in (out.tdata, out.tkeep, out.tlast, self.m_count)]
        data, beside, last = read.data[: self.width], read.data[self.width : -1], read.data[-1]
        count = beside[: len(self.count)]
        keep = marked_lanes(list(beside[len(count) :]), lanes) if len(marks) else keep_mask(count, lanes)
        beat = [held.eq(new) for held, new in zip(shown, (data, keep, last, count), strict=True)]
        if many:
            with m.If((~out.tvalid | out.tready) & ~hollow & ~stop):
                m.d.sync += beat
        with m.If(show):
            m.d.sync += out.tvalid.eq(1)
            if not many:
                m.d.sync += beat
        with m.Elif(out.tready):
            m.d.sync += out.tvalid.eq(0)
        with m.If(stop):
            m.d.sync += [head.eq(end), read_valid.eq(0), ending.eq(0)]
            if many:
                m.d.sync += [waits.eq(0), hollow.eq(1)]
        with m.If(self.clear):
            if self.keep_begun:
                more = Mux(out.tvalid, ~out.tlast, inside)  # beyond the output beat
                m.d.sync += [tail.eq(committed), end.eq(committed)]
                with m.If(~ending & more):
                    m.d.sync += ending.eq(1)
                with m.Elif(~ending):
                    if many:  # keep the clear signal out of `load` and `show`, which drive all lanes
                        m.d.sync += [waits.eq(0), hollow.eq(1), out.tvalid.eq(out.tvalid & ~out.tready)]
                    else:
                        m.d.comb += [load.eq(0), show.eq(0)]
                    m.d.sync += [head.eq(committed), read_valid.eq(0)]
            else:
                m.d.sync += [head.eq(0), tail.eq(0), committed.eq(0)]
                m.d.sync += [read_valid.eq(0), out.tvalid.eq(0), inside.eq(0)]
                if many:
                    m.d.sync += [waits.eq(0), hollow.eq(1)]
        return m
