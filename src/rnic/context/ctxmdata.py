"""ctxmdata: the map from contexts to host pages (002 5.3).

One entry for each 4096-byte page of context memory: 52 address bits and a valid bit. 1024 entries for QPCs, 256 for
CQCs, one for the EQCs; the entry's index is bits 21:12 or 19:12 of the address minus the table's base.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from rnic.context.fifo import Fifo
from rnic.context.machines import CTXMDATA, Machine
from rnic.context.messages import (
    BY_CODE,
    CEU,
    CHUNK,
    EE,
    EQ_DISABLE,
    ICMMAP,
    MAP_ICM_CXT,
    MAP_ICM_EN,
    MAX_CHUNKS,
    RD_QP_CXT,
    RRC,
    RTC,
    WR_CQ_CXT,
    WR_EQ_CXT,
    WR_EQ_FUNC,
    WR_ICMMAP_CXT,
    WR_ICMMAP_EN,
    WR_QP_CXT,
    WR_QP_EPST,
    WR_QP_NPST,
    WR_QP_UAPST,
)
from rnic.context.readctx import ReadCtx
from rnic.context.writectx import WriteCtx
from rnic.mem.dma import DmaPort

PAGE_SHIFT = 12
PAGE_BYTES = 1 << PAGE_SHIFT
QP, CQ, EQ = "qp", "cq", "eq"
_KIND = {RD_QP_CXT: QP, WR_QP_CXT: QP, WR_CQ_CXT: CQ, WR_EQ_CXT: EQ}
_SOURCE = {WR_QP_NPST: RTC, WR_QP_UAPST: RRC, WR_QP_EPST: EE}


def table_pages(log: int, shift: int) -> int:
    """Return the number of pages for ``2**log`` contexts of ``2**shift`` bytes."""
    return max(1, 1 << log + shift >> PAGE_SHIFT)


class Place(NamedTuple):
    """Location of a context: DMA port of the page's owner, and host address."""

    port: DmaPort
    addr: int


class PageTable:
    """The metadata of one kind of context.

    Args:
        first: the lowest number of that kind; numbers are ``first`` to ``first + 2**log - 1``.
        log: log2 of the device's maximum number of contexts; WR_ICMMAP_EN may request fewer.
        shift: log2 of a context's bytes.
    """

    __slots__ = ("base", "enabled", "first", "log", "most", "page_base", "ports", "shift", "valid")

    def __init__(self, first: int, log: int, shift: int) -> None:
        self.first = first
        self.shift = shift
        self.log = self.most = log
        self.base = 0
        self.enabled = False
        depth = self.pages
        self.page_base = [0] * depth
        self.valid = bytearray(depth)
        self.ports: list[DmaPort | None] = [None] * depth

    @property
    def pages(self) -> int:
        """Number of entries in use for the contexts that WR_ICMMAP_EN configured."""
        return table_pages(self.log, self.shift)

    def reset(self) -> None:
        """Remove all pages and the base (WR_ICMMAP_DIS)."""
        self.enabled = False
        self.base = 0
        self.log = self.most
        for index in range(len(self.valid)):
            self.drop(index)

    def drop(self, index: int) -> None:
        """Remove one page."""
        self.valid[index] = 0
        self.page_base[index] = 0
        self.ports[index] = None

    def index(self, virt: int) -> int | None:
        """Return the entry of an address in context memory; ``None`` outside this table."""
        index = virt - self.base >> PAGE_SHIFT
        return index if self.enabled and 0 <= index < self.pages else None

    def locate(self, number: int) -> Place | None:
        """Return the location of a context; ``None`` for a number out of range or a page that is not mapped."""
        if not self.enabled or not 0 <= number - self.first < 1 << self.log:
            return None
        # the low bits of a number are its slot, so a shifted number's address bits select the entry (5.3.3)
        offset = (number & (1 << self.log) - 1) << self.shift
        index = offset >> PAGE_SHIFT
        port = self.ports[index]
        if not self.valid[index] or port is None:
            return None
        return Place(port, self.page_base[index] << PAGE_SHIFT | offset & PAGE_BYTES - 1)


class CtxMData:
    """The module. ``ceu_fifo`` has priority over ``key_fifo``; entries are header, payload and its port.

    ``refused`` holds the header of the last refused CEU request until the manager takes it. ``forget`` is true once
    WR_ICMMAP_DIS has disabled the tables: the cache must be dropped, too.
    """

    __slots__ = (
        "ceu_fifo",
        "forget",
        "key_fifo",
        "machine",
        "readctx",
        "refused",
        "refused_key",
        "tables",
        "writectx",
    )

    def __init__(self, tables: dict[str, PageTable], readctx: ReadCtx, writectx: WriteCtx) -> None:
        self.tables = tables
        self.readctx = readctx
        self.writectx = writectx
        self.machine = Machine("ctxmdata", CTXMDATA)
        self.ceu_fifo: Fifo[tuple[bytes, bytes, DmaPort | None]] = Fifo()
        self.key_fifo: Fifo[bytes] = Fifo()
        self.forget = False
        self.refused: bytes | None = None
        self.refused_key: bytes | None = None

    def step(self) -> bool:
        """Handle one request; return false if there is none."""
        if self.ceu_fifo:
            self.machine.step("ceu")
            header, payload, port = self.ceu_fifo.popleft()
            source = CEU
        elif self.key_fifo:
            self.machine.step("key_qpc_data")
            header, payload, port = self.key_fifo.popleft(), b"", None
            source = _SOURCE[header[0] & 15]
        else:
            return False
        kind = header[0] >> 4
        if kind in (WR_ICMMAP_CXT, MAP_ICM_CXT):
            taken = self._metadata(header, payload, port)
            self.machine.step("metadata" if taken else "refused")
            if not taken:
                self.refused = header
            return True
        number = int.from_bytes(header[4:8], "big")
        if kind == WR_EQ_CXT and header[0] & 15 == WR_EQ_FUNC:
            number &= EQ_DISABLE - 1
        place = self.tables[_KIND[kind]].locate(number)
        if place is None:
            self.machine.step("refused")
            if source == CEU:
                self.refused = header
            else:
                self.refused_key = header
            return True
        self.machine.step("translated")
        if kind == RD_QP_CXT:
            size = 1 << self.tables[QP].shift
            self.readctx.request(place.port, (place.addr << 44 | size << 32 | number).to_bytes(14, "big"), header)
            self.machine.step("dma_read")
        else:
            self.writectx.request(place.port, place.addr, header, source)
            self.machine.step("dma_write")
        return True

    # ----------------------------------------------------------------------------------- metadata

    def _metadata(self, header: bytes, payload: bytes, port: DmaPort | None) -> bool:
        """Run a metadata request; return false, with nothing changed, if it is invalid."""
        row = BY_CODE[header[0] >> 4, header[0] & 15]
        if row.type == WR_ICMMAP_CXT:
            return self._enable(payload) if row.opcode == WR_ICMMAP_EN else self._disable()
        number = int.from_bytes(header[4:8], "big")
        if row.opcode == MAP_ICM_EN:
            return port is not None and self._map(payload, number, port)
        return self._unmap(int.from_bytes(header[8:], "big"), number)

    def _disable(self) -> bool:
        for table in self.tables.values():
            table.reset()
        self.forget = True
        return True

    def _enable(self, payload: bytes) -> bool:
        values = ICMMAP.unpack(payload)
        logs = {kind: values[f"log_{kind}s"] or table.most for kind, table in self.tables.items()}
        spans = []
        for kind, table in self.tables.items():
            base = values[f"{kind}c_base"] << 8
            if logs[kind] > table.most or base % PAGE_BYTES:
                return False
            spans.append((base, base + (table_pages(logs[kind], table.shift) << PAGE_SHIFT)))
        spans.sort()
        if any(one[1] > two[0] for one, two in pairwise(spans)) or spans[-1][1] > 1 << 64:
            return False
        for kind, table in self.tables.items():
            table.reset()
            table.base = values[f"{kind}c_base"] << 8
            table.log = logs[kind]
            table.enabled = True
        return True

    def find(self, virt: int) -> tuple[PageTable, int] | None:
        """Return table and entry of an address in context memory; ``None`` if no table has it."""
        for table in self.tables.values():
            index = table.index(virt)
            if index is not None:
                return table, index
        return None

    def _run(self, virt: int, pages: int) -> list[tuple[PageTable, int]] | None:
        """Return the entries of consecutive pages; ``None`` if a page is not in any table."""
        if not 0 < pages <= 1 << 12 or virt % PAGE_BYTES:
            return None
        found = [self.find(virt + (page << PAGE_SHIFT)) for page in range(pages)]
        return None if None in found else [entry for entry in found if entry is not None]

    def _map(self, payload: bytes, count: int, port: DmaPort) -> bool:
        if not 0 < count <= MAX_CHUNKS or len(payload) != (count + 1) // 2 * 32:
            return False
        new: dict[tuple[int, int], tuple[PageTable, int]] = {}
        for at in range(0, count * CHUNK.size, CHUNK.size):
            chunk = CHUNK.unpack(payload, at)
            run = self._run(chunk["virt"], chunk["pages"])
            if run is None or chunk["page"] + len(run) > 1 << 52:
                return False
            for offset, (table, index) in enumerate(run):
                if table.valid[index] or (id(table), index) in new:
                    return False
                new[id(table), index] = table, chunk["page"] + offset
        for (_, index), (table, page) in new.items():
            table.page_base[index] = page
            table.ports[index] = port
            table.valid[index] = 1
        return True

    def _unmap(self, virt: int, pages: int) -> bool:
        run = self._run(virt, pages)
        if run is None or not all(table.valid[index] for table, index in run):
            return False
        for table, index in run:
            table.drop(index)
        return True
