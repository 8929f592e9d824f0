"""``readctx``: DMA reads of whole QPCs, and their answers to the CEU (002 5.5)."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rnic.context import messages as msg
from rnic.gateware.ctxmgt.streams import FAILED_BIT, READ_REQUEST_BITS, ContextStream, get, vector
from rnic.gateware.interfaces import WordStream

PENDING = 2
"""Reads on their way: the CEU waits for each."""


class ReadCtx(wiring.Component):
    """``code`` goes with ``req``: type and opcode of the CEU's request, which wait with its QPN for the answer.

    Host memory says ``error`` in a response's first beat; then it is the only one, and the CEU gets no data.
    ``done`` and ``failed`` are one cycle long.
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
        """No states (5.5.3): the queue of pending request metadata does the work."""
        m = Module()
        m.submodules.pending = pending = SyncFIFO(width=8 + 32, depth=PENDING)
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
        qpn, code = pending.r_data[:32], pending.r_data[32:]
        m.d.comb += [
            answer.tuser.eq(vector(msg.CEU_HEADER, {"type": code[4:], "opcode": code[:4], "addr": qpn})),
            answer.tdata.eq(back.tdata),
            answer.tlast.eq(back.tlast),
            answer.tvalid.eq(back.tvalid & ~error),
            back.tready.eq(answer.tready | error),
            taken.eq(back.tvalid & back.tready & back.tlast),
            pending.r_en.eq(taken),
            self.done.eq(taken & ~error),
            self.failed.eq(taken & error),
        ]
        return m
