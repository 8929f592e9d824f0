"""A sender runs the rounds of a NIC in memory whose thread sleeps (engine/io/progress_thread.c, ``run_inline``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from rnic.engine import use
from rnic.link.loopback import loopback_pair
from rnic.spec import opcodes as op
from rnic.spec.rounds import WRITE_BACK_NS
from rnic.verbs import SGE, RecvWR, SendWR
from rnic.verbs import enums as e
from tests.attempts import Void, every_valid
from tests.unit.engine.test_loop import fall_asleep
from tests.unit.engine.test_loopback import End, joined

MS = 1_000_000
MTU = 1024
ONE_BURST = 60_000
"""Bytes of a WRITE whose packets a burst has room for."""
TELL_WITHIN = WRITE_BACK_NS
"""ns after which the thread in C tells Python of what moved."""

pytestmark = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    a, b = joined()
    assert a.write(b, 8) == e.IBV_WC_SUCCESS  # from now on the engine knows the way
    b.ctx.runtime.rest()
    b.ctx.runtime.start()
    yield a, b
    a.ctx.close()
    b.ctx.close()


def post(a: End, b: End, fill: int, length: int) -> bool:
    """Post a WRITE: whether it is there when that returns. Nobody polls."""
    a.mr.buffer[:length] = bytes([fill]) * length
    a.qp.post_rdma(op.WR_WRITE, a.mr.buf, length, a.mr.lkey, b.mr.buf, b.mr.rkey)
    return bytes(b.mr.buffer[:length]) == bytes([fill]) * length


def finish(a: End, count: int = 1) -> None:
    """Wait for completions."""
    while count:
        found, entries = a.cq.poll(16)
        assert all(entry.status == e.IBV_WC_SUCCESS for entry in entries[:found])
        count -= found


def is_there_at_once(ends: tuple[End, End], length: int) -> None:
    a, b = ends
    runtime = b.ctx.runtime
    (sender,) = a.ctx.runtime.nic.qps.values()
    while sender.requester.peer.limit_16 >> 16 < length // MTU:  # the window opens
        post(a, b, 0, length)
        finish(a)

    def attempt(fill: int) -> None:
        post(a, b, 0, 8)  # of which the thread is to tell Python soon: else it is woken to tell of what comes next
        finish(a)
        wakes = fall_asleep(runtime, MS)
        if wakes > runtime.clock() + TELL_WITHIN:
            raise Void(f"the thread was seen asleep only after {TELL_WITHIN // MS} ms")
        there = post(a, b, fill, length)
        late = runtime.clock() - wakes
        finish(a)
        if late >= 0:
            raise Void(f"the thread was due to wake {late / MS:.1f} ms before the post returned")
        assert there

    for fill in range(1, 9):
        every_valid(partial(attempt, fill), why="the thread, due to wake within 10 ms, wakes before the post returns")


@pytest.mark.parametrize("length", [1, 1000, ONE_BURST])
def test_what_is_posted_to_a_nic_whose_thread_sleeps_is_there_at_once(ends: tuple[End, End], length: int) -> None:
    """What leaves in one burst; behind that the thread may be woken, and takes the next itself."""
    is_there_at_once(ends, length)


def test_what_python_sends_is_there_at_once_too(ends: tuple[End, End]) -> None:
    io_poll = ends[0].ctx.runtime._io_poll
    assert io_poll is not None
    io_poll.stop()
    is_there_at_once(ends, 1000)


@pytest.mark.parametrize("holder", ["this thread", "another"])
def test_who_holds_the_device_is_not_disturbed(ends: tuple[End, End], holder: str) -> None:
    a, b = ends
    held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with b.ctx.runtime.lock:
            held.set()
            assert may_go.wait(20)

    if holder == "another":
        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(20)
        assert not post(a, b, 5, 100)
        may_go.set()
        thread.join(20)
    else:
        with b.ctx.runtime.lock:
            assert not post(a, b, 5, 100)
    finish(a)
    assert bytes(b.mr.buffer[:100]) == bytes([5]) * 100


def test_a_nic_that_sends_to_itself_leaves_its_rounds_to_its_thread() -> None:
    end = End(loopback_pair()[0])
    end.join(end)
    end.ctx.runtime.start()
    for turn in range(1, 9):
        end.ctx.runtime.rest()
        fall_asleep(end.ctx.runtime, MS)
        half = 1 << 17
        end.mr.buffer[:half] = bytes([turn]) * half
        end.qp.post_rdma(op.WR_WRITE, end.mr.buf, half, end.mr.lkey, end.mr.buf + half, end.mr.rkey)
        finish(end)
        assert end.mr.buffer[half:] == end.mr.buffer[:half]
    end.ctx.close()


def test_who_waits_for_events_is_told() -> None:
    a, b = joined(waits=True)
    assert a.write(b, 8) == e.IBV_WC_SUCCESS
    b.ctx.runtime.rest()
    for number in range(8):
        b.qp.post_recv(RecvWR(number, 1, [SGE(b.mr.buf, 64, b.mr.lkey)]))
        b.cq.req_notify()
        b.ctx.runtime.rest()
        fall_asleep(b.ctx.runtime, MS)
        a.qp.post_send(SendWR(1, sg=[SGE(a.mr.buf, 8, a.mr.lkey)]))
        assert b.channel is not None
        assert b.channel.get_cq_event() is b.cq
        b.cq.ack_events(1)
        assert [entry.wr_id for entry in b.cq.poll(4)[1]] == [number]
    a.ctx.close()
    b.ctx.close()


def every(jobs: list[Callable[[], None]]) -> None:
    """Do them side by side; what one raises is raised here."""
    failed: list[BaseException] = []

    def attempt(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=attempt, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


@pytest.mark.slow
def test_nics_that_stand_in_for_each_other_do_not_wait_for_each_other() -> None:
    """Either's thread may sleep, and each thread may stand in for the other's while that does the same."""
    a, b = joined()
    for end in (a, b):
        end.ctx.runtime.start()

    def writes(here: End, there: End) -> Callable[[], None]:
        def run() -> None:
            half = 1 << 17
            for turn in range(150):
                here.mr.buffer[:half] = bytes([turn]) * half
                for part in range(8):
                    at = part * (half // 8)
                    here.qp.post_rdma(
                        op.WR_WRITE, here.mr.buf + at, half // 8, here.mr.lkey, there.mr.buf + half + at, there.mr.rkey
                    )
                here.ctx.runtime.rest()
                finish(here, 8)
                assert bytes(there.mr.buffer[half:]) == bytes([turn]) * half

        return run

    every([writes(a, b), writes(b, a)])
    a.ctx.close()
    b.ctx.close()


@pytest.mark.slow
def test_a_nic_goes_while_another_sends_to_it() -> None:
    for _ in range(25):
        a, b = (End(link) for link in loopback_pair())
        a.join(b, timeout=10, retries=2)
        b.join(a)
        b.ctx.runtime.start()
        seen: list[int] = []
        going = threading.Event()

        def sends(a: End = a, b: End = b, seen: list[int] = seen, going: threading.Event = going) -> None:
            while not seen or seen[-1] == e.IBV_WC_SUCCESS:
                a.qp.post_rdma(op.WR_WRITE, a.mr.buf, 1 << 16, a.mr.lkey, b.mr.buf, b.mr.rkey)
                while not (found := a.cq.poll(1))[0]:
                    pass
                seen.append(found[1][0].status)
                going.set()

        thread = threading.Thread(target=sends)
        thread.start()
        assert going.wait(20)
        b.ctx.close()
        thread.join(30)
        assert seen[-1] == e.IBV_WC_RETRY_EXC_ERR
        a.ctx.close()
