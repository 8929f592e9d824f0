"""The NIC's side of a completion or event ring in the driver's memory: 32-byte entries with a phase bit."""

from __future__ import annotations

import struct

from rnic.device.uar import U32, Registers, Uar
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

QUEUE_VALID = 1
QUEUE_ERROR = 15
"""QUEUE_STATE of a CQ, EQ or SRQ."""

_LOW = struct.Struct("<3I")
_HIGH = struct.Struct("<4I")
_LOW31 = CQE_PHASE - 1


class EntryRing:
    """Fills entries of one ring and publishes its producer record.

    ``size`` is a power of two; one entry stays free. CQ_HEAD, which software owns, is read only when the room
    known of is used up. ``view`` is the ring's memory where it is in reach; else entries go through the DMA
    port, word 3 last.
    """

    __slots__ = ("base", "number", "phase", "regs", "room", "size", "tail", "uar", "view", "words")

    def __init__(self, number: int, uar: Uar, block: int, base: int, size: int) -> None:
        self.number = number
        self.uar = uar
        self.regs = Registers(uar, block)
        self.base = base
        self.size = size
        self.tail = 0
        self.phase = CQE_PHASE
        self.room = size - 1
        self.use(writable_view(uar, base, size << CQE_SHIFT))
        self.regs.clear()
        self.regs.set(QUEUE_NUMBER, number)
        self.regs.set(QUEUE_STATE, QUEUE_VALID)
        self.mirror()

    def use(self, view: memoryview | None) -> None:
        """Take up the ring's memory where it is in reach."""
        self.view = view
        # A packed store clears its bytes first, which may look like a phase: word 3 is stored as a whole.
        self.words = None if view is None else view.cast("I")

    def mirror(self) -> None:
        """Show base and size in the queue block."""
        self.regs.set(CQ_BASE_LO, self.base & 0xFFFF_FFFF)
        self.regs.set(CQ_BASE_HI, self.base >> 32)
        self.regs.set(CQ_SIZE, self.size)

    def count_room(self) -> int:
        """Free entries as software's CQ_HEAD says now; none if it is no index of the ring."""
        head = self.regs.get(CQ_HEAD)
        return (head - self.tail - 1) & (self.size - 1) if head < self.size else 0

    def push(self, w0: int, w1: int, w2: int, w3: int, w4: int, w5: int, w6: int, w7: int) -> bool:
        """Store one entry, word 3 with the phase last; false where the ring is full or its memory is gone."""
        if self.room == 0:
            self.room = self.count_room()
            if self.room == 0:
                return False
        tail = self.tail
        w3 = w3 & _LOW31 | self.phase
        view = self.view
        words = self.words
        if view is not None and words is not None:
            at = tail << CQE_SHIFT
            _LOW.pack_into(view, at, w0, w1, w2)
            _HIGH.pack_into(view, at + 16, w4, w5, w6, w7)
            words[at + 12 >> 2] = w3
        else:
            at = self.base + (tail << CQE_SHIFT)
            write = self.uar.port.write
            if not (
                write(at, _LOW.pack(w0, w1, w2))
                and write(at + 16, _HIGH.pack(w4, w5, w6, w7))
                and write(at + 12, U32.pack(w3))
            ):
                return False
        self.room -= 1
        tail += 1
        if tail == self.size:
            tail = 0
            self.phase ^= CQE_PHASE
        self.tail = tail
        self.regs.set(CQ_TAIL, tail)
        return True

    def read(self, index: int) -> bytes | None:
        """The bytes of one entry, or ``None`` where the ring's memory is gone."""
        if self.view is not None:
            return bytes(self.view[index << CQE_SHIFT : (index + 1) << CQE_SHIFT])
        entry = bytearray(CQE_BYTES)
        return bytes(entry) if self.uar.port.read(self.base + (index << CQE_SHIFT), entry) else None


def reachable(uar: Uar, base: int, length: int, writable: bool) -> bool:
    """Whether memory can be used: as one view, or as far as reading both ends through the DMA port shows."""
    if base + length > 1 << 64:
        return False
    view = uar.port.views(base, length)
    if view is not None:
        return not (writable and view.readonly)
    covers = getattr(uar.port, "covers", None)
    if covers is not None:  # a port that reaches more than its program may
        return bool(covers(base, length, writable))
    byte = bytearray(1)
    return uar.port.read(base, byte) and uar.port.read(base + length - 1, byte)


def writable_view(uar: Uar, base: int, length: int) -> memoryview | None:
    """The memory as a view, if it is in reach as one."""
    view = uar.port.views(base, length)
    return None if view is None or view.readonly else view
