"""What is measured of a run."""

from __future__ import annotations

import pytest

from rnic.sim import Fabric, Topology, incast
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
