"""How fast the fabric runs, what it keeps in memory, and what rate control costs where nothing is marked.

    ./dev bench fabric [--json] [--short] [--large]

`packets`: all hosts of a star send to all others; packets that reach a NIC, a second of processor time of one core.
`dcqcn`: the same over a few long flows, with DCQCN on and no switch that marks, against off; the best of five each,
in turn.
`at work`: packets a second where switches mark, CNPs are sent and rates are kept.
`memory`: bytes of a NIC, and of a flow with its two queue pairs, measured. `--large` runs 1,024 NICs with 100 flows
each to the end.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from rnic.cc.settings import CongestionSettings
from rnic.engine import use
from rnic.sim import Fabric, Flow, Topology, all_to_all, incast

PACKETS_FLOOR, PACKETS_AIM = 150_000, 1_000_000
DCQCN_FLOOR, DCQCN_AIM = 0.95, 1.0
MEMORY_FLOOR = 2 << 30
MARKS = {"buffer_bytes": 12_000_000, "kmin_bytes": 5_000, "kmax_bytes": 200_000, "pmax": 0.01}
NICS, FLOWS = 1_024, 100
AIM, FLOOR, MISSED = "aim reached", "ok", "MISSED"


def _resident() -> int:
    """Bytes of this process in memory."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _arrived(fabric: Fabric) -> int:
    return sum(port.sent for (_, there), port in fabric.ports.items() if there in fabric.hosts)


def _row(what: str, value: float, floor: float, aim: float, unit: str, **more: Any) -> dict[str, Any]:
    verdict = AIM if value >= aim else FLOOR if value >= floor else MISSED
    return {"what": what, "value": value, "unit": unit, "floor": floor, "aim": aim, "verdict": verdict, **more}


def packets(hosts: int, size: int) -> dict[str, Any]:
    """All to all."""
    begun = time.process_time()
    with Fabric(Topology.star(hosts, gbps=25), settings={"log_max_qps": 8}) as fabric:
        fabric.add(all_to_all(list(fabric.hosts), size))
        built = time.process_time()
        fabric.run(60_000_000_000)
        took = time.process_time() - built
        count, events = _arrived(fabric), fabric.agenda.events
    return _row(
        f"{hosts} NICs all to all, {size} bytes a flow",
        round(count / took),
        PACKETS_FLOOR,
        PACKETS_AIM,
        "packets/s",
        events_s=round(events / took),
        built_s=round(built - begun, 2),
        ran_s=round(took, 2),
    )


def _rate(mode: str, size: int) -> float:
    settings = {"congestion": CongestionSettings(mode=mode)}
    with Fabric(Topology.star(4, gbps=100, mtu=4096), settings=settings) as fabric:
        fabric.add([Flow("h0", "h1", size), Flow("h2", "h3", size)])
        begun = time.process_time()
        fabric.run(60_000_000_000)
        return _arrived(fabric) / (time.process_time() - begun)


def dcqcn(size: int) -> dict[str, Any]:
    """Rate control that has nothing to do."""
    rates: dict[str, float] = {"none": 0.0, "dcqcn": 0.0}
    for _ in range(5):
        rates = {mode: max(best, _rate(mode, size)) for mode, best in rates.items()}
    share = rates["dcqcn"] / rates["none"]
    more = {f"{mode}_packets_s": round(rate) for mode, rate in rates.items()}
    return _row("DCQCN on, no marks, against off", round(share, 3), DCQCN_FLOOR, DCQCN_AIM, "", **more)


def at_work(sources: int, time_ms: int) -> dict[str, Any]:
    """Packets a second where switches mark, CNPs are sent and rates are kept: flows without end into one link."""
    settings = {"congestion": CongestionSettings(mode="dcqcn")}
    with Fabric(Topology.star(sources + 1, gbps=10, mtu=4096, switch=MARKS), settings=settings) as fabric:
        fabric.add(incast([f"h{at}" for at in range(sources)], f"h{sources}", 1 << 30))
        begun = time.process_time()
        with contextlib.suppress(TimeoutError):
            fabric.run(time_ms * 1_000_000)
        took = time.process_time() - begun
        count, cnps = _arrived(fabric), fabric.count("cnps_sent")
    what = f"{sources} flows into one link, DCQCN at work"
    return _row(what, round(count / took), PACKETS_FLOOR, PACKETS_AIM, "packets/s", cnps=cnps, ran_s=round(took, 2))


def memory(nics: int, flows: int) -> dict[str, Any]:
    """Bytes of a NIC and of a flow, and what the large run would take."""
    gc.collect()
    before = _resident()
    with Fabric(Topology.star(nics, gbps=25), settings={"log_max_qps": 8}) as fabric:
        names = list(fabric.hosts)
        # what a NIC has once, such as its completion queue, comes with its first flow
        fabric.add(Flow(names[at], names[(at + 1) % nics], 4_096) for at in range(nics))
        gc.collect()
        first = _resident()
        fabric.add(
            Flow(names[at], names[(at + 1 + i % (nics - 1)) % nics], 4_096) for at in range(nics) for i in range(flows)
        )
        fabric.run(60_000_000_000)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    nic, flow = (first - before) / nics, (most - first) / nics / flows
    whole = NICS * nic + NICS * FLOWS * flow
    verdict = FLOOR if whole < MEMORY_FLOOR else MISSED
    return {
        "what": f"memory, measured over {nics} NICs with {flows} flows each",
        "value": round(whole / (1 << 30), 2),
        "unit": f"GiB for {NICS} NICs x {FLOWS}",
        "floor": MEMORY_FLOOR >> 30,
        "verdict": verdict,
        "nic_bytes": round(nic),
        "flow_bytes": round(flow),
    }


def large(size: int) -> dict[str, Any]:
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
    whole = over == NICS * FLOWS and peak < MEMORY_FLOOR >> 30
    return {
        "what": f"{NICS} NICs x {FLOWS} flows of {size} bytes, to the end",
        "value": round(peak, 2),
        "unit": "GiB at most",
        "floor": MEMORY_FLOOR >> 30,
        "verdict": FLOOR if whole else MISSED,
        "flows_over": over,
        "packets": count,
        "packets_s": round(count / took),
        "built_s": round(built - begun, 1),
        "ran_s": round(took, 1),
    }


def main() -> int:
    """Print a row for each figure, and whether it reaches its floor; the exit status is 1 where one does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--bytes", type=int, default=256 << 10)
    parser.add_argument("--long", type=int, default=32 << 20, help="bytes of a flow with DCQCN on and off")
    parser.add_argument("--short", action="store_true", help="few hosts and bytes, in seconds")
    parser.add_argument("--large", action="store_true", help=f"also {NICS} NICs x {FLOWS} flows; takes minutes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    hosts, size = (8, 64 << 10) if options.short else (options.hosts, options.bytes)
    rows = [
        memory(8 if options.short else 32, 100),
        packets(hosts, size),
        dcqcn(4 << 20 if options.short else options.long),
        at_work(4 if options.short else 20, 2 if options.short else 100),
        *([large(4_096)] if options.large else []),
    ]
    if options.json:
        print(json.dumps({"engine": use.ENGINE is not None, "rows": rows}, indent=1))
    else:
        for row in rows:
            rest = ", ".join(f"{name} {value:,}" for name, value in row.items() if name not in _SAID)
            print(f"{row['what']}: {row['value']:,} {row['unit']} (floor {row['floor']:,}: {row['verdict']}); {rest}")
    return int(any(row["verdict"] == MISSED for row in rows))


_SAID = ("what", "value", "unit", "floor", "verdict")

if __name__ == "__main__":
    sys.exit(main())
