"""Default context memory, provided at power-on, so that a driver need not map any.

A driver that issues INIT_HCA and MAP_ICM itself provides its own pages instead, and these are removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from rnic.context.ctxmdata import PAGE_BYTES, table_pages
from rnic.context.ctxmgt import ContextManager, Status
from rnic.context.messages import ICMMAP
from rnic.state.arena import private_memory

_BASE = 0x1000_0000
"""Address of the pages, the same in context memory and host memory."""


class IcmPages:
    """Zero pages from ``_BASE`` on; a :class:`~rnic.mem.dma.DmaPort`. They use no memory until touched."""

    __slots__ = ("_memory", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = private_memory(size)

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """Fill ``buf``; return false outside the pages."""
        at = va - _BASE
        if not 0 <= at <= self.size - len(buf):
            return False
        buf[:] = self._memory[at : at + len(buf)]
        return True

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """Store ``data``; return false outside the pages."""
        at = va - _BASE
        if not 0 <= at <= self.size - len(data):
            return False
        self._memory[at : at + len(data)] = bytes(data)
        return True

    def views(self, va: int, length: int) -> memoryview | None:
        """Return a view of the pages; ``None`` outside them."""
        at = va - _BASE
        return memoryview(self._memory)[at : at + length] if 0 <= at <= self.size - length else None


def lend_pages(contexts: ContextManager, logs: Mapping[str, int]) -> IcmPages:
    """Map all pages for the context tables, one table after the other.

    Args:
        logs: log2 of the number of contexts by kind, 0 for as many as the device has.
    """
    values: dict[str, int] = {}
    runs = []
    at = _BASE
    for kind, table in contexts.ctxmdata.tables.items():
        values[f"{kind}c_base"] = at >> 8
        values[f"log_{kind}s"] = logs[kind]
        pages = table_pages(logs[kind] or table.most, table.shift)
        runs.append((at, at, pages))
        at += pages * PAGE_BYTES
    lent = IcmPages(at - _BASE)
    status = contexts.init_hca(ICMMAP.pack(values)) or contexts.map_icm(lent, runs)
    assert status == Status.OK
    return lent
