"""``./dev demo``: a verified sweep of WRITE, READ and SEND between two processes, as a table and a picture."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from pathlib import Path
from typing import Any

from rnic import __version__
from rnic.cli.perf import header_line, measure, own_peer, row_line
from rnic.cli.perf_tests import Row
from rnic.engine.use import ENGINE
from rnic.spec.errors import RnicError

SIZES = [64, 1_024, 4_096, 65_536, 1 << 20]
LATENCY_SIZES = [8, 1_024]
ADDRESS = "127.0.0.1"
OPERATIONS = ("write", "read", "send")
COLORS = {"write": "tab:blue", "read": "tab:orange", "send": "tab:green"}
TESTS = [
    (f"{operation}_{kind}", sizes, iterations)
    for operation in OPERATIONS
    for kind, sizes, iterations in (("bw", SIZES, 200), ("lat", LATENCY_SIZES, 300))
]
_DATAGRAM = 4_096
_IN_FLIGHT = 16
_COMPARED_BYTES = 4 << 20


def sweep() -> list[Row]:
    """Measure everything, printing as it goes."""
    rows: list[Row] = []
    began = time.monotonic()
    with own_peer(ADDRESS, clients=len(TESTS)) as (host, port):
        for step, (test, sizes, iterations) in enumerate(TESTS, 1):
            spent = time.monotonic() - began
            print(f"\n[{step} of {len(TESTS)}, {spent:.0f} s] {test}: RC, two processes, RoCEv2 over UDP on {ADDRESS}")
            print(header_line(test), flush=True)
            for row in measure(test, sizes, host, port, addr=ADDRESS, udp_port=0, iterations=iterations):
                print(row_line(test, row), flush=True)
                rows.append(row)
    print("\nBW peak: the fastest run of 32 messages in flight, from the posting of its first to its last completion")
    return rows


def copy_rate(size: int) -> float:
    """Return the rate in MB/s of memory copies of ``size`` bytes, one after another."""
    source, target = memoryview(bytes(size)), memoryview(bytearray(size))
    count = max(8, min(2_000, _COMPARED_BYTES // size))
    start = time.perf_counter()
    for _ in range(count):
        target[:] = source
    return count * size / (time.perf_counter() - start) / 1e6


def udp_rate(size: int) -> float:
    """Return the rate in MB/s of ``size``-byte messages over UDP in this process, in datagrams of up to 4096 bytes."""
    datagram = bytes(min(size, _DATAGRAM))
    count = max(200, min(2_000, _COMPARED_BYTES // len(datagram))) // _IN_FLIGHT
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((ADDRESS, 0))
        sock.settimeout(5)
        target = sock.getsockname()
        start = time.perf_counter()
        for _ in range(count):
            for _ in range(_IN_FLIGHT):
                sock.sendto(datagram, target)
            for _ in range(_IN_FLIGHT):
                sock.recv(_DATAGRAM)
        return count * _IN_FLIGHT * len(datagram) / (time.perf_counter() - start) / 1e6


def with_unit(value: float, unit: str) -> str:
    """Format a value with a suitable unit, such as ``1.4 GB/s``; it is given in MB/s or microseconds."""
    names = ("KB/s", "MB/s", "GB/s", "TB/s") if unit == "MB/s" else ("ns", "µs", "ms", "s")
    value *= 1_000
    place = 0
    while value >= 1_000 and place < len(names) - 1:
        value /= 1_000
        place += 1
    return f"{value:.3g} {names[place]}"


def picture(rows: list[Row], compared: dict[str, list[float]], path: Path) -> None:
    """Draw bandwidth next to that of copies and plain UDP, and latency, as PNG.

    Args:
        rows: measured rows.
        compared: MB/s at each of :data:`SIZES`, by the line's label.
        path: file to write.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an optional extra, slow to load

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - likewise, and only after the choice of backend
    from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415

    def bytes_text(value: float, _: object) -> str:
        return f"{value:g} B" if value < 1_024 else f"{value / 1_024:g} KiB" if value < 1 << 20 else "1 MiB"

    figure: Any
    figure, (bandwidth, latency) = plt.subplots(1, 2, figsize=(11.5, 4.8), width_ratios=(3, 2))
    for operation in OPERATIONS:
        of = [row for row in rows if row["test"] == f"{operation}_bw"]
        averages = [float(row["bw_average_MBps"]) for row in of]
        label = f"{operation.upper()}, at most {with_unit(max(averages), 'MB/s')}"
        bandwidth.plot(
            [float(row["bytes"]) for row in of],
            averages,
            marker="o",
            markersize=5,
            lw=2,
            color=COLORS[operation],
            label=label,
        )
    for label, values in compared.items():
        bandwidth.plot(SIZES, values, linestyle="--", color="0.5" if "UDP" in label else "0.75", label=label)
    bandwidth.set_xscale("log", base=2)
    bandwidth.set_yscale("log")
    bandwidth.set_xticks(SIZES)
    bandwidth.xaxis.set_major_formatter(FuncFormatter(bytes_text))
    bandwidth.yaxis.set_major_formatter(FuncFormatter(lambda value, _: with_unit(value, "MB/s")))
    bandwidth.set_title("Bandwidth by message size", loc="left", fontsize="medium")
    bandwidth.grid(True, which="major", alpha=0.3)
    bandwidth.legend(fontsize="small", frameon=False)
    of = [row for row in rows if str(row["test"]).endswith("_lat")][::-1]
    names = [f"{str(row['test']).removesuffix('_lat').upper()} {bytes_text(float(row['bytes']), 0)}" for row in of]
    typical, late = ([float(row[key]) for row in of] for key in ("t_typical_us", "p99_us"))
    bars = latency.barh(names, typical, height=0.6, color=[COLORS[str(row["test"]).removesuffix("_lat")] for row in of])
    shown = [
        f" {with_unit(median, 'us')}  (99 % within {with_unit(tail, 'us')})"
        for median, tail in zip(typical, late, strict=True)
    ]
    latency.bar_label(bars, shown, fontsize="small", padding=3)
    latency.set_xlim(0, max(typical) * 2.1)  # room for the text next to the longest bar
    latency.xaxis.set_major_formatter(FuncFormatter(lambda value, _: with_unit(value, "us") if value else "0"))
    latency.xaxis.set_major_locator(MaxNLocator(6))
    latency.set_title("Median latency: half a round trip; READ: a whole one", loc="left", fontsize="medium")
    latency.tick_params(axis="y", length=0)
    for panel in (bandwidth, latency):
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "rnic: RDMA between two processes over RoCEv2 on loopback, every byte checked",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    figure.text(0.01, 0.015, conditions(), fontsize="x-small", color="0.4")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def conditions() -> str:
    """Return the conditions of the measurement, in one line."""
    parts = "engine in C" if ENGINE else "plain Python"
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    return f"rnic {__version__}, {parts}; {platform.python_implementation()} {platform.python_version()}; {machine}"


def main(argv: list[str]) -> int:
    """Run the demo; return 0 if all data was right."""
    path = Path("demo.png")
    try:
        rows = sweep()
    except RnicError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    if "--json" in argv:
        print(json.dumps(rows))
    compared = {
        "copy in memory": [copy_rate(size) for size in SIZES],
        "plain UDP socket, 4 KiB datagrams": [udp_rate(size) for size in SIZES],
    }
    print("drawing", path, flush=True)
    picture(rows, compared, path)
    good = sum(bool(row["verified"]) for row in rows)
    print(f"{good} of {len(rows)} rows verified byte for byte; picture in {path}")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
