"""Posting and polling compiled, beside the plain way: the same descriptors, the same completions, the same refusals."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rnic import enums as e
from rnic.engine import use
from rnic.rings.cqe import CQE_BYTES, CQE_PHASE, CQE_RECEIVE
from rnic.rings.queue_block import BLOCK_BYTES, CQ_HEAD
from rnic.rings.ring import PhaseConsumer
from rnic.rings.sqe import FLAG_LIST, FLAG_SIGNALED, SQE_BYTES
from rnic.runtime.loop import Runtime
from rnic.spec import opcodes as op
from rnic.spec.errors import VerbsError
from rnic.spec.limits import NEVER
from rnic.spec.rounds import GATHER_AFTER, GATHER_SETBACK
from rnic.verbs import SGE, WC, QPAttr, RecvWR, SendWR, completion_dtype, send_dtype
from tests.attempts import timeslices_of_sleepers
from tests.unit.runtime.test_loop import Ends, until

if TYPE_CHECKING:
    from rnic.engine._engine import Loop

pytestmark = pytest.mark.skipif(use.ENGINE is None, reason="the engine is not compiled, or not in use")
SIZE = 16
SECOND = 10**9


def loop_of(runtime: Runtime) -> Loop:
    loop = runtime.engine_loop
    assert loop is not None
    return loop


def entry(index: int, word3: int, qpn: int) -> tuple[int, ...]:
    return index, 0, 8, word3, index + 1, 0, qpn, 0


class Filled:
    """A ring of completions that a producer fills, read by the compiled consumer and by the plain one."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(SIZE * CQE_BYTES))
        self.compiled = use.engine().CompletionRing(self.view, SIZE)
        self.plain = PhaseConsumer(self.view, SIZE)
        self.tail = 0
        self.phase = CQE_PHASE

    def put(self, word3: int, qpn: int) -> None:
        struct.pack_into("<8I", self.view, self.tail * CQE_BYTES, *entry(self.tail, word3 | self.phase, qpn))
        self.tail += 1
        if self.tail == SIZE:
            self.tail, self.phase = 0, self.phase ^ CQE_PHASE

    def state(self, ring: Any) -> tuple[int, int, bool]:
        return ring.head, ring.phase, ring.ready()


def test_the_compiled_consumer_takes_what_the_plain_one_takes() -> None:
    ring, rng, waiting = Filled(), random.Random(3), 0
    for _ in range(500):
        for _ in range(rng.randrange(SIZE - waiting)):
            ring.put(rng.choice((op.WR_WRITE, CQE_RECEIVE)), rng.randrange(1 << 24))
            waiting += 1
        for _ in range(rng.randrange(waiting + 2)):
            assert ring.state(ring.compiled) == ring.state(ring.plain)
            taken = ring.plain.pop()
            assert ring.compiled.pop() == taken
            waiting -= taken is not None
    assert ring.state(ring.compiled) == ring.state(ring.plain)


@pytest.mark.parametrize("odd", [None, "queue", "receive"])
def test_a_row_of_completions_ends_at_one_of_another_queue(ends: Ends, odd: str | None) -> None:
    looks: list[int] = []
    ring, queue = Filled(), ends.qps[0]._queue
    registers, number, kind = memoryview(bytearray(BLOCK_BYTES)), ends.qps[0].qp_num, completion_dtype()
    ring.compiled.attach(loop_of(ends.ctxs[0].runtime), lambda: looks.append(1), registers, 0, threading.Lock())
    for _ in range(SIZE - 3):
        ring.put(op.WR_WRITE, number)
        ring.compiled.pop()
    for at in range(6):  # round the ring's end
        strange = at == 4
        word3 = CQE_RECEIVE if strange and odd == "receive" else op.WR_WRITE
        ring.put(word3, number + 1 if strange and odd == "queue" else number)
    array = np.zeros(8, kind)
    queues: dict[int, Any] = {number: (queue, None)}
    taken = 6 if odd is None else 4
    assert ring.compiled.poll_array(array, kind, queues) == taken
    assert array["index"].tolist() == ([13, 14, 15, 0, 1, 2] if odd is None else [13, 14, 15, 0]) + [0] * (8 - taken)
    assert not array["qpn"][taken:].any()
    assert struct.unpack_from("<I", registers, CQ_HEAD)[0] == ring.compiled.head == taken - 3
    assert queue.head == taken - 3
    assert not looks
    assert ring.compiled.poll_array(array, kind, queues) == (0 if odd is None else -1)
    assert len(looks) == (odd is None)


def test_a_ring_that_was_left_takes_nothing(ends: Ends) -> None:
    """Who waits for the lock while the queue is resized finds the new ring."""
    ring, kind = Filled(), completion_dtype()
    ring.compiled.attach(
        loop_of(ends.ctxs[0].runtime), lambda: None, memoryview(bytearray(BLOCK_BYTES)), 0, threading.Lock()
    )
    ring.put(op.WR_WRITE, 5)
    ring.compiled.detach()
    assert ring.compiled.poll_array(np.zeros(8, kind), kind, {5: (ends.qps[0]._queue, None)}) == -1
    assert ring.compiled.head == 0


def test_a_block_outside_the_window_is_refused(ends: Ends) -> None:
    loop, registers = loop_of(ends.ctxs[0].runtime), memoryview(bytearray(BLOCK_BYTES))
    with pytest.raises(ValueError, match="block 1 of 128 bytes"):
        Filled().compiled.attach(loop, lambda: None, registers, 1, threading.Lock())


def test_a_ring_of_no_ring_s_size_is_refused() -> None:
    with pytest.raises(VerbsError, match="size=3"):
        use.engine().CompletionRing(memoryview(bytearray(96)), 3)
    with pytest.raises(VerbsError, match="needs 128 bytes"):
        use.engine().CompletionRing(memoryview(bytearray(96)), 4)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def request(ends: Ends, opcode: int, flags: int, wr_id: int) -> SendWR:
    mr, there = ends.mrs[0], ends.mrs[1]
    wr = SendWR(wr_id, opcode, send_flags=flags, imm_data=77, sg=[SGE(mr.buf + 8, 40, mr.lkey)])
    wr.set_wr_rdma(there.rkey, there.buf + 16)
    return wr


def posted(ends: Ends, at: int) -> bytes:
    return bytes(ends.qps[0]._ring[at * SQE_BYTES : (at + 1) * SQE_BYTES])


@pytest.mark.parametrize("flags", range(8))
@pytest.mark.parametrize(
    "opcode", [e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ, e.IBV_WR_SEND]
)
def test_a_plain_request_s_descriptor_is_the_same_either_way(ends: Ends, opcode: int, flags: int) -> None:
    qp: Any = ends.qps[0]
    wr = request(ends, opcode, flags, (flags << 40) + 3)
    ends.ctxs[0].runtime.nic.held = True  # nothing is sent
    at = qp._queue.tail
    assert qp._queue.post_send(wr)
    compiled, identifier, after = posted(ends, at), qp._queue.ids[at], qp._queue.tail
    qp._queue.tail = at
    qp._put(wr)
    assert (posted(ends, at), qp._queue.ids[at], qp._queue.tail) == (compiled, identifier, after)
    ends.ctxs[0].runtime.nic.held = False


def test_what_is_not_plain_is_left_alone(ends: Ends) -> None:
    queue: Any = ends.qps[0]._queue
    strange = [
        request(ends, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 1),
        request(ends, 99, 2, 1),
        request(ends, e.IBV_WR_SEND, e.IBV_SEND_INLINE, 1),
        request(ends, e.IBV_WR_SEND, -1, 1),
        request(ends, e.IBV_WR_SEND, 2, -1),
    ]
    chained, listed, long = (request(ends, e.IBV_WR_SEND, 2, 1) for _ in range(3))
    chained.next = listed
    listed.sg *= 2
    long.sg[0].length = 1 << 32
    for wr in [*strange, chained, listed, long]:
        assert not queue.post_send(wr)
    assert not queue.post_send([chained])
    assert queue.tail == 0
    array = np.zeros(2, send_dtype())
    array["opcode"] = op.WR_WRITE
    array["flags"] = FLAG_SIGNALED
    array["flags"][1] = FLAG_LIST
    assert queue.post_words(array, send_dtype()) == -1
    array["flags"][1], array["opcode"][1] = 0, 0xF0
    assert queue.post_words(array, send_dtype()) == -1
    array["opcode"][1] = 0x10A
    assert queue.post_words(array, send_dtype()) == -1
    assert queue.post_words(array[::-1], send_dtype()) == -1
    assert queue.tail == 0


def test_a_full_queue_takes_no_more_and_a_closed_one_nothing(ends: Ends) -> None:
    qp: Any = ends.qps[0]
    ends.ctxs[0].runtime.nic.held = True
    for number in range(10):
        assert qp._queue.post(op.WR_WRITE, 0, 0, 0, 0, 0, number, 0, 0)
    array = np.zeros(9, send_dtype())
    array["opcode"], array["wqe_id"] = op.WR_WRITE, range(100, 109)
    assert qp._queue.post_words(array, send_dtype()) == 6
    assert not qp._queue.post(op.WR_WRITE, 0, 0, 0, 0, 0, 1, 0, 0)
    assert not qp._queue.post_send(request(ends, e.IBV_WR_SEND, 2, 1))
    assert qp._queue.post_words(array, send_dtype()) == 0
    assert qp._queue.ids == [*range(10), *range(100, 106), 0]
    with pytest.raises(VerbsError, match="is full"):
        qp.post_rdma(op.WR_WRITE, 0, 0, 0)
    ends.ctxs[0].runtime.nic.held = False
    qp.close()
    assert not qp._queue.post(op.WR_WRITE, 0, 0, 0, 0, 0, 1, 0, 0)


def test_a_post_while_another_thread_has_the_device_waits_for_it(ends: Ends) -> None:
    runtime: Runtime = ends.ctxs[0].runtime
    done: list[int] = []

    def post() -> None:
        mr, there = ends.mrs
        ends.qps[0].post_rdma(op.WR_WRITE, mr.buf, 8, mr.lkey, there.buf, there.rkey)
        done.append(1)

    with runtime.lock:
        thread = threading.Thread(target=post)
        thread.start()
        assert not until(lambda: bool(done), 0.02)
    thread.join()
    assert done == [1]
    assert until(lambda: ends.cqs[0].poll()[0] == 1)


def test_a_poll_while_another_thread_has_the_device_comes_back(ends: Ends) -> None:
    runtime: Runtime = ends.ctxs[0].runtime
    found: list[object] = []
    with runtime.lock:
        thread = threading.Thread(target=lambda: found.append(loop_of(runtime).progress()))
        thread.start()
        thread.join()
    assert found == [False]
    assert loop_of(runtime).last_poll > 0
    runtime.rest()
    assert loop_of(runtime).last_poll == 0


def test_a_link_that_is_replaced_is_the_runtime_s(ends: Ends) -> None:
    runtime: Runtime = ends.ctxs[0].runtime
    runtime.faults()
    mr, there = ends.mrs
    ends.qps[0].post_rdma(op.WR_WRITE, mr.buf, 8, mr.lkey, there.buf, there.rkey)
    assert until(lambda: ends.cqs[0].poll()[0] == 1)
    runtime.close()
    before = dict(runtime.nic.counters)
    loop_of(runtime).kick()
    assert dict(runtime.nic.counters) == before


def sent(ends: Ends) -> int:
    """Where the first NIC is in its packets; what a probe repeats on a busy machine does not count."""
    (qp,) = ends.ctxs[0].runtime.nic.qps.values()
    return int(qp.requester.sent_psn)


def write(ends: Ends, size: int = 8) -> int:
    """Post a WRITE; how many packets of the first NIC have left by then."""
    mr, there = ends.mrs
    ends.qps[0].post_rdma(op.WR_WRITE, mr.buf, size, mr.lkey, there.buf, there.rkey)
    return sent(ends)


def stream(ends: Ends) -> int:
    """A stream of WRITEs has been posted and polled, and all is acknowledged; packets that have left."""
    runtime: Runtime = ends.ctxs[0].runtime
    loop_of(runtime).pause_ns = 1 << 62  # whatever else this machine does

    def streams() -> bool:
        """Posts wake the thread, which leaves the device to who polls, and sleeps again where this machine pauses."""
        for _ in range(GATHER_AFTER):
            write(ends)
            assert until(lambda: ends.cqs[0].poll()[0] == 1)
        return loop_of(runtime).sleeps_until == 0

    assert until(streams)
    loop_of(runtime).steady = 0  # as if it had waited for an answer
    return sent(ends)


@contextmanager
def undisturbed(ends: Ends) -> Iterator[None]:
    """Nothing is acknowledged or due, and no thread does rounds or falls asleep, however long this takes."""
    runtime: Runtime = ends.ctxs[0].runtime
    (qp,) = runtime.nic.qps.values()
    with ends.ctxs[1].runtime.lock, runtime.lock:
        loop_of(runtime).wake_thread()
        assert until(lambda: loop_of(runtime).sleeps_until == 0)
        qp.requester.peer.srtt = 10**9  # or what is not acknowledged would be asked for
        runtime.nic.write_back_at = 1 << 62
        yield


def test_messages_of_a_stream_gather_behind_as_many_in_flight(ends: Ends) -> None:
    first, seen = stream(ends), []
    with undisturbed(ends):
        for _ in range(9):
            seen.append(write(ends) - first)
            ends.cqs[0].ready()
            loop_of(ends.ctxs[0].runtime).seen = True  # a poll that found something
    assert seen == [1, 2, 2, 2, 5, 5, 5, 5, 5]


def test_a_second_poll_in_vain_sends_what_gathered(ends: Ends) -> None:
    first = stream(ends)
    with undisturbed(ends):
        seen = []
        for _ in range(6):
            posted = write(ends) - first
            polled = []
            for _ in range(2):
                ends.cqs[0].poll()
                polled.append(sent(ends) - first)
            seen.append((posted, *polled))
    for number, (posted, polled_once, polled_twice) in enumerate(seen, 1):
        assert polled_once == posted, "a poll right behind a message that gathers does not look"
        assert polled_twice in (posted, number), "all that gathers leaves, unless it is few beside what is in flight"
    assert seen[:3] == [(1, 1, 1), (2, 2, 2), (2, 2, 3)]
    assert seen[5][2] > seen[3][2], "more than one in so many do not wait"


def test_polling_after_each_message_gathers_as_many_as_are_in_flight(ends: Ends) -> None:
    first = stream(ends)
    with undisturbed(ends):
        seen = []
        for _ in range(14):
            seen.append(write(ends) - first)
            ends.cqs[0].poll()
    assert seen == [1, 2, 2, 2, 5, 5, 5, 5, 5, 5, 11, 11, 11, 11]


def test_a_stream_without_waits_gathers_with_nothing_in_flight(ends: Ends) -> None:
    first, seen = stream(ends), []
    loop_of(ends.ctxs[0].runtime).steady = GATHER_AFTER - 2
    with undisturbed(ends):
        for _ in range(7):
            seen.append(write(ends) - first)
            ends.cqs[0].poll()
    assert seen == [1, 1, 1, 1, 1, 6, 6], "the second of them is one too many, then as many wait as count as in flight"


def test_who_polls_once_more_waits_for_an_answer(ends: Ends) -> None:
    first, seen = stream(ends), []
    loop_of(ends.ctxs[0].runtime).steady = GATHER_AFTER
    with undisturbed(ends):
        for _ in range(2):
            seen.append(write(ends) - first)
            for _ in range(2):
                ends.cqs[0].poll()
            seen.append(sent(ends) - first)
    assert seen == [0, 1, 2, 2]


def test_a_message_after_a_pause_is_sent_at_once_and_pauses_end_a_stream(ends: Ends) -> None:
    first, seen = stream(ends), []
    loop = loop_of(ends.ctxs[0].runtime)
    loop.stream, never = 2 * GATHER_AFTER, loop.pause_ns
    pauses = GATHER_AFTER // GATHER_SETBACK
    with undisturbed(ends):
        for pause in (True, True, False, *[True] * (pauses - 1), False):
            loop.seen, loop.pause_ns = True, 0 if pause else never
            seen.append(write(ends) - first)
    assert seen == [1, 2, 2, 4, 5, 6, 7]


def test_a_long_message_takes_along_what_gathered(ends: Ends) -> None:
    first = stream(ends)
    with undisturbed(ends):
        for _ in range(3):
            write(ends)
            loop_of(ends.ctxs[0].runtime).seen = True
        assert sent(ends) - first == 2
        assert write(ends, 600) - first == 4


def test_what_gathers_leaves_although_nobody_polls(ends: Ends) -> None:
    first = stream(ends)
    with ends.ctxs[1].runtime.lock:
        for _ in range(3):
            write(ends)
            loop_of(ends.ctxs[0].runtime).seen = True
        assert until(lambda: sent(ends) - first == 3)


def test_acknowledgements_send_what_gathered(ends: Ends) -> None:
    stream(ends)
    with ends.ctxs[1].runtime.lock:
        for _ in range(5):
            write(ends)
            loop_of(ends.ctxs[0].runtime).seen = True
    assert completed(ends, 5)


@pytest.mark.parametrize("why", ["no poll between", "a pause", "the thread sleeps"])
def test_what_is_no_stream_leaves_at_once(ends: Ends, why: str) -> None:
    ends.connect(timers=False)  # or the thread would wake to ask for what is not acknowledged
    stream(ends)
    runtime: Runtime = ends.ctxs[0].runtime
    seen = []
    with ends.ctxs[1].runtime.lock:
        first = sent(ends)
        for _ in range(6):
            if why != "no poll between":
                loop_of(runtime).seen = True
            if why == "a pause":
                loop_of(runtime).pause_ns = 0
            if why == "the thread sleeps":
                runtime.rest()
                fall_asleep(runtime, SECOND)
            seen.append(write(ends) - first)
    assert completed(ends, 6)
    assert seen == list(range(1, 7))


def completed(ends: Ends, count: int) -> bool:
    """Wait for so many completions; false where there are never just as many."""
    done = 0

    def all_done() -> bool:
        nonlocal done
        done += ends.cqs[0].poll()[0]
        return done == count

    return until(all_done)


def fall_asleep(runtime: Runtime, least_ns: int) -> int:
    """Wait until no other thread has anything to do for so long; return when the runtime's wake by themselves."""

    def wakes() -> int:
        at = runtime.nic.write_back_at
        return int(min(loop_of(runtime).sleeps_until, NEVER if at is None else at))

    def asleep() -> bool:
        before = timeslices_of_sleepers()
        time.sleep(0.0005)  # a thread that is to wake up, and needs the interpreter for it, has it now
        return bool(before) and timeslices_of_sleepers() == before and wakes() > runtime.clock() + least_ns

    assert until(asleep, 20)
    return wakes()


def received(ends: Ends, count: int) -> list[Any]:
    found: list[Any] = []

    def all_there() -> bool:
        found.extend(ends.cqs[1].poll(64)[1])
        return len(found) >= count

    assert until(all_there)
    return found


def test_plain_receives_are_posted_compiled_and_others_go_on_behind_them(ends: Ends) -> None:
    qp: Any = ends.qps[1]
    mr = ends.mrs[1]
    plain = [RecvWR(number, 1, [SGE(mr.buf + 20 * number, 20, mr.lkey)]) for number in range(3)]
    bare, empty = RecvWR(3), RecvWR(4, 2, [SGE(mr.buf, 0, 0)])
    chained = RecvWR(6, 1, plain[0].sg, RecvWR(7, 1, plain[1].sg))
    assert qp._rq.queue.post([*plain, bare, empty, plain[0]]) == (4, False)
    assert qp._rq.queue.tail == qp._rq.queue.posted == 4
    assert qp._rq.queue.post(chained) == (0, False)
    qp.post_recv([empty, plain[2]])
    qp.post_recv(chained)
    qp.post_recv(RecvWR(8, 1, plain[0].sg))
    assert qp._rq.queue.ids == [0, 1, 2, 3, 4, 2, 6, 7, 8, *[None] * 8]
    for size in (20, 0, 7, 0, 0, 3, 1, 2, 4):
        there = ends.mrs[0]
        ends.qps[0].post_send(SendWR(1, sg=[SGE(there.buf, size, there.lkey)] if size else []))
    found = received(ends, 9)
    assert [wc.wr_id for wc in found] == [0, 1, 2, 3, 4, 2, 6, 7, 8]
    assert [wc.byte_len for wc in found] == [20, 0, 7, 0, 0, 3, 1, 2, 4]
    assert qp._rq.queue.ids == [None] * 17
    assert qp._rq.queue.posted == 0


def test_receives_beyond_the_limit_are_refused_and_those_before_them_posted(ends: Ends) -> None:
    qp: Any = ends.qps[1]
    one = RecvWR(1, 1, [SGE(ends.mrs[1].buf, 20, ends.mrs[1].lkey)])
    with pytest.raises(VerbsError, match="receive queue of 16 is full"):
        qp.post_recv([one] * 20)
    assert qp._rq.queue.posted == 16
    qp.modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)
    found = received(ends, 16)
    assert {wc.status for wc in found} == {e.IBV_WC_WR_FLUSH_ERR}
    qp.post_recv(one)  # the compiled queue leaves it to who flushes
    assert received(ends, 1)[0].status == e.IBV_WC_WR_FLUSH_ERR
    qp.close()
    assert qp._rq is None or qp._rq.queue.post(one) == (0, False)


@pytest.mark.parametrize("operation", [e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM])
def test_completions_are_the_same_either_way(ends: Ends, operation: int) -> None:
    """Plain ones are made compiled, those with an immediate not; every attribute is as the plain way has it."""
    seen = []
    for compiled in (True, False):
        if not compiled:
            for cq in ends.cqs:
                cq._plain.clear()
        ends.recv(1)
        ends.qps[0].post_send(request(ends, operation, e.IBV_SEND_SIGNALED, 9))
        (wc,) = received(ends, 1)
        done: list[Any] = []
        assert until(lambda done=done: bool(done.extend(ends.cqs[0].poll()[1]) or done))  # type: ignore[misc]
        seen.append([{name: getattr(each, name) for name in WC.__slots__} for each in (wc, done[0])])
    assert seen[0] == seen[1]


def test_a_poll_takes_no_more_than_it_is_asked_for(ends: Ends) -> None:
    for _ in range(5):
        write(ends)
    assert until(lambda: ends.cqs[0]._ring.ready() and ends.qps[0].idle)
    ends.ctxs[0].runtime.rest()
    assert [ends.cqs[0].poll(2)[0] for _ in range(3)] == [2, 2, 1]
    assert ends.ctxs[0].driver.load(ends.cqs[0]._block, CQ_HEAD) == 5
