"""NICs on a fabric of switches: the real transport, in virtual time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rnic.cc.settings import CongestionSettings
from rnic.sim import Fabric, Flow, Topology, TopologyError, incast, permutation
from rnic.verbs import enums as e

KIB = 1 << 10
PFC = {"buffer_bytes": 64 * KIB, "xoff_bytes": 8 * KIB, "xon_bytes": 6 * KIB, "headroom_bytes": 16 * KIB}


def outcome(fabric: Fabric) -> list[Any]:
    """All that a run shows."""
    ports = [(port.name, port.sent, port.peak_bytes, port.marked, port.pauses) for port in fabric.ports.values()]
    return [fabric.results, ports, [host.nic.counters.snapshot() for host in fabric.hosts.values()]]


def test_one_flow_takes_what_it_takes_alone() -> None:
    with Fabric(Topology.star(2)) as fabric:
        fabric.add([Flow("h0", "h1", 256 * KIB, start_ns=1_000)])
        (result,) = fabric.run()
        assert result.status == e.IBV_WC_SUCCESS
        # it begins at the rate of its link
        assert 0 <= result.took_ns - result.ideal_ns < 100
        assert fabric.count("retransmitted_packets") == fabric.count("probes") == 0


@pytest.mark.slow
def test_an_incast_shares_the_last_link() -> None:
    sources = [f"h{index}" for index in range(4)]
    with Fabric(Topology.star(5)) as fabric:
        fabric.add(incast(sources, "h4", 64 * KIB))
        results = fabric.run()
        last = fabric.ports["s0", "h4"]
        # all of them through one link: as long as their bytes take, and hardly longer
        busy_ns = last.sent_bytes * 8 / 25
        assert busy_ns < results[-1].end_ns < 1.15 * busy_ns
        assert fabric.switches["s0"].dropped == 0
        assert {result.flow.src for result in results} == set(sources)


@pytest.mark.slow
def test_the_same_seed_is_the_same_run() -> None:
    def run(seed: int) -> list[Any]:
        switch = {"kmin_bytes": 4_000, "kmax_bytes": 40_000, "pmax": 0.3}
        with Fabric(Topology.leaf_spine(2, 2, 2, loss=0.002, switch=switch), seed=seed) as fabric:
            fabric.add(permutation(list(fabric.hosts), 48 * KIB, rng=random.Random(seed)))
            fabric.run()
            return outcome(fabric)

    first = run(3)
    assert run(3) == first
    assert run(4) != first


@pytest.mark.slow
def test_losses_on_a_link_are_repaired() -> None:
    with Fabric(Topology.pair(loss=0.02), seed=5) as fabric:
        fabric.add([Flow("h0", "h1", 128 * KIB)])
        (result,) = fabric.run()
        assert result.status == e.IBV_WC_SUCCESS
        assert fabric.ports["h0", "h1"].lost > 0
        assert fabric.count("retransmitted_packets") > 0


@pytest.mark.slow
@pytest.mark.parametrize("pfc", [False, True])
def test_pauses_keep_a_small_buffer_from_losing(pfc: bool) -> None:
    """Eight senders into a buffer of 64 KiB: with tail drop packets are lost, with PFC none is."""
    switch = {**PFC, "buffer_bytes": 8 * PFC["xoff_bytes"]} if pfc else {"buffer_bytes": 60 * KIB}
    with Fabric(Topology.star(9, switch=switch)) as fabric:
        fabric.add(incast([f"h{index}" for index in range(8)], "h8", 48 * KIB))
        results = fabric.run()
        assert all(result.status == e.IBV_WC_SUCCESS for result in results)
        pauses = sum(port.pauses for port in fabric.ports.values())
        assert (fabric.switches["s0"].dropped == 0) is pfc
        assert (pauses > 0) is pfc


@pytest.mark.slow
def test_a_link_has_the_headroom_that_it_needs() -> None:
    """Eight into one at 100 Gb/s and 1 us, xoff 15 kB: with 30 kB of headroom for each link nothing is lost, nor with
    what the link needs, and with less something is."""
    rows: list[tuple[int | None, bool]] = [(30_000, True), (None, True), (8_000, False)]
    for headroom, lossless in rows:
        switch = {"buffer_bytes": 160_000, "xoff_bytes": 15_000, "xon_bytes": 12_000, "headroom_bytes": headroom}
        topology = Topology.star(9, gbps=100, delay_ns=1_000, switch=switch)
        assert topology.headroom(0) == pytest.approx(27_000, rel=0.02)
        assert bool(topology.warnings()) is not lossless
        with Fabric(topology) as fabric:
            fabric.add(incast([f"h{index}" for index in range(8)], "h8", 200_000))
            fabric.run()
            assert (fabric.switches["s0"].dropped == 0) is lossless


@pytest.mark.slow
def test_a_priority_that_pfc_stops_does_not_hold_back_another_at_the_nic() -> None:
    """h0 sends in two priorities: the one into a full port stands, the other goes on."""
    switch = {"buffer_bytes": 160_000, "xoff_bytes": 15_000, "xon_bytes": 12_000}
    with Fabric(Topology.star(10, gbps=100, switch=switch)) as fabric:
        fabric.add(incast([f"h{index}" for index in range(8)], "h8", 400_000))
        fabric.add([Flow("h0", "h9", 400_000, 20_000, priority=3)])
        results = fabric.run()
        (other,) = [each for each in results if each.flow.priority]
        assert fabric.ports["h0", "s0"].pauses > 0
        # the link carries what the other flow of its host sends, too
        assert other.slowdown < 2
        assert fabric.switches["s0"].dropped == 0


@pytest.mark.slow
@pytest.mark.parametrize("gbps", [25, 100])
def test_a_short_flow_does_not_wait_for_a_long_one_of_its_nic(gbps: float) -> None:
    """64 bytes beside 4 MB, at times that fall anywhere in a packet: with bursts and long turns it waits for them."""

    def worst(**how: Any) -> float:
        burst = how.pop("burst_packets", None)
        edge = {} if burst is None else {"burst_packets": burst}
        with Fabric(Topology.star(3, gbps=gbps), settings=how, **edge) as fabric:
            fabric.add([Flow("h0", "h1", 4 << 20)])
            fabric.add([Flow("h0", "h2", 64, 100_000 + 20_777 * at) for at in range(10)])
            return max(each.slowdown for each in fabric.run() if each.flow.size == 64)

    assert worst() <= 1.5
    assert worst(burst_packets=64, turn_bytes=256 * KIB) > 4


@pytest.mark.slow
def test_acks_do_not_wait_behind_data() -> None:
    """Two flows fill the link to a host; the ACK of what that host sends passes their queue."""

    def took(control: int) -> int:
        with Fabric(Topology.star(4, gbps=10), control_priority=control) as fabric:
            fabric.add([*incast(["h1", "h3"], "h0", 200 * KIB), Flow("h0", "h2", 1, 60_000)])
            return next(each.took_ns for each in fabric.run() if each.flow.src == "h0")

    assert 3 * took(6) < took(0)
    for name, value in (("control_priority", 8), ("burst_packets", 0), ("burst_packets", 65)):
        edge: dict[str, Any] = {name: value}
        with pytest.raises(TopologyError, match=f"{name}={value} cannot be"):
            Fabric(Topology.pair(), **edge)


@pytest.mark.slow
def test_marks_reach_the_sender_as_notifications() -> None:
    switch = {"kmin_bytes": 3_000, "kmax_bytes": 30_000, "pmax": 1.0}
    with Fabric(Topology.star(3, switch=switch)) as fabric:
        fabric.add(incast(["h0", "h1"], "h2", 64 * KIB))
        fabric.run()
        marked = fabric.ports["s0", "h2"].marked
        assert marked > 0
        fabric.parts.count()
        assert fabric.hosts["h2"].nic.counters["ecn_marked_packets"] == marked
        assert fabric.count("cnps_received") == fabric.count("cnps_sent") > 0


def test_flows_that_cannot_be() -> None:
    with Fabric(Topology.pair()) as fabric:
        for flow in (Flow("h0", "h9", 1), Flow("h0", "h0", 1), Flow("h0", "h1", 0), Flow("h0", "h1", 1, -1)):
            with pytest.raises(TopologyError):
                fabric.add([flow])
        fabric.add([Flow("h0", "h1", 64 * KIB)])
        with pytest.raises(TimeoutError, match="1 flows are not over"):
            fabric.run(limit_ns=1_000)


@pytest.mark.slow
def test_dcqcn_keeps_the_queue_short() -> None:
    """Two flows into one link of 10 Gb/s with the paper's marking: how long its queue is, and what the NICs say."""

    def run(mode: str) -> tuple[float, Fabric]:
        switch = {"kmin_bytes": 5_000, "kmax_bytes": 200_000, "pmax": 0.01}
        nic = {"congestion": CongestionSettings(mode)}
        with Fabric(Topology.star(3, mtu=4096, gbps=10, switch=switch), settings=nic) as fabric:
            last = fabric.ports["s0", "h2"]
            queued: list[int] = []
            fabric.every(20_000, lambda now_ns: queued.append(last.queued_bytes))
            fabric.add(incast(["h0", "h1"], "h2", 1 << 20))
            results = fabric.run()
            assert all(result.status == e.IBV_WC_SUCCESS for result in results)
            assert fabric.count("retransmitted_packets") == fabric.count("probes") == 0
            return sum(queued) / len(queued), fabric

    without, _ = run("none")
    queued, fabric = run("dcqcn")
    assert fabric.count("cnp_rate_cuts") == fabric.count("cnps_received") > 2
    assert queued < without / 3


@pytest.mark.slow
def test_a_paced_queue_pair_goes_on_after_a_probe() -> None:
    """Four flows take each other down to a packet in a millisecond, and probe: they must not stand still then."""
    switch = {"buffer_bytes": 12_000_000, "kmin_bytes": 5_000, "kmax_bytes": 200_000, "pmax": 0.01}
    nic = {"congestion": CongestionSettings("dcqcn")}
    with Fabric(Topology.star(5, mtu=4096, gbps=10, switch=switch), settings=nic, seed=1) as fabric:
        fabric.add(incast([f"h{index}" for index in range(4)], "h4", 1 << 30))
        with pytest.raises(TimeoutError):
            fabric.run(limit_ns=4_000_000)
        assert fabric.count("probes") > 0
        ports = [fabric.ports[f"h{index}", "s0"] for index in range(4)]
        before = [port.sent for port in ports]
        with pytest.raises(TimeoutError):
            fabric.run(limit_ns=2_000_000)
        assert all(port.sent > sent + 20 for port, sent in zip(ports, before, strict=True))
