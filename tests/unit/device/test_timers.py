"""The deadline heap: never late, and nothing to pay for idle queue pairs."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.device.timers import Timers
from rnic.spec.limits import NEVER
from rnic.spec.states import ERR, INIT
from rnic.state.arena import Arena
from rnic.state.queue_pair import QP
from rnic.state.record import place
from rnic.testing import QpPair
from rnic.transport.qp import QueuePair
from rnic.verbs import enums as e
from tests.unit.device.conftest import Pair


class Clock(Timers):
    """Timers in an arena of their own, and the records of queue pairs; who was woken when."""

    __slots__ = ("arena", "woken")

    def __init__(self, capacity: int = 64) -> None:
        self.arena = Arena(1 << 21)
        self.arena.allocate_first(64)
        self.woken: list[tuple[int, int]] = []
        super().__init__(self.arena, capacity)

    def queue_pair(self) -> int:
        record = self.arena.take(QP.size, "a queue pair")
        self.arena.cells[record // 8 + place(QP, "armed_ns")] = NEVER
        self.arena.cells[record // 8 + place(QP, "timer_place")] = 0
        return record

    def armed(self, qp: int) -> int:
        return self.arena.cells[qp // 8 + place(QP, "armed_ns")]

    def run(self, now_ns: int) -> list[int]:
        """Who is woken."""
        woken = []
        while qp := self.due(now_ns):
            woken.append(qp)
        return woken

    def check(self) -> None:
        """Nobody in the heap is sooner than who stands above, and each knows its place."""
        cells, heap = self.arena.cells, self.heap // 8
        for index in range(1, self.count + 1):
            qp = cells[heap + index]
            assert cells[qp // 8 + place(QP, "timer_place")] == index
            if index > 1:
                assert self.armed(cells[heap + index // 2]) <= self.armed(qp)


def test_fires_at_the_deadline_and_not_before() -> None:
    timers = Clock()
    qp = timers.queue_pair()
    timers.arm(qp, 100)
    assert (timers.next_ns(), timers.armed(qp)) == (100, 100)
    assert timers.run(99) == []
    assert timers.run(100) == [qp]
    assert (timers.next_ns(), timers.armed(qp), len(timers)) == (None, NEVER, 0)


def test_a_deadline_that_moved_forward_has_one_place() -> None:
    timers = Clock()
    qp, other = timers.queue_pair(), timers.queue_pair()
    timers.arm(qp, 500)
    timers.arm(other, 300)
    timers.arm(qp, 100)
    assert (len(timers), timers.next_ns()) == (2, 100)
    assert timers.run(1_000) == [qp, other]


def test_forgotten() -> None:
    timers = Clock()
    kept, gone = timers.queue_pair(), timers.queue_pair()
    timers.arm(gone, 50)
    timers.arm(kept, 100)
    timers.forget(gone)
    timers.forget(gone)
    assert (timers.next_ns(), len(timers)) == (100, 1)
    assert timers.run(200) == [kept]


@given(st.integers(0, 1 << 32))
def test_whoever_is_armed_is_woken_in_order_and_nobody_else(seed: int) -> None:
    rng = random.Random(seed)
    timers, now = Clock(), 0
    qps = [timers.queue_pair() for _ in range(20)]
    due: dict[int, int] = {}
    for _ in range(120):
        qp, what = rng.choice(qps), rng.randrange(4)
        if what < 2:
            deadline = now + rng.randrange(50)
            if deadline < due.get(qp, NEVER):
                timers.arm(qp, deadline)
                due[qp] = deadline
        elif what == 2:
            timers.forget(qp)
            due.pop(qp, None)
        else:
            now += rng.randrange(20)
            woken = timers.run(now)
            assert [due[qp] for qp in woken] == sorted(time for time in due.values() if time <= now)
            due = {qp: time for qp, time in due.items() if qp not in woken}
        timers.check()
        assert len(timers) == len(due)
        assert timers.next_ns() == min(due.values(), default=None)


def test_work_per_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.device.nic.TIMERS_PER_CALL", 3)
    with QpPair(size=64) as pair:
        nic = pair.a.node.nic
        fired: list[int] = []
        sent = list(range(64, 64 * 6, 64))
        left = list(sent)
        monkeypatch.setattr(type(nic.timers), "due", lambda timers, now_ns: left.pop(0) if left else 0)
        waiting: Any = SimpleNamespace(deadline_ns=0, armed_ns=0, handle_timer=fired.append)
        nic.sending.qps |= dict.fromkeys(sent, waiting)
        with monkeypatch.context() as alone:
            alone.setattr(nic, "engine_device", None)
            nic.handle_timers(7)
            assert (fired, len(left)) == ([7, 7, 7], 2)
            nic.handle_timers(8)
        assert (fired[3:], left) == ([8, 8], [])
        for record in sent:
            del nic.sending.qps[record]


def test_a_deadline_that_moved_back_is_put_in_again() -> None:
    with QpPair(size=64) as pair:
        nic = pair.a.node.nic
        qp = nic.qps[pair.a.qp.qp_num]
        qp.requester.ack_deadline = now = pair.clock.now_ns + 1_000
        qp.rearm()
        assert nic.timers.next_ns() == now
        qp.requester.ack_deadline = now + 5_000
        nic.handle_timers(now)
        assert nic.counters["ack_timeouts"] == 0
        assert nic.timers.next_ns() == qp.armed_ns == now + 5_000


def test_a_handler_that_raises_is_told_and_the_others_have_their_turns(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, own_errors: list[tuple[str, Exception]]
) -> None:
    nic = pair.nics[0]
    for _ in range(3):
        pair.connect()
    fired: list[object] = []
    victim = list(nic.qps.values())[1]

    def handle(qp: QueuePair, now_ns: int) -> None:
        qp.requester.ack_deadline = NEVER
        if qp is victim:
            raise ZeroDivisionError
        fired.append(qp)

    for qp in nic.qps.values():
        qp.executor = None  # the engine would not ask the handler
        if nic.engine_device is not None:
            nic.engine_device.remove(qp.number)
        qp.requester.ack_deadline = 10
        qp.rearm()
    monkeypatch.setattr(QueuePair, "handle_timer", handle)
    nic.handle_timers(10)
    assert sorted(map(id, fired)) == sorted(id(qp) for qp in nic.qps.values() if qp is not victim)
    assert victim.ctx.state == ERR
    assert [place for place, _ in own_errors] == ["timer"]
    assert nic.timers.next_ns() is None


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
