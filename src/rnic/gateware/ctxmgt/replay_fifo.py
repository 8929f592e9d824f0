"""The mdata FIFO between ceu_parser and ctxmdata: one request's payload, which can be read twice."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out


class ReplayFifo(wiring.Component):
    """``data`` is the beat at the read pointer, two cycles after the pointer changed.

    ``count``: beats written since ``clear``. ``rewind`` goes back to the first.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(
            {
                "new": In(width),
                "push": In(1),
                "clear": In(1),
                "data": Out(width),
                "count": Out(range(depth + 1)),
                "advance": In(1),
                "rewind": In(1),
            }
        )
        self.width = width
        self.depth = depth

    def elaborate(self, platform: object) -> Module:
        """Build a RAM with two counters; the parser refuses payloads beyond the depth."""
        m = Module()
        m.submodules.beats = beats = Memory(shape=self.width, depth=self.depth, init=[])
        write, read = beats.write_port(), beats.read_port()
        at = Signal(range(self.depth))
        m.d.comb += [
            write.addr.eq(self.count),
            write.data.eq(self.new),
            write.en.eq(self.push),
            read.addr.eq(at),
            self.data.eq(read.data),
        ]
        m.d.sync += self.count.eq(Mux(self.clear, 0, self.count + self.push))
        with m.If(self.rewind | self.clear):
            m.d.sync += at.eq(0)
        with m.Elif(self.advance):
            m.d.sync += at.eq(at + 1)
        return m
