"""Context memory (ICM) provided by the driver: MAP_ICM, UNMAP_ICM and INIT_HCA (``hardware.md`` 2a).

The driver maps pages with MAP_ICM, with one list for contexts and one for the translation and protection table. Only
the context manager's metadata (002 5.3) records the host page of each context: a context page is passed there as
ceu_parser's request. Until INIT_HCA sets the table addresses, and again after CLOSE_HCA, context pages wait here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.context.ctxmdata import CQ, EQ, PAGE_BYTES, PAGE_SHIFT, QP
from rnic.context.ctxmgt import ContextManager, Status
from rnic.context.messages import ICMMAP, MAX_CHUNKS
from rnic.device.entry_ring import reachable
from rnic.device.icm_pages import lend_pages
from rnic.device.refusal import Refused
from rnic.spec import commands as cmd

if TYPE_CHECKING:
    from rnic.device.uar import Uar

CONTEXTS = 1
TPT = 2
KINDS = (CONTEXTS, TPT)
MAX_PAGES = 1 << 18
_MOST_IN_A_CHUNK = (1 << 12) - 1

Run = tuple[int, int, int]
"""Virtual address, host address, pages."""


class Lender:
    """DMA port of a driver context that maps pages: one per context, even if contexts share their memory."""

    __slots__ = ("uar",)

    def __init__(self, uar: Uar) -> None:
        self.uar = uar

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """Fill ``buf``; return false if not accessible."""
        return self.uar.port.read(va, buf)

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """Store ``data``; return false if not accessible."""
        return self.uar.port.write(va, data)

    def views(self, va: int, length: int) -> memoryview | None:
        """Return a view of the memory if it is accessible."""
        return self.uar.port.views(va, length)


def _runs(pages: dict[int, int]) -> list[Run]:
    """Return pages, given as host address by virtual page number, as runs that fit a chunk."""
    runs: list[Run] = []
    for page, host in sorted(pages.items()):
        if runs:
            virt, first, count = runs[-1]
            behind = count << PAGE_SHIFT
            if virt + behind == page << PAGE_SHIFT and first + behind == host and count < _MOST_IN_A_CHUNK:
                runs[-1] = virt, first, count + 1
                continue
        runs.append((page << PAGE_SHIFT, host, 1))
    return runs


class Icm:
    """Context memory from drivers. ``started`` is true while the context tables are in use."""

    __slots__ = ("_contexts", "_lenders", "_pages", "started")

    def __init__(self, contexts: ContextManager) -> None:
        self._contexts = contexts
        self._lenders: dict[Uar, Lender] = {}
        self._pages: dict[int, dict[int, tuple[Lender, int]]] = {kind: {} for kind in KINDS}
        self.started = False

    def __len__(self) -> int:
        """Return the number of pages mapped by drivers, without the NIC's default pages."""
        return sum(map(len, self._pages.values())) + sum(isinstance(page[1], Lender) for page in self._contexts.lent())

    # ------------------------------------------------------------------------------------ the device

    def start(self, mailbox: bytes) -> None:
        """Run INIT_HCA: set the table addresses and map waiting pages; :class:`Refused`, with nothing changed, if
        invalid.

        If a driver names no context table and has mapped no pages, the default pages are used.
        """
        values = ICMMAP.unpack(mailbox)
        waiting = self._pages[CONTEXTS]
        logs = {kind: values[f"log_{kind}s"] for kind in (QP, CQ, EQ)}
        if not waiting and not any(values[f"{kind}c_base"] for kind in logs):
            lend_pages(self._contexts, logs)
        elif self._contexts.init_hca(mailbox) != Status.OK or not self._hand_over(waiting):
            self._contexts.close_hca()
            raise Refused(cmd.ST_BAD_PARAM)
        waiting.clear()
        self.started = True

    def stop(self) -> None:
        """Run CLOSE_HCA: remove the tables; pages from drivers wait for the next INIT_HCA."""
        waiting = self._pages[CONTEXTS]
        for virt, port, host in self._contexts.lent():
            if isinstance(port, Lender):
                waiting[virt >> PAGE_SHIFT] = port, host
        self._contexts.close_hca()
        self.started = False

    def _hand_over(self, waiting: dict[int, tuple[Lender, int]]) -> bool:
        for lender in self._lenders.values():
            runs = _runs({page: host for page, (whose, host) in waiting.items() if whose is lender})
            for at in range(0, len(runs), MAX_CHUNKS):
                if self._contexts.map_icm(lender, runs[at : at + MAX_CHUNKS]) != Status.OK:
                    return False
        return True

    # ------------------------------------------------------------------------------------- the driver

    def map(self, uar: Uar, kind: int, runs: list[Run]) -> None:
        """Map runs of pages, all or none; :class:`Refused` if one cannot be mapped.

        EXCEED_LIM for more than 64 runs; RESOURCE_BUSY for a mapped page; BAD_NVMEM for inaccessible memory; BAD_PARAM
        for a context page outside the tables of INIT_HCA.
        """
        pages = self._table(kind)
        if len(runs) > MAX_CHUNKS:
            raise Refused(cmd.ST_EXCEED_LIM)
        lender = self._lenders.get(uar) or Lender(uar)
        new: dict[int, tuple[Lender, int]] = {}
        before = len(self)
        for virt, host, count in runs:
            if not count or (virt | host) % PAGE_BYTES or virt + count * PAGE_BYTES > 1 << 64:
                raise Refused(cmd.ST_BAD_PARAM)
            if before + len(new) + count > MAX_PAGES:
                raise Refused(cmd.ST_EXCEED_LIM)
            if not reachable(uar, host, count * PAGE_BYTES, True):
                raise Refused(cmd.ST_BAD_NVMEM)
            for index in range(count):
                page = (virt >> PAGE_SHIFT) + index
                inside, whose = self._behind(kind, page)
                if not inside:
                    raise Refused(cmd.ST_BAD_PARAM)
                if whose is not None or page in new:
                    raise Refused(cmd.ST_RESOURCE_BUSY)
                new[page] = lender, host + index * PAGE_BYTES
        if kind == TPT or not self.started:
            pages.update(new)
        elif self._contexts.map_icm(lender, runs) != Status.OK:
            raise Refused(cmd.ST_BAD_PARAM)
        self._lenders[uar] = lender

    def unmap(self, uar: Uar, kind: int, runs: list[Run]) -> None:
        """Unmap pages, all or none; :class:`Refused` if one is not this context's.

        Contexts in these pages lose their host memory, as with 002's MAP_ICM_DIS: cached contexts stay in use,
        write-backs are counted in ``ctx_unmapped``, and commands on those queues return BAD_NVMEM.
        """
        self._table(kind)
        gone: set[int] = set()
        for virt, _, count in runs:
            if not count or virt % PAGE_BYTES or count > MAX_PAGES:
                raise Refused(cmd.ST_BAD_PARAM)
            for page in range(virt >> PAGE_SHIFT, (virt >> PAGE_SHIFT) + count):
                _, whose = self._behind(kind, page)
                if whose is None or whose is not self._lenders.get(uar):
                    raise Refused(cmd.ST_BAD_NVMEM)
                gone.add(page)
        self._drop(kind, gone)

    def translate(self, kind: int, virt: int) -> tuple[Uar, int] | None:
        """Return the context that mapped the page at ``virt`` and the host address of that byte; ``None`` if
        unmapped."""
        found: tuple[object, int] | None = self._pages[kind].get(virt >> PAGE_SHIFT)
        if kind == CONTEXTS and self.started:
            found = self._contexts.page(virt)
        if found is None or not isinstance(found[0], Lender):
            return None
        return found[0].uar, found[1] + virt % PAGE_BYTES

    def forget(self, uar: Uar) -> None:
        """Remove the pages of a closed context."""
        lender = self._lenders.pop(uar, None)
        if lender is None:
            return
        for kind, pages in self._pages.items():
            self._pages[kind] = {page: entry for page, entry in pages.items() if entry[0] is not lender}
        self._drop(CONTEXTS, {virt >> PAGE_SHIFT for virt, port, _ in self._contexts.lent() if port is lender})

    def clear(self) -> None:
        """Unmap everything."""
        self.stop()
        self._lenders.clear()
        self._pages = {kind: {} for kind in KINDS}

    # ----------------------------------------------------------------------------------------- pages

    def _behind(self, kind: int, page: int) -> tuple[bool, object | None]:
        """Return whether the page is mapped, and its owner."""
        if kind == CONTEXTS and self.started:
            virt = page << PAGE_SHIFT
            mapped = self._contexts.page(virt)
            return self._contexts.inside(virt), None if mapped is None else mapped[0]
        entry = self._pages[kind].get(page)
        return True, None if entry is None else entry[0]

    def _drop(self, kind: int, gone: set[int]) -> None:
        pages = self._pages[kind]
        if kind == TPT or not self.started:
            for page in gone:
                pages.pop(page, None)
            return
        for virt, _, count in _runs({page: page << PAGE_SHIFT for page in gone}):
            self._contexts.unmap_icm(virt, count)

    def _table(self, kind: int) -> dict[int, tuple[Lender, int]]:
        pages = self._pages.get(kind)
        if pages is None:
            raise Refused(cmd.ST_BAD_PARAM)
        return pages
