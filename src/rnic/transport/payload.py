"""Reading and writing message payloads through lists of checked memory extents."""

from __future__ import annotations

from rnic.mem.table import MemoryEntry, MemoryTable
from rnic.transport.wqe import Sge


class Extent:
    """``length`` bytes of the payload, from ``start`` on, at ``va`` in ``entry`` (or in ``view`` alone)."""

    __slots__ = ("binding", "end", "entry", "start", "va", "view")

    def __init__(self, start: int, length: int, entry: MemoryEntry | None, va: int, view: memoryview | None) -> None:
        self.start = start
        self.end = start + length
        self.entry = entry
        self.binding = 0 if entry is None else entry.binding
        self.va = va
        self.view = view


class Payload:
    """A message's bytes as a list of extents, addressed by offset into the message.

    ``view`` is the whole payload where it is one extent in reach; then :meth:`read` costs one slice.
    """

    __slots__ = ("extents", "total", "view")

    def __init__(self, extents: list[Extent]) -> None:
        self.extents = extents
        self.total = extents[-1].end if extents else 0
        self.view = extents[0].view if len(extents) == 1 else None

    @property
    def valid(self) -> bool:
        """Whether every region or window behind the payload still is what it was when it was checked."""
        for extent in self.extents:
            entry = extent.entry
            if entry is not None and (not entry.valid or entry.binding != extent.binding):
                return False
        return True

    def read(self, offset: int, length: int) -> memoryview | bytes | None:
        """``length`` bytes at ``offset``; ``None`` where memory cannot be read. In range by contract."""
        if self.view is not None:
            return self.view[offset : offset + length]
        parts: list[memoryview | bytes] = []
        end = offset + length
        for extent in self.extents:
            low = max(offset, extent.start)
            high = min(end, extent.end)
            if low >= high:
                continue
            if extent.view is not None:
                parts.append(extent.view[low - extent.start : high - extent.start])
            else:
                buffer = bytearray(high - low)
                entry = extent.entry
                if entry is None or not entry.read_into(extent.va + low - extent.start, buffer):
                    return None
                parts.append(memoryview(buffer))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, offset: int, data: memoryview | bytes) -> bool:
        """Store ``data`` at ``offset``; false where memory cannot be written. In range by contract."""
        if self.view is not None:
            self.view[offset : offset + len(data)] = data
            return True
        end = offset + len(data)
        for extent in self.extents:
            low = max(offset, extent.start)
            high = min(end, extent.end)
            if low >= high:
                continue
            piece = data[low - offset : high - offset]
            if extent.view is not None:
                extent.view[low - extent.start : high - extent.start] = piece
            elif extent.entry is None or not extent.entry.write_from(extent.va + low - extent.start, piece):
                return False
        return True

    def window(self, offset: int, length: int) -> memoryview | None:
        """A view of the bytes where they lie in one extent in reach, else ``None``."""
        if self.view is not None:
            return self.view[offset : offset + length]
        for extent in self.extents:
            if extent.start <= offset and offset + length <= extent.end:
                if extent.view is None:
                    return None
                return extent.view[offset - extent.start : offset - extent.start + length]
        return None

    def gather(self, offset: int, length: int) -> memoryview | None:
        """The bytes where they lie in one extent in reach, else a copy; ``None`` where memory cannot be read."""
        view = self.window(offset, length)
        if view is None:
            data = self.read(offset, length)
            view = None if data is None else memoryview(data)
        return view


EMPTY = Payload([])


def inline_payload(data: bytes) -> Payload:
    """A payload that was copied out of the descriptor."""
    return Payload([Extent(0, len(data), None, 0, memoryview(data))])


def resolve(memory: MemoryTable, pd: int, sges: list[Sge], rights: int) -> Payload | None:
    """Check a scatter list against keys, protection domain, rights and range (IBA 10.6.3).

    ``None`` if any entry fails: a local protection error.
    """
    if not sges:
        return EMPTY
    extents = []
    start = 0
    for va, length, key in sges:
        entry = memory.check(key, pd, va, length, rights, local=True)
        if entry is None:
            return None
        extents.append(Extent(start, length, entry, va, entry.slice(va, length)))
        start += length
    return Payload(extents)


def remote_payload(entry: MemoryEntry, va: int, length: int) -> Payload:
    """One remote access that was checked already."""
    return Payload([Extent(0, length, entry, va, entry.slice(va, length))])
