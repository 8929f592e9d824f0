"""``data_mover``: move bytes between AXI4 memory and AXI4-Stream, by commands of 72 bits (104 for addresses beyond 32
bits; 001 3.6; behavior of PG022).

MM2S reads memory into a stream, S2MM writes a stream into memory; memory addresses may be unaligned, a stream begins in
lane 0. Bursts are INCR, at most ``max_burst`` beats, and end at multiples of that length, so that none crosses 4 KB.
Commands queue and their bursts overlap; statuses are in command order.

A command of type FIXED or with BTT 0 is answered with INTERR. Beats read with a bus error, and all later ones of the
packet, have ``tuser`` set; S2MM does not store such beats. An S2MM packet that is too long is drained up to TLAST; one
that is too short is completed with empty strobes; both get INTERR. ``abort`` drops every command, without a status,
once the transfers already started on the bus are complete; ``quiet`` says that nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rnic.gateware.beat_joiner import BeatJoiner, by_lane
from rnic.gateware.bits import keep_mask, pack, register_at, unreset
from rnic.gateware.burst_plan import Countdown, Plan, burst_beats, log2
from rnic.gateware.interfaces import STATUS_BITS, Axi4, AxiStream, Burst, Resp, WordStream, command_bits
from rnic.gateware.params import EngineParams
from rnic.gateware.register_slice import RegisterSlice
from rnic.spec.engine_regs import DM_STATUS

STATUSES = 4
"""Depth of the status queue."""


def _named(m: Module, value: Value, name: str) -> Signal:
    """Return a named wire for a value used more than once, since an expression is duplicated at each use."""
    wire = Signal(len(value), name=name)
    m.d.comb += wire.eq(value)
    return wire


def _rotate(m: Module, lanes: Value, lane: int, by: Value, up: bool, name: str) -> Value:
    """Return ``lanes`` of ``lane`` bits each, rotated by ``by`` lanes toward higher or lower lanes."""
    for step in range(len(by)):
        distance = lane << step
        turned = lanes.rotate_left(distance) if up else lanes.rotate_right(distance)
        lanes = _named(m, Mux(by[step], turned, lanes), f"{name}_{step}")
    return lanes


def _multiple(offset: Value, of: int) -> Value:
    """Return the offset, known to be a multiple: its low bits are no signals."""
    low = min(log2(of), len(offset))
    return Cat(Const(0, low), offset[low:])


def _of_job(m: Module, plan: Plan, job: Any, of: Callable[[Any], Value]) -> Value:
    """Return a value that depends only on the current job, as a register loaded with the job."""
    made = of(plan.job)
    known = unreset(len(made), name="known")
    with m.If(plan.job_take & plan.job_valid):
        m.d.sync += known.eq(made)
    return known


def _tail_lanes(m: Module, plan: Plan, job: Any) -> Value:
    """Return the lanes of the last beat of a job's stream."""
    lanes = plan.params.bus_bytes
    return _of_job(m, plan, job, lambda job: keep_mask(job.tail, lanes) | (job.tail == 0).replicate(lanes))


class Statuses(wiring.Component):
    """Status words in order; ``room`` reserves space for the two that may be in flight."""

    def __init__(self) -> None:
        super().__init__(
            {
                "word": In(STATUS_BITS),
                "push": In(1),
                "room": Out(1),
                "drop": In(1),
                "sts": Out(WordStream(STATUS_BITS)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build a queue."""
        m = Module()
        m.submodules.queue = queue = SyncFIFO(width=STATUS_BITS, depth=STATUSES)
        m.d.comb += [
            queue.w_data.eq(self.word),
            queue.w_en.eq(self.push & ~self.drop),
            self.room.eq(queue.level <= STATUSES - 3),
            self.sts.tdata.eq(queue.r_data),
            self.sts.tvalid.eq(queue.r_rdy & ~self.drop),
            queue.r_en.eq(self.sts.tready | self.drop),
        ]
        return m


class Mm2s(wiring.Component):
    """Memory to stream. The read half of ``axi`` is used.

    ``aligned``: command addresses are multiples of this many bytes, so unneeded parts of the rotator are omitted.
    """

    def __init__(self, params: EngineParams, aligned: int = 1) -> None:
        super().__init__(
            {
                "cmd": In(WordStream(command_bits(params.address_bits))),
                "sts": Out(WordStream(STATUS_BITS)),
                "axi": Out(Axi4(params.bus_width, 1, params.address_bits)),
                "m_axis": Out(AxiStream(params.bus_width)),
                "abort": In(1),
                "quiet": Out(1),
            }
        )
        self.params = params
        self.aligned = aligned

    def elaborate(self, platform: object) -> Module:
        """Build the read channel: addresses run ahead of data, which pass through one rotating register."""
        m = Module()
        params, axi, out = self.params, self.axi, self.m_axis
        width, lanes = params.bus_width, params.bus_bytes
        m.submodules.plan = plan = Plan(params)
        m.submodules.statuses = statuses = Statuses()
        wiring.connect(m, wiring.flipped(self.cmd), plan.cmd)
        wiring.connect(m, statuses.sts, wiring.flipped(self.sts))

        # ---- addresses
        flying = Signal(range(params.outstanding + 2))  # bursts whose last beat has not arrived
        m.d.comb += [
            plan.abort.eq(self.abort),
            plan.room.eq(flying < params.outstanding),
            plan.ready.eq(axi.arready),
            axi.arvalid.eq(plan.valid),
            axi.araddr.eq(plan.addr),
            axi.arlen.eq(plan.len),
            axi.arsize.eq(log2(lanes)),
            axi.arburst.eq(Burst.INCR),
            axi.arcache.eq(0b0011),
        ]
        arrived = Signal()
        m.d.comb += arrived.eq(axi.rvalid & axi.rready)
        landed = Signal()  # a cycle late, since the deciding signals also drive all lanes
        m.d.sync += landed.eq(arrived & axi.rlast)
        m.d.sync += flying.eq(flying + (axi.arvalid & axi.arready) - landed)

        # ---- data
        job = unreset(plan.job_layout)
        busy = Signal()
        at_rest = Signal(init=1)  # a copy of not `busy` near all lanes
        to_come = Countdown(m, len(job.memory_beats), "to_come")
        to_go = Countdown(m, len(job.stream_beats), "to_go")
        primed, slverr, decerr = Signal(), Signal(), Signal()
        before, shown = unreset(width), register_at(m, out.tdata)  # the last memory beat, rotated
        shown_last = Signal()  # the output beat is the last of its command
        shown_status = Signal(STATUS_BITS)

        free = Signal()  # the output register can be loaded
        emit, wants, straight, final = Signal(), Signal(), Signal(), Signal()

        def offset_of(job: Any) -> Value:
            return _multiple(job.offset, self.aligned)

        def lanes_from_now(job: Any) -> Value:
            offset = offset_of(job)
            return Cat(*((offset + lane) >= lanes for lane in range(lanes)))

        turned = _rotate(m, axi.rdata, 8, offset_of(job), up=False, name="turned")
        from_now = _named(m, _of_job(m, plan, job, lanes_from_now), "from_now")
        last_keep = _tail_lanes(m, plan, job) | (~to_go.one).replicate(lanes)
        bad = arrived & axi.rresp[1]
        slv = slverr | (arrived & (axi.rresp == Resp.SLVERR))
        dec = decerr | (arrived & (axi.rresp == Resp.DECERR))
        m.d.comb += [
            free.eq(~out.tvalid | out.tready),
            straight.eq(_of_job(m, plan, job, lambda job: offset_of(job) == 0)),
            wants.eq(busy & to_come.any),
            axi.rready.eq(self.abort | (wants & (~(straight | primed) | free))),
            emit.eq(busy & free & Mux(wants, axi.rvalid & (straight | primed), to_go.any) & ~self.abort),
            final.eq(emit & to_go.one & (to_come.one | ~to_come.any)),
        ]
        with m.If(out.tready):
            m.d.sync += out.tvalid.eq(0)
        with m.If(arrived):
            to_come.step()
            m.d.sync += [primed.eq(1), slverr.eq(slv), decerr.eq(dec)]
        beat = [
            shown.eq(Mux(straight, axi.rdata, by_lane(from_now, turned, before, 8))),
            out.tkeep.eq(last_keep),
            out.tlast.eq(to_go.one & job.eof),
            out.tuser.eq(slverr | decerr | bad),
            shown_last.eq(to_go.one),
            shown_status.eq(_status(job.tag, Const(0, 1), dec, slv)),
        ]
        with m.If(emit):
            to_go.step()
            m.d.sync += out.tvalid.eq(1)
        # all lanes have their own enable register, unaffected by aborts: only valid falls
        wants_one = ~at_rest & to_come.any
        with m.If(~at_rest & free & Mux(wants_one, axi.rvalid & (straight | primed), to_go.any)):
            m.d.sync += beat
        with m.If(axi.rvalid & wants_one & (~(straight | primed) | free)):
            m.d.sync += before.eq(turned)
        # a beat still owed to the job after its stream is complete is taken before the job ends
        over = Signal()
        m.d.comb += over.eq(busy & (final | job.refused))
        m.d.comb += plan.job_take.eq(~busy & statuses.room)
        with m.If(plan.job_take & plan.job_valid & ~self.abort):
            to_come.load(plan.job.memory_beats, plan.job.refused)
            to_go.load(plan.job.stream_beats, plan.job.refused)
            m.d.sync += [
                job.eq(plan.job),
                busy.eq(1),
                primed.eq(0),
                slverr.eq(0),
                decerr.eq(0),
                at_rest.eq(0),
            ]
        with m.Elif(over):
            m.d.sync += [busy.eq(0), at_rest.eq(1)]

        refuse = busy & job.refused & ~self.abort
        m.d.comb += [
            statuses.push.eq((out.tvalid & out.tready & shown_last) | (refuse & ~out.tvalid)),
            statuses.word.eq(Mux(out.tvalid, shown_status, _status(job.tag, Const(1, 1), Const(0, 1), Const(0, 1)))),
            statuses.drop.eq(self.abort),
            self.quiet.eq(~busy & ~plan.job_valid & ~axi.arvalid & (flying == 0) & ~out.tvalid),
        ]
        # a refused command waits until the beat before it has left, so that statuses keep their order
        with m.If(refuse & out.tvalid):
            m.d.comb += over.eq(0)
        with m.If(self.abort):
            m.d.comb += plan.job_take.eq(1)
            m.d.sync += [busy.eq(0), to_go.any.eq(0), out.tvalid.eq(0), at_rest.eq(1)]
        return m


class S2mm(wiring.Component):
    """Stream to memory. The write half of ``axi`` is used. ``aligned`` as for :class:`Mm2s`."""

    def __init__(self, params: EngineParams, aligned: int = 1) -> None:
        super().__init__(
            {
                "cmd": In(WordStream(command_bits(params.address_bits))),
                "sts": Out(WordStream(STATUS_BITS)),
                "axi": Out(Axi4(params.bus_width, 1, params.address_bits)),
                "s_axis": In(AxiStream(params.bus_width)),
                "abort": In(1),
                "quiet": Out(1),
            }
        )
        self.params = params
        self.aligned = aligned

    def elaborate(self, platform: object) -> Module:
        """Build the write channel: addresses run ahead of data, and data ahead of responses."""
        m = Module()
        params, axi, source = self.params, self.axi, self.s_axis
        width, lanes = params.bus_width, params.bus_bytes
        longest = burst_beats(params)
        m.submodules.plan = plan = Plan(params)
        m.submodules.statuses = statuses = Statuses()
        m.submodules.answers = answers = SyncFIFO(width=1, depth=params.outstanding)  # per burst: last of its command
        m.submodules.ended = ended_jobs = SyncFIFO(width=6, depth=params.queue)  # per command: refused, INTERR, tag
        wiring.connect(m, wiring.flipped(self.cmd), plan.cmd)
        wiring.connect(m, statuses.sts, wiring.flipped(self.sts))

        # ---- addresses: data follow their address, so that an abort knows what it owes, without waiting for its
        # acceptance
        credit = Signal(range(params.outstanding + 2))  # addressed bursts whose last beat has not been built
        last_made = Signal()
        addressed, waiting = Signal(), Signal()
        m.d.comb += [
            addressed.eq(axi.awvalid & ~waiting),
            plan.abort.eq(self.abort),
            plan.room.eq(answers.level < params.outstanding - 2),
            plan.ready.eq(axi.awready),
            axi.awvalid.eq(plan.valid),
            axi.awaddr.eq(plan.addr),
            axi.awlen.eq(plan.len),
            axi.awsize.eq(log2(lanes)),
            axi.awburst.eq(Burst.INCR),
            axi.awcache.eq(0b0011),
            answers.w_data.eq(plan.last),
            answers.w_en.eq(addressed),
        ]
        m.d.sync += [credit.eq(credit + addressed - last_made), waiting.eq(axi.awvalid & ~axi.awready)]

        # ---- data
        job = unreset(plan.job_layout)
        busy, ended, tainted, interr, draining = Signal(), Signal(), Signal(), Signal(), Signal()
        to_come = Countdown(m, len(job.stream_beats), "to_come")
        to_go = Countdown(m, len(job.memory_beats), "to_go")
        slot = Signal(max(1, log2(longest)))
        m.submodules.out = out = RegisterSlice(width)  # between the bus and the beat builder
        joiner = BeatJoiner(width) if params.broad else None
        before, before_mask = unreset(width), Signal(lanes)  # the joiner has its own

        feed = Signal()  # the next beat takes one from the stream
        make, final, take = Signal(), Signal(), Signal()
        may, credited = Signal(), Signal()  # the latter: there is credit, not counting what just arrived
        m.d.sync += credited.eq((credit > 1) | ((credit == 1) & ~last_made))
        m.d.comb += [
            feed.eq(to_come.any & ~ended & ~self.abort),
            may.eq(busy & to_go.any & credited & (out.s_axis.tready if joiner is None else joiner.ready)),
            make.eq(may & (~feed | source.tvalid)),
            take.eq(make & feed),
            final.eq(make & to_go.one),
            last_made.eq(make & ((slot == longest - 1) | to_go.one)),
            source.tready.eq((may & feed) | (draining & ~self.abort)),
        ]
        last_in = to_come.one
        stored = feed & ~source.tuser & ~tainted
        if joiner is None:
            full = _named(m, Mux(last_in & (job.tail != 0), keep_mask(job.tail, lanes), (1 << lanes) - 1), "full")
            mask = _named(m, Mux(stored, source.tkeep & full, 0), "mask")
        else:
            full = _named(m, _tail_lanes(m, plan, job) | (~last_in).replicate(lanes), "full")
            mask = _named(m, source.tkeep & full, "mask")
        offset = _multiple(job.offset, self.aligned)
        turned = _rotate(m, source.tdata, 8, offset, up=True, name="turned")
        turned_mask = _rotate(m, mask, 1, offset, up=True, name="turned_mask")
        from_now = _named(m, Cat(*(offset <= lane for lane in range(lanes))), "from_now")
        if joiner is None:
            m.d.comb += [
                out.s_axis.tvalid.eq(make),
                out.s_axis.tdata.eq(by_lane(from_now, turned, before, 8)),
                out.s_axis.tkeep.eq(Mux(self.abort, 0, by_lane(from_now, turned_mask, before_mask, 1))),
                out.s_axis.tlast.eq(last_made),
            ]
        else:
            m.submodules.joiner = joiner
            wiring.connect(m, joiner.m_axis, out.s_axis)
            m.d.comb += [
                joiner.turned.eq(turned),
                joiner.turned_mask.eq(turned_mask),
                joiner.from_now.eq(from_now),
                joiner.stored.eq(stored),
                joiner.last.eq(last_made),
                joiner.make.eq(make),
                joiner.begins.eq(plan.job_take & plan.job_valid),
                joiner.forget.eq(self.abort),
            ]
        m.d.comb += [
            axi.wvalid.eq(out.m_axis.tvalid),
            axi.wdata.eq(out.m_axis.tdata),
            axi.wstrb.eq(out.m_axis.tkeep),
            axi.wlast.eq(out.m_axis.tlast),
            out.m_axis.tready.eq(axi.wready),
        ]
        with m.If(make):
            to_go.step()
            m.d.sync += [
                before.eq(turned),
                before_mask.eq(turned_mask),
                slot.eq(Mux(slot == longest - 1, 0, slot + 1)),
            ]
        wrong: Value = source.tuser | (source.tlast != last_in) | (source.tkeep != full)
        in_error: Value = interr
        if joiner is not None:  # comparing all lanes takes a separate cycle: for the last beat, when the job ends
            noticed = Signal()
            in_error = interr | noticed
            m.d.sync += [noticed.eq(take & wrong), interr.eq(in_error)]
            wrong = noticed
        with m.If(take):
            to_come.step()
            m.d.sync += [
                ended.eq(source.tlast),
                tainted.eq(tainted | source.tuser),
                interr.eq(interr | wrong),
                draining.eq(last_in & ~source.tlast),
            ]
        with m.If(draining & source.tvalid & source.tlast):
            m.d.sync += draining.eq(0)

        # ---- the job ends when its beats are built and its packet has ended
        over, done = Signal(), Signal()
        m.d.comb += [
            over.eq(busy & ~to_go.any & ~draining),
            done.eq(over & ended_jobs.w_rdy),
            ended_jobs.w_data.eq(Cat(job.tag, in_error | job.refused, job.refused)),
            ended_jobs.w_en.eq(done & ~self.abort),
            plan.job_take.eq(~busy | done),
        ]
        with m.If(plan.job_take & plan.job_valid):
            to_come.load(plan.job.stream_beats, plan.job.refused)
            to_go.load(plan.job.memory_beats, plan.job.refused)
            m.d.sync += [
                job.eq(plan.job),
                busy.eq(1),
                slot.eq(plan.job.slot),
                before_mask.eq(0),
                ended.eq(0),
                tainted.eq(0),
                interr.eq(0),
                draining.eq(0),
            ]
        with m.Elif(done):
            m.d.sync += busy.eq(0)

        # ---- responses
        slverr, decerr = Signal(), Signal()
        ident, refused, failed = ended_jobs.r_data[:4], ended_jobs.r_data[5], ended_jobs.r_data[4]
        slv, dec = slverr | (axi.bresp == Resp.SLVERR), decerr | (axi.bresp == Resp.DECERR)
        closes, answered, refuse = Signal(), Signal(), Signal()
        m.d.comb += [
            closes.eq(answers.r_data & ~self.abort),
            axi.bready.eq(answers.r_rdy & (~closes | (ended_jobs.r_rdy & ~refused & statuses.room))),
            answered.eq(axi.bvalid & axi.bready),
            answers.r_en.eq(answered),
            refuse.eq(ended_jobs.r_rdy & refused & statuses.room),
            ended_jobs.r_en.eq((answered & closes) | refuse | self.abort),
            statuses.push.eq((answered & closes) | refuse),
            statuses.word.eq(_status(ident, failed, ~refused & dec, ~refused & slv)),
            statuses.drop.eq(self.abort),
        ]
        with m.If(answered):
            m.d.sync += [slverr.eq(slv & ~closes), decerr.eq(dec & ~closes)]

        left = axi.wvalid if joiner is None else axi.wvalid | ~joiner.empty
        m.d.comb += self.quiet.eq(
            ~busy & ~plan.job_valid & ~axi.awvalid & (credit == 0) & ~left & ~answers.r_rdy & ~ended_jobs.r_rdy
        )
        # an abort sends empty beats for the bursts already addressed, and drops the rest
        with m.If(self.abort):
            m.d.sync += [draining.eq(0), slverr.eq(0), decerr.eq(0)]
            with m.If((credit == 0) & ~axi.awvalid):
                m.d.comb += plan.job_take.eq(1)
                m.d.sync += busy.eq(0)
        return m


def _status(tag: Value, interr: Value, decerr: Value, slverr: Value) -> Value:
    okay = ~(interr | decerr | slverr)
    return pack(DM_STATUS, {"tag": tag, "interr": interr, "decerr": decerr, "slverr": slverr, "okay": okay})


class DataMover(wiring.Component):
    """Both channels on one AXI4 port, with id ``ident``; ``aligned`` as for the channels."""

    def __init__(self, params: EngineParams, ident: int, reads: int = 1, writes: int = 1) -> None:
        super().__init__(
            {
                "mm2s_cmd": In(WordStream(command_bits(params.address_bits))),
                "mm2s_sts": Out(WordStream(STATUS_BITS)),
                "mm2s": Out(AxiStream(params.bus_width)),
                "mm2s_abort": In(1),
                "mm2s_quiet": Out(1),
                "s2mm_cmd": In(WordStream(command_bits(params.address_bits))),
                "s2mm_sts": Out(WordStream(STATUS_BITS)),
                "s2mm": In(AxiStream(params.bus_width)),
                "s2mm_abort": In(1),
                "s2mm_quiet": Out(1),
                "axi": Out(Axi4(params.bus_width, 1, params.address_bits)),
            }
        )
        self.params = params
        self.ident = ident
        self.reader = Mm2s(params, reads)
        self.writer = S2mm(params, writes)

    def elaborate(self, platform: object) -> Module:
        """Connect both channels."""
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
