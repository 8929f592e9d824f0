"""One slot's hold of the page of what the whole device has in flight (:mod:`rnic.state.budget`): the reference.

Each slot, a program's or the NIC process, learns for itself what a peer takes (:mod:`rnic.transport.inflight`), and
shows here what it has in flight and has learned. All together have no more in flight than the one among them that has
learned the most may: a later one finds what the others leave. While others wait, each keeps to its part, so what it
gives back is theirs; a slot whose queue pairs do not wait leaves the rest to the others.

What goes from one slot to another of the device is nobody's account there but the NIC's: each slot has a receive buffer
of its own, as each peer has.

Nobody is kept below :data:`LEAST` packets in flight, whatever stands in the page: their ACKs are what tells a slot that
there is room again, since no process wakes another for that.
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
    """What a slot asks, and shows to the others.

    Args:
        page: the page.
        slot: whose hold it is, 0 to ``SLOTS - 1``.

    Raises:
        ValueError: the page is too short, or there is no such slot.
    """

    __slots__ = ("page", "slot")

    def __init__(self, page: memoryview | mmap.mmap, slot: int) -> None:
        if len(page) < BYTES or not 0 <= slot < SLOTS:
            raise ValueError(f"slot {slot} of {SLOTS}, in a page of {len(page)} bytes: there have to be {BYTES}")
        self.page = page
        self.slot = slot

    def nic_limit(self, own: int) -> int:
        """Packets that this slot may have in flight in all, if its own account says ``own``."""
        return self._left(self._others(NIC_ENTRY), own, own, max(load32(self.page, _LIMIT), LEAST))

    def limit(self, entry: int, own: int, most: int) -> int:
        """Packets that this slot may have in flight of an entry.

        Args:
            entry: which; none that there is leaves ``own``.
            own: as many as its own account allows.
            most: what no account allows more of.
        """
        if entry >= ENTRIES:
            return own
        others = self._others(entry)
        return self._left(others, own, most, max([own, *(min(learned, most) for _, learned, _ in others)]))

    @staticmethod
    def _left(others: list[tuple[int, int, int]], own: int, most: int, pool: int) -> int:
        """What others leave of a pool."""
        part = pool // (1 + len(others))
        left = pool - sum(max(held, min(learned, most, part) if waits else 0) for held, learned, waits in others)
        return min(own, max(left, LEAST))

    def crowded(self) -> bool:
        """Whether other slots have packets in flight, or wait for room."""
        return bool(self._others(NIC_ENTRY))

    def _others(self, entry: int) -> list[tuple[int, int, int]]:
        """The other slots' shares of an entry that hold something, or wait."""
        page, seen = self.page, []
        for slot in range(min(load32(page, _SLOTS), SLOTS)):
            at = share_at(entry, slot)
            if slot != self.slot:
                held, waits = load32(page, at + _HELD), load32(page, at + _WAITS)
                if held or waits:
                    seen.append((held, load32(page, at + _LEARNED), waits))
        return seen

    def show(self, entry: int, held: int, learned: int, waits: bool) -> None:
        """What this slot has of an entry; one that there is not is nobody's.

        What stands there already is not stored again, since others look there.
        """
        if entry < ENTRIES:
            at = share_at(entry, self.slot)
            for offset, value in ((_HELD, held), (_LEARNED, learned), (_WAITS, waits)):
                if load32(self.page, at + offset) != value & _WORD:
                    store32(self.page, at + offset, value & _WORD)

    def clear(self) -> None:
        """The slot is nobody's: it has nothing."""
        for entry in range(ENTRIES):
            at = share_at(entry, self.slot)
            if self.page[at : at + SHARE.size] != _NOTHING:  # of most peers it had nothing
                self.show(entry, 0, 0, False)


__all__ = ["LEAST", "Budget"]
