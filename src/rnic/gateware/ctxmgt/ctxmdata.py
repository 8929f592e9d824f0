"""``ctxmdata``: the mapping from contexts to host pages (002 5.3)."""

from __future__ import annotations

from typing import Final

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.context import messages as msg
from rnic.context.cqc import CQC_BYTES
from rnic.context.ctxmdata import PAGE_SHIFT
from rnic.context.ctxmgt import FIRST_CQN
from rnic.context.eqc import EQC_BYTES
from rnic.context.qpc import QPC_BYTES
from rnic.gateware.ctxmgt.page_table import LOG_BITS, PAGE_BITS, PageTable
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.streams import (
    BEAT_BITS,
    HEADER_BITS,
    READ_REQUEST_BITS,
    STATES,
    get,
    vector,
)
from rnic.gateware.interfaces import WordStream
from rnic.spec.limits import FIRST_QPN

RCV_REQ, MDT_PROC, DMA_PROC = range(len(STATES["ctxmdata"]))
LOCATE, CHECK_BASES, RESET, CHUNK, NEXT_PAGE, JUDGE_PAGE = range(6)
"""Task of MDT_PROC: look up a context's page; set WR_ICMMAP_EN's bases; clear all; a run of pages; one page of a
run."""
MAP, ROLL_BACK, LOOK, DROP = range(4)
"""Walk over pages: MAP_ICM_EN maps, or rolls back; MAP_ICM_DIS first checks, then unmaps."""
WAIT: Final = 3
"""Cycles from a lookup to the page table's answer, including the lookup's register."""
MAX_RUN: Final = 1 << PAGE_SHIFT
SOURCE_OF: Final = {msg.WR_QP_NPST: msg.RTC, msg.WR_QP_UAPST: msg.RRC, msg.WR_QP_EPST: msg.EE}


class CtxMData(wiring.Component):
    """``ceu_req`` has priority over ``key_req``. A metadata request takes effect completely or not at all.

    ``done`` and ``refused`` go to the parser; ``lost``: a write-back found no page. ``forget`` requests that
    key_qpc_data drop all contexts, and stays high until ``forgotten``. ``took_ceu`` and ``took_key`` are one cycle
    long.
    """

    def __init__(self, params: CtxMgtParams) -> None:
        super().__init__(
            {
                "ceu_req": In(WordStream(HEADER_BITS)),
                "key_req": In(WordStream(HEADER_BITS)),
                # the mdata FIFO
                "mdata": In(BEAT_BITS),
                "beats": In(8),
                "advance": Out(1),
                "rewind": Out(1),
                # to readctx and writectx
                "read_req": Out(WordStream(READ_REQUEST_BITS)),
                "read_code": Out(8),
                "write_req": Out(WordStream(HEADER_BITS)),
                "done": Out(1),
                "refused": Out(1),
                "lost": Out(1),
                "forget": Out(1),
                "forgotten": In(1),
                "took_ceu": Out(1),
                "took_key": Out(1),
            }
        )
        self.tables = {
            "qp": PageTable(FIRST_QPN, params.log_qps, QPC_BYTES.bit_length() - 1),
            "cq": PageTable(FIRST_CQN, params.log_qps, CQC_BYTES.bit_length() - 1),
            "eq": PageTable(0, params.log_eqs, EQC_BYTES.bit_length() - 1),
        }
        self.state = Signal(range(len(STATES["ctxmdata"])))
        self.at = Signal(range(6))

    def elaborate(self, platform: object) -> Module:
        """Build the three states; MDT_PROC has sub-steps."""
        m = Module()
        tables = list(self.tables.values())
        for kind, table in self.tables.items():
            m.submodules[f"{kind}ctxmdata"] = table
        state, at = self.state, self.at
        header, from_key, wait = Signal(HEADER_BITS), Signal(), Signal(range(WAIT + 1))
        kind, opcode = get(header, msg.CEU_HEADER, "type"), get(header, msg.CEU_HEADER, "opcode")
        addr, data = get(header, msg.CEU_HEADER, "addr"), get(header, msg.CEU_HEADER, "data")
        busy = Cat(*(table.busy for table in tables)).any()

        # ---- RCV_REQ
        ready = (state == RCV_REQ) & ~busy
        m.d.comb += [
            self.ceu_req.tready.eq(ready),
            self.key_req.tready.eq(ready & ~self.ceu_req.tvalid),
            self.took_ceu.eq(ready & self.ceu_req.tvalid),
            self.took_key.eq(self.key_req.tready & self.key_req.tvalid),
        ]
        with m.If(self.took_ceu | self.took_key):
            word = Mux(self.ceu_req.tvalid, self.ceu_req.tdata, self.key_req.tdata)
            came, does = get(word, msg.CEU_HEADER, "type"), get(word, msg.CEU_HEADER, "opcode")
            m.d.sync += [header.eq(word), from_key.eq(~self.ceu_req.tvalid), state.eq(MDT_PROC), wait.eq(WAIT)]
            with m.If(came == msg.WR_ICMMAP_CXT):
                m.d.sync += at.eq(Mux(does == msg.WR_ICMMAP_EN, CHECK_BASES, RESET))
            with m.Elif(came == msg.MAP_ICM_CXT):
                m.d.sync += at.eq(CHUNK)
            with m.Else():
                m.d.sync += at.eq(LOCATE)
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        settled = wait == 0

        # ---- address of a context
        function = (kind == msg.WR_EQ_CXT) & (opcode == msg.WR_EQ_FUNC)
        number = Cat(addr[:31], addr[31] & ~function)
        which = Cat(
            (kind == msg.RD_QP_CXT) | (kind == msg.WR_QP_CXT), kind == msg.WR_CQ_CXT, kind == msg.WR_EQ_CXT
        )  # fmt: skip
        mapped, host = Signal(), Signal(64)
        for select, table in zip(which, tables, strict=True):
            m.d.comb += table.number.eq(number)
            with m.If(select):
                m.d.sync += [mapped.eq(table.inside & table.valid), host.eq(Cat(table.offset, table.page))]

        bad = Signal()  # the request is refused
        with m.If((state == MDT_PROC) & (at == LOCATE) & settled):
            with m.If(mapped):
                m.d.sync += state.eq(DMA_PROC)
            with m.Else():
                m.d.comb += [self.lost.eq(from_key), bad.eq(~from_key)]
                m.d.sync += state.eq(RCV_REQ)

        # ---- DMA_PROC
        read, write = self.read_req, self.write_req
        sources = Array(Const(SOURCE_OF.get(each, 0), 3) for each in range(1 << len(opcode)))
        back = {name: get(data, msg.WRITE_BACK, name) for name in ("state", "flags_27_24")}
        m.d.comb += [
            read.tdata.eq(vector(msg.READ_REQUEST, {"addr": host, "len": QPC_BYTES, "qpn": addr})),
            self.read_code.eq(header[-8:]),
            write.tdata.eq(
                vector(
                    msg.WRITE_REQUEST,
                    {
                        "type": kind,
                        "opcode": opcode,
                        "source": Mux(from_key, sources[opcode], msg.CEU),
                        "state": Mux(from_key, back["state"], 0),
                        "flags_27_24": Mux(from_key, back["flags_27_24"], 0),
                        "data": data[:32],
                        "addr": host,
                    },
                )
            ),
            read.tvalid.eq((state == DMA_PROC) & (kind == msg.RD_QP_CXT)),
            write.tvalid.eq((state == DMA_PROC) & (kind != msg.RD_QP_CXT)),
        ]
        with m.If((read.tvalid & read.tready) | (write.tvalid & write.tready)):
            m.d.sync += state.eq(RCV_REQ)

        finished = Signal()
        self._bases(m, kind, opcode, settled, finished, bad)
        self._pages(m, opcode, addr, data, wait, settled, finished, bad)
        with m.If(bad | finished):
            m.d.sync += state.eq(RCV_REQ)
        m.d.comb += [self.done.eq(finished), self.refused.eq(bad)]
        return m

    def _bases(self, m: Module, kind: Value, opcode: Value, settled: Value, finished: Signal, bad: Signal) -> None:
        """Build WR_ICMMAP_EN and WR_ICMMAP_DIS."""
        here = (self.state == MDT_PROC) & settled
        spans, wrong = [], []
        for kind_name, table in self.tables.items():
            base = get(self.mdata, msg.ICMMAP, f"{kind_name}c_base")
            asked = get(self.mdata, msg.ICMMAP, f"log_{kind_name}s")
            log, begin, end = Signal(LOG_BITS), Signal(PAGE_BITS + 1), Signal(PAGE_BITS + 2)
            m.d.sync += [log.eq(Mux(asked == 0, table.most, asked)), begin.eq(base[PAGE_SHIFT - 8 :])]
            m.d.sync += end.eq(begin + table.pages(log))
            wrong += [log > table.most, base[: PAGE_SHIFT - 8] != 0, end > 1 << PAGE_BITS]
            spans.append((begin, end))
            m.d.comb += [table.base.eq(begin), table.log.eq(log)]
        wrong += [
            (one[0] < two[1]) & (two[0] < one[1]) for place, one in enumerate(spans) for two in spans[place + 1 :]
        ]
        started = Signal()
        with m.If(here & (self.at == CHECK_BASES)):
            with m.If(Cat(*wrong).any()):
                m.d.comb += bad.eq(1)
            with m.Else():
                m.d.sync += self.at.eq(RESET)
        busy = Cat(*(table.busy for table in self.tables.values())).any()
        enable = opcode == msg.WR_ICMMAP_EN
        held = Signal()  # key_qpc_data has dropped its contexts, or need not
        with m.If(here & (self.at == RESET)):
            m.d.comb += self.forget.eq(started & ~enable & ~held)
            with m.If(~started):
                m.d.comb += [table.reset.eq(1) for table in self.tables.values()]
                m.d.sync += [started.eq(1), held.eq(enable)]
            with m.Elif(self.forgotten & self.forget):
                m.d.sync += held.eq(1)
            with m.Elif(~busy & held):
                m.d.comb += [finished.eq(1), *(table.configure.eq(enable) for table in self.tables.values())]
                m.d.sync += started.eq(0)

    def _pages(
        self, m: Module, opcode: Value, addr: Value, data: Value, wait: Signal, settled: Value, finished: Signal,
        bad: Signal,
    ) -> None:  # fmt: skip
        """Build MAP_ICM_EN and MAP_ICM_DIS, page by page."""
        walk, count, at = Signal(2), addr, self.at
        mapping = opcode == msg.MAP_ICM_EN
        chunk_at, page_at = Signal(range(msg.MAX_CHUNKS + 1)), Signal(range(MAX_RUN + 1))
        end_chunk, end_page = Signal.like(chunk_at), Signal.like(page_at)  # where the rollback ends
        began = Signal()
        virt, host, pages = Signal(PAGE_BITS), Signal(PAGE_BITS), Signal(range(MAX_RUN + 1))
        aligned, fits = Signal(), Signal()
        here = (self.state == MDT_PROC) & settled

        chunk = Mux(chunk_at[0], self.mdata[BEAT_BITS // 2 :], self.mdata[: BEAT_BITS // 2])
        names = {name: get(chunk, msg.CHUNK, name) for name in ("virt", "page", "pages")}
        with m.If(self.took_ceu):
            m.d.sync += [began.eq(0), chunk_at.eq(0), page_at.eq(0)]
        with m.If(~began):
            m.d.sync += walk.eq(Mux(mapping, MAP, LOOK))

        past = Signal()  # the rollback has reached the page where the walk failed
        m.d.comb += past.eq((walk == ROLL_BACK) & (chunk_at == end_chunk) & (page_at == end_page))
        with m.If(here & (at == CHUNK)):
            m.d.sync += began.eq(1)
            with m.If(mapping):
                wrong = (count == 0) | (count > msg.MAX_CHUNKS) | (self.beats != (count[:8] + 1)[1:])
                m.d.sync += [
                    virt.eq(names["virt"][PAGE_SHIFT:]),
                    host.eq(names["page"]),
                    pages.eq(names["pages"]),
                    aligned.eq(names["virt"][:PAGE_SHIFT] == 0),
                    fits.eq((names["page"] + names["pages"]) <= 1 << PAGE_BITS),
                ]
                with m.If(~began & wrong):
                    m.d.comb += bad.eq(1)
                with m.Elif(past):
                    m.d.comb += bad.eq(1)
                with m.Elif(chunk_at == count):
                    m.d.comb += finished.eq(1)
                with m.Else():
                    m.d.sync += [at.eq(NEXT_PAGE), wait.eq(0)]
            with m.Else():
                m.d.sync += [
                    virt.eq(data[PAGE_SHIFT:]),
                    pages.eq(count),
                    aligned.eq(data[:PAGE_SHIFT] == 0),
                    fits.eq(1),
                    at.eq(NEXT_PAGE),
                ]
                with m.If(count > MAX_RUN):
                    m.d.comb += bad.eq(1)

        tables = list(self.tables.values())
        for table in tables:
            m.d.comb += [
                table.virt_page.eq(virt + page_at),
                table.by_page.eq((at == NEXT_PAGE) | (at == JUDGE_PAGE)),
                table.new_page.eq(host + page_at),
            ]
        empty = pages == 0
        run_bad = (empty | ~aligned | ~fits) & (page_at == 0)
        with m.If(here & (at == NEXT_PAGE)):
            with m.If(past):
                m.d.comb += bad.eq(1)
            with m.Elif(run_bad):
                self._fail(m, walk, mapping, chunk_at, page_at, end_chunk, end_page, wait, bad)
            with m.Elif(page_at == pages):  # the run is complete
                m.d.sync += page_at.eq(0)
                with m.If(mapping):
                    m.d.comb += self.advance.eq(chunk_at[0])
                    m.d.sync += [chunk_at.eq(chunk_at + 1), at.eq(CHUNK), wait.eq(WAIT)]
                with m.Elif(walk == LOOK):
                    m.d.sync += walk.eq(DROP)
                with m.Else():
                    m.d.comb += finished.eq(1)
            with m.Else():
                m.d.sync += [at.eq(JUDGE_PAGE), wait.eq(WAIT)]

        inside = Cat(*(table.inside for table in tables))
        taken = Cat(*(table.inside & table.valid for table in tables)).any()
        with m.If(here & (at == JUDGE_PAGE)):
            m.d.sync += at.eq(NEXT_PAGE)
            with m.If(((walk == MAP) & (taken | ~inside.any())) | ((walk == LOOK) & ~taken)):
                self._fail(m, walk, mapping, chunk_at, page_at, end_chunk, end_page, wait, bad)
            with m.Else():
                m.d.sync += page_at.eq(page_at + 1)
                for table in tables:
                    m.d.comb += [
                        table.set.eq(table.inside & (walk == MAP)),
                        table.clear.eq(table.inside & ((walk == ROLL_BACK) | (walk == DROP))),
                    ]

    def _fail(
        self, m: Module, walk: Signal, mapping: Value, chunk_at: Signal, page_at: Signal, end_chunk: Signal,
        end_page: Signal, wait: Signal, bad: Signal,
    ) -> None:  # fmt: skip
        """Roll back the pages mapped by this request after a failure."""
        with m.If(mapping):
            m.d.comb += self.rewind.eq(1)
            m.d.sync += [
                *(walk.eq(ROLL_BACK), end_chunk.eq(chunk_at), end_page.eq(page_at)),
                *(chunk_at.eq(0), page_at.eq(0), self.at.eq(CHUNK), wait.eq(WAIT)),
            ]
        with m.Else():
            m.d.comb += bad.eq(1)
