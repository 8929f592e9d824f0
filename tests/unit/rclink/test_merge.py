"""Merging ACKs, filtering CNPs, and the queue of times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rnic.rclink.deadlines import Deadlines
from rnic.rclink.merge import AckMerger, CnpFilter


def test_one_bit_a_qp() -> None:
    merger = AckMerger(1_024)
    for _ in range(50):
        merger.set(5)
    assert len(merger) == 1
    assert merger.take(9) == [5]
    assert (len(merger), merger.take(9)) == (0, [])


def test_four_at_a_time_and_round() -> None:
    """The pointer stands where it was cut short, goes on upwards, and comes round."""
    merger = AckMerger(1_024)
    for qpid in (1_023, 9, 8, 11, 3, 0):
        merger.set(qpid)
    assert merger.take(3) == [0, 3, 8]
    merger.set(1)
    assert merger.take(9) == [9, 11, 1_023, 1]
    merger.set(9)
    assert merger.take(9) == [9]


def test_forced_ones_do_not_wait_for_the_pointer() -> None:
    merger = AckMerger(10)
    merger.set(1)
    merger.set(9)

    def forced() -> bool:
        return merger.forced

    assert not forced()
    merger.set(9, force=True)
    assert forced()
    assert merger.take_forced(5) == [9]
    assert not forced()
    assert merger.take(5) == [1]


def test_a_nak_takes_the_ack_along() -> None:
    merger = AckMerger(8)
    merger.set(6, force=True)
    merger.clear(6)
    merger.clear(6)
    assert (len(merger), merger.forced, 6 in merger) == (0, False, False)


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.integers(0, 3))))
def test_the_bitmap_is_a_set(moves: list[tuple[int, bool, int]]) -> None:
    merger, model = AckMerger(41), set()
    for qpid, force, limit in moves:
        merger.set(qpid, force)
        model.add(qpid)
        taken = merger.take_forced(1) + merger.take(limit)
        assert len(set(taken)) == len(taken)
        assert set(taken) <= model
        model -= set(taken)
        assert len(merger) == len(model)
    assert sorted(merger.take(100)) == sorted(model)


def test_cnps_of_one_qp_are_filtered() -> None:
    cnps = CnpFilter(100)
    assert cnps.passes(1, 0)
    assert not cnps.passes(1, 100)
    assert cnps.passes(2, 100)
    assert cnps.passes(1, 101)
    assert not cnps.passes(1, 201)
    cnps.enabled = False
    assert cnps.passes(1, 202)


def test_eight_are_remembered() -> None:
    cnps = CnpFilter(1_000)
    assert all(cnps.passes(qpid, qpid) for qpid in range(8))
    assert not any(cnps.passes(qpid, 10) for qpid in range(8))
    assert cnps.passes(8, 11), "the ninth takes the place of the one that passed longest ago"
    assert cnps.passes(0, 12)
    assert not cnps.passes(2, 13)


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 50)), st.integers(0, 10))))
def test_deadlines_come_in_order(moves: list[tuple[int, int | None, int]]) -> None:
    model: dict[int, int] = {}
    deadlines, now = Deadlines(), 0
    for key, when, passed in moves:
        if when is None:
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            deadlines.set(key, now + when)
            model[key] = now + when
        now += passed
        assert deadlines.next_ns() == min(model.values(), default=None)
        assert all((key in deadlines) == (key in model) for key in range(6))
        while (due := deadlines.due(now)) is not None:
            assert model.pop(due) <= now
        assert all(when > now for when in model.values())
