"""``writectx``: DMA writes of contexts and of the fields that the engine changed (002 5.6)."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rnic.context import messages as msg
from rnic.context.cqc import CQC_BYTES
from rnic.context.eqc import EQC, EQC_BYTES
from rnic.context.qpc import QPC, QPC_BYTES, QPC_DOCUMENTED_BYTES
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.streams import (
    BEAT_BITS,
    BEAT_BYTES,
    FAILED_BIT,
    HEADER_BITS,
    STATES,
    ContextStream,
    get,
    vector,
)
from rnic.gateware.interfaces import WordStream

PARSE_REQ, REQ_OUT = range(len(STATES["writectx"]))
CONTEXT, HEADER_DATA, ZEROS, WRITE_BACK = range(4)
"""Target of a request, as the machine's inputs."""
PSN_AT = {
    msg.WR_QP_NPST: QPC["next_send_psn"].byte + 1,
    msg.WR_QP_UAPST: QPC["last_acked_psn"].byte + 1,
    msg.WR_QP_EPST: QPC["expected_psn"].byte + 1,
}
STATE_AT = QPC["state"].byte
MASK_AT = EQC["event_mask"].byte
PSN_BYTES, STATE_BYTES, MASK_BYTES = 3, 1, 4


class WriteCtx(wiring.Component):
    """``ctxdata`` holds the payload of a whole context; ``long``: a QPC has all 256 bytes.

    Writes are issued without waiting for memory's answers, which arrive in order on ``dma_cm_wr_rsp``. A request is one
    write, a write-back two. ``finished``: the last answer of a request, with ``finished_ceu`` for the CEU's, and
    ``finished_bad`` if any was an error.
    """

    def __init__(self, params: CtxMgtParams) -> None:
        super().__init__(
            {
                "req": In(WordStream(HEADER_BITS)),
                "ctxdata": In(WordStream(BEAT_BITS)),
                "long": In(1),
                "dma_cm_wr_req": Out(ContextStream()),
                "dma_cm_wr_rsp": In(WordStream(HEADER_BITS)),
                "parsed": Out(1),
                "finished": Out(1),
                "finished_ceu": Out(1),
                "finished_bad": Out(1),
            }
        )
        self.outstanding = params.outstanding
        self.state = Signal(range(len(STATES["writectx"])))

    def elaborate(self, platform: object) -> Module:
        """Build the states: PARSE_REQ decodes the request, REQ_OUT sends it beat by beat."""
        m = Module()
        state, out = self.state, self.dma_cm_wr_req
        m.submodules.pending = pending = SyncFIFO(width=2, depth=self.outstanding)
        request = Signal(HEADER_BITS)
        what, beat, second = Signal(2), Signal(3), Signal()
        length, last_beat = Signal(12), Signal(3)
        names = {name: get(request, msg.WRITE_REQUEST, name) for name in ("data", "addr", "state", "flags_27_24")}
        came = {name: get(self.req.tdata, msg.WRITE_REQUEST, name) for name in ("type", "opcode", "source")}
        opcode = get(request, msg.WRITE_REQUEST, "opcode")

        m.d.comb += [self.req.tready.eq(state == PARSE_REQ), self.parsed.eq(self.req.tready & self.req.tvalid)]
        invalid = ((came["type"] == msg.WR_CQ_CXT) & (came["opcode"] == msg.WR_CQ_INVALID)) | (
            (came["type"] == msg.WR_EQ_CXT) & (came["opcode"] == msg.WR_EQ_INVALID)
        )
        with m.If(self.parsed):
            m.d.sync += [request.eq(self.req.tdata), beat.eq(0), second.eq(0), state.eq(REQ_OUT)]
            with m.If(came["source"] != msg.CEU):
                m.d.sync += [what.eq(WRITE_BACK), length.eq(PSN_BYTES), last_beat.eq(0)]
            with m.Elif(invalid):
                m.d.sync += [what.eq(ZEROS), *_span(length, last_beat, CQC_BYTES)]
            with m.Elif((came["type"] == msg.WR_EQ_CXT) & (came["opcode"] == msg.WR_EQ_FUNC)):
                m.d.sync += [what.eq(HEADER_DATA), length.eq(MASK_BYTES), last_beat.eq(0)]
            with m.Elif((came["type"] == msg.WR_QP_CXT) & self.long):
                m.d.sync += [what.eq(CONTEXT), *_span(length, last_beat, QPC_BYTES)]
            with m.Elif(came["type"] == msg.WR_QP_CXT):
                m.d.sync += [what.eq(CONTEXT), *_span(length, last_beat, QPC_DOCUMENTED_BYTES)]
            with m.Else():
                m.d.sync += [what.eq(CONTEXT), *_span(length, last_beat, EQC_BYTES)]

        # a context is aligned to its size, so an offset takes the place of the low bits
        addr = names["addr"]
        psn_at = Array(Const(PSN_AT.get(each, 0), 8) for each in range(1 << len(opcode)))[opcode]
        with m.Switch(what):
            with m.Case(WRITE_BACK):
                m.d.comb += [
                    out.tuser.eq(_header(Cat(Mux(second, STATE_AT, psn_at), addr[8:]), Mux(second, 1, length))),
                    out.tdata.eq(
                        Mux(second, _top(Cat(names["flags_27_24"], names["state"])), _top(names["data"][:24]))
                    ),
                ]
            with m.Case(HEADER_DATA):
                m.d.comb += [
                    out.tuser.eq(_header(Cat(Const(MASK_AT, 6), addr[6:]), length)),
                    out.tdata.eq(_top(names["data"])),
                ]
            with m.Case(ZEROS):
                m.d.comb += out.tuser.eq(_header(addr, length))
            with m.Default():
                m.d.comb += [out.tuser.eq(_header(addr, length)), out.tdata.eq(self.ctxdata.tdata)]
        have = (what != CONTEXT) | self.ctxdata.tvalid
        end = beat == last_beat
        group_end = end & ((what != WRITE_BACK) | second)
        sent = Signal()
        m.d.comb += [
            out.tvalid.eq((state == REQ_OUT) & have & pending.w_rdy),
            out.tlast.eq(end),
            sent.eq(out.tvalid & out.tready),
            self.ctxdata.tready.eq(sent & (what == CONTEXT)),
            pending.w_data.eq(Cat(group_end, what != WRITE_BACK)),
            pending.w_en.eq(sent & end),
        ]
        with m.If(sent):
            m.d.sync += beat.eq(Mux(end, 0, beat + 1))
            with m.If(group_end):
                m.d.sync += state.eq(PARSE_REQ)
            with m.Elif(end):
                m.d.sync += second.eq(1)

        # an answer counts a cycle after it arrived, so that no combinational path leads from memory's wires to CtxMgt's
        back, bad = self.dma_cm_wr_rsp, Signal()
        came, error, last, from_ceu = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            back.tready.eq(pending.r_rdy),
            pending.r_en.eq(back.tvalid),
            self.finished.eq(came & last),
            self.finished_ceu.eq(from_ceu),
            self.finished_bad.eq(bad | error),
        ]
        m.d.sync += [
            came.eq(back.tvalid & pending.r_rdy),
            error.eq(back.tdata[FAILED_BIT]),
            Cat(last, from_ceu).eq(pending.r_data),
        ]
        with m.If(came):
            m.d.sync += bad.eq((bad | error) & ~last)
        return m


def _span(length: Signal, last_beat: Signal, size: int) -> list[object]:
    return [length.eq(size), last_beat.eq(size // BEAT_BYTES - 1)]


def _header(addr: Value, length: Value) -> Value:
    return vector(msg.DMA_HEADER, {"addr": addr, "len": length})


def _top(value: Value) -> Value:
    """Align to the high end of a beat, with zeros below."""
    return Cat(Const(0, BEAT_BITS - len(value)), value)
