"""Context memory (ICM): which page of host memory stands behind each page of the device's context space.

``hardware.md`` 2a: the driver lends the device pages with MAP_ICM, one list for contexts and one for the translation
and protection table, and takes them back with UNMAP_ICM. The device reaches a page through the DMA port of the
context that lent it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.device.entry_ring import reachable
from rnic.device.refusal import Refused
from rnic.spec import commands as cmd

if TYPE_CHECKING:
    from rnic.device.uar import Uar

PAGE_BYTES = 4096
PAGE_SHIFT = 12
CONTEXTS = 1
TPT = 2
KINDS = (CONTEXTS, TPT)
MAX_PAGES = 1 << 18

Run = tuple[int, int, int]
"""Virtual address, host address, pages."""


class Icm:
    """Mapped pages by kind and virtual page number."""

    __slots__ = ("_pages",)

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, tuple[Uar, int]]] = {kind: {} for kind in KINDS}

    def __len__(self) -> int:
        """Pages that are mapped."""
        return sum(map(len, self._pages.values()))

    def map(self, uar: Uar, kind: int, runs: list[Run]) -> None:
        """Map runs of pages, all or none; :class:`Refused` where one cannot be."""
        pages = self._table(kind)
        new: dict[int, tuple[Uar, int]] = {}
        for virt, host, count in runs:
            if not count or (virt | host) % PAGE_BYTES or virt + count * PAGE_BYTES > 1 << 64:
                raise Refused(cmd.ST_BAD_PARAM)
            if len(self) + len(new) + count > MAX_PAGES:
                raise Refused(cmd.ST_EXCEED_LIM)
            if not reachable(uar, host, count * PAGE_BYTES, True):
                raise Refused(cmd.ST_BAD_NVMEM)
            for index in range(count):
                page = (virt >> PAGE_SHIFT) + index
                if page in pages or page in new:
                    raise Refused(cmd.ST_RESOURCE_BUSY)
                new[page] = uar, host + index * PAGE_BYTES
        pages.update(new)

    def unmap(self, uar: Uar, kind: int, runs: list[Run]) -> None:
        """Take pages back, all or none; :class:`Refused` where one is not this context's."""
        pages = self._table(kind)
        gone: set[int] = set()
        for virt, _, count in runs:
            if not count or virt % PAGE_BYTES or count > MAX_PAGES:
                raise Refused(cmd.ST_BAD_PARAM)
            run = range(virt >> PAGE_SHIFT, (virt >> PAGE_SHIFT) + count)
            if any(page not in pages or pages[page][0] is not uar for page in run):
                raise Refused(cmd.ST_BAD_NVMEM)
            gone.update(run)
        for page in gone:
            del pages[page]

    def translate(self, kind: int, virt: int) -> tuple[Uar, int] | None:
        """The context that lent the page at ``virt`` and the host address of that very byte; ``None`` if unmapped."""
        found = self._pages[kind].get(virt >> PAGE_SHIFT)
        return None if found is None else (found[0], found[1] + virt % PAGE_BYTES)

    def forget(self, uar: Uar) -> None:
        """A context closed: its pages are gone."""
        for kind, pages in self._pages.items():
            self._pages[kind] = {page: entry for page, entry in pages.items() if entry[0] is not uar}

    def clear(self) -> None:
        """Unmap everything."""
        self._pages = {kind: {} for kind in KINDS}

    def _table(self, kind: int) -> dict[int, tuple[Uar, int]]:
        pages = self._pages.get(kind)
        if pages is None:
            raise Refused(cmd.ST_BAD_PARAM)
        return pages
