"""``rdma_controller``: the only owner of both queues. It fetches a descriptor, has it sent, writes its CQ entry and
advances.

States and codes are the documents'. Beyond the documents, it completes every descriptor with a status, waits while the
CQ is full, and aborts after a watchdog timeout without progress.
"""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import register_at, unpack, unreset
from rnic.gateware.control_streams import cq_entry_of
from rnic.gateware.params import BTT_BITS, INDEX_BITS, EngineParams
from rnic.rings.cqe import CQE_BYTES, CQE_SHIFT
from rnic.rings.sqe import SQ_ENTRY, SQE_BYTES, SQE_SHIFT
from rnic.spec.engine_regs import (
    ERR_CQ_WRITE,
    ERR_LOCAL_WINDOW,
    ERR_NET_DISABLED,
    ERR_NET_META,
    ERR_NONE,
    ERR_REMOTE_WINDOW,
    ERR_SQ_FETCH,
    ERR_TAIL,
    ERR_TIMEOUT,
    ERR_ZERO_LENGTH,
    RDMA_STATES,
    STATUS_OF_DETAIL,
)

(
    S_IDLE,
    S_PREPARE_READ,
    S_READ_CMD,
    S_WAIT_READ_DONE,
    S_IS_STREAM_BUSY,
    S_SEND_TX_CMD,
    S_WAIT_TX_CPL,
    S_PREPARE_WRITE,
    S_WRITE_CMD,
    S_START_STREAM,
    S_WAIT_WRITE_DONE,
) = range(len(RDMA_STATES))


class RdmaController(wiring.Component):
    """Inputs: queue registers. Outputs: commands for the command master and the transmit path."""

    def __init__(self, params: EngineParams) -> None:
        address_bits = params.address_bits
        super().__init__(
            {
                # registers
                "enable": In(1),
                "pause": In(1),
                "sq_base": In(address_bits),
                "sq_size": In(INDEX_BITS),
                "sq_tail": In(32),
                "cq_base": In(address_bits),
                "cq_size": In(INDEX_BITS),
                "cq_head": In(32),
                "local_base": In(address_bits),
                "local_last": In(address_bits),
                "watchdog": In(32),
                "sq_head": Out(INDEX_BITS),
                "cq_tail": Out(INDEX_BITS),
                "cq_full": Out(1),
                "halted": Out(1),
                "error": Out(4),
                "bad_tail": Out(1),
                "completed": Out(1),
                "completed_bad": Out(1),
                "timed_out": Out(1),
                # command master
                "cmd_saddr": Out(address_bits),
                "cmd_daddr": Out(address_bits),
                "cmd_btt": Out(BTT_BITS),
                "cmd_is_read": Out(1),
                "cmd_start": Out(1),
                "cmd_ready": In(1),
                "read_complete": In(1),
                "write_complete": In(1),
                "cmd_failed": In(1),
                # descriptor parser, CQ entry streamer
                "entry": In(SQE_BYTES * 8),
                "entry_valid": In(1),
                "entry_shown": Out(1),
                "cq_entry": Out(CQE_BYTES * 8),
                "start_stream": Out(1),
                # transmit path
                "tx_busy": In(1),
                "no_network": In(1),
                "tx_valid": Out(1),
                "tx_ready": In(1),
                "tx_descriptor": Out(SQE_BYTES * 8),
                "cpl_valid": In(1),
                "cpl_ready": Out(1),
                "cpl_error": In(4),
                "cpl_bytes": In(32),
                "settled": In(1),
                "settled_error": In(4),
                "progress": In(1),
                "abort": Out(1),
                "flushing": Out(1),
                "quiet": In(1),
                "writes_quiet": In(1),
                "reset": In(1),
            }
        )
        self.params = params
        self.state = Signal(range(len(RDMA_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Build one state per step, as documented."""
        m = Module()
        state = self.state
        descriptor, cq_entry = register_at(m, self.tx_descriptor), register_at(m, self.cq_entry)
        saddr, daddr, btt = (register_at(m, port) for port in (self.cmd_saddr, self.cmd_daddr, self.cmd_btt))
        field = {
            name: unpack(descriptor, SQ_ENTRY, name)
            for name in ("wqe_id", "opcode", "local_addr", "remote_addr", "length")
        }
        parsed, fetched, fetch_failed = Signal(), Signal(), Signal()
        detail, sent, phase = Signal(4), unreset(32), Signal(init=1)
        cpl_held = Signal()
        next_head, next_tail = Signal(INDEX_BITS), Signal(INDEX_BITS)
        head_up, tail_up = unreset(INDEX_BITS + 1), unreset(INDEX_BITS + 1)
        m.d.sync += [  # known long before they are needed
            *(head_up.eq(self.sq_head + 1), tail_up.eq(self.cq_tail + 1)),
            next_head.eq(Mux(head_up == self.sq_size, 0, head_up)),
            next_tail.eq(Mux(tail_up == self.cq_size, 0, tail_up)),
        ]
        full = Signal()
        m.d.sync += full.eq((next_tail == self.cq_head) | (self.cq_head >= self.cq_size))
        work, beyond, rested = Signal(), Signal(), Signal()  # a cycle old: they count only after an idle cycle
        m.d.sync += [
            work.eq(self.sq_tail != self.sq_head),
            beyond.eq(self.sq_tail >= self.sq_size),
            rested.eq((state == S_IDLE) & ~self.reset),
        ]
        status = Signal(8)
        with m.Switch(detail):
            for code, number in STATUS_OF_DETAIL.items():
                with m.Case(code):
                    m.d.comb += status.eq(number)
        end_local, limit = unreset(65), unreset(self.params.address_bits + 1)
        m.d.sync += [end_local.eq(field["local_addr"] + field["length"]), limit.eq(self.local_last + 1)]
        outside = (field["local_addr"] < self.local_base) | (end_local > limit)
        unreachable = field["remote_addr"][32:] != 0
        if self.params.wide:  # check the whole WRITE, so that no fragment wraps around
            end_remote = unreset(65)
            m.d.sync += end_remote.eq(field["remote_addr"] + field["length"])
            unreachable = end_remote > 1 << self.params.address_bits
        reason, measured, judged = Signal(4), Signal(), Signal()
        m.d.sync += [measured.eq(state == S_IS_STREAM_BUSY), judged.eq(measured & (state == S_IS_STREAM_BUSY))]
        m.d.sync += reason.eq(
            Mux(field["length"] == 0, ERR_ZERO_LENGTH,
            Mux(outside, ERR_LOCAL_WINDOW,
            Mux(unreachable, ERR_REMOTE_WINDOW,
            Mux(self.no_network, ERR_NET_DISABLED, ERR_NONE))))
        )  # fmt: skip

        with m.If(self.entry_valid):
            m.d.sync += [descriptor.eq(self.entry), parsed.eq(1), self.entry_shown.eq(1)]
        with m.If(self.read_complete):
            m.d.sync += [fetched.eq(1), fetch_failed.eq(self.cmd_failed)]
        m.d.sync += [self.cmd_start.eq(0), self.start_stream.eq(0), self.completed.eq(0), self.completed_bad.eq(0)]

        def complete_with(code: int | Signal) -> None:
            m.d.sync += [detail.eq(code), sent.eq(0), state.eq(S_PREPARE_WRITE)]

        with m.Switch(state):
            with m.Case(S_IDLE):
                m.d.sync += [parsed.eq(0), fetched.eq(0), cpl_held.eq(0), detail.eq(ERR_NONE), self.entry_shown.eq(0)]
                ready = self.enable & ~self.pause & ~self.halted & ~self.flushing & work & rested
                with m.If(ready & beyond):
                    m.d.comb += self.bad_tail.eq(1)
                    m.d.sync += self.error.eq(ERR_TAIL)
                with m.Elif(ready):
                    m.d.sync += state.eq(S_PREPARE_READ)
            with m.Case(S_PREPARE_READ):
                m.d.sync += [
                    saddr.eq(self.sq_base + (self.sq_head << SQE_SHIFT)),
                    btt.eq(SQE_BYTES),
                    self.cmd_is_read.eq(1),
                    state.eq(S_READ_CMD),
                ]
            with m.Case(S_READ_CMD), m.If(self.cmd_ready):
                m.d.sync += [self.cmd_start.eq(1), state.eq(S_WAIT_READ_DONE)]
            with m.Case(S_WAIT_READ_DONE):
                with m.If(fetched & fetch_failed):
                    complete_with(ERR_SQ_FETCH)
                with m.Elif(fetched & parsed):
                    m.d.sync += state.eq(S_IS_STREAM_BUSY)
            with m.Case(S_IS_STREAM_BUSY):
                with m.If(judged & (reason != ERR_NONE)):
                    complete_with(reason)
                with m.Elif(judged & ~self.tx_busy):
                    m.d.sync += state.eq(S_SEND_TX_CMD)
            with m.Case(S_SEND_TX_CMD):
                m.d.comb += self.tx_valid.eq(1)
                with m.If(self.tx_ready):
                    m.d.sync += state.eq(S_WAIT_TX_CPL)
            with m.Case(S_WAIT_TX_CPL):
                m.d.comb += self.cpl_ready.eq(~cpl_held)
                with m.If(self.cpl_valid & ~cpl_held):
                    m.d.sync += [cpl_held.eq(1), detail.eq(self.cpl_error), sent.eq(self.cpl_bytes)]
                with m.If(cpl_held & self.settled):
                    with m.If(detail == ERR_NONE):
                        m.d.sync += detail.eq(self.settled_error)
                        with m.If(self.settled_error >= ERR_NET_META):
                            m.d.sync += sent.eq(0)
                    m.d.sync += state.eq(S_PREPARE_WRITE)
            with m.Case(S_PREPARE_WRITE):
                m.d.comb += self.cq_full.eq(full)
                m.d.sync += [
                    cq_entry.eq(
                        cq_entry_of(
                            {
                                "index": self.sq_head,
                                "status": status,
                                "vendor_err": detail,
                                "bytes": sent,
                                "opcode": field["opcode"][:8],
                                "phase": phase,
                                "wqe_id": field["wqe_id"],
                                "requested": field["length"],
                            },
                            self.params.documented_cqe,
                        )
                    ),
                    daddr.eq(self.cq_base + (self.cq_tail << CQE_SHIFT)),
                    btt.eq(CQE_BYTES),
                    self.cmd_is_read.eq(0),
                ]
                # during an abort the entry waits for earlier write data, not for an outstanding read
                with m.If(~full & (~self.flushing | self.writes_quiet)):
                    m.d.sync += state.eq(S_WRITE_CMD)
            with m.Case(S_WRITE_CMD), m.If(self.cmd_ready):
                m.d.sync += [self.cmd_start.eq(1), state.eq(S_START_STREAM)]
            with m.Case(S_START_STREAM):
                m.d.sync += [self.start_stream.eq(1), state.eq(S_WAIT_WRITE_DONE)]
            with m.Case(S_WAIT_WRITE_DONE):
                with m.If(self.write_complete & self.cmd_failed):
                    m.d.sync += [self.halted.eq(1), self.error.eq(ERR_CQ_WRITE), state.eq(S_IDLE)]
                with m.Elif(self.write_complete):
                    m.d.sync += [
                        self.cq_tail.eq(next_tail),
                        self.sq_head.eq(next_head),
                        phase.eq(phase ^ (next_tail == 0)),
                        self.completed.eq(1),
                        self.completed_bad.eq(status != 0),
                        state.eq(S_IDLE),
                    ]
                    with m.If(detail != ERR_NONE):
                        m.d.sync += self.error.eq(detail)

        # ---- watchdog: cycles without progress
        idle_cycles = Signal(32)
        last_state = Signal.like(state)
        m.d.sync += last_state.eq(state)
        # software must empty a full CQ; an abort lasts while the bus owes a response
        waiting = ~self.flushing & (state != S_IDLE) & (state != S_PREPARE_WRITE)
        expired, reached, moved = Signal(), Signal(), Signal()
        m.d.comb += expired.eq(waiting & reached & ~moved)
        m.d.sync += moved.eq(~waiting | self.progress | (last_state != state) | expired)
        with m.If(moved):
            m.d.sync += [idle_cycles.eq(0), reached.eq(0)]
        with m.Else():
            m.d.sync += idle_cycles.eq(idle_cycles + 1)
            m.d.sync += reached.eq((self.watchdog != 0) & (idle_cycles >= self.watchdog))
        m.d.sync += self.timed_out.eq(expired)
        m.d.comb += self.abort.eq(self.flushing)
        with m.If(expired):
            m.d.sync += self.flushing.eq(1)
            with m.If(state > S_PREPARE_WRITE):
                m.d.sync += [self.halted.eq(1), self.error.eq(ERR_TIMEOUT), state.eq(S_IDLE)]
            with m.Else():
                complete_with(ERR_TIMEOUT)
        with m.Elif(self.flushing & self.quiet):
            m.d.sync += self.flushing.eq(0)
        # the decision is registered, since the descriptor is far away, before the CQ entry is built
        wipe = Signal()
        m.d.sync += wipe.eq((self.read_complete & self.cmd_failed) | (expired & (state < S_IS_STREAM_BUSY)))
        with m.If(wipe):
            m.d.sync += descriptor.eq(0)

        with m.If(self.reset):
            m.d.sync += [
                state.eq(S_IDLE),
                self.sq_head.eq(0),
                self.cq_tail.eq(0),
                self.halted.eq(0),
                self.error.eq(0),
                self.flushing.eq(0),
                phase.eq(1),
                self.cmd_start.eq(0),
                self.start_stream.eq(0),
                self.entry_shown.eq(0),
            ]
        return m
