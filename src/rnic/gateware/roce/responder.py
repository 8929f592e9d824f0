"""``responder``: the receive checks of a reliable connection, as named steps in the standard's order, then execution.

The steps are those of :mod:`rnic.transport.responder` (004 RC_CHK, IBA 9.7). All checks run in parallel, and the first
in order that fails decides. A packet passes three stages. The first gets the queue pair's state and settings. The
second checks, takes a receive entry if one is needed, and looks up the MR table. The third gets the table's answer,
stores the state, and outputs the results.
"""

from __future__ import annotations

from typing import Any, Final

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import unreset
from rnic.gateware.roce.mr_table import PAGE_SHIFT, answer, question
from rnic.gateware.roce.qp_state import ANSWER, QPN_BITS, STATE, UPDATE
from rnic.gateware.roce.streams import HEADER, LENGTH_BITS, ROWS, beat
from rnic.mem.table import VTP_SUCCESS
from rnic.spec import opcodes as op
from rnic.spec.limits import MTU_BYTES
from rnic.spec.psn import PSN_BITS, PSN_WINDOW
from rnic.spec.states import ERR, RTR, RTS, SQD, SQE
from rnic.spec.status import LOC_LEN_ERR, LOC_PROT_ERR, REM_ACCESS_ERR, REM_INV_REQ_ERR
from rnic.spec.syndromes import (
    AETH_RNR_NAK,
    CREDITS_INVALID,
    NAK_INVALID_REQUEST,
    NAK_PSN_SEQUENCE,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATION,
)
from rnic.transport.responder import NOTHING, SEND, WRITE
from rnic.wire.opcode import OpcodeRow

PACKET: Final = data.StructLayout({"headers": HEADER, "good": 1, "src": 32})
"""A packet's headers, its ICRC verdict, and its source IPv4 address."""
SETTINGS: Final = data.StructLayout({
    "remote_write": 1, "remote_read": 1, "credits": 1, "rnr_timer": 5, "msgmax": 5, "pkey": 16, "peer": 32, "mac": 48,
    "sport": 16,
})  # fmt: skip
"""Settings of a queue pair that no channel of 002 carries: access rights, whether it sends credits, RNR timer, log2 of
the longest message (0: no limit), P_Key, the peer's IP and MAC addresses, and the UDP source port of its packets."""
SET: Final = data.StructLayout({"qpn": QPN_BITS, "values": SETTINGS})
TAKE_RECEIVE: Final = data.StructLayout({"qpn": QPN_BITS, "take": 1, "keeps": 1})
"""``take`` the next receive entry, and report the remaining credits; an entry that an open message ``keeps`` counts."""
RECEIVE: Final = data.StructLayout({"valid": 1, "index": 32, "va": 64, "length": 32, "key": 32, "credits": 5})
"""A receive entry with one SGE, if there is one, and the code of the remaining credits."""
AFTER_BITS: Final = 16
REPLY: Final = data.StructLayout({
    "read": 1, "qpn": QPN_BITS, "dqpn": QPN_BITS, "psn": PSN_BITS, "syndrome": 8, "msn": PSN_BITS, "va": 64, "key": 32,
    "pd": 12, "length": 32, "pmtu": 3, "pkey": 16, "peer": 32, "mac": 48, "sport": 16, "after": AFTER_BITS,
})  # fmt: skip
"""A pending reply: an ACK or NAK, or with ``read`` the responses to a READ. It is sent once memory has answered the
first ``after`` stores."""
STORE: Final = data.StructLayout({"address": 64, "bytes": LENGTH_BITS, "left": PAGE_SHIFT + 1, "next": 64})
"""The destination of a packet's bytes: at most ``left`` of them go to ``address``, the others to ``next``, another
page."""
COMPLETION: Final = data.StructLayout({
    "qpn": QPN_BITS, "fails": 1, "taken": 1, "index": 32, "length": 32, "opcode": 8, "imm": 32, "solicited": 1,
    "nak": 8, "status": 8, "after": AFTER_BITS,
})  # fmt: skip
"""The completion of a receive entry; ``opcode`` is that of the message's last packet. With ``fails``, the queue pair
goes to ERR with a ``nak``, and the current receive entry, if one is ``taken``, completes with ``status``."""

FLAGS: Final = ("send", "write", "read", "start", "end", "receive", "resource")
"""Flags of an opcode, as in :class:`~rnic.wire.opcode.OpcodeRow`; ``receive``: it takes a receive entry."""
ITEM: Final = data.StructLayout(
    dict.fromkeys((*FLAGS, "relevant", "ackreq", "solicited"), 1)
    | {"dqpn": QPN_BITS, "psn": PSN_BITS, "opcode": 8, "pkey": 16, "src": 32, "va": 64, "rkey": 32, "dma_length": 32}
    | {"imm": 32, "bytes": LENGTH_BITS}
)
RECEIVING: Final = (RTR, RTS, SQE, SQD)
"""States in which requests are taken."""
RIGHT, ACCESS, LOCAL, SILENT = range(4)
"""Result of a failed key check: none, a remote access NAK, a remote operation NAK, or a dropped packet."""
MTU_SHIFT: Final = 7
"""A path MTU is 2^7 bytes times 2^code."""
PAGE: Final = 1 << PAGE_SHIFT
PENDING: Final = data.StructLayout(
    dict.fromkeys(("relevant", "changed", "replies", "reads", "stores", "crosses", "completes", "fails", "taken"), 1)
    | {"state": STATE, "expected_psn": PSN_BITS, "msn": PSN_BITS, "item": ITEM, "settings": SETTINGS}
    | {"psn": PSN_BITS, "syndrome": 8, "without_key": 2, "part": PAGE_SHIFT + 1, "status": 8, "index": 32, "length": 32}
)
"""The outcome of a packet if its key check passes; PSN and MSN are those before the packet."""


def flags_of(row: OpcodeRow) -> dict[str, int]:
    """Return the flags of an opcode; an unsupported opcode has neither ``send``, ``write`` nor ``read``."""
    return {
        "send": row.send and not row.ieth,
        "write": row.write,
        "read": row.operation == op.READ_REQUEST,
        "start": row.start,
        "end": row.end,
        "receive": row.takes_receive,
        "resource": row.resource,
    }


def wire(m: Module, value: Any, name: str) -> Any:
    """Return a named wire for a value."""
    out = Signal(len(Value.cast(value)), name=name)
    m.d.comb += out.eq(value)
    return out


class Responder(wiring.Component):
    """Takes ``packets`` in order, each with the beats of its ``payload``, and drops invalid ones and those for no
    reliable connection. ``settings`` are those of queue pairs; ``asks``, ``states`` and ``updates`` connect to
    ``qp_state``; ``questions`` and ``answers`` to ``mr_table``. ``receives`` answers ``take_receives``."""

    def __init__(self, width: int, log_qps: int) -> None:
        out: dict[str, Any] = {
            "asks": QPN_BITS, "updates": UPDATE, "questions": question(), "take_receives": TAKE_RECEIVE,
            "replies": REPLY, "stores": STORE, "store_data": beat(width), "completions": COMPLETION,
        }  # fmt: skip
        given: dict[str, Any] = {
            "packets": PACKET, "payload": beat(width), "settings": SET, "states": ANSWER, "answers": answer(),
            "receives": RECEIVE,
        }  # fmt: skip
        super().__init__(
            {name: In(stream.Signature(shape)) for name, shape in given.items()}
            | {name: Out(stream.Signature(shape)) for name, shape in out.items()}
        )
        self.log_qps = log_qps

    def elaborate(self, platform: object) -> Module:
        """Build three stages, with FIFOs after the last."""
        m = Module()
        m.submodules.pending = pending = SyncFIFO(width=PENDING.size, depth=4)
        item, state, settings, full, leaves = self._take_state(m)
        self._check(m, item, state, settings, full, leaves, pending)
        self._effect(m, pending)
        return m

    # ------------------------------------------------------------------------------ the first stage

    def _take_state(self, m: Module) -> tuple[Any, Any, Any, Signal, Signal]:
        """Request the state, and wait for it; register the packet, its state and settings."""
        m.submodules.items = items = SyncFIFO(width=ITEM.size, depth=4)
        m.submodules.kept = memory = Memory(shape=SETTINGS, depth=1 << self.log_qps, init=[])
        store, load = memory.write_port(), memory.read_port()
        m.d.comb += [
            self.settings.ready.eq(1),
            store.addr.eq(self.settings.payload.qpn[: self.log_qps]),
            store.data.eq(self.settings.payload.values),
            store.en.eq(self.settings.valid),
        ]
        given, headers, new = self.packets, self.packets.payload.headers, Signal(ITEM)
        with m.Switch(headers.opcode):
            for row in ROWS.values():
                if row.service == op.RC and row.request:
                    with m.Case(row.opcode):
                        m.d.comb += new.relevant.eq(given.payload.good & (headers.drop == 0))
                        m.d.comb += [new[name].eq(value) for name, value in flags_of(row).items()]
        names = ("ackreq", "solicited", "dqpn", "psn", "opcode", "pkey", "va", "rkey", "dma_length", "imm")
        m.d.comb += [new[name].eq(headers[name]) for name in names]
        m.d.comb += [
            new.src.eq(given.payload.src),
            new.bytes.eq(headers.payload_bytes),
            self.asks.payload.eq(headers.dqpn),
            self.asks.valid.eq(given.valid & new.relevant & items.w_rdy),
            given.ready.eq(items.w_rdy & (~new.relevant | self.asks.ready)),
            items.w_data.eq(new),
            items.w_en.eq(given.valid & given.ready),
        ]
        head, seen, full, leaves = Signal(ITEM), Signal(), Signal(), Signal()
        item, state, settings = unreset(ITEM), unreset(STATE), unreset(SETTINGS)
        may = items.r_rdy & seen & (~full | leaves)
        m.d.comb += [
            head.eq(items.r_data),
            load.addr.eq(head.dqpn[: self.log_qps]),
            self.states.ready.eq(may & head.relevant),
            items.r_en.eq(may & (self.states.valid | ~head.relevant)),
        ]
        m.d.sync += seen.eq(items.r_rdy & ~items.r_en)
        with m.If(items.r_en):
            m.d.sync += [item.eq(head), state.eq(self.states.payload.state), settings.eq(load.data), full.eq(1)]
        with m.Elif(leaves):
            m.d.sync += full.eq(0)
        return item, state, settings, full, leaves

    # ------------------------------------------------------------------------------ the second stage

    def _check(
        self, m: Module, item: Any, state: Any, settings: Any, full: Signal, leaves: Signal, pending: SyncFIFO
    ) -> None:
        """Check, take a receive entry, look up the MR table, and decide the outcome of the packet."""
        got, has_got = unreset(RECEIVE), Signal()
        mtu = wire(m, Const(1 << MTU_SHIFT) << state.pmtu, "mtu")
        partition = ((item.pkey ^ settings.pkey)[:15] == 0) & (item.pkey[15] | settings.pkey[15])
        admitted = wire(
            m,
            item.relevant
            & Cat(state.state == each for each in RECEIVING).any()
            & (item.src == settings.peer)
            & partition
            & Cat(state.pmtu == code for code in MTU_BYTES).any(),
            "admitted",
        )
        # ---- check_psn
        ahead = wire(m, (item.psn - state.expected_psn)[:PSN_BITS], "ahead")
        expected = wire(m, admitted & (ahead == 0), "expected")
        gap = wire(m, admitted & (ahead != 0) & ~ahead[-1], "gap")
        duplicate = wire(m, admitted & ahead[-1], "duplicate")
        # ---- check_op_seq
        kind = wire(m, Mux(item.send, SEND, Mux(item.write, WRITE, NOTHING)), "kind")
        op_seq = wire(m, state.open == Mux(item.start | (kind == NOTHING), NOTHING, kind), "op_seq")
        # ---- check_op_valid
        op_valid = wire(
            m, item.send | (item.write & settings.remote_write) | (item.read & settings.remote_read), "op_valid"
        )
        # ---- check_resources
        so_far = wire(m, expected & op_seq & op_valid, "so_far")
        needs = wire(m, so_far & ((item.send & item.start) | (item.write & item.receive)), "needs")
        not_ready = wire(m, needs & ~got.valid, "not_ready")
        # ---- check_length
        offset = wire(m, Mux(item.start, 0, state.offset), "offset")
        end = wire(m, offset + item.bytes, "message_end")
        length = Signal(32)  # bytes left of the message, or of the receive entry
        with m.If(item.send & item.start):
            m.d.comb += length.eq(got.length)
        with m.Elif(item.send | ~item.start):
            m.d.comb += length.eq(state.dest_length)
        with m.Else():
            m.d.comb += length.eq(item.dma_length)
        most = Mux(settings.msgmax == 0, Const(1 << 31), Const(1, 32) << settings.msgmax)
        too_long = wire(m, (item.write | item.read) & (length > most), "too_long")
        count = Signal(PSN_BITS + 1)  # PSNs that a READ's responses use
        shifts = [MTU_SHIFT + code for code in range(max(MTU_BYTES) + 1)]
        wanted = item.dma_length
        m.d.comb += count.eq(
            Array(Mux(wanted == 0, 1, (wanted >> each) + wanted[:each].any()) for each in shifts)[state.pmtu]
        )
        carries = item.send | item.write
        wrong_size = wire(
            m,
            carries
            & ((item.bytes > mtu) | (~item.end & (item.bytes != mtu)) | (item.end & ~item.start & (item.bytes == 0))),
            "wrong_size",
        )
        too_much = wire(m, so_far & item.send & ~wrong_size & (end > length), "too_much")
        wrong_length = wire(
            m,
            wrong_size
            | too_much
            | too_long
            | (item.read & (count > PSN_WINDOW))
            | (item.write & ((end > length) | (item.end == (end != length)))),
            "wrong_length",
        )
        # ---- check_rkey: the MR table answers; here is only the lookup
        place, key = Signal(64), Signal(32)
        with m.If(item.send & item.start):
            m.d.comb += [place.eq(got.va), key.eq(got.key)]
        with m.Elif(carries & ~item.start):
            m.d.comb += [place.eq(state.dest_va + offset), key.eq(state.dest_key)]
        with m.Else():
            m.d.comb += [place.eq(item.va), key.eq(item.rkey)]
        before_page_end = wire(m, Const(PAGE, PAGE_SHIFT + 1) - place[:PAGE_SHIFT], "before_page_end")
        read_again = wire(
            m, duplicate & item.read & settings.remote_read & (count <= (-ahead)[:PSN_BITS]), "read_again"
        )
        goes = wire(m, so_far & ~not_ready & ~wrong_length, "goes")
        takes = wire(m, goes & carries, "takes")
        reads = wire(m, goes & item.read, "reads")
        looks = wire(m, goes | read_again | (so_far & item.send & item.start & ~not_ready), "looks")
        crosses = wire(m, takes & (item.bytes > before_page_end), "crosses")
        rest = wire(m, item.bytes - before_page_end, "rest")

        # ---- take a receive entry, then look up one or two pages in the MR table
        asked, second = Signal(), Signal()
        wants = needs | (admitted & settings.credits)
        ready = full & (~wants | has_got) & pending.w_rdy
        mine = self.questions.payload
        m.d.comb += [
            self.take_receives.valid.eq(full & wants & ~asked),
            self.take_receives.payload.qpn.eq(item.dqpn),
            self.take_receives.payload.take.eq(needs),
            self.take_receives.payload.keeps.eq(Mux(expected, item.send & ~item.end, state.open == SEND)),
            self.receives.ready.eq(full & asked & ~has_got),
            self.questions.valid.eq(ready),
            mine.key.eq(key),
            mine.pd.eq(state.qp_pd),
            mine.va.eq(Mux(second, Cat(Const(0, PAGE_SHIFT), (place >> PAGE_SHIFT) + 1), place)),
            mine.length.eq(Mux(second, rest, Mux(looks, Mux(item.read, wanted, length - offset), 0))),
            mine.remote_write.eq(item.write),
            mine.remote_read.eq(item.read),
            mine.local_write.eq(item.send),
            leaves.eq(ready & self.questions.ready & (second | ~crosses)),
        ]
        with m.If(self.take_receives.valid & self.take_receives.ready):
            m.d.sync += asked.eq(1)
        with m.If(self.receives.valid & self.receives.ready):
            m.d.sync += [got.eq(self.receives.payload), has_got.eq(1)]
        with m.If(ready & self.questions.ready):
            m.d.sync += second.eq(~second & crosses)
        with m.If(leaves):
            m.d.sync += [asked.eq(0), has_got.eq(0)]

        # ---- outcome
        out = Signal(PENDING)
        after = out.state
        refused = expected & ~not_ready & ~goes
        has_receive = needs & got.valid
        m.d.comb += [
            after.eq(state),
            out.relevant.eq(item.relevant),
            out.expected_psn.eq(state.expected_psn),
            out.msn.eq(state.msn),
            out.item.eq(item),
            out.settings.eq(settings),
            out.psn.eq(item.psn),
            out.syndrome.eq(Mux(settings.credits, got.credits, CREDITS_INVALID)),
            out.part.eq(Mux(crosses, before_page_end, item.bytes)),
            out.taken.eq(has_receive | (state.open == SEND)),
            out.index.eq(Mux(has_receive, got.index, state.receive_index)),
            out.length.eq(Mux(item.write, length, end)),
            pending.w_data.eq(out),
            pending.w_en.eq(leaves),
        ]
        with m.If(expected):
            m.d.comb += after.nak_sent.eq(0)
        with m.If(gap):
            m.d.comb += [
                out.replies.eq(~state.nak_sent),
                out.psn.eq(state.expected_psn),
                out.syndrome.eq(NAK_PSN_SEQUENCE),
                after.nak_sent.eq(1),
            ]
        with m.If(duplicate):
            m.d.comb += [out.replies.eq(~item.resource | read_again), out.reads.eq(read_again)]
            m.d.comb += out.without_key.eq(Mux(read_again, SILENT, RIGHT))
            with m.If(~item.resource):
                m.d.comb += out.psn.eq(state.expected_psn - 1)
        with m.If(not_ready):
            m.d.comb += [
                out.replies.eq(1),
                out.syndrome.eq(AETH_RNR_NAK | settings.rnr_timer),
                after.nak_sent.eq(1),
            ]
        with m.If(refused):
            m.d.comb += [
                out.changed.eq(1),
                out.replies.eq(1),
                out.fails.eq(1),
                out.syndrome.eq(NAK_INVALID_REQUEST),
                out.status.eq(Mux(too_much, LOC_LEN_ERR, REM_INV_REQ_ERR)),
                out.without_key.eq(Mux(looks, LOCAL, RIGHT)),
                after.state.eq(ERR),
                after.open.eq(NOTHING),
            ]
        with m.If(takes):
            m.d.comb += [
                out.changed.eq(1),
                out.replies.eq(item.ackreq),
                out.stores.eq(item.bytes != 0),
                out.crosses.eq(crosses),
                out.completes.eq(item.receive),
                out.without_key.eq(Mux(item.send, LOCAL, ACCESS)),
                after.expected_psn.eq(state.expected_psn + 1),
                after.open.eq(Mux(item.end, NOTHING, kind)),
                after.offset.eq(Mux(item.end, 0, end)),
                after.msn.eq(state.msn + item.end),
            ]
            with m.If(item.start):
                m.d.comb += [after.dest_va.eq(place), after.dest_length.eq(length), after.dest_key.eq(key)]
            with m.If(has_receive):
                m.d.comb += after.receive_index.eq(got.index)
        with m.If(reads):
            m.d.comb += [
                out.changed.eq(1),
                out.replies.eq(1),
                out.reads.eq(1),
                out.without_key.eq(ACCESS),
                after.expected_psn.eq(state.expected_psn + count),
                after.msn.eq(state.msn + 1),
            ]

    # ------------------------------------------------------------------------------ the third stage

    def _effect(self, m: Module, pending: SyncFIFO) -> None:
        """Build ``execute``, ``complete`` and ``acknowledge``: all effects of a packet, in one cycle."""
        m.submodules.replies = replies = SyncFIFOBuffered(width=REPLY.size, depth=64)
        m.submodules.completions = completions = SyncFIFOBuffered(width=COMPLETION.size, depth=16)
        m.submodules.stores = stores = SyncFIFOBuffered(width=STORE.size, depth=16)
        m.submodules.moves = moves = SyncFIFO(width=1, depth=16)
        for port, fifo in (
            (self.replies, replies), (self.completions, completions), (self.stores, stores),
        ):  # fmt: skip
            m.d.comb += [
                Value.cast(port.payload).eq(fifo.r_data), port.valid.eq(fifo.r_rdy), fifo.r_en.eq(port.ready)
            ]  # fmt: skip
        it, found = Signal(PENDING), self.answers
        first, has_first = unreset(answer()), Signal()
        one = Signal(answer())  # of the first page
        m.d.comb += it.eq(pending.r_data)
        m.d.comb += Value.cast(one).eq(Mux(it.crosses, Value.cast(first), Value.cast(found.payload)))
        here = pending.r_rdy & found.valid
        whole = here & (~it.crosses | has_first)
        with m.If(here & it.crosses & ~has_first):
            m.d.comb += found.ready.eq(1)
            m.d.sync += [first.eq(found.payload), has_first.eq(1)]
        rest = it.item.bytes - it.part
        wrong = (one.reason != VTP_SUCCESS) | (it.stores & (one.left < it.part))
        other = it.crosses & ((found.payload.reason != VTP_SUCCESS) | (found.payload.left < rest))
        fails = wire(m, (it.without_key != RIGHT) & (wrong | other), "key_fails")
        room = replies.w_rdy & completions.w_rdy & stores.w_rdy & moves.w_rdy
        fire = whole & room & (self.updates.ready | ~it.relevant)
        stored, issued = Signal(AFTER_BITS), Signal(AFTER_BITS)
        reply, completion, store = Signal(REPLY), Signal(COMPLETION), Signal(STORE)
        stops = fails & (it.without_key != SILENT)
        stores_now = wire(m, it.stores & ~fails, "stores_now")
        m.d.comb += issued.eq(stored + stores_now)
        with m.If(fire):
            m.d.comb += [found.ready.eq(1), pending.r_en.eq(1)]
            m.d.sync += [stored.eq(issued), has_first.eq(0)]
        # the state
        update = self.updates.payload
        m.d.comb += [
            self.updates.valid.eq(whole & room & it.relevant),
            update.qpn.eq(it.item.dqpn),
            update.changed.eq(it.changed),
            update.state.eq(it.state),
        ]
        with m.If(stops):
            m.d.comb += [
                update.state.expected_psn.eq(it.expected_psn),
                update.state.msn.eq(it.msn),
                update.state.open.eq(NOTHING),
                update.state.state.eq(ERR),
            ]
        # execute: store or discard the bytes
        m.d.comb += [
            store.address.eq(one.address),
            store.bytes.eq(it.item.bytes),
            store.left.eq(it.part),
            store.next.eq(found.payload.address),
            stores.w_data.eq(store),
            stores.w_en.eq(fire & stores_now),
            moves.w_data.eq(stores_now),
            moves.w_en.eq(fire & (it.item.bytes != 0)),
        ]
        beats, data_out = self.payload, self.store_data
        m.d.comb += [
            data_out.payload.eq(beats.payload),
            data_out.valid.eq(beats.valid & moves.r_rdy & moves.r_data),
            beats.ready.eq(moves.r_rdy & (~moves.r_data | data_out.ready)),
            moves.r_en.eq(beats.valid & beats.ready & beats.payload.last),
        ]
        # complete
        m.d.comb += [
            completion.qpn.eq(it.item.dqpn),
            completion.index.eq(it.index),
            completion.length.eq(it.length),
            completion.opcode.eq(it.item.opcode),
            completion.imm.eq(it.item.imm),
            completion.solicited.eq(it.item.solicited),
            completion.after.eq(issued),
            completions.w_data.eq(completion),
            completion.fails.eq(stops | it.fails),
            completion.taken.eq(it.taken),
            completion.nak.eq(reply.syndrome),
            completion.status.eq(it.status),
            completions.w_en.eq(fire & ((it.completes & ~fails) | stops | it.fails)),
        ]
        # acknowledge
        m.d.comb += [
            reply.read.eq(it.reads & ~fails),
            reply.qpn.eq(it.item.dqpn),
            reply.dqpn.eq(it.state.dst_qpn),
            reply.psn.eq(it.psn),
            reply.syndrome.eq(it.syndrome),
            reply.msn.eq(Mux(stops, it.msn, it.state.msn)),
            reply.va.eq(it.item.va),
            reply.key.eq(it.item.rkey),
            reply.pd.eq(it.state.qp_pd),
            reply.length.eq(it.item.dma_length),
            reply.pmtu.eq(it.state.pmtu),
            *(reply[name].eq(it.settings[name]) for name in ("pkey", "peer", "mac", "sport")),
            reply.after.eq(issued),
            replies.w_data.eq(reply),
            replies.w_en.eq(fire & Mux(fails, stops, it.replies)),
        ]
        with m.If(stops):
            local = it.without_key == LOCAL
            m.d.comb += [
                reply.syndrome.eq(Mux(local, NAK_REMOTE_OPERATION, NAK_REMOTE_ACCESS)),
                completion.status.eq(Mux(local, LOC_PROT_ERR, REM_ACCESS_ERR)),
            ]
