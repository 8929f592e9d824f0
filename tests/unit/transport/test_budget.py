"""What a slot may have in flight as the page of the whole device leaves it, and what it shows there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rnic.state.arena import Arena
from rnic.state.budget import BUDGET, BYTES, ENTRIES, NIC_ENTRY, SHARE, SLOTS, share_at
from rnic.state.queue_pair import QP
from rnic.transport.budget import LEAST, Budget
from rnic.transport.inflight import Inflight
from rnic.wire.flow import Flow

ENTRY = 7
MOST = 1_000


def page(slots: int = SLOTS, limit: int = MOST) -> memoryview:
    made = memoryview(bytearray(BYTES))
    BUDGET.put(made, "slots", slots)
    BUDGET.put(made, "limit", limit)
    return made


def share(made: memoryview, slot: int, entry: int = ENTRY) -> dict[str, int]:
    return SHARE.unpack(made, share_at(entry, slot))


def test_who_is_alone_has_what_its_own_account_says() -> None:
    budget = Budget(page(), 3)
    assert [budget.limit(ENTRY, own, MOST) for own in (1, 16, 500)] == [1, 16, 500]
    budget.show(ENTRY, 400, 500, True)
    assert budget.limit(ENTRY, 500, MOST) == 500, "what it has itself is in its own account"
    assert not budget.crowded()


def test_all_together_have_what_one_may_have() -> None:
    made = page()
    one, other = Budget(made, 1), Budget(made, 2)
    one.show(ENTRY, 300, 500, False)
    assert other.limit(ENTRY, 500, MOST) == 200
    assert other.limit(ENTRY, 100, MOST) == 100, "who has learned less has less"
    other.show(ENTRY, 200, 500, False)
    assert one.limit(ENTRY, 500, MOST) == 300
    assert one.limit(ENTRY + 1, 500, MOST) == 500


def test_who_has_learned_little_finds_what_the_others_learned() -> None:
    made = page()
    one, other = Budget(made, 1), Budget(made, 2)
    one.show(ENTRY, 100, 500, False)
    assert other.limit(ENTRY, 16, MOST) == 16


def test_what_others_wait_for_is_left_to_them_up_to_their_part() -> None:
    made = page()
    one, *others = (Budget(made, slot) for slot in range(5))
    one.show(ENTRY, 500, 500, True)
    for each in others:
        each.show(ENTRY, LEAST, 500, True)
    assert one.limit(ENTRY, 500, MOST) == 500 - 4 * 100
    others[0].show(ENTRY, LEAST, 500, False)
    assert one.limit(ENTRY, 500, MOST) == 500 - 3 * 100 - LEAST, "who does not wait leaves the rest"
    others[1].show(ENTRY, LEAST, 16, True)
    assert one.limit(ENTRY, 500, MOST) == 500 - 2 * 100 - LEAST - 16, "nor does who may not have more"


def test_nobody_is_kept_below_a_little() -> None:
    made = page()
    one, other = Budget(made, 1), Budget(made, 2)
    one.show(ENTRY, 500, 500, True)
    assert (other.limit(ENTRY, 500, MOST), other.limit(ENTRY, 2, MOST)) == (LEAST, 2)


def test_the_nic_as_a_whole() -> None:
    made = page(limit=300)
    one, other = Budget(made, 1), Budget(made, 2)
    assert (one.nic_limit(500), one.nic_limit(200)) == (300, 200)
    one.show(NIC_ENTRY, 250, 500, False)
    assert (other.nic_limit(500), other.crowded(), one.crowded()) == (50, True, False)
    BUDGET.put(made, "limit", 600)
    assert (one.nic_limit(200), other.nic_limit(200)) == (200, 200), "there is room for two"
    one.show(NIC_ENTRY, 250, 200, True)
    assert other.nic_limit(400) == 350
    one.show(NIC_ENTRY, 550, 500, True)
    assert other.nic_limit(200) == 50
    BUDGET.put(made, "limit", 0)
    assert one.nic_limit(500) == LEAST


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_whatever_stands_there_is_a_number_between_a_little_and_the_own(byte: int) -> None:
    made = memoryview(bytearray(bytes([byte]) * BYTES))
    for slot in (0, SLOTS - 1):
        budget = Budget(made, slot)
        for own in (1, 16, MOST):
            assert min(LEAST, own) <= budget.limit(ENTRY, own, MOST) <= own
            assert min(LEAST, own) <= budget.nic_limit(own) <= own


@pytest.mark.parametrize("entry", [ENTRIES, ENTRIES + 1, (1 << 64) - 1])
def test_entries_that_there_are_not(entry: int) -> None:
    made = page()
    budget = Budget(made, 1)
    budget.show(entry, 5, 5, True)
    assert budget.limit(entry, 77, MOST) == 77
    assert not any(made[BUDGET.size :])


def test_slots_that_there_are_not() -> None:
    for slot in (-1, SLOTS):
        with pytest.raises(ValueError, match=f"slot {slot} of {SLOTS}"):
            Budget(page(), slot)
    with pytest.raises(ValueError, match="in a page of 100 bytes"):
        Budget(memoryview(bytearray(100)), 0)


def test_a_slot_clears_its_own_alone() -> None:
    made = page()
    one, other = Budget(made, 1), Budget(made, 2)
    for budget in (one, other):
        for entry in (NIC_ENTRY, ENTRY, ENTRIES - 1):
            budget.show(entry, 1 << 40 | 5, 6, True)
    one.clear()
    for entry in (NIC_ENTRY, ENTRY, ENTRIES - 1):
        assert share(made, 1, entry) == {"held": 0, "limit": 0, "waits": 0}
        assert share(made, 2, entry) == {"held": 5, "limit": 6, "waits": 1}


class Entries:
    """Hands out entries by the last byte of the address."""

    def __init__(self) -> None:
        self.left: list[bytes] = []

    def enter(self, address: bytes, port: int) -> int:
        return address[-1]

    def leave(self, address: bytes, port: int) -> None:
        self.left.append(address)


class Asker:
    """A requester, as far as the budget knows one."""

    def __init__(self, account: Inflight, peer: int = ENTRY) -> None:
        self.account = account
        self.record = account._arena.take(QP.size, "a queue pair")
        account.add_requester(self)  # type: ignore[arg-type]
        self.peer = account.peer(Flow(bytes(4), bytes((10, 0, 0, peer)), 1))
        self.peer.users += 1
        self.parked = self.admitted = self.program = self.inflight = self.turns = 0
        self.qp = self
        self.host = SimpleNamespace(schedule=self.schedule)

    def schedule(self, qp: object) -> None:
        self.turns += 1

    def send(self, want: int) -> int:
        requester: Any = self
        room = min(want, self.account.room(requester, want))
        if room:
            self.inflight += room
            self.account.take(requester, room)
        else:
            self.account.wait(requester)
        self.account.turn_over(requester)
        return room

    def done(self, packets: int) -> None:
        self.inflight -= packets
        self.account.release(self.peer, packets)


def slot(made: memoryview, number: int, limit: int = 100) -> tuple[Inflight, Entries]:
    arena = Arena(1 << 20)
    arena.allocate_first(64)
    account, entries = Inflight(arena, limit, limit), Entries()
    account.share(Budget(made, number), entries)
    return account, entries


def test_two_slots_to_one_peer_share_what_one_may_have() -> None:
    made = page(slots=2, limit=100)
    one, other = Asker(slot(made, 0)[0]), Asker(slot(made, 1)[0])
    assert (one.send(1_000), other.send(1_000)) == (100, LEAST)
    assert other.send(1_000) == 0
    assert (share(made, 0), share(made, 1)) == (
        {"held": 100, "limit": 100, "waits": 0},
        {"held": LEAST, "limit": 100, "waits": 1},
    )
    one.done(70)
    assert one.send(1_000) == 0, "the other waits, and has less than its half"
    other.done(LEAST)
    assert other.turns == 1
    assert other.send(50) == 50
    one.done(30)
    assert (one.turns, one.send(1_000)) == (1, 50)
    assert [share(made, at, NIC_ENTRY)["held"] for at in (0, 1)] == [50, 50]


def test_who_shares_asks_for_the_ack_that_lets_it_go_on() -> None:
    made = page(slots=2, limit=100)
    one, other = Asker(slot(made, 0)[0]), Asker(slot(made, 1)[0])
    requester: Any = one
    assert not one.account.shared(requester)
    other.send(1)
    assert one.account.shared(requester)
    other.done(1)
    assert not one.account.shared(requester)


def test_peers_of_before_have_entries_too_and_who_leaves_has_nothing_there() -> None:
    made = page(slots=2)
    arena = Arena(1 << 20)
    arena.allocate_first(64)
    account, entries = Inflight(arena, 100, 100), Entries()
    asker = Asker(account)
    asker.send(20)
    account.share(Budget(made, 1), entries)
    assert (asker.peer.entry, share(made, 1)["held"], share(made, 1, NIC_ENTRY)["held"]) == (ENTRY, 20, 20)
    made[BUDGET.size :] = bytes(BYTES - BUDGET.size)
    account.show()
    assert share(made, 1)["held"] == 20, "what somebody else cleared is put right"
    account.leave_budget()
    assert (entries.left, share(made, 1)["held"]) == ([bytes((10, 0, 0, ENTRY))], 0)
    asker.done(20)
    assert (asker.send(1_000), any(made[BUDGET.size :])) == (100, False)
