"""One slot's account in the device's in-flight budget page (:mod:`rnic.state.budget`), reference implementation.

Each slot (a program's, or the NIC process's) learns a peer's limit for itself (:mod:`rnic.transport.inflight`), and
publishes here its packets in flight and the learned limit. Together, the slots have no more in flight than the largest
learned limit. While other slots wait, each keeps to its share, so that packets it releases make room for them; a slot
without waiting queue pairs leaves its unused share to the others.

Packets from one slot of the device to another count only in the NIC's account: each slot has its own receive buffer,
like a peer.

A slot may always have :data:`LEAST` packets in flight, whatever the page says: it notices free room only when their
ACKs arrive, since no process wakes another for that.
"""

from __future__ import annotations

import mmap
from typing import Final

from rnic.mem.order import load32, store32
from rnic.state.budget import BUDGET, BYTES, ENTRIES, NIC_ENTRY, SHARE, SLOTS, share_at

LEAST: Final = 4
"""Packets that a slot may always have in flight to a peer, and in total."""

_SLOTS, _LIMIT = BUDGET["slots"].byte, BUDGET["limit"].byte
_HELD, _LEARNED, _WAITS = (SHARE[name].byte for name in ("held", "limit", "waits"))
_WORD = (1 << 32) - 1
_NOTHING = bytes(SHARE.size)


class Budget:
    """One slot's account: limits the slot, and publishes its use to other slots.

    Args:
        page: the budget page.
        slot: number of the slot, 0 to ``SLOTS - 1``.

    Raises:
        ValueError: the page is too short, or the slot number is out of range.
    """

    __slots__ = ("page", "slot")

    def __init__(self, page: memoryview | mmap.mmap, slot: int) -> None:
        if len(page) < BYTES or not 0 <= slot < SLOTS:
            raise ValueError(f"slot {slot} of {SLOTS}, in a page of {len(page)} bytes: there have to be {BYTES}")
        self.page = page
        self.slot = slot

    def nic_limit(self, own: int) -> int:
        """Return the number of packets that this slot may have in flight in total, given the limit ``own`` of its
        account."""
        return self._left(self._others(NIC_ENTRY), own, own, max(load32(self.page, _LIMIT), LEAST))

    def limit(self, entry: int, own: int, most: int) -> int:
        """Return the number of packets that this slot may have in flight to the peer of an entry.

        Args:
            entry: number of the peer's entry; for an unknown entry, ``own`` is returned.
            own: packets that the slot's own account allows.
            most: upper bound of every account.
        """
        if entry >= ENTRIES:
            return own
        others = self._others(entry)
        return self._left(others, own, most, max([own, *(min(learned, most) for _, learned, _ in others)]))

    @staticmethod
    def _left(others: list[tuple[int, int, int]], own: int, most: int, pool: int) -> int:
        """Return the part of a pool of packets that other slots leave."""
        part = pool // (1 + len(others))
        left = pool - sum(max(held, min(learned, most, part) if waits else 0) for held, learned, waits in others)
        return min(own, max(left, LEAST))

    def crowded(self) -> bool:
        """True if other slots have packets in flight, or wait for room."""
        return bool(self._others(NIC_ENTRY))

    def _others(self, entry: int) -> list[tuple[int, int, int]]:
        """Return packets held, learned limit and waiting flag of each other slot with packets in flight to an entry or
        waiting."""
        page, seen = self.page, []
        for slot in range(min(load32(page, _SLOTS), SLOTS)):
            at = share_at(entry, slot)
            if slot != self.slot:
                held, waits = load32(page, at + _HELD), load32(page, at + _WAITS)
                if held or waits:
                    seen.append((held, load32(page, at + _LEARNED), waits))
        return seen

    def show(self, entry: int, held: int, learned: int, waits: bool) -> None:
        """Publish this slot's packets in flight to an entry; ignore an unknown entry.

        Unchanged values are not stored again, since other cores read these cache lines.
        """
        if entry < ENTRIES:
            at = share_at(entry, self.slot)
            for offset, value in ((_HELD, held), (_LEARNED, learned), (_WAITS, waits)):
                if load32(self.page, at + offset) != value & _WORD:
                    store32(self.page, at + offset, value & _WORD)

    def clear(self) -> None:
        """Free the slot: clear its share of every entry."""
        for entry in range(ENTRIES):
            at = share_at(entry, self.slot)
            if self.page[at : at + SHARE.size] != _NOTHING:  # most entries are empty already
                self.show(entry, 0, 0, False)


__all__ = ["LEAST", "Budget"]
