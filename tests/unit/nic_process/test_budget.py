"""The page of a device's budget as the NIC process keeps it: entries, slots that come and go, what is put right."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from rnic.state.budget import BUDGET, BYTES, ENTRIES, NIC_ENTRY, SHARE, SLOTS, share_at

if sys.platform != "linux":
    pytest.skip("kernel bypass is Linux's", allow_module_level=True)

from rnic.nic_process.budget import SLOT_LIMITS, DeviceBudget

OWN, PORT = bytes(4), 4791
LIMIT = SLOT_LIMITS * 500


def peer(number: int) -> bytes:
    return number.to_bytes(4, "big")


@pytest.fixture
def budget() -> Iterator[DeviceBudget]:
    made = DeviceBudget(500, (OWN, PORT))
    yield made
    made.close()


def head(budget: DeviceBudget) -> dict[str, int]:
    return BUDGET.unpack(budget.page[:])


def share(budget: DeviceBudget, entry: int, slot: int) -> int:
    return SHARE.unpack(budget.page[:], share_at(entry, slot))["held"]


def test_the_head_says_how_many_slots_there_are(budget: DeviceBudget) -> None:
    budget.add_slot(0)
    assert head(budget) == {"slots": 1, "limit": LIMIT}
    budget.add_slot(7)
    budget.add_slot(3)
    assert head(budget)["slots"] == 8
    budget.remove_slot(7)
    assert head(budget)["slots"] == 4


def test_an_entry_is_a_peers_as_long_as_a_slot_has_it(budget: DeviceBudget) -> None:
    first = budget.enter(peer(1), PORT)
    assert budget.enter(peer(1), PORT) == first
    others = {budget.enter(peer(number), PORT) for number in range(2, ENTRIES)}
    assert others | {first} == set(range(1, ENTRIES))
    assert budget.enter(peer(ENTRIES), PORT) == NIC_ENTRY, "there are no more"
    budget.leave(peer(ENTRIES), PORT)  # who has none leaves nothing
    budget.leave(peer(1), PORT)
    assert budget.enter(peer(ENTRIES), PORT) == NIC_ENTRY
    budget.leave(peer(1), PORT)
    budget.page[share_at(first, 2) : share_at(first, 2) + 4] = b"\5\0\0\0"
    assert budget.enter(peer(1), PORT + 1) == first
    assert share(budget, first, 2) == 0, "the next finds nothing there"


def test_the_device_itself_is_no_peer(budget: DeviceBudget) -> None:
    assert budget.enter(OWN, PORT) == NIC_ENTRY
    budget.leave(OWN, PORT)
    assert budget.enter(OWN, PORT + 1) != NIC_ENTRY
    assert budget.view()["peers"] == 1


def test_who_has_gone_has_nothing_in_flight(budget: DeviceBudget) -> None:
    nic, one, other = (budget.add_slot(slot) for slot in range(3))
    entry = budget.enter(peer(1), PORT)
    for each in (nic, one, other):
        for where in (NIC_ENTRY, entry):
            each.show(where, 20, 100, True)
    assert budget.view() == {"limit": LIMIT, "held": 60, "peers": 1}
    budget.remove_slot(1)
    assert [share(budget, where, slot) for where in (NIC_ENTRY, entry) for slot in range(3)] == [20, 0, 20] * 2
    assert budget.view()["held"] == 40


def test_what_nobody_stores_is_put_right(budget: DeviceBudget) -> None:
    """What a slot's peers have is the slot's own to put right; all else is nothing."""
    for slot in (0, 1, 3):
        budget.add_slot(slot)
    mine, theirs = budget.enter(peer(1), PORT), budget.enter(peer(2), PORT)
    budget.page[:] = b"\xff" * BYTES
    budget.repair({0: (), 1: (mine,), 3: (mine, theirs)})
    assert head(budget) == {"slots": 4, "limit": LIMIT}
    found = {(entry, slot) for entry in (NIC_ENTRY, mine, theirs) for slot in range(4) if share(budget, entry, slot)}
    assert found == {(NIC_ENTRY, 0), (NIC_ENTRY, 1), (NIC_ENTRY, 3), (mine, 1), (mine, 3), (theirs, 3)}


def test_nobody_can_take_the_page_away(budget: DeviceBudget) -> None:
    assert SLOTS == 256
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(budget.memfd.number, 0)
