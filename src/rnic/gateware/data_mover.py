"""``data_mover``: bytes between AXI4 memory and AXI4-Stream, by 72-bit commands (001 3.6; PG022 in behaviour).

MM2S reads memory into a stream, S2MM writes a stream into memory; starts may be unaligned on the memory side, a stream
begins in lane 0. Bursts are INCR, at most ``max_burst`` beats, and never cross 4 KB. Each channel carries out one
command at a time and answers it with a status word.

A command of type FIXED or with BTT 0 is answered with INTERR. Beats that came with a bus error, and all after them in
the packet, carry ``tuser``, and S2MM does not store such beats. An S2MM packet that is too long is drained up to TLAST,
one that is too short is completed with empty strobes, both with INTERR. ``abort`` ends the command in hand without a
status, as soon as the bus has had what it was promised; ``quiet`` says that nothing is left.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import keep_mask, pack, unpack
from rnic.gateware.interfaces import COMMAND_BITS, STATUS_BITS, Axi4, AxiStream, Burst, Resp, WordStream
from rnic.gateware.params import ADDRESS_BITS, BTT_BITS, EngineParams
from rnic.spec.engine_regs import DM_COMMAND, DM_STATUS

PAGE_BITS = 12


class _Bursts:
    """The address side that both channels share: what is left of a command, as bursts."""

    def __init__(self, m: Module, params: EngineParams, name: str) -> None:
        lane_bits = (params.bus_bytes - 1).bit_length()
        self.lane_bits = lane_bits
        self.page = Signal(ADDRESS_BITS - lane_bits, name=f"{name}_page")
        """Address of the next burst in beats."""
        self.left = Signal(BTT_BITS + 1, name=f"{name}_left")
        """Beats for which no burst has been issued."""
        self.beats = Signal(9, name=f"{name}_beats")
        """Length of the next burst."""
        page_beats = 1 << PAGE_BITS - lane_bits
        to_page = Signal(range(page_beats + 1), name=f"{name}_to_page")
        m.d.comb += to_page.eq(page_beats - (self.page % page_beats))
        limit = min(params.max_burst, 256)
        first = Mux(to_page < limit, to_page, limit)
        m.d.comb += self.beats.eq(Mux(self.left < first, self.left, first))

    def start(self, m: Module, address: Value, btt: Value) -> None:
        """Load a command."""
        offset = address[: self.lane_bits]
        lanes = 1 << self.lane_bits
        m.d.sync += [
            self.page.eq(address[self.lane_bits :]),
            self.left.eq((offset + btt + lanes - 1) >> self.lane_bits),
        ]

    def issued(self, m: Module) -> None:
        """The burst has gone out."""
        m.d.sync += [self.page.eq(self.page + self.beats), self.left.eq(self.left - self.beats)]


class Mm2s(wiring.Component):
    """Memory to stream. The read half of ``axi`` is used."""

    def __init__(self, params: EngineParams) -> None:
        super().__init__(
            {
                "cmd": In(WordStream(COMMAND_BITS)),
                "sts": Out(WordStream(STATUS_BITS)),
                "axi": Out(Axi4(params.bus_width, 1)),
                "m_axis": Out(AxiStream(params.bus_width)),
                "abort": In(1),
                "quiet": Out(1),
            }
        )
        self.params = params

    def elaborate(self, platform: object) -> Module:
        """Address side and data side run beside each other within a command."""
        m = Module()
        params, axi, out = self.params, self.axi, self.m_axis
        lanes, lane_bits = params.bus_bytes, (params.bus_bytes - 1).bit_length()
        bursts = _Bursts(m, params, "read")
        offset = Signal(lane_bits)
        left = Signal(BTT_BITS)  # bytes still to come out
        owed = Signal(BTT_BITS + 1)  # beats that the bus still has to bring for bursts issued
        busy, primed, flush = Signal(), Signal(), Signal()
        tag, eof = Signal(4), Signal()
        interr, decerr, slverr = Signal(), Signal(), Signal()
        held = Signal(params.bus_width)
        done = Signal()  # the status waits to be taken

        command = self.cmd.tdata
        m.d.comb += self.cmd.tready.eq(~busy & ~done & ~self.abort)
        with m.If(self.cmd.tvalid & self.cmd.tready):
            btt, address = unpack(command, DM_COMMAND, "btt"), unpack(command, DM_COMMAND, "address")
            good = (btt != 0) & unpack(command, DM_COMMAND, "type")[0]
            m.d.sync += [
                offset.eq(address[:lane_bits]),
                left.eq(btt),
                busy.eq(good),
                done.eq(~good),
                interr.eq(~good),
                decerr.eq(0),
                slverr.eq(0),
                primed.eq(0),
                flush.eq(0),
                tag.eq(unpack(command, DM_COMMAND, "tag")),
                eof.eq(unpack(command, DM_COMMAND, "eof")),
            ]
            with m.If(good):
                bursts.start(m, address, btt)

        # ---- addresses
        issue = Signal()
        m.d.comb += issue.eq(axi.arvalid & axi.arready)
        with m.If(~axi.arvalid & busy & (bursts.left != 0) & ~self.abort):
            m.d.sync += [
                axi.arvalid.eq(1),
                axi.araddr.eq(Cat(Const(0, lane_bits), bursts.page)),
                axi.arlen.eq(bursts.beats - 1),
            ]
            bursts.issued(m)
        with m.If(issue):
            m.d.sync += axi.arvalid.eq(0)
        m.d.comb += [axi.arsize.eq(lane_bits), axi.arburst.eq(Burst.INCR), axi.arcache.eq(0b0011)]

        # ---- data
        arrived = Signal()
        m.d.comb += arrived.eq(axi.rvalid & axi.rready)
        m.d.sync += owed.eq(owed + Mux(issue, axi.arlen + 1, 0) - arrived)
        shift = Cat(Const(0, 3), offset)
        bus_error = axi.rvalid & axi.rresp[1]
        direct = offset == 0
        makes_beat = direct | primed
        m.d.comb += [
            out.tdata.eq((Cat(Mux(direct, axi.rdata, held), axi.rdata) >> shift)[: params.bus_width]),
            out.tvalid.eq(busy & ~self.abort & (flush | (axi.rvalid & makes_beat & (left != 0)))),
            out.tkeep.eq(keep_mask(left, lanes)),
            out.tlast.eq(eof & (left <= lanes)),
            out.tuser.eq(decerr | slverr | (bus_error & ~flush)),
            axi.rready.eq(self.abort | ~busy | (~flush & (~makes_beat | (left == 0) | out.tready))),
        ]
        with m.If(arrived):
            m.d.sync += [
                held.eq(axi.rdata),
                primed.eq(1),
                slverr.eq(slverr | (axi.rresp == Resp.SLVERR.value)),
                decerr.eq(decerr | (axi.rresp == Resp.DECERR.value)),
            ]
        with m.If(out.tvalid & out.tready):
            m.d.sync += [left.eq(Mux(left <= lanes, 0, left - lanes)), flush.eq(0)]
        # the last beat of memory may hold the stream's last two
        last_arrives = arrived & (bursts.left == 0) & ~axi.arvalid & (owed == 1)
        after = Mux(out.tvalid & out.tready, Mux(left <= lanes, 0, left - lanes), left)
        with m.If(last_arrives & busy & (after != 0)):
            m.d.sync += flush.eq(1)
        with m.If(busy & (left == 0) & (owed == 0) & ~axi.arvalid & (bursts.left == 0)):
            m.d.sync += [busy.eq(0), done.eq(1)]
        with m.If(self.abort):
            m.d.sync += [busy.eq(0), done.eq(0), flush.eq(0), bursts.left.eq(0), left.eq(0)]
        m.d.comb += self.quiet.eq(~busy & (owed == 0) & ~axi.arvalid)

        m.d.comb += [self.sts.tvalid.eq(done), self.sts.tdata.eq(_status(tag, interr, decerr, slverr))]
        with m.If(self.sts.tvalid & self.sts.tready):
            m.d.sync += done.eq(0)
        return m


class S2mm(wiring.Component):
    """Stream to memory. The write half of ``axi`` is used."""

    def __init__(self, params: EngineParams) -> None:
        super().__init__(
            {
                "cmd": In(WordStream(COMMAND_BITS)),
                "sts": Out(WordStream(STATUS_BITS)),
                "axi": Out(Axi4(params.bus_width, 1)),
                "s_axis": In(AxiStream(params.bus_width)),
                "abort": In(1),
                "quiet": Out(1),
            }
        )
        self.params = params

    def elaborate(self, platform: object) -> Module:
        """One burst after the other; its address goes out when its first data are there."""
        m = Module()
        params, axi, source = self.params, self.axi, self.s_axis
        lanes, lane_bits = params.bus_bytes, (params.bus_bytes - 1).bit_length()
        bursts = _Bursts(m, params, "write")
        offset = Signal(lane_bits)
        fed = Signal(BTT_BITS + 1)  # bytes that the stream still has to bring
        in_burst = Signal(9)  # beats of the burst in hand
        owed = Signal(8)  # responses
        busy, ended, drain = Signal(), Signal(), Signal()
        poison = Signal()
        tag = Signal(4)
        interr, decerr, slverr = Signal(), Signal(), Signal()
        held, held_mask = Signal(params.bus_width), Signal(lanes)
        done = Signal()

        command = self.cmd.tdata
        m.d.comb += self.cmd.tready.eq(~busy & ~done & ~drain & ~self.abort)
        with m.If(self.cmd.tvalid & self.cmd.tready):
            btt, address = unpack(command, DM_COMMAND, "btt"), unpack(command, DM_COMMAND, "address")
            good = (btt != 0) & unpack(command, DM_COMMAND, "type")[0]
            m.d.sync += [
                offset.eq(address[:lane_bits]),
                fed.eq(btt),
                busy.eq(good),
                done.eq(~good),
                interr.eq(~good),
                decerr.eq(0),
                slverr.eq(0),
                ended.eq(0),
                poison.eq(0),
                held_mask.eq(0),
                tag.eq(unpack(command, DM_COMMAND, "tag")),
            ]
            with m.If(good):
                bursts.start(m, address, btt)

        # ---- addresses
        wants = busy & (in_burst == 0) & (bursts.left != 0) & ~axi.awvalid
        ready_to_go = source.tvalid | (fed == 0) | ended
        with m.If(wants & ready_to_go & ~self.abort):
            m.d.sync += [
                axi.awvalid.eq(1),
                axi.awaddr.eq(Cat(Const(0, lane_bits), bursts.page)),
                axi.awlen.eq(bursts.beats - 1),
                in_burst.eq(bursts.beats),
                owed.eq(owed + 1 - (axi.bvalid & axi.bready)),
            ]
            bursts.issued(m)
        with m.Elif(axi.bvalid & axi.bready):
            m.d.sync += owed.eq(owed - 1)
        with m.If(axi.awvalid & axi.awready):
            m.d.sync += axi.awvalid.eq(0)
        m.d.comb += [axi.awsize.eq(lane_bits), axi.awburst.eq(Burst.INCR), axi.awcache.eq(0b0011)]

        # ---- data: one register, then the bus, so that a beat once shown stays
        need = (fed != 0) & ~ended & ~self.abort
        can_load = ~axi.wvalid | axi.wready
        beat = Signal()  # a beat goes into the output register
        giving = (in_burst != 0) & can_load & ~axi.awvalid
        m.d.comb += beat.eq(giving & (~need | source.tvalid))
        m.d.comb += source.tready.eq((giving & need & busy) | drain)
        take = Signal()
        m.d.comb += take.eq(beat & need)
        store = take & ~source.tuser & ~poison
        mask = Mux(store, source.tkeep & keep_mask(fed, lanes), 0)
        data = Mux(take, source.tdata, 0)
        turn = Signal(lane_bits + 1)
        m.d.comb += turn.eq(lanes - offset)
        both_mask = Cat(held_mask, mask) >> turn
        with m.If(can_load):
            m.d.sync += axi.wvalid.eq(beat)
        with m.If(beat):
            m.d.sync += [
                axi.wdata.eq((Cat(held, data) >> Cat(Const(0, 3), turn))[: params.bus_width]),
                axi.wstrb.eq(Mux(self.abort, 0, both_mask[:lanes])),
                axi.wlast.eq(in_burst == 1),
                in_burst.eq(in_burst - 1),
                held.eq(data),
                held_mask.eq(mask),
            ]
        with m.If(take):
            short = source.tlast & (fed > lanes)
            full = keep_mask(fed, lanes)
            m.d.sync += [
                fed.eq(Mux(fed <= lanes, 0, fed - lanes)),
                ended.eq(source.tlast),
                poison.eq(poison | source.tuser),
                interr.eq(
                    interr | short | ((source.tkeep & full) != full) | (source.tkeep & ~full).any() | source.tuser
                ),
            ]
            with m.If((fed <= lanes) & ~source.tlast):
                m.d.sync += [drain.eq(1), interr.eq(1)]
        with m.If(drain & source.tvalid & source.tlast):
            m.d.sync += drain.eq(0)

        m.d.comb += axi.bready.eq(1)
        with m.If(axi.bvalid):
            m.d.sync += [
                slverr.eq(slverr | (axi.bresp == Resp.SLVERR.value)),
                decerr.eq(decerr | (axi.bresp == Resp.DECERR.value)),
            ]
        over = (bursts.left == 0) & (in_burst == 0) & ~axi.wvalid & ~axi.awvalid & (owed == 0)
        with m.If(busy & over & ~drain):
            m.d.sync += [busy.eq(0), done.eq(1)]
        with m.If(self.abort):
            m.d.sync += [busy.eq(0), done.eq(0), drain.eq(0), bursts.left.eq(0), fed.eq(0), ended.eq(1)]
        m.d.comb += self.quiet.eq(~busy & (in_burst == 0) & ~axi.wvalid & ~axi.awvalid & (owed == 0))

        m.d.comb += [self.sts.tvalid.eq(done), self.sts.tdata.eq(_status(tag, interr, decerr, slverr))]
        with m.If(self.sts.tvalid & self.sts.tready):
            m.d.sync += done.eq(0)
        return m


def _status(tag: Value, interr: Value, decerr: Value, slverr: Value) -> Value:
    okay = ~(interr | decerr | slverr)
    return pack(DM_STATUS, {"tag": tag, "interr": interr, "decerr": decerr, "slverr": slverr, "okay": okay})


class DataMover(wiring.Component):
    """Both channels on one AXI4 port, with id ``ident``."""

    def __init__(self, params: EngineParams, ident: int) -> None:
        super().__init__(
            {
                "mm2s_cmd": In(WordStream(COMMAND_BITS)),
                "mm2s_sts": Out(WordStream(STATUS_BITS)),
                "mm2s": Out(AxiStream(params.bus_width)),
                "mm2s_abort": In(1),
                "mm2s_quiet": Out(1),
                "s2mm_cmd": In(WordStream(COMMAND_BITS)),
                "s2mm_sts": Out(WordStream(STATUS_BITS)),
                "s2mm": In(AxiStream(params.bus_width)),
                "s2mm_abort": In(1),
                "s2mm_quiet": Out(1),
                "axi": Out(Axi4(params.bus_width, 1)),
            }
        )
        self.params = params
        self.ident = ident
        self.reader = Mm2s(params)
        self.writer = S2mm(params)

    def elaborate(self, platform: object) -> Module:
        """Nothing but wires."""
        m = Module()
        m.submodules.mm2s, m.submodules.s2mm = reader, writer = self.reader, self.writer
        flipped = wiring.flipped
        wiring.connect(m, flipped(self.mm2s_cmd), reader.cmd)
        wiring.connect(m, reader.sts, flipped(self.mm2s_sts))
        wiring.connect(m, reader.m_axis, flipped(self.mm2s))
        wiring.connect(m, flipped(self.s2mm_cmd), writer.cmd)
        wiring.connect(m, writer.sts, flipped(self.s2mm_sts))
        wiring.connect(m, flipped(self.s2mm), writer.s_axis)
        m.d.comb += [
            reader.abort.eq(self.mm2s_abort),
            self.mm2s_quiet.eq(reader.quiet),
            writer.abort.eq(self.s2mm_abort),
            self.s2mm_quiet.eq(writer.quiet),
        ]
        for name, member in self.axi.signature.members.items():
            part = reader if name[:2] in ("ar", "rv") or (name[0] == "r") else writer
            ours, theirs = getattr(self.axi, name), getattr(part.axi, name)
            if name in ("arid", "awid"):
                m.d.comb += ours.eq(self.ident)
            elif member.flow == Out:
                m.d.comb += ours.eq(theirs)
            else:
                m.d.comb += theirs.eq(ours)
        return m
