"""``readctx``: DMA reads of whole QPCs, and their answers to the CEU (002 5.5)."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rnic.context import messages as msg
from rnic.gateware.ctxmgt.streams import BEAT_BITS, FAILED_BIT, READ_REQUEST_BITS, ContextStream, get, vector
from rnic.gateware.interfaces import WordStream
from rnic.gateware.register_slice import RegisterSlice

CODE_BITS, QPN_BITS = 8, 32
PENDING = 2
"""Reads in flight: the CEU waits for each."""


class ReadCtx(wiring.Component):
    """``code`` is valid with ``req``: type and opcode of the CEU's request, which are kept with its QPN until the
    answer.

    Host memory sets ``error`` in a response's first beat, which is then its only one; the CEU gets no data. Beats go
    through a register slice, so no path leads from memory to the CEU or back. ``done`` and ``failed`` are one cycle
    long, the first in which the CEU may see the last beat.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "req": In(WordStream(READ_REQUEST_BITS)),
                "code": In(8),
                "dma_cm_rd_req": Out(ContextStream()),
                "dma_cm_rd_rsp": In(ContextStream()),
                "ceu_rsp": Out(ContextStream()),
                "done": Out(1),
                "failed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the queue of pending request metadata, which replaces a state machine (5.5.3)."""
        m = Module()
        names_bits = CODE_BITS + QPN_BITS
        m.submodules.pending = pending = SyncFIFO(width=names_bits, depth=PENDING)
        beat = {"tdata": Out(BEAT_BITS), "names": Out(names_bits), "tlast": Out(1), "tvalid": Out(1), "tready": In(1)}
        m.submodules.beats = beats = RegisterSlice(BEAT_BITS, wiring.Signature(beat))
        request, out, answer, back = self.req, self.dma_cm_rd_req, self.ceu_rsp, self.dma_cm_rd_rsp
        names = {name: get(request.tdata, msg.READ_REQUEST, name) for name in ("addr", "len", "qpn")}
        m.d.comb += [
            out.tuser.eq(vector(msg.DMA_HEADER, {"addr": names["addr"], "len": names["len"]})),
            out.tlast.eq(1),
            out.tvalid.eq(request.tvalid & pending.w_rdy),
            request.tready.eq(out.tready & pending.w_rdy),
            pending.w_data.eq(Cat(names["qpn"], self.code)),
            pending.w_en.eq(out.tvalid & out.tready),
        ]
        error, taken = back.tuser[FAILED_BIT], Signal()
        into, out_of = beats.s_axis, beats.m_axis
        qpn, code = out_of.names[:QPN_BITS], out_of.names[QPN_BITS:]
        m.d.comb += [
            into.tdata.eq(back.tdata),
            into.names.eq(pending.r_data),
            into.tlast.eq(back.tlast),
            into.tvalid.eq(back.tvalid & ~error),
            back.tready.eq(into.tready),
            taken.eq(back.tvalid & back.tready & back.tlast),
            pending.r_en.eq(taken),
            answer.tuser.eq(vector(msg.CEU_HEADER, {"type": code[4:], "opcode": code[:4], "addr": qpn})),
            answer.tdata.eq(out_of.tdata),
            answer.tlast.eq(out_of.tlast),
            answer.tvalid.eq(out_of.tvalid),
            out_of.tready.eq(answer.tready),
        ]
        m.d.sync += [self.done.eq(taken & ~error), self.failed.eq(taken & error)]
        return m
