"""Two DataMovers on one AXI4 master, distinguished by the ids of read beats and responses.

Write data is in the order of the addresses, and is sent once its address is valid, without waiting for AWREADY, since a
slave may wait for WVALID first. READY depends on VALID, since the id is unknown before.
"""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rnic.gateware.interfaces import Axi4
from rnic.gateware.params import EngineParams

ADDRESS = ("id", "addr", "len", "size", "burst", "lock", "cache", "prot", "qos")


class AxiArbiter(wiring.Component):
    """``first`` (the control mover, id 0) has priority over ``second`` (id 1); a valid address is held until taken."""

    def __init__(self, params: EngineParams) -> None:
        self.params = params
        axi = Axi4(params.bus_width, 1, params.address_bits)
        super().__init__({"first": In(axi), "second": In(axi), "bus": Out(axi)})

    def elaborate(self, platform: object) -> Module:
        """Build data paths without registers, and a register slice for responses, whose READY depends on VALID."""
        m = Module()
        bus, sides = self.bus, (self.first, self.second)
        m.submodules.owners = owners = SyncFIFOBuffered(width=1, depth=self.params.outstanding + 2)

        for channel in ("ar", "aw"):
            chosen, locked, pick, room = (
                Signal(name=f"{channel}_{name}") for name in ("chosen", "locked", "pick", "room")
            )
            m.d.comb += room.eq(locked | owners.w_rdy if channel == "aw" else 1)
            valid, ready = getattr(bus, f"{channel}valid"), getattr(bus, f"{channel}ready")
            valids = [getattr(side, f"{channel}valid") for side in sides]
            m.d.comb += [
                pick.eq(Mux(locked, chosen, ~valids[0])),
                valid.eq(Mux(pick, valids[1], valids[0]) & room),
            ]
            m.d.sync += [chosen.eq(pick), locked.eq(valid & ~ready)]
            for name in ADDRESS:
                ours = [getattr(side, channel + name) for side in sides]
                m.d.comb += getattr(bus, channel + name).eq(Mux(pick, ours[1], ours[0]))
            for number, side in enumerate(sides):
                m.d.comb += getattr(side, f"{channel}ready").eq(ready & (pick == number) & room)
            if channel == "aw":
                # a held address already has its place in the queue
                m.d.comb += [owners.w_data.eq(pick), owners.w_en.eq(valid & ~locked)]

        owner = owners.r_data[0]
        for name in ("wdata", "wstrb", "wlast"):
            m.d.comb += getattr(bus, name).eq(Mux(owner, getattr(self.second, name), getattr(self.first, name)))
        m.d.comb += [
            bus.wvalid.eq(owners.r_rdy & Mux(owner, self.second.wvalid, self.first.wvalid)),
            owners.r_en.eq(bus.wvalid & bus.wready & bus.wlast),
            bus.rready.eq(bus.rvalid & Mux(bus.rid[0], self.second.rready, self.first.rready)),
            bus.bready.eq(bus.bvalid & Mux(bus.bid[0], self.second.bready, self.first.bready)),
        ]
        for number, side in enumerate(sides):
            m.d.comb += [
                side.wready.eq(bus.wready & owners.r_rdy & (owner == number)),
                side.rvalid.eq(bus.rvalid & (bus.rid == number)),
                side.bvalid.eq(bus.bvalid & (bus.bid == number)),
            ]
            for name in ("rid", "rdata", "rresp", "rlast", "bid", "bresp"):
                m.d.comb += getattr(side, name).eq(getattr(bus, name))
        return m
