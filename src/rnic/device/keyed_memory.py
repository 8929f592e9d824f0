"""Memory of a queue that its context names by a key (002 5.4.2: the lkey and pd rows)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rnic.spec.access import LOCAL_WRITE

if TYPE_CHECKING:
    from rnic.mem.dma import DmaPort
    from rnic.mem.table import MemoryTable


class KeyedMemory:
    """The memory of a queue as a :class:`~rnic.mem.dma.DmaPort`, by the key that its context holds at each access.

    With key 0 it is memory of the driver that made the queue, through ``port``. Else each access is checked anew
    (004 "MR Table"), with the context's protection domain, so that no view of the memory is given out.

    Args:
        memory: the device's regions.
        context: has the key, and ``pd``.
        name: which of its fields is the key.
        port: the driver's memory.
    """

    __slots__ = ("_context", "_memory", "_name", "_port")

    def __init__(self, memory: MemoryTable, context: Any, name: str, port: DmaPort) -> None:
        self._memory = memory
        self._context = context
        self._name = name
        self._port = port

    @property
    def key(self) -> int:
        """The key; 0 for none."""
        key: int = getattr(self._context, self._name)
        return key

    @property
    def start(self) -> int:
        """Address at which the key's region begins; 0 without one."""
        region = self._memory.lookup(self.key) if self.key else None
        return 0 if region is None else region.start

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """Fill ``buf``. Return false out of reach, or if the key does not open the memory."""
        key = self.key
        if not key:
            return self._port.read(va, buf)
        entry = self._memory.check(key, self._context.pd, va, len(buf), 0, local=True)
        return entry is not None and entry.read_into(va, buf)

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """Store ``data``. Return false out of reach, or if the key does not allow it."""
        key = self.key
        if not key:
            return self._port.write(va, data)
        entry = self._memory.check(key, self._context.pd, va, len(data), LOCAL_WRITE, local=True)
        return entry is not None and entry.write_from(va, data)

    def views(self, va: int, length: int) -> memoryview | None:
        """Return the memory itself if it has no key and is in reach."""
        return None if self.key else self._port.views(va, length)

    def opens(self, va: int, length: int, writable: bool) -> bool:
        """Return whether the key opens a range; call it only if there is a key."""
        rights = LOCAL_WRITE if writable else 0
        return self._memory.check(self.key, self._context.pd, va, length, rights, local=True) is not None
