"""Solving the unseen ident, and what is believed of it."""

from __future__ import annotations

import pytest

from rnic.wire.flow import Flow
from rnic.wire.ident import IdentTracker, solve
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


def test_tracker_learns_and_refuses() -> None:
    tracker = IdentTracker()
    assert all(tracker.accept(30_000 + step) for step in range(20))
    assert not tracker.accept(5_000)
    assert tracker.accept(30_020), "the habit goes on"
    assert (tracker.accepted, tracker.refused) == (21, 1)


def test_tracker_takes_small_idents_always() -> None:
    """A tail-loss probe or a burst of rnic's own begins at 0."""
    tracker = IdentTracker()
    for ident in (*range(60_000, 60_020), 0, 1, 63, 60_020):
        assert tracker.accept(ident)


def test_64_is_not_small() -> None:
    for ident, taken in ((63, True), (64, False)):
        tracker = IdentTracker()
        assert all(tracker.accept(30_000 + step) for step in range(20))
        assert tracker.accept(ident) == taken


def test_tracker_refuses_what_a_sender_of_small_idents_never_sends() -> None:
    tracker = IdentTracker()
    assert all(tracker.accept(0) for _ in range(10))
    assert not tracker.accept(40_000)


def test_whether_the_next_ident_can_be_guessed() -> None:
    tracker = IdentTracker()

    def small() -> bool:
        return tracker.small

    assert not small()
    assert tracker.accept(3)
    assert small()
    assert tracker.accept(700)
    assert not small()
    tracker.expect(1)
    assert small()


def test_only_small_idents_of_who_sends_no_other() -> None:
    """Few small ones may be a counter that goes round; more than it has of them are a habit."""
    for run, taken in ((IdentTracker.ALONE_AFTER - 1, True), (IdentTracker.ALONE_AFTER, False)):
        tracker = IdentTracker()
        for _ in range(run):
            assert tracker.accept(0)
        assert tracker.accept(64) == taken


def test_a_counter_that_goes_round_one_by_one_loses_nothing() -> None:
    tracker = IdentTracker()
    assert all(tracker.accept(65_000 + step & 0xFFFF) for step in range(3_000))


def test_tracker_follows_a_new_habit_at_the_price_of_one() -> None:
    tracker = IdentTracker()
    for step in range(20):
        tracker.accept(30_000 + step)
    assert [tracker.accept(ident) for ident in (50_000, 50_001, 50_002)] == [False, True, True]


def test_tracker_forgets_a_refused_ident() -> None:
    tracker = IdentTracker()
    for step in range(20):
        tracker.accept(30_000 + step)
    assert not tracker.accept(50_000)
    assert tracker.accept(30_020)
    assert not tracker.accept(50_001)


def test_tracker_follows_a_counter_round_through_the_small_idents() -> None:
    tracker = IdentTracker()
    assert all(tracker.accept(ident) for ident in (*range(60_000, 60_020), 50, 8_050, 16_000))


def test_tracker_wraps() -> None:
    tracker = IdentTracker()
    for step in range(100):
        assert tracker.accept(65_500 + step & 0xFFFF)
