"""Congestion controls in simulated networks: what their papers publish of them, and a control of one's own."""

from __future__ import annotations

from math import inf
from statistics import mean, median
from typing import Any

import pytest

from rnic.cc.control import Ack, Control, Flow
from rnic.cc.hpcc import Hpcc
from rnic.cc.settings import CongestionSettings
from rnic.cc.swift import Swift
from rnic.cc.timely import Timely
from rnic.engine import use
from rnic.sim import Fabric, Topology, incast
from rnic.sim.measure import Measure

GBPS = 100
WIRE = 1_024 + 36 + 66
"""Bytes of a full packet on the wire, roughly."""
HERE = "tests.netsim.test_controls"
SEEN: list[tuple[int, float, float]] = []


class SwiftSeen(Swift):
    """Swift, whose delays are written down with their times and windows."""

    def on_ack(self, flow: Flow, ack: Ack) -> None:
        super().on_ack(flow, ack)
        SEEN.append((ack.now_ns, self.delay_ns, self.allowance))


class TimelySeen(Timely):
    """TIMELY, whose round trips are written down with their times and rates."""

    def on_ack(self, flow: Flow, ack: Ack) -> None:
        super().on_ack(flow, ack)
        SEEN.append((ack.now_ns, ack.rtt_ns, self.rate))


class HpccSeen(Hpcc):
    """HPCC, whose utilizations are written down with their times and windows."""

    def on_ack(self, flow: Flow, ack: Ack) -> None:
        super().on_ack(flow, ack)
        SEEN.append((ack.now_ns, self.used, self.allowance))


class Window(Control):
    """A window of four packets, which counts its events."""

    allowance = 4
    events: list[str]

    def __init__(self, flow: Flow, now_ns: int, *, events: list[str]) -> None:
        super().__init__(flow, now_ns)
        self.events = events
        self.timer_ns = now_ns + 20_000

    def on_ack(self, flow: Flow, ack: Ack) -> None:
        assert flow.inflight < 4
        assert ack.bytes == ack.packets * flow.mtu
        self.events.append("ack")

    def on_loss(self, flow: Flow, now_ns: int) -> None:
        self.events.append("loss")

    def on_timer(self, flow: Flow, now_ns: int) -> None:
        self.events.append("timer")
        self.timer_ns = now_ns + 20_000

    def on_sent(self, flow: Flow, size: int) -> None:
        raise AssertionError("it is not paced")


def run(name: str, flows: int, size: int, gbps: float = GBPS, **more: Any) -> tuple[list[int], list[int], int]:
    """An incast under a control: what SEEN got, its queue in the second half, and when the first flow ended."""
    SEEN.clear()
    topology = Topology.star(flows + 1, gbps=gbps, delay_ns=1_000)
    settings = {"congestion": CongestionSettings(f"{HERE}:{name}", parameters=more)}
    with Fabric(topology, settings=settings) as fabric:
        measure = Measure(fabric, 1_000)
        fabric.add(incast([f"h{at}" for at in range(flows)], f"h{flows}", size))
        ends = [result.end_ns for result in fabric.run()]
        (queue,) = (
            series for port, series in zip(measure.ports, measure.queues, strict=True) if port.name == f"s0 > h{flows}"
        )
    first = min(ends)
    held = [length for at, length in zip(measure.times_ns, queue, strict=True) if first / 2 < at < first]
    return ends, held, first


def swift_target_ns(flows: int) -> float:
    """Section 3.5 of the paper: the target delay where so many flows share a link, each with its part of the window."""
    swift = Swift(_Flow(), 0)
    for _ in range(200):
        swift.allowance = (swift.allowance + GBPS * swift.target_ns(1) / 8 / WIRE / flows) / 2
    return swift.target_ns(1)


class _Flow:
    number, mtu, packet_bytes, line_rate, most, inflight = 1, 1_024, 1_056, GBPS * 1e9, 1 << 20, 0


@pytest.mark.slow
@pytest.mark.parametrize("flows", [8, 32, 64])
def test_swifts_delay_follows_the_published_target_as_flows_are_added(flows: int) -> None:
    """The delay of the fabric rises with the number of flows as the target does (flow-based scaling), within 7 %."""
    _, _, first = run("SwiftSeen", flows, 12_000_000 // flows)
    delay = mean(delay for at, delay, _ in SEEN if first / 2 < at < first)
    assert delay == pytest.approx(swift_target_ns(flows), rel=0.07)


@pytest.mark.slow
def test_hpcc_keeps_its_queue_near_zero_at_95_percent() -> None:
    """Figure 11 of the paper: hardly a packet waits once the first round trips are over, and the link is busy."""
    _, held, first = run("HpccSeen", 4, 600_000)
    used = mean(used for at, used, _ in SEEN if first / 2 < at < first)
    assert median(held) < 4 * WIRE
    assert max(held) < 10 * WIRE
    assert used == pytest.approx(0.95, rel=0.05)


@pytest.mark.slow
def test_timely_keeps_its_round_trip_below_the_upper_threshold() -> None:
    """Section 4.3 of the paper, with its parameters at 10 Gb/s: above T_high the rate falls whatever the gradient."""
    _, _, first = run("TimelySeen", 4, 12_000_000, gbps=10)
    late = [rtt for at, rtt, _ in SEEN if first / 2 < at < first]
    assert 5_000 < mean(late) < max(late) < 500_000
    assert max(rtt for at, rtt, _ in SEEN if at < first / 10) > 50_000  # all began at half of the link's rate
    assert 4 * mean(rate for at, _, rate in SEEN if 0.9 * first < at < first) > 0.8 * 10e9


def events_of(settings: dict[str, Any], **star: Any) -> list[str]:
    events: list[str] = []
    parameters = {"events": events}
    settings = {**settings, "congestion": CongestionSettings(f"{HERE}:Window", parameters=parameters)}
    with Fabric(Topology.star(3, **star), settings=settings) as fabric:
        fabric.add(incast(["h0", "h1"], "h2", 60_000))
        fabric.run()
    return events


def test_a_control_of_ones_own_gets_its_events() -> None:
    events = events_of({})
    assert 2 * 60_000 / 1_024 / 4 <= events.count("ack") <= 2 * 60
    assert events.count("timer") >= 4
    assert "loss" not in events


@pytest.mark.slow
def test_a_control_of_ones_own_hears_of_losses() -> None:
    assert events_of({}, loss=0.02).count("loss") >= 1


@pytest.mark.skipif(use.ENGINE is None, reason="the engine is not compiled")
def test_an_error_in_a_control_ends_the_run() -> None:
    settings = {"congestion": CongestionSettings(f"{HERE}:Window", parameters={"events": None})}
    with Fabric(Topology.star(3), settings=settings) as fabric:
        fabric.add(incast(["h0", "h1"], "h2", 60_000))
        with pytest.raises(AttributeError, match="append"):
            fabric.run()
    assert Window.rate == inf
