"""How fast the fabric runs, what it keeps in memory, and what rate control costs where nothing is marked.

`packets`: all hosts of a star send to all others; packets that reach a NIC, a second of processor time of one core.
`dcqcn`: the same over a few long flows, with DCQCN on and no switch that marks, against off; the best of five each,
in turn.
`at work`: packets a second where switches mark, CNPs are sent and rates are kept.
`memory`: bytes of a NIC, and of a flow with its two queue pairs, measured. `--large` runs 1,024 NICs with 100 flows
each to the end.
"""

from __future__ import annotations

import contextlib
import resource
import time
from functools import partial
from typing import Any

import harness
from harness import Row, resident_bytes

from rnic.cc.settings import CongestionSettings
from rnic.engine import use
from rnic.sim import Fabric, Flow, Topology, all_to_all, incast

PACKETS_FLOOR, PACKETS_AIM = 150_000, 1_000_000
DCQCN_FLOOR, DCQCN_AIM = 0.95, 1.0
MEMORY_FLOOR = 2 << 30
MARKS = {"buffer_bytes": 12_000_000, "kmin_bytes": 5_000, "kmax_bytes": 200_000, "pmax": 0.01}
NICS, FLOWS = 1_024, 100
Figure = tuple[Row, float, dict[str, Any]]
"""A row, its figure, and what else was seen."""


def _packets(what: str, value: float, **more: Any) -> Figure:
    return Row(what, what, "packets/s", PACKETS_FLOOR, PACKETS_AIM), value, more


def _gib(what: str, value: float, **more: Any) -> Figure:
    return Row(what, what, "GiB", MEMORY_FLOOR >> 30, less=True), value, more


def _arrived(fabric: Fabric) -> int:
    return sum(port.sent for (_, there), port in fabric.ports.items() if there in fabric.hosts)


def packets(hosts: int, size: int) -> Figure:
    """All to all."""
    begun = time.process_time()
    with Fabric(Topology.star(hosts, gbps=25), settings={"log_max_qps": 8}) as fabric:
        fabric.add(all_to_all(list(fabric.hosts), size))
        built = time.process_time()
        fabric.run(60_000_000_000)
        took = time.process_time() - built
        count, events = _arrived(fabric), fabric.agenda.events
    what = f"{hosts} NICs all to all, {size} bytes a flow"
    more = {"events_s": round(events / took), "built_s": round(built - begun, 2), "ran_s": round(took, 2)}
    return _packets(what, count / took, **more)


def dcqcn_rate(mode: str, size: int) -> float:
    """Packets a second, with rate control that has nothing to do or without."""
    settings = {"congestion": CongestionSettings(mode=mode)}
    with Fabric(Topology.star(4, gbps=100, mtu=4096), settings=settings) as fabric:
        fabric.add([Flow("h0", "h1", size), Flow("h2", "h3", size)])
        begun = time.process_time()
        fabric.run(60_000_000_000)
        return _arrived(fabric) / (time.process_time() - begun)


def at_work(sources: int, time_ms: int) -> Figure:
    """Packets a second where switches mark, CNPs are sent and rates are kept: flows without end into one link."""
    settings = {"congestion": CongestionSettings(mode="dcqcn")}
    with Fabric(Topology.star(sources + 1, gbps=10, mtu=4096, switch=MARKS), settings=settings) as fabric:
        fabric.add(incast([f"h{at}" for at in range(sources)], f"h{sources}", 1 << 30))
        begun = time.process_time()
        with contextlib.suppress(TimeoutError):
            fabric.run(time_ms * 1_000_000)
        took = time.process_time() - begun
        count, cnps = _arrived(fabric), fabric.count("cnps_sent")
    return _packets(f"{sources} flows into one link, DCQCN at work", count / took, cnps=cnps, ran_s=round(took, 2))


def memory(nics: int, flows: int) -> Figure:
    """Bytes of a NIC and of a flow, and what the large run would take."""
    before = resident_bytes()
    with Fabric(Topology.star(nics, gbps=25), settings={"log_max_qps": 8}) as fabric:
        names = list(fabric.hosts)
        # what a NIC has once, such as its completion queue, comes with its first flow
        fabric.add(Flow(names[at], names[(at + 1) % nics], 4_096) for at in range(nics))
        first = resident_bytes()
        fabric.add(
            Flow(names[at], names[(at + 1 + i % (nics - 1)) % nics], 4_096) for at in range(nics) for i in range(flows)
        )
        fabric.run(60_000_000_000)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    nic, flow = (first - before) / nics, (most - first) / nics / flows
    whole = NICS * nic + NICS * FLOWS * flow
    what = f"memory of {NICS} NICs x {FLOWS}, measured over {nics} NICs with {flows} flows each"
    return _gib(what, whole / (1 << 30), nic_bytes=round(nic), flow_bytes=round(flow))


def large(size: int) -> Figure:
    """1,024 NICs with 100 flows each, to the end."""
    begun = time.process_time()
    topology = Topology.leaf_spine(32, 8, NICS // 32, gbps=25, up_gbps=100)
    with Fabric(topology, settings={"log_max_qps": 8}) as fabric:
        names = list(fabric.hosts)
        fabric.add(Flow(names[at], names[(at + 1 + 10 * i) % NICS], size) for at in range(NICS) for i in range(FLOWS))
        built = time.process_time()
        fabric.run(60_000_000_000)
        took = time.process_time() - built
        over = sum(result.status == 0 for result in fabric.results)
        count = _arrived(fabric)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    more = {"flows_over": over, "packets": count, "packets_s": round(count / took), "ran_s": round(took, 1)}
    what = f"{NICS} NICs x {FLOWS} flows of {size} bytes, to the end"
    return _gib(what, peak, built_s=round(built - begun, 1), **more)


def main(argv: list[str]) -> int:
    """Print a row for each figure, and whether it reaches its floor; the exit status is 1 where one does not."""
    parser = harness.Parser("fabric", __doc__, short="few hosts and bytes, in seconds", json=True)
    parser.add_argument("--hosts", type=harness.at_least_one, default=64, help="hosts of the star; 64")
    parser.add_argument("--bytes", type=harness.at_least_one, default=256 << 10, help="bytes of a flow; 256 KiB")
    parser.add_argument(
        "--long", type=harness.at_least_one, default=32 << 20, help="bytes of a flow with DCQCN on and off; 32 MiB"
    )
    parser.add_argument("--large", action="store_true", help=f"also {NICS} NICs x {FLOWS} flows; takes minutes")
    given = parser.read(argv)
    hosts, size = (8, 64 << 10) if given.short else (given.hosts, given.bytes)
    long = 4 << 20 if given.short else given.long
    figures = [memory(8 if given.short else 32, 100), packets(hosts, size)]
    found, _ = harness.in_turn([(mode, partial(dcqcn_rate, mode, long)) for mode in ("none", "dcqcn")], 5)
    figures.append(at_work(4 if given.short else 20, 2 if given.short else 100))
    figures += [large(4_096)] if given.large else []
    rows = [row for row, _, _ in figures]
    rows.insert(2, Row("DCQCN on, no marks, against off", "dcqcn", "packets/s", DCQCN_FLOOR, DCQCN_AIM, ("none",)))
    more = {row.what: seen for row, _, seen in figures}
    wrong = {
        what: "not all flows ended"
        for what, seen in more.items()
        if seen.get("flows_over", NICS * FLOWS) < NICS * FLOWS
    }
    notes = {what: ", ".join(f"{name} {value:,}" for name, value in seen.items()) for what, seen in more.items()}
    found |= {row.what: [value] for row, value, _ in figures}
    return harness.report(given, rows, found, notes=notes, wrong=wrong, more=more, engine=use.ENGINE is not None)


if __name__ == "__main__":
    harness.run(main)
