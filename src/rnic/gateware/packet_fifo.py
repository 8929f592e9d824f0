"""A FIFO of beats in block RAM whose reader sees only whole packets: store and forward, for both ends of the MAC."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import keep_marks, keep_mask, marked_lanes, register_at
from rnic.gateware.interfaces import AxiStream
from rnic.gateware.params import GROUP_LANES


class PacketFifo(wiring.Component):
    """A beat is written where ``push`` and ``room``. ``commit`` shows all beats so far to the reader, ``rollback``
    forgets those since the last commit. A packet that was shown goes out without a gap.

    ``clear`` forgets everything. With ``keep_begun`` a packet whose first beat is shown goes out whole all the same:
    the other side of a MAC's stream knows of no clear. With ``late`` a beat comes a cycle after it was seen that there
    is room, and is written whatever ``room`` says by then.
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
        # of many lanes the memory has marks beside the count, since `tkeep` would take its time behind it
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

        # memory's own output is slow: what it shows goes into registers
        read_valid = Signal()
        load, show = Signal(), Signal()
        # the rest of a packet that outlives a clear ends where that packet does
        ending, end = Signal(), Signal(bits)
        inside = Signal()  # a beat of a packet was taken, its last was not
        stop = Signal()
        many = lanes > GROUP_LANES
        waits = Signal()  # there is a beat to load
        hollow = Signal(init=1)  # not `read_valid`, for all lanes of many: what is told of it stays near them
        if many:  # in a register, since `load` goes to all lanes: a commit shows a cycle late
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
                more = Mux(out.tvalid, ~out.tlast, inside)  # beyond the beat that is shown
                m.d.sync += [tail.eq(committed), end.eq(committed)]
                with m.If(~ending & more):
                    m.d.sync += ending.eq(1)
                with m.Elif(~ending):
                    if many:  # what clears does not go to all lanes with `load` and `show`
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
