"""The tables of ``ctxmdata``: qpctxmdata, cqctxmdata and eqctxmdata (002 5.3.3)."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rnic.context.ctxmdata import PAGE_SHIFT, table_pages

PAGE_BITS = 64 - PAGE_SHIFT
LOG_BITS = 8
LOOKUP_CYCLES = 2
"""Cycles from a lookup to ``inside``, ``valid`` and ``page``."""


class PageTable(wiring.Component):
    """One kind of context: an entry of 52 address bits and a valid bit for each of its pages.

    Look up by ``number``, or with ``by_page`` by ``virt_page``, a page number of context memory. Two cycles later,
    ``inside`` says whether the entry exists; ``valid`` and ``page`` are its content. ``set`` and ``clear`` change the
    entry looked up. ``reset`` clears every entry and the base, ``configure`` then sets a new base; ``busy`` stays high
    until all entries are cleared.

    Args:
        first: the lowest number.
        log: log2 of the largest count of numbers.
        shift: log2 of a context's bytes.
    """

    def __init__(self, first: int, log: int, shift: int) -> None:
        super().__init__(
            {
                "number": In(32),
                "virt_page": In(PAGE_BITS + 1),
                "by_page": In(1),
                "inside": Out(1),
                "valid": Out(1),
                "page": Out(PAGE_BITS),
                "offset": Out(PAGE_SHIFT),
                "set": In(1),
                "clear": In(1),
                "new_page": In(PAGE_BITS),
                "reset": In(1),
                "configure": In(1),
                "base": In(PAGE_BITS),
                "log": In(LOG_BITS),
                "busy": Out(1),
            }
        )
        self.first = first
        self.most = log
        self.shift = shift
        self.depth = table_pages(log, shift)

    def pages(self, log: Value) -> Value:
        """Return the number of pages of 2**log contexts, as :func:`~rnic.context.ctxmdata.table_pages`."""
        out: Value = Const(1)
        for each in range(1, self.most + 1):
            out = Mux(log == each, table_pages(each, self.shift), out)
        return out

    def elaborate(self, platform: object) -> Module:
        """Build a register for a single entry, as the document says, else RAM."""
        m = Module()
        bits = max(1, (self.depth - 1).bit_length())
        enabled, base, log = Signal(), Signal(PAGE_BITS), Signal(LOG_BITS, init=self.most)
        count = Signal(range(self.depth + 1), init=self.depth)
        index, sweep = Signal(bits), Signal(range(self.depth + 1))
        entry_page, entry_valid = Signal(PAGE_BITS), Signal()

        # a number's low bits are its slot, so bits of the shifted number select the entry
        slot = Cat(*(self.number[bit] & (log > bit) for bit in range(self.most)))
        shifted = Cat(Const(0, self.shift), slot, Const(0, max(0, PAGE_SHIFT + bits - self.shift - self.most)))
        above = Signal(33)
        m.d.comb += above.eq(self.number - self.first)
        known = ~above[-1] & (above[:32] >> log == 0)
        distance = Signal(PAGE_BITS + 2)
        m.d.comb += distance.eq(self.virt_page - base)
        m.d.sync += [
            self.inside.eq(enabled & Mux(self.by_page, ~distance[-1] & (distance[:-1] < count), known)),
            index.eq(Mux(self.by_page, distance[:bits], shifted[PAGE_SHIFT : PAGE_SHIFT + bits])),
            self.offset.eq(shifted[:PAGE_SHIFT]),
        ]
        m.d.comb += [self.page.eq(entry_page), self.valid.eq(entry_valid), self.busy.eq(sweep != self.depth)]
        write, data = self.set | self.clear | self.busy, Mux(self.set, Cat(self.new_page, 1), 0)
        if self.depth == 1:
            with m.If(write):
                m.d.sync += Cat(entry_page, entry_valid).eq(data)
        else:
            m.submodules.entries = entries = Memory(shape=PAGE_BITS + 1, depth=self.depth, init=[])
            port, read = entries.write_port(), entries.read_port()
            m.d.comb += [
                port.addr.eq(Mux(self.busy, sweep, index)),
                port.en.eq(write),
                port.data.eq(data),
                read.addr.eq(index),
                Cat(entry_page, entry_valid).eq(read.data),
            ]
        with m.If(self.busy):
            m.d.sync += sweep.eq(sweep + 1)
        with m.If(self.reset):
            m.d.sync += [sweep.eq(0), enabled.eq(0), base.eq(0), log.eq(self.most), count.eq(self.depth)]
        with m.If(self.configure):
            m.d.sync += [enabled.eq(1), base.eq(self.base), log.eq(self.log), count.eq(self.pages(self.log))]
        return m
