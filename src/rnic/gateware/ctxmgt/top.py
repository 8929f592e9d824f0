"""``CtxMgt``: the modules of 002 4.3 wired together."""

from __future__ import annotations

from typing import Final

from amaranth.hdl import Cat, Module, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out, connect, flipped

from rnic.context import messages as msg
from rnic.context.qpc import QPC_BYTES
from rnic.gateware.ctxmgt.ceu_parser import MAX_BEATS, STATUS_BITS, CeuParser
from rnic.gateware.ctxmgt.ctxmdata import CtxMData
from rnic.gateware.ctxmgt.key_qpc_data import WRITES, KeyQpcData, asks, channels
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.readctx import ReadCtx
from rnic.gateware.ctxmgt.replay_fifo import ReplayFifo
from rnic.gateware.ctxmgt.request_controller import CHANNELS, RequestController
from rnic.gateware.ctxmgt.streams import BEAT_BITS, BEAT_BYTES, HEADER_BITS, ContextStream
from rnic.gateware.ctxmgt.writectx import WriteCtx
from rnic.gateware.interfaces import WordStream

WRITE_BACKS: Final = 8
"""Write-backs queued for ctxmdata."""
EVENTS: Final = (
    "parsed",
    "took_ceu",
    "took_key",
    "writes",
    "wrote",
    "read",
    "chose",
    "received",
    "forgot",
    "refused",
    "write_failed",
    "read_failed",
    "unmapped",
    "unknown_qp",
    "bad_payload",
    "bad_request",
)
"""Bits of ``events``, each one cycle long. For a CEU request: ``parsed``, and translated (``took_ceu``). For an
engine's: ``chose``, ``received``, and its write-back translated (``took_key``). ``writes``: writectx has a request;
``wrote``: memory has answered it; ``read``: memory has answered readctx. ``forgot``: key data was cleared. The others
increment the counters of the same names."""


def interface() -> dict[str, wiring.Member]:
    """Return CtxMgt's ports (002 chapter 3). ``dma_cm_wr_rsp`` (a write's result), ``ceu_status`` and ``ceu_req_tkeep``
    are additions of rnic."""
    members = {
        "ceu_req": In(ContextStream(keep=True)),
        "ceu_rsp": Out(ContextStream()),
        "ceu_status": Out(WordStream(STATUS_BITS)),
        "dma_cm_rd_req": Out(ContextStream()),
        "dma_cm_rd_rsp": In(ContextStream()),
        "dma_cm_wr_req": Out(ContextStream()),
        "dma_cm_wr_rsp": In(WordStream(HEADER_BITS)),
        "selected_channel": Out(8),
        "waiting": Out(CHANNELS),
        "events": Out(len(EVENTS)),
    }
    return members | channels()


class CtxMgt(wiring.Component):
    """One device's contexts. ``waiting``: the channels that the request controller sees as not empty."""

    def __init__(self, params: CtxMgtParams) -> None:
        super().__init__(interface())
        self.params = params
        self.parser = CeuParser(params)
        self.controller = RequestController()
        self.ctxmdata = CtxMData(params)
        self.key = KeyQpcData(params)
        self.readctx = ReadCtx()
        self.writectx = WriteCtx(params)

    def elaborate(self, platform: object) -> Module:
        """Build the modules, the FIFOs between them, and those of the channels."""
        m = Module()
        parser, key, ctxmdata = self.parser, self.key, self.ctxmdata
        readctx, writectx, controller = self.readctx, self.writectx, self.controller
        for name, module in (
            *(("ceu_parser", parser), ("request_controller", controller), ("ctxmdata", ctxmdata)),
            *(("key_qpc_data", key), ("readctx", readctx), ("writectx", writectx)),
        ):
            m.submodules[name] = module

        # ---- CEU requests
        m.submodules.mdata = mdata = ReplayFifo(BEAT_BITS, MAX_BEATS)
        m.submodules.ctxdata = ctxdata = ResetInserter(parser.clear)(
            SyncFIFO(width=BEAT_BITS, depth=QPC_BYTES // BEAT_BYTES)
        )
        connect(m, flipped(self.ceu_req), parser.ceu_req)
        connect(m, parser.ceu_status, flipped(self.ceu_status))
        connect(m, parser.req, ctxmdata.ceu_req)
        m.d.comb += [
            mdata.new.eq(parser.beat),
            mdata.push.eq(parser.mdata_push),
            mdata.clear.eq(parser.clear),
            mdata.advance.eq(ctxmdata.advance),
            mdata.rewind.eq(ctxmdata.rewind),
            ctxmdata.mdata.eq(mdata.data),
            ctxmdata.beats.eq(parser.beats),
            ctxdata.w_data.eq(parser.beat),
            ctxdata.w_en.eq(parser.ctxdata_push),
            writectx.ctxdata.tdata.eq(ctxdata.r_data),
            writectx.ctxdata.tvalid.eq(ctxdata.r_rdy),
            ctxdata.r_en.eq(writectx.ctxdata.tready),
            writectx.long.eq(parser.beats == QPC_BYTES // BEAT_BYTES),
            *(key.extract1.eq(parser.extract1), key.extract2.eq(parser.extract2), key.eqn.eq(parser.eqn)),
            *(parser.eq_known.eq(key.eq_known), parser.eq_mask.eq(key.eq_mask), parser.cached.eq(key.cached)),
            *(parser.mdata_done.eq(ctxmdata.done), parser.mdata_refused.eq(ctxmdata.refused)),
            *(parser.read_done.eq(readctx.done), parser.read_failed.eq(readctx.failed)),
        ]
        connect(m, parser.cmd, key.cmd)

        # ---- memory
        wrote_ceu = Signal()
        connect(m, ctxmdata.read_req, readctx.req)
        connect(m, ctxmdata.write_req, writectx.req)
        connect(m, readctx.dma_cm_rd_req, flipped(self.dma_cm_rd_req))
        connect(m, flipped(self.dma_cm_rd_rsp), readctx.dma_cm_rd_rsp)
        connect(m, readctx.ceu_rsp, flipped(self.ceu_rsp))
        connect(m, writectx.dma_cm_wr_req, flipped(self.dma_cm_wr_req))
        connect(m, flipped(self.dma_cm_wr_rsp), writectx.dma_cm_wr_rsp)
        m.d.comb += [
            readctx.code.eq(ctxmdata.read_code),
            wrote_ceu.eq(writectx.finished & writectx.finished_ceu),
            parser.write_done.eq(wrote_ceu & ~writectx.finished_bad),
            parser.write_failed.eq(wrote_ceu & writectx.finished_bad),
            *(key.forget.eq(ctxmdata.forget), ctxmdata.forgotten.eq(key.forgotten)),
        ]

        # ---- the engine's channels
        m.submodules.req_ctx = req_ctx = SyncFIFO(width=HEADER_BITS, depth=WRITE_BACKS)
        m.d.comb += [
            *(req_ctx.w_data.eq(key.req_ctx.tdata), req_ctx.w_en.eq(key.req_ctx.tvalid)),
            key.req_ctx.tready.eq(req_ctx.w_rdy),
            *(ctxmdata.key_req.tdata.eq(req_ctx.r_data), ctxmdata.key_req.tvalid.eq(req_ctx.r_rdy)),
            req_ctx.r_en.eq(ctxmdata.key_req.tready),
        ]
        room_behind = Signal()  # room for a write-back beyond the one key_qpc_data may be processing
        m.d.comb += room_behind.eq(req_ctx.w_level <= WRITE_BACKS - 2)
        waiting = [parser.cmd.tvalid, *(self._channel(m, source, room_behind) for source in msg.ENGINES)]
        m.d.comb += [
            controller.waiting.eq(Cat(*waiting)),
            controller.receive_req.eq(key.receive_req),
            key.selected_channel.eq(controller.selected_channel),
            self.selected_channel.eq(controller.selected_channel),
            self.waiting.eq(controller.waiting),
        ]

        events = {
            "parsed": parser.parsed,
            "took_ceu": ctxmdata.took_ceu,
            "took_key": ctxmdata.took_key,
            "writes": writectx.parsed,
            "wrote": writectx.finished,
            "read": readctx.done | readctx.failed,
            "chose": controller.chosen,
            "received": key.receive_req,
            "forgot": key.forgets,
            "refused": parser.refused | ctxmdata.refused,
            "write_failed": writectx.finished & writectx.finished_bad,
            "read_failed": readctx.failed,
            "unmapped": ctxmdata.lost,
            "unknown_qp": key.unknown_qp,
            "bad_payload": key.bad_payload,
            "bad_request": key.bad_request,
        }
        m.d.comb += self.events.eq(Cat(*(events[name] for name in EVENTS)))
        return m

    def _channel(self, m: Module, source: int, room_behind: Signal) -> Signal:
        """Build a channel's FIFOs; return whether it has a request that can be completed."""
        name, depth, key = msg.SOURCE_NAMES[source], self.params.fifo_depth, self.key
        waits = Signal(name=f"{name}_waits")
        fifos = {}
        for suffix, inward in (("cmd", True), ("resp", False), ("cxt", False), ("cxt_in", True)):
            outer = getattr(self, f"{name}_{suffix}", None)
            if outer is None:
                continue
            inner = getattr(key, f"{name}_{suffix}")
            fifo = SyncFIFOBuffered(width=len(outer.tdata), depth=depth)
            m.submodules[f"{name}_{suffix}_fifo"] = fifos[suffix] = fifo
            source_side, sink_side = (outer, inner) if inward else (inner, outer)
            m.d.comb += [
                *(fifo.w_data.eq(source_side.tdata), fifo.w_en.eq(source_side.tvalid)),
                *(sink_side.tdata.eq(fifo.r_data), sink_side.tvalid.eq(fifo.r_rdy), fifo.r_en.eq(sink_side.tready)),
                source_side.tready.eq(fifo.w_rdy),
            ]
        # an answer to the same FIFOs may already be in flight
        room = (fifos["resp"].level <= depth - 2) & (fifos["cxt"].level <= depth - 2)
        m.d.comb += waits.eq(fifos["cmd"].r_rdy & room)
        if source in WRITES:
            with m.If(asks(fifos["cmd"].r_data, msg.WR_QP_CXT, WRITES[source][0])):
                m.d.comb += waits.eq(fifos["cmd"].r_rdy & fifos["cxt_in"].r_rdy & room_behind)
        return waits
