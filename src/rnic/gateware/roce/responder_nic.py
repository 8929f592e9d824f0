"""``responder_nic``: the blocks connected: Ethernet frames in, ACKs and READ responses out, with a memory port.

    frames -> udp_parse -> icrc_check, bth_parse -> responder <-> qp_state, mr_table
    frames <- ethernet_build <- icrc_generate <- udp_build <- bth_build <- replies <- responder

Contexts come through 002's channel of the execution engine; receive entries and completions are streams to the block
that owns the rings, or to software.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out, connect, flipped

from rnic.gateware.roce.bth_build import BthBuild
from rnic.gateware.roce.bth_parse import BthParse
from rnic.gateware.roce.frames import IP_UDP_BYTES as L3_BYTES
from rnic.gateware.roce.frames import EthernetBuild, Skip, UdpBuild, UdpParse
from rnic.gateware.roce.icrc import IcrcCheck, IcrcGenerate
from rnic.gateware.roce.mr_table import MrTable, MrTableParams, answer, question, setting
from rnic.gateware.roce.qp_state import CHANNEL, QPN_BITS, UPDATE, QpState, QpStateParams
from rnic.gateware.roce.replies import FETCH, Replies
from rnic.gateware.roce.responder import COMPLETION, RECEIVE, SET, STORE, TAKE_RECEIVE, Responder
from rnic.gateware.roce.streams import HEADER, beat
from rnic.spec.limits import MAX_UDP_PAYLOAD

ANSWERS: Final = 16
"""MR table answers buffered for each of its two requesters: more than either can have outstanding."""


@dataclass(frozen=True, slots=True)
class ResponderParams:
    """Sizes.

    Raises:
        ValueError: ``width`` is not a valid beat width, or ``room`` is too small.
    """

    width: int = 512
    """Bits of a beat, for frames and memory."""
    qps: QpStateParams = field(default_factory=QpStateParams)
    table: MrTableParams = field(default_factory=MrTableParams)
    room: int = 16384
    """Bytes of buffers for incomplete frames, and for payloads of unchecked packets."""

    def __post_init__(self) -> None:
        if self.width not in (64, 128, 256, 512):
            raise ValueError(f"width={self.width}: 64, 128, 256 or 512")
        if self.room < 2 * MAX_UDP_PAYLOAD:
            raise ValueError(f"room={self.room}: at least {2 * MAX_UDP_PAYLOAD} bytes, two of the longest packets")

    @property
    def beats(self) -> int:
        """Beats in ``room``."""
        return self.room // (self.width // 8)


class SharedTable(wiring.Component):
    """An MR table with two requesters, served round-robin. Each has buffers for all its outstanding answers, so neither
    blocks the other."""

    def __init__(self, params: MrTableParams) -> None:
        ports: dict[str, Any] = {name: In(stream.Signature(shape)) for name, shape in setting(params).items()}
        for side in range(2):
            ports[f"asks_{side}"] = In(stream.Signature(question()))
            ports[f"answers_{side}"] = Out(stream.Signature(answer()))
        super().__init__(ports)
        self.params = params

    def elaborate(self, platform: object) -> Module:
        """Remember the requester of each lookup in flight."""
        m = Module()
        m.submodules.table = table = MrTable(self.params)
        m.submodules.owners = owners = SyncFIFO(width=1, depth=ANSWERS)
        for name in ("entries", "pages"):
            connect(m, flipped(getattr(self, name)), getattr(table, name))
        asks, turn, chosen = (self.asks_0, self.asks_1), Signal(), Signal()
        m.d.comb += chosen.eq((turn & asks[1].valid) | ~asks[0].valid)
        goes = Signal()
        m.d.comb += goes.eq(table.asks.ready & owners.w_rdy)
        for side, ask in enumerate(asks):
            with m.If(chosen == side):
                m.d.comb += [
                    table.asks.payload.eq(ask.payload),
                    table.asks.valid.eq(ask.valid & owners.w_rdy),
                    ask.ready.eq(goes),
                    owners.w_en.eq(ask.valid & goes),
                ]
        m.d.comb += [owners.w_data.eq(chosen), table.answers.ready.eq(1), owners.r_en.eq(table.answers.valid)]
        with m.If(owners.w_en):
            m.d.sync += turn.eq(~chosen)
        for side in range(2):
            found = SyncFIFO(width=answer().size, depth=ANSWERS)
            m.submodules[f"found_{side}"] = found
            out = getattr(self, f"answers_{side}")
            m.d.comb += [
                found.w_data.eq(table.answers.payload),
                found.w_en.eq(table.answers.valid & (owners.r_data == side)),
                Value.cast(out.payload).eq(found.r_data),
                out.valid.eq(found.r_rdy),
                found.r_en.eq(out.ready),
            ]
        return m


class ResponderNic(wiring.Component):
    """``rx`` and ``tx``: frames without FCS, ``rx`` always ready. ``mac`` and ``ip`` are ours.

    Memory: ``stores`` with a packet of ``store_data`` each, answered in order by a cycle of ``stored``; ``fetches`` are
    answered in order by a packet of ``fetch_data`` each. Software: ``settings``, ``entries`` and ``pages``, and
    ``forgets`` for a queue pair that was reset. ``cmd``, ``cxt_in``, ``resp`` and ``cxt`` are CtxMgt's channel. For
    tests, ``update`` is a queue pair's new state, valid with ``updated``; ``active``: an update, a dropped frame, or
    any valid output.
    """

    def __init__(self, params: ResponderParams) -> None:
        width = params.width
        given: dict[str, Any] = {
            "rx": beat(width), "fetch_data": beat(width), "settings": SET, "receives": RECEIVE, "forgets": QPN_BITS,
            **setting(params.table),
        }  # fmt: skip
        out: dict[str, Any] = {
            "tx": beat(width), "stores": STORE, "store_data": beat(width), "fetches": FETCH,
            "take_receives": TAKE_RECEIVE, "completions": COMPLETION, "lost": QPN_BITS,
        }  # fmt: skip
        ports: dict[str, Any] = {name: In(stream.Signature(shape)) for name, shape in given.items()}
        ports |= {name: Out(stream.Signature(shape)) for name, shape in out.items()}
        wires = {
            "stored": In(1),
            "mac": In(48),
            "ip": In(32),
            "dropped": Out(1),
            "update": Out(UPDATE),
            "updated": Out(1),
            "active": Out(1),
        }
        super().__init__(ports | CHANNEL | wires)
        self.params = params

    def elaborate(self, platform: object) -> Module:
        """Connect the blocks."""
        m = Module()
        params, width = self.params, self.params.width
        m.submodules.udp_parse = udp_parse = UdpParse(width, params.beats)
        m.submodules.icrc_check = icrc_check = IcrcCheck(width)
        m.submodules.skip = skip = Skip(width, L3_BYTES)
        m.submodules.bth_parse = bth_parse = BthParse(width)
        m.submodules.payloads = payloads = SyncFIFOBuffered(width=beat(width).size, depth=params.beats)
        m.submodules.good = good = SyncFIFO(width=1, depth=4)
        m.submodules.headers = headers = SyncFIFO(width=HEADER.size, depth=4)
        m.submodules.responder = responder = Responder(width, params.qps.log_qps)
        m.submodules.qp_state = qp_state = QpState(params.qps)
        m.submodules.mr_table = table = SharedTable(params.table)
        m.submodules.replies = replies = Replies()
        m.submodules.bth_build = bth_build = BthBuild(width)
        m.submodules.udp_build = udp_build = UdpBuild(width)
        m.submodules.icrc_generate = seal = IcrcGenerate(width)
        m.submodules.ethernet_build = ethernet = EthernetBuild(width)

        # ---- frames in
        l3, check, rest = udp_parse.packets, icrc_check.beats, skip.beats
        connect(m, flipped(self.rx), udp_parse.frames)
        m.d.comb += [
            udp_parse.mac.eq(self.mac),
            udp_parse.ip.eq(self.ip),
            self.dropped.eq(udp_parse.dropped),
            check.payload.eq(l3.payload),
            rest.payload.eq(l3.payload),
            check.valid.eq(l3.valid & rest.ready),
            rest.valid.eq(l3.valid & check.ready),
            l3.ready.eq(check.ready & rest.ready),
        ]
        connect(m, skip.rest, bth_parse.beats)
        into(m, bth_parse.payload, payloads)
        into(m, bth_parse.headers, headers)
        into(m, icrc_check.good, good)
        whole = headers.r_rdy & good.r_rdy & udp_parse.source.valid
        packets = responder.packets
        m.d.comb += [
            Value.cast(packets.payload.headers).eq(headers.r_data),
            packets.payload.good.eq(good.r_data),
            packets.payload.src.eq(udp_parse.source.payload.src),
            packets.valid.eq(whole),
        ]
        m.d.comb += [each.eq(whole & packets.ready) for each in (headers.r_en, good.r_en, udp_parse.source.ready)]
        m.d.comb += [
            Value.cast(responder.payload.payload).eq(payloads.r_data),
            responder.payload.valid.eq(payloads.r_rdy),
            payloads.r_en.eq(responder.payload.ready),
        ]

        # ---- the responder and its tables
        connect(m, responder.asks, qp_state.asks)
        connect(m, qp_state.states, responder.states)
        connect(m, responder.updates, qp_state.updates)
        connect(m, responder.questions, table.asks_0)
        connect(m, table.answers_0, responder.answers)
        connect(m, replies.questions, table.asks_1)
        connect(m, table.answers_1, replies.answers)
        connect(m, responder.replies, replies.replies)
        connect(m, responder.completions, replies.completions)
        for block, names in (
            (responder, ("settings", "receives", "take_receives", "stores", "store_data")),
            (qp_state, ("forgets", "cmd", "cxt_in", "resp", "cxt")),
            (table, ("entries", "pages")),
            (replies, ("fetches", "lost")),
        ):
            for name in names:
                outside, inside = flipped(getattr(self, name)), getattr(block, name)
                connect(m, outside, inside)
        connect(m, replies.completed, flipped(self.completions))
        m.d.comb += [
            replies.stored.eq(self.stored),
            self.update.eq(responder.updates.payload),
            self.updated.eq(responder.updates.valid & responder.updates.ready),
        ]

        outputs = [name for name, member in self.signature.members.items() if member.is_signature]
        streams = [getattr(self, name) for name in outputs if self.signature.members[name].flow == Out]
        m.d.comb += self.active.eq(Cat(*(each.valid for each in streams)).any() | self.updated | self.dropped)

        # ---- frames out
        connect(m, replies.headers, bth_build.headers)
        connect(m, flipped(self.fetch_data), bth_build.payload)
        connect(m, bth_build.beats, udp_build.beats)
        connect(m, replies.route, udp_build.route)
        connect(m, udp_build.packets, seal.beats)
        connect(m, seal.sealed, ethernet.packets)
        connect(m, udp_build.macs, ethernet.macs)
        connect(m, ethernet.frames, flipped(self.tx))
        m.d.comb += [udp_build.ip.eq(self.ip), ethernet.mac.eq(self.mac)]
        return m


def into(m: Module, source: Any, fifo: SyncFIFO | SyncFIFOBuffered) -> None:
    """Return a stream buffered by a FIFO."""
    m.d.comb += [
        fifo.w_data.eq(Value.cast(source.payload)), fifo.w_en.eq(source.valid), source.ready.eq(fifo.w_rdy)
    ]  # fmt: skip
