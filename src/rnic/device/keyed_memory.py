"""Memory of a queue, given by a key in its context (002 5.4.2: the lkey and pd rows)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rnic.spec.access import LOCAL_WRITE

if TYPE_CHECKING:
    from rnic.mem.dma import DmaPort
    from rnic.mem.table import MemoryTable


class KeyedMemory:
    """The memory of a queue as a :class:`~rnic.mem.dma.DmaPort`, using the current key in its context for each access.

    With key 0 it is memory of the driver that created the queue, through ``port``. Otherwise each access is checked
    (004 "MR Table") with the context's protection domain, so no view of the memory is given out.

    Args:
        memory: the device's memory table.
        context: the context, with the key and ``pd``.
        name: name of its key field.
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
        """Start address of the key's region; 0 without one."""
        region = self._memory.lookup(self.key) if self.key else None
        return 0 if region is None else region.start

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """Fill ``buf``. Return false if the memory is not accessible or the key does not permit it."""
        key = self.key
        if not key:
            return self._port.read(va, buf)
        entry = self._memory.check(key, self._context.pd, va, len(buf), 0, local=True)
        return entry is not None and entry.read_into(va, buf)

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """Store ``data``. Return false if the memory is not accessible or the key does not permit it."""
        key = self.key
        if not key:
            return self._port.write(va, data)
        entry = self._memory.check(key, self._context.pd, va, len(data), LOCAL_WRITE, local=True)
        return entry is not None and entry.write_from(va, data)

    def views(self, va: int, length: int) -> memoryview | None:
        """Return a view of the memory if there is no key and it is accessible."""
        return None if self.key else self._port.views(va, length)

    def opens(self, va: int, length: int, writable: bool) -> bool:
        """Return whether the key covers a range; only call it if there is a key."""
        rights = LOCAL_WRITE if writable else 0
        return self._memory.check(self.key, self._context.pd, va, length, rights, local=True) is not None
