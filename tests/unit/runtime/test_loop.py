from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rnic import enums as e
from rnic.device import Nic, NicConfig
from rnic.engine import use
from rnic.link.loopback import LoopbackLink, loopback_pair
from rnic.link.udp import UdpLink
from rnic.runtime import Runtime
from rnic.spec.rounds import RECEIVE_LIMIT
from rnic.verbs import (
    CQ,
    MR,
    PD,
    QP,
    SGE,
    AHAttr,
    CompChannel,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
)


def until(ready: Callable[[], bool], seconds: float = 5) -> bool:
    """Wait for another thread."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.0005)
    return True


def make(link: LoopbackLink | UdpLink) -> Runtime:
    return Runtime(Nic(NicConfig(link.address, link.port), rng=random.Random(1)), link)


class Ends:
    """Two NICs with a queue pair each, connected, over the UDP loopback."""

    def __init__(self) -> None:
        self.ctxs = [Context(addr="127.0.0.1", port=0) for _ in range(2)]
        self.channels = [CompChannel(ctx) for ctx in self.ctxs]
        self.pds = [PD(ctx) for ctx in self.ctxs]
        self.cqs = [CQ(ctx, 64, channel=channel) for ctx, channel in zip(self.ctxs, self.channels, strict=True)]
        self.qps = [
            QP(pd, QPInitAttr(cap=QPCap(16, 16), scq=cq, rcq=cq)) for pd, cq in zip(self.pds, self.cqs, strict=True)
        ]
        self.rights = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        self.mrs = [MR(pd, bytearray(1000), self.rights) for pd in self.pds]
        self.connect()

    def connect(self, keeps: bool = False, timers: bool = True, **fields: int) -> None:
        """Each queue pair to RTS towards the other, anew where it was connected before; ``fields`` of QPAttr."""
        for here, there in ((0, 1), (1, 0)):
            if self.qps[here].qp_state != e.IBV_QPS_RESET:
                self.qps[here].modify(QPAttr(e.IBV_QPS_RESET), e.IBV_QP_STATE)
            attr = QPAttr()
            attr.selective_repeat = attr.gso = keeps
            attr.probe, attr.timeout = timers, 14 if timers else 0
            attr.dest_qp_num = self.qps[there].qp_num
            attr.qp_access_flags = self.rights
            attr.ah_attr = AHAttr(GlobalRoute(self.ctxs[there].query_gid()), udp_dport=self.ctxs[there].udp_port)
            for name, value in fields.items():
                setattr(attr, name, value)
            self.qps[here].to_rts(attr)

    def write(self, sender: int, length: int = 8, opcode: int = e.IBV_WR_RDMA_WRITE) -> None:
        mr, there = self.mrs[sender], self.mrs[1 - sender]
        wr = SendWR(1, opcode, send_flags=e.IBV_SEND_SIGNALED, sg=[SGE(mr.buf, length, mr.lkey)])
        wr.set_wr_rdma(there.rkey, there.buf)
        self.qps[sender].post_send(wr)

    def send(self, sender: int) -> None:
        mr = self.mrs[sender]
        self.qps[sender].post_send(SendWR(1, sg=[SGE(mr.buf, 10, mr.lkey)]))

    def recv(self, receiver: int) -> None:
        mr = self.mrs[receiver]
        self.qps[receiver].post_recv(RecvWR(2, 1, [SGE(mr.buf, 100, mr.lkey)]))

    def close(self) -> None:
        for ctx in self.ctxs:
            ctx.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_a_passive_side_is_served_by_its_thread(ends: Ends) -> None:
    ends.mrs[1].write(b"passive", 7)
    ends.ctxs[1].runtime.rest()
    mr, there = ends.mrs[0], ends.mrs[1]
    wr = SendWR(1, e.IBV_WR_RDMA_READ, sg=[SGE(mr.buf, 7, mr.lkey)])
    wr.set_wr_rdma(there.rkey, there.buf)
    ends.qps[0].post_send(wr)
    assert until(lambda: ends.cqs[0].poll()[0] == 1)
    assert mr.read(7, 0) == b"passive"


def test_waiting_for_an_event_sleeps(ends: Ends) -> None:
    ends.recv(1)
    ends.cqs[1].req_notify()
    sender = threading.Timer(0.2, ends.send, [0])
    sender.start()
    before = time.process_time()
    assert ends.channels[1].get_cq_event() is ends.cqs[1]
    assert time.process_time() - before < 0.1, "who spins takes all of the 0.2 s"
    assert ends.cqs[1].poll()[1][0].wr_id == 2
    sender.join()


def test_no_event_is_lost_between_polling_and_arming(ends: Ends) -> None:
    """Both sides play ping-pong by events alone: one lost event would end it."""
    counts = [0, 0]

    def play(side: int) -> None:
        cq, channel = ends.cqs[side], ends.channels[side]
        cq.req_notify()
        while counts[side] < 50:
            channel.get_cq_event()
            cq.req_notify()
            for wc in cq.poll(16)[1]:
                assert wc.status == e.IBV_WC_SUCCESS
                if wc.opcode == e.IBV_WC_RECV:
                    counts[side] += 1
                    if counts[side] < 50 or side == 1:
                        ends.recv(side)
                        ends.send(side)

    for side in (0, 1):
        ends.recv(side)
    threads = [threading.Thread(target=play, args=(side,), daemon=True) for side in (0, 1)]
    for thread in threads:
        thread.start()
    assert until(lambda: all(cq.ctx.runtime.threaded for cq in ends.cqs))
    ends.send(0)
    for thread in threads:
        thread.join(10)
    assert counts == [50, 50]


def test_starting_and_closing_twice() -> None:
    link, other = loopback_pair()
    runtime = make(link)

    def threaded() -> bool:
        return runtime.threaded

    assert not threaded()
    runtime.start()
    runtime.start()
    assert threaded()
    runtime.close()
    runtime.close()
    assert not threaded()
    runtime.start()
    assert not threaded()
    runtime.kick()
    other.close()


def test_the_thread_ends_with_the_runtime() -> None:
    before = set(threading.enumerate())  # some of which may be about to end
    runtime = make(UdpLink("127.0.0.1", 0))
    runtime.start()
    assert len(set(threading.enumerate()) - before) == 1
    runtime.close()
    assert set(threading.enumerate()) <= before


def test_progress_leaves_a_busy_nic_alone() -> None:
    link, other = loopback_pair()
    runtime = make(link)
    found: list[bool] = []
    with runtime.lock:
        thread = threading.Thread(target=lambda: found.append(runtime.progress()))
        thread.start()
        thread.join()
    assert found == [False]
    runtime.close()
    other.close()


def test_the_thread_makes_way_for_an_application_that_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has work without end; an application that polls meanwhile finds the lock taken, once."""
    link, other = loopback_pair()
    runtime = make(link)
    monkeypatch.setattr(runtime, "clock", lambda: 1_000_000_000)  # however long the machine takes over the application
    rounds = 0

    def round_of_the_thread(now: int) -> bool:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            application = threading.Thread(target=runtime.progress)
            application.start()
            application.join()
        return True

    monkeypatch.setattr(runtime, "_round", round_of_the_thread)
    monkeypatch.setattr(runtime, "clock", lambda: 1 << 40)  # a loaded machine would let the moment pass
    with runtime.lock:
        runtime._rounds_and_sleep_time()
    assert rounds == 3
    runtime.close()
    other.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_finds_its_nics_closed() -> None:
    runtime = make(UdpLink("127.0.0.1", 0))
    runtime.start()
    child = os.fork()
    if child == 0:
        runtime.kick()
        os._exit(0 if runtime.closed and not runtime.threaded else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not runtime.closed
    assert runtime.threaded
    runtime.close()


def test_a_trickle_keeps_no_deadline_waiting_for_long() -> None:
    link, _ = loopback_pair(bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
    runtime = Runtime(Nic(NicConfig(bytes([10, 0, 0, 1])), rng=random.Random(1)), link)
    runtime._full_from = 1  # as on sockets
    few = [runtime._read_all(1) for _ in range(64)]
    assert [at for at, counts in enumerate(few, 1) if counts] == [16, 32, 48, 64]
    many = [runtime._read_all(RECEIVE_LIMIT) for _ in range(512)]
    assert [at for at, counts in enumerate(many, 1) if counts] == [256, 512]
    assert [runtime._read_all(count) for count in (1, 0)] == [False, True]
    runtime.close()


@pytest.mark.parametrize("engine", [True, False])
def test_what_came_in_time_is_not_late_behind_what_came_before(monkeypatch: pytest.MonkeyPatch, engine: bool) -> None:
    """A process that did not run for longer than its ACK timeout finds the ACK second in its socket, no retry left."""
    if engine and use.COMPILED is None:
        pytest.skip("the engine is not compiled")
    monkeypatch.setattr(use, "ENGINE", use.COMPILED if engine else None)
    ends = Ends()
    here, there = (ctx.runtime for ctx in ends.ctxs)
    with contextlib.closing(ends), here.lock, there.lock:  # their threads wait meanwhile
        ends.connect(timeout=8, retry_cnt=0, probe=False)
        ends.write(1)
        ends.write(0)
        while not there.nic.counters["rx_packets"] or there.nic.has_work():
            there.progress()  # the ACK leaves behind the WRITE
        deadline = here.nic.timers.next_ns()
        assert deadline is not None
        while here.clock() <= deadline:
            continue  # waits: until the ACK timeout has passed
        while not (found := ends.cqs[0].poll()[1]):
            here.progress()
        assert found[0].status == e.IBV_WC_SUCCESS
