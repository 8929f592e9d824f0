"""What is measured of a run."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rnic.sim import Fabric, Flow, Topology, incast
from rnic.sim.measure import MOST_SAMPLES, Measure, percentile


def test_percentiles_are_values_that_there_are() -> None:
    values = [1, 2, 3, 4]
    assert [percentile(values, percent) for percent in (1, 25, 26, 50, 75, 99, 100)] == [1, 1, 2, 2, 3, 4, 4]


def test_progress_ends_with_all_bytes() -> None:
    with Fabric(Topology.star(3)) as fabric:
        measure = Measure(fabric, 5_000)
        fabric.add(incast(["h0", "h1"], "h2", 50_000))
        fabric.run()
        measure._look(fabric.agenda.now_ns)
        assert len(measure.watched) == 2
        for watched in measure.watched.values():
            assert watched.bytes == sorted(watched.bytes)
            assert watched.bytes[-1] == 50_000
            assert watched.first + len(watched.bytes) == len(measure.times_ns)
            assert 0 < watched.bytes[len(watched.bytes) // 2] < 50_000


def test_looks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.sim.measure.MOST_SAMPLES", 32)
    assert MOST_SAMPLES > 32
    with Fabric(Topology.star(3)) as fabric:
        measure = Measure(fabric, 1_000)
        fabric.add(incast(["h0", "h1"], "h2", 100_000, start_ns=3_000))
        fabric.run()
        assert 16 <= len(measure.times_ns) < 32
        steps = {later - earlier for earlier, later in zip(measure.times_ns, measure.times_ns[1:], strict=False)}
        assert len(steps) == 1
        assert all(len(series) == len(measure.times_ns) for series in (*measure.queues, measure.cnps))
        for watched in measure.watched.values():
            assert watched.first + len(watched.bytes) == len(measure.times_ns)
            assert watched.bytes == sorted(watched.bytes)


@pytest.mark.slow
def test_rows_over_time_add_up_to_what_was_sent() -> None:
    switch = {"buffer_bytes": 64_000, "xoff_bytes": 8_000, "xon_bytes": 6_000}
    with Fabric(Topology.star(4, switch=switch)) as fabric:
        measure = Measure(fabric, 2_000)
        fabric.add(incast(["h0", "h1", "h2"], "h3", 60_000))
        fabric.run()
        measure._look(fabric.agenda.now_ns)
        rows = measure.series()
        assert {row["port"] for row in rows} == {"s0 > h0", "s0 > h1", "s0 > h2", "s0 > h3"}
        last = [row for row in rows if row["port"] == "s0 > h3"]
        steps = [later["time_ns"] - earlier["time_ns"] for earlier, later in pairwise(last)]
        moved = sum(row["gbps"] * step / 8 for row, step in zip(last[1:], steps, strict=True))
        assert moved == pytest.approx(fabric.ports["s0", "h3"].sent_bytes, rel=0.02)
        assert [row["queue_bytes"] for row in last] == measure.queues[measure.ports.index(fabric.ports["s0", "h3"])]
        assert all(0 <= row["paused"] <= 1 for row in rows)
        progress = measure.progress()
        assert {row["flow"] for row in progress} == {0, 1, 2}
        assert [row["bytes"] for row in progress if row["flow"] == 1] == measure.watched[1].bytes
        assert max(row["gbps"] for row in progress) < 25


@pytest.mark.slow
@pytest.mark.parametrize("bare", [True, False])
def test_a_flows_path_is_the_one_that_its_packets_took(bare: bool) -> None:
    seen = set()
    for seed in range(6):
        with Fabric(Topology.leaf_spine(2, 3, 6), seed=seed, bare=bare) as fabric:
            fabric.add([Flow(f"h{seed}", "h11", 4_000)])
            (result,) = fabric.run()
            path = fabric.path(result)
            used = {name for name, port in fabric.ports.items() if port.sent_bytes > 4_000}
            assert used == set(pairwise(path))
            seen.add(path[2])
    assert len(seen) > 1
