"""What the gateware does with a clock cycle. Everything here is counted in the simulator, so it is exact.

    ./dev bench gateware [--json]
    ./dev bench gateware --costs

Bytes per cycle of a 16 KiB WRITE in loopback, from doorbell to CQ_TAIL, at 32 bit as documented and at 512 bit with
overlapping fragments; and cycles from the doorbell to CQ_TAIL of a 64-byte WRITE, by state of the controller.

``--costs`` synthesizes, places and routes instead, for a quarter of an hour, and writes docs/gateware-resources.json,
which the documentation prints and the tests hold the gateware to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rnic.gateware.params import EngineParams
from rnic.gateware.runs import Job, run_job
from rnic.gateware.synthesis import COSTED, max_frequency_mhz, synthesize
from rnic.gateware.top import Top

ENGINES = {
    "32 bit, serial": EngineParams(bus_width=32, fifo_depth=64),
    "32 bit, overlapped": EngineParams(bus_width=32, fifo_depth=64, serial=False),
    "512 bit, serial": EngineParams(bus_width=512, fifo_depth=64),
    "512 bit, overlapped": EngineParams(bus_width=512, fifo_depth=64, serial=False),
}
FLOORS = {"32 bit, serial": 0.85, "32 bit, overlapped": 0.85, "512 bit, overlapped": 0.6}
"""Share of the bus that a 16 KiB WRITE must reach."""
RESOURCES = Path(__file__).resolve().parents[1] / "docs" / "gateware-resources.json"
LONG, SHORT = 16384, 64
MHZ = 250


def costs() -> int:
    """Write the table of resources."""
    cells = {}
    for engine in COSTED:
        family, width, order = engine.split()
        cells[engine] = synthesize(Top(EngineParams(bus_width=int(width), serial=order == "serial")), family).cells
        print(f"{engine}: {cells[engine]}", flush=True)
    mhz = round(max_frequency_mhz(Top(EngineParams())), 1)
    print(f"ECP5, 32 bit, serial: {mhz} MHz")
    RESOURCES.write_text(json.dumps({"cells": cells, "ecp5_mhz": mhz}, indent=2) + "\n")
    return 0


def main() -> int:
    """Print the figures; 1 if a floor is not reached or a byte is wrong."""
    if "--costs" in sys.argv:
        return costs()
    rows, failed = [], []
    for name, params in ENGINES.items():
        long = run_job(Job(sizes=(LONG,), count=1), params, log_states=True)
        short = run_job(Job(sizes=(SHORT,), count=1), params, log_states=True)
        # polling software is not part of the engine
        states, cycles = short.controller, sum(long.controller.values())
        share = LONG / cycles / params.bus_bytes
        rows.append(
            {
                "engine": name,
                "bytes_per_cycle": round(LONG / cycles, 3),
                "share_of_bus": round(share, 3),
                f"gbit_per_s_at_{MHZ}_mhz": round(LONG * 8 * MHZ / cycles / 1000, 1),
                "doorbell_to_tail": sum(states.values()),
                "by_state": states,
            }
        )
        failed += [f"{name}: {line}" for line in long.wrong + short.wrong]
        if share < FLOORS.get(name, 0):
            failed.append(f"{name}: {share:.3f} of the bus, wanted {FLOORS[name]}")
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
    else:
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
    sys.exit(main())
