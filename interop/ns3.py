"""Compare flow completion times of the fabric with ns-3's, on three topologies with DCQCN.

The ns-3 simulator is the one published with HPCC by Li et al. (SIGCOMM 2019, GPL, commit 9f4be2a,
github.com/alibaba-edu/High-Precision-Congestion-Control); no code of it is included. Build it as in its README, then:

    python interop/ns3.py SIMULATION [--json]

SIMULATION is its built folder `simulation`. Both get the same links, marking, DCQCN parameters and flows.
docs/studies.md has the figures and the differences.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rnic.cc.dcqcn import DcqcnSettings
from rnic.cc.settings import CongestionSettings
from rnic.sim import Fabric, Flow, Topology, incast
from rnic.sim.measure import percentile
from rnic.sim.workloads import SIZES, Distribution, poisson
from rnic.spec.congestion_regs import WINDOW_NS

GBPS, DELAY_NS, MTU, BUFFER_MIB = 25, 1_000, 1_024, 32
MARKS = {"buffer_bytes": BUFFER_MIB << 20, "kmin_bytes": 100_000, "kmax_bytes": 400_000, "pmax": 0.2}
"""ns-3's own values at 25 Gb/s."""
BEGIN_S = 2.0
TIMER_US, ADDITIVE_MBPS, HYPER_MBPS, LEAST_MBPS = 55, 40, 400, 40
STAGES = 5
GOAL = 0.05


class Case(NamedTuple):
    """A topology and its flows."""

    name: str
    topology: Topology
    flows: list[Flow]


def _incast() -> Case:
    hosts = [f"h{at}" for at in range(16)]
    return Case("star, 16 to 1", Topology.star(17, **_COMMON), incast(hosts, "h16", 1_000_000))


def _permuted() -> Case:
    flows = [Flow(f"h{at}", f"h{8 + (at * 3) % 8}", 500_000 * (1 + at % 4)) for at in range(8)]
    return Case("dumbbell, 8 to 8", Topology.dumbbell(8, **_COMMON), flows)


def _mixed() -> Case:
    topology = Topology.leaf_spine(4, 2, 8, up_gbps=100, **_COMMON)
    names = [host.name for host in topology.hosts]
    drawn = Distribution(SIZES["fb-hadoop"])
    flows = poisson(names, drawn, load=0.5, bits_s=GBPS * 10**9, duration_ns=4_000_000, rng=random.Random(5))
    return Case("leaf-spine, 50 % load of fb-hadoop", topology, flows)


_COMMON: dict[str, Any] = {"mtu": MTU, "gbps": GBPS, "delay_ns": DELAY_NS, "switch": MARKS}
CASES: tuple[Callable[[], Case], ...] = (_incast, _permuted, _mixed)


def _window(mbps: float) -> int:
    """Return the number of bytes in a window of a rate."""
    return max(1, round(mbps * 1e6 * WINDOW_NS / 8e9))


def ours(case: Case) -> list[tuple[Flow, int]]:
    """Return each flow and its completion time in nanoseconds."""
    dcqcn = DcqcnSettings(
        least_rate=_window(LEAST_MBPS),
        alpha_ns=TIMER_US * 1_000,
        timer_ns=TIMER_US * 1_000,
        counter_bytes=1 << 40,
        recovery_rounds=STAGES,
        additive_rate=_window(ADDITIVE_MBPS),
        hyper_rate=_window(HYPER_MBPS),
    )
    settings = {
        "congestion": CongestionSettings("dcqcn", dcqcn=dcqcn),
        "window_packets": 8_192,
        "window_bytes": 8 << 20,
        "flight_packets": 32_768,
        "log_max_qps": 10,
    }
    with Fabric(case.topology, settings=settings) as fabric:
        fabric.add(case.flows)
        return [(result.flow, result.took_ns) for result in fabric.run()]


def theirs(case: Case, folder: Path) -> list[tuple[Flow, int]]:
    """Return each flow and its completion time in ns-3."""
    numbers = {host.name: at for at, host in enumerate(case.topology.hosts)}
    hosts = len(numbers)
    numbers |= {switch.name: hosts + at for at, switch in enumerate(case.topology.switches)}
    switches = [numbers[switch.name] for switch in case.topology.switches]
    links = [
        f"{numbers[link.a]} {numbers[link.b]} {link.gbps:g}Gbps {link.delay_ns / 1e6:g}ms 0"
        for link in case.topology.links
    ]
    flows = sorted(case.flows, key=lambda flow: flow.start_ns)
    with tempfile.TemporaryDirectory() as place:
        at = Path(place)
        text = (
            f"{len(numbers)} {len(switches)} {len(links)}\n{' '.join(map(str, switches))}\n" + "\n".join(links) + "\n"
        )
        (at / "topology").write_text(text)
        rows = [
            f"{numbers[flow.src]} {numbers[flow.dst]} 3 {100 + number} {flow.size} {BEGIN_S + flow.start_ns / 1e9:.9f}"
            for number, flow in enumerate(flows)
        ]
        (at / "flows").write_text(f"{len(rows)}\n" + "\n".join(rows) + "\n")
        (at / "trace").write_text("0\n")
        (at / "config").write_text(_config(at))
        program = folder / "build" / "scratch" / "third"
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(folder / "build"),
            # by default it sends at line rate until 50 us after the first CNP
            "NS_ATTRIBUTE_DEFAULT": "ns3::RdmaHw::RateOnFirstCnp=0.5",
        }
        done = subprocess.run([program, at / "config"], env=env, cwd=place, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{program} failed: {done.stderr[-500:]}")
        found = []
        for line in (at / "fct").read_text().splitlines():
            _, _, _, port, _, _, took, _ = line.split()
            found.append((flows[int(port) - 100], int(took)))
    return found


def _config(at: Path) -> str:
    rates = (GBPS, 100)
    marks = {
        "KMAX_MAP": round(MARKS["kmax_bytes"] / 1_000),
        "KMIN_MAP": round(MARKS["kmin_bytes"] / 1_000),
        "PMAX_MAP": MARKS["pmax"],
    }
    rows: dict[str, Any] = {
        "ENABLE_QCN": 1,
        "USE_DYNAMIC_PFC_THRESHOLD": 1,
        "PACKET_PAYLOAD_SIZE": MTU,
        "TOPOLOGY_FILE": at / "topology",
        "FLOW_FILE": at / "flows",
        "TRACE_FILE": at / "trace",
        "TRACE_OUTPUT_FILE": at / "trace.out",
        "FCT_OUTPUT_FILE": at / "fct",
        "PFC_OUTPUT_FILE": at / "pfc",
        "SIMULATOR_STOP_TIME": 4.0,
        "CC_MODE": 1,
        "ALPHA_RESUME_INTERVAL": TIMER_US,
        "RATE_DECREASE_INTERVAL": 50,
        "CLAMP_TARGET_RATE": 1,
        "RP_TIMER": TIMER_US,
        "EWMA_GAIN": 1 / 256,
        "FAST_RECOVERY_TIMES": STAGES,
        "RATE_AI": f"{ADDITIVE_MBPS}Mb/s",
        "RATE_HAI": f"{ADDITIVE_MBPS}Mb/s",
        "MIN_RATE": f"{LEAST_MBPS}Mb/s",
        "DCTCP_RATE_AI": "1000Mb/s",
        "ERROR_RATE_PER_LINK": 0,
        "L2_CHUNK_SIZE": 4_000,
        "L2_ACK_INTERVAL": 1,
        "L2_BACK_TO_ZERO": 0,
        "HAS_WIN": 0,
        "GLOBAL_T": 1,
        "VAR_WIN": 0,
        "FAST_REACT": 0,
        "U_TARGET": 0.95,
        "MI_THRESH": 0,
        "INT_MULTI": 1,
        "MULTI_RATE": 0,
        "SAMPLE_FEEDBACK": 0,
        "PINT_LOG_BASE": 1.05,
        "PINT_PROB": 1.0,
        "RATE_BOUND": 1,
        "ACK_HIGH_PRIO": 0,
        "LINK_DOWN": "0 0 0",
        "ENABLE_TRACE": 0,
        **{
            key: f"{len(rates)} " + " ".join(f"{gbps}000000000 {value}" for gbps in rates)
            for key, value in marks.items()
        },
        "BUFFER_SIZE": BUFFER_MIB,
        "QLEN_MON_FILE": at / "qlen",
        "QLEN_MON_START": 0,
        "QLEN_MON_END": 0,
    }
    return "".join(f"{key} {value}\n" for key, value in rows.items())


def compare(case: Case, folder: Path) -> dict[str, Any]:
    """Return p50 and p99 of both, and their differences."""
    row: dict[str, Any] = {"topology": case.name, "flows": len(case.flows)}
    times = {"rnic": sorted(took for _, took in ours(case)), "ns-3": sorted(took for _, took in theirs(case, folder))}
    for name, found in times.items():
        if len(found) != len(case.flows):
            raise SystemExit(f"{case.name}: {name} ended {len(found)} of {len(case.flows)} flows")
    for share in (50, 99):
        one, other = (percentile(times[name], share) for name in ("rnic", "ns-3"))
        row |= {f"rnic_p{share}_us": round(one / 1e3, 1), f"ns3_p{share}_us": round(other / 1e3, 1)}
        row[f"apart_p{share}"] = round(one / other - 1, 4)
    row["within_goal"] = max(abs(row["apart_p50"]), abs(row["apart_p99"])) <= GOAL
    return row


def main() -> int:
    """Print a row for each topology; a missed goal is in the table, and the exit status is 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("simulation", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [compare(make(), options.simulation.resolve()) for make in CASES]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows:
            print(", ".join(f"{key} {value}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
