"""The controller of an engine with several WRITEs in flight: each documented step is a pipeline stage.

Descriptors are fetched ahead, WRITEs enter the transmit path without waiting for earlier ones, and completions are
written afterward. Software still sees everything in order: CQ entries come in the order of the descriptors, and SQ_HEAD
and CQ_TAIL move together when an entry is in memory. ``state`` shows the last busy stage, in the serial controller's
codes.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import pack, register_at, unpack, unreset
from rnic.gateware.control_streams import cq_entry_of
from rnic.gateware.interfaces import STATUS_BITS, WordStream, command_bits
from rnic.gateware.params import INDEX_BITS, EngineParams
from rnic.gateware.rdma_controller import (
    S_IDLE,
    S_IS_STREAM_BUSY,
    S_PREPARE_WRITE,
    S_SEND_TX_CMD,
    S_WAIT_READ_DONE,
    S_WAIT_TX_CPL,
    S_WAIT_WRITE_DONE,
)
from rnic.rings.cqe import CQE_BYTES, CQE_SHIFT
from rnic.rings.sqe import SQ_ENTRY, SQE_BYTES, SQE_SHIFT
from rnic.spec.engine_regs import (
    DM_STATUS,
    ERR_CQ_WRITE,
    ERR_LOCAL_BUS,
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
    dm_command_layout,
)

USED_BYTES = 28
"""Bytes of a descriptor that the engine uses; the rest only goes into the debug registers."""
COUNT_BITS = 16
"""Width of the counter of a WRITE's packets in flight: a WRITE may have far more packets in total."""
WRITES_BEHIND = 8
"""CQ entries being written to memory at once."""


class PipelinedController(wiring.Component):
    """Inputs: queue registers. Outputs: commands for the control mover, and descriptors for the transmit path.

    ``packet_done`` with ``packet_error``: the result of each packet, in order. ``count_valid`` with ``count``: the
    transmit path has cut a WRITE into ``count`` packets. ``read_valid`` with ``read_bad`` and ``read_bytes``: its
    payload was read.
    """

    def __init__(self, params: EngineParams) -> None:
        super().__init__(
            {
                # registers
                "enable": In(1),
                "pause": In(1),
                "sq_base": In(params.address_bits),
                "sq_size": In(INDEX_BITS),
                "sq_tail": In(32),
                "cq_base": In(params.address_bits),
                "cq_size": In(INDEX_BITS),
                "cq_head": In(32),
                "local_base": In(params.address_bits),
                "local_last": In(params.address_bits),
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
                # control mover
                "fetch_cmd": Out(WordStream(command_bits(params.address_bits))),
                "fetch_sts": In(WordStream(STATUS_BITS)),
                "write_cmd": Out(WordStream(command_bits(params.address_bits))),
                "write_sts": In(WordStream(STATUS_BITS)),
                # descriptor parser, CQ entry streamer
                "entry": In(SQE_BYTES * 8),
                "entry_valid": In(1),
                "entry_bad": In(1),
                "entry_shown": Out(1),
                "cq_entry": Out(CQE_BYTES * 8),
                "start_stream": Out(1),
                "stream_busy": In(1),
                # transmit path
                "tx_busy": In(1),
                "no_network": In(1),
                "tx_valid": Out(1),
                "tx_ready": In(1),
                "tx_descriptor": Out(SQE_BYTES * 8),
                "read_valid": In(1),
                "read_bad": In(1),
                "read_bytes": In(32),
                "count_valid": In(1),
                "count": In(32),
                "packet_done": In(1),
                "packet_error": In(4),
                "progress": In(1),
                "abort": Out(1),
                "flushing": Out(1),
                "quiet": In(1),
                "writes_quiet": In(1),
                "reset": In(1),
            }
        )
        self.params = params
        self.depth = params.in_flight
        self.state = Signal(range(len(RDMA_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Build the stages in the order of a WRITE; an abort drops those gated by ``forget``."""
        m = Module()
        depth = self.depth
        forget = Signal()
        clear = ResetInserter(forget)
        restart = ResetInserter(self.reset)
        m.submodules.entries = entries = clear(SyncFIFO(width=USED_BYTES * 8 + 1, depth=depth))
        m.submodules.hand = hand = restart(SyncFIFO(width=4 + 32 + 8 + 32, depth=depth))
        m.submodules.reads = reads = clear(SyncFIFO(width=33, depth=depth))
        m.submodules.counts = counts = clear(SyncFIFO(width=COUNT_BITS, depth=depth))
        m.submodules.settled = settled = clear(SyncFIFO(width=4, depth=depth))
        m.submodules.behind = behind = restart(SyncFIFO(width=4, depth=WRITES_BEHIND))

        def following(index: Value, size: Value) -> Value:
            return Mux(index + 1 == size, 0, index + 1)

        # ---- fetch: ``taken`` descriptors are between their fetch and their completion in memory
        fetch, taken = Signal(INDEX_BITS), Signal(range(depth + 1))
        poisoned = Signal(range(depth + 2))  # WRITEs that the watchdog ended and that are not completed
        committed = Signal()
        work, beyond, issued_before = Signal(), Signal(), Signal()  # a cycle old, so fetches are not back to back
        may_fetch = self.enable & ~self.pause & ~self.halted & ~self.flushing & work & ~issued_before & (poisoned == 0)
        issued = self.fetch_cmd.tvalid & self.fetch_cmd.tready
        m.d.comb += [
            self.bad_tail.eq(may_fetch & beyond),
            self.fetch_sts.tready.eq(1),
            self.fetch_cmd.tdata.eq(self._command(self.sq_base + (fetch << SQE_SHIFT), SQE_BYTES)),
        ]
        shown = Signal()  # a valid command stays valid until taken
        m.d.comb += self.fetch_cmd.tvalid.eq(shown | (may_fetch & ~self.bad_tail & (taken != depth)))
        m.d.sync += shown.eq(self.fetch_cmd.tvalid & ~self.fetch_cmd.tready & ~self.flushing)
        m.d.sync += [
            work.eq(self.sq_tail != fetch),
            beyond.eq(self.sq_tail >= self.sq_size),
            issued_before.eq(issued | self.flushing | self.reset),
            taken.eq(taken + issued - committed),
        ]
        with m.If(issued):
            m.d.sync += fetch.eq(following(fetch, self.sq_size))
        with m.If(self.bad_tail):
            m.d.sync += self.error.eq(ERR_TAIL)
        m.d.comb += [
            entries.w_data.eq(Cat(self.entry[: USED_BYTES * 8], self.entry_bad)),
            entries.w_en.eq(self.entry_valid & ~self.flushing),
        ]

        # ---- check, then send
        used, bad_fetch, judged = unreset(USED_BYTES * 8), Signal(), Signal()
        detail = Signal(4)
        field = {
            name: unpack(used, SQ_ENTRY, name) for name in ("wqe_id", "opcode", "local_addr", "remote_addr", "length")
        }
        end_local, limit, measured = unreset(65), unreset(self.params.address_bits + 1), Signal()
        m.d.sync += [end_local.eq(field["local_addr"] + field["length"]), limit.eq(self.local_last + 1)]
        m.d.comb += [
            self.tx_descriptor.eq(Cat(used, self.entry[USED_BYTES * 8 :])),
        ]
        outside = (field["local_addr"] < self.local_base) | (end_local > limit)
        unreachable = field["remote_addr"][32:] != 0
        if self.params.wide:  # check the whole WRITE, so that no fragment wraps around
            end_remote = unreset(65)
            m.d.sync += end_remote.eq(field["remote_addr"] + field["length"])
            unreachable = end_remote > 1 << self.params.address_bits
        with m.If(bad_fetch):
            m.d.comb += detail.eq(ERR_SQ_FETCH)
        with m.Elif(field["length"] == 0):
            m.d.comb += detail.eq(ERR_ZERO_LENGTH)
        with m.Elif(outside):
            m.d.comb += detail.eq(ERR_LOCAL_WINDOW)
        with m.Elif(unreachable):
            m.d.comb += detail.eq(ERR_REMOTE_WINDOW)
        with m.Elif(self.no_network):
            m.d.comb += detail.eq(ERR_NET_DISABLED)
        kept, refused = Signal(4), Signal()
        passed = Signal()  # the current descriptor advances
        loaded = Signal()
        m.d.comb += [
            refused.eq(kept != ERR_NONE),
            self.tx_valid.eq(judged & ~refused & ~self.tx_busy & hand.w_rdy & ~self.flushing),
            passed.eq(judged & hand.w_rdy & ~self.flushing & (refused | (self.tx_valid & self.tx_ready))),
            hand.w_data.eq(Cat(kept, Mux(bad_fetch, 0, Cat(field["wqe_id"], field["opcode"][:8], field["length"])))),
            hand.w_en.eq(passed),
            entries.r_en.eq((~loaded | passed) & ~self.flushing),
            self.entry_shown.eq(loaded | hand.r_rdy),
        ]
        with m.If(passed):
            m.d.sync += [loaded.eq(0), judged.eq(0)]
        with m.Elif(loaded):
            m.d.sync += [measured.eq(1), judged.eq(measured), kept.eq(detail)]
        with m.If(entries.r_en & entries.r_rdy):
            m.d.sync += [Cat(used, bad_fetch).eq(entries.r_data), loaded.eq(1), measured.eq(0), judged.eq(0)]

        # ---- the packets of each WRITE in turn
        seen, worst = Signal(COUNT_BITS), Signal(4)
        all_seen = Signal()
        m.d.comb += [
            counts.w_data.eq(self.count),
            counts.w_en.eq(self.count_valid),
            reads.w_data.eq(Cat(self.read_bad, self.read_bytes)),
            reads.w_en.eq(self.read_valid),
            all_seen.eq(counts.r_rdy & (seen == counts.r_data)),
            counts.r_en.eq(all_seen),
            settled.w_data.eq(worst),
            settled.w_en.eq(all_seen),
        ]
        m.d.sync += seen.eq(Mux(all_seen, 0, seen) + self.packet_done)
        m.d.sync += worst.eq(
            Mux(self.packet_done & (all_seen | (worst == 0)), self.packet_error, Mux(all_seen, 0, worst))
        )

        # ---- complete the oldest WRITE once its payload was read and its packets are done
        cq_entry, write_command = register_at(m, self.cq_entry), register_at(m, self.write_cmd.tdata)
        next_cq, next_phase, index = Signal(INDEX_BITS), Signal(init=1), Signal(INDEX_BITS)
        fate, sent, status = Signal(4), Signal(32), Signal(8)
        known, full, go = Signal(), Signal(), Signal()
        own = hand.r_data[:4]
        own_id, own_opcode, own_length = hand.r_data[4:36], hand.r_data[36:44], hand.r_data[44:]
        # one and two cycles old: streaming an entry takes longer
        after_cq = Signal(INDEX_BITS)
        m.d.sync += [
            after_cq.eq(following(next_cq, self.cq_size)),
            full.eq((after_cq == self.cq_head) | (self.cq_head >= self.cq_size)),
        ]
        ready = hand.r_rdy & ((own != ERR_NONE) | (reads.r_rdy & settled.r_rdy))
        read_bad, read_bytes = reads.r_data[0], reads.r_data[1:]
        m.d.comb += [
            # during an abort an entry waits for earlier write data, not for an outstanding read
            known.eq(Mux(poisoned != 0, ~self.flushing | self.writes_quiet, ready & ~self.flushing) & ~self.halted),
            self.cq_full.eq(known & full),
            go.eq(known & ~full & behind.w_rdy & ~self.stream_busy & ~self.start_stream & ~self.write_cmd.tvalid),
        ]
        with m.If(poisoned != 0):
            m.d.comb += fate.eq(ERR_TIMEOUT)
        with m.Elif(own != ERR_NONE):
            m.d.comb += fate.eq(own)
        with m.Else():
            m.d.comb += fate.eq(Mux(read_bad, ERR_LOCAL_BUS, settled.r_data))
            m.d.comb += sent.eq(Mux(~read_bad & (settled.r_data >= ERR_NET_META), 0, read_bytes))
            m.d.comb += [reads.r_en.eq(go), settled.r_en.eq(go)]
        with m.Switch(fate):
            for code, number in STATUS_OF_DETAIL.items():
                with m.Case(code):
                    m.d.comb += status.eq(number)
        blank = ~hand.r_rdy  # the watchdog ended a fetch: the descriptor is unknown
        m.d.comb += [hand.r_en.eq(go), behind.w_en.eq(go), behind.w_data.eq(fate)]
        m.d.sync += self.start_stream.eq(go)
        with m.If(self.write_cmd.tready):
            m.d.sync += self.write_cmd.tvalid.eq(0)
        with m.If(go):
            m.d.sync += [
                cq_entry.eq(
                    cq_entry_of(
                        {
                            "index": index,
                            "status": status,
                            "vendor_err": fate,
                            "bytes": sent,
                            "opcode": Mux(blank, 0, own_opcode),
                            "phase": next_phase,
                            "wqe_id": Mux(blank, 0, own_id),
                            "requested": Mux(blank, 0, own_length),
                        },
                        self.params.documented_cqe,
                    )
                ),
                self.write_cmd.tvalid.eq(1),
                write_command.eq(self._command(self.cq_base + (next_cq << CQE_SHIFT), CQE_BYTES)),
                index.eq(following(index, self.sq_size)),
                next_cq.eq(after_cq),
                next_phase.eq(next_phase ^ (after_cq == 0)),
            ]
            with m.If(poisoned != 0):
                m.d.sync += poisoned.eq(poisoned - 1)

        # ---- commit: heads and tails move when the entry is in memory
        okay = unpack(self.write_sts.tdata, DM_STATUS, "okay")[0]
        m.d.comb += [
            self.write_sts.tready.eq(1),
            behind.r_en.eq(self.write_sts.tvalid),
            committed.eq(self.write_sts.tvalid & okay & ~self.halted),
        ]
        m.d.sync += [self.completed.eq(committed), self.completed_bad.eq(committed & (behind.r_data != ERR_NONE))]
        with m.If(committed):
            m.d.sync += [
                self.sq_head.eq(following(self.sq_head, self.sq_size)),
                self.cq_tail.eq(following(self.cq_tail, self.cq_size)),
            ]
            with m.If(behind.r_data != ERR_NONE):
                m.d.sync += self.error.eq(behind.r_data)
        with m.Elif(self.write_sts.tvalid & ~self.halted):
            m.d.sync += [self.halted.eq(1), self.error.eq(ERR_CQ_WRITE)]

        # ---- watchdog: cycles without progress while work is pending
        idle_cycles = Signal(32)
        writing = behind.r_rdy
        waiting = ~self.halted & ~self.flushing & (writing | ((taken != 0) & ~self.cq_full))
        expired, reached, still = Signal(), Signal(), Signal()
        m.d.comb += [
            expired.eq(waiting & reached & still),
            self.abort.eq(self.flushing),
            forget.eq(self.flushing | self.reset),
        ]
        moves = self.progress | passed | committed | issued | self.entry_valid | go
        m.d.sync += [
            self.timed_out.eq(expired),
            idle_cycles.eq(Mux(~waiting | moves | expired, 0, idle_cycles + 1)),
            still.eq(waiting & ~moves & ~expired),
            reached.eq((self.watchdog != 0) & (idle_cycles >= self.watchdog)),
        ]
        warned = Signal()  # after an abort, the waiting CQ entry can be written
        with m.If(committed | self.reset):
            m.d.sync += warned.eq(0)
        with m.Elif(expired):
            m.d.sync += warned.eq(writing)
        with m.If(expired & writing & warned):
            m.d.sync += [self.halted.eq(1), self.error.eq(ERR_TIMEOUT)]
        with m.Elif(expired):
            # WRITEs in progress, or the descriptor being fetched, end with the watchdog's status; the others are
            # fetched again
            m.d.sync += [self.flushing.eq(1), poisoned.eq(Mux(hand.r_rdy, hand.level, taken > behind.level))]
        with m.If(self.flushing):
            left = Mux(hand.r_rdy, hand.level, poisoned != 0)
            m.d.sync += [loaded.eq(0), judged.eq(0), seen.eq(0), worst.eq(0)]
            with m.If(self.quiet):
                m.d.sync += [
                    self.flushing.eq(0),
                    taken.eq(left + behind.level - committed),
                    fetch.eq(_ahead(index, left, self.sq_size)),
                ]

        with m.If(self.reset):
            m.d.sync += [signal.eq(0) for signal in (
                fetch, taken, shown, used, loaded, judged, seen, worst, next_cq, index, poisoned, self.sq_head,
                self.cq_tail, self.halted, self.error, self.flushing, self.start_stream, self.write_cmd.tvalid,
            )]  # fmt: skip
            m.d.sync += next_phase.eq(1)

        with m.If(writing):
            m.d.comb += self.state.eq(S_WAIT_WRITE_DONE)
        with m.Elif(known):
            m.d.comb += self.state.eq(S_PREPARE_WRITE)
        with m.Elif(hand.r_rdy):
            m.d.comb += self.state.eq(S_WAIT_TX_CPL)
        with m.Elif(self.tx_valid):
            m.d.comb += self.state.eq(S_SEND_TX_CMD)
        with m.Elif(loaded):
            m.d.comb += self.state.eq(S_IS_STREAM_BUSY)
        with m.Elif(taken != 0):
            m.d.comb += self.state.eq(S_WAIT_READ_DONE)
        with m.Else():
            m.d.comb += self.state.eq(S_IDLE)
        return m

    def _command(self, address: Value, count: int) -> Value:
        bits = self.params.address_bits
        values = {"btt": Const(count, 23), "type": 1, "eof": 1, "address": address[:bits]}
        return pack(dm_command_layout(bits), values)


def _ahead(index: Value, by: Value, size: Value) -> Value:
    """Return ``index`` advanced by less than ``size``, modulo ``size``."""
    return Mux(index + by >= size, index + by - size, index + by)
