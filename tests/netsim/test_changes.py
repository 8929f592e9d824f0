"""Links that fail and change their rate during a run, and packets that are sprayed over equal ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnic.sim import Fabric, Flow, Topology, TopologyError
from rnic.sim.scenario import Scenario, ScenarioError
from rnic.spec.limits import SELECTIVE_REPEAT
from rnic.verbs import enums as e

KIB = 1 << 10
SPINES = ("spine0", "spine1")
FILE = """\
[topology]
kind = "star"
hosts = 2
[[workload]]
kind = "flow"
src = "h0"
dst = "h1"
size_bytes = 65536
[[change]]
at_us = 5
a = "h1"
b = "s0"
gbps = "5 Gb/s"
"""


def sent(fabric: Fabric) -> list[int]:
    """Packets that a leaf has sent to each spine."""
    return [fabric.ports["leaf0", name].sent for name in SPINES]


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
def test_a_flow_goes_on_by_another_way_when_a_link_of_its_own_fails(again: bool) -> None:
    with Fabric(Topology.leaf_spine(2, 2, 1)) as fabric:

        def fail() -> None:
            used = sent(fabric)
            assert sorted(used)[0] == 0 < sorted(used)[1]
            failed.append(max(SPINES, key=lambda name: fabric.ports["leaf0", name].sent))
            fabric.change("leaf0", failed[0], up=False)
            if again:
                fabric.agenda.once(fabric.agenda.now_ns + 1_000, lambda: fabric.change(failed[0], "leaf0", up=True))

        failed: list[str] = []
        fabric.add([Flow("h0", "h1", 64 * KIB)])
        fabric.agenda.once(10_000, fail)
        (result,) = fabric.run()
        assert result.status == e.IBV_WC_SUCCESS
        other = fabric.ports["leaf0", next(name for name in SPINES if name != failed[0])]
        assert fabric.ports["leaf0", failed[0]].lost > 0
        assert (other.sent > 64) is not again
        assert fabric.count("retransmitted_packets") > 0


def test_nothing_arrives_while_every_way_is_down() -> None:
    with Fabric(Topology.star(2)) as fabric:
        fabric.change("h1", "s0", up=False)
        fabric.add([Flow("h0", "h1", 1_000)])
        fabric.agenda.once(50_000, lambda: fabric.change("h1", "s0", up=True))
        (result,) = fabric.run()
        assert result.status == e.IBV_WC_SUCCESS
        assert result.end_ns > 50_000
        with pytest.raises(TopologyError, match="h0 - h1: there is none"):
            fabric.change("h0", "h1", up=True)


def test_a_rate_changes_when_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(FILE)
    with Scenario.load(path).fabric() as fabric:
        (result,) = fabric.run()
        last = fabric.ports["s0", "h1"]
        assert last.bits_s == 5_000_000_000
        assert last.sent_bytes * 8 / 5 * 0.8 < result.took_ns < last.sent_bytes * 8 / 5 + 10_000
    for old, new, said in (
        ('a = "h1"', 'a = "h0"\nup = 2', "give true or false"),
        ('a = "h1"', 'a = "h7"', "no link h7 - s0"),
        ('gbps = "5 Gb/s"', "", "nothing changes"),
        ("at_us = 5", "", "there is no at_us"),
    ):
        path.write_text(FILE.replace(old, new))
        with pytest.raises(ScenarioError, match=said):
            Scenario.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("spray", [False, True])
def test_sprayed_packets_share_all_ways(spray: bool) -> None:
    topology = Topology.leaf_spine(2, 2, 1, switch={"spray": spray})
    with Fabric(topology, settings={"recovery": SELECTIVE_REPEAT}) as fabric:
        fabric.add([Flow("h0", "h1", 256 * KIB)])
        (result,) = fabric.run()
        assert result.status == e.IBV_WC_SUCCESS
        low, high = sorted(sent(fabric))
        assert low + high >= 256
        assert high - low <= 1 if spray else low == 0
        assert result.slowdown < 1.05
