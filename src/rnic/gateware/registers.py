"""``registers``: the AXI4-Lite slave with the map of ``hardware.md`` 1a, and access to the network blocks' windows.

The map is built from the table. One access at a time; an address without a register gets SLVERR, and reads as 0.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import register_at, unreset, word_at
from rnic.gateware.interfaces import Axi4Lite, RegBus, Resp
from rnic.gateware.params import EngineParams
from rnic.spec.engine_regs import (
    AXIL_ADDRESS_BITS,
    CONTROL,
    DECAP_BASE,
    DECAP_BYTES,
    ENCAP_BASE,
    ENCAP_BYTES,
    ENGINE_BYTES,
    LOOKUP_BASE,
    LOOKUP_BYTES,
    register_map,
)

WINDOWS = {
    "encap": (ENCAP_BASE, ENCAP_BYTES),
    "decap": (DECAP_BASE, DECAP_BYTES),
    "lookup": (LOOKUP_BASE, LOOKUP_BYTES),
}
POINTERS = ("SQ_TAIL", "CQ_HEAD")
"""Software's pointers, which a soft reset clears."""


class Registers(wiring.Component):
    """Storage for software's writes, and strobes for them.

    ``value[NAME]`` of a register that is not RW is driven by ``top``. ``events`` sets bits of IRQ_STATUS; ``clear`` is
    the end of a soft reset.
    """

    def __init__(self, params: EngineParams) -> None:
        super().__init__(
            {
                "s_axil": In(Axi4Lite(AXIL_ADDRESS_BITS)),
                "encap": Out(RegBus(8)),
                "decap": Out(RegBus(8)),
                "lookup": Out(RegBus(13)),
                "doorbell": Out(1),
                "cq_doorbell": Out(1),
                "soft_reset": Out(1),
                "events": In(8),
                "clear": In(1),
                "irq": Out(1),
            }
        )
        self.params = params
        self.map = register_map(params.documented_debug, params.address_bits)
        resets = {register.name: register.reset for register in self.map} | {"WATCHDOG": params.watchdog_cycles}
        self.value = {name: Signal(32, init=reset, name=name) for name, reset in resets.items()}

    def elaborate(self, platform: object) -> Module:
        """Latch address and data, act for one cycle, answer."""
        m = Module()
        bus, value = self.s_axil, self.value
        aw, w, ar = Signal(), Signal(), Signal()
        write_at, read_at = unreset(AXIL_ADDRESS_BITS), unreset(AXIL_ADDRESS_BITS)
        data, strobe = unreset(32), unreset(4)
        m.d.comb += [bus.awready.eq(~aw), bus.wready.eq(~w), bus.arready.eq(~ar)]
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [aw.eq(1), write_at.eq(bus.awaddr)]
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [w.eq(1), data.eq(bus.wdata), strobe.eq(bus.wstrb)]
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [ar.eq(1), read_at.eq(bus.araddr)]

        # an access is selected in one cycle, executed in the next; a read's data is collected in two more
        write, read, answer, collected = Signal(), Signal(), Signal(), Signal()
        reading, writes, reads = Signal(), Signal(), Signal()
        at = unreset(AXIL_ADDRESS_BITS)
        m.d.comb += [
            reading.eq(read | answer | collected),
            writes.eq(aw & w & ~bus.bvalid & ~write & ~reading),
            reads.eq(ar & ~bus.rvalid & ~write & ~reading & ~writes),
        ]
        m.d.sync += [write.eq(writes), read.eq(reads), at.eq(Mux(writes, write_at, read_at))]
        engine = at[(ENGINE_BYTES - 1).bit_length() :] == 0
        known = Signal()
        windows = {}
        windows_here = WINDOWS if self.params.network else {}
        for name, (base, size) in windows_here.items():
            port = getattr(self, name)
            windows[name] = here = Signal(name=f"{name}_here")
            m.d.comb += [
                here.eq(at[(size - 1).bit_length() :] == base // size),  # each is aligned to its size
                port.addr.eq(Cat(0, 0, at[2:])[: len(port.addr)] & (size - 1)),
                port.wdata.eq(data),
                port.wstrb.eq(strobe),
                port.write.eq(write & here),
                port.read.eq(read & here),
            ]
            with m.If(here):
                m.d.comb += known.eq(1)
        with m.If(engine), m.Switch(at[2:8]):  # one parallel multiplexer, not a priority chain
            for register in self.map:
                with m.Case(register.offset >> 2):
                    m.d.comb += known.eq(1)
        shown = word_at(m, at[2:8], {register.offset >> 2: value[register.name] for register in self.map})

        # ---- reads: the windows answer two cycles later
        from_window = {name: Signal(name=f"{name}_answers") for name in windows_here}
        held, held_known, in_engine = unreset(32), Signal(), Signal()
        answered = register_at(m, bus.rdata)
        m.d.sync += [answer.eq(read), collected.eq(answer)]
        with m.If(read):
            m.d.sync += [held_known.eq(known), in_engine.eq(engine)]
            m.d.sync += [from_window[name].eq(windows[name]) for name in windows_here]
        with m.If(answer):
            m.d.sync += held.eq(Mux(in_engine, shown, 0))
        with m.If(collected):
            m.d.sync += [bus.rvalid.eq(1), answered.eq(held), bus.rresp.eq(Mux(held_known, Resp.OKAY, Resp.SLVERR))]
            for name in windows_here:
                with m.If(from_window[name]):
                    m.d.sync += answered.eq(getattr(self, name).rdata)
        with m.If(bus.rvalid & bus.rready):
            m.d.sync += [bus.rvalid.eq(0), ar.eq(0)]

        # ---- writes
        with m.If(write):
            m.d.sync += [bus.bvalid.eq(1), bus.bresp.eq(Mux(known, Resp.OKAY, Resp.SLVERR))]
        with m.If(bus.bvalid & bus.bready):
            m.d.sync += [bus.bvalid.eq(0), aw.eq(0), w.eq(0)]
        reset_bit = CONTROL["soft_reset"].lsb
        resetting = Signal()
        for register in self.map:
            stored = value[register.name]
            here = Signal(name=f"{register.name}_written")
            m.d.comb += here.eq(write & engine & (at[2:8] == register.offset >> 2))
            kept = sum(((1 << field.width) - 1) << field.lsb for field in register.fields) or 0xFFFFFFFF
            if register.name == "CONTROL":
                kept &= ~(1 << reset_bit)
            if register.access == "RW":
                for byte in range(4):
                    with m.If(here & strobe[byte]):
                        low = byte * 8
                        m.d.sync += stored[low : low + 8].eq(data[low : low + 8] & (kept >> low & 0xFF))
            if register.name in ("SQ_TAIL", "SQ_DOORBELL"):
                with m.If(here):
                    m.d.comb += self.doorbell.eq(1)
            if register.name == "CQ_DOORBELL":
                m.d.comb += self.cq_doorbell.eq(here)
            if register.name == "IRQ_STATUS":
                mask = Mux(here, Cat(bit.replicate(8) for bit in strobe) & data, 0)
                m.d.sync += stored.eq((stored & ~mask) | self.events)
            if register.name == "CONTROL":
                with m.If(here & strobe[reset_bit // 8] & data[reset_bit]):
                    m.d.sync += resetting.eq(1)
        m.d.comb += self.soft_reset.eq(resetting)
        m.d.sync += value["CONTROL"][reset_bit].eq(resetting & ~self.clear)
        with m.If(self.clear):
            m.d.sync += resetting.eq(0)
            m.d.sync += [value[name].eq(0) for name in (*POINTERS, "IRQ_STATUS")]
        enable = value["CONTROL"][CONTROL["global_irq_en"].lsb]
        m.d.comb += self.irq.eq((value["IRQ_STATUS"] & value["IRQ_ENABLE"]).any() & enable)
        return m
