"""Clock domain crossings, for a MAC and a memory bus with separate clocks.

The engine's domain is ``sync``, the MAC's ``mac`` and the bus's ``bus``. All signals cross in asynchronous FIFOs with
Gray-coded pointers. Each domain has its own reset; all resets must be asserted together.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import AsyncFIFO, AsyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rnic.gateware.interfaces import Axi4, AxiStream
from rnic.gateware.params import EngineParams

TX_BYTES = 4096
"""Bytes of two frames of the largest size."""
TX_FRAMES = 64
"""More frames than fit in ``TX_BYTES``."""
RX_BEATS = 32
CHANNEL_BEATS = 16
"""FIFO depth of each bus channel, in beats."""
OWED_BITS = 8


def _beat(axis: AxiStream) -> Value:
    return Cat(axis.tdata, axis.tkeep, axis.tlast, axis.tuser)


class MacTxCrossing(wiring.Component):
    """Frames to the MAC: each starts only after all of it has crossed, so that none has a gap at any clock ratio."""

    def __init__(self, params: EngineParams) -> None:
        super().__init__({"s_axis": In(AxiStream(params.bus_width)), "m_axis": Out(AxiStream(params.bus_width))})
        self.params = params

    def elaborate(self, platform: object) -> Module:
        """Build a FIFO of beats, and one with a token for each complete frame, written after its last beat."""
        m = Module()
        source, out = self.s_axis, self.m_axis
        m.submodules.beats = beats = AsyncFIFOBuffered(
            width=len(_beat(source)), depth=TX_BYTES // self.params.bus_bytes, r_domain="mac", w_domain="sync"
        )
        m.submodules.wholes = wholes = AsyncFIFO(width=1, depth=TX_FRAMES, r_domain="mac", w_domain="sync")
        ended = Signal()
        m.d.comb += [
            beats.w_data.eq(_beat(source)),
            beats.w_en.eq(source.tvalid & source.tready),
            source.tready.eq(beats.w_rdy & wholes.w_rdy),
            wholes.w_en.eq(ended),
        ]
        m.d.sync += ended.eq(source.tvalid & source.tready & source.tlast)
        inside, taken = Signal(), Signal()
        m.d.comb += [
            _beat(out).eq(beats.r_data),
            out.tvalid.eq(beats.r_rdy & (inside | wholes.r_rdy)),
            taken.eq(out.tvalid & out.tready),
            beats.r_en.eq(taken),
            wholes.r_en.eq(taken & ~inside),
        ]
        with m.If(taken):
            m.d.mac += inside.eq(~out.tlast)
        return m


class MacRxCrossing(wiring.Component):
    """Frames from the MAC, which never waits. If the engine's clock is too slow for the line, a frame is truncated and
    marked bad; the decapsulator drops and counts it."""

    def __init__(self, params: EngineParams) -> None:
        super().__init__({"s_axis": In(AxiStream(params.bus_width)), "m_axis": Out(AxiStream(params.bus_width))})

    def elaborate(self, platform: object) -> Module:
        """End a frame that did not fit after its beats that have crossed."""
        m = Module()
        source, out, lanes = self.s_axis, self.m_axis, len(self.s_axis.tkeep)
        m.submodules.beats = beats = AsyncFIFOBuffered(
            width=len(_beat(source)), depth=RX_BEATS, r_domain="sync", w_domain="mac"
        )
        owed, skipping = Signal(OWED_BITS), Signal()
        drop, end, owe = Signal(), Signal(), Signal()
        bad_end = Const(0b11 << lanes | 1, lanes + 2)  # one byte, tlast and tuser
        m.d.comb += [
            source.tready.eq(1),
            drop.eq(skipping | ~beats.w_rdy | (owed != 0)),
            end.eq(beats.w_rdy & (owed != 0)),
            owe.eq(source.tvalid & drop & ~skipping),
            beats.w_en.eq(end | (source.tvalid & ~drop)),
            beats.w_data.eq(_beat(source)),
        ]
        with m.If(end):
            m.d.comb += beats.w_data.eq(Cat(source.tdata, bad_end))
        m.d.mac += owed.eq(Mux(owed.all(), owed, owed + owe) - end)
        with m.If(source.tvalid):
            m.d.mac += skipping.eq((skipping | drop) & ~source.tlast)
        m.d.comb += [_beat(out).eq(beats.r_data), out.tvalid.eq(beats.r_rdy), beats.r_en.eq(out.tready)]
        return m


class AxiCrossing(wiring.Component):
    """The memory bus: its five channels, each in a FIFO. ``engine`` is in ``sync``, ``bus`` in ``bus``."""

    def __init__(self, params: EngineParams) -> None:
        axi = Axi4(params.bus_width, 1, params.address_bits)
        super().__init__({"engine": In(axi), "bus": Out(axi)})

    def elaborate(self, platform: object) -> Module:
        """Cross addresses and data in one direction, responses in the other."""
        m = Module()
        for channel in ("ar", "aw", "w", "r", "b"):
            outward = channel in ("ar", "aw", "w")
            source, target = (self.engine, self.bus) if outward else (self.bus, self.engine)
            domains = ("bus", "sync") if outward else ("sync", "bus")
            names = [
                name
                for name in self.engine.signature.members
                if name.startswith(channel) and name not in (f"{channel}valid", f"{channel}ready")
            ]
            if channel == "r":
                names = ["rid", "rdata", "rresp", "rlast"]
            payload = Cat(*(getattr(source, name) for name in names))
            fifo = AsyncFIFO(width=len(payload), depth=CHANNEL_BEATS, r_domain=domains[0], w_domain=domains[1])
            m.submodules[channel] = fifo
            m.d.comb += [
                fifo.w_data.eq(payload),
                fifo.w_en.eq(getattr(source, f"{channel}valid")),
                getattr(source, f"{channel}ready").eq(fifo.w_rdy),
                Cat(*(getattr(target, name) for name in names)).eq(fifo.r_data),
                getattr(target, f"{channel}valid").eq(fifo.r_rdy),
                fifo.r_en.eq(getattr(target, f"{channel}ready")),
            ]
        return m
