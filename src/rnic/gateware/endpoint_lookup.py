"""``endpoint_lookup``: MAC addresses for a destination IP, from a table of 256-bit entries in block RAM.

The slot is the XOR of the address's two low bytes. An invalid entry, or one for another address (a collision), is a
miss; the addresses are then zero. Software fills the table through the register window, one 32-bit word at a time, and
may read it back.
"""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from rnic.gateware.bits import register_at, unpack, unreset
from rnic.gateware.interfaces import Lookup, RegBus
from rnic.gateware.params import EngineParams
from rnic.spec.engine_net_regs import (
    DEFAULT_DST_IP,
    DEFAULT_DST_MAC,
    DEFAULT_SRC_MAC,
    ENDPOINT_ENTRIES,
    ENDPOINT_ENTRY,
    endpoint_index,
)

ENTRY_WORDS = ENDPOINT_ENTRY.size // 4
WINDOW_BITS = (ENDPOINT_ENTRIES * ENDPOINT_ENTRY.size - 1).bit_length()


class EndpointLookup(wiring.Component):
    """The table and its lookup. After power-up it holds the documented pair of addresses."""

    def __init__(self, params: EngineParams) -> None:
        super().__init__({"lookup": In(Lookup()), "regs": In(RegBus(WINDOW_BITS))})
        self.params = params

    def elaborate(self, platform: object) -> Module:
        """Build a table with one write port for software and one read port, on which software's reads have priority."""
        m = Module()
        default = ENDPOINT_ENTRY.pack(
            {"valid": 1, "dst_ip": DEFAULT_DST_IP, "dst_mac": DEFAULT_DST_MAC, "src_mac": DEFAULT_SRC_MAC}
        )
        init = [0] * ENDPOINT_ENTRIES
        init[endpoint_index(DEFAULT_DST_IP)] = int.from_bytes(default, "little")
        m.submodules.table = table = Memory(shape=ENDPOINT_ENTRY.size * 8, depth=ENDPOINT_ENTRIES, init=init)
        write = table.write_port(granularity=8)
        read = table.read_port()
        regs, lookup = self.regs, self.lookup

        word = regs.addr[2 : ENDPOINT_ENTRY.size.bit_length() - 1]
        slot = regs.addr[ENDPOINT_ENTRY.size.bit_length() - 1 :]
        m.d.comb += [
            write.addr.eq(slot),
            write.data.eq(regs.wdata.replicate(ENTRY_WORDS)),
            write.en.eq(Mux(regs.write, regs.wstrb << word * 4, 0)),
        ]
        ip = unreset(32)
        waiting = Signal()  # a lookup that is waiting for the read port
        asked = Signal()  # its entry is on the read port
        come = Signal()  # its entry is in registers: the port's own output is slow
        with m.If(lookup.request):
            m.d.sync += ip.eq(lookup.ip)
        m.d.comb += read.addr.eq(Mux(regs.read, slot, ip[:8] ^ ip[8:16]))
        m.d.sync += [asked.eq(waiting & ~regs.read), waiting.eq(lookup.request | (waiting & regs.read)), come.eq(asked)]

        entry = unreset(ENDPOINT_ENTRY.size * 8)
        m.d.sync += entry.eq(read.data)
        word_read, word_come = Signal.like(word), Signal.like(word)
        m.d.sync += [word_read.eq(word), word_come.eq(word_read)]
        m.d.comb += regs.rdata.eq(entry.word_select(word_come, 32))
        hit = unpack(entry, ENDPOINT_ENTRY, "valid") & (unpack(entry, ENDPOINT_ENTRY, "dst_ip") == ip)
        m.d.sync += lookup.response.eq(come)
        dst_mac, src_mac = register_at(m, lookup.dst_mac), register_at(m, lookup.src_mac)
        with m.If(come):
            m.d.sync += [
                lookup.hit.eq(hit),
                dst_mac.eq(Mux(hit, unpack(entry, ENDPOINT_ENTRY, "dst_mac"), 0)),
                src_mac.eq(Mux(hit, unpack(entry, ENDPOINT_ENTRY, "src_mac"), 0)),
            ]
        return m
