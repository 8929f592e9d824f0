"""The in-flight budget page of a device, shared by the NIC process and all programs with slots of the device.

A header is followed by :data:`ENTRIES` entries: the NIC's own, and one for each of some peers. Each entry has a share
for each of :data:`SLOTS` slots; slot 0 is the NIC process. A slot stores to its own shares only, so no word has two
writers, and the NIC process clears the shares of a slot that dies. A peer's record (:data:`rnic.state.inflight.PEER`)
has the number of its entry, which the NIC process assigns: the page holds no addresses.

A program that maps the page may write anything there. Readers use its values only as numbers of packets. A bad value
makes the reader send less, but never less than a few packets per round trip, or as much as without the page. Only
``slots`` is used as an index, and readers bound it.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.layout import Layout, word

_SOURCE: Final = "design.md, Many at once"

SLOTS: Final = 256
"""Most slots of a device: the NIC process and the programs that share its port."""
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
        word("slots", 0, "highest slot number in use, plus 1", "DeviceBudget"),
        word("limit", 4, "packets that the whole NIC may have in flight", "DeviceBudget"),
    ),
)
SHARE: Final = Layout(
    "share",
    16,
    "little",
    _SOURCE,
    (
        word("held", 0, "packets in flight or granted to turns", "the slot"),
        word("limit", 4, "packets that may be in flight, as learned by this slot", "the slot"),
        word("waits", 8, "1 while queue pairs wait for room", "the slot"),
    ),
)
BYTES: Final = BUDGET.size + ENTRIES * SLOTS * SHARE.size
"""Size of the page."""


def share_at(entry: int, slot: int) -> int:
    """Return the offset of a slot's share of an entry in the page."""
    return BUDGET.size + (entry * SLOTS + slot) * SHARE.size
