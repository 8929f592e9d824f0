"""CtxMgt: the device's context manager, which connects the modules (002 4.3).

Contexts are in host memory, in pages mapped by the driver (MAP_ICM); :class:`~rnic.context.key_qpc_data.KeyQpcData`
caches the fields that the data path needs. The command unit's requests enter through :meth:`ContextManager.ceu`, the
engine's through :meth:`ContextManager.request`; the other methods are a higher-level interface to both.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, Final

from rnic.context import messages as m
from rnic.context.cache import Cache
from rnic.context.ceu_parser import CeuParser
from rnic.context.cqc import CQC, CQC_BYTES
from rnic.context.ctxmdata import CQ, EQ, PAGE_SHIFT, QP, CtxMData, PageTable
from rnic.context.eqc import EQC, EQC_BYTES
from rnic.context.key_qpc_data import FIFO_DEPTH, KeyQpcData
from rnic.context.machines import Machine
from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC_BYTES, QPC_DOCUMENTED_BYTES, settled
from rnic.context.readctx import ReadCtx
from rnic.context.write_back import WriteBack
from rnic.context.writectx import WriteCtx, origin
from rnic.mem.dma import DmaPort
from rnic.spec.layout import Layout
from rnic.spec.limits import FIRST_QPN, MAX_EQS
from rnic.spec.states import RESET
from rnic.state import queues
from rnic.state.arena import Arena
from rnic.trace.counters import Counters

LOG_MAX: Final = 14
LOG_MAX_EQS: Final = MAX_EQS.bit_length() - 1
FIRST_CQN: Final = 1
CHANGED, EVICTED, INVALID = "changed", "evicted", "invalid"
"""Arguments of :attr:`ContextManager.changed`: a context was modified, evicted from the cache, or invalidated."""


def cache_bytes(log_qps: int, log_eqs: int = LOG_MAX_EQS) -> int:
    """Return the size of the cache in an arena, in bytes."""
    return (QPC_BYTES + queues.CQ.size << log_qps) + (queues.EQ.size << log_eqs)


class NotWrittenBackError(Exception):
    """A context could not be written to host memory, so it stays in the cache."""


class Status(IntEnum):
    """Outcome of a CEU request. All except ``OK`` leave host memory and cache unchanged."""

    OK = 0
    REFUSED = 1
    """Bad type, opcode, number or payload length, or an unmapped page."""
    DMA_ERROR = 2
    """Host memory could not be written or read."""


class ContextManager:
    """One device's contexts.

    Args:
        log_qps: log2 of the number of QPs and of CQs, at most 14.
        counters: counters for ``ctx_*``.
        log_eqs: log2 of the number of EQs; 002 has 32, whose contexts fit one page.
        arena: arena of the cache; by default a new one.
        observe: called with source, request name, number and status of every request, for the trace; may be set
            later through :attr:`observe`.
        infiniband: answer frame encap in 002's InfiniBand mode, with LIDs. No rnic device sets it, since the wire is
            RoCE only.

    :attr:`stalled` true keeps DMA transfers waiting, as a slow host would; :meth:`run` then stops early.
    """

    __slots__ = (
        "_ceu_status",
        "_quiet",
        "behind",
        "changed",
        "counters",
        "ctxmdata",
        "image",
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
        arena: Arena | None = None,
        first_qpn: int = FIRST_QPN,
    ) -> None:
        if not 0 < log_qps <= LOG_MAX:
            raise ValueError(f"log_qps={log_qps}: the context tables hold 2 to the power of 1 to {LOG_MAX}")
        self.counters = counters
        self.observe = observe
        self.readctx = ReadCtx()
        self.writectx = WriteCtx()
        tables = {
            QP: PageTable(first_qpn, log_qps, QPC_BYTES.bit_length() - 1),
            CQ: PageTable(FIRST_CQN, log_qps, CQC_BYTES.bit_length() - 1),
            EQ: PageTable(0, log_eqs, EQC_BYTES.bit_length() - 1),
        }
        self.ctxmdata = CtxMData(tables, self.readctx, self.writectx)
        arena = Arena(cache_bytes(log_qps, log_eqs)) if arena is None else arena
        self.key = KeyQpcData(self.ctxmdata.key_fifo, counters, arena, log_qps, log_eqs, infiniband)
        self.parser = CeuParser(self.ctxmdata, self.writectx, self.key)
        self.stalled = False
        self._ceu_status = Status.OK
        self.changed: Callable[[str, int, str], None] | None = None
        """Called with ``"qp"``, ``"cq"`` or ``"eq"``, a number, and :data:`CHANGED`, :data:`EVICTED` or :data:`INVALID`
        after a context changes, except in :meth:`write_qp`, whose caller knows."""
        self.image: Callable[[str, int], bytes | None] | None = None
        """Called before a whole context is written back. For a CQ or EQ, it returns the device's current context. For a
        QP, it stores the fields that the device keeps elsewhere to the cache, and returns ``None``."""
        for kind, cache in self._caches:
            cache.leave = partial(self._leave, kind)
            cache.left = partial(self._left, kind)
            cache.told = partial(self._edit, kind)
        self._quiet = False
        self.behind = WriteBack(self.key.qps, self._write_psn)

    @property
    def refused_field(self) -> str:
        """Field for which the last written or loaded context was refused; empty if it was accepted."""
        return self.parser.wrong

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The four state machines."""
        return self.parser.machine, self.ctxmdata.machine, self.key.machine, self.writectx.machine

    @property
    def _caches(self) -> tuple[tuple[str, Cache[Any]], ...]:
        key = self.key
        return (QP, key.qps), (CQ, key.cqs), (EQ, key.eqs)

    @property
    def complete(self) -> bool:
        """True if the tables are in use and all their pages are mapped."""
        tables = self.ctxmdata.tables.values()
        return all(table.enabled and all(table.valid[: table.pages]) for table in tables)

    # ------------------------------------------------------------------------------- the message form

    def ceu(self, header: bytes, payload: bytes = b"", port: DmaPort | None = None) -> tuple[Status, bytes, bytes]:
        """Run one CEU request to completion; return status, response header, and the payload of an RD_QP_ALL response.

        Do not call it while :attr:`stalled`. Writing a QPC of 192 bytes preserves the extension: an evicted context is
        loaded first.
        """
        number = int.from_bytes(header[4:8], "big")
        short = header[0] >> 4 == m.WR_QP_CXT and len(payload) == QPC_DOCUMENTED_BYTES
        if short and number in self.key.qps.evicted and (loaded := self.load_qp(number)) != Status.OK:
            return loaded, b"", b""
        status, answer, data = self.carry_out(header, payload, port)
        if status == Status.DMA_ERROR:
            self.counters.bump("ctx_dma_errors")
        if status == Status.OK and not self._quiet:
            self._tell_written(header, payload)
        if self.observe is not None:
            row = m.BY_CODE.get((header[0] >> 4, header[0] & 15))
            self.observe(m.CEU, row.name if row else f"{header[0]:#04x}", number, status.name)
        return status, answer, data

    def carry_out(self, header: bytes, payload: bytes, port: DmaPort | None) -> tuple[Status, bytes, bytes]:
        """Run a request as :meth:`ceu` does, but count and report nothing afterward."""
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
        return status, answer, data

    def _tell_written(self, header: bytes, payload: bytes) -> None:
        """Report the context that a finished CEU request changed."""
        kind, opcode, number = header[0] >> 4, header[0] & 15, int.from_bytes(header[4:8], "big") & m.EQ_DISABLE - 1
        if kind == m.WR_QP_CXT:
            # the extract has only the key words; a write of 192 bytes keeps the cached extension
            status, data = self.read_qp(number)
            if status == Status.OK and data[: len(payload)] == payload:
                self._fill(number, payload + self.key.qps.view(number).store()[len(payload) :], data)
            self._tell(QP, number, CHANGED)
        elif kind == m.WR_CQ_CXT:
            self._tell(CQ, number, INVALID if opcode == m.WR_CQ_INVALID else CHANGED)
        elif kind == m.WR_EQ_CXT:
            self._tell(EQ, number, INVALID if opcode == m.WR_EQ_INVALID else CHANGED)

    def _tell(self, kind: str, number: int, what: str) -> None:
        if self.changed is not None:
            self.changed(kind, number, what)

    def request(self, source: int, command: bytes, payload: bytes = b"") -> bool:
        """Put a command into an engine channel's FIFO; return false if it is full, or the command is not 16 bytes."""
        fifo = self.key.channels[source - 1]
        if not m.DB <= source <= m.FE or len(command) != 16 or len(fifo) >= FIFO_DEPTH:
            self.counters.bump("ctx_full_channels" if len(command) == 16 else "ctx_bad_requests")
            return False
        fifo.append((command, payload))
        return True

    def response(self, source: int) -> tuple[bytes, bytes] | None:
        """Return the oldest response on an engine channel: command and payload."""
        fifo = self.key.responses[source - 1]
        return fifo.popleft() if fifo else None

    def level(self) -> None:
        """Propagate stores to cache entries to other copies of the contexts; there are none in this class."""

    def run(self) -> None:
        """Step all modules until none makes progress."""
        while self.step():
            pass
        touched = self.key.touched
        while touched:
            self._tell(QP, touched.popleft(), CHANGED)

    def step(self) -> bool:
        """Step each module once; return false if none made progress."""
        moved = False
        if self.parser.fifo:
            moved |= self.parse()
        if self.ctxmdata.key_fifo or self.ctxmdata.ceu_fifo:
            moved |= self.translate()
            if self.ctxmdata.forget:
                self.forget()
        if self.writectx.fifo:
            moved |= self.writectx.step()
        if not self.stalled:
            if self.writectx.dma:
                moved |= self.finish_write()
            if self.readctx.dma:
                moved |= self.readctx.finish()
        return self.serve() >= 0 or moved

    def parse(self) -> bool:
        """Step ceu_parser."""
        if not self.parser.step():
            return False
        if self.parser.refused:
            self.parser.refused = False
            self._refuse()
        return True

    def translate(self) -> bool:
        """Step ctxmdata."""
        ctxmdata = self.ctxmdata
        if not ctxmdata.step():
            return False
        if ctxmdata.refused is not None:
            ctxmdata.refused = None
            self._refuse()
        if ctxmdata.refused_key is not None:
            self._lose(ctxmdata.refused_key, "ctx_unmapped")
            ctxmdata.refused_key = None
        return True

    def forget(self) -> None:
        """Drop all cached contexts after WR_ICMMAP_DIS."""
        self.ctxmdata.forget = False
        for _, cache in self._caches:
            cache.clear()

    def finish_write(self) -> bool:
        """Finish the oldest group of writectx's DMA writes."""
        done = self.writectx.finish()
        if done is None:
            return False
        self._finish_write(*done)
        return True

    def serve(self) -> int:
        """Step key_qpc_data; return the channel that was served, or -1."""
        if self.observe is None:
            return self.key.step()
        bad = self._bad_requests()
        channel = self.key.step()
        if channel > 0:
            command = self.key.served
            row = m.BY_CODE.get((command[0] >> 4, command[0] & 15))
            name = row.name if row else f"{command[0]:#04x}"
            status = Status.OK if self._bad_requests() == bad else Status.REFUSED
            self.observe(channel + 1, name, int.from_bytes(command[1:4], "big"), status.name)
        return channel

    def _bad_requests(self) -> int:
        """Return the number of engine requests so far that were reserved, malformed, or for an unknown queue pair."""
        counters = self.counters
        return counters["ctx_bad_requests"] + counters["ctx_bad_payloads"] + counters["ctx_unknown_qps"]

    def _refuse(self) -> None:
        """Drop the key data and payload of a refused CEU request."""
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
            # the completion does not identify the queue pair: treat all of them as not written
            self.behind.forget_writes()

    def _lose(self, header: bytes, counter: str) -> None:
        """Record that a write-back found no page: host memory is stale until the next successful flush."""
        self.counters.bump(counter)
        self.behind.lost(int.from_bytes(header[4:8], "big"))

    # ------------------------------------------------------------------------ the device's interface

    def init_hca(self, icmmap: bytes) -> Status:
        """Set the addresses of the context tables in context memory, from the first 32 bytes of INIT_HCA's mailbox."""
        return self._do(m.WR_ICMMAP_CXT, m.WR_ICMMAP_EN, payload=icmmap[: m.ICMMAP.size])

    def close_hca(self) -> Status:
        """Remove all pages and drop the cache."""
        status = self._do(m.WR_ICMMAP_CXT, m.WR_ICMMAP_DIS)
        self.behind.clear()
        return status

    def map_icm(self, port: DmaPort, runs: list[tuple[int, int, int]]) -> Status:
        """Map all pages of up to 64 runs (virtual address, host address, pages), or none of them."""
        payload = b"".join(
            m.CHUNK.pack({"virt": virt, "page": host >> PAGE_SHIFT, "pages": pages}) for virt, host, pages in runs
        )
        payload += bytes(-len(payload) % 32)
        return self.ceu(m.ceu_request(m.MAP_ICM_CXT, m.MAP_ICM_EN, len(runs)), payload, port)[0]

    def unmap_icm(self, virt: int, pages: int) -> Status:
        """Unmap pages."""
        return self._do(m.MAP_ICM_CXT, m.MAP_ICM_DIS, pages, virt)

    def lent(self) -> list[tuple[int, DmaPort, int]]:
        """Return all mapped pages: address in context memory, owner's DMA port, host address."""
        return [
            (table.base + (index << PAGE_SHIFT), port, table.page_base[index] << PAGE_SHIFT)
            for table in self.ctxmdata.tables.values()
            for index, port in enumerate(table.ports)
            if port is not None
        ]

    def inside(self, virt: int) -> bool:
        """Return whether an address in context memory lies in one of the tables."""
        return self.ctxmdata.find(virt) is not None

    def page(self, virt: int) -> tuple[DmaPort, int] | None:
        """Return the owner's DMA port and the host address of the page at an address in context memory; ``None`` if
        unmapped."""
        found = self.ctxmdata.find(virt)
        if found is None:
            return None
        table, index = found
        port = table.ports[index]
        return None if port is None else (port, table.page_base[index] << PAGE_SHIFT)

    def write_qp(self, qpn: int, qpc: bytes) -> Status:
        """Write a whole QPC to host memory and load it into the cache; the extension is read back from memory.

        The bytes read back must equal those written, so that the owner of a page cannot inject unchecked values.
        """
        qps = self.key.qps
        before = qps[qpn].store() if qpn in qps else None
        status, data = self._silently(m.WR_QP_CXT, m.WR_QP_ALL, qpn, qpc), b""
        if status != Status.OK:
            return status
        status, data = self.read_qp(qpn)
        if status == Status.OK and data[: len(qpc)] == qpc:
            self._fill(qpn, data)
            return Status.OK
        self.counters.bump("ctx_dma_errors")
        if before is None:
            qps.forget(qpn)
        else:
            qps.fill(qpn, before)
        return Status.DMA_ERROR

    def _silently(self, kind: int, opcode: int, number: int, image: bytes) -> Status:
        """Write a whole context without calling :attr:`changed`: the caller knows."""
        self._quiet = True
        try:
            return self._do(kind, opcode, number, payload=image)
        finally:
            self._quiet = False

    def read_qp(self, qpn: int) -> tuple[Status, bytes]:
        """Return the status and the QPC in host memory (RD_QP_ALL)."""
        status, _, data = self.ceu(m.ceu_request(m.RD_QP_CXT, m.RD_QP_ALL, qpn))
        return status, data

    def load_qp(self, qpn: int) -> Status:
        """Load the cache from host memory, so that edits there take effect.

        Return ``REFUSED``, with the cache unchanged, for a context that the device does not accept.
        """
        status, data = self.read_qp(qpn)
        if status == Status.OK and not self.parser.admits(QP, qpn, data):
            self.counters.bump("ctx_refused")
            return Status.REFUSED
        if status == Status.OK:
            self._fill(qpn, data)
            self.counters.bump("ctx_loads")
            self._tell(QP, qpn, CHANGED)
        return status

    def _fill(self, qpn: int, image: bytes, held: bytes = b"") -> None:
        """Load a settled context into the cache; ``held`` is the context in memory if it differs from ``image``."""
        self.key.qps.fill(qpn, settled(image))
        self.behind.level(qpn)
        if QpContext(held or image).store() != self.key.qps.view(qpn).store():
            self.behind.edited.add(qpn)  # the next flush brings memory up to date

    # ------------------------------------------------------------------------- eviction and reload

    def evict(self, kind: str, number: int) -> Status:
        """Evict a context from the cache: write it back; its queue stalls until :meth:`load`.

        Return ``REFUSED`` if it is not cached, ``DMA_ERROR`` if host memory cannot be written; then it stays cached.
        """
        cache = dict(self._caches)[kind]
        if number not in cache:
            return Status.REFUSED
        try:
            del cache[number]
        except NotWrittenBackError:
            return Status.DMA_ERROR
        return Status.OK

    def load(self, kind: str, number: int) -> Status:
        """Load a context from host memory into the cache, even if it is cached already.

        Return ``REFUSED`` for an unmapped page or a context that the device does not accept; ``DMA_ERROR`` if host
        memory cannot be read. All except ``OK`` leave the cache unchanged.
        """
        if kind == QP:
            return self.load_qp(number)
        data = self.peek(kind, number)
        if data is None:
            self.counters.bump("ctx_dma_errors")
            return Status.DMA_ERROR
        if not any(data) or not self.parser.admits(kind, number, data):
            self.counters.bump("ctx_refused")
            return Status.REFUSED
        dict(self._caches)[kind].fill(number, data)
        self.counters.bump("ctx_loads")
        self._tell(kind, number, CHANGED)
        return Status.OK

    def evicted(self, kind: str, number: int) -> bool:
        """Return whether a context was evicted and is only in host memory."""
        return number in dict(self._caches)[kind].evicted

    def peek(self, kind: str, number: int) -> bytes | None:
        """Return a context's bytes in host memory, located through the metadata; ``None`` if they cannot be read.

        002 has no message to read CQCs and EQCs back.
        """
        place = self.ctxmdata.tables[kind].locate(number)
        if place is None:
            return None
        data = bytearray(1 << self.ctxmdata.tables[kind].shift)
        return bytes(data) if place.port.read(place.addr, data) else None

    def _leave(self, kind: str, number: int) -> None:
        """Write back a context before its eviction."""
        if self.flush_one(kind, number) != Status.OK:
            raise NotWrittenBackError(f"{kind} {number}: its context cannot be written to host memory")

    def _left(self, kind: str, number: int) -> None:
        if kind == QP:
            self.behind.forget(number)
        self.counters.bump("ctx_evictions")
        self._tell(kind, number, EVICTED)

    def _edit(self, kind: str, number: int) -> None:
        """Apply a store that the host made to a cache entry."""
        if kind == QP:
            self.key.qps.view(number).settle()
            self.behind.edited.add(number)
        self._tell(kind, number, CHANGED)

    def flush_one(self, kind: str, number: int) -> Status:
        """Write one cached context back to host memory."""
        image = None if self.image is None else self.image(kind, number)
        if kind == QP:
            return self.flush_qp(number)
        data = self.peek(kind, number)
        if data is None:
            self.counters.bump("ctx_dma_errors")
            return Status.DMA_ERROR
        if image is None:
            layout: Layout = CQC if kind == CQ else EQC
            image = layout.pack(layout.unpack(data) | dict(self._caches)[kind][number].values())
        return Status.OK if image == data else self.store(kind, number, image)

    def store(self, kind: str, number: int, image: bytes) -> Status:
        """Write the CQC or EQC of a cached context to host memory; the cache entry has these values already."""
        if kind == CQ:
            return self._silently(m.WR_CQ_CXT, m.WR_CQ_MODIFY, number, image)
        enabled = self.key.eqs.view(number).enabled
        status = self._silently(m.WR_EQ_CXT, m.WR_EQ_ALL, number, image)
        self.key.eqs.view(number).enabled = enabled
        return status

    def drop_qp(self, qpn: int) -> None:
        """Return a queue pair to software: write RESET to host memory and drop it from the cache."""
        m_ctx = QpContext()
        m_ctx.local_qpn, m_ctx.state = qpn, RESET
        self._silently(m.WR_QP_CXT, m.WR_QP_ALL, qpn, m_ctx.store())
        self.key.qps.forget(qpn)
        self.behind.forget(qpn)

    def flush_qp(self, qpn: int) -> Status:
        """Write a queue pair back to host memory: state and PSNs by the engine's writes, or the whole context if
        counters changed."""
        errors = self._errors()
        self.write_back_one(qpn)
        if self._errors() != errors:
            return Status.DMA_ERROR
        if self.behind.whole(qpn):
            status = self._silently(m.WR_QP_CXT, m.WR_QP_ALL, qpn, self.key.qps.view(qpn).store())
            if status != Status.OK:
                return status
            self.behind.level(qpn)
        return Status.OK

    def _write_psn(self, source: int, opcode: int, qpn: int, psn: int, state: int) -> None:
        """Issue one PSN and state write of RTC, RRC or EE."""
        command = m.engine_request(m.WR_QP_CXT, opcode, qpn)
        while not self.request(source, command, m.engine_payload(psn & 0xFFFFFF, state)):
            self.run()

    def write_back(self, count: int, most: int) -> int:
        """Check the next ``count`` queue pairs in turn, and write back state and PSNs of up to ``most``.

        Returns:
            Number of queue pairs checked: fewer than ``count`` once ``most`` were found stale in host memory.
        """
        looked, moved = self.behind.next(count, most)
        for qpn in moved:
            self.write_back_one(qpn)
        return looked

    def write_back_one(self, qpn: int) -> None:
        """Write back state and PSNs of one queue pair."""
        if self.behind.write(qpn):
            self.run()

    def _errors(self) -> int:
        return self.counters["ctx_dma_errors"] + self.counters["ctx_unmapped"]

    def flush(self) -> None:
        """Write the whole cache back to host memory."""
        for qpn in list(self.key.qps):
            self.flush_qp(qpn)

    def write_cq(self, cqn: int, cqc: bytes) -> Status:
        """Write a CQC and cache its key data."""
        return self._do(m.WR_CQ_CXT, m.WR_CQ_ALL, cqn, payload=cqc)

    def invalidate_cq(self, cqn: int) -> Status:
        """Zero a CQC and drop it from the cache, even if its page is unmapped."""
        status = self._do(m.WR_CQ_CXT, m.WR_CQ_INVALID, cqn)
        self.key.cqs.forget(cqn)
        return status

    def write_eq(self, eqn: int, eqc: bytes) -> Status:
        """Write an EQC and cache its key data."""
        return self._do(m.WR_EQ_CXT, m.WR_EQ_ALL, eqn, payload=eqc)

    def event_function(self, eqn: int, mask: int, disable: bool) -> Status:
        """Add event types to an EQ, or disable its event function (MAP_EQ)."""
        return self._do(m.WR_EQ_CXT, m.WR_EQ_FUNC, eqn | (m.EQ_DISABLE if disable else 0), mask & 0xFFFF_FFFF)

    def invalidate_eq(self, eqn: int) -> Status:
        """Zero an EQC and drop it from the cache, even if its page is unmapped."""
        status = self._do(m.WR_EQ_CXT, m.WR_EQ_INVALID, eqn)
        self.key.eqs.forget(eqn)
        return status

    def _do(self, kind: int, opcode: int, addr: int = 0, data: int = 0, payload: bytes = b"") -> Status:
        return self.ceu(m.ceu_request(kind, opcode, addr, data), payload)[0]
