"""A device's thread in C: it acknowledges and sends again while the program computes, sleeps, or ended a ping-pong."""

# ruff: noqa: F811 - a fixture that is imported has the name of the arguments that ask for it

from __future__ import annotations

import errno
import select
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import pytest

import rnic
from rnic.engine import use
from rnic.verbs import QP, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr
from tests.forks import child_says
from tests.unit.runtime.test_loop import Ends, ends, until  # noqa: F401 - a fixture
from tests.verbs.test_two_processes import process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(use.ENGINE is None, reason="the engine is not compiled, or not in use: no thread in C"),
]

COMPUTING = """
    import sys
    import numpy as np
    import rnic
    words = np.zeros(4, np.int64)
    listener = rnic.listen(sys.argv[1], 0, udp_port=0).share(words=words)
    print(listener.port, flush=True)
    sys.stdin.readline()
    print("computing", flush=True)
    number = 7 ** 4_000_000  # one step of the interpreter: nobody else has it for about a second
    print(number.bit_length(), int(words[1]), flush=True)
    sys.stdin.readline()
"""


def test_a_program_that_keeps_the_interpreter_is_served_meanwhile() -> None:
    """WRITEs of many packets and atomics, whose answers no Python makes; the program finds all of them on looking."""
    with process(COMPUTING, "127.0.0.1") as (child, port), rnic.connect("127.0.0.1", port, udp_port=0) as peer:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(20):
            peer.fetch_add("words", 0, 1)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "computing\n"
        time.sleep(0.02)
        done = 0
        while not select.select([child.stdout], [], [], 0)[0] and done < 500:
            assert peer.fetch_add("words", 1, 1) == done
            done += 1
            assert peer.read("words")[1] == done
        seen = int(child.stdout.readline().split()[1])
        assert 50 < seen <= done, "they came before the program took its next step"


def test_an_ended_ping_pong_of_two_contexts_loses_no_acknowledgement(ends: Ends) -> None:
    """Each side stops polling with its last message; nobody polls any more, and both last sends complete."""
    sent = [0, 0]

    def polled(side: int) -> bool:
        ids = [wc.wr_id for wc in ends.cqs[side].poll(8)[1]]
        sent[side] += ids.count(1)
        return 2 in ids

    for _ in range(20):
        for here, there in ((0, 1), (1, 0)):
            ends.recv(there)
            ends.send(here)
            assert until(partial(polled, there))
    assert sent[1] < 20, "the last message was acknowledged before its receiver stopped polling: nothing is shown"
    for side, cq in enumerate(ends.cqs):
        assert sent[side] == 20 or until(cq.ready)


def test_what_is_lost_is_sent_again_while_nobody_polls(ends: Ends) -> None:
    there = ends.ctxs[1].runtime
    there.drop_one_in(2, seed=5)
    counters = ends.ctxs[0].nic.counters
    ends.recv(1)
    for _ in range(10):
        ends.send(0)
        ends.recv(1)
    assert until(lambda: ends.ctxs[1].nic.counters["fault_rx_drop"] > 0)
    assert until(ends.cqs[0].ready)
    assert until(lambda: ends.ctxs[0].nic.counters["retransmitted_packets"] > 0)
    assert counters["tx_packets"] > 10


def test_an_open_turn_of_the_c_thread_ends_with_its_queue_pair(ends: Ends) -> None:
    """It stops where only Python finds a queue pair's rings; whoever gets the lock next destroys that queue pair."""
    runtime, nic = ends.ctxs[0].runtime, ends.ctxs[0].nic
    assert runtime.engine_loop is not None
    assert nic.engine_device is not None
    interval = sys.getswitchinterval()
    stopped = 0
    try:
        sys.setswitchinterval(5)  # the thread in Python, which does what C asks for, is kept from it meanwhile
        for _ in range(20):
            qp = QP(ends.pds[0], QPInitAttr(cap=QPCap(16, 16), scq=ends.cqs[0], rcq=ends.cqs[0]))
            attr = QPAttr()
            attr.dest_qp_num = ends.qps[1].qp_num
            attr.ah_attr = AHAttr(GlobalRoute(ends.ctxs[1].query_gid()), udp_dport=ends.ctxs[1].udp_port)
            qp.to_rts(attr)
            ends.ctxs[0].runtime.rest()
            with runtime.lock:
                nic.schedule(nic.resources.qps[qp.qp_num])
                nic.engine_device.invalidate()
            until_ns = time.monotonic_ns() + 2_000_000
            while time.monotonic_ns() < until_ns and not runtime.engine_loop.pending:
                pass
            stopped += runtime.engine_loop.pending
            qp.close()
    finally:
        sys.setswitchinterval(interval)
    assert stopped, "the thread in C has never stopped in a turn: nothing is shown"
    ends.recv(1)
    ends.send(0)
    assert until(ends.cqs[0].ready)
    assert nic.counters["own_errors"] == 0


def test_contexts_that_nobody_closes_end_with_their_program() -> None:
    code = """
        import rnic, threading
        from tests.unit.runtime.test_loop import Ends
        ends = Ends()
        ends.recv(1)
        ends.send(0)
        assert any(thread.name.startswith("rnic") for thread in threading.enumerate())
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_has_no_thread_and_harms_its_parents_as_little(ends: Ends) -> None:
    def is_refused() -> bool:
        with pytest.raises(rnic.VerbsError, match="open it again here") as refused:
            ends.cqs[0].poll()
        return ends.ctxs[0].runtime.closed and refused.value.errno == errno.EIO

    assert child_says(is_refused)
    ends.recv(1)
    ends.send(0)
    assert until(ends.cqs[0].ready)


def test_commands_and_rounds_in_c_take_turns(ends: Ends) -> None:
    """Threads that command, post and look while the thread in C serves: nothing is lost and nobody waits for ever."""
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            ends.ctxs[0].query_port(1)
            _ = ends.ctxs[1].nic.counters["rx_packets"]

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(100):
            ends.recv(1)
            ends.send(0)
            assert until(ends.cqs[0].ready)
            assert ends.cqs[0].poll(4)[0] == 1
            assert until(ends.cqs[1].ready)
            assert ends.cqs[1].poll(4)[0] == 1
    finally:
        stop.set()
        for looker in lookers:
            looker.join(10)
