"""``qp_state``: the responder's state of each queue pair, backed by CtxMgt's channel of the execution engine.

A packet must see the state that the previous packet of its queue pair left, even back to back. So a state is locked
from its lookup until its update; lookups are answered in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rnic.context import messages as msg
from rnic.gateware.bits import unreset
from rnic.gateware.ctxmgt.streams import get, vector

QPN_BITS: Final = 24
LOCKS: Final = 4
"""States locked at once."""
WRITE_BACKS: Final = 4
OWN: Final = {
    "msn": 24, "nak_sent": 1, "open": 2, "offset": 32, "dest_va": 64, "dest_length": 32, "dest_key": 32,
    "receive_index": 32,
}  # fmt: skip
"""Responder fields that no channel carries, with the names of :class:`rnic.transport.responder.Responder`; 0 in a new
queue pair. ``dest_va``, ``dest_length`` and ``dest_key`` are the destination of the open message: those of a WRITE, or
of its receive entry."""
CONTEXT: Final = {field.name: field.width for field in msg.EE_RESPONSE.fields}
STATE: Final = data.StructLayout(CONTEXT | OWN)
"""A queue pair's state: the channel's answer, and the responder's own fields."""
ANSWER: Final = data.StructLayout({"qpn": QPN_BITS, "state": STATE})
UPDATE: Final = data.StructLayout({"qpn": QPN_BITS, "state": STATE, "changed": 1})
_HEADER_BITS: Final = msg.ENGINE_HEADER.size * 8
_ANSWER_BITS: Final = msg.EE_RESPONSE.size * 8
CHANNEL: Final = {
    "cmd": Out(stream.Signature(_HEADER_BITS)),
    "cxt_in": Out(stream.Signature(_HEADER_BITS)),
    "resp": In(stream.Signature(_HEADER_BITS)),
    "cxt": In(stream.Signature(_ANSWER_BITS)),
}
"""CtxMgt's channel of the execution engine."""


@dataclass(frozen=True, slots=True)
class QpStateParams:
    """Size of the block.

    Raises:
        ValueError: the size is out of range.
    """

    log_qps: int = 9
    """log2 of the number of entries, 1 to 14. Two queue pairs whose numbers agree in these bits share an entry: forget
    one before the other is looked up."""

    def __post_init__(self) -> None:
        if not 1 <= self.log_qps <= 14:
            raise ValueError(f"log_qps={self.log_qps}: 1 to 14")


class QpState(wiring.Component):
    """``asks`` for a queue pair's state are answered on ``states``, in order; each answer requires one update. An
    update with ``changed`` writes PSN and state back to CtxMgt. ``forgets`` are queue pairs that were reset or
    destroyed: none of them may be locked.

    ``cmd``, ``cxt_in``, ``resp`` and ``cxt`` are the channel of 002, which answers zeros for an unknown queue pair.
    """

    def __init__(self, params: QpStateParams) -> None:
        super().__init__(
            {
                "asks": In(stream.Signature(QPN_BITS)),
                "states": Out(stream.Signature(ANSWER)),
                "updates": In(stream.Signature(UPDATE)),
                "forgets": In(stream.Signature(QPN_BITS)),
            }
            | CHANNEL
        )
        self.log_qps = params.log_qps

    def elaborate(self, platform: object) -> Module:
        """Look up a queue pair, fetch it on a miss, output it; store updates and write them back."""
        m = Module()
        log_qps, asked, out, update = self.log_qps, self.asks, self.states, self.updates
        m.submodules.lines = lines = Memory(shape=ANSWER, depth=1 << log_qps, init=[])
        m.submodules.behind = behind = SyncFIFO(width=QPN_BITS + 24 + 4, depth=WRITE_BACKS)
        store, load = lines.write_port(), lines.read_port()
        held = Signal(1 << log_qps)  # valid entries

        # ---- locks: a state is output, or about to be
        locked = [(Signal(name=f"locked_{at}"), unreset(QPN_BITS, name=f"locked_qpn_{at}")) for at in range(LOCKS)]
        free = Cat(*(~used for used, _ in locked))
        same = Cat(*(used & (qpn == asked.payload) for used, qpn in locked)).any()
        looking, shown, fetching = Signal(), Signal(), Signal()
        accepts, taken, updated = Signal(), Signal(), Signal()
        m.d.comb += [
            taken.eq(out.valid & out.ready),
            accepts.eq(free.any() & ~same & ~fetching & (~shown | taken)),
            asked.ready.eq(accepts),
            looking.eq(asked.valid & accepts),
            load.addr.eq(asked.payload[:log_qps]),
            load.en.eq(looking),
        ]
        for at, (used, qpn) in enumerate(locked):
            with m.If(updated & used & (qpn == update.payload.qpn)):
                m.d.sync += used.eq(0)
            with m.If(looking & ~free[:at].any() & free[at] if at else looking & free[0]):
                m.d.sync += [used.eq(1), qpn.eq(asked.payload)]

        # ---- the answer: the entry if it is the queue pair's, else CtxMgt's answer
        number, was_held = unreset(QPN_BITS), unreset(1)
        fetched, have, asking = unreset(STATE), Signal(), Signal()
        found = shown & was_held & (load.data.qpn == number)
        with m.If(looking):
            m.d.sync += [number.eq(asked.payload), shown.eq(1), have.eq(0)]
            m.d.sync += was_held.eq(held.bit_select(asked.payload[:log_qps], 1))
        with m.Elif(taken):
            m.d.sync += shown.eq(0)
        m.d.comb += [
            out.valid.eq(shown & (found | have)),
            out.payload.qpn.eq(number),
            fetching.eq(shown & ~found & ~have),
        ]
        with m.If(have):
            m.d.comb += out.payload.state.eq(fetched)
        with m.Else():
            m.d.comb += out.payload.state.eq(load.data.state)
        with m.If(fetching & self.cxt.valid & self.resp.valid):
            m.d.comb += [self.cxt.ready.eq(1), self.resp.ready.eq(1)]
            m.d.sync += [have.eq(1), asking.eq(0)]
            m.d.sync += fetched.eq(0)
            for name in CONTEXT:
                m.d.sync += fetched[name].eq(get(self.cxt.payload, msg.EE_RESPONSE, name))

        # ---- updates: stored, and PSN and state written back
        m.d.comb += [
            update.ready.eq(behind.w_rdy),
            updated.eq(update.valid & update.ready),
            store.addr.eq(update.payload.qpn[:log_qps]),
            store.data.qpn.eq(update.payload.qpn),
            store.data.state.eq(update.payload.state),
            store.en.eq(updated),
            behind.w_data.eq(Cat(update.payload.state.state, update.payload.state.expected_psn, update.payload.qpn)),
            behind.w_en.eq(updated & update.payload.changed),
            self.forgets.ready.eq(~updated),
        ]
        with m.If(updated):
            m.d.sync += held.bit_select(update.payload.qpn[:log_qps], 1).eq(1)
        with m.Elif(self.forgets.valid):
            m.d.sync += held.bit_select(self.forgets.payload[:log_qps], 1).eq(0)

        # ---- the channel: write-backs go first, so that no fetch reads a state before its write-back
        state, psn, qpn = behind.r_data[:4], behind.r_data[4:28], behind.r_data[28:]
        gave_cmd, gave_cxt = Signal(), Signal()
        read = msg.READS[msg.EE]
        ask = vector(msg.ENGINE_HEADER, {"type": read.type, "opcode": read.opcode, "addr": number})
        write = vector(msg.ENGINE_HEADER, {"type": msg.WR_QP_CXT, "opcode": msg.WR_QP_EPST, "addr": qpn})
        pending = Signal()  # a valid request stays until it is taken
        writes = behind.r_rdy & ~pending
        with m.If(writes):
            m.d.comb += [
                self.cmd.payload.eq(write),
                self.cmd.valid.eq(~gave_cmd),
                self.cxt_in.payload.eq(Cat(state, Const(0, 4), psn)),
                self.cxt_in.valid.eq(~gave_cxt),
                behind.r_en.eq((gave_cmd | self.cmd.ready) & (gave_cxt | self.cxt_in.ready)),
            ]
            m.d.sync += [
                gave_cmd.eq((gave_cmd | self.cmd.ready) & ~behind.r_en),
                gave_cxt.eq((gave_cxt | self.cxt_in.ready) & ~behind.r_en),
            ]
        with m.Elif(fetching & ~asking):
            m.d.comb += [self.cmd.payload.eq(ask), self.cmd.valid.eq(1)]
            m.d.sync += [pending.eq(~self.cmd.ready), asking.eq(self.cmd.ready)]
        return m
