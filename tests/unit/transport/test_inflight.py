"""The budget of what is in flight: what NIC and peers take, who waits, and what a peer's limit learns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rnic.state.arena import Arena
from rnic.state.inflight import INFLIGHT, LINE, PEER
from rnic.state.queue_pair import QP
from rnic.state.record import place
from rnic.transport.inflight import CROWDED, FIRST, LEAST, LOSSY, OVERTAKE, QUANTUM, QUEUE_NS, STEP, Inflight, Peer
from rnic.wire.flow import Flow

ME = bytes((10, 0, 0, 1))
MS = 1_000_000
MANY = LEAST + 1
"""Packets that do not go past those who wait."""


def flow(number: int, port: int = 4791) -> Flow:
    return Flow(ME, bytes((10, 0, 1, number)), 4791, port)


def budget(limit: int, first: int = FIRST) -> Inflight:
    arena = Arena(1 << 20)
    arena.allocate_first(64)
    return Inflight(arena, limit, first)


def account(first: int, most: int) -> Peer:
    return Peer(memoryview(bytearray(64 + PEER.size)), 64, first, most)


class Asker:
    """A requester, as far as the budget knows one."""

    def __init__(self, account: Inflight, number: int = 1) -> None:
        self.account = account
        self.record = account._arena.take(QP.size, "a queue pair")
        account.add_requester(self)  # type: ignore[arg-type]
        self.peer = account.peer(flow(number))
        self.peer.users += 1
        self.parked = self.admitted = self.program = 0
        self.inflight = 0
        self.turns = 0
        self.qp = self
        self.host = SimpleNamespace(schedule=self.schedule)

    def schedule(self, qp: object) -> None:
        self.turns += 1

    def send(self, want: int) -> int:
        """Send what may be sent of ``want`` packets, or wait."""
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


def known(limit: int, *numbers: int) -> tuple[Any, ...]:
    """A budget whose peers have shown that they take all of it, and askers for them."""
    account = budget(limit, limit)
    return account, *(Asker(account, number) for number in numbers)


def test_queue_pairs_to_one_peer_share_its_account() -> None:
    account = budget(100)
    assert account.peer(flow(1)) is account.peer(Flow(ME, bytes((10, 0, 1, 1)), 9, 4791))
    assert account.peer(flow(1)) is not account.peer(flow(1, 4792))
    assert account.peer(flow(1)) is not account.peer(flow(2))


def test_the_nic_and_each_peer_are_bounded() -> None:
    account, one, other, third = known(200, 1, 2, 3)
    one.peer.limit = 40.0
    assert one.send(1000) == 40
    assert other.send(1000) == 160
    assert third.send(1000) == LEAST, "peers that do not answer must not hold up one that nothing flies to"
    assert third.send(1000) == 0
    assert account.packets == 200 + LEAST


def test_who_waits_is_given_a_turn_in_order_and_one_quantum_each() -> None:
    _, first, second, third = known(2 * QUANTUM, 1, 1, 1)
    assert first.send(2 * QUANTUM) == 2 * QUANTUM
    assert second.send(1000) == third.send(1000) == 0
    first.done(QUANTUM - 1)
    assert (second.turns, third.turns) == (0, 0)
    first.done(1)
    assert (second.turns, third.turns) == (1, 0)
    assert first.send(MANY) == 0, "what others wait for is theirs"
    assert second.send(1000) == QUANTUM
    first.done(QUANTUM)
    assert third.turns == 1


def test_what_was_promised_is_not_given_twice() -> None:
    _, first, second, third, stranger = known(2 * QUANTUM, 1, 1, 1, 2)
    first.send(2 * QUANTUM)
    second.send(MANY)
    third.send(MANY)
    first.done(2 * QUANTUM)
    assert (second.turns, third.turns) == (1, 1)
    assert stranger.send(1) == 1, "nothing flies to its peer"
    assert stranger.send(MANY) == 0
    assert second.send(MANY) == third.send(MANY) == MANY
    assert stranger.turns == 1


def test_a_turn_that_is_not_used_goes_to_the_next() -> None:
    account, first, second, third = known(2 * QUANTUM, 1, 1, 1)
    first.send(2 * QUANTUM)
    second.send(MANY)
    third.send(MANY)
    first.done(QUANTUM)
    assert (second.turns, third.turns) == (1, 0)
    account.turn_over(second)
    assert third.turns == 1


def test_few_short_messages_pass_waiting_queue_pairs_per_turn() -> None:
    account, busy, waiting, *short = known(2 * QUANTUM, *[1] * (2 + OVERTAKE))
    busy.send(2 * QUANTUM)
    assert waiting.send(1000) == 0
    assert [each.send(1) for each in short] == [1] * OVERTAKE, "beyond the limit"
    assert short[0].send(1) == 0, "enough have gone past"
    for each in short:
        each.done(1)
    assert short[1].send(1) == 0, "what flies no more went past all the same"
    busy.done(2 * QUANTUM)
    assert waiting.turns == 1
    assert waiting.send(1000) == QUANTUM
    assert waiting.send(1000) == 0
    assert (account.overtaken, short[2].send(LEAST), short[2].send(1)) == (0, LEAST, 0), "one has a little in flight"


def test_what_goes_past_the_limits_is_bounded_where_nobody_waits() -> None:
    account, busy, *short = known(2 * QUANTUM, *[1] * (3 + OVERTAKE))
    busy.send(2 * QUANTUM)
    assert [each.send(1) for each in short] == [1] * OVERTAKE + [0] * 2
    assert (account.packets, account.overtaken) == (2 * QUANTUM + OVERTAKE, 0)


@pytest.mark.parametrize("when", ["waiting", "admitted"])
def test_who_leaves_holds_nobody_up(when: str) -> None:
    account, first, second, third = known(QUANTUM, 1, 1, 1)
    first.send(QUANTUM)
    second.send(MANY)
    third.send(MANY)
    if when == "waiting":
        account.leave(second)
    first.done(QUANTUM)
    if when == "admitted":
        account.leave(second)
    assert third.turns == 1
    assert third.send(MANY) == MANY
    assert (account.promised, third.peer.promised) == (0, 0)


def test_a_peer_that_is_full_holds_up_no_other() -> None:
    _, slow, behind, other = known(300, 1, 1, 2)
    slow.peer.limit = 10.0
    slow.send(100)
    behind.send(100)
    assert other.send(100) == 100


def test_a_small_limit_is_used_whole() -> None:
    _, one, other = known(300, 1, 1)
    one.peer.limit = 5.0
    assert one.send(100) == 5
    assert other.send(100) == 0
    one.done(4)
    assert other.turns == 0
    one.done(1)
    assert other.turns == 1
    assert other.send(100) == 5


def test_everything_is_given_back_whatever_the_order() -> None:
    account, *askers = known(200, *[number % 3 for number in range(30)])
    for _ in range(50):
        for asker in askers:
            if asker.inflight:
                asker.done(asker.inflight)
            asker.send(17)
    for asker in askers:
        asker.done(asker.inflight)
        account.leave(asker)
    assert (account.packets, account.promised) == (0, 0)
    assert all(asker.peer.inflight == asker.peer.promised == 0 and not asker.peer.waiting for asker in askers)


# ----------------------------------------------------------------------------- what a limit learns


def trip(peer: Peer, rtt_ns: int, now: int) -> None:
    """A limit's worth of packets arrives."""
    peer.inflight = int(peer.limit)
    peer.measured(rtt_ns, now)
    peer.acknowledged(peer.inflight)


def test_the_window_of_an_unknown_peer_grows_by_half_each_round_trip() -> None:
    peer = account(FIRST, 366)
    seen = []
    for turn in range(9):
        seen.append(int(peer.limit))
        trip(peer, 100_000, turn * MS)
    assert seen == [16, 24, 36, 54, 81, 121, 182, 273, 366]


def test_a_limit_that_holds_nobody_back_does_not_grow() -> None:
    peer = account(FIRST, 366)
    peer.inflight = 2
    for _ in range(100):
        peer.acknowledged(2)
    assert peer.limit == FIRST


def test_a_limit_that_somebody_waits_for_grows_however_little_flies() -> None:
    peer = account(FIRST, 366)
    peer.inflight, peer.waiting = 2, 1
    peer.acknowledged(2)
    assert peer.limit == FIRST + 1


def test_growth_slows_down_when_packets_queue_and_stops_when_they_queue_long() -> None:
    peer = account(FIRST, 366)
    trip(peer, 100_000, 1)
    trip(peer, 100_000 + QUEUE_NS // 2, 2)
    before = peer.limit
    assert 0.9 * STEP < before - 24 <= STEP
    trip(peer, 101_000 + QUEUE_NS, 3)
    assert peer.limit == before


def test_a_queue_that_stands_shrinks_the_limit_and_one_long_trip_does_not() -> None:
    peer = account(300, 366)
    now = MS
    for rtt in (100_000, *[5 * MS, 5 * MS, 5 * MS, 5 * MS, 5 * MS, 5 * MS, 100_000] * 10):
        now += MS
        peer.measured(rtt, now)
    assert peer.limit == 300
    for _ in range(1 + 8):
        now += 6 * MS
        peer.measured(5 * MS, now)
    assert peer.limit == 150
    for _ in range(60):
        now += MS
        peer.measured(5 * MS, now)
    assert peer.limit == CROWDED


def test_a_path_that_became_longer_is_no_queue() -> None:
    peer = account(64, 366)
    now = MS
    for rtt in [100_000] * 20 + [10 * MS] * 60:
        now += 10 * MS
        trip(peer, rtt, now)
    assert peer.limit > 100


def test_losses_halve_once_a_round_trip_and_silence_leaves_the_least() -> None:
    peer = account(256, 366)
    peer.measured(MS, 10 * MS)
    peer.lost(20 * MS)
    peer.lost(20 * MS + 1)
    assert peer.limit == 128
    for turn in range(3, 20):
        peer.lost(10 * turn * MS)
    assert peer.limit == LOSSY
    peer.timed_out(400 * MS)
    assert peer.limit == LEAST


def test_a_limit_below_a_floor_is_not_raised_by_a_cut() -> None:
    peer = account(8, 8)
    peer.lost(MS)
    assert peer.limit == 8
    peer.timed_out(100 * MS)
    peer.lost(200 * MS)
    assert peer.limit == LEAST


def test_programs_take_turns_and_their_queue_pairs_in_order() -> None:
    _, busy, *waiting = known(2 * QUANTUM, *[1] * 7)
    for number, asker in enumerate(waiting):
        asker.program = number // 3  # three of each
    busy.send(2 * QUANTUM)
    for asker in waiting:
        assert asker.send(QUANTUM) == 0
    order = []
    last = busy
    for _ in waiting:
        last.done(QUANTUM)
        last = next(asker for asker in waiting if asker.admitted)
        order.append(waiting.index(last))
        assert last.send(1000) == QUANTUM
    assert order == [0, 3, 1, 4, 2, 5]


def test_a_turn_sends_one_quantum_while_others_wait() -> None:
    account, busy, first, second = known(4 * QUANTUM, 1, 1, 1)
    busy.send(4 * QUANTUM)
    first.send(MANY)
    second.send(MANY)
    busy.done(QUANTUM)
    assert (first.turns, second.turns) == (1, 0)
    sent = 0
    while room := account.room(first, 1000):
        first.inflight += room
        account.take(first, room)
        sent += room
    assert (sent, first.admitted, account.promised) == (QUANTUM, 0, 0)
    busy.done(QUANTUM)
    assert second.turns == 1


def test_accounts_that_somebody_uses_are_never_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.transport.inflight._MAX_PEERS", 4)
    account = budget(100)
    used = [account.peer(flow(number)) for number in range(3)]
    for peer in used:
        peer.users = 1
    for number in range(3, 60):
        account.peer(flow(number))
    assert [account.peer(flow(number)) for number in range(3)] == used


def test_the_lines_are_records_linked_by_their_places_and_given_back() -> None:
    account, one, two, three = known(64, 1, 1, 1)
    cells = account._arena.cells
    two.program = 7
    assert one.send(64) == 64
    for asker in (two, three):
        asker.program = 7
        assert asker.send(10) == 0
    one.program = 3
    assert one.send(1) == 0
    peer = PEER.unpack(account._arena.memory, one.peer.record)
    assert (peer["waiting"], peer["inflight"]) == (3, 64)
    line = LINE.unpack(bytes(account._arena.memory[peer["first_line"] : peer["first_line"] + LINE.size]))
    assert (line["program"], line["first"], line["last"]) == (7, two.record, three.record)
    assert cells[two.record // 8 + place(QP, "next_waiting")] == three.record
    assert cells[three.record // 8 + place(QP, "line")] == peer["first_line"]
    second = LINE.unpack(bytes(account._arena.memory[line["next"] : line["next"] + LINE.size]))
    assert (second["program"], second["first"], second["next"]) == (3, one.record, 0)
    for asker in (three, two, one):
        account.leave(asker)
    peer = PEER.unpack(account._arena.memory, one.peer.record)
    assert (peer["waiting"], peer["first_line"], peer["last_line"]) == (0, 0, 0)
    assert INFLIGHT.unpack(account._arena.memory, account.record)["waited_for"] == 0
    spare = INFLIGHT.unpack(account._arena.memory, account.record)["spare_line"]
    assert spare == line["next"], "the line that was left last is used again"
