"""Four studies of RDMA networks on the fabric, after published ones: docs/studies.md says which and what differs.

    python examples/studies.py [fairness] [incast] [loss] [victim] [--short] [--plots FOLDER] [--json]

Without a name all run. --short is what the tests run. --plots writes a PNG for each, with matplotlib.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rnic.cc.settings import CongestionSettings
from rnic.sim import Fabric, Flow, Topology, incast
from rnic.sim.measure import Measure, percentile
from rnic.sim.topology import Host, Link, Switch
from rnic.spec.limits import RECOVERIES

Row = dict[str, Any]
Line = tuple[str, list[float], list[float]]
"""A label, where, and how much."""

PAPER_MARKS = {"buffer_bytes": 12_000_000, "kmin_bytes": 5_000, "kmax_bytes": 200_000, "pmax": 0.01}
"""Zhu and others, table 14: Kmin 5 KB, Kmax 200 KB, Pmax 1 %; 12 MB are its Arista 7050QX's buffer."""
MTU = 4_096
ENDLESS = 1 << 30


def run_for(fabric: Fabric, time_ns: int) -> None:
    """Run flows that do not end for this long."""
    with contextlib.suppress(TimeoutError):
        fabric.run(time_ns)


def goodputs(measure: Measure, begin_ns: int, end_ns: int) -> list[float]:
    """Return Gb/s of each flow between two times."""
    times = measure.times_ns
    first, last = (bisect_left(times, time_ns, 0, len(times) - 1) for time_ns in (begin_ns, end_ns))
    found = []
    for watched in measure.watched.values():
        low, high = (max(0, at - watched.first) for at in (first, last))
        moved = watched.bytes[min(high, len(watched.bytes) - 1)] - watched.bytes[min(low, len(watched.bytes) - 1)]
        found.append(moved * 8 / (times[last] - times[first]))
    return found


def jain(values: list[float]) -> float:
    """Return Jain's index: 1 if all are equal, 1/n if one has all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values)) if any(values) else 0.0


# ------------------------------------------------------------------------------------------------ fairness


def fairness(short: bool) -> tuple[list[Row], list[Line]]:
    """Run two to sixteen DCQCN flows into one link; report their fairness and the link's utilization."""
    gbps = 10
    whole_ms, counts = (16, (2, 8)) if short else (40, (2, 4, 8, 16))
    rows: list[Row] = []
    lines: list[Line] = []
    for count in counts:
        topology = Topology.star(count + 1, mtu=MTU, gbps=gbps, switch=PAPER_MARKS)
        with Fabric(topology, settings={"congestion": CongestionSettings("dcqcn")}) as fabric:
            measure = Measure(fabric, 20_000)
            fabric.add(incast([f"h{at}" for at in range(count)], f"h{count}", ENDLESS))
            run_for(fabric, whole_ms * 1_000_000)
            half = goodputs(measure, whole_ms * 500_000, whole_ms * 1_000_000)
            rows.append(
                {
                    "flows": count,
                    "jain": round(jain(half), 4),
                    "spread": round(max(half) / min(half), 3),
                    "link_used": round(sum(half) / gbps, 4),
                    "retransmitted": fabric.count("retransmitted_packets"),
                    "cnps": fabric.count("cnps_sent"),
                }
            )
            indices = [
                (ms, jain(goodputs(measure, (ms - 2) * 1_000_000, ms * 1_000_000))) for ms in range(2, whole_ms + 1, 2)
            ]
            lines.append((f"{count} flows", [ms for ms, _ in indices], [index for _, index in indices]))
    rows.append(convergence(short))
    return rows, lines


def convergence(short: bool) -> Row:
    """Start a second flow when the first has the whole link: from when on neither is a quarter below their mean."""
    gbps = 10
    start_ms, whole_ms = (2, 20) if short else (5, 40)
    topology = Topology.star(3, mtu=MTU, gbps=gbps, switch=PAPER_MARKS)
    with Fabric(topology, settings={"congestion": CongestionSettings("dcqcn")}) as fabric:
        measure = Measure(fabric, 20_000)
        fabric.add([Flow("h0", "h2", ENDLESS), Flow("h1", "h2", ENDLESS, start_ms * 1_000_000)])
        run_for(fabric, whole_ms * 1_000_000)
        unequal = start_ms
        for ms in range(start_ms + 2, whole_ms - 1):
            one, other = goodputs(measure, (ms - 2) * 1_000_000, (ms + 2) * 1_000_000)
            if min(one, other) < 0.75 * (one + other) / 2:
                unequal = ms
        return {"flows": "1 + 1", "equal_after_ms": unequal - start_ms, "of_ms": whole_ms - start_ms}


# ------------------------------------------------------------------------------------------------ incast


def incast_queue(short: bool) -> tuple[list[Row], list[Line]]:
    """Run twenty to one without and with DCQCN; report the distribution of the queue length before the receiver."""
    gbps = 10
    sources, whole_ms = (8, 8) if short else (20, 20)
    switch = {**PAPER_MARKS, "xoff_bytes": 400_000, "xon_bytes": 380_000, "headroom_bytes": 400_000}
    rows: list[Row] = []
    lines: list[Line] = []
    for mode in ("none", "dcqcn"):
        topology = Topology.star(sources + 1, mtu=MTU, gbps=gbps, switch=switch)
        with Fabric(topology, settings={"congestion": CongestionSettings(mode)}) as fabric:
            measure = Measure(fabric, 10_000)
            fabric.add(incast([f"h{at}" for at in range(sources)], f"h{sources}", ENDLESS))
            run_for(fabric, whole_ms * 1_000_000)
            port = fabric.ports["s0", f"h{sources}"]
            series = measure.queues[measure.ports.index(port)]
            # the first third is the start, where all send as fast as they can
            looks = sorted(series[len(series) // 3 :])
            rows.append(
                {
                    "congestion": mode,
                    "sources": sources,
                    "queue_p50_kb": round(percentile(looks, 50) / 1_000, 1),
                    "queue_p90_kb": round(percentile(looks, 90) / 1_000, 1),
                    "queue_p99_kb": round(percentile(looks, 99) / 1_000, 1),
                    "link_used": round(port.sent_bytes * 8 / (gbps * whole_ms * 1e6), 4),
                    "pauses": sum(each.pauses for each in fabric.ports.values()),
                    "dropped": fabric.switches["s0"].dropped,
                }
            )
            shares = [100 * (at + 1) / len(looks) for at in range(len(looks))]
            lines.append((f"congestion control {mode}", [look / 1_000 for look in looks], shares))
    return rows, lines


# ------------------------------------------------------------------------------------------------ loss


def loss(short: bool) -> tuple[list[Row], list[Line]]:
    """Run one flow over a lossy link; report its goodput and its retransmissions."""
    shares = (0.0, 0.01) if short else (0.0, 0.0003, 0.001, 0.003, 0.01, 0.02)
    size = (2 if short else 6) << 20
    rows: list[Row] = []
    for recovery in RECOVERIES:
        for share in shares:
            topology = Topology.star(2, mtu=1_024, gbps=25, delay_ns=2_000, loss=share)
            with Fabric(topology, seed=7, settings={"recovery": recovery}) as fabric:
                fabric.add([Flow("h0", "h1", size)])
                (result,) = fabric.run()
                rows.append(
                    {
                        "recovery": recovery,
                        "loss": share,
                        "goodput_gbps": round(size * 8 / result.took_ns, 3),
                        "sent_again": round(fabric.count("retransmitted_packets") * 1_024 / size, 4),
                        "lost": sum(port.lost for port in fabric.ports.values()),
                        "status": result.status,
                    }
                )
    lines = [
        (name, [row["loss"] * 100 for row in some], [row["goodput_gbps"] for row in some])
        for name in RECOVERIES
        for some in ([row for row in rows if row["recovery"] == name],)
    ]
    return rows, lines


# ------------------------------------------------------------------------------------------------ victim


def victim(short: bool) -> tuple[list[Row], list[Line]]:
    """Run a flow that only shares a cable with an incast: alone, beside it with PFC, and with DCQCN in addition."""
    gbps = 10
    whole_ms = 12 if short else 30
    pfc: dict[str, Any] = {**PAPER_MARKS, "xoff_bytes": 400_000, "xon_bytes": 380_000, "headroom_bytes": 400_000}
    names = ["v0", "v1", "t", *(f"i{at}" for at in range(4))]
    left = ["v0", *names[3:]]
    links = [Link(name, "s0" if name in left else "s1", gbps) for name in names]
    topology = Topology(
        tuple(map(Host, names)),
        tuple(Switch(name, **pfc) for name in ("s0", "s1")),
        # the cable between the switches has room for all
        (*links, Link("s0", "s1", 8 * gbps)),
        MTU,
    )
    rows: list[Row] = []
    lines: list[Line] = []
    for name, beside, mode in (
        ("alone", False, "none"),
        ("beside an incast, PFC", True, "none"),
        ("beside an incast, PFC and DCQCN", True, "dcqcn"),
    ):
        with Fabric(topology, settings={"congestion": CongestionSettings(mode)}) as fabric:
            measure = Measure(fabric, 20_000)
            fabric.add([Flow("v0", "v1", ENDLESS), *(incast(names[3:], "t", ENDLESS) if beside else ())])
            run_for(fabric, whole_ms * 1_000_000)
            half = goodputs(measure, whole_ms * 500_000, whole_ms * 1_000_000)
            rows.append(
                {
                    "victim": name,
                    "goodput_gbps": round(half[0], 3),
                    "of_the_link": round(half[0] / gbps, 4),
                    "cable_paused": round(fabric.ports["s0", "s1"].paused_ns / (whole_ms * 1e6), 4),
                    "dropped": sum(switch.dropped for switch in fabric.switches.values()),
                }
            )
            at = list(range(1, whole_ms + 1))
            lines.append(
                (name, [float(ms) for ms in at], [goodputs(measure, (ms - 1) * 10**6, ms * 10**6)[0] for ms in at])
            )
    return rows, lines


# ------------------------------------------------------------------------------------------------ all of them

Study = Callable[[bool], tuple[list[Row], list[Line]]]
STUDIES: dict[str, tuple[Study, str, str, str, str]] = {
    "fairness": (fairness, "DCQCN: how equal flows into one link are", "time, ms", "Jain's index of 2 ms", "linear"),
    "incast": (incast_queue, "Queue in front of an incast's receiver", "queue, kB", "time, %", "log"),
    "loss": (loss, "Goodput over a link of 25 Gb/s that loses packets", "packets lost, %", "goodput, Gb/s", "linear"),
    "victim": (victim, "A flow that shares a cable with an incast", "time, ms", "goodput, Gb/s", "linear"),
}


def draw(name: str, lines: list[Line], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - an optional extra, slow to load

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - likewise, and only after the choice of backend

    _, title, across, up, scale = STUDIES[name]
    figure: Any
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    for label, x, y in lines:
        axes.plot(x, y, label=label, marker="." if len(x) < 50 else "", linewidth=1.2)
    axes.set(xlabel=across, ylabel=up, title=title, xscale="symlog" if scale == "log" else scale)
    axes.set_ylim(bottom=0)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": "rnic"})
    plt.close(figure)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="STUDY", choices=[[], *STUDIES], help=", ".join(STUDIES))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    found = {}
    for name in options.names or STUDIES:
        rows, lines = STUDIES[name][0](options.short)
        found[name] = rows
        if options.plots is not None:
            draw(name, lines, options.plots / f"study-{name}.png")
        if not options.json:
            print(f"{STUDIES[name][1]}:")
            for row in rows:
                print("  " + "  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    if options.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
