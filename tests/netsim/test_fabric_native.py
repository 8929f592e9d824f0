"""The fabric in C against the fabric and the transport in Python: equal runs for equal seeds, event for event."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import pytest

from rnic.cc.settings import CongestionSettings
from rnic.engine import use
from rnic.sim import Fabric, Flow, Topology, all_to_all, incast, permutation
from rnic.sim.measure import Measure, capture
from rnic.sim.native import Compiled
from rnic.sim.workloads import ring_all_reduce

pytestmark = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")

KIB = 1 << 10
MARKS = {"kmin_bytes": 4_000, "kmax_bytes": 40_000, "pmax": 0.3}
PFC = {"buffer_bytes": 64 * KIB, "xoff_bytes": 8 * KIB, "xon_bytes": 6 * KIB, "headroom_bytes": 16 * KIB}


def _hosts(count: int) -> list[str]:
    return [f"h{index}" for index in range(count)]


def _four(fabric: Fabric) -> None:
    fabric.add(incast(_hosts(4), "h4", 24 * KIB))


def _later(fabric: Fabric) -> None:
    fabric.add(Flow(f"h{at % 3}", "h3", 3_000 * (at + 1), 1_000 * at) for at in range(8))


def _ring(fabric: Fabric) -> None:
    fabric.start(ring_all_reduce(fabric, _hosts(4), 16 * KIB))


def _permuted(fabric: Fabric) -> None:
    fabric.add(permutation(_hosts(8), 12 * KIB, rng=random.Random(2)))


def _each_other(fabric: Fabric) -> None:
    fabric.add(all_to_all(_hosts(4), 6 * KIB))


DCQCN = {"congestion": CongestionSettings(mode="dcqcn")}
LIMIT = {"congestion": CongestionSettings(mode="limit")}
SCENARIOS: dict[str, tuple[Callable[[], Topology], Callable[[Fabric], None], dict[str, Any]]] = {
    "pair": (lambda: Topology.pair(gbps=10), lambda fabric: fabric.add([Flow("h0", "h1", 40 * KIB)]), {}),
    "a small message": (Topology.pair, lambda fabric: fabric.add([Flow("h0", "h1", 1)]), {}),
    "incast": (lambda: Topology.star(5), _four, {}),
    "tail drop": (lambda: Topology.star(5, switch={"buffer_bytes": 20 * KIB}), _four, {}),
    "pauses": (lambda: Topology.star(5, switch=PFC), _four, {}),
    "marks": (lambda: Topology.star(5, switch=MARKS), _four, {}),
    "dcqcn": (lambda: Topology.star(5, switch=MARKS), _four, DCQCN),
    "a limit": (lambda: Topology.star(5, switch=MARKS), _four, LIMIT),
    "loss": (lambda: Topology.star(5, loss=0.02), _four, {}),
    "starts": (lambda: Topology.dumbbell(2), _later, {}),
    "equal ways": (lambda: Topology.leaf_spine(2, 3, 4, loss=0.002, switch=MARKS), _permuted, DCQCN),
    "all-to-all": (lambda: Topology.star(4, mtu=4096, gbps=100), _each_other, {}),
    "channels": (lambda: Topology.star(4), _ring, {}),
}


def _run(make: Callable[[], Topology], work: Callable[[Fabric], None], settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that a run shows."""
    with Fabric(make(), seed=7, settings=settings) as fabric:
        measure = Measure(fabric, 2_000)
        file = io.BytesIO()
        link = fabric.topology.links[-1]
        capture(fabric, f"{link.a}-{link.b}", file)
        work(fabric)
        fabric.run()
        fabric.parts.count()
        return {
            "compiled": isinstance(fabric.parts, Compiled),
            "flows": measure.flows(),
            "queues": measure.queues,
            "progress": {number: (first, series) for number, (_, first, series) in measure.watched.items()},
            "ports": measure.port_rows(),
            "pauses": measure.pauses(),
            "summary": measure.summary(),
            "switches": [(each.dropped, each.peak_bytes, each.buffered_bytes) for each in fabric.switches.values()],
            "counters": [host.nic.counters.snapshot() for host in fabric.hosts.values()],
            "capture": file.getvalue(),
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fabric_in_c_makes_the_same_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use, "ENGINE", use.COMPILED)
    native = _run(*SCENARIOS[name])
    assert native.pop("compiled")
    monkeypatch.setattr(use, "ENGINE", None)
    plain = _run(*SCENARIOS[name])
    assert not plain.pop("compiled")
    for what, value in plain.items():
        assert native[what] == value, what
    assert plain["flows"]
