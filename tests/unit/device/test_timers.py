"""The deadline heap: never late, and nothing to pay for idle queue pairs."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from rnic.device.timers import TIMERS_PER_CALL, Timers
from rnic.spec.limits import NEVER
from rnic.spec.states import INIT
from rnic.testing import QpPair
from rnic.verbs import enums as e


def fail(qp: object, error: Exception) -> None:
    raise error


class FakeQp:
    def __init__(self) -> None:
        self.deadline_ns = NEVER
        self.armed_ns = NEVER
        self.fired: list[int] = []
        self.period = 0

    def handle_timer(self, now_ns: int) -> None:
        assert self.deadline_ns <= now_ns
        self.fired.append(now_ns)
        self.deadline_ns = now_ns + self.period if self.period else NEVER


def test_fires_at_the_deadline_and_not_before() -> None:
    timers, qp = Timers(fail), FakeQp()
    qp.deadline_ns = 100
    timers.arm(qp)  # type: ignore[arg-type]
    assert timers.next_ns() == 100
    timers.handle(99)
    assert qp.fired == []
    timers.handle(100)
    assert qp.fired == [100]
    assert timers.next_ns() is None
    assert len(timers) == 0


def test_a_deadline_that_moved_back_is_put_in_again() -> None:
    timers, qp = Timers(fail), FakeQp()
    qp.deadline_ns = 100
    timers.arm(qp)  # type: ignore[arg-type]
    qp.deadline_ns = 500
    timers.handle(100)
    assert qp.fired == []
    assert timers.next_ns() == 500
    timers.handle(500)
    assert qp.fired == [500]


def test_a_deadline_that_moved_forward_makes_the_old_entry_stale() -> None:
    timers, qp = Timers(fail), FakeQp()
    qp.deadline_ns = 500
    timers.arm(qp)  # type: ignore[arg-type]
    qp.deadline_ns = 100
    timers.arm(qp)  # type: ignore[arg-type]
    timers.handle(100)
    assert qp.fired == [100]
    assert timers.next_ns() is None
    timers.handle(500)
    assert qp.fired == [100]


def test_a_deadline_that_vanished_costs_one_pop() -> None:
    timers, qp = Timers(fail), FakeQp()
    qp.deadline_ns = 100
    timers.arm(qp)  # type: ignore[arg-type]
    qp.deadline_ns = NEVER
    timers.handle(200)
    assert qp.fired == []
    assert len(timers) == 0


def test_forgotten() -> None:
    timers, qp = Timers(fail), FakeQp()
    qp.deadline_ns = 100
    timers.arm(qp)  # type: ignore[arg-type]
    timers.forget(qp)  # type: ignore[arg-type]
    assert timers.next_ns() is None
    timers.handle(200)
    assert qp.fired == []


def test_a_sweep_lets_go_of_what_was_forgotten() -> None:
    timers, kept, gone = Timers(fail), FakeQp(), FakeQp()
    kept.deadline_ns, gone.deadline_ns = 50, 100
    for qp in (gone, kept):
        timers.arm(qp)  # type: ignore[arg-type]
    timers.forget(gone)  # type: ignore[arg-type]
    assert len(timers) == 2
    timers.sweep()
    assert len(timers) == 1
    timers.handle(100)
    assert (kept.fired, gone.fired) == ([100], [])


def test_work_per_call_is_bounded() -> None:
    timers, qps = Timers(fail), [FakeQp() for _ in range(TIMERS_PER_CALL + 5)]
    for qp in qps:
        qp.deadline_ns = 1
        timers.arm(qp)  # type: ignore[arg-type]
    timers.handle(1)
    assert sum(len(qp.fired) for qp in qps) == TIMERS_PER_CALL
    timers.handle(1)
    assert all(qp.fired == [1] for qp in qps)


@given(st.integers(0, 1 << 32), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=60))
def test_nobody_is_woken_late(seed: int, moves: list[tuple[int, int]]) -> None:
    rng = random.Random(seed)
    timers, qps, now = Timers(fail), [FakeQp() for _ in range(4)], 0
    for index, delay in moves:
        qp = qps[index]
        qp.deadline_ns = now + delay if delay else NEVER
        qp.period = rng.choice((0, 7))
        if qp.deadline_ns < qp.armed_ns:
            timers.arm(qp)  # type: ignore[arg-type]
        now += rng.randrange(20)
        timers.handle(now)
        wake = timers.next_ns()
        for qp in qps:
            assert qp.deadline_ns > now
            if qp.deadline_ns != NEVER:
                assert wake is not None
                assert wake <= qp.deadline_ns


def test_a_handler_that_raises_is_told_and_the_others_have_their_turns() -> None:
    told: list[tuple[object, Exception]] = []
    timers, qps = Timers(lambda qp, error: told.append((qp, error))), [FakeQp() for _ in range(3)]
    for qp in qps:
        qp.deadline_ns = 10
        timers.arm(qp)  # type: ignore[arg-type]
    error = ZeroDivisionError()

    def broken(now_ns: int) -> None:
        raise error

    qps[1].handle_timer = broken  # type: ignore[method-assign]
    timers.handle(10)
    assert told == [(qps[1], error)]
    assert [qp.fired for qp in qps] == [[10], [], [10]]
    assert timers.next_ns() is None


def test_a_queue_pair_whose_state_was_taken_from_it_leaves_the_timers() -> None:
    """Its context was edited past any transition while an ACK timeout ran: that deadline is met once, not for ever."""
    with QpPair(size=64) as pair:
        nic = pair.a.node.nic
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
        nic.produce(pair.clock.now_ns)
        qp = nic.qps[pair.a.qp.qp_num]
        assert qp.deadline_ns != NEVER
        qp.ctx.state = INIT
        later = qp.deadline_ns + 1
        nic.handle_timers(later)
        assert qp.deadline_ns == NEVER
        assert (nic.next_deadline_ns() or NEVER) > later
