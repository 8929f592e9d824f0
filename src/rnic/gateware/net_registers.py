"""Registers of a network block on its :class:`~rnic.gateware.interfaces.RegBus`, built from the block's table."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from rnic.gateware.bits import register_at, word_at
from rnic.gateware.interfaces import RegBus
from rnic.spec.engine_net_regs import WRITABLE_BITS
from rnic.spec.registers import Register

CTRL_FLAGS = ("enable",)
"""Bits of CTRL that keep their value; the others are pulses."""


class NetRegisters(wiring.Component):
    """Storage for RW registers, strobes for the others.

    ``value[NAME]`` is what a register shows: storage for RW registers, to be driven by the block for RO ones.
    ``written[NAME]`` and ``was_read[NAME]`` are one cycle long. ``write_data`` goes with ``written``.
    """

    def __init__(self, registers: tuple[Register, ...]) -> None:
        super().__init__({"regs": In(RegBus(8))})
        self.registers = registers
        self.value = {
            register.name: Signal(WRITABLE_BITS.get(register.name, 32), init=register.reset, name=register.name)
            for register in registers
        }
        self.written = {register.name: Signal(name=f"{register.name}_written") for register in registers}
        self.was_read = {register.name: Signal(name=f"{register.name}_read") for register in registers}
        self.write_data = Signal(32)

    def elaborate(self, platform: object) -> Module:
        """Decode, byte-wise writes, registered reads; an address without a register reads 0."""
        m = Module()
        regs = self.regs
        m.d.comb += self.write_data.eq(regs.wdata)
        answer = register_at(m, regs.rdata)
        asked = Signal()
        m.d.sync += asked.eq(regs.read)
        word = word_at(m, regs.addr[2:], {each.offset >> 2: self.value[each.name] for each in self.registers})
        with m.If(asked):
            m.d.sync += answer.eq(word)
        for register in self.registers:
            value = self.value[register.name]
            here = Signal(name=f"{register.name}_here")
            m.d.comb += [
                here.eq(regs.addr == register.offset),
                self.written[register.name].eq(here & regs.write),
                self.was_read[register.name].eq(here & regs.read),
            ]
            if register.access != "RW":
                continue
            kept = sum(1 << register.field(flag).lsb for flag in CTRL_FLAGS) if register.name == "CTRL" else -1
            with m.If(here & regs.write):
                for byte in range(4):
                    low, high = byte * 8, min(byte * 8 + 8, len(value))
                    if low < high:
                        new = Mux(regs.wstrb[byte], regs.wdata[low:high], value[low:high])
                        m.d.sync += value[low:high].eq(new & (kept >> low & 0xFF))
        return m
