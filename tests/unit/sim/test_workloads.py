"""Who sends what: distributions of the literature, arrivals, rings, programs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rnic.sim import Fabric, Flow, Topology, TopologyError
from rnic.sim.scenario import Scenario, ScenarioError
from rnic.sim.tasks import ProgramError, Signal
from rnic.sim.workloads import SIZES, Distribution, poisson, read_flows, ring_all_reduce


@pytest.mark.parametrize("name", sorted(SIZES))
def test_drawn_sizes_follow_the_points(name: str) -> None:
    sizes = Distribution(SIZES[name])
    rng = Random(1)
    drawn = [sizes.draw(rng) for _ in range(20_000)]
    for at, share in SIZES[name]:
        assert sum(size <= at for size in drawn) / len(drawn) == pytest.approx(share, abs=0.012)
    assert min(drawn) >= 1
    assert sum(drawn) / len(drawn) == pytest.approx(sizes.mean, rel=0.05)


def test_means_of_the_literature() -> None:
    """1.6 MB for the web search, 0.1 MB for Hadoop, as the papers that use them say."""
    assert Distribution(SIZES["web-search"]).mean == pytest.approx(1.7e6, rel=0.1)
    assert Distribution(SIZES["fb-hadoop"]).mean == pytest.approx(1.2e5, rel=0.1)


@pytest.mark.parametrize("points", [[(1, 0.0)], [(0, 0.1), (9, 1.0)], [(0, 0.0), (9, 0.9)], [(9, 0.0), (1, 1.0)]])
def test_what_is_no_distribution(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="points"):
        Distribution(points)


@pytest.mark.slow
def test_arrivals_bring_the_load_that_was_asked_for() -> None:
    hosts = [f"h{at}" for at in range(8)]
    sizes = Distribution([(0, 0.0), (2_000, 1.0)])
    flows = poisson(hosts, sizes, load=0.5, bits_s=10**10, duration_ns=10_000_000, rng=Random(2), start_ns=500)
    sent = sum(flow.size for flow in flows) * 8 / 10_000_000 / 10 / len(hosts)
    assert sent == pytest.approx(0.5, rel=0.05)
    assert [flow.start_ns for flow in flows] == sorted(flow.start_ns for flow in flows)
    assert flows[0].start_ns >= 500
    assert all(flow.src != flow.dst for flow in flows)
    assert len(poisson(hosts, sizes, load=0.5, bits_s=10**10, duration_ns=10**7, rng=Random(2), most=5)) == 5


def test_a_ring_all_reduce_goes_round_twice() -> None:
    with Fabric(Topology.star(4, gbps=25)) as fabric:
        over = fabric.start(ring_all_reduce(fabric, list(fabric.hosts), 64 << 10))
        fabric.run()
        took: list[int] = []
        over.then(took.append)
        # 6 steps of a quarter each, one behind the other
        step_ns = fabric.ideal_ns(fabric.results[0].flow)
        assert 6 * (16 << 10) * 8 / 25 < took[0] < 6 * step_ns * 1.5
        assert Counter((result.flow.src, result.flow.dst) for result in fabric.results) == {
            (f"h{at}", f"h{(at + 1) % 4}"): 6 for at in range(4)
        }
        # no step begins before what it passes on has come
        ends = sorted(result.end_ns for result in fabric.results if result.flow.src == "h0")
        starts = sorted(result.flow.start_ns for result in fabric.results if result.flow.src == "h1")
        assert all(start > end - step_ns for start, end in zip(starts[1:], ends, strict=False))


def test_a_program_waits_in_virtual_time() -> None:
    said: list[tuple[str, int]] = []

    async def ping(fabric: Fabric) -> str:
        there, back = fabric.channel("h0", "h1", 100), fabric.channel("h1", "h0", 100)
        fabric.start(pong(there, back))
        await fabric.sleep(5_000)
        for _ in range(3):
            there.write(100)
            said.append(("back", await back.arrival()))
        result = await fabric.write("h0", "h1", 5_000, "bulk")
        return result.flow.label

    async def pong(there: object, back: object) -> None:
        for _ in range(3):
            said.append(("there", await there.arrival()))  # type: ignore[attr-defined]
            await back.write(100)  # type: ignore[attr-defined]

    with Fabric(Topology.pair(delay_ns=2_000)) as fabric:
        ended: list[str] = []
        fabric.start(ping(fabric)).then(ended.append)
        fabric.run()
        assert ended == ["bulk"]
        assert [name for name, _ in said] == ["there", "back"] * 3
        times = [5_000, *(time for _, time in said)]
        assert all(2_000 < later - earlier < 3_000 for earlier, later in pairwise(times))
        assert fabric.left == 0


def test_a_channel_takes_no_more_than_it_was_made_for() -> None:
    with Fabric(Topology.pair()) as fabric:
        channel = fabric.channel("h0", "h1", 100)
        for size in (0, 101):
            with pytest.raises(ValueError, match="give 1 to 100"):
                channel.write(size)
        with pytest.raises(TopologyError):
            fabric.channel("h0", "h0", 1)


def test_a_program_that_awaits_something_else_is_told() -> None:
    class Other:
        def __await__(self):  # type: ignore[no-untyped-def]
            yield 7

    async def program() -> None:
        await Other()

    with Fabric(Topology.pair()) as fabric, pytest.raises(ProgramError, match="awaited 7"):
        fabric.start(program())


def test_a_signal_that_has_happened_answers_at_once() -> None:
    signal: Signal[int] = Signal()
    seen: list[int] = []
    signal.then(seen.append)
    signal.set(3)
    signal.then(seen.append)
    assert seen == [3, 3]


def test_a_file_of_ones_own_is_a_workload(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "async def main(fabric, size):\n    for _ in range(2):\n        await fabric.write('h0', 'h1', size, 'mine')\n"
    )
    work = {"kind": "program", "file": "app.py", "arguments": {"size": 300}, "start_us": 1}
    scenario = Scenario.from_table({"topology": {"kind": "pair"}, "workload": [work]}, tmp_path)
    with scenario.fabric() as fabric:
        first, second = fabric.run()
        assert first.flow.start_ns == 1_000
        assert second.flow.start_ns == first.end_ns
        assert (first.flow.size, first.flow.label) == (300, "mine")


def _times(*rows: dict[str, Any], folder: Path, hosts: int = 5) -> Fabric:
    table = {"topology": {"kind": "star", "hosts": hosts}, "workload": list(rows)}
    with Scenario.from_table(table, folder).fabric() as fabric:
        fabric.run()
        return fabric


@pytest.mark.slow
def test_collectives_move_what_their_steps_say(tmp_path: Path) -> None:
    size = 8_000
    for kind, flows, more in (
        ("ring-all-reduce", 5 * 8, {}),
        ("tree-all-reduce", 2 * 4, {}),
        ("all-gather", 5 * 4, {}),
        ("pipeline", 4 * 50, {"batches": 50}),
    ):
        fabric = _times({"kind": kind, "size_bytes": size, **more}, folder=tmp_path)
        assert len(fabric.results) == flows
        assert {result.flow.size for result in fabric.results} == {size // 5 if kind == "ring-all-reduce" else size}
    with pytest.raises(ScenarioError, match="workload 0: there is no batches"):
        _times({"kind": "pipeline", "size_bytes": 1}, folder=tmp_path)
    with pytest.raises(ScenarioError, match="a collective needs two hosts or more"):
        _times({"kind": "all-gather", "size_bytes": 1, "hosts": 1}, folder=tmp_path)


@pytest.mark.slow
def test_the_steps_of_a_tree_and_a_pipeline_wait_for_each_other(tmp_path: Path) -> None:
    """64 KiB take 23.6 us on a link: two levels up and two down, and a chain that is full after four."""
    once_ns = 23_000
    fabric = _times({"kind": "tree-all-reduce", "size_bytes": 65_536}, folder=tmp_path)
    assert 4 * once_ns < fabric.agenda.now_ns < 9 * once_ns
    fabric = _times({"kind": "pipeline", "size_bytes": 65_536, "batches": 6}, folder=tmp_path)
    assert 9 * once_ns < fabric.agenda.now_ns < 9 * once_ns * 1.5


def test_flows_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "flows.csv"
    file.write_text("src,dst,size_bytes,start_us,priority,name\nh0,h1,100,2.5,3,a\nh1,h0,7,,,\n")
    assert read_flows(file) == [Flow("h0", "h1", 100, 2_500, "a", 3), Flow("h1", "h0", 7)]
    fabric = _times({"kind": "flow-file", "file": "flows.csv", "start_us": 1, "name": "b"}, folder=tmp_path, hosts=2)
    assert {result.flow for result in fabric.results} == {
        Flow("h0", "h1", 100, 3_500, "a", 3),
        Flow("h1", "h0", 7, 1_000, "b"),
    }
    for text in ("src,dst\nh0,h1\n", "src,dst,size_bytes\nh0,h1,many\n"):
        file.write_text(text)
        with pytest.raises(ScenarioError, match=r"workload 0: .* flow 1: .*give src, dst and size_bytes"):
            _times({"kind": "flow-file", "file": "flows.csv"}, folder=tmp_path)
    with pytest.raises(ScenarioError, match=r"file='none.csv': .*No such file"):
        _times({"kind": "flow-file", "file": "none.csv"}, folder=tmp_path)
