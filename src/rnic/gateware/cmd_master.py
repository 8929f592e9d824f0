"""``data_mover_axi_cmd_master``: the controller's simple start pulse as DataMover commands (000 5.4.1)."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import pack, unpack, unreset
from rnic.gateware.interfaces import STATUS_BITS, WordStream, command_bits
from rnic.gateware.params import BTT_BITS
from rnic.spec.engine_regs import CMD_STATES, DM_STATUS, NARROW_ADDRESS_BITS, dm_command_layout

IDLE, SEND_CMD, WAIT_MM2S, WAIT_S2MM = range(len(CMD_STATES))


class CmdMaster(wiring.Component):
    """One command at a time. ``read_complete`` and ``write_complete`` are one cycle long, ``failed`` is valid with
    them."""

    def __init__(self, address_bits: int = NARROW_ADDRESS_BITS) -> None:
        super().__init__(
            {
                "saddr": In(address_bits),
                "daddr": In(address_bits),
                "btt": In(BTT_BITS),
                "is_read": In(1),
                "start": In(1),
                "ready": Out(1),
                "read_complete": Out(1),
                "write_complete": Out(1),
                "failed": Out(1),
                "mm2s_cmd": Out(WordStream(command_bits(address_bits))),
                "mm2s_sts": In(WordStream(STATUS_BITS)),
                "s2mm_cmd": Out(WordStream(command_bits(address_bits))),
                "s2mm_sts": In(WordStream(STATUS_BITS)),
                "abort": In(1),
            }
        )
        self.address_bits = address_bits
        self.state = Signal(range(len(CMD_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Build the command word of 000 5.4.2."""
        m = Module()
        state = self.state
        address, btt, direction = unreset(self.address_bits), unreset(BTT_BITS), Signal()
        layout = dm_command_layout(self.address_bits)
        word = pack(layout, {"btt": btt, "type": 1, "eof": 1, "address": address})
        m.d.comb += [
            self.ready.eq(state == IDLE),
            self.mm2s_cmd.tdata.eq(word),
            self.s2mm_cmd.tdata.eq(word),
            self.mm2s_cmd.tvalid.eq((state == SEND_CMD) & direction),
            self.s2mm_cmd.tvalid.eq((state == SEND_CMD) & ~direction),
        ]
        with m.Switch(state):
            with m.Case(IDLE), m.If(self.start):
                m.d.sync += [
                    address.eq(Mux(self.is_read, self.saddr, self.daddr)),
                    btt.eq(self.btt),
                    direction.eq(self.is_read),
                    state.eq(SEND_CMD),
                ]
            with m.Case(SEND_CMD), m.If(Mux(direction, self.mm2s_cmd.tready, self.s2mm_cmd.tready)):
                m.d.sync += state.eq(Mux(direction, WAIT_MM2S, WAIT_S2MM))
            with m.Case(WAIT_MM2S):
                m.d.comb += [
                    self.mm2s_sts.tready.eq(1),
                    self.read_complete.eq(self.mm2s_sts.tvalid),
                    self.failed.eq(~unpack(self.mm2s_sts.tdata, DM_STATUS, "okay")[0]),
                ]
                with m.If(self.mm2s_sts.tvalid):
                    m.d.sync += state.eq(IDLE)
            with m.Case(WAIT_S2MM):
                m.d.comb += [
                    self.s2mm_sts.tready.eq(1),
                    self.write_complete.eq(self.s2mm_sts.tvalid),
                    self.failed.eq(~unpack(self.s2mm_sts.tdata, DM_STATUS, "okay")[0]),
                ]
                with m.If(self.s2mm_sts.tvalid):
                    m.d.sync += state.eq(IDLE)
        with m.If(self.abort):
            m.d.sync += state.eq(IDLE)
        return m
