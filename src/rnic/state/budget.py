"""The page of what a whole device has in flight: shared by the NIC process and all programs with slots of the device.

A header comes first. Behind it lie :data:`ENTRIES` entries, the NIC's own and one for each of some peers, and in each
of these a share for each of :data:`SLOTS` slots, 0 the NIC process. A slot stores to its own shares alone, so no two
add to one word, and one that dies leaves nothing behind but shares that the NIC process clears. Which entry is which
peer's says the peer's own record (:data:`rnic.state.inflight.PEER`), by a number that the NIC process hands out: the
page holds no addresses, and nothing that is made of them.

A program that maps the page may write anything there. What is read is a number of packets and nothing else: it makes
the reader send less, never less than a few packets a round trip, or as much as it would without the page, and is no
index except for ``slots``, which is bounded where it is read.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.layout import Layout, word

_SOURCE: Final = "design.md, Many at once"

SLOTS: Final = 256
"""Most slots of a device: the NIC process, and the programs that may share its port."""
ENTRIES: Final = 256
"""Number of entries: the NIC's, and those of peers. A peer without an entry is limited in each slot separately."""
NIC_ENTRY: Final = 0
"""Entry of the NIC as a whole; in a peer's record, 0 means that the peer has no entry."""

BUDGET: Final = Layout(
    "budget",
    64,
    "little",
    _SOURCE,
    (
        word("slots", 0, "one more than the highest number of a slot in use", "DeviceBudget"),
        word("limit", 4, "packets that the NIC as a whole may have in flight", "DeviceBudget"),
    ),
)
SHARE: Final = Layout(
    "share",
    16,
    "little",
    _SOURCE,
    (
        word("held", 0, "packets in flight, and those for which turns were given", "the slot"),
        word("limit", 4, "packets that may be in flight, as this slot has learned", "the slot"),
        word("waits", 8, "1 while queue pairs wait for room", "the slot"),
    ),
)
BYTES: Final = BUDGET.size + ENTRIES * SLOTS * SHARE.size
"""Bytes of the page."""


def share_at(entry: int, slot: int) -> int:
    """Return the offset of a slot's share of an entry in the page."""
    return BUDGET.size + (entry * SLOTS + slot) * SHARE.size
