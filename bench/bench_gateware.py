"""Throughput of the gateware in clock cycles, counted exactly in the simulator.

Bytes per cycle of a 16 KiB WRITE in loopback, from doorbell to CQ_TAIL, at 32 bit as documented and at 512 bit with
overlapping fragments; and cycles from the doorbell to CQ_TAIL of a 64-byte WRITE, by state of the controller.

``--latency`` instead varies the memory latency with several WRITEs in flight, for some minutes; the network rows have
MACs and a line between two engines. It also draws docs/gateware-latency.svg.

``--ctxmgt`` prints cycles and requests a second of CtxMgt, ``--responder`` cycles of the RoCEv2 responder.

``--costs`` synthesizes instead, for some minutes; ``--placed`` also places and routes with five seeds, for an hour or
more, and resumes an interrupted run. Each writes its part of docs/gateware-figures.json, which the documentation
shows and the tests check.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import harness
from amaranth.lib import wiring

from rnic.gateware.ctxmgt.measure import measure as measure_ctxmgt
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.top import CtxMgt
from rnic.gateware.params import EngineParams
from rnic.gateware.roce.measure import measure as measure_responder
from rnic.gateware.simulate import LATENCIES, LINE_GBPS, LONG_BYTES, MEASURED, SHORT_BYTES, measure, measure_latency
from rnic.gateware.synthesis import (
    COSTED,
    map_to_ecp5,
    place_and_route,
    rtlil_to_place,
    synthesize,
    tool_versions,
)
from rnic.gateware.tools import ToolError
from rnic.gateware.top import Top

FLOORS = {"32 bit, serial": 0.85, "32 bit, overlapped": 0.85, "512 bit, overlapped": 0.6}
"""Share of the bus that a 16 KiB WRITE must reach."""
FIGURES = Path(__file__).resolve().parents[1] / "docs" / "gateware-figures.json"
MHZ = 250


def costs(_: argparse.Namespace) -> int:
    """Write the figures of the documentation: resources, and the cycles of a run without --costs."""
    cells = {}
    for engine in COSTED:
        family, width, order = engine.split()
        cells[engine] = synthesize(Top(EngineParams(bus_width=int(width), serial=order == "serial")), family).cells
        print(f"{engine}: {cells[engine]}", flush=True)
    cycles = {}
    for name, params in MEASURED.items():
        long, short = measure(params)
        cycles[name] = {"16 KiB": sum(long.values()), "64 bytes": short}
    write_figures(cells=cells, cycles=cycles)
    return 0


FAR = ("--placer-heap-timingweight", "30")
"""Timing weight of nextpnr for a design that fills the device; the default is 10."""
PLACED: dict[str, tuple[Callable[[], wiring.Component], int, tuple[str, ...]]] = {
    "engine, 32 bit, serial": (lambda: Top(EngineParams()), 125, ()),
    "engine, 512 bit, overlapped": (lambda: Top(EngineParams(bus_width=512, serial=False)), 100, FAR),
    "CtxMgt, 2^12 queues": (lambda: CtxMgt(CtxMgtParams(log_qps=12)), 0, ()),
}
"""Designs to place and route, with frequency floor in MHz (or 0) and nextpnr options. The key data of 2^13 queues is
6.2 Mbit; the largest ECP5 has 3.8 Mbit of block RAM."""
SEEDS = (1, 2, 3, 4, 5)


def placed(given: argparse.Namespace) -> int:
    """Place and route each design with each seed, seed by seed; return 1 if a floor is missed or seeds are missing.

    Each figure is written at once. Figures of the same netlist, by its digest, are not measured again, so that an
    interrupted run resumes. ``--only`` selects designs, ``--seeds`` the first seeds.
    """
    versions, netlists = tool_versions(), {}
    designs = {name: build for name, build in PLACED.items() if given.only in name}
    texts = {name: rtlil_to_place(build()) for name, (build, _, _) in designs.items()}
    for seed in SEEDS[: given.seeds]:
        for name, (_, floor, options) in designs.items():
            row, tools = placed_row(name), " ".join((versions, *options))
            digest = hashlib.sha256((tools + texts[name]).encode()).hexdigest()[:16]
            if row.get("netlist") != digest:
                row = {"what": name, "mhz": {}, "floor": floor, "tools": tools, "netlist": digest}
            if str(seed) in row["mhz"]:
                print(f"{name}, seed {seed}: {row['mhz'][str(seed)]} MHz, as before", flush=True)
                continue
            began = time.monotonic()
            if name not in netlists:
                netlists[name] = map_to_ecp5(texts[name])
                row["cells"] = netlists[name].cells
                print(f"{name}: {row['cells']}, mapped in {time.monotonic() - began:.0f} s", flush=True)
            began = time.monotonic()
            print(f"{name}, seed {seed}: placing and routing", flush=True)
            mhz, longest = place_and_route(netlists[name], seed, floor or 125, options)
            took = time.monotonic() - began
            print(f"{name}, seed {seed}: {mhz:.1f} MHz after {took:.0f} s; longest path {longest}", flush=True)
            row["mhz"][str(seed)] = round(mhz, 1)
            others = [other for other in json.loads(FIGURES.read_text())["placed"] if other["what"] != name]
            write_figures(placed=sorted([*others, row], key=lambda each: list(PLACED).index(each["what"])))
    failed = []
    for name, (_, floor, _) in designs.items():
        mhz = placed_row(name)["mhz"]
        print(f"{name}: median {median(mhz.values())} MHz of {mhz}; {placed_row(name)['tools']}", flush=True)
        if median(mhz.values()) < floor:
            failed.append(f"{name}: {median(mhz.values())} MHz, wanted {floor}")
        elif sum(each >= floor for each in mhz.values()) <= len(SEEDS) // 2:  # missing seeds may lower the median
            failed.append(f"{name}: {len(mhz)} of {len(SEEDS)} seeds, whose median the floor is for")
    for text in failed:
        print(f"bench gateware: {text}", file=sys.stderr)
    return 1 if failed else 0


def placed_row(name: str) -> dict[str, Any]:
    """Return the row of a design in the figures, or an empty one."""
    found: list[dict[str, Any]] = json.loads(FIGURES.read_text())["placed"]
    return next((row for row in found if row["what"] == name), {})


LATENCY_ROWS = (
    ("16 KiB, loopback, 8 posted", LONG_BYTES, 0.0, 8, 120, 80.0),
    (f"16 KiB, network, {LINE_GBPS:g} Gb/s MAC, 8 posted", LONG_BYTES, LINE_GBPS, 8, 120, 75.0),
    ("64 bytes, loopback, 40 posted", SHORT_BYTES, 0.0, 40, 60, 0.0),
)
"""Name, bytes, Gb/s of the line (0 for loopback), number of WRITEs, latency of the floor, and floor in Gb/s, or 0 for
FLOOR_CYCLES per WRITE."""
FLOOR_CYCLES = 24


def write_figures(**sections: object) -> None:
    """Replace these sections of the documentation's figures."""
    FIGURES.write_text(json.dumps(json.loads(FIGURES.read_text()) | sections, indent=2) + "\n")


def latency(_: argparse.Namespace) -> int:
    """Print cycles, Gb/s and verdicts by memory latency, and update the documentation; 1 if a floor is missed."""
    failed, rows = [], []
    for name, size, line_gbps, count, at, floor in LATENCY_ROWS:
        for cycles_late in sorted({*LATENCIES, at}):
            cycles, line_bits = measure_latency(size, cycles_late, line_gbps > 0, count, line_gbps)
            rate, line = size * 8 * MHZ / cycles / 1000, line_bits * MHZ / 1000
            wire = f", {line:.1f} Gb/s on the line" if line_gbps else ""
            reached = rate >= floor if floor else cycles <= FLOOR_CYCLES
            goal = f"at least {floor:g} Gb/s" if floor else f"at most {FLOOR_CYCLES} cycles"
            verdict = f"; floor {goal}: {'reached' if reached else 'MISSED'}" if cycles_late == at else ""
            print(f"{name}, latency {cycles_late}: {cycles:.1f} cycles, {rate:.1f} Gb/s{wire}{verdict}", flush=True)
            rows.append({"what": name, "bytes": size, "latency": cycles_late, "cycles": round(cycles, 1)})
            if line_gbps:
                rows[-1]["line_gbps"] = round(line, 1)
            if cycles_late == at:
                rows[-1]["floor"] = round(floor) or FLOOR_CYCLES
            if cycles_late == at and not reached:
                failed.append(f"{name}: {cycles:.1f} cycles, {rate:.1f} Gb/s at latency {at}")
    write_figures(latency=rows)
    subprocess.run([sys.executable, FIGURES.with_name("gen_gateware.py"), "--plot"], check=True)
    for text in failed:
        print(f"bench gateware: {text}", file=sys.stderr)
    return 1 if failed else 0


def ctxmgt(_: argparse.Namespace) -> int:
    """Print CtxMgt's cycles per request, and update the documentation."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure_ctxmgt(Path(scratch))
    for row in rows:
        print(f"{row['what']}, memory latency {row['latency']}: {row['cycles']} cycles, "
              f"{MHZ / row['cycles']:.1f} million a second at {MHZ} MHz")  # fmt: skip
    write_figures(ctxmgt=rows)
    return 0


def responder(_: argparse.Namespace) -> int:
    """Print the RoCEv2 responder's cycles, and write them for the documentation."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure_responder(Path(scratch))
    for row in rows:
        print(f"{row['what']}: {row['cycles']} cycles")
    write_figures(responder=rows)
    return 0


def main(argv: list[str]) -> int:
    """Print the figures; return 1 if a floor is missed or data is wrong."""
    parser = harness.Parser("gateware", __doc__, rows=PLACED, json=True)
    modes = parser.add_mutually_exclusive_group()
    for name, mode, text in (
        ("--latency", latency, "vary memory latency, with several WRITEs in flight"),
        ("--costs", costs, "synthesize"),
        ("--placed", placed, "also place and route the designs of --only with the seeds of --seeds"),
        ("--ctxmgt", ctxmgt, "count cycles of CtxMgt's requests"),
        ("--responder", responder, "count cycles of the RoCEv2 responder"),
    ):
        modes.add_argument(name, dest="mode", action="store_const", const=mode, default=loopback, help=text)
    most = len(SEEDS)
    parser.add_argument("--seeds", type=harness.at_least_one, default=most, metavar="N", help="the first N; default 5")
    given = parser.read(argv)
    try:
        return int(given.mode(given))
    except ToolError as error:
        print(f"bench gateware: {error}", file=sys.stderr)
        return 1


def loopback(given: argparse.Namespace) -> int:
    """Print cycles in loopback; return 1 if a floor is missed."""
    rows, failed = [], []
    for name, params in MEASURED.items():
        long, short = measure(params)
        took = sum(long.values())
        share = LONG_BYTES / took / params.bus_bytes
        rows.append(
            {
                "engine": name,
                "cycles": took,
                "bytes_per_cycle": round(LONG_BYTES / took, 3),
                "share_of_bus": round(share, 3),
                f"gbit_per_s_at_{MHZ}_mhz": round(LONG_BYTES * 8 * MHZ / took / 1000, 1),
                "doorbell_to_tail": sum(short.values()),
                "by_state": short,
            }
        )
        if share < FLOORS.get(name, 0):
            failed.append(f"{name}: {share:.3f} of the bus, wanted {FLOORS[name]}")
    if not harness.write_json(given, rows):
        print(f"16 KiB WRITE in loopback, doorbell to CQ_TAIL; Gb/s at {MHZ} MHz")
        for row in rows:
            print(
                f"  {row['engine']:20} {row['bytes_per_cycle']:8} bytes/cycle  {row['share_of_bus']:6.1%} of the bus"
                f"  {row[f'gbit_per_s_at_{MHZ}_mhz']:6} Gb/s"
            )
        print("64-byte WRITE, cycles from doorbell to CQ_TAIL")
        for row in rows:
            assert isinstance(row["by_state"], dict)
            by_state = ", ".join(f"{state} {cycles}" for state, cycles in row["by_state"].items())
            print(f"  {row['engine']:20} {row['doorbell_to_tail']:4}: {by_state}")
    for line in failed:
        print(f"bench gateware: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    harness.run(main)
