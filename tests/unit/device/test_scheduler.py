"""Turns by bytes: between programs whatever the number of their queue pairs, between these whatever their messages."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.device.scheduler import Scheduler
from rnic.spec.rounds import NEWCOMER_PART
from rnic.state.arena import Arena
from rnic.state.queue_pair import QP

QUANTUM = 4_096
PACKET = 1_040


class Service(Scheduler):
    """Turns in an arena of their own, and the records of queue pairs."""

    __slots__ = ()

    def __new__(cls) -> Service:
        arena = Arena(1 << 20)
        arena.allocate_first(64)
        self = super().__new__(cls, arena, QUANTUM)
        self._arena = arena
        return self

    def __init__(self) -> None:
        super().__init__(self._arena, QUANTUM)

    def queue_pair(self, program: int, weight: int = 1) -> int:
        record = self._arena.take(QP.size, "a queue pair")
        self.enroll(record, program, QUANTUM * weight)
        return record


def serve(turns: Scheduler, packets: dict[int, int], rounds: int) -> Counter[int]:
    """Let queue pairs that never run dry send packets of their own size; bytes by its record."""
    sent: Counter[int] = Counter()
    for _ in range(rounds):
        qp = turns.take()
        size = packets[qp]
        allowance = turns.allowance(qp)
        count = 64 if allowance is None else -(-allowance // size)
        turns.spend(qp, count * size, again=True)
        sent[qp] += count * size
    return sent


def test_queue_pairs_send_equally_many_bytes_whatever_their_packets() -> None:
    turns = Service()
    qps = [turns.queue_pair(1) for _ in range(4)]
    sizes = dict(zip(qps, (64, 300, 1_040, 4_112), strict=True))
    for qp in qps:
        turns.add(qp)
    sent = serve(turns, sizes, 4_000)
    assert max(sent.values()) - min(sent.values()) <= 2 * (QUANTUM + 4_112)


@pytest.mark.slow
def test_programs_send_equally_many_bytes_whatever_their_queue_pairs() -> None:
    turns = Service()
    many = [turns.queue_pair(1) for _ in range(50)]
    one = turns.queue_pair(2)
    for qp in [*many, one]:
        turns.add(qp)
    sent = serve(turns, dict.fromkeys([*many, one], PACKET), 40_000)  # however long: they do not drift apart
    of_many = sum(sent[qp] for qp in many)
    assert abs(of_many - sent[one]) <= 2 * (QUANTUM + PACKET)
    assert max(sent[qp] for qp in many) - min(sent[qp] for qp in many) <= 3 * (QUANTUM + PACKET)


def test_programs_send_equally_many_bytes_whatever_their_packets() -> None:
    """Packets of one fill a turn to the byte; what those of the other take beyond theirs is missing from the next."""
    turns = Service()
    exact, beyond = turns.queue_pair(1), [turns.queue_pair(2) for _ in range(2)]
    for qp in [exact, *beyond]:
        turns.add(qp)
    sent = serve(turns, {exact: QUANTUM // 4, **dict.fromkeys(beyond, 1_500)}, 1_000)
    assert abs(sent[exact] - sum(sent[qp] for qp in beyond)) <= 2 * (QUANTUM + 1_500)


def test_a_weight_is_a_larger_share() -> None:
    turns = Service()
    heavy, light = turns.queue_pair(1, 3), turns.queue_pair(1)
    for qp in (heavy, light):
        turns.add(qp)
    sent = serve(turns, dict.fromkeys((heavy, light), PACKET), 1_000)
    assert sent[heavy] / sent[light] == pytest.approx(3, rel=0.02)


def test_who_comes_late_waits_for_one_turn_of_each_other() -> None:
    turns = Service()
    busy = [turns.queue_pair(number) for number in range(3)]
    for qp in busy:
        turns.add(qp)
    serve(turns, dict.fromkeys(busy, PACKET), 100)
    late = turns.queue_pair(9)
    turns.add(late)
    before = []
    while (qp := turns.take()) != late:
        before.append(qp)
        turns.spend(qp, turns.allowance(qp) or 0, again=True)
    assert len(before) <= len(busy)


def test_nothing_is_saved_up() -> None:
    turns = Service()
    idle, busy = turns.queue_pair(1), turns.queue_pair(2)
    for _ in range(50):  # a message now and then
        turns.add(idle)
        assert turns.take() == idle
        turns.spend(idle, 8, again=False)
    for qp in (idle, busy):
        turns.add(qp)
    assert turns.take() == idle
    assert turns.allowance(idle) == QUANTUM // NEWCOMER_PART


def busy_ones(turns: Service, count: int) -> list[int]:
    """Queue pairs of as many programs, in the rotation and with their first turns behind them."""
    busy = [turns.queue_pair(number) for number in range(count)]
    for qp in busy:
        turns.add(qp)
    serve(turns, dict.fromkeys(busy, PACKET), 10 * count)
    return busy


def test_a_new_queue_pair_is_served_first_and_ends_the_round() -> None:
    turns = Service()
    busy = busy_ones(turns, 3)
    late = turns.queue_pair(9)
    turns.add(late)
    assert turns.take() == late
    assert turns.allowance(late) == QUANTUM // NEWCOMER_PART
    turns.spend(late, 8, again=False)
    assert turns.over
    turns.over = 0
    assert turns.take() in busy


def test_a_newcomer_with_much_to_send_joins_the_rotation_after_its_part() -> None:
    turns = Service()
    busy = busy_ones(turns, 3)
    late = turns.queue_pair(9)
    turns.add(late)
    assert turns.take() == late
    turns.spend(late, QUANTUM // NEWCOMER_PART, again=True)
    assert turns.take() in busy


def test_newcomers_send_no_more_than_the_others_together() -> None:
    """However often a program stops and comes again."""
    turns = Service()
    busy = busy_ones(turns, 2)
    trick, sent = turns.queue_pair(9), Counter[int]()
    turns.add(trick)
    for _ in range(3_000):
        qp = turns.take()
        size = min(turns.allowance(qp) or 0, QUANTUM // NEWCOMER_PART if qp == trick else QUANTUM)
        turns.spend(qp, size, again=qp != trick)
        sent[qp] += size
        if qp == trick:
            turns.add(trick)
    assert sent[trick] <= sum(sent[qp] for qp in busy) + QUANTUM
    assert abs(sent[busy[0]] - sent[busy[1]]) <= 2 * QUANTUM


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(0, 1000))
def test_whoever_waits_gets_a_turn_and_nobody_twice(steps: list[int], seed: int) -> None:
    rng = random.Random(seed)
    turns = Service()
    idle = [turns.queue_pair(number % 3) for number in range(9)]
    waiting: list[int] = []
    for step in steps:
        if step < 2 and idle:
            waiting.append(idle.pop())
            turns.add(waiting[-1])
        elif step == 2 and waiting:
            gone = waiting.pop(rng.randrange(len(waiting)))
            turns.remove(gone)
            idle.append(gone)
        elif waiting:
            qp = turns.take()
            assert qp in waiting
            again = step == 5
            turns.spend(qp, rng.randrange(10_000), again)
            if not again:
                waiting.remove(qp)
                idle.append(qp)
        assert len(turns) == len(waiting)
    served = []
    while turns:
        served.append(turns.take())
        turns.spend(served[-1], 1, again=False)
    assert sorted(served) == sorted(waiting)
