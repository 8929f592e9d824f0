"""Completion queues: entries, arming, overflow, resizing."""

from __future__ import annotations

from collections.abc import Callable

from rnic.context.cqc import CQ_ARMED, CQC, CQC_BYTES
from rnic.device.entry_ring import QUEUE_ERROR, EntryRing, writable_view
from rnic.device.eq import EventQueue
from rnic.device.uar import Uar
from rnic.rings.cqe import CQE_PHASE, CQE_SHIFT, CQE_SOLICITED
from rnic.rings.queue_block import (
    ARM_NEXT,
    ARM_SOLICITED,
    CQ_DOORBELL,
    CQ_HEAD,
    CQ_TAIL,
    QUEUE_STATE,
)
from rnic.spec.events import COMP


class CompletionQueue(EntryRing):
    """One CQ, the transport's :class:`~rnic.transport.host.CompletionSink`.

    The arm register is read after the entry is stored, so software that arms, then looks, then sleeps misses
    nothing. ``users`` counts the work queues that complete here.

    Args:
        overflowed: called once, when an entry finds the ring full (IBA chapter 11); the CQ takes no more then.
        context: the CQC that software wrote.
    """

    __slots__ = ("_overflowed", "context", "eq", "failed", "last_notified", "pd", "solicited_index", "users")

    def __init__(
        self,
        number: int,
        uar: Uar,
        block: int,
        base: int,
        size: int,
        eq: EventQueue,
        overflowed: Callable[[CompletionQueue], None],
        context: bytes = bytes(CQC_BYTES),
    ) -> None:
        super().__init__(number, uar, block, base, size)
        self.eq = eq
        self.users = 0
        self.failed = False
        self.last_notified = 0
        self.solicited_index = 0
        self._overflowed = overflowed
        self.context = context

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
        """Write one entry, false where it is lost; raise a completion event if the CQ is armed for such an entry."""
        if self.failed:
            return False
        if not self.push(index, status | vendor_err << 8, length, word3, wqe_id, requested, qpn, imm):
            self.fail()
            return False
        regs = self.regs
        if word3 & CQE_SOLICITED:
            self.solicited_index = self.tail
        arm = regs.words[regs.at + CQ_DOORBELL >> 2]
        # An entry in error counts as solicited (IBA chapter 11, completion notification).
        if arm and (arm & ARM_NEXT or (arm & ARM_SOLICITED and (word3 & CQE_SOLICITED or status))):
            self._notify()
        return True

    def fail(self) -> None:
        """The ring is full, or the context is gone: take no more entries, and tell."""
        if not self.failed:
            self.failed = True
            self.regs.set(QUEUE_STATE, QUEUE_ERROR)
            self._overflowed(self)

    def _notify(self) -> None:
        """Disarm and raise the completion event. With a full EQ the CQ stays armed: the next entry tries again.

        Disarming comes first: software that has seen the event may arm again at once.
        """
        armed = self.regs.get(CQ_DOORBELL)
        self.regs.set(CQ_DOORBELL, 0)
        if self.eq.report(COMP, self.number):
            self.last_notified = self.tail
        else:
            self.regs.set(CQ_DOORBELL, armed)

    def live(self) -> dict[str, int]:
        """What the NIC and software change in the CQC: ring, indices, and in ``flags`` whether it is armed."""
        armed = CQ_ARMED if self.regs.get(CQ_DOORBELL) else 0
        return {
            "flags": CQC.get(self.context, "flags") & ~CQ_ARMED | armed,
            "start": self.base,
            "logsize": self.size.bit_length() - 1,
            "last_notified_index": self.last_notified,
            "solicit_producer_index": self.solicited_index,
            "consumer_index": self.regs.get(CQ_HEAD),
            "producer_index": self.tail,
        }

    def image(self) -> bytes:
        """The CQC as it is now."""
        return CQC.pack(CQC.unpack(self.context) | self.live())

    def unread(self) -> int | None:
        """Entries that software has not taken; ``None`` while CQ_HEAD is no index of the ring."""
        head = self.regs.get(CQ_HEAD)
        return (self.tail - head) & (self.size - 1) if head < self.size else None

    def unread_entries(self) -> list[bytes] | None:
        """Their bytes, oldest first; ``None`` where they cannot be read."""
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

    def resize(self, base: int, size: int, entries: list[bytes]) -> bool:
        """Go on in another ring that begins with ``entries``, fewer than ``size``; false if it refuses a store.

        Head and tail start again: CQ_HEAD is 0 and CQ_TAIL the number of entries.
        """
        view = writable_view(self.uar, base, size << CQE_SHIFT)
        image = b"".join(_with_phase(entry) for entry in entries)
        image += bytes((size << CQE_SHIFT) - len(image))
        if view is not None:
            view[:] = image
        elif not self.uar.port.write(base, image):
            return False
        self.base, self.size = base, size
        self.use(view)
        self.tail = len(entries)
        self.phase = CQE_PHASE
        self.room = size - 1 - self.tail
        self.regs.set(CQ_HEAD, 0)
        self.regs.set(CQ_TAIL, self.tail)
        self.mirror()
        return True


def _with_phase(entry: bytes) -> bytes:
    """The entry with phase 1, which the first pass over a ring has."""
    return entry[:15] + bytes((entry[15] | 0x80,)) + entry[16:]
