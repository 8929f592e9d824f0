"""The completion queue of a script."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

from rnic.context.cache import CqKey
from rnic.device.cq import CompletionQueue
from rnic.device.uar import Doorbells, Uar
from rnic.mem.space import SimAddressSpace
from rnic.mem.table import MemoryTable
from rnic.rings.cqe import CQ_ENTRY, CQE_BYTES
from rnic.rings.queue_block import BLOCK_BYTES, CQ_DOORBELL, CQ_HEAD
from rnic.spec.status import SYNDROME_NAMES

LOG_ENTRIES = 7
FULL = 1 << 20
"""``room`` of a queue that nothing limits."""


class Queue:
    """A completion queue in memory: a device's own, and software that reads it.

    ``room`` is how many entries it takes at most until the next :meth:`take`.
    """

    def __init__(self, memory: MemoryTable) -> None:
        space = SimAddressSpace()
        size = CQE_BYTES << LOG_ENTRIES
        self.ring = bytearray(size)
        self.key = CqKey()
        self.key.start, self.key.logsize, self.key.usrpage = space.map(self.ring).va, LOG_ENTRIES, 40
        self.uar = Uar(space, Doorbells(), 48)
        self.queue = CompletionQueue(1, self.uar, self.key, memory, {}, lambda cq: None, lambda: 0)
        self.seen = 0
        self._room = FULL

    def complete(self, *entry: int) -> bool:
        """Take one entry; false where it is lost."""
        if self.queue.failed and self.room:
            self.key.failed = 0  # the scripts' queue takes entries again as soon as there is room
        return self.queue.complete(*entry)

    @property
    def room(self) -> int:
        """Entries that it takes."""
        return self._room

    @room.setter
    def room(self, room: int) -> None:
        self._room = room
        self.key.room = 0  # software took room back, as nobody else does: what the device knew of it is wrong
        self._limit()

    @property
    def notified(self) -> bool:
        """Whether it was armed for an entry that came."""
        return self.queue.notified

    @notified.setter
    def notified(self, notified: bool) -> None:
        self.key.notified = notified

    def _limit(self) -> None:
        size = 1 << LOG_ENTRIES
        head = self.seen if self._room >= FULL else self.key.tail + 1 + max(0, self._room - len(self.entries))
        self.queue.regs.set(CQ_HEAD, head % size)

    @property
    def entries(self) -> list[Any]:
        """What came since the last :meth:`take`."""
        found = []
        size = 1 << LOG_ENTRIES
        for place in range(self.seen, self.seen + (self.key.tail - self.seen) % size):
            entry = CQ_ENTRY.unpack(self.ring, place % size * CQE_BYTES)
            word3 = int.from_bytes(self.ring[place % size * CQE_BYTES + 12 :][:4], "little")
            assert word3 >> 31 == 1 - place // size % 2, "the phase bit is that of the lap"
            word3 &= 0x7FFF_FFFF
            found.append(
                SimpleNamespace(
                    index=entry["index"],
                    status=SYNDROME_NAMES[entry["status"]],
                    vendor=entry["vendor_err"],
                    length=entry["bytes"],
                    word3=word3,
                    wqe_id=entry["wqe_id"],
                    requested=entry["requested"],
                    qpn=entry["qpn"],
                    imm=entry["imm"],
                )
            )
        return found

    def take(self) -> list[str]:
        """Statuses since the last call."""
        entries = self.entries
        self.last = entries[-1] if entries else None
        self.seen += len(entries)
        self._limit()
        return [entry.status for entry in entries]

    def arm(self, how: int) -> None:
        """Ask for an event, as ``ARM_*`` says."""
        self.queue.regs.set(CQ_DOORBELL, how)

    def save(self) -> tuple[bytes, ...]:
        """All that entries change."""
        at = self.queue.regs.at
        return bytes(self.ring), bytes(self.key), bytes(self.uar.buf[at : at + BLOCK_BYTES])

    def put_back(self, saved: tuple[bytes, ...]) -> None:
        """As it was when it was saved."""
        at = self.queue.regs.at
        self.ring[:] = saved[0]
        ctypes.memmove(ctypes.addressof(self.key), saved[1], len(saved[1]))
        self.uar.buf[at : at + BLOCK_BYTES] = saved[2]
