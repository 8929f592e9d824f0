"""Read and write a message's payload through its scatter list. No check is valid for longer than one packet.

Key, protection domain, rights and range are checked when a payload object is created, for each received packet and each
sending turn. So the destruction of a region or window during a message is detected at the next packet, and only numbers
are kept between packets.
"""

from __future__ import annotations

from collections.abc import Sequence

from rnic.mem.table import MemoryEntry, MemoryTable
from rnic.spec.access import LOCAL_WRITE
from rnic.state.record import NONE

Sge = tuple[int, int, int]
"""Address, length, key."""

ANY_BINDING = NONE
"""Accept any binding of the key."""


class Payload:
    """A message's payload, addressed by offset into the message.

    Args:
        sges: the scatter list.
        entries: memory table entry of each key; ``None`` if the key does not permit the access.
        binding: required binding of the only key.
        guarded: true if a shell's guard admitted the whole message, instead of a key.

    ``valid`` is true if every key permits its access, ``total`` is the length in bytes.
    """

    __slots__ = ("binding", "entries", "guarded", "sges", "total", "valid")

    def __init__(
        self,
        sges: Sequence[Sge],
        entries: Sequence[MemoryEntry | None],
        binding: int = ANY_BINDING,
        guarded: bool = False,
    ) -> None:
        self.sges = sges
        self.entries = entries
        self.binding = binding
        self.guarded = guarded
        self.total = sges[0][1] if len(sges) == 1 else sum([sge[1] for sge in sges])
        self.valid = None not in entries

    def again(self) -> Payload:
        """Recheck a payload that a guard admitted, and return it."""
        self.valid = all(entry is not None and bool(entry.valid) for entry in self.entries)
        return self

    def read(self, offset: int, length: int) -> memoryview | bytes | None:
        """Return ``length`` bytes at ``offset``; ``None`` if memory cannot be read. The range must be valid."""
        if not self.valid:
            return None
        if len(self.sges) == 1:
            entry = self.entries[0]
            return None if entry is None else entry.read(self.sges[0][0] + offset, length)
        parts: list[memoryview | bytes] = []
        for (va, size, _), entry in zip(self.sges, self.entries, strict=True):
            if offset < size:
                taken = min(length, size - offset)
                part = None if entry is None else entry.read(va + offset, taken)
                if part is None:
                    return None
                parts.append(part)
                length -= taken
                if not length:
                    break
                offset = size
            offset -= size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, offset: int, data: memoryview | bytes) -> bool:
        """Store ``data`` at ``offset``. Return false if memory cannot be written. The range must be valid."""
        if not self.valid:
            return False
        if len(self.sges) == 1:
            entry = self.entries[0]
            return entry is not None and entry.write_from(self.sges[0][0] + offset, data)
        at = 0
        for (va, size, _), entry in zip(self.sges, self.entries, strict=True):
            if at == len(data):
                break
            if offset < size:
                taken = min(len(data) - at, size - offset)
                if entry is None or not entry.write_from(va + offset, data[at : at + taken]):
                    return False
                at += taken
                offset = size
            offset -= size
        return True

    def window(self, offset: int, length: int) -> memoryview | None:
        """Return a view of the bytes if they are contiguous in mapped memory, else ``None``."""
        if not self.valid:
            return None
        for (va, size, _), entry in zip(self.sges, self.entries, strict=True):
            if offset + length <= size:
                return None if entry is None else entry.slice(va + offset, length)
            if offset < size:
                return None
            offset -= size
        return None

    def gather(self, offset: int, length: int) -> memoryview | None:
        """Return a view of the bytes if possible, else a copy; ``None`` if memory cannot be read."""
        data = self.window(offset, length)
        if data is None:
            read = self.read(offset, length)
            data = None if read is None else memoryview(read)
        return data


class Inline(Payload):
    """Inline data in the send ring itself, which needs no key."""

    __slots__ = ("data",)

    def __init__(self, data: memoryview | bytearray | bytes) -> None:
        super().__init__(((0, len(data), 0),), ())
        self.data = memoryview(data)

    def read(self, offset: int, length: int) -> memoryview | bytes | None:
        """Return ``length`` bytes at ``offset``."""
        return self.data[offset : offset + length]

    def window(self, offset: int, length: int) -> memoryview | None:
        """Return a view of the bytes."""
        return self.data[offset : offset + length]


NO_PAYLOAD = Payload((), ())
"""Payload without bytes."""
SPOILT = Payload(((0, 1, 0),), (None,))
"""Invalid payload: its entry was overwritten."""


def local_payload(memory: MemoryTable, pd: int, sges: Sequence[Sge], writes: bool) -> Payload:
    """Return the payload of a scatter list of L_Keys (IBA 10.6.3)."""
    rights = LOCAL_WRITE if writes else 0
    entries = []
    for va, length, key in sges:
        entries.append(memory.check(key, pd, va, length, rights, 0, True))
    return Payload(sges, entries)


def remote_payload(
    memory: MemoryTable, pd: int, sge: Sge, rights: int, qpn: int, binding: int = ANY_BINDING
) -> Payload:
    """Return the payload for a received R_Key while it is bound to ``binding``. A length of 0 needs no key.

    For R_Key 0, the binding also contains the region's key.
    """
    va, length, key = sge
    if not length:
        return NO_PAYLOAD
    entry = memory.check(key, pd, va, length, rights, qpn)
    if entry is None:
        return Payload((sge,), (None,))
    found = entry.record.binding
    if not key:  # key 0 may mean many regions, so the region's key is part of the binding
        found = (found << 32 | entry.key) & NONE
    if binding not in (ANY_BINDING, found):
        entry = None
    return Payload((sge,), (entry,), found, bool(memory.guards) and qpn in memory.guards)
