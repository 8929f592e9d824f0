"""Solving the unseen ident, and what is believed of it."""

from __future__ import annotations

import pytest

from rnic.wire.bursts import NOTHING_KNOWN, RxBurst
from rnic.wire.flow import Flow
from rnic.wire.ident import DF, Count, Ident, IdentTracker, learn, solve, solve_word
from rnic.wire.packet import build, seal

FLOW = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152)


@pytest.mark.parametrize("ident", [0, 1, 63, 255, 256, 0x8000, 0xFFFF])
@pytest.mark.parametrize("size", [0, 4, 1024, 4096])
def test_solve(ident: int, size: int) -> None:
    frame = build(0x04, dqpn=1, psn=2, payload=bytes(size))
    assert solve(seal(frame, FLOW, ident), FLOW) == ident


def test_solve_finds_idents_without_df() -> None:
    frame = build(0x04, dqpn=1, psn=2)
    packet = frame + FLOW.icrc(frame, 0x1234, 0).to_bytes(4, "little")
    assert solve(packet, FLOW) == 0x1234


@pytest.mark.parametrize("frag", [0x2000, 0x8000, 0x0001, 0x6000, 0x1000])
def test_fragments_are_corrupt(frag: int) -> None:
    frame = build(0x04, dqpn=1, psn=2)
    packet = frame + FLOW.icrc(frame, 7, frag).to_bytes(4, "little")
    assert solve(packet, FLOW) is None


def test_the_flag_that_a_sender_sets_is_solved_for() -> None:
    frame = build(0x04, dqpn=1, psn=2)
    assert solve_word(seal(frame, FLOW, 7), FLOW) == 7 | DF
    assert solve_word(frame + FLOW.icrc(frame, 7, 0).to_bytes(4, "little"), FLOW) == 7


class Sender:
    """One that gives idents to packets that all differ; what its tracker does with them."""

    def __init__(self, *idents: int, pair: Count | None = None) -> None:
        self.tracker = IdentTracker()
        self.tracker.pair = pair
        self.now = 0
        self.count = 0
        for ident in idents:
            assert self.accept(ident)

    def accept(self, ident: int, flag: int = DF) -> bool:
        return self.tracker.accept(ident & 0xFFFF | flag, self.now)

    def give(
        self, ident: int, packet: bytes = b"", flag: int = DF, known: tuple[int, int] = NOTHING_KNOWN
    ) -> tuple[Ident, list[int]]:
        """What becomes of a packet, and the idents of those that it confirms."""
        word = ident & 0xFFFF | flag
        self.count += 1
        view = memoryview(packet or b"%012dICRC" % self.count)
        if self.tracker.accept(word, self.now, known):
            return Ident.TAKE, []
        verdict, confirmed = self.tracker.confirm(word, view, self.now)
        if verdict is Ident.HOLD:
            self.tracker.hold(word, RxBurst(FLOW, view, len(view), len(view), ident), self.now)
        return verdict, [held.word & 0xFFFF for held in confirmed]


def test_the_first_ident_is_believed_and_those_around_it() -> None:
    for ident, taken in ((29_983, False), (29_984, True), (30_000, True), (30_047, True), (30_048, False)):
        assert Sender(30_000).accept(ident) == taken


def test_an_overtaken_packet_leaves_the_foremost_where_it_is() -> None:
    sender = Sender(30_000, 30_040, 30_030, 30_024)
    assert not sender.accept(30_023)
    assert sender.accept(30_087)


def test_a_counter_goes_round() -> None:
    sender = Sender(*(65_000 + step & 0xFFFF for step in range(3_000)))
    assert not sender.tracker.small
    assert not sender.accept(0)


@pytest.mark.parametrize("last", [30_000, 64, 65_530, 5, 0])
def test_no_more_than_64_are_believed_without_a_pause(last: int) -> None:
    idents = {last + step & 0xFFFF for step in range(-300, 300)} | set(range(300))
    found = 0
    for word in [ident | flag for ident in idents for flag in (0, DF)]:
        tracker = Sender(last).tracker
        found += tracker.accept(word, 31 * Count.TICK_NS)
    assert found == 64


@pytest.mark.parametrize("last", [30_000, 64, 65_530])
@pytest.mark.parametrize("bits", [0, 3 << 3, 7 << 3])
def test_no_more_than_8_are_believed_where_the_link_knows_three_bits(last: int, bits: int) -> None:
    idents = {last + step & 0xFFFF for step in range(-300, 300)} | set(range(300))
    found = 0
    for word in [ident | flag for ident in idents for flag in (0, DF)]:
        tracker = Sender(last).tracker
        found += tracker.accept(word, 31 * Count.TICK_NS, (7 << 3, bits))
    assert found == 8


def test_a_contradicting_packet_counts_only_after_a_second_one() -> None:
    """Then what the link knows is not so, for all paths between the two addresses."""
    pair = Count()
    sender, other = Sender(30_000, pair=pair), Sender(30_001, pair=pair)
    known = 7 << 3, (30_002 & 7 << 3) ^ 8
    assert sender.give(30_002, known=known) == (Ident.HOLD, [])
    assert sender.give(30_100) == (Ident.HOLD, []), "it agrees, though it is near"
    assert sender.give(30_101) == (Ident.TAKE, [30_100])
    before = pair.mixed
    assert sender.give(30_003, known=known) == (Ident.TAKE, [30_002])
    assert (before, pair.mixed) == (False, True)
    assert other.give(30_004, known=(7 << 3, (30_004 & 7 << 3) ^ 8)) == (Ident.TAKE, [])


def test_a_sender_counts_once_many_packets_have_shown_it() -> None:
    sender = Sender(30_000)
    for step in range(1, 65):
        assert not sender.tracker.counts
        assert sender.accept(30_000 + step)
    assert sender.tracker.counts
    assert not Sender(*[0] * 70).tracker.counts


def test_a_pause_lets_the_count_jump_by_its_ticks() -> None:
    count = Count()
    count.follow(30_000, 0)
    tick = Count.TICK_NS
    for pause, ahead in ((0, 47), (31 * tick, 47), (32 * tick, 48), (10**15, Count.WIDEST), (-5, 47)):
        assert count.ahead(pause) == ahead


def test_a_sender_keeps_its_flag() -> None:
    sender = Sender(30_000)
    assert sender.give(30_001, flag=0)[0] is Ident.HOLD
    assert sender.give(30_002)[0] is Ident.TAKE
    assert sender.give(30_003, flag=0) == (Ident.TAKE, [30_001])
    assert sender.give(30_004)[0] is Ident.HOLD


def test_whether_the_next_ident_can_be_guessed() -> None:
    assert not IdentTracker().small
    assert Sender(3).tracker.small
    assert not Sender(700).tracker.small
    tracker = IdentTracker()
    tracker.expect(1)
    assert tracker.small
    assert tracker.settled


def test_a_sender_of_small_idents_is_believed_no_other() -> None:
    sender = Sender(0)
    assert sender.accept(63)
    assert not sender.accept(64)


def test_ident_0_twice_in_a_row_is_not_counted() -> None:
    sender = Sender(65_530, 0)
    assert not sender.tracker.small
    assert sender.accept(0)
    assert sender.tracker.small


@pytest.mark.parametrize("step", [-47, -1, 1, 47])
def test_a_successor_confirms(step: int) -> None:
    sender = Sender(30_000)
    assert sender.give(50_000) == (Ident.HOLD, [])
    assert sender.give(50_000 + step) == (Ident.TAKE, [50_000])
    assert sender.tracker.next == max(50_001, 50_001 + step) | DF


def test_a_successor_may_come_after_a_pause() -> None:
    """As a management datagram that is sent again does: it has other bytes, and the count has jumped once more."""
    sender = Sender(30_000)
    sender.give(50_000)
    sender.now = 4_000 * Count.TICK_NS
    assert sender.give(54_016) == (Ident.TAKE, [50_000])


@pytest.mark.parametrize("step", [-48, 0, 48])
def test_who_is_no_successor_confirms_nothing(step: int) -> None:
    sender = Sender(30_000)
    sender.give(50_000)
    assert sender.give(50_000 + step) == (Ident.HOLD, [])


def test_two_small_idents_confirm_each_other_though_they_are_the_same() -> None:
    sender = Sender(30_000)
    assert sender.give(0) == (Ident.HOLD, [])
    assert sender.give(0) == (Ident.TAKE, [0])
    assert sender.tracker.settled


def test_a_repetition_with_another_ident_confirms_and_is_taken_once() -> None:
    sender = Sender(30_000)
    sender.give(50_000, b"x" * 12 + b"ICRC")
    assert sender.give(9_000, b"x" * 12 + b"icrc") == (Ident.TAKE, [])
    assert not sender.tracker.held
    assert sender.tracker.next == 9_001 | DF


def test_the_same_packet_twice_confirms_nothing() -> None:
    sender = Sender(30_000)
    sender.give(50_000, b"xxxxFxxxxxxxICRC")
    assert sender.give(50_000, b"xxxxBxxxxxxxICRC") == (Ident.DROP, [])
    assert len(sender.tracker.held) == 1
    assert sender.tracker.take_dropped() == 1
    assert sender.tracker.dropped == 0


def test_few_are_held() -> None:
    sender = Sender(30_000)
    for place in range(6):
        sender.give(40_000 + 100 * place)
    assert [held.word & 0xFFFF for held in sender.tracker.held] == [40_200, 40_300, 40_400, 40_500]
    assert sender.tracker.dropped == 2


@pytest.mark.parametrize("small", [False, True])
def test_what_is_held_is_dropped_once_many_others_were_taken(small: bool) -> None:
    sender = Sender(0 if small else 30_000)
    sender.give(50_000)
    for _ in range(64):
        if small:
            sender.tracker.expect(1)
        else:
            assert sender.accept(30_000)
    assert len(sender.tracker.held) == 1
    if small:
        sender.tracker.expect(1)
        assert sender.tracker.settled
    else:
        assert sender.accept(30_000)
    assert sender.give(50_001) == (Ident.HOLD, [])
    assert sender.tracker.dropped == 1


def test_a_packet_that_is_forgotten_confirms_nothing_by_its_bytes() -> None:
    sender = Sender(30_000)
    sender.give(50_000, b"x" * 16)
    sender.tracker.held[0].forget()
    assert not sender.tracker.held[0].burst.buf
    assert sender.give(9_000, b"x" * 16) == (Ident.HOLD, [])
    assert sender.give(50_001) == (Ident.HOLD, [])


def test_learn_says_what_was_dropped() -> None:
    flow = FLOW.reverse().reverse()
    assert learn(flow, 1) == 0
    assert flow.settled
    assert flow.idents is not None
    flow.idents.hold(50_000, RxBurst(flow, memoryview(b"x" * 16), 16, 16, 50_000), 0)
    assert learn(flow, 65) == 1


def test_paths_between_two_addresses_share_a_count() -> None:
    """As those of Linux do: what other paths have sent meanwhile is no jump."""
    pair = Count()
    paths = [Sender(30_000 + place, pair=pair) for place in range(200)]
    for turn in range(1, 5):
        for place, path in enumerate(paths):
            assert path.accept(30_000 + 200 * turn + place)
    assert pair.shared
    assert not paths[0].accept(30_802 + 48 + 200)


def test_paths_that_count_each_by_itself_are_found_out() -> None:
    """As queue pairs of cards may do; it costs one packet, which is held."""
    pair = Count()
    one, other = Sender(10_000, pair=pair), Sender(50_000, pair=pair)
    assert one.accept(10_001)
    assert other.give(50_001) == (Ident.HOLD, [])
    assert one.accept(10_002)
    assert other.give(50_002) == (Ident.TAKE, [50_001])
    assert not pair.shared
    for step in range(3, 100):
        assert one.accept(10_000 + step)
        assert other.accept(50_000 + step)


def test_a_repetition_finds_out_as_well() -> None:
    pair = Count()
    _, other = Sender(10_000, pair=pair), Sender(50_000, pair=pair)
    other.give(50_001, b"x" * 12 + b"ICRC")
    assert other.give(50_002, b"x" * 12 + b"icrc") == (Ident.TAKE, [])
    assert not pair.shared
    assert pair.last == 50_002


def test_paths_that_were_thought_to_count_alone_are_found_to_share() -> None:
    pair = Count()
    one, other = Sender(30_000, pair=pair), Sender(30_001, pair=pair)
    pair.shared = False
    for step in range(100):
        assert one.accept(30_002 + step)
    assert other.give(30_102) == (Ident.HOLD, [])
    assert one.accept(30_140)
    assert other.give(30_160) == (Ident.TAKE, [30_102]), "58 further: both fit the count of all paths"
    assert pair.shared


def test_a_first_packet_moves_no_count_that_has_another_ident() -> None:
    """It may be damaged, since it is believed whatever its ident."""
    pair = Count()
    Sender(30_000, pair=pair)
    Sender(60_000, pair=pair)
    assert pair.last == 30_000
    Sender(30_001, pair=pair)
    assert pair.last == 30_001
