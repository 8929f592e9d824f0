"""Speed and memory of the fabric, and the cost of rate control without marks.

`packets`: all hosts of a star send to all others; packets received by NICs, per second of processor time of one core.
`dcqcn`: the same with a few long flows, with DCQCN on and no marking switch, compared with off; best of five each,
alternately.
`8 into 1`: packets lost with PFC if each link has the headroom that it needs.
`10,000 NICs x 4`: memory and time, extrapolated from 1,000 NICs, or with `--large` measured.
`64 bytes`: delay of a short flow by a long one of the same NIC.
`at work`: packets per second while switches mark, CNPs are sent and rates are controlled.
`swift`: ACKs per second of a run with a congestion control in Python, called for each ACK, with telemetry.
`memory`: bytes of a NIC, and of a flow with its two queue pairs. `--large` runs 1,024 NICs with 100 flows each to the
end.
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
from rnic.sim.host import BURST

PACKETS_FLOOR, PACKETS_AIM = 150_000, 1_000_000
DCQCN_FLOOR, DCQCN_AIM = 0.95, 1.0
ACKS_FLOOR, ACKS_AIM = 100_000, 200_000
MEMORY_FLOOR = 2 << 30
MARKS = {"buffer_bytes": 12_000_000, "kmin_bytes": 5_000, "kmax_bytes": 200_000, "pmax": 0.01}
NICS, FLOWS = 1_024, 100
MANY = 10_000
Figure = tuple[Row, float, dict[str, Any]]
"""A row, its figure, and further values."""


def _packets(what: str, value: float, **more: Any) -> Figure:
    return Row(what, what, "packets/s", PACKETS_FLOOR, PACKETS_AIM), value, more


def _gib(what: str, value: float, **more: Any) -> Figure:
    return Row(what, what, "GiB", MEMORY_FLOOR >> 30, less=True), value, more


def _arrived(fabric: Fabric) -> int:
    return sum(port.sent for (_, there), port in fabric.ports.items() if there in fabric.hosts)


def packets(hosts: int, size: int) -> Figure:
    """Measure all to all."""
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
    """Measure packets per second, with idle rate control or without."""
    settings = {"congestion": CongestionSettings(mode=mode)}
    with Fabric(Topology.star(4, gbps=100, mtu=4096), settings=settings) as fabric:
        fabric.add([Flow("h0", "h1", size), Flow("h2", "h3", size)])
        begun = time.process_time()
        fabric.run(60_000_000_000)
        return _arrived(fabric) / (time.process_time() - begun)


def at_work(sources: int, time_ms: int) -> Figure:
    """Measure packets per second while switches mark and rates are controlled, with endless flows into one link."""
    settings = {"congestion": CongestionSettings(mode="dcqcn")}
    with Fabric(Topology.star(sources + 1, gbps=10, mtu=4096, switch=MARKS), settings=settings) as fabric:
        fabric.add(incast([f"h{at}" for at in range(sources)], f"h{sources}", 1 << 30))
        begun = time.process_time()
        with contextlib.suppress(TimeoutError):
            fabric.run(time_ms * 1_000_000)
        took = time.process_time() - begun
        count, cnps = _arrived(fabric), fabric.count("cnps_sent")
    return _packets(f"{sources} flows into one link, DCQCN at work", count / took, cnps=cnps, ran_s=round(took, 2))


def swift(flows: int, size: int) -> Figure:
    """Measure an incast under Swift, which is Python and called for each ACK."""
    settings = {"congestion": CongestionSettings(mode="swift")}
    with Fabric(Topology.star(flows + 1, gbps=100), settings=settings) as fabric:
        fabric.add(incast([f"h{at}" for at in range(flows)], f"h{flows}", size))
        begun = time.process_time()
        fabric.run(60_000_000_000)
        took = time.process_time() - begun
        acks, count = fabric.count("acks_received"), _arrived(fabric)
    what = f"{flows} flows into one link, Swift in Python at each ACK"
    return (
        Row(what, what, "ACKs/s", ACKS_FLOOR, ACKS_AIM),
        acks / took,
        {"acks": acks, "packets_s": round(count / took)},
    )


def memory(nics: int, flows: int) -> Figure:
    """Measure bytes of a NIC and of a flow, and extrapolate the memory of the large run."""
    before = resident_bytes()
    with Fabric(Topology.star(nics, gbps=25), settings={"log_max_qps": 8}) as fabric:
        names = list(fabric.hosts)
        # objects that a NIC has once, such as its completion queue, are created with its first flow
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
    """Run 1,024 NICs with 100 flows each to the end."""
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


def many(nics: int, size: int) -> list[Figure]:
    """Build ``nics`` NICs with 4 flows each and run them to the end; extrapolate memory and time to 10,000 NICs."""
    before = resident_bytes()
    begun = time.process_time()
    topology = Topology.leaf_spine(max(2, nics // 40), 8, min(40, nics // 2), gbps=25, up_gbps=100)
    with Fabric(topology, settings={"log_max_qps": 8}) as fabric:
        names = list(fabric.hosts)
        count = len(names)
        built = time.process_time()
        flows = [Flow(names[at], names[(at + 1 + 10 * i) % count], size) for i in range(4) for at in range(count)]
        fabric.add(flows[:count])  # objects that a NIC has once are created with its first flow
        first, added = resident_bytes(), time.process_time()
        fabric.add(flows[count:])
        ready = time.process_time()
        flow_bytes = (resident_bytes() - first) / (3 * count)
        fabric.run(60_000_000_000)
        took = time.process_time() - ready
        packets, over = _arrived(fabric), sum(result.status == 0 for result in fabric.results)
        whole = resident_bytes() - before
    flow_ms = (ready - added) / (3 * count) * 1e3
    scale, of = MANY / count, f"{MANY:,} NICs x 4"
    more = {"nics": count, "flows_over": over}
    return [
        (Row(f"memory of {of}", f"memory of {of}", "GB", 2, less=True), whole * scale / 1e9, more),
        (Row(f"building {of}", f"building {of}", "s", 30, less=True), (built - begun + added - built) * scale, {}),
        (Row("a flow of theirs: time", "many ms", "ms", 0.1, less=True), flow_ms, {}),
        (Row("a flow of theirs: bytes", "many bytes", "bytes", 10_240, less=True), flow_bytes, {}),
        (Row(f"{of}, {size} bytes a flow", "many packets", "packets/s", 300_000, 1_000_000), packets / took, {}),
    ]


def pfc() -> Figure:
    """Measure packets lost with PFC, eight links into one: 100 Gb/s, 1 us, 160 kB of buffer and 30 kB of headroom."""
    switch = {"buffer_bytes": 160_000, "xoff_bytes": 15_000, "xon_bytes": 12_000, "headroom_bytes": 30_000}
    topology = Topology.star(9, gbps=100, delay_ns=1_000, switch=switch)
    with Fabric(topology) as fabric:
        fabric.add(incast([f"h{at}" for at in range(8)], "h8", 200_000))
        fabric.run(60_000_000_000)
        dropped = fabric.switches["s0"].dropped
        pauses = sum(port.pauses for port in fabric.ports.values())
    what = "8 into 1 at 100 Gb/s, 30 kB of headroom for each link: dropped"
    return Row(what, what, "packets", 0, less=True), dropped, {"pauses": pauses, "needed": topology.headroom(0)}


def short_flow() -> Figure:
    """Measure the worst slowdown of 64 bytes beside a flow of 4 MB from the same NIC, and its cost in events."""

    def run(burst: int, turn: int) -> tuple[float, int]:
        with Fabric(Topology.star(3, gbps=25), settings={"turn_bytes": turn}, burst_packets=burst) as fabric:
            fabric.add([Flow("h0", "h1", 4 << 20)])
            fabric.add([Flow("h0", "h2", 64, 100_000 + 23_000 * at) for at in range(40)])
            results = fabric.run()
            return max(each.slowdown for each in results if each.flow.size == 64), fabric.agenda.events

    slowdown, events = run(BURST, 1024)
    before, fewer = run(64, 256 << 10)
    what = "64 bytes beside 4 MB at one NIC, to its time alone"
    more = {"events": events, "events with bursts of 64": fewer, "times then": round(before, 1)}
    return Row(what, what, "times", 2, less=True), slowdown, more


def main(argv: list[str]) -> int:
    """Print a row for each figure, and whether it reaches its floor; exit status 1 if one does not."""
    parser = harness.Parser("fabric", __doc__, short="few hosts and bytes, in seconds", json=True)
    parser.add_argument("--hosts", type=harness.at_least_one, default=64, help="hosts of the star; 64")
    parser.add_argument("--bytes", type=harness.at_least_one, default=256 << 10, help="bytes of a flow; 256 KiB")
    parser.add_argument(
        "--long", type=harness.at_least_one, default=32 << 20, help="bytes of a flow with DCQCN on and off; 32 MiB"
    )
    parser.add_argument(
        "--many", type=harness.at_least_one, default=1_000, help=f"NICs over which {MANY:,} are measured; 1000"
    )
    parser.add_argument(
        "--large", action="store_true", help=f"also {NICS} NICs x {FLOWS} flows, and {MANY:,} x 4; takes minutes"
    )
    given = parser.read(argv)
    hosts, size = (8, 64 << 10) if given.short else (given.hosts, given.bytes)
    long = 4 << 20 if given.short else given.long
    figures = [memory(8 if given.short else 32, 100), packets(hosts, size)]
    found, _ = harness.in_turn([(mode, partial(dcqcn_rate, mode, long)) for mode in ("none", "dcqcn")], 5)
    figures.append(at_work(4 if given.short else 20, 2 if given.short else 100))
    figures += [pfc(), short_flow()]
    figures.append(swift(*((4, 256 << 10) if given.short else (32, 2 << 20))))
    figures += many(MANY if given.large else 80 if given.short else given.many, 16 << 10)
    figures += [large(4_096)] if given.large else []
    rows = [row for row, _, _ in figures]
    rows.insert(2, Row("DCQCN on, no marks, against off", "dcqcn", "packets/s", DCQCN_FLOOR, DCQCN_AIM, ("none",)))
    more = {row.what: seen for row, _, seen in figures}
    wrong = {
        what: "not all flows ended"
        for what, seen in more.items()
        if seen.get("flows_over", NICS * FLOWS) < (4 * seen["nics"] if "nics" in seen else NICS * FLOWS)
    }
    notes = {what: ", ".join(f"{name} {value:,}" for name, value in seen.items()) for what, seen in more.items()}
    found |= {row.figure: [value] for row, value, _ in figures}
    return harness.report(given, rows, found, notes=notes, wrong=wrong, more=more, engine=use.ENGINE is not None)


if __name__ == "__main__":
    harness.run(main)
