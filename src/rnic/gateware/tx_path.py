"""The transmit path: ``tx_streamer`` cuts WRITEs into fragments, ``tx_header_inserter`` prepends the seven-word header
to each."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import pack, unpack, unreset
from rnic.gateware.interfaces import STATUS_BITS, AxiStream, WordStream, command_bits
from rnic.gateware.params import EngineParams
from rnic.rings.sqe import SQ_ENTRY, SQE_BYTES
from rnic.spec.engine_regs import (
    DM_STATUS,
    ERR_LOCAL_BUS,
    ERR_NONE,
    INSERTER_STATES,
    TX_PKEY,
    TX_PSN,
    TX_SERVICE_LEVEL,
    TX_STATES,
    dm_command_layout,
)
from rnic.wire.engine_header import ADDRESS_PARTS, ENGINE_HEADER, ENGINE_HEADER_BYTES, ENGINE_HEADER_WIDE, MARKER

IDLE, INIT_FRAGMENT, PROGRAM_HEADER, START_HEADER, ISSUE_DM_CMD, WAIT_DM_STS, WAIT_HDR_DONE, UPDATE_STATE, SEND_CPL = (
    range(len(TX_STATES))
)
SEND_IDLE, SEND_HEADER, SEND_DATA = range(len(INSERTER_STATES))


class TxStreamer(wiring.Component):
    """Sends header and payload, fragment by fragment, until the descriptor's length is sent.

    Serial: the next fragment is programmed after the previous one was sent, as documented. Overlapped: as soon as there
    is room for its commands; WAIT_DM_STS and WAIT_HDR_DONE are entered once, after the last fragment. With several
    WRITEs in flight they are not entered: ``count_valid`` reports the number of a WRITE's packets, ``read_valid`` that
    its payload was read; both are one cycle long and in order.
    """

    def __init__(self, params: EngineParams) -> None:
        super().__init__(
            {
                "cmd_valid": In(1),
                "cmd_ready": Out(1),
                "descriptor": In(SQE_BYTES * 8),
                "cpl_valid": Out(1),
                "cpl_ready": In(1),
                "cpl_error": Out(4),
                "cpl_bytes": Out(32),
                "busy": Out(1),
                "network": In(1),
                "meta_valid": Out(1),
                "meta_ready": In(1),
                "meta_length": Out(16),
                "header": Out(ENGINE_HEADER_BYTES * 8),
                "start_tx": Out(1),
                "start_ready": In(1),
                "tx_done": In(1),
                "dm_cmd": Out(WordStream(command_bits(params.address_bits))),
                "dm_sts": In(WordStream(STATUS_BITS)),
                "fragment_id": Out(16),
                "more_fragments": Out(1),
                "count_valid": Out(1),
                "count": Out(32),
                "read_valid": Out(1),
                "read_bad": Out(1),
                "read_bytes": Out(32),
                "abort": In(1),
            }
        )
        self.params = params
        self.state = Signal(range(len(TX_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Build the documented states."""
        m = Module()
        params, state = self.params, self.state
        command = unreset(SQE_BYTES * 8)
        layout = ENGINE_HEADER_WIDE if params.wide else ENGINE_HEADER
        address_bits, offset_bits = params.address_bits, layout["fragment_offset"].width
        address, offset, remaining, chunk = unreset(address_bits), unreset(offset_bits), unreset(32), unreset(17)
        read_done, header_done, failed = Signal(), Signal(), Signal()
        sent = unreset(32)
        read_status_okay = unpack(self.dm_sts.tdata, DM_STATUS, "okay")[0]

        remote = unpack(command, SQ_ENTRY, "remote_addr")
        reach = {"remote_addr": remote[:32]}
        if params.wide:  # offset bits that do not fit the header go into the address
            far = unreset(64 - len(offset))
            whole = Cat(remote[: len(offset)], far)
            reach = {name: whole[low : low + bits] for name, low, bits in ADDRESS_PARTS}

        to_boundary, by_block, measured = unreset(17), unreset(17), Signal()
        m.d.sync += [
            to_boundary.eq(params.boundary - (address & (params.boundary - 1))),
            by_block.eq(Mux(remaining > params.block_size, params.block_size, remaining)),
            measured.eq((state == PROGRAM_HEADER) & ~measured),
        ]
        m.d.comb += [
            self.cpl_error.eq(Mux(failed, ERR_LOCAL_BUS, ERR_NONE)),
            self.cpl_bytes.eq(sent),
            self.more_fragments.eq(remaining > chunk),
            self.meta_length.eq(chunk + ENGINE_HEADER_BYTES),
            self.header.eq(
                pack(
                    layout,
                    {
                        "opcode": unpack(command, SQ_ENTRY, "opcode")[:8],
                        "psn": Const(TX_PSN, 24),
                        "dqpn": unpack(command, SQ_ENTRY, "wqe_id")[:24],
                        **reach,
                        "fragment_offset": offset,
                        "length": chunk,
                        "pkey": Const(TX_PKEY, 16),
                        "service_level": Const(TX_SERVICE_LEVEL, 8),
                        "marker": Const(MARKER, 24),
                    },
                )
            ),
            self.dm_cmd.tdata.eq(
                pack(
                    dm_command_layout(address_bits),
                    {"btt": chunk, "type": 1, "eof": 1, "address": address},
                )
            ),
            self.dm_sts.tready.eq(1),
        ]
        serial = params.serial
        # fragments whose payload is being read, and their lengths; packets not yet sent
        ahead, several = params.queue, params.in_flight > 1
        m.submodules.lengths = lengths = SyncFIFO(width=len(chunk) + 1, depth=ahead)
        packets = Signal(range(ahead + 2))
        read_length, read_last = lengths.r_data[:-1], lengths.r_data[-1]
        issued, read = Signal(), Signal()
        m.d.comb += [
            issued.eq(self.dm_cmd.tvalid & self.dm_cmd.tready),
            read.eq(self.dm_sts.tvalid & lengths.r_rdy),
            lengths.w_data.eq(Cat(chunk, ~self.more_fragments)),
            lengths.w_en.eq(issued),
            lengths.r_en.eq(read | self.abort),
            read_done.eq(~lengths.r_rdy),
            header_done.eq(packets == 0),
        ]
        m.d.sync += packets.eq(packets + self.start_tx - self.tx_done)
        now_failed, now_sent = failed | ~read_status_okay, sent + Mux(read_status_okay & ~failed, read_length, 0)
        with m.If(read):
            m.d.sync += [failed.eq(now_failed), sent.eq(now_sent)]
        if several:
            m.d.comb += [
                self.busy.eq((state != IDLE) | lengths.r_rdy | (packets != 0)),
                self.read_valid.eq(read & read_last),
                self.read_bad.eq(now_failed),
                self.read_bytes.eq(now_sent),
                self.count_valid.eq((state == UPDATE_STATE) & ~self.more_fragments),
                self.count.eq(self.fragment_id + 1),
            ]
            with m.If(self.read_valid):
                m.d.sync += [failed.eq(0), sent.eq(0)]
        else:
            m.d.comb += self.busy.eq(state != IDLE)

        with m.Switch(state):
            with m.Case(IDLE):
                m.d.comb += self.cmd_ready.eq(1)
                with m.If(self.cmd_valid):
                    m.d.sync += [command.eq(self.descriptor), state.eq(INIT_FRAGMENT)]
                    if not several:
                        m.d.sync += [failed.eq(0), sent.eq(0)]
            with m.Case(INIT_FRAGMENT):
                m.d.sync += [
                    address.eq(unpack(command, SQ_ENTRY, "local_addr")[: len(address)]),
                    remaining.eq(unpack(command, SQ_ENTRY, "length")),
                    offset.eq(0),
                    self.fragment_id.eq(0),
                    state.eq(PROGRAM_HEADER),
                ]
                if params.wide:
                    m.d.sync += far.eq(remote[len(offset) :])
            with m.Case(PROGRAM_HEADER):
                m.d.sync += chunk.eq(Mux(by_block > to_boundary, to_boundary, by_block))
                with m.If(measured):
                    m.d.sync += state.eq(START_HEADER)
            with m.Case(START_HEADER):
                room = self.start_ready & lengths.w_rdy & (packets < ahead)
                m.d.comb += self.meta_valid.eq(self.network & room)
                with m.If(room & (~self.network | self.meta_ready)):
                    m.d.comb += self.start_tx.eq(1)
                    m.d.sync += state.eq(ISSUE_DM_CMD)
            with m.Case(ISSUE_DM_CMD):
                m.d.comb += self.dm_cmd.tvalid.eq(1)
                with m.If(self.dm_cmd.tready):
                    m.d.sync += state.eq(WAIT_DM_STS if serial else UPDATE_STATE)
            with m.Case(WAIT_DM_STS), m.If(read_done):
                m.d.sync += state.eq(WAIT_HDR_DONE)
            with m.Case(WAIT_HDR_DONE), m.If(header_done):
                m.d.sync += state.eq(UPDATE_STATE if serial else SEND_CPL)
            with m.Case(UPDATE_STATE):
                more = self.more_fragments if several else self.more_fragments & ~failed
                after = IDLE if several else SEND_CPL if serial else WAIT_DM_STS
                m.d.sync += [
                    address.eq(address + chunk),
                    offset.eq(offset + chunk),
                    remaining.eq(remaining - chunk),
                    self.fragment_id.eq(self.fragment_id + 1),
                    state.eq(Mux(more, PROGRAM_HEADER, after)),
                ]
                if params.wide:
                    m.d.sync += far.eq(far + (offset + chunk)[len(offset)])
            with m.Case(SEND_CPL):
                m.d.comb += self.cpl_valid.eq(1)
                with m.If(self.cpl_ready):
                    m.d.sync += state.eq(IDLE)
        with m.If(self.abort):
            m.d.sync += [state.eq(IDLE), packets.eq(0), failed.eq(0), sent.eq(0)]
        return m


class TxHeaderInserter(wiring.Component):
    """Sends the seven words in separate beats, then passes the payload until TLAST; ``tx_done`` is one cycle long.

    Overlapped, one more header is accepted while a packet is sent, and follows it without a gap; with several WRITEs in
    flight, as many as fragments are cut ahead.
    """

    def __init__(self, params: EngineParams) -> None:
        super().__init__(
            {
                "header": In(ENGINE_HEADER_BYTES * 8),
                "start_tx": In(1),
                "start_ready": Out(1),
                "s_axis": In(AxiStream(params.bus_width)),
                "m_axis": Out(AxiStream(params.bus_width)),
                "tx_done": Out(1),
                "abort": In(1),
            }
        )
        self.params = params
        self.state = Signal(range(len(INSERTER_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Capture the header at ``start_tx`` and shift it out."""
        m = Module()
        state, out, source, lanes = self.state, self.m_axis, self.s_axis, self.params.bus_bytes
        beats = self.params.header_beats
        words, beat = unreset(ENGINE_HEADER_BYTES * 8), Signal(range(beats + 1))
        several = self.params.in_flight > 1
        following, waiting = unreset(ENGINE_HEADER_BYTES * 8), Signal()
        begin, take = self.start_tx, Signal()
        header = self.header
        if several:
            queued = SyncFIFO(width=ENGINE_HEADER_BYTES * 8, depth=self.params.queue)
            m.submodules.queued = queued = ResetInserter(self.abort)(queued)
            m.d.comb += [
                queued.w_data.eq(self.header),
                queued.w_en.eq(self.start_tx),
                queued.r_en.eq(take),
                self.start_ready.eq(queued.w_rdy),
            ]
            begin, header = queued.r_rdy, queued.r_data
        last_keep = (1 << ENGINE_HEADER_BYTES - (beats - 1) * lanes) - 1
        with m.Switch(state):
            with m.Case(SEND_IDLE):
                m.d.sync += [words.eq(header), beat.eq(0)]
                with m.If(begin):
                    m.d.comb += take.eq(1)
                    m.d.sync += state.eq(SEND_HEADER)
            with m.Case(SEND_HEADER):
                m.d.comb += out.tvalid.eq(1)
                with m.If(out.tready):
                    m.d.sync += [words.eq(Cat(words[lanes * 8 :])), beat.eq(beat + 1)]
                    with m.If(beat == beats - 1):
                        m.d.sync += state.eq(SEND_DATA)
            with m.Case(SEND_DATA):
                m.d.comb += [
                    out.tvalid.eq(source.tvalid),
                    out.tlast.eq(source.tlast),
                    out.tuser.eq(source.tuser),
                    source.tready.eq(out.tready),
                ]
                with m.If(source.tvalid & source.tready & source.tlast):
                    m.d.comb += self.tx_done.eq(1)
                    m.d.sync += state.eq(SEND_IDLE)
                    with m.If(waiting):
                        m.d.sync += [words.eq(following), beat.eq(0), waiting.eq(0), state.eq(SEND_HEADER)]
                    with m.Elif(begin):
                        m.d.comb += take.eq(1)
                        m.d.sync += [words.eq(header), beat.eq(0), state.eq(SEND_HEADER)]
        # all lanes have their own enable register instead of the state
        in_header, in_data = Signal(init=1), Signal()  # one for each half of them
        final = beat == beats - 1
        with m.If(self.abort | ((state == SEND_DATA) & source.tvalid & out.tready & source.tlast)):
            m.d.sync += [in_header.eq(1), in_data.eq(0)]
        with m.Elif((state == SEND_HEADER) & out.tready & final):
            m.d.sync += [in_header.eq(0), in_data.eq(1)]
        half = lanes * 4
        m.d.comb += [
            out.tdata[:half].eq(Mux(in_header, words[:half], source.tdata[:half])),
            out.tdata[half:].eq(Mux(in_data, source.tdata[half:], words[half : lanes * 8])),
            out.tkeep.eq(Mux(in_header, Mux(final, last_keep, (1 << lanes) - 1), source.tkeep)),
        ]
        if self.params.serial:
            m.d.comb += self.start_ready.eq(state == SEND_IDLE)
        elif not several:
            m.d.comb += self.start_ready.eq(~waiting)
            with m.If(self.start_tx & (state != SEND_IDLE) & ~self.tx_done):
                m.d.sync += [following.eq(self.header), waiting.eq(1)]
        with m.If(self.abort):
            m.d.sync += [state.eq(SEND_IDLE), waiting.eq(0)]
        return m
