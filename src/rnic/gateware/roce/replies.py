"""``replies``: send ACKs, NAKs and READ responses in order, each after the data it acknowledges is in memory.

Works as :class:`rnic.transport.response_queue.ReplyQueue`, for all queue pairs together. For READ responses, each
packet is looked up in the MR table, and its bytes are fetched, ahead of the packets being sent.
"""

from __future__ import annotations

from typing import Final

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import unreset
from rnic.gateware.roce.mr_table import PAGE_SHIFT, answer, question
from rnic.gateware.roce.qp_state import QPN_BITS
from rnic.gateware.roce.responder import AFTER_BITS, COMPLETION, MTU_SHIFT, PAGE, REPLY, STORE, wire
from rnic.gateware.roce.streams import HEADER
from rnic.mem.table import VTP_SUCCESS
from rnic.spec import opcodes as op
from rnic.spec.syndromes import NAK_REMOTE_OPERATION

ROUTE: Final = data.StructLayout({"peer": 32, "mac": 48, "sport": 16, "bytes": 14})
"""The route of a packet, and its length from BTH to pad."""
FETCH: Final = STORE
"""The source of a response's bytes: at most ``left`` of them at ``address``, the others at ``next``."""
PLANNED: Final = 4
"""Response packets with outstanding MR table lookups."""
_PLAN: Final = data.StructLayout({
    "reply": REPLY, "opcode": 8, "psn": 24, "size": 13, "part": PAGE_SHIFT + 1, "crosses": 1, "first": 1,
})  # fmt: skip


class Replies(wiring.Component):
    """Each of the responder's ``replies`` becomes ``headers`` for ``bth_build`` and a ``route``; ``fetches`` read the
    payloads. ``stored`` is high for a cycle for each store that memory has answered: replies and ``completions`` with a
    smaller ``after`` may then proceed (completions as ``completed``). ``lost``: the memory of a READ was deregistered
    during its response; its queue pair must stop."""

    def __init__(self) -> None:
        super().__init__(
            {
                "replies": In(stream.Signature(REPLY)),
                "completions": In(stream.Signature(COMPLETION)),
                "stored": In(1),
                "questions": Out(stream.Signature(question())),
                "answers": In(stream.Signature(answer())),
                "headers": Out(stream.Signature(HEADER)),
                "route": Out(stream.Signature(ROUTE)),
                "fetches": Out(stream.Signature(FETCH)),
                "completed": Out(stream.Signature(COMPLETION)),
                "lost": Out(stream.Signature(QPN_BITS)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Plan packets and look up their memory; then build their headers, and fetch."""
        m = Module()
        done = Signal(AFTER_BITS)
        m.d.sync += done.eq(done + self.stored)

        def in_memory(after: Value) -> Value:
            return ~(done - after)[AFTER_BITS - 1]

        waiting = self.completions
        m.d.comb += [
            self.completed.payload.eq(waiting.payload),
            self.completed.valid.eq(waiting.valid & in_memory(waiting.payload.after)),
            waiting.ready.eq(self.completed.ready & in_memory(waiting.payload.after)),
        ]
        m.submodules.plans = plans = SyncFIFO(width=_PLAN.size, depth=PLANNED)
        self._plan(m, plans, in_memory(self.replies.payload.after))
        self._send(m, plans)
        return m

    def _plan(self, m: Module, plans: SyncFIFO, may: Value) -> None:
        """Cut a READ response into packets of a path MTU; any other reply is one packet."""
        reply = self.replies.payload
        sent, begun = Signal(32), Signal()
        psn = unreset(24)
        mtu = wire(m, Const(1 << MTU_SHIFT) << reply.pmtu, "mtu")
        left = wire(m, (reply.length - sent)[:32], "left")
        last = wire(m, ~reply.read | (left <= mtu), "last")
        size = wire(m, Mux(reply.read, Mux(last, left, mtu), 0), "size")
        va = wire(m, (reply.va + sent)[:64], "va")
        before_page_end = wire(m, Const(PAGE, PAGE_SHIFT + 1) - va[:PAGE_SHIFT], "before_page_end")
        crosses = wire(m, size > before_page_end, "crosses")
        second, plan, mine = Signal(), Signal(_PLAN), self.questions.payload
        asks = size != 0
        goes = self.replies.valid & may & plans.w_rdy
        m.d.comb += [
            self.questions.valid.eq(goes & asks),
            mine.key.eq(reply.key),
            mine.pd.eq(reply.pd),
            mine.va.eq(Mux(second, Cat(Const(0, PAGE_SHIFT), (va >> PAGE_SHIFT) + 1), va)),
            mine.length.eq(Mux(second, size - before_page_end, size)),
            mine.remote_read.eq(1),
            plan.reply.eq(reply),
            plan.psn.eq(Mux(begun, psn, reply.psn)),
            plan.size.eq(size),
            plan.part.eq(Mux(crosses, before_page_end, size)),
            plan.crosses.eq(crosses),
            plan.first.eq(~begun),
            plans.w_data.eq(plan),
            plans.w_en.eq(goes & (~asks | (self.questions.ready & (second | ~crosses)))),
            self.replies.ready.eq(plans.w_en & last),
        ]
        with m.If(~reply.read):
            m.d.comb += plan.opcode.eq(op.ACKNOWLEDGE)
        with m.Elif(begun):
            m.d.comb += plan.opcode.eq(Mux(last, op.READ_RESPONSE_LAST, op.READ_RESPONSE_MIDDLE))
        with m.Else():
            m.d.comb += plan.opcode.eq(Mux(last, op.READ_RESPONSE_ONLY, op.READ_RESPONSE_FIRST))
        with m.If(self.questions.valid & self.questions.ready):
            m.d.sync += second.eq(~second & crosses)
        with m.If(plans.w_en):
            m.d.sync += [
                begun.eq(~last),
                sent.eq(Mux(last, 0, sent + size)),
                psn.eq(plan.psn + 1),
            ]

    def _send(self, m: Module, plans: SyncFIFO) -> None:
        """Build the headers of planned packets, and fetch their bytes; a READ whose memory is gone ends with a NAK."""
        m.submodules.headers = headers = SyncFIFOBuffered(width=HEADER.size, depth=32)
        m.submodules.route = routes = SyncFIFOBuffered(width=ROUTE.size, depth=32)
        m.submodules.fetches = fetches = SyncFIFOBuffered(width=FETCH.size, depth=32)
        m.submodules.lost = lost = SyncFIFOBuffered(width=QPN_BITS, depth=4)
        for port, fifo in (
            (self.headers, headers), (self.route, routes), (self.fetches, fetches), (self.lost, lost),
        ):  # fmt: skip
            m.d.comb += [
                Value.cast(port.payload).eq(fifo.r_data), port.valid.eq(fifo.r_rdy), fifo.r_en.eq(port.ready)
            ]  # fmt: skip
        it, found = Signal(_PLAN), self.answers
        first, has_first, gone = unreset(answer()), Signal(), Signal()  # the rest of a READ response is not sent
        one = Signal(answer())
        m.d.comb += it.eq(plans.r_data)
        m.d.comb += Value.cast(one).eq(Mux(it.crosses, Value.cast(first), Value.cast(found.payload)))
        asked = it.size != 0
        here = plans.r_rdy & (found.valid | ~asked)
        with m.If(here & it.crosses & ~has_first):
            m.d.comb += found.ready.eq(1)
            m.d.sync += [first.eq(found.payload), has_first.eq(1)]
        whole = here & (~it.crosses | has_first)
        wrong = (one.reason != VTP_SUCCESS) | (one.left < it.part)
        other = it.crosses & ((found.payload.reason != VTP_SUCCESS) | (found.payload.left < it.size - it.part))
        fails = wire(m, asked & (wrong | other), "fails")
        room = headers.w_rdy & routes.w_rdy & fetches.w_rdy & lost.w_rdy
        fire = wire(m, whole & room, "fire")
        skips = wire(m, gone & ~it.first, "skips")
        header, route, fetch = Signal(HEADER), Signal(ROUTE), Signal(FETCH)
        with m.If(fire):
            m.d.comb += [plans.r_en.eq(1), found.ready.eq(asked)]
            m.d.sync += [has_first.eq(0), gone.eq(fails | skips)]
        reply = it.reply
        has_aeth = it.opcode != op.READ_RESPONSE_MIDDLE
        m.d.comb += [
            header.opcode.eq(Mux(fails, op.ACKNOWLEDGE, it.opcode)),
            header.migreq.eq(1),
            header.pkey.eq(reply.pkey),
            header.dqpn.eq(reply.dqpn),
            header.psn.eq(it.psn),
            header.syndrome.eq(Mux(fails, NAK_REMOTE_OPERATION, reply.syndrome)),
            header.msn.eq(reply.msn),
            header.payload_bytes.eq(Mux(fails, 0, it.size)),
            headers.w_data.eq(header),
            headers.w_en.eq(fire & ~skips),
            *(route[name].eq(reply[name]) for name in ("peer", "mac", "sport")),
            route.bytes.eq(Mux(fails | has_aeth, 16, 12) + Mux(fails, 0, Cat(Const(0, 2), (it.size + 3)[2:]))),
            routes.w_data.eq(route),
            routes.w_en.eq(fire & ~skips),
            fetch.address.eq(one.address),
            fetch.bytes.eq(it.size),
            fetch.left.eq(it.part),
            fetch.next.eq(found.payload.address),
            fetches.w_data.eq(fetch),
            fetches.w_en.eq(fire & ~skips & ~fails & asked),
            lost.w_data.eq(reply.qpn),
            lost.w_en.eq(fire & ~skips & fails),
        ]
