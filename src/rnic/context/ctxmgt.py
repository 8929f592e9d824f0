"""CtxMgt: the device's context manager, its modules wired together (002 4.3).

Contexts live in host memory, in pages that the driver gives (MAP_ICM); what the data path needs is cached in
:class:`~rnic.context.key_qpc_data.KeyQpcData`. The command unit's requests go in by :meth:`ContextManager.ceu`, the
engine's by :meth:`ContextManager.request`; the methods above them say the same in the device's words.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

from rnic.context import messages as m
from rnic.context.ceu_parser import CeuParser
from rnic.context.cqc import CQC_BYTES
from rnic.context.ctxmdata import CQ, EQ, PAGE_SHIFT, QP, CtxMData, PageTable
from rnic.context.eqc import EQC_BYTES
from rnic.context.key_qpc_data import FIFO_DEPTH, KeyQpcData
from rnic.context.machines import Machine
from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC_BYTES
from rnic.context.readctx import ReadCtx
from rnic.context.writectx import WriteCtx, origin
from rnic.mem.dma import DmaPort
from rnic.spec.limits import FIRST_QPN, MAX_EQS
from rnic.spec.states import RESET
from rnic.trace.counters import Counters

LOG_MAX: Final = 14
LOG_MAX_EQS: Final = MAX_EQS.bit_length() - 1
_LIVE: Final = ("ssn", "ra_buff_indx", "rmsn", "rq_wqe_counter", "sq_wqe_counter", "sq_draining")
"""What the engine changes besides state and PSNs: it has no channel of its own and goes with the whole context."""
_FIRST_CQN: Final = 1


class Status(IntEnum):
    """Outcome of a CEU request. All but ``OK`` leave host memory and cache as they were."""

    OK = 0
    REFUSED = 1
    """Bad type, opcode, number or payload length, or a page that is not mapped."""
    DMA_ERROR = 2
    """Host memory did not take or give the bytes."""


Written = tuple[int, int, int, int]


def _image(ctx: QpContext) -> Written:
    return ctx.state, ctx.next_send_psn, ctx.last_acked_psn, ctx.expected_psn


class ContextManager:
    """One device's contexts.

    Args:
        log_qps: log2 of the number of QPs and of CQs, at most 14.
        counters: gets ``ctx_*``.
        log_eqs: log2 of the number of EQs; 002 has 32, whose contexts lie in one page.
        observe: called with source, request name, number and status of every request, for the trace; may be set
            later through :attr:`observe`.
        infiniband: frame encap is answered in 002's InfiniBand mode, with LIDs. No device of ours sets it, since
            the wire is RoCE only.

    :attr:`stalled` true keeps DMA transfers waiting, as a slow host would; :meth:`run` then stops early.
    """

    __slots__ = (
        "_ceu_status",
        "_live",
        "_turn",
        "_written",
        "changed",
        "counters",
        "ctxmdata",
        "key",
        "observe",
        "parser",
        "readctx",
        "stalled",
        "writectx",
    )

    def __init__(
        self,
        log_qps: int,
        counters: Counters,
        observe: Callable[[int, str, int, str], None] | None = None,
        log_eqs: int = LOG_MAX_EQS,
        infiniband: bool = False,
    ) -> None:
        if not 0 < log_qps <= LOG_MAX:
            raise ValueError(f"log_qps={log_qps}: the context tables hold 2 to the power of 1 to {LOG_MAX}")
        self.counters = counters
        self.observe = observe
        self.readctx = ReadCtx()
        self.writectx = WriteCtx()
        tables = {
            QP: PageTable(FIRST_QPN, log_qps, QPC_BYTES.bit_length() - 1),
            CQ: PageTable(_FIRST_CQN, log_qps, CQC_BYTES.bit_length() - 1),
            EQ: PageTable(0, log_eqs, EQC_BYTES.bit_length() - 1),
        }
        self.ctxmdata = CtxMData(tables, self.readctx, self.writectx)
        self.key = KeyQpcData(self.ctxmdata.key_fifo, counters, infiniband)
        self.parser = CeuParser(self.ctxmdata, self.writectx, self.key)
        self.stalled = False
        self._ceu_status = Status.OK
        self._turn = 0
        self.changed: Callable[[str, int, bool], None] | None = None
        """Called with ``"cq"`` or ``"eq"``, a number and whether it is valid, after each request about that context;
        with ``"qp"`` after it was loaded anew from host memory."""
        self._written: dict[int, Written] = {}
        self._live: dict[int, tuple[int, ...]] = {}

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The four state machines."""
        return self.parser.machine, self.ctxmdata.machine, self.key.machine, self.writectx.machine

    @property
    def complete(self) -> bool:
        """Whether the tables are in use and every page of them is mapped."""
        tables = self.ctxmdata.tables.values()
        return all(table.enabled and all(table.valid[: table.pages]) for table in tables)

    # ------------------------------------------------------------------------------- the message form

    def ceu(self, header: bytes, payload: bytes = b"", port: DmaPort | None = None) -> tuple[Status, bytes, bytes]:
        """Run one CEU request to its end: status, response header and response payload (only of RD_QP_ALL).

        Not while :attr:`stalled`.
        """
        self.parser.fifo.append((header, payload, port))
        self._ceu_status = Status.OK
        self.run()
        status = self._ceu_status
        answer, data = b"", b""
        if self.readctx.answers:
            answer, read = self.readctx.answers.popleft()
            if read is None:
                status = Status.DMA_ERROR
            else:
                data = read
        if status == Status.DMA_ERROR:
            self.counters.bump("ctx_dma_errors")
        if self.changed is not None and status == Status.OK:
            kind, number = header[0] >> 4, int.from_bytes(header[4:8], "big") & m.EQ_DISABLE - 1
            if kind == m.WR_CQ_CXT:
                self.changed(CQ, number, number in self.key.cqs)
            elif kind == m.WR_EQ_CXT:
                self.changed(EQ, number, number in self.key.eqs and self.key.eqs[number].enabled)
        if self.observe is not None:
            row = m.BY_CODE.get((header[0] >> 4, header[0] & 15))
            number = int.from_bytes(header[4:8], "big")
            self.observe(m.CEU, row.name if row else f"{header[0]:#04x}", number, status.name)
        return status, answer, data

    def request(self, source: int, command: bytes, payload: bytes = b"") -> bool:
        """Put a command into an engine channel's FIFO; false where it is full, or the command is no 16 bytes."""
        fifo = self.key.channels[source - 1]
        if not m.DB <= source <= m.FE or len(command) != 16 or len(fifo) >= FIFO_DEPTH:
            self.counters.bump("ctx_full_channels" if len(command) == 16 else "ctx_bad_requests")
            return False
        fifo.append((command, payload))
        return True

    def response(self, source: int) -> tuple[bytes, bytes] | None:
        """The oldest response on an engine channel: command and payload."""
        fifo = self.key.responses[source - 1]
        return fifo.popleft() if fifo else None

    def run(self) -> None:
        """Step every module until nothing moves."""
        while self.step():
            pass

    def step(self) -> bool:
        """One round: each module handles at most one request; false where nothing moved."""
        parser, ctxmdata, writectx = self.parser, self.ctxmdata, self.writectx
        moved = False
        if parser.fifo and parser.step():
            moved = True
            if parser.refused:
                parser.refused = False
                self._refuse()
        if (ctxmdata.key_fifo or ctxmdata.ceu_fifo) and ctxmdata.step():
            moved = True
            if ctxmdata.refused is not None:
                ctxmdata.refused = None
                self._refuse()
            if ctxmdata.refused_key is not None:
                self._lose(ctxmdata.refused_key, "ctx_unmapped")
                ctxmdata.refused_key = None
        if writectx.fifo and writectx.step():
            moved = True
        if not self.stalled:
            if writectx.dma:
                done = writectx.finish()
                if done is not None:
                    moved = True
                    self._finish_write(*done)
            if self.readctx.dma and self.readctx.finish():
                moved = True
        if self.observe is None:
            return self.key.step() >= 0 or moved
        bad = self._bad_requests()
        channel = self.key.step()
        if channel > 0:
            command = self.key.served
            row = m.BY_CODE.get((command[0] >> 4, command[0] & 15))
            name = row.name if row else f"{command[0]:#04x}"
            status = Status.OK if self._bad_requests() == bad else Status.REFUSED
            self.observe(channel + 1, name, int.from_bytes(command[1:4], "big"), status.name)
        return moved or channel >= 0

    def _bad_requests(self) -> int:
        """Engine requests so far that were reserved, wrong, or about no queue pair."""
        counters = self.counters
        return counters["ctx_bad_requests"] + counters["ctx_bad_payloads"] + counters["ctx_unknown_qps"]

    def _refuse(self) -> None:
        """A CEU request was turned down: its key data and payload are dropped."""
        self._ceu_status = Status.REFUSED
        self.counters.bump("ctx_refused")
        self.parser.held = None
        self.writectx.ctxdata.clear()

    def _finish_write(self, request: bytes, done: bool) -> None:
        if origin(request) == m.CEU:
            held, self.parser.held = self.parser.held, None
            if not done:
                self._ceu_status = Status.DMA_ERROR
            elif held is not None:
                self.key.channels[0].append(held)
        elif not done:
            self.counters.bump("ctx_dma_errors")
            # which queue pair it was does not come back: none of them counts as written
            self._written.clear()

    def _lose(self, header: bytes, counter: str) -> None:
        """A write-back found no page: host memory is behind until the next flush that succeeds."""
        self.counters.bump(counter)
        self._written.pop(int.from_bytes(header[4:8], "big"), None)

    # ------------------------------------------------------------------------------ the device's words

    def init_hca(self, icmmap: bytes) -> Status:
        """Where the context tables lie in context memory: the first 32 bytes of INIT_HCA's mailbox."""
        return self._do(m.WR_ICMMAP_CXT, m.WR_ICMMAP_EN, payload=icmmap[: m.ICMMAP.size])

    def close_hca(self) -> Status:
        """Forget all pages and everything cached."""
        status = self._do(m.WR_ICMMAP_CXT, m.WR_ICMMAP_DIS)
        for cached in (self.key.qps, self.key.cqs, self.key.eqs, self._written, self._live):
            cached.clear()
        return status

    def map_icm(self, port: DmaPort, runs: list[tuple[int, int, int]]) -> Status:
        """Lend pages, all or none of one call of up to 64 runs: virtual address, host address, pages."""
        payload = b"".join(
            m.CHUNK.pack({"virt": virt, "page": host >> PAGE_SHIFT, "pages": pages}) for virt, host, pages in runs
        )
        payload += bytes(-len(payload) % 32)
        return self.ceu(m.ceu_request(m.MAP_ICM_CXT, m.MAP_ICM_EN, len(runs)), payload, port)[0]

    def unmap_icm(self, virt: int, pages: int) -> Status:
        """Take pages back."""
        return self._do(m.MAP_ICM_CXT, m.MAP_ICM_DIS, pages, virt)

    def lent(self) -> list[tuple[int, DmaPort, int]]:
        """Every page that is mapped: its address in context memory, whose it is, its host address."""
        return [
            (table.base + (index << PAGE_SHIFT), port, table.page_base[index] << PAGE_SHIFT)
            for table in self.ctxmdata.tables.values()
            for index, port in enumerate(table.ports)
            if port is not None
        ]

    def inside(self, virt: int) -> bool:
        """Whether an address in context memory lies in one of the tables."""
        return self.ctxmdata.find(virt) is not None

    def page(self, virt: int) -> tuple[DmaPort, int] | None:
        """Whose page lies behind an address in context memory, and its host address; ``None`` if none is mapped."""
        found = self.ctxmdata.find(virt)
        if found is None:
            return None
        table, index = found
        port = table.ports[index]
        return None if port is None else (port, table.page_base[index] << PAGE_SHIFT)

    def write_qp(self, qpn: int, qpc: bytes) -> Status:
        """Write a whole QPC to host memory and take it into the cache, the extension by reading it back.

        What comes back must be what was written: who lends pages cannot slip in values that no command has checked.
        """
        ctx = self.key.qps.get(qpn)
        before = None if ctx is None else ctx.store()
        status = self._do(m.WR_QP_CXT, m.WR_QP_ALL, qpn, payload=qpc)
        if status != Status.OK:
            return status
        status, data = self.read_qp(qpn)
        if status == Status.OK and data[: len(qpc)] == qpc:
            self._fill(qpn, data)
            return Status.OK
        self.counters.bump("ctx_dma_errors")
        if before is None or ctx is None:
            self.key.qps.pop(qpn, None)
        else:
            ctx.load(before)
        return Status.DMA_ERROR

    def read_qp(self, qpn: int) -> tuple[Status, bytes]:
        """The QPC as host memory has it (RD_QP_ALL)."""
        status, _, data = self.ceu(m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, qpn))
        return status, data

    def load_qp(self, qpn: int) -> Status:
        """Fill the cache from host memory: from here on what was edited there counts.

        ``REFUSED``, with the cache as it was, for a context that the device cannot run on.
        """
        status, data = self.read_qp(qpn)
        admit = self.parser.admit
        if status == Status.OK and admit is not None and not admit(QP, qpn, data):
            self.counters.bump("ctx_refused")
            return Status.REFUSED
        if status == Status.OK:
            self._fill(qpn, data)
            if self.changed is not None:
                self.changed(QP, qpn, True)
        return status

    def _fill(self, qpn: int, data: bytes) -> None:
        ctx = self.key.qps.get(qpn)
        if ctx is None:
            ctx = self.key.qps[qpn] = QpContext(data)
        else:
            ctx.load(data)
        self._written[qpn] = _image(ctx)
        self._live[qpn] = tuple(getattr(ctx, name) for name in _LIVE)

    def drop_qp(self, qpn: int) -> None:
        """Back to software: host memory says RESET, the cache nothing."""
        image = bytearray(QPC_BYTES)
        m_ctx = QpContext(image)
        m_ctx.local_qpn, m_ctx.state = qpn, RESET
        self._do(m.WR_QP_CXT, m.WR_QP_ALL, qpn, payload=m_ctx.store())
        for cached in (self.key.qps, self._written, self._live):
            cached.pop(qpn, None)

    def flush_qp(self, qpn: int) -> Status:
        """Bring host memory up to date with the cache: state and PSNs by the engine's writes, counters with all."""
        errors = self._errors()
        self._flush_engine(qpn)
        if self._errors() != errors:
            return Status.DMA_ERROR
        ctx = self.key.qps.get(qpn)
        if ctx is None:
            return Status.OK
        live = tuple(getattr(ctx, name) for name in _LIVE)
        if live != self._live.get(qpn):
            status = self._do(m.WR_QP_CXT, m.WR_QP_ALL, qpn, payload=ctx.store())
            if status != Status.OK:
                return status
            self._live[qpn] = live
        return Status.OK

    def write_back(self, count: int) -> None:
        """Write state and PSNs of the next ``count`` queue pairs back, in turn."""
        qpns = list(self.key.qps)
        for _ in range(min(count, len(qpns))):
            self._turn = (self._turn + 1) % len(qpns)
            self._flush_engine(qpns[self._turn])

    def _errors(self) -> int:
        return self.counters["ctx_dma_errors"] + self.counters["ctx_unmapped"]

    def _flush_engine(self, qpn: int) -> None:
        """The writes that RTC, RRC and EE make, where something changed since the last."""
        ctx = self.key.qps.get(qpn)
        if ctx is None:
            return
        new = _image(ctx)
        old = self._written.get(qpn)
        if old == new:
            return
        self._written[qpn] = new
        state = ctx.state
        for (source, opcode), psn, before in zip(_PSN_WRITES, new[1:], old[1:] if old else (None,) * 3, strict=True):
            # the next PSN's write carries the state as well
            if psn != before or (source == m.RTC and (old is None or state != old[0])):
                command = m.engine_request(m.WR_QP_CXT, opcode, qpn)
                while not self.request(source, command, m.engine_payload(psn & 0xFFFFFF, state)):
                    self.run()
        self.run()

    def flush(self) -> None:
        """Bring host memory up to date with the whole cache."""
        for qpn in list(self.key.qps):
            self.flush_qp(qpn)

    def write_cq(self, cqn: int, cqc: bytes) -> Status:
        """Write a CQC and cache its key data."""
        return self._do(m.WR_CQ_CXT, m.WR_CQ_ALL, cqn, payload=cqc)

    def modify_cq(self, cqn: int, cqc: bytes) -> Status:
        """Write a CQC anew, as RESIZE_CQ does."""
        return self._do(m.WR_CQ_CXT, m.WR_CQ_MODIFY, cqn, payload=cqc)

    def invalidate_cq(self, cqn: int) -> Status:
        """Zero a CQC and forget it, even where its page is gone."""
        status = self._do(m.WR_CQ_CXT, m.WR_CQ_INVALID, cqn)
        self.key.cqs.pop(cqn, None)
        return status

    def write_eq(self, eqn: int, eqc: bytes) -> Status:
        """Write an EQC and cache its key data."""
        return self._do(m.WR_EQ_CXT, m.WR_EQ_ALL, eqn, payload=eqc)

    def event_function(self, eqn: int, mask: int, disable: bool) -> Status:
        """Give an EQ event types, or take its event function away (MAP_EQ)."""
        return self._do(m.WR_EQ_CXT, m.WR_EQ_FUNC, eqn | (m.EQ_DISABLE if disable else 0), mask & 0xFFFF_FFFF)

    def invalidate_eq(self, eqn: int) -> Status:
        """Zero an EQC and forget it, even where its page is gone."""
        status = self._do(m.WR_EQ_CXT, m.WR_EQ_INVALID, eqn)
        self.key.eqs.pop(eqn, None)
        return status

    def _do(self, kind: int, opcode: int, addr: int = 0, data: int = 0, payload: bytes = b"") -> Status:
        return self.ceu(m.ceu_request(kind, opcode, addr, data), payload)[0]


_PSN_WRITES: Final = ((m.RTC, m.WR_QP_NPST), (m.RRC, m.WR_QP_UAPST), (m.EE, m.WR_QP_EPST))
