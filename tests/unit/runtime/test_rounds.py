"""Rounds by the engine's pump on real sockets: no Python for what it knows, and the reference for all else."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from rnic import enums as e
from rnic.device.receiving import Receiving
from rnic.device.sending import Sending
from rnic.engine import use
from rnic.link.faults import FaultyLink
from rnic.link.middleware import Middleware
from rnic.link.udp import UdpLink
from rnic.rings.queue_block import SQ_TAIL
from rnic.runtime.loop import Runtime
from rnic.spec.states import ERR
from rnic.verbs import MR, MW, SGE, BindInfo, SendWR, next_key
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow
from tests.attempts import every_valid
from tests.unit.runtime.test_loop import Ends, until

if TYPE_CHECKING:
    from rnic.engine._engine import IoPoll

pytestmark = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")

FORGETTING_MS = 50
"""What came beyond a gap is forgotten after 100 ms; all else of an attempt takes a few."""


class Pumped(Ends):
    """Two NICs over UDP with the engine; calls of the reference are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.calls: list[str] = []
        reference = (
            (Receiving, "take"),
            (Sending, "take_over"),
            (Sending, "produce"),
            (Sending, "ring"),
            (UdpLink, "receive"),
        )
        for kind, name in reference:
            monkeypatch.setattr(kind, name, self.counted(name, getattr(kind, name)))

    def counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*values: Any) -> Any:
            self.calls.append(name)
            return call(*values)

        return counting

    def wait(self, sender: int, count: int = 1) -> list[int]:
        """Statuses of the next completions; both sides are polled."""
        found: list[int] = []
        end = time.monotonic() + 10
        while len(found) < count:
            for which in (0, 1):
                got = self.cqs[which].poll(8)[1] if which == sender else self.cqs[which].poll(0)[1]
                found += [wc.status for wc in got]
                self.ctxs[which].runtime.progress()
            assert time.monotonic() < end, "no completion came"
        return found

    def warm(self) -> None:
        """Until each side knows how the other numbers its packets."""
        for _ in range(8):
            for sender in (0, 1):
                self.write(sender)
                self.wait(sender)
        self.calls.clear()


def io_poll_of(runtime: Runtime) -> IoPoll:
    assert runtime._io_poll is not None
    return runtime._io_poll


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pumped]:
    monkeypatch.setattr(use, "ENGINE", use.COMPILED)
    made = Pumped(monkeypatch)
    yield made
    made.close()


Keeping = Callable[[Callable[[Pumped], None]], None]


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> Keeping:
    """Makes an attempt with two NICs of which each keeps what comes beyond a gap."""
    monkeypatch.setattr(use, "ENGINE", use.COMPILED)

    def keeps(what: Callable[[Pumped], None]) -> None:
        def attempt() -> None:
            ends = Pumped(monkeypatch)
            try:
                ends.connect(keeps=True, timers=False)
                ends.warm()
                what(ends)
            finally:
                ends.close()

        every_valid(attempt, limit_ms=FORGETTING_MS, why="what is kept is forgotten after 100 ms")

    return keeps


def test_a_small_write_passes_no_python_but_post_and_poll(ends: Pumped) -> None:
    ends.connect(timers=False)  # what is sent again is Python's
    ends.warm()
    before = [dict(ctx.runtime.nic.counters) for ctx in ends.ctxs]
    ends.calls.clear()
    for number in range(5):
        ends.mrs[0].write(bytes([number + 1]) * 8, 8)
        ends.write(0)
        assert ends.wait(0) == [0]
        assert ends.mrs[1].read(8, 0) == bytes([number + 1]) * 8
    here, there = [
        {name: count - old.get(name, 0) for name, count in ctx.runtime.nic.counters.items()}
        for ctx, old in zip(ends.ctxs, before, strict=True)
    ]
    assert ends.calls == []
    assert (here["tx_packets"], here["tx_bytes"], here["rx_bytes"], there["rx_bytes"]) == (5, 200, 100, 200)


def test_what_the_engine_leaves_python_does_and_it_goes_on(ends: Pumped) -> None:
    """A window bound by a work request, and the SEND that invalidates it, between WRITEs that are the engine's."""
    ends.warm()
    region = MR(ends.pds[1], bytearray(64), e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND)
    window = MW(ends.pds[1], e.IBV_MW_TYPE_2)
    for _ in range(3):
        bind = SendWR(1, e.IBV_WR_BIND_MW)
        bind.set_bind_wr(window, next_key(window.rkey), BindInfo(region, region.buf, 64, e.IBV_ACCESS_REMOTE_WRITE))
        ends.qps[1].post_send(bind)
        assert ends.wait(1) == [0]
        ends.recv(1)
        gone = SendWR(1, e.IBV_WR_SEND_WITH_INV, sg=[SGE(ends.mrs[0].buf, 8, ends.mrs[0].lkey)])
        gone.invalidate_rkey = window.rkey
        ends.qps[0].post_send(gone)
        ends.write(0)
        assert ends.wait(0, 2) == [0, 0]
        assert ends.wait(1) == [0]
    assert "take" in ends.calls
    assert "take_over" in ends.calls
    assert "receive" not in ends.calls


def test_a_doorbell_beyond_the_ring_is_the_reference_s(ends: Pumped) -> None:
    ends.warm()
    driver: Any = ends.ctxs[0].driver
    qp = driver.nic.qps[ends.qps[0].qp_num]
    driver.store(qp.regs.block, SQ_TAIL, qp.sq_entries)
    driver.kick()
    assert (qp.ctx.state, driver.nic.counters["bad_doorbells"]) == (ERR, 1)
    assert "ring" in ends.calls


def test_a_doorbell_of_what_is_not_cached_waits(ends: Pumped) -> None:
    ends.warm()
    nic: Any = ends.ctxs[0].runtime.nic
    qp = nic.qps[ends.qps[0].qp_num]
    del nic.contexts.key.qps[qp.number]
    tail = qp.requester.tail
    ends.write(0)
    assert qp.requester.tail == tail
    assert qp.held
    assert not nic.load_contexts(qp)
    assert ends.wait(0) == [0]
    assert qp.requester.tail == tail + 1


def test_senders_are_unknown_until_their_idents_are_known(ends: Pumped) -> None:
    """Bytes from somebody else are the reference's, which counts what is wrong with them."""
    ends.warm()
    link = ends.ctxs[1].runtime.link
    counters = ends.ctxs[1].runtime.nic.counters
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stranger.sendto(bytes(40), ("127.0.0.1", link.port))
    stranger.sendto(b"", ("127.0.0.1", link.port))
    end = time.monotonic() + 30
    while "take" not in ends.calls or not counters.get("drop_too_short"):
        ends.ctxs[1].runtime.progress()
        assert time.monotonic() < end
    stranger.close()


def test_packets_of_a_new_sender_are_the_engine_s_from_the_second_on(ends: Pumped) -> None:
    """As long as they have the idents expected; the reference hears how many, and drops what it holds."""
    for _ in range(2):
        ends.write(0)
        assert ends.wait(0) == [0]
    link: Any = ends.ctxs[1].runtime.link
    (flow,) = [flow for flow in link._inboxes[0].flows.values() if flow.idents is not None]
    flow.idents.hold(50_000, RxBurst(flow, memoryview(bytes(40)), 40, 40, 50_000), 0)
    flow.settled = False
    ends.calls.clear()
    for _ in range(128):
        ends.write(0)
        assert ends.wait(0) == [0]
    assert "take" not in ends.calls
    sender: Any = ends.ctxs[0].runtime.link
    sender.outlets[0].socket.sendto(bytes(40), ("127.0.0.1", link.port))
    end = time.monotonic() + 30
    while not flow.settled:
        ends.ctxs[1].runtime.progress()
        assert time.monotonic() < end
    assert ends.ctxs[1].runtime.nic.counters["drop_ident"] == 1


def test_posts_keep_the_thread_off_once_until_a_poll_comes(ends: Pumped) -> None:
    """Who posts on and on and never polls has his NIC driven by its thread all the same."""
    loop = ends.ctxs[0].runtime.engine_loop
    assert loop is not None
    ends.ctxs[0].runtime.listens = False
    loop.progress()
    loop.prepare_to_sleep()
    ends.write(0)
    first = loop.last_poll
    assert first > 0
    for _ in range(3):
        ends.write(0)
        assert loop.last_poll == first
    loop.progress()
    polled = loop.last_poll
    ends.write(0)
    assert loop.last_poll > polled
    assert ends.wait(0, 5) == [0] * 5
    ends.ctxs[0].runtime.listen()
    loop.progress()
    polled = loop.last_poll
    ends.write(0)
    assert loop.last_poll == polled, "it waits by descriptors"
    assert ends.wait(0) == [0]


def test_faults_and_taps_take_the_reference(ends: Pumped) -> None:
    ends.warm()
    runtime: Any = ends.ctxs[0].runtime
    assert runtime._engine_polls
    runtime.faults()
    assert not runtime._engine_polls
    ends.write(0)
    assert ends.wait(0) == [0]
    assert "produce" in ends.calls


def test_a_tracer_and_a_group_take_the_reference(ends: Pumped) -> None:
    second: Any = ends.ctxs[1].runtime
    link: Any = second.link
    link.lone = False
    assert not second._engine_polls
    link.lone = True
    assert second._engine_polls


def test_a_guard_takes_the_reference_for_its_own_queue_pair_alone(ends: Pumped) -> None:
    """The rounds stay compiled: packets that a guard looks at are handed over, one by one."""
    second: Any = ends.ctxs[1].runtime
    memory, qpn = second.nic.memory, ends.qps[1].qp_num
    asked: list[int] = []

    def guard(key: int, pd: int, va: int, length: int, rights: int) -> Any:
        asked.append(length)
        return memory.check(key, pd, va, length, rights, qpn, alone=True)

    ends.warm()
    memory.set_guard(qpn + 1, guard)
    assert second._engine_polls
    ends.calls.clear()
    ends.write(0)
    assert ends.wait(0) == [0]
    assert (asked, "take" in ends.calls) == ([], False)
    memory.set_guard(qpn, guard)
    assert second._engine_polls
    ends.write(0)
    assert ends.wait(0) == [0]
    assert asked
    assert "take" in ends.calls
    memory.set_guard(qpn, None)
    ends.calls.clear()
    asked.clear()
    ends.write(0)
    assert ends.wait(0) == [0]
    assert (asked, "take" in ends.calls) == ([], False)


def test_options_of_the_socket_are_the_link_s_and_the_pump_s(ends: Pumped) -> None:
    """Each knows what the other set last: packets leave with the class of their own path."""
    ends.warm()
    runtime: Any = ends.ctxs[0].runtime
    outlet = runtime.link.outlets[0]

    def system() -> int:
        return int(outlet.socket.getsockopt(socket.IPPROTO_IP, socket.IP_TOS))

    usual = system()
    flow = runtime.link.local_flow(bytes((127, 0, 0, 1)), ends.ctxs[1].udp_port)
    flow.tclass = usual ^ 0x20
    runtime._io_poll.send_bursts([TxBurst(flow, [bytes(20)], 20, 1, 20)])
    assert system() == outlet.tclass == usual ^ 0x20
    ends.write(0)
    assert ends.wait(0) == [0]
    assert system() == usual
    runtime._io_poll.send_bursts([])
    assert outlet.tclass == usual

    def priority() -> int:
        return int(outlet.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY))

    flow.sl = 1
    runtime._io_poll.send_bursts([TxBurst(flow, [bytes(20)], 20, 1, 20)])
    assert priority() == outlet.sl == 1
    ends.write(0)
    assert ends.wait(0) == [0]
    assert (priority(), runtime._engine_polls) == (0, True)
    runtime._io_poll.send_bursts([])
    assert outlet.sl == 0


def test_a_closed_runtime_has_no_pump(ends: Pumped) -> None:
    """The system gives its descriptors to others."""
    runtime: Any = ends.ctxs[0].runtime
    ends.ctxs[0].close()
    assert runtime._io_poll is None
    ends.calls.clear()
    assert not runtime.progress()
    assert not ends.calls


def test_what_the_pump_loses_is_the_seed_s_and_the_transport_s_to_repeat(ends: Pumped) -> None:
    ends.warm()
    lost = [ctx.runtime.nic.counters["fault_rx_drop"] for ctx in ends.ctxs]
    ends.ctxs[1].runtime.drop_one_in(4, seed=1)
    for _ in range(8):
        for _ in range(8):
            ends.write(0)
        assert ends.wait(0, 8) == [e.IBV_WC_SUCCESS] * 8
    ends.ctxs[1].runtime.drop_one_in(0)
    assert ends.ctxs[0].runtime.nic.counters["fault_rx_drop"] == lost[0]
    assert ends.ctxs[1].runtime.nic.counters["fault_rx_drop"] - lost[1] >= 8
    assert ends.ctxs[0].runtime.nic.counters["rewinds"] > 0
    assert "receive" not in ends.calls, "the link's own receive: the pump gave up"


def test_what_comes_by_sockets_for_idents_is_lost_by_the_same_rules(
    ends: Pumped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets of senders that count their idents come by sockets that C does not read."""
    ends.warm()
    runtime = ends.ctxs[1].runtime
    flow = Flow(bytes(4), bytes(4), 1)
    packets = [RxBurst(flow, memoryview(bytes([n]) * 20), 20, 20) for n in range(60)]
    got: list[int] = []
    with runtime.lock, monkeypatch.context() as patch:
        before = runtime.nic.counters["fault_rx_drop"]
        patch.setattr(runtime.nic, "receive", lambda burst, now: got.extend(burst.buf[::20]))
        patch.setattr(runtime, "idents", lambda drained, limit: packets)
        runtime.drop_one_in(3, seed=7)
        assert runtime.receive_idents(0, True)
        runtime.drop_one_in(0)
        assert runtime.receive_idents(0, True)
    kept, rest = got[:-60], got[-60:]
    assert rest == list(range(60)), "none is lost any more"
    assert kept == sorted(kept)
    assert 25 < len(kept) < 55
    assert runtime.nic.counters["fault_rx_drop"] - before == 60 - len(kept)


@pytest.mark.parametrize("way", ["insert", "faults", "tap", "drop_one_in"])
def test_what_is_delayed_passes_before_compiled_rounds_end(ends: Pumped, way: str) -> None:
    """A packet that a rule delays for minutes is neither held until then nor lost without a count."""
    ends.warm()
    runtime = ends.ctxs[1].runtime
    poll = io_poll_of(runtime)
    script = [{"match": {"direction": "rx"}, "times": 1, "action": "delay", "delay_ns": 300_000_000_000}]
    with runtime.lock:
        runtime.link = FaultyLink(runtime.link, clock=runtime.clock, rng=random.Random(1), script=script)
        runtime._have_judge(poll, runtime.link)
        ends.write(0)
        while poll.held_deadline_ns() is None:
            runtime.progress()
        before, sent = runtime.nic.counters["rx_packets"], ends.ctxs[0].runtime.nic.counters["tx_packets"]
        if way == "insert":
            runtime.insert(Middleware)
        elif way == "faults":
            runtime.faults()
        elif way == "tap":
            runtime.tap().answer("x 0 1")
        else:
            runtime.drop_one_in(0)
        assert poll.held_deadline_ns() is None
        got, again = runtime.nic.counters["rx_packets"], ends.ctxs[0].runtime.nic.counters["tx_packets"] - sent
        assert before + 1 <= got <= before + 1 + again, "and what was sent again meanwhile"
    assert ends.wait(0) == [e.IBV_WC_SUCCESS]


def write_and_lose(ends: Pumped, loses: bool) -> None:
    """A WRITE that arrives and is taken, or lost."""
    there = ends.ctxs[1].runtime
    name = "fault_rx_drop" if loses else "rx_packets"
    before = there.nic.counters[name]
    there.drop_one_in(int(loses))
    ends.write(0)
    end = time.monotonic() + 10
    while there.nic.counters[name] == before:
        there.progress()
        assert time.monotonic() < end
    there.drop_one_in(0)


def behind_a_gap(ends: Pumped, lost: int, count: int) -> dict[str, int]:
    """Of ``count`` WRITEs in a row the one at place ``lost`` does not arrive; what the target counted of all."""
    there = ends.ctxs[1].runtime
    before = dict(there.nic.counters)
    with ends.ctxs[0].runtime.lock:  # its thread does not answer the NAK meanwhile
        for place in range(count):
            write_and_lose(ends, place == lost)
    assert there.nic.counters["sequence_naks_sent"] == before.get("sequence_naks_sent", 0) + 1
    assert ends.wait(0, count) == [e.IBV_WC_SUCCESS] * count
    return {name: value - before.get(name, 0) for name, value in there.nic.counters.items()}


def test_what_comes_beyond_a_gap_is_dropped_where_nothing_is_agreed(ends: Pumped) -> None:
    ends.connect(timers=False)
    ends.warm()
    before = dict(ends.ctxs[0].runtime.nic.counters)
    there = behind_a_gap(ends, 0, 4)
    here = ends.ctxs[0].runtime.nic.counters
    assert (there["drop_psn_gap"] + there.get("drop_naked", 0), there.get("drop_duplicate", 0)) == (3, 0)
    assert here["rewinds"] == before.get("rewinds", 0) + 1
    assert here["retransmitted_packets"] == before.get("retransmitted_packets", 0) + 4
    assert there["rx_packets"] == 7


def test_selective_repeat_requests_only_the_missing_packet(keeping: Keeping) -> None:
    def tried(ends: Pumped) -> None:
        before = dict(ends.ctxs[0].runtime.nic.counters)
        there = behind_a_gap(ends, 0, 4)
        here = ends.ctxs[0].runtime.nic.counters
        assert (there["drop_psn_gap"] + there.get("drop_naked", 0), there.get("drop_duplicate", 0)) == (3, 0)
        assert here["rewinds"] == before.get("rewinds", 0)
        assert here["retransmitted_packets"] == before.get("retransmitted_packets", 0) + 1
        assert there["rx_packets"] == 4, "what is kept counts once, when it comes"

    keeping(tried)


def test_two_gaps_are_named_one_after_the_other(keeping: Keeping) -> None:
    """The second at once when the first is filled, though nothing else comes."""

    def tried(ends: Pumped) -> None:
        there = ends.ctxs[1].runtime
        naks = there.nic.counters["sequence_naks_sent"]
        with ends.ctxs[0].runtime.lock:
            for lost in (True, False, True, False, False):
                write_and_lose(ends, lost)
        ends.wait(0, 5)
        assert there.nic.counters["sequence_naks_sent"] == naks + 2
        assert there.nic.counters["drop_psn_gap"] + there.nic.counters["drop_naked"] == 3, "each once, when it came"

    keeping(tried)


def test_what_was_kept_is_taken_before_what_comes_behind_the_missing_packet(keeping: Keeping) -> None:
    """That and a new message come in one burst."""

    def tried(ends: Pumped) -> None:
        here, there = (ctx.runtime for ctx in ends.ctxs)
        naks = there.nic.counters["sequence_naks_sent"]
        with here.lock:
            for lost in (True, False):
                write_and_lose(ends, lost)
            before, came = here.nic.counters["tx_packets"], here.nic.counters["rx_packets"]
            end = time.monotonic() + 10
            while here.nic.counters["rx_packets"] == came:  # it takes the NAK, and has not answered it
                io_poll_of(here).poll(here.clock(), 1)
                assert time.monotonic() < end
            assert here.nic.counters["tx_packets"] == before
            ends.write(0)
            assert here.nic.counters["tx_packets"] == before + 2
        ends.wait(0, 3)
        assert there.nic.counters["sequence_naks_sent"] == naks + 1

    keeping(tried)


def test_packets_held_before_a_reset_do_not_reach_the_next_connection(keeping: Keeping) -> None:
    """It has the PSNs, the addresses and the queue pair numbers of the one before."""

    def tried(ends: Pumped) -> None:
        there = ends.ctxs[1].runtime
        psn = ends.qps[1].query(e.IBV_QP_RQ_PSN)[0].rq_psn
        with ends.ctxs[0].runtime.lock:
            for lost in (True, False):
                ends.mrs[0].write(b"kept" * 2, 8)
                write_and_lose(ends, lost)
            assert there.nic.counters["sequence_naks_sent"] == 1
            ends.connect(keeps=True, timers=False)
        for number in range(psn + 4):
            ends.mrs[0].write(number.to_bytes(8, "big"), 8)
            ends.write(0)
            assert ends.wait(0) == [e.IBV_WC_SUCCESS]
            assert ends.mrs[1].read(8, 0) == number.to_bytes(8, "big")
            if number == psn - 2:  # what comes beyond a gap again has the pump look at what it keeps
                with ends.ctxs[0].runtime.lock:
                    for lost in (True, False):
                        write_and_lose(ends, lost)
                assert ends.wait(0, 2) == [e.IBV_WC_SUCCESS] * 2
                assert ends.mrs[1].read(8, 0) == number.to_bytes(8, "big")
        assert there.nic.counters["sequence_naks_sent"] == 2

    keeping(tried)


def test_what_is_kept_is_forgotten_after_a_tenth_of_a_second(ends: Pumped) -> None:
    """Whoever sends the missing packet so late sends what followed it once more."""
    ends.connect(keeps=True, timers=False)
    ends.warm()
    there = ends.ctxs[1].runtime
    before = dict(there.nic.counters)
    with ends.ctxs[0].runtime.lock, there.lock:
        for lost in (True, False):
            write_and_lose(ends, lost)
        late = there.clock() + 100_000_000
        io_poll_of(ends.ctxs[0].runtime).poll(ends.ctxs[0].runtime.clock(), 1)
        ends.write(0)
        io_poll_of(there).poll(late, 1)  # the missing packet, and a new one behind what was kept
    assert ends.wait(0, 3) == [e.IBV_WC_SUCCESS] * 3
    assert there.nic.counters["sequence_naks_sent"] == before.get("sequence_naks_sent", 0) + 2
    assert ends.ctxs[0].runtime.nic.counters["rewinds"] == 1


def test_a_nak_does_not_wait_for_what_else_has_come(ends: Pumped) -> None:
    """One round takes a burst behind a gap and the bursts behind it; the NAK leaves before these are looked at."""
    ends.connect(timers=False)
    ends.warm()
    there = ends.ctxs[1].runtime
    with ends.ctxs[0].runtime.lock, there.lock:  # no thread takes or repeats anything meanwhile
        write_and_lose(ends, True)
        ends.write(0)
        before = there.nic.counters["tx_packets"]
        there.progress()  # it takes packets and, by the rule for replies, would send none
        assert there.nic.counters["sequence_naks_sent"] > 0
        assert there.nic.counters["tx_packets"] == before + 1


def test_an_acknowledgement_leaves_in_the_burst_of_the_answer(ends: Pumped) -> None:
    ends.warm()
    here, there = (ctx.runtime for ctx in ends.ctxs)
    with here.lock, there.lock:  # no thread acknowledges, or takes anything, meanwhile
        came = there.nic.counters["rx_packets"]
        ends.write(0)
        assert until(lambda: there.progress() and there.nic.counters["rx_packets"] > came)  # shown, not acknowledged
        before = here.nic.counters["rx_packets"]
        ends.write(1)
        bursts, _ = io_poll_of(here).poll(here.clock(), 1)
        assert (bursts, here.nic.counters["rx_packets"] - before) == (1, 2)


def test_a_write_back_does_not_wait_until_the_socket_is_empty(ends: Pumped, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the runtime's thread turns without rest as long as packets come faster than it reads them."""
    runtime = ends.ctxs[1].runtime
    nic = runtime.nic
    ends.write(0)
    assert ends.wait(0) == [0]
    loop = runtime.engine_loop
    assert loop is not None
    slept: list[float | None] = []
    monkeypatch.setattr(runtime, "_round", lambda now: True)  # a round that leaves packets, and so handles no deadline
    monkeypatch.setattr(runtime, "_sleep", lambda descriptors, timeout: slept.append(timeout))
    monkeypatch.setattr(runtime, "_engine_thread", True)
    loop.prepare_to_sleep()
    monkeypatch.setattr(runtime, "_last_poll", 0)
    nic.write_back_at = runtime.clock() - 1
    assert runtime._assist_engine_thread()
    (timeout,) = slept
    assert timeout is None or timeout > 0
