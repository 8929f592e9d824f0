"""Completion queues: entries, arming, overflow, resizing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rnic.context.cqc import CQ_ARMED, CQ_STAMPED, CQC
from rnic.device.entry_ring import QUEUE_ERROR, EntryRing
from rnic.device.eq import EventQueue
from rnic.device.uar import Uar
from rnic.mem.order import fence
from rnic.rings.cqe import CQE_SHIFT, CQE_SOLICITED
from rnic.rings.queue_block import (
    ARM_NEXT,
    ARM_SOLICITED,
    CQ_DOORBELL,
    CQ_HEAD,
    CQ_TAIL,
    QUEUE_STATE,
)
from rnic.rings.ring import waiting
from rnic.spec.events import COMP

if TYPE_CHECKING:
    from rnic.context.cache import CqKey
    from rnic.mem.table import MemoryTable


class CompletionQueue(EntryRing):
    """One CQ; implements :class:`~rnic.transport.host.CompletionSink`.

    The arm register is read after the entry is stored, so software that arms, polls and then sleeps misses no entry.
    ``users`` counts the work queues that complete here.

    Args:
        key: its record, with key data and ring index.
        memory: the device's memory table, for a ring with a key.
        eqs: the device's EQs by number.
        overflowed: called once, when an entry does not fit the ring (IBA chapter 11); the CQ accepts no more entries.
        clock: the NIC's time in nanoseconds, for timestamps.
    """

    __slots__ = ("_clock", "_eqs", "_overflowed", "key", "users")

    key: CqKey

    def __init__(
        self,
        number: int,
        uar: Uar,
        key: CqKey,
        memory: MemoryTable,
        eqs: Mapping[int, EventQueue],
        overflowed: Callable[[CompletionQueue], None],
        clock: Callable[[], int],
    ) -> None:
        super().__init__(number, uar, key, memory)
        self.users = 0
        key.last_notified = 0
        key.solicited_index = 0
        key.due = 0
        key.notified = 0
        self._eqs = eqs
        self._overflowed = overflowed
        self._clock = clock

    @property
    def eq(self) -> EventQueue | None:
        """EQ of its completion events."""
        return self._eqs.get(self.key.comp_eqn)

    def complete(
        self,
        index: int,
        status: int,
        vendor_err: int,
        length: int,
        word3: int,
        wqe_id: int,
        requested: int,
        qpn: int,
        imm: int,
    ) -> bool:
        """Write one entry; raise a completion event if the CQ is armed for it. Return false if the entry is lost."""
        key = self.key
        if key.failed:
            return False
        word1 = status | vendor_err << 8
        if key.flags & CQ_STAMPED:
            now_ns = self._clock()
            word1 |= (now_ns >> 32 & 0xFFFF) << 16
            requested = now_ns & 0xFFFF_FFFF
        if not self.push(index, word1, length, word3, wqe_id, requested, qpn, imm):
            self.fail()
            return False
        regs = self.regs
        if word3 & CQE_SOLICITED:
            key.solicited_index = key.tail
        fence()  # software arms, then polls: at least one side sees the other's store
        arm = regs.get(CQ_DOORBELL)
        # an entry in error counts as solicited (IBA chapter 11, completion notification)
        if arm and (arm & ARM_NEXT or (arm & ARM_SOLICITED and (word3 & CQE_SOLICITED or status))):
            key.notified = 1
            self.notify()
        return True

    @property
    def notified(self) -> bool:
        """True if it was armed when an entry arrived: its owner sleeps on completion events."""
        return bool(self.key.notified)

    def fail(self) -> None:
        """Accept no more entries and report the failure: the ring is full, or the context is gone."""
        if not self.key.failed:
            self.key.failed = 1
            self.regs.set(QUEUE_STATE, QUEUE_ERROR)
            self._overflowed(self)

    def notify(self) -> None:
        """Disarm and raise the completion event. If the EQ is full, the CQ stays armed, and the next entry tries again.

        Disarm first: software that has seen the event may arm again at once. It may arm at any time, so its value must
        never be written back.
        """
        eq = self.eq
        if eq is not None and eq.ready:
            self.regs.set(CQ_DOORBELL, 0)
        if eq is not None and eq.report(COMP, self.number):
            self.key.last_notified = self.key.tail
            self.key.due = 0
        else:
            self.key.due = int(eq is not None and eq.stalled)

    def catch_up(self) -> None:
        """Raise the completion event that did not fit its EQ before."""
        if self.key.due and self.regs.get(CQ_DOORBELL):
            self.notify()

    def live(self) -> dict[str, int]:
        """Return the CQC fields that the NIC and software change: indices, and the armed bit in ``flags``."""
        key = self.key
        armed = CQ_ARMED if self.regs.get(CQ_DOORBELL) else 0
        return {
            "flags": key.flags & ~CQ_ARMED | armed,
            "last_notified_index": key.last_notified,
            "solicit_producer_index": key.solicited_index,
            "consumer_index": self.regs.get(CQ_HEAD),
            "producer_index": key.tail,
        }

    def image(self) -> bytes:
        """Return the current CQC."""
        return CQC.pack(self.key.values() | self.live())

    def unread(self) -> int | None:
        """Return the number of unread entries; ``None`` if CQ_HEAD is not a valid index."""
        head = self.regs.get(CQ_HEAD)
        return waiting(head, self.tail, self.size) if head < self.size else None

    def unread_entries(self) -> list[bytes] | None:
        """Return the bytes of unread entries, oldest first; ``None`` if they cannot be read."""
        count = self.unread()
        if count is None:
            return None
        entries = []
        for place in range(self.tail - count, self.tail):
            entry = self.read(place & (self.size - 1))
            if entry is None:
                return None
            entries.append(entry)
        return entries

    def resize(self, entries: list[bytes]) -> bool:
        """Switch to the ring in the context, which starts with ``entries``. Return false if a store fails.

        Head and tail start again: CQ_HEAD is 0 and CQ_TAIL the number of entries.
        """
        base, size = self.base, self.size
        view = self.port.views(base, size << CQE_SHIFT)
        image = b"".join(_with_phase(entry) for entry in entries)
        image += bytes((size << CQE_SHIFT) - len(image))
        if view is not None and not view.readonly:
            view[:] = image
        elif not self.port.write(base, image):
            return False
        self.begin(len(entries))
        self.place()
        self.regs.set(CQ_HEAD, 0)
        self.regs.set(CQ_TAIL, len(entries))
        return True


def _with_phase(entry: bytes) -> bytes:
    """Return the entry with phase 1, the phase of the first pass over a ring."""
    return entry[:15] + bytes((entry[15] | 0x80,)) + entry[16:]
