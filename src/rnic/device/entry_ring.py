"""The NIC's side of a completion or event ring in the driver's memory: 32-byte entries with a phase bit."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rnic.device.keyed_memory import KeyedMemory
from rnic.device.uar import U32, Registers, Uar
from rnic.mem.order import shared_words
from rnic.mem.space import address_of
from rnic.rings.cqe import CQE_BYTES, CQE_PHASE, CQE_SHIFT
from rnic.rings.queue_block import (
    CQ_BASE_HI,
    CQ_BASE_LO,
    CQ_HEAD,
    CQ_SIZE,
    CQ_TAIL,
    QUEUE_NUMBER,
    QUEUE_STATE,
)
from rnic.rings.ring import room

if TYPE_CHECKING:
    from rnic.context.cache import CqKey, EqKey
    from rnic.mem.table import MemoryTable

QUEUE_VALID = 1
QUEUE_ERROR = 15
"""QUEUE_STATE of a failed CQ, EQ or SRQ."""

_LOW = struct.Struct("<3I")
_HIGH = struct.Struct("<4I")
_LOW31 = CQE_PHASE - 1


class EntryRing:
    """Stores entries in one ring and publishes the producer index.

    The record in the arena (``key``) has the ring's address, length and current index. The number of entries is a power
    of two; one entry stays free. CQ_HEAD, which software owns, is only read when the known room is used up. ``view`` is
    the ring's memory if it is accessible; else entries are stored through the DMA port, word 3 last. A ring with a key
    is in that key's region, and each entry checks the key.
    """

    __slots__ = ("_words", "key", "number", "port", "regs", "uar", "view")

    def __init__(self, number: int, uar: Uar, key: CqKey | EqKey, memory: MemoryTable) -> None:
        self.number = number
        self.uar = uar
        self.key = key
        key.driver = uar.number
        self.port = KeyedMemory(memory, key, "lkey", uar.port)
        self.regs = Registers(uar, key.usrpage)
        self.regs.clear()
        self.regs.set(QUEUE_NUMBER, number)
        self.regs.set(QUEUE_STATE, QUEUE_VALID)
        key.failed = 0
        self.begin(0)
        self.place()

    @property
    def base(self) -> int:
        """Virtual address of the ring."""
        return self.key.start or self.port.start

    @property
    def size(self) -> int:
        """Entries of the ring."""
        return 1 << self.key.logsize

    @property
    def tail(self) -> int:
        """Index of the next entry to store."""
        return self.key.tail

    @property
    def failed(self) -> bool:
        """True if it accepts no more entries."""
        return bool(self.key.failed)

    def begin(self, tail: int) -> None:
        """Continue after ``tail`` entries, in the first pass over the ring."""
        key = self.key
        key.tail = tail
        key.phase = CQE_PHASE
        key.room = self.size - 1 - tail

    def place(self) -> None:
        """Map the ring at the address and length in the record, and publish them in the queue block."""
        base = self.base
        view = self.port.views(base, self.size << CQE_SHIFT)
        # aligned words are stored atomically; a simulated address may be aligned although its memory is not
        self.use(None if view is None or view.readonly or address_of(view) & 3 else view)
        self.regs.set(CQ_BASE_LO, base & 0xFFFF_FFFF)
        self.regs.set(CQ_BASE_HI, base >> 32)
        self.regs.set(CQ_SIZE, self.size)

    def changed(self) -> None:
        """Switch to the ring in the context, which has changed."""
        key = self.key
        key.tail &= self.size - 1
        key.room = 0  # read software's CQ_HEAD again
        self.place()

    def use(self, view: memoryview | None) -> None:
        """Use the ring's memory directly if it is accessible."""
        self.view = view
        self._words = None if view is None else shared_words(view)

    def count_room(self) -> int:
        """Return the number of free entries according to CQ_HEAD; 0 if CQ_HEAD is not a valid index."""
        return room(self.regs.get(CQ_HEAD), self.key.tail, self.size)

    def push(self, w0: int, w1: int, w2: int, w3: int, w4: int, w5: int, w6: int, w7: int) -> bool:
        """Store one entry, word 3 with the phase last. Return false if the ring is full or its memory is gone."""
        key = self.key
        free = key.room
        if free == 0:
            free = key.room = self.count_room()
            if free == 0:
                return False
        tail = key.tail
        w3 = w3 & _LOW31 | key.phase
        view, words = self.view, self._words
        if view is not None and words is not None:
            at = tail << CQE_SHIFT
            # pack_into clears the bytes first, which may look like a phase bit: store word 3 as a whole
            _LOW.pack_into(view, at, w0, w1, w2)
            _HIGH.pack_into(view, at + 16, w4, w5, w6, w7)
            words[at + 12 >> 2] = w3  # the other words become visible before it
        else:
            at = self.base + (tail << CQE_SHIFT)
            write = self.port.write
            if not (
                write(at, _LOW.pack(w0, w1, w2))
                and write(at + 16, _HIGH.pack(w4, w5, w6, w7))
                and write(at + 12, U32.pack(w3))
            ):
                return False
        key.room = free - 1
        tail += 1
        if tail >> key.logsize:
            tail = 0
            key.phase ^= CQE_PHASE
        key.tail = tail
        self.regs.set(CQ_TAIL, tail)
        return True

    def read(self, index: int) -> bytes | None:
        """Return the bytes of one entry, or ``None`` if the ring's memory is gone."""
        if self.view is not None:
            return bytes(self.view[index << CQE_SHIFT : (index + 1) << CQE_SHIFT])
        entry = bytearray(CQE_BYTES)
        return bytes(entry) if self.port.read(self.base + (index << CQE_SHIFT), entry) else None


def reachable(uar: Uar, base: int, length: int, writable: bool) -> bool:
    """Return whether memory is accessible: as one view, or with both ends readable through the DMA port."""
    if base + length > 1 << 64:
        return False
    view = uar.port.views(base, length)
    if view is not None:
        return not (writable and view.readonly)
    covers = getattr(uar.port, "covers", None)
    if covers is not None:  # the port can access more memory than its program may use
        return bool(covers(base, length, writable))
    byte = bytearray(1)
    return uar.port.read(base, byte) and uar.port.read(base + length - 1, byte)
