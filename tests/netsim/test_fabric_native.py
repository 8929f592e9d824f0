"""The fabric in C against the fabric and the transport in Python: equal runs for equal seeds, event for event."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from rnic.cc.dcqcn import DcqcnSettings
from rnic.cc.settings import CongestionSettings
from rnic.engine import use
from rnic.sim import Fabric, Flow, Topology, all_to_all, incast, permutation
from rnic.sim.measure import Measure, capture
from rnic.sim.native import Compiled
from rnic.sim.scenario import EDGE_SETTINGS
from rnic.sim.workloads import ring_all_reduce
from rnic.spec.opcodes import WRITE_FIRST, WRITE_ONLY
from rnic.verbs import enums as e

pytestmark = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")

KIB = 1 << 10
ENHANCED_PACKET = 6
BTH_AT, RETH_AT = 14 + 20 + 8, 14 + 20 + 8 + 12
"""Behind Ethernet, IPv4 and UDP."""
MARKS = {"kmin_bytes": 4_000, "kmax_bytes": 40_000, "pmax": 0.3}
PAPER = {"kmin_bytes": 5_000, "kmax_bytes": 200_000, "pmax": 0.01}
PFC = {"buffer_bytes": 64 * KIB, "xoff_bytes": 8 * KIB, "xon_bytes": 6 * KIB, "headroom_bytes": 16 * KIB}


LOSSLESS = {"buffer_bytes": 64 * KIB, "xoff_bytes": 8 * KIB, "xon_bytes": 6 * KIB}
WEIGHTS = {**LOSSLESS, "weights": [1, 4, 2, 0, 0, 0, 0, 0], "pfc_priorities": [0, 2]}


def _hosts(count: int) -> list[str]:
    return [f"h{index}" for index in range(count)]


def _four(fabric: Fabric) -> None:
    fabric.add(incast(_hosts(4), "h4", 24 * KIB))


def _by_priority(fabric: Fabric) -> None:
    for priority in range(3):
        flows = incast(_hosts(4), "h4", 12 * KIB, start_ns=500 * priority)
        fabric.add(flow._replace(priority=priority) for flow in flows)


def _four_less(fabric: Fabric) -> None:
    fabric.add(incast(_hosts(3), "h3", 24 * KIB))


def _later(fabric: Fabric) -> None:
    fabric.add(Flow(f"h{at % 3}", "h3", 3_000 * (at + 1), 1_000 * at) for at in range(8))


def _ring(fabric: Fabric) -> None:
    fabric.start(ring_all_reduce(fabric, _hosts(4), 16 * KIB))


def _permuted(fabric: Fabric) -> None:
    fabric.add(permutation(_hosts(8), 12 * KIB, rng=random.Random(2)))


def _each_other(fabric: Fabric) -> None:
    fabric.add(all_to_all(_hosts(4), 6 * KIB))


def _for_long(fabric: Fabric) -> None:
    fabric.add(incast(_hosts(3), "h3", 400 * KIB))


def _both_ways(fabric: Fabric) -> None:
    fabric.add(all_to_all(_hosts(4), 800 * KIB))


def _changes(fabric: Fabric) -> None:
    fabric.add(permutation(_hosts(8), 24 * KIB, rng=random.Random(2)))
    fabric.agenda.once(4_000, lambda: fabric.change("leaf0", "spine1", up=False))
    fabric.agenda.once(5_000, lambda: fabric.change("leaf1", "h7", gbps=7))
    fabric.agenda.once(40_000, lambda: fabric.change("spine1", "leaf0", up=True))


DCQCN = {"congestion": CongestionSettings(mode="dcqcn")}
HASTY = {
    "congestion": CongestionSettings(
        mode="dcqcn",
        merge_windows=8,
        dcqcn=DcqcnSettings(
            g_shift=3,
            alpha_ns=4_000,
            timer_ns=5_000,
            counter_bytes=12_000,
            recovery_rounds=2,
            additive_rate=30,
            hyper_rate=90,
        ),
    )
}
"""Every part of the reaction point acts within little time."""
LIMIT = {"congestion": CongestionSettings(mode="limit")}
SWIFT, TIMELY, HPCC = ({"congestion": CongestionSettings(mode=name)} for name in ("swift", "timely", "hpcc"))
SMALL = {"congestion": CongestionSettings(mode="swift", parameters={"base_us": 1, "hop_us": 0, "range_us": 1})}
"""A target below the round trip: windows of less than one packet."""
SCENARIOS: dict[str, tuple[Callable[[], Topology], Callable[[Fabric], None], dict[str, Any]]] = {
    "pair": (lambda: Topology.pair(gbps=10), lambda fabric: fabric.add([Flow("h0", "h1", 40 * KIB)]), {}),
    "a small message": (Topology.pair, lambda fabric: fabric.add([Flow("h0", "h1", 1)]), {}),
    "incast": (lambda: Topology.star(5), _four, {}),
    "bursts": (lambda: Topology.star(5), _four, {"burst_packets": 64, "turn_bytes": 256 * KIB}),
    "one packet at once": (lambda: Topology.star(5), _each_other, {"burst_packets": 1, "control_priority": 0}),
    "tail drop": (lambda: Topology.star(5, switch={"buffer_bytes": 20 * KIB}), _four, {}),
    "pauses": (lambda: Topology.star(5, switch=PFC), _four, {}),
    "small headroom": (lambda: Topology.star(5, switch={**PFC, "headroom_bytes": 2 * KIB}), _four, {}),
    "headroom by need": (lambda: Topology.star(5, switch=LOSSLESS), _four, {}),
    "dynamic pauses": (lambda: Topology.star(5, switch={**LOSSLESS, "alpha": 0.25}), _four, {}),
    "dynamic drops": (lambda: Topology.star(5, switch={"buffer_bytes": 40 * KIB, "alpha": 1}), _four, {}),
    "priorities": (lambda: Topology.star(5, switch={**LOSSLESS, **MARKS}), _by_priority, DCQCN),
    "weights": (lambda: Topology.star(5, switch=WEIGHTS, host={"weights": WEIGHTS["weights"]}), _by_priority, {}),
    "marks": (lambda: Topology.star(5, switch=MARKS), _four, {}),
    "dcqcn": (lambda: Topology.star(5, switch=MARKS), _four, DCQCN),
    "dcqcn for long": (lambda: Topology.star(4, mtu=4096, gbps=10, switch=PAPER), _for_long, DCQCN),
    "dcqcn in haste": (lambda: Topology.star(4, mtu=4096, switch=MARKS), _both_ways, HASTY),
    "a limit": (lambda: Topology.star(5, switch=MARKS), _four, LIMIT),
    "swift": (lambda: Topology.star(4, loss=0.001), _four_less, SWIFT),
    "timely": (lambda: Topology.star(4, switch=MARKS), _four_less, TIMELY),
    "hpcc over two": (lambda: Topology.dumbbell(2), _four_less, HPCC),
    "paced windows": (lambda: Topology.star(4, gbps=10), _four_less, SMALL),
    "loss": (lambda: Topology.star(5, loss=0.02), _four, {}),
    "starts": (lambda: Topology.dumbbell(2), _later, {}),
    "equal ways": (lambda: Topology.leaf_spine(2, 3, 4, loss=0.002, switch=MARKS), _permuted, DCQCN),
    "all-to-all": (lambda: Topology.star(4, mtu=4096, gbps=100), _each_other, {}),
    "changes": (lambda: Topology.leaf_spine(2, 2, 4, loss=0.002), _changes, {}),
    "spraying": (lambda: Topology.leaf_spine(2, 3, 4, switch={"spray": True}), _permuted, {}),
    "channels": (lambda: Topology.star(4), _ring, {}),
}


def _run(
    make: Callable[[], Topology], work: Callable[[Fabric], None], settings: dict[str, Any], bare: bool = True
) -> dict[str, Any]:
    """Everything that a run shows."""
    edge = {name: settings[name] for name in EDGE_SETTINGS if name in settings}
    rest = {name: value for name, value in settings.items() if name not in edge}
    with Fabric(make(), seed=7, settings=rest, bare=bare, **edge) as fabric:
        measure = Measure(fabric, 2_000)
        file = io.BytesIO()
        link = fabric.topology.links[-1]
        capture(fabric, f"{link.a}-{link.b}", file)
        work(fabric)
        fabric.run()
        fabric.parts.count()
        return {
            "compiled": isinstance(fabric.parts, Compiled),
            "bare": fabric.traffic.bare is not None,
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


def _packets(capture: bytes) -> list[tuple[bytes, bytes]]:
    """Times and packets of a capture, remote addresses and so ICRCs of WRITEs apart: verbs' rings lie among them."""
    found, at = [], 0
    while at < len(capture):
        kind, size = struct.unpack_from("<II", capture, at)
        packet = bytearray(capture[at + 28 : at + size - 4])
        if kind == ENHANCED_PACKET:
            if packet[BTH_AT] in (WRITE_FIRST, WRITE_ONLY):
                packet[RETH_AT : RETH_AT + 8] = bytes(8)
                (length,) = struct.unpack_from("<I", capture, at + 20)
                packet[length - 4 : length] = bytes(4)
            found.append((capture[at + 12 : at + 20], bytes(packet)))
        at += size
    return found


def _same(native: dict[str, Any], plain: dict[str, Any]) -> None:
    for what, value in plain.items():
        assert native[what] == value, what
    assert plain["flows"]


@pytest.fixture(scope="module")
def plain() -> Callable[[str], dict[str, Any]]:
    """A scenario's run in Python alone, made once."""
    runs: dict[str, dict[str, Any]] = {}

    def get(name: str) -> dict[str, Any]:
        if name not in runs:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(use, "ENGINE", None)
                runs[name] = _run(*SCENARIOS[name])
            assert not runs[name].pop("compiled")
            assert not runs[name].pop("bare")
        return runs[name]

    return get


@pytest.mark.slow
@pytest.mark.parametrize("bare", [True, False], ids=["bare", "verbs"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fabric_in_c_makes_the_same_run(
    name: str, bare: bool, plain: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use, "ENGINE", use.COMPILED)
    native = _run(*SCENARIOS[name], bare=bare)
    assert native.pop("compiled")
    assert native.pop("bare") == bare
    expected = dict(plain(name))
    if bare:
        assert _packets(native.pop("capture")) == _packets(expected.pop("capture"))
    if "dcqcn" in name:
        assert sum(counters.get("cnp_rate_cuts", 0) for counters in native["counters"]) >= (
            20 if "haste" in name else 4
        )
    _same(native, expected)


@pytest.mark.slow
@pytest.mark.parametrize("bare", [True, False], ids=["bare", "verbs"])
def test_a_flow_over_a_dead_link_fails_the_same(bare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing arrives: retries are used up, and the flow is over with what a completion would say."""

    def run() -> tuple[Any, ...]:
        with Fabric(Topology.pair(loss=1.0), bare=bare) as fabric:
            fabric.add([Flow("h0", "h1", 5_000)])
            (result,) = fabric.run(60_000_000_000)
            return result, fabric.count("ack_timeouts"), fabric.count("retransmitted_packets")

    monkeypatch.setattr(use, "ENGINE", use.COMPILED)
    native = run()
    monkeypatch.setattr(use, "ENGINE", None)
    assert run() == native
    assert native[0].status == e.IBV_WC_RETRY_EXC_ERR
