"""``./dev demo``: a verified sweep of WRITE, READ and SEND between two processes, as a table and a plot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rnic.cli.perf import header_line, measure, own_peer, row_line
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


def plot(rows: list[Row], path: Path) -> None:
    """Bandwidth of the three operations over message size."""
    import matplotlib as mpl  # noqa: PLC0415 - an optional extra, slow to load

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for operation in ("write", "read", "send"):
        mine = [row for row in rows if row["test"] == f"{operation}_bw"]
        axes.plot(
            [float(row["bytes"]) for row in mine],
            [float(row["bw_average_MBps"]) for row in mine],
            marker="o",
            label=operation.upper(),
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("message size, bytes")
    axes.set_ylabel("MB/s")
    axes.set_title("rnic: RC between two processes on loopback, data verified")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


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
    plot(rows, path)
    good = sum(bool(row["verified"]) for row in rows)
    print(f"\n{good} of {len(rows)} rows verified byte for byte; plot in {path}")
    return 0 if good == len(rows) else 1


__all__ = ["main", "plot", "sweep"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
