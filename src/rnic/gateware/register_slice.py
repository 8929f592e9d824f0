"""Register slices between two blocks of a stream, in both directions, and at the memory bus: they cut combinational
paths."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import register_at
from rnic.gateware.interfaces import Axi4, AxiStream
from rnic.gateware.params import GROUP_LANES, EngineParams

HANDSHAKE = ("tvalid", "tready")


class RegisterSlice(wiring.Component):
    """Holds two beats: the output, and one that arrived while the output was not taken. ``tready`` is a register; full
    throughput. ``clear`` drops both; ``empty``: there is none."""

    def __init__(self, width: int, beat: wiring.Signature | None = None) -> None:
        """Take beats of ``width`` bits of data. ``beat``: signature of the stream, if it is not AXI4-Stream."""
        stream = AxiStream(width) if beat is None else beat
        super().__init__({"s_axis": In(stream), "m_axis": Out(stream), "clear": In(1), "empty": Out(1)})
        self.many = width > GROUP_LANES * 8
        self.fields = [name for name in stream.members if name not in HANDSHAKE]

    def elaborate(self, platform: object) -> Module:
        """Output the buffered beat before the arriving one."""
        m = Module()
        source, out = self.s_axis, self.m_axis
        aside = Signal()
        fields, many = self.fields, self.many
        kept = {name: Signal.like(getattr(source, name), name=f"kept_{name}", reset_less=True) for name in fields}
        shown = {name: register_at(m, getattr(out, name)) for name in fields}
        room = Signal(init=1)  # not `aside`, which drives all lanes: the sender needs it in the same cycle
        vacant = Signal(init=1)  # a copy of not `out.tvalid` near many lanes
        beat = [shown[name].eq(Mux(aside, kept[name], getattr(source, name))) for name in fields]
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
            m.d.sync += [kept[name].eq(getattr(source, name)) for name in fields]
        with m.If(self.clear):
            m.d.sync += [out.tvalid.eq(0), aside.eq(0)]
            if many:
                m.d.sync += [room.eq(1), vacant.eq(1)]
        return m


ANSWERS = {"r": ("rid", "rdata", "rresp", "rlast"), "b": ("bid", "bresp")}
"""Signals of the memory bus's response channels."""


class AxiSlice(wiring.Component):
    """The memory bus with a register slice in each response channel, R and B, so that their ready is a register.

    The arbiter's ready depends on valid and on the id. Without the slices, this is a combinational path from the bus to
    the bus, which AXI forbids (IHI 0022 A3.1.1). The ports are those of :class:`~rnic.gateware.cdc.AxiCrossing`.
    """

    def __init__(self, params: EngineParams) -> None:
        axi = Axi4(params.bus_width, 1, params.address_bits)
        super().__init__({"engine": In(axi), "bus": Out(axi)})
        self.params = params

    def elaborate(self, platform: object) -> Module:
        """Pass addresses and write data through, since the engine drives them from registers."""
        m = Module()
        engine, bus = self.engine, self.bus
        for name, member in bus.signature.members.items():
            if name[0] in ("a", "w"):
                target, source = (bus, engine) if member.flow is Out else (engine, bus)
                m.d.comb += getattr(target, name).eq(getattr(source, name))
        for channel, names in ANSWERS.items():
            shapes = {name: Out(len(getattr(bus, name))) for name in names}
            beat = wiring.Signature({**shapes, "tvalid": Out(1), "tready": In(1)})
            width = self.params.bus_width if channel == "r" else len(bus.bresp)
            m.submodules[channel] = answers = RegisterSlice(width, beat)
            m.d.comb += [getattr(answers.s_axis, name).eq(getattr(bus, name)) for name in names]
            m.d.comb += [getattr(engine, name).eq(getattr(answers.m_axis, name)) for name in names]
            m.d.comb += [
                answers.s_axis.tvalid.eq(getattr(bus, f"{channel}valid")),
                getattr(bus, f"{channel}ready").eq(answers.s_axis.tready),
                getattr(engine, f"{channel}valid").eq(answers.m_axis.tvalid),
                answers.m_axis.tready.eq(getattr(engine, f"{channel}ready")),
            ]
        return m
