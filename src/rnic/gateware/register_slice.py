"""Registers between two blocks of a stream, for both directions: no path of the one goes on into the other."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import register_at
from rnic.gateware.interfaces import AxiStream
from rnic.gateware.params import GROUP_LANES

FIELDS = ("tdata", "tkeep", "tlast", "tuser")


class RegisterSlice(wiring.Component):
    """Two beats: one shown, and one that came when the first was not taken. ``tready`` is a register; a beat in each
    cycle. ``clear`` forgets both; ``empty`` says that there is none."""

    def __init__(self, width: int) -> None:
        super().__init__(
            {"s_axis": In(AxiStream(width)), "m_axis": Out(AxiStream(width)), "clear": In(1), "empty": Out(1)}
        )

    def elaborate(self, platform: object) -> Module:
        """The beat kept aside goes before the one that comes."""
        m = Module()
        source, out = self.s_axis, self.m_axis
        aside = Signal()
        kept = {name: Signal.like(getattr(source, name), name=f"kept_{name}", reset_less=True) for name in FIELDS}
        shown = {name: register_at(m, getattr(out, name)) for name in FIELDS}
        many = len(source.tkeep) > GROUP_LANES
        room = Signal(init=1)  # not `aside`, which goes to all lanes of many: who offers a beat is told at once
        vacant = Signal(init=1)  # not `out.tvalid`, for all lanes of many: what is told of it stays near them
        beat = [shown[name].eq(Mux(aside, kept[name], getattr(source, name))) for name in FIELDS]
        m.d.comb += [source.tready.eq(room if many else ~aside), self.empty.eq(~out.tvalid)]
        with m.If(~out.tvalid | out.tready):
            m.d.sync += [out.tvalid.eq(aside | source.tvalid), aside.eq(0)]
            if many:
                m.d.sync += [room.eq(1), vacant.eq(~(aside | source.tvalid))]
            else:
                m.d.sync += beat
        with m.Elif(source.tvalid):
            m.d.sync += aside.eq(1)
            if many:
                m.d.sync += room.eq(0)
        if many:
            with m.If(vacant | out.tready):
                m.d.sync += beat
        with m.If(~aside):
            m.d.sync += [kept[name].eq(getattr(source, name)) for name in FIELDS]
        with m.If(self.clear):
            m.d.sync += [out.tvalid.eq(0), aside.eq(0)]
            if many:
                m.d.sync += [room.eq(1), vacant.eq(1)]
        return m
