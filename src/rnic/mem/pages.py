"""Page lists: 004's MR table translation for regions with non-contiguous pages."""

from __future__ import annotations

from collections.abc import Iterator

from rnic.mem.dma import DmaPort


class PageList:
    """DMA port whose addresses are offsets into a list of pages.

    Args:
        port: DMA port of the process that has the pages.
        pages: address of each page.
        shift: log2 of the page size in bytes.
    """

    __slots__ = ("_pages", "_port", "shift")

    def __init__(self, port: DmaPort, pages: tuple[int, ...], shift: int) -> None:
        self._port = port
        self._pages = pages
        self.shift = shift

    def _pieces(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Yield address, offset in the transfer and size of each piece within one page."""
        size = 1 << self.shift
        done = 0
        while done < length:
            page, low = divmod(offset + done, size)
            count = min(size - low, length - done)
            yield self._pages[page] + low, done, count
            done += count

    def _covers(self, offset: int, length: int) -> bool:
        return offset >= 0 and offset + length <= len(self._pages) << self.shift

    def read(self, va: int, buf: bytearray | memoryview, /) -> bool:
        """Read from offset ``va`` into ``buf``; return false if a page is inaccessible."""
        view = memoryview(buf)
        return self._covers(va, len(view)) and all(
            self._port.read(address, view[at : at + count]) for address, at, count in self._pieces(va, len(view))
        )

    def write(self, va: int, data: bytes | bytearray | memoryview, /) -> bool:
        """Write ``data`` at offset ``va``; return false if a page is inaccessible or read-only."""
        view = memoryview(data)
        return self._covers(va, len(view)) and all(
            self._port.write(address, view[at : at + count]) for address, at, count in self._pieces(va, len(view))
        )

    def views(self, va: int, length: int, /) -> memoryview | None:
        """Return the memory as one view if its pages are contiguous, else ``None``."""
        if not self._covers(va, length):
            return None
        pieces = list(self._pieces(va, length))
        if not pieces or any(address != pieces[0][0] + at for address, at, _ in pieces):
            return None
        return self._port.views(pieces[0][0], length)
