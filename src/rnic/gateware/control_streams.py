"""The two small ends of the control DataMover: the descriptor parser and the CQ entry streamer."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth.hdl import Cat, Module, Signal, Value, ValueLike
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import pack, register_at, unreset
from rnic.gateware.interfaces import AxiStream
from rnic.gateware.params import EngineParams
from rnic.rings.cqe import CQ_ENTRY, CQE_BYTES, DOCUMENTED_CQ_ENTRY
from rnic.rings.sqe import SQE_BYTES
from rnic.spec.engine_regs import PARSER_STATES, STREAMER_STATES


class DescriptorParser(wiring.Component):
    """Gathers the 64 bytes of a descriptor: sixteen beats of 32 bits. ``entry_valid`` is one cycle long (000 5.2.3)."""

    def __init__(self, params: EngineParams) -> None:
        super().__init__(
            {
                "s_axis": In(AxiStream(params.bus_width)),
                "entry": Out(SQE_BYTES * 8),
                "entry_valid": Out(1),
                "entry_bad": Out(1),
                "abort": In(1),
            }
        )
        self.state = Signal(range(len(PARSER_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Shift the first word lowest; TLAST ends the entry."""
        m = Module()
        width, entry = len(self.s_axis.tdata), register_at(m, self.entry)
        m.d.comb += self.s_axis.tready.eq(1)
        m.d.sync += self.entry_valid.eq(0)
        with m.If(self.s_axis.tvalid):
            whole = self.s_axis.tdata if width >= len(entry) else None
            m.d.sync += [
                entry.eq(whole if whole is not None else _shifted_in(entry, self.s_axis.tdata)),
                self.state.eq(~self.s_axis.tlast),
                self.entry_valid.eq(self.s_axis.tlast),
                self.entry_bad.eq(self.s_axis.tuser),
            ]
        with m.If(self.abort):
            m.d.sync += [self.state.eq(0), self.entry_valid.eq(0)]
        return m


def cq_entry_of(values: Mapping[str, ValueLike], documented: bool) -> Value:
    """Return a CQ entry of these fields of ``CQ_ENTRY``; a documented entry has only the fields of 000."""
    if not documented:
        return pack(CQ_ENTRY, values)
    known = {**values, "index_again": values["index"]}
    return pack(DOCUMENTED_CQ_ENTRY, {field.name: known[field.name] for field in DOCUMENTED_CQ_ENTRY.fields})


class CqStreamer(wiring.Component):
    """Sends the 32 bytes of a CQ entry after ``start``: eight beats of 32 bits, TLAST on the last (000 5.6.4)."""

    def __init__(self, params: EngineParams) -> None:
        super().__init__(
            {"entry": In(CQE_BYTES * 8), "start": In(1), "m_axis": Out(AxiStream(params.bus_width)), "abort": In(1)}
        )
        self.params = params
        self.state = Signal(range(len(STREAMER_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Build a buffer that shifts by one beat."""
        m = Module()
        out, lanes = self.m_axis, self.params.bus_bytes
        beats = -(-CQE_BYTES // lanes)
        buffer, pointer = unreset(CQE_BYTES * 8), Signal(range(beats + 1))
        m.d.comb += [
            out.tvalid.eq(self.state),
            out.tdata.eq(buffer[: lanes * 8]),
            out.tkeep.eq((1 << min(lanes, CQE_BYTES)) - 1),
            out.tlast.eq(pointer == beats - 1),
        ]
        with m.If(self.start):
            m.d.sync += [buffer.eq(self.entry), pointer.eq(0), self.state.eq(1)]
        with m.Elif(out.tvalid & out.tready):
            m.d.sync += [buffer.eq(buffer >> lanes * 8), pointer.eq(pointer + 1), self.state.eq(~out.tlast)]
        with m.If(self.abort):
            m.d.sync += self.state.eq(0)
        return m


def _shifted_in(register: Signal, word: Signal) -> Signal:
    shifted: Signal = Cat(register[len(word) :], word)
    return shifted
