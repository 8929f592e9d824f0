"""``./dev demo``: a verified sweep of WRITE, READ and SEND between two processes, as a table and a plot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rnic.cli.perf import header_line, measure, own_peer, plot, row_line
from rnic.cli.perf_tests import Row
from rnic.spec.errors import RnicError

SIZES = [64, 1_024, 4_096, 65_536, 1 << 20]
LATENCY_SIZES = [8, 1_024]
ADDRESS = "127.0.0.1"


def sweep() -> list[Row]:
    """Measure everything, printing as it goes."""
    rows: list[Row] = []
    for operation in ("write", "read", "send"):
        for test, sizes, iterations in ((f"{operation}_bw", SIZES, 200), (f"{operation}_lat", LATENCY_SIZES, 300)):
            print(f"\n{test}: RC, two processes, RoCEv2 over UDP on {ADDRESS}")
            print(header_line(test))
            with own_peer(ADDRESS) as (host, port):
                for row in measure(test, sizes, host, port, addr=ADDRESS, udp_port=0, iterations=iterations):
                    print(row_line(test, row), flush=True)
                    rows.append(row)
    return rows


def main(argv: list[str]) -> int:
    """Run the demo; 0 if all data was right."""
    path = Path("demo.png")
    try:
        rows = sweep()
    except RnicError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    if "--json" in argv:
        print(json.dumps(rows))
    series = {op: [row for row in rows if row["test"] == f"{op}_bw"] for op in ("write", "read", "send")}
    plot(series, "bw", "rnic: RC between two processes on loopback, data verified", path)
    good = sum(bool(row["verified"]) for row in rows)
    print(f"\n{good} of {len(rows)} rows verified byte for byte; plot in {path}")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
