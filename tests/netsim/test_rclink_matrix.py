"""RC Link over a bad network in virtual time: fault x rate x seed, three QPs each way.

Every packet arrives once, in order and whole. A QP that used up its retries is a legal end at 20 %: the recovery
procedure sets it up again, and what it threw away is sent anew.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

import pytest

from rnic.link.faults import FaultRates
from rnic.rclink import RcLinkEndpoint, Recovery, expect
from rnic.rclink.endpoint import IRQ_RETRY_OUT
from rnic.testing import RcLinkNet
from rnic.trace.tracer import ListTracer

QPS = 3
FAULTS = {
    "loss": ("drop",),
    "duplicate": ("duplicate",),
    "reorder": ("reorder",),
    "delay": ("delay",),
    "corrupt": ("corrupt",),
    "mixed": ("drop", "duplicate", "reorder", "delay", "corrupt"),
}
COUNTED: Counter[str] = Counter()


class Traffic:
    """What one direction of one QP has to send, and what arrived of it."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self.todo = deque((number, rng.randbytes(rng.choice([1, 7, 64, 119, 120, 700]))) for number in range(count))
        self.under_way: deque[tuple[int, bytes]] = deque()
        self.wanted = deque(self.todo)
        self.thrown: list[object] = []

    def arrived(self, payload: bytes) -> None:
        assert self.wanted, "more arrived than was sent"
        assert payload == self.wanted.popleft()[1], "lost, doubled, out of order or harmed"


class Run:
    """Two endpoints, and hosts that keep their QPs busy."""

    def __init__(self, fault: str, rate: float, seed: int, count: int, tracer: ListTracer | None = None) -> None:
        faults: dict[str, Any] = dict.fromkeys(FAULTS[fault], rate)
        rates = FaultRates(**faults, delay_ns=(1_000, 60_000), behind=6)
        settings: dict[str, Any] = {"qp_num": QPS, "ost": 24, "rx_packets": 2, "rnr_timer": 1}
        self.net = RcLinkNet(seed=seed, tx=rates, packet_ns=1_000, latency_ns=5_000, tracer=tracer, settings=settings)
        self.rate = rate
        self.ends = [port.endpoint for port in self.net.ports]
        rng = random.Random(f"{fault} {rate} {seed}")
        self.traffic = {(end, qpid): Traffic(rng, count) for end in (0, 1) for qpid in range(QPS)}
        self.reads = random.Random(seed)
        self.recovering: dict[tuple[int, int], Recovery] = {}
        for qpid in range(QPS):
            self.net.connect(0, qpid, 1, qpid, rng.getrandbits(12), rng.getrandbits(12))

    def host(self, end: int) -> None:
        """One turn of a host: sends, takes completions and, not always, packets; recovers."""
        endpoint, other = self.ends[end], self.ends[1 - end]
        for qpid in range(QPS):
            traffic = self.traffic[end, qpid]
            # a few at a time, so that no QP takes all slots
            runs = endpoint.qps[qpid].enabled and not endpoint.qps[qpid].stopped
            if traffic.todo and runs and len(traffic.under_way) < 8 and endpoint.free_slots:
                number, payload = traffic.todo.popleft()
                endpoint.send(qpid, payload, fack=number % 5 == 0, tag=number)
                traffic.under_way.append((number, payload))
        self.completions(end)
        if self.reads.random() < 0.3:
            self.take(end)
        while (interrupt := endpoint.next_interrupt()) is not None:
            code, qpid = interrupt
            if code == IRQ_RETRY_OUT:
                assert self.rate >= 0.2, "gave up at a rate that it should survive"
                COUNTED["recoveries"] += 1
                self.recovering[end, qpid] = Recovery(endpoint, qpid, self.net.path(1 - end, qpid))
        for (who, qpid), recovery in list(self.recovering.items()):
            if who == end and recovery.advance(self.net.clock.now_ns) is None:
                del self.recovering[end, qpid]
                expect(other, qpid, recovery.psn)
                self.send_again(endpoint, end, qpid)

    def send_again(self, endpoint: RcLinkEndpoint, end: int, qpid: int) -> None:
        """What recovery threw away may have arrived all the same; what has not arrived is sent again."""
        traffic = self.traffic[end, qpid]
        self.completions(end)
        assert traffic.thrown == [number for number, _ in traffic.under_way]
        traffic.thrown.clear()
        # packets that wait at the other host to be taken count as arrived
        self.take(1 - end)
        undelivered = {number for number, _ in traffic.wanted}
        traffic.todo.extendleft(reversed([pair for pair in traffic.under_way if pair[0] in undelivered]))
        traffic.under_way.clear()

    def completions(self, end: int) -> None:
        while (sent := self.ends[end].next_sent()) is not None:
            traffic = self.traffic[end, sent.qpid]
            if sent.ok:
                assert sent.tag == traffic.under_way.popleft()[0]
            else:
                traffic.thrown.append(sent.tag)

    def take(self, end: int) -> None:
        while (received := self.ends[end].recv()) is not None:
            self.traffic[1 - end, received.qpid].arrived(received.payload)

    def play(self) -> None:
        def over() -> bool:
            self.host(0)
            self.host(1)
            return not any(one.wanted or one.under_way or one.todo for one in self.traffic.values())

        # hosts that wait for a recovery's next step are no part of the simulated world: where it is quiet, time passes
        for _ in range(2_000):  # waits: in steps of simulated time
            if self.net.run(over):
                break
            self.net.run_for(5_000)
        assert over(), "nothing moves any more"
        for endpoint in self.ends:
            assert endpoint.free_slots == 24
            assert endpoint.counters["internal_errors"] == 0
            COUNTED.update(endpoint.counters)


CELLS = [(fault, rate) for fault in FAULTS for rate in (0.0, 0.01, 0.05, 0.2) if rate or fault == "loss"]


@pytest.mark.parametrize(("fault", "rate"), CELLS)
def test_cell(fault: str, rate: float) -> None:
    Run(fault, rate, seed=1, count=20).play()


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("fault", "rate"), CELLS)
def test_whole_cell(fault: str, rate: float, seed: int) -> None:
    """More packets each way than there are PSNs."""
    Run(fault, rate, seed, count=4_200 if rate < 0.2 else 500).play()


def test_same_seed_same_trace() -> None:
    traces = []
    for seed in (5, 5, 6):
        tracer = ListTracer()
        Run("mixed", 0.2, seed, 10, tracer).play()
        traces.append(tracer.events)
    assert traces[0] == traces[1] != traces[2]


PATHS = {
    "packets sent again": "retransmitted_packets",
    "a gap is NAKed": "naks_sent",
    "the sender goes back to it": "naks_received",
    "nothing is heard for a time": "timeouts",
    "packets behind a gap are dropped": "drop_psn_gap",
    "duplicates are dropped and acknowledged": "drop_duplicate",
    "old ACKs count for nothing": "drop_stale_response",
    "a corrupted packet": "drop_bad_icrc",
    "the inbox is full": "drop_no_receive",
    "which the receiver tells": "rnr_naks_sent",
    "and the sender waits for": "rnr_naks_received",
    "the retry limit": "retries_exceeded",
    "its interrupt": "interrupts",
    "the recovery procedure": "recoveries",
}


@pytest.mark.slow
def test_every_recovery_path_fired(capsys: pytest.CaptureFixture[str]) -> None:
    COUNTED.clear()
    for fault in FAULTS:
        Run(fault, 0.2, 2, 20).play()
    for seed in range(4):
        Run("mixed", 0.4, seed, 12).play()
    with capsys.disabled():
        print("\n\nRC Link, recovery in the fault matrix")
        for what, counter in PATHS.items():
            print(f"  {what:<44}{COUNTED[counter]:>8}  {counter}")
    for what, counter in PATHS.items():
        assert COUNTED[counter], what
