"""The receive path: ``rx_header_parser`` removes the seven-word header of a packet, ``rx_streamer`` writes its
payload."""

from __future__ import annotations

from contextlib import nullcontext

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import pack, register_at, unpack, unreset
from rnic.gateware.interfaces import STATUS_BITS, AxiStream, WordStream, command_bits
from rnic.gateware.params import BTT_BITS, EngineParams
from rnic.gateware.register_slice import RegisterSlice
from rnic.spec.engine_regs import (
    DM_STATUS,
    ERR_LENGTH,
    ERR_NONE,
    ERR_REMOTE_BUS,
    ERR_REMOTE_WINDOW,
    HEADER_PARSER_STATES,
    RX_STATES,
    WRITE_OPCODES,
    dm_command_layout,
)
from rnic.wire.engine_header import ADDRESS_PARTS, ENGINE_HEADER, ENGINE_HEADER_BYTES, ENGINE_HEADER_WIDE

PARSE_IDLE, PARSE_HEADER, FORWARD_DATA = range(len(HEADER_PARSER_STATES))
IDLE, CHECK_OPCODE, PREPARE_CMD, ISSUE_DM_CMD, WAIT_COMPLETE = range(len(RX_STATES))
PAYLOAD_BEATS = 32
"""Payload beats buffered until their verdict."""


class RxHeaderParser(wiring.Component):
    """Gathers the header, outputs it with ``header_valid`` until ``header_ready``, then passes the payload.

    ``empty`` is valid with ``header_valid``: the packet has no payload. A packet that ends inside its header is
    dropped:
    ``cut`` is one cycle long.
    """

    def __init__(self, params: EngineParams) -> None:
        super().__init__(
            {
                "s_axis": In(AxiStream(params.bus_width)),
                "m_axis": Out(AxiStream(params.bus_width)),
                "header": Out(ENGINE_HEADER_BYTES * 8),
                "header_valid": Out(1),
                "header_ready": In(1),
                "empty": Out(1),
                "cut": Out(1),
                "abort": In(1),
            }
        )
        self.params = params
        self.state = Signal(range(len(HEADER_PARSER_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Take the next header only after the previous one was taken and its payload has passed."""
        m = Module()
        state, source, out, lanes = self.state, self.s_axis, self.m_axis, self.params.bus_bytes
        beats = self.params.header_beats
        header = register_at(m, self.header)
        beat = Signal(range(beats + 1))
        taken = source.tvalid & source.tready
        with m.If(self.header_valid & self.header_ready):
            m.d.sync += self.header_valid.eq(0)
        with m.If(state != FORWARD_DATA):
            m.d.comb += source.tready.eq(~self.header_valid)
            with m.If(taken):
                for index in range(beats):
                    low = index * lanes * 8
                    with m.If(beat == index):
                        m.d.sync += header[low : low + lanes * 8].eq(source.tdata)
                m.d.sync += [beat.eq(beat + 1), state.eq(PARSE_HEADER)]
                with m.If(beat == beats - 1):
                    m.d.sync += [
                        self.header_valid.eq(1),
                        self.empty.eq(source.tlast),
                        beat.eq(0),
                        state.eq(Mux(source.tlast, PARSE_IDLE, FORWARD_DATA)),
                    ]
                with m.Elif(source.tlast):
                    m.d.comb += self.cut.eq(1)
                    m.d.sync += [beat.eq(0), state.eq(PARSE_IDLE)]
        with m.Else():
            m.d.comb += [
                out.tvalid.eq(source.tvalid),
                out.tdata.eq(source.tdata),
                out.tkeep.eq(source.tkeep),
                out.tlast.eq(source.tlast),
                out.tuser.eq(source.tuser),
                source.tready.eq(out.tready),
            ]
            with m.If(taken & source.tlast):
                m.d.sync += state.eq(PARSE_IDLE)
        with m.If(self.abort):
            m.d.sync += [state.eq(PARSE_IDLE), beat.eq(0), self.header_valid.eq(0)]
        return m


class RxStreamer(wiring.Component):
    """Decides whether and where a packet is written; drains the payload of a refused one.

    ``finished`` is one cycle long for each packet; ``error`` (an ERR_* code) and ``dropped`` are valid with it.
    """

    def __init__(self, params: EngineParams) -> None:
        super().__init__(
            {
                "header": In(ENGINE_HEADER_BYTES * 8),
                "header_valid": In(1),
                "header_ready": Out(1),
                "empty": In(1),
                "s_axis": In(AxiStream(params.bus_width)),
                "m_axis": Out(AxiStream(params.bus_width)),
                "dm_cmd": Out(WordStream(command_bits(params.address_bits))),
                "dm_sts": In(WordStream(STATUS_BITS)),
                "window_base": In(params.address_bits),
                "window_last": In(params.address_bits),
                "finished": Out(1),
                "dropped": Out(1),
                "error": Out(4),
                "busy": Out(1),
                "abort": In(1),
            }
        )
        self.params = params
        self.state = Signal(range(len(RX_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Build the receive path; the two variants differ in when the next header is examined."""
        return self._serial() if self.params.serial else self._overlapped()

    def _serial(self) -> Module:
        """Build the documented states; WAIT_COMPLETE also drains."""
        m = Module()
        state, source, out = self.state, self.s_axis, self.m_axis
        m.d.comb += self.busy.eq(state != IDLE)
        header, empty, drain, ended = unreset(ENGINE_HEADER_BYTES * 8), Signal(), Signal(), Signal()
        reason = Signal(4)
        length, is_write, outside = self._judge(m, header)
        feeding = (state == ISSUE_DM_CMD) | ((state == WAIT_COMPLETE) & ~drain)
        m.d.comb += [
            out.tvalid.eq(source.tvalid & feeding & ~ended),
            out.tdata.eq(source.tdata),
            out.tkeep.eq(source.tkeep),
            out.tlast.eq(source.tlast),
            out.tuser.eq(source.tuser),
            source.tready.eq(Mux(feeding, out.tready & ~ended, (state == WAIT_COMPLETE) & drain & ~ended)),
        ]
        with m.If(source.tvalid & source.tready & source.tlast):
            m.d.sync += ended.eq(1)
        with m.Switch(state):
            with m.Case(IDLE):
                m.d.comb += self.header_ready.eq(1)
                m.d.sync += [drain.eq(0), ended.eq(0), reason.eq(ERR_NONE)]
                with m.If(self.header_valid):
                    m.d.sync += [
                        header.eq(self.header),
                        empty.eq(self.empty),
                        ended.eq(self.empty),
                        state.eq(CHECK_OPCODE),
                    ]
            with m.Case(CHECK_OPCODE):
                m.d.sync += state.eq(PREPARE_CMD)
                with m.If(~is_write):
                    m.d.sync += [drain.eq(1), state.eq(WAIT_COMPLETE)]
            with m.Case(PREPARE_CMD):
                m.d.sync += state.eq(ISSUE_DM_CMD)
                with m.If(outside):
                    m.d.sync += [drain.eq(1), reason.eq(ERR_REMOTE_WINDOW), state.eq(WAIT_COMPLETE)]
                with m.Elif((length == 0) | empty | (length[BTT_BITS:] != 0)):
                    m.d.sync += [drain.eq(1), reason.eq(ERR_LENGTH), state.eq(WAIT_COMPLETE)]
            with m.Case(ISSUE_DM_CMD):
                m.d.comb += self.dm_cmd.tvalid.eq(1)
                with m.If(self.dm_cmd.tready):
                    m.d.sync += state.eq(WAIT_COMPLETE)
            with m.Case(WAIT_COMPLETE):
                m.d.comb += self.dm_sts.tready.eq(~drain)
                with m.If(drain & ended):
                    m.d.comb += [self.finished.eq(1), self.dropped.eq(1), self.error.eq(reason)]
                    m.d.sync += state.eq(IDLE)
                with m.Elif(~drain & self.dm_sts.tvalid):
                    m.d.comb += [self.finished.eq(1), self.error.eq(self._write_error())]
                    m.d.sync += state.eq(IDLE)
        with m.If(self.abort):
            m.d.sync += state.eq(IDLE)
        return m

    def _overlapped(self) -> Module:
        """Queue payloads while later headers are checked; WAIT_COMPLETE is never entered.

        Each packet has a verdict in addition to its payload: write it, or drain it with a reason.
        """
        m = Module()
        state, source = self.state, self.s_axis
        width, lanes = self.params.bus_width, self.params.bus_bytes
        m.submodules.leaving = leaving = RegisterSlice(width)  # to separate the DataMover from the queues
        wiring.connect(m, leaving.m_axis, wiring.flipped(self.m_axis))
        out = leaving.s_axis
        ahead = self.params.queue  # packets whose headers are checked before the current payload has passed
        clear = ResetInserter(self.abort)
        m.submodules.payloads = payloads = clear(SyncFIFO(width=width + lanes + 2, depth=PAYLOAD_BEATS))
        m.submodules.verdicts = verdicts = clear(SyncFIFO(width=6, depth=ahead))  # write, no payload, reason
        header, empty = unreset(ENGINE_HEADER_BYTES * 8), Signal()
        length, is_write, outside = self._judge(m, header, state == IDLE)
        to_write = Signal(range(2 * ahead + 4))  # commands whose status is outstanding
        issued = self.dm_cmd.tvalid & self.dm_cmd.tready
        answered = self.dm_sts.tvalid & self.dm_sts.tready
        m.d.sync += to_write.eq(to_write + issued - answered)
        m.d.comb += [
            payloads.w_data.eq(Cat(source.tdata, source.tkeep, source.tlast, source.tuser)),
            payloads.w_en.eq(source.tvalid),
            source.tready.eq(payloads.w_rdy),
        ]

        tell, told = Signal(), Signal()  # a verdict; queued in the next cycle
        m.d.sync += told.eq(tell)
        m.d.comb += verdicts.w_en.eq(told)

        def verdict(write: int, reason: int) -> None:
            m.d.comb += tell.eq(1)
            m.d.sync += [verdicts.w_data.eq(Cat(Const(write, 1), empty, Const(reason, 4))), state.eq(IDLE)]

        m.d.comb += self.busy.eq((state != IDLE) | told | verdicts.r_rdy | (to_write != 0) | self.finished)
        with m.Switch(state):
            with m.Case(IDLE):
                m.d.comb += self.header_ready.eq((verdicts.level < ahead - 1) & (to_write < 2 * ahead))
                with m.If(self.header_valid & self.header_ready):
                    m.d.sync += [header.eq(self.header), empty.eq(self.empty), state.eq(CHECK_OPCODE)]
            with m.Case(CHECK_OPCODE):
                m.d.sync += state.eq(PREPARE_CMD)
                with m.If(~is_write):
                    verdict(0, ERR_NONE)
            with m.Case(PREPARE_CMD):
                m.d.sync += state.eq(ISSUE_DM_CMD)
                with m.If(outside):
                    verdict(0, ERR_REMOTE_WINDOW)
                with m.Elif((length == 0) | empty | (length[BTT_BITS:] != 0)):
                    verdict(0, ERR_LENGTH)
            with m.Case(ISSUE_DM_CMD):
                m.d.comb += self.dm_cmd.tvalid.eq(1)
                with m.If(self.dm_cmd.tready):
                    verdict(1, ERR_NONE)

        beat, last = payloads.r_data, payloads.r_data[width + lanes]
        write, no_payload, reason = verdicts.r_data[0], verdicts.r_data[1], verdicts.r_data[2:]
        passing, draining, drained = Signal(), Signal(), Signal()
        m.d.comb += [
            passing.eq(verdicts.r_rdy & write),
            draining.eq(verdicts.r_rdy & ~write & ~no_payload),
            drained.eq(verdicts.r_rdy & ~write & (no_payload | (payloads.r_rdy & last))),
            Cat(out.tdata, out.tkeep, out.tlast, out.tuser).eq(beat),
            out.tvalid.eq(payloads.r_rdy & passing),
            payloads.r_en.eq((passing & out.tready) | draining),
            verdicts.r_en.eq(drained | (out.tvalid & out.tready & last)),
            self.dm_sts.tready.eq(~drained),
            leaving.clear.eq(self.abort),
        ]
        m.d.sync += [
            self.finished.eq(drained | self.dm_sts.tvalid),
            self.dropped.eq(drained),
            self.error.eq(Mux(drained, reason, self._write_error())),
        ]
        with m.If(self.abort):
            m.d.sync += [state.eq(IDLE), told.eq(0), to_write.eq(0), self.finished.eq(0)]
        return m

    def _judge(self, m: Module, header: Signal, comes: Value | None = None) -> tuple[Value, Value, Value]:
        """Return the packet length, whether its opcode writes, and whether it exceeds the window. The latter and the
        address are known in the second cycle of a header, PREPARE_CMD.

        With ``comes``, the cycle in which ``header`` is loaded, the sums start there, and the latter is registered.
        """
        bits, layout = self.params.address_bits, ENGINE_HEADER
        summed = header if comes is None else self.header
        remote: Value = unpack(summed, layout, "remote_addr")
        if self.params.wide:
            layout = ENGINE_HEADER_WIDE
            remote = Cat(*(unpack(summed, layout, name) for name, _low, _bits in ADDRESS_PARTS))
        # two bits more than the header's address, so that nothing wraps around into the window
        address, end, limit = unreset(len(remote) + 1), unreset(len(remote) + 2), unreset(bits + 1)
        length = unpack(header, layout, "length")
        start = remote + unpack(summed, layout, "fragment_offset")
        size = length if comes is None else unpack(summed, layout, "length")
        with nullcontext() if comes is None else m.If(comes):
            m.d.sync += [address.eq(start), end.eq(start + size)]
        m.d.sync += limit.eq(self.window_last + 1)
        m.d.comb += [
            self.dm_cmd.tdata.eq(
                pack(
                    dm_command_layout(bits),
                    {"btt": length[:BTT_BITS], "type": 1, "eof": 1, "address": address[:bits]},
                )
            ),
        ]
        opcode = unpack(header, layout, "opcode")
        is_write = Cat(*(opcode == code for code in WRITE_OPCODES)).any()
        outside: Value = (address < self.window_base) | (end > limit)
        if comes is not None:
            kept = Signal(name="outside")
            m.d.sync += kept.eq(outside)
            outside = kept
        return length, is_write, outside

    def _write_error(self) -> Value:
        """Return the ERR_* code of the DataMover's status."""
        status = self.dm_sts.tdata
        bus = unpack(status, DM_STATUS, "slverr")[0] | unpack(status, DM_STATUS, "decerr")[0]
        return Mux(bus, ERR_REMOTE_BUS, Mux(unpack(status, DM_STATUS, "interr")[0], ERR_LENGTH, ERR_NONE))
