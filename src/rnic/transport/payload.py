"""Reading and writing a message's bytes through its scatter list. Nothing is believed longer than one access.

Key, protection domain, rights and range are checked whenever memory is touched, so a region or window that goes
while its message is under way is noticed at the next packet, and nothing but numbers has to be kept between packets.
"""

from __future__ import annotations

from collections.abc import Sequence

from rnic.mem.table import MemoryEntry, MemoryTable
from rnic.spec.access import LOCAL_WRITE
from rnic.state.record import NONE

Sge = tuple[int, int, int]
"""Address, length, key."""

ANY_BINDING = NONE
"""Whatever the key is bound to."""


class Payload:
    """A message's bytes, addressed by offset into the message.

    Args:
        memory: the device's keys.
        sges: where they lie, one piece after another.
        pd: the protection domain that the keys must be of.
        rights: ``IBV_ACCESS_*`` bits that each access needs.
        qpn: the queue pair, for keys that came by the wire; -1 for L_Keys.
        binding: what the only key must still be bound to.
        entry: what a guard let the whole message reach, instead of a key.
    """

    __slots__ = ("binding", "entry", "memory", "pd", "qpn", "rights", "sges", "total")

    def __init__(
        self,
        memory: MemoryTable,
        sges: Sequence[Sge],
        pd: int,
        rights: int,
        qpn: int = -1,
        binding: int = ANY_BINDING,
        entry: MemoryEntry | None = None,
    ) -> None:
        self.memory = memory
        self.sges = sges
        self.pd = pd
        self.rights = rights
        self.qpn = qpn
        self.binding = binding
        self.entry = entry
        self.total = sges[0][1] if len(sges) == 1 else sum([sge[1] for sge in sges])

    def _entry(self, key: int, va: int, length: int) -> MemoryEntry | None:
        if self.entry is not None:
            return self.entry if self.entry.valid else None
        local = self.qpn < 0
        entry = self.memory.check(key, self.pd, va, length, self.rights, 0 if local else self.qpn, local=local)
        if entry is None or (self.binding != ANY_BINDING and length and entry.binding != self.binding):
            return None
        return entry

    @property
    def valid(self) -> bool:
        """Whether every key opens what it is for."""
        return all(self._entry(key, va, length) is not None for va, length, key in self.sges)

    def read(self, offset: int, length: int) -> memoryview | bytes | None:
        """``length`` bytes at ``offset``; ``None`` where memory cannot be read. In range by contract."""
        if len(self.sges) == 1:
            va, _, key = self.sges[0]
            return self._read(key, va + offset, length)
        parts: list[memoryview | bytes] = []
        for va, size, key in self.sges:
            if offset < size:
                taken = min(length, size - offset)
                part = self._read(key, va + offset, taken)
                if part is None:
                    return None
                parts.append(part)
                length -= taken
                if not length:
                    break
                offset = size
            offset -= size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self, key: int, va: int, length: int) -> memoryview | bytes | None:
        entry = self._entry(key, va, length)
        if entry is None:
            return None
        view = entry.slice(va, length)
        if view is None:
            buffer = bytearray(length)
            if not entry.read_into(va, buffer):
                return None
            view = memoryview(buffer)
        return view

    def write(self, offset: int, data: memoryview | bytes) -> bool:
        """Store ``data`` at ``offset``; false where memory cannot be written. In range by contract."""
        if len(self.sges) == 1:
            va, _, key = self.sges[0]
            entry = self._entry(key, va + offset, len(data))
            return entry is not None and entry.write_from(va + offset, data)
        at = 0
        for va, size, key in self.sges:
            if at == len(data):
                break
            if offset < size:
                taken = min(len(data) - at, size - offset)
                entry = self._entry(key, va + offset, taken)
                if entry is None or not entry.write_from(va + offset, data[at : at + taken]):
                    return False
                at += taken
                offset = size
            offset -= size
        return True

    def window(self, offset: int, length: int) -> memoryview | None:
        """A view of the bytes where they lie in one piece in reach, else ``None``."""
        for va, size, key in self.sges:
            if offset + length <= size:
                entry = self._entry(key, va + offset, length)
                return None if entry is None else entry.slice(va + offset, length)
            if offset < size:
                return None
            offset -= size
        return None

    def gather(self, offset: int, length: int) -> memoryview | None:
        """The bytes where they lie in one piece in reach, else a copy; ``None`` where memory cannot be read."""
        data = self.window(offset, length)
        if data is None:
            read = self.read(offset, length)
            data = None if read is None else memoryview(read)
        return data


class Inline(Payload):
    """Bytes that lie in the send ring itself."""

    __slots__ = ("data",)

    def __init__(self, memory: MemoryTable, data: memoryview | bytearray | bytes) -> None:
        super().__init__(memory, ((0, len(data), 0),), 0, 0)
        self.data = memoryview(data)

    @property
    def valid(self) -> bool:
        """Always: no key stands before them."""
        return True

    def read(self, offset: int, length: int) -> memoryview | bytes | None:
        """``length`` bytes at ``offset``."""
        return self.data[offset : offset + length]

    def window(self, offset: int, length: int) -> memoryview | None:
        """A view of them."""
        return self.data[offset : offset + length]


def local_payload(memory: MemoryTable, pd: int, sges: Sequence[Sge], writes: bool) -> Payload:
    """A scatter list of L_Keys (IBA 10.6.3)."""
    return Payload(memory, sges, pd, LOCAL_WRITE if writes else 0)
