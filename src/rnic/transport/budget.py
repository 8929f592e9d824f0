"""One slot's account in the device's in-flight budget page (:mod:`rnic.state.budget`): the reference.

Each slot, a program's or the NIC process, learns for itself what a peer takes (:mod:`rnic.transport.inflight`), and
shows here what it has in flight and has learned. All together have no more in flight than the one among them that has
learned the most may: a later one finds what the others leave. While others wait, each keeps to its part, so what it
gives back is theirs; a slot whose queue pairs do not wait leaves the rest to the others.

Packets from one slot of the device to another are on no account there but the NIC's: each slot has a receive buffer of
its own, as each peer has.

No slot is kept below :data:`LEAST` packets in flight, whatever stands in the page: their ACKs are what tells a slot
that there is room again, since no process wakes another for that.
"""

from __future__ import annotations

import mmap
from typing import Final

from rnic.mem.order import load32, store32
from rnic.state.budget import BUDGET, BYTES, ENTRIES, NIC_ENTRY, SHARE, SLOTS, share_at

LEAST: Final = 4
"""Packets that a slot may have in flight to a peer, and in all, whatever others have."""

_SLOTS, _LIMIT = BUDGET["slots"].byte, BUDGET["limit"].byte
_HELD, _LEARNED, _WAITS = (SHARE[name].byte for name in ("held", "limit", "waits"))
_WORD = (1 << 32) - 1
_NOTHING = bytes(SHARE.size)


class Budget:
    """One slot's account: it limits the slot, and shows the other slots what this one uses.

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
        """Return the number of packets that this slot may have in flight in all, if its own account says ``own``."""
        return self._left(self._others(NIC_ENTRY), own, own, max(load32(self.page, _LIMIT), LEAST))

    def limit(self, entry: int, own: int, most: int) -> int:
        """Return the number of packets that this slot may have in flight to the peer of an entry.

        Args:
            entry: number of the peer's entry; an unknown entry leaves ``own``.
            own: packets that the slot's own account allows.
            most: upper bound of every account.
        """
        if entry >= ENTRIES:
            return own
        others = self._others(entry)
        return self._left(others, own, most, max([own, *(min(learned, most) for _, learned, _ in others)]))

    @staticmethod
    def _left(others: list[tuple[int, int, int]], own: int, most: int, pool: int) -> int:
        """Return the packets of a pool that the others leave."""
        part = pool // (1 + len(others))
        left = pool - sum(max(held, min(learned, most, part) if waits else 0) for held, learned, waits in others)
        return min(own, max(left, LEAST))

    def crowded(self) -> bool:
        """True if other slots have packets in flight, or wait for room."""
        return bool(self._others(NIC_ENTRY))

    def _others(self, entry: int) -> list[tuple[int, int, int]]:
        """Return held, learned and waiting of each other slot that has packets in flight to an entry, or waits."""
        page, seen = self.page, []
        for slot in range(min(load32(page, _SLOTS), SLOTS)):
            at = share_at(entry, slot)
            if slot != self.slot:
                held, waits = load32(page, at + _HELD), load32(page, at + _WAITS)
                if held or waits:
                    seen.append((held, load32(page, at + _LEARNED), waits))
        return seen

    def show(self, entry: int, held: int, learned: int, waits: bool) -> None:
        """Publish what this slot has in flight to an entry; do nothing for an unknown entry.

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
