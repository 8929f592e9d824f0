"""``rnic perf``: perftest's measurements between two processes, with its own peer process or a given host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn

from rnic.cli.faults import fault_rules
from rnic.cli.files import OutFile
from rnic.cli.options import (
    PORT_RENAMED,
    Command,
    addr,
    as_json,
    connection,
    device,
    faults,
    iters,
    nic_process,
    size,
    tcp_port,
    udp_port,
)
from rnic.cli.peer import Line, PeerError, listen, towards
from rnic.cli.perf_peer import ATOMIC_BYTES, SERVICES, Endpoint, Rules, dial
from rnic.cli.perf_tests import OPERATIONS, Row, Run
from rnic.link.base import parse_address
from rnic.link.interface import is_local
from rnic.spec.errors import RnicError
from rnic.spec.limits import MTU_BYTES
from rnic.verbs.devices import address_of

TESTS = tuple(f"{operation}_{kind}" for operation in OPERATIONS for kind in ("bw", "lat"))
DEFAULT_PORT = 18515
ALL_SIZES = tuple(1 << shift for shift in range(1, 24))
_LAT_DEPTH = 64
"""Least depth of latency tests: they request few completions, and their rings hold the other requests."""
LARGEST = 1 << 30
MOST_QPS = 1024
_BYTES_PER_ROW = 256 << 20
"""Approximate bytes that a bandwidth row transfers, unless ``--iters`` is given."""

BW_COLUMNS = (
    ("bytes", "#bytes", "d"),
    ("iterations", "#iterations", "d"),
    ("bw_peak_MBps", "BW peak[MB/sec]", ".2f"),
    ("bw_average_MBps", "BW average[MB/sec]", ".2f"),
    ("msg_rate_Mpps", "MsgRate[Mpps]", ".6f"),
    ("verified", "data", "s"),
)
LAT_COLUMNS = (
    ("bytes", "#bytes", "d"),
    ("iterations", "#iterations", "d"),
    ("t_min_us", "t_min[usec]", ".2f"),
    ("t_max_us", "t_max[usec]", ".2f"),
    ("t_typical_us", "t_typical[usec]", ".2f"),
    ("t_avg_us", "t_avg[usec]", ".2f"),
    ("t_stdev_us", "t_stdev[usec]", ".2f"),
    ("p99_us", "99% [usec]", ".2f"),
    ("p999_us", "99.9% [usec]", ".2f"),
    ("verified", "data", "s"),
)


def columns_of(test: str) -> tuple[tuple[str, str, str], ...]:
    """Return key, heading and format of each column of a test's table."""
    return BW_COLUMNS if test.endswith("_bw") else LAT_COLUMNS


def header_line(test: str) -> str:
    """Return the table's heading."""
    return "".join(f" {heading:<18}" for _, heading, _ in columns_of(test)).rstrip()


def row_line(test: str, row: Row) -> str:
    """Format one row for the table under :func:`header_line`."""
    cells = []
    for key, _, form in columns_of(test):
        value = row[key]
        text = ("verified" if value else "WRONG") if key == "verified" else format(value, form)
        cells.append(f" {text:<18}")
    return "".join(cells).rstrip()


def iterations_for(test: str, size: int) -> int:
    """Return the default iterations for a size: enough for stable results, few enough to be quick."""
    if test.endswith("_lat"):
        return 1_000 if size <= 65_536 else 100
    return max(20, min(5_000, _BYTES_PER_ROW // size))


def serve(line: Line, addr: str, udp_port: int | None, attach: bool = False) -> None:
    """Run the passive side: do what the client's first message says, until it closes."""
    spec: dict[str, Any] = {}
    end: Endpoint | None = None
    try:
        spec = line.receive()
        operation, kind = str(spec["test"]).split("_")
        if operation not in OPERATIONS or spec["service"] not in SERVICES:
            raise PeerError(f"test {spec['test']!r} with {spec['service']!r} is not known here")
        size = min(int(spec["max_size"]), LARGEST)
        depth = min(int(spec["depth"]), 8_192)
        faults = [] if attach else list(spec.get("faults", ()))
        qps = min(max(1, int(spec.get("qps", 1))), MOST_QPS)
        mtu = int(spec["mtu_bytes"])
        end = Endpoint(addr, udp_port, spec["service"], size, depth, mtu, None, attach, faults, qps=qps)
        end.connect(spec["end"])
        line.send(end=end.describe())
        run = Run(end, line, operation)
        while True:
            message = line.receive()
            if message.get("bye"):
                return
            if kind == "bw":
                run.serve_bandwidth(message)
            else:
                run.serve_latency(message)
    except (KeyError, ValueError, TypeError) as error:
        _explain(line, f"cannot serve {spec.get('test')!r}: {error!r}")
        raise PeerError(f"client asked for something that is not known here: {error!r}") from None
    except RnicError as error:
        _explain(line, str(error))
        raise
    except Exception as error:
        _explain(line, f"{type(error).__name__}: {error}")
        raise
    finally:
        if end is not None:
            end.close()


def _explain(line: Line, words: str) -> None:
    """Tell the peer, if it still listens, why this side closes."""
    with suppress(PeerError):
        line.send(error=words)


@contextmanager
def own_peer(addr: str, attach: bool = False, clients: int = 1) -> Iterator[tuple[str, int]]:
    """Start a passive side in a separate process, for N clients in turn; yield its host and TCP port."""
    command = [sys.executable, "-m", "rnic.cli", "perf", "write_bw", "--listen", "--addr", addr, "--port", "0"]
    command += ["--nic-process"] if attach else ["--udp-port", "0"]
    command += ["--clients", str(clients)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    # with a NIC process there are three processes: leave placement to the scheduler
    restore = _nothing if attach else _keep_apart(process.pid)
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if not words or not words[-1].isdigit():
            raise PeerError("the peer process did not start; its message is above")
        yield addr, int(words[-1])
    except BaseException:
        process.kill()
        raise
    finally:
        if process.poll() is None:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        restore()


def _nothing() -> None:
    """Do nothing: no affinity was changed."""


def _keep_apart(peer: int) -> Callable[[], None]:
    """Pin the peer process to another core: two processes that spin on one core measure the scheduler.

    Returns:
        A function that restores this process's affinity.
    """
    if not hasattr(os, "sched_setaffinity"):
        return _nothing
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        return _nothing
    theirs = max(cores)
    os.sched_setaffinity(peer, {theirs})
    os.sched_setaffinity(0, cores - {theirs})
    return lambda: os.sched_setaffinity(0, cores)


def measure(
    test: str,
    sizes: list[int],
    host: str,
    port: int,
    *,
    addr: str,
    udp_port: int | None,
    service: str = "RC",
    iterations: int = 0,
    depth: int = 32,
    mtu: int = 0,
    capture: Path | None = None,
    attach: bool = False,
    faults: Rules = (),
    duration_s: float | None = None,
    gid_index: int = 0,
    qps: int = 1,
) -> Iterator[Row]:
    """Run the active side: yield a row for each size as it is measured. ``faults`` apply to both sides' links.

    Raises:
        PeerError: there is no peer, the combination is not supported, or a completion is in error.
    """
    operation, kind = test.split("_")
    check_combination(operation, service)
    depth = max(depth, _LAT_DEPTH) if kind == "lat" else depth
    with closing(
        Endpoint(addr, udp_port, service, max(sizes), depth, mtu, capture, attach, faults, gid_index, qps)
    ) as end:
        if service == "UD" and max(sizes) > MTU_BYTES[end.mtu]:
            raise PeerError(f"size={max(sizes)}: a UD message fits the path MTU of {MTU_BYTES[end.mtu]} bytes")
        with connected(end, test, max(sizes), host, port, faults) as run:
            for size in sizes:
                count = iterations or iterations_for(test, size)
                measured = run.bandwidth if kind == "bw" else run.latency
                row = measured(size, count)
                if duration_s is not None:
                    row = measured(size, max(1, _count_for(duration_s, row, operation) // qps))
                row["test"] = test
                yield row
        if capture is not None:
            ports = " ".join(f"--udp-port {port}" for port in (end.ctx.udp_port, end.peer["udp_port"]))
            print(f"packets recorded: rnic decode {ports} {capture}", file=sys.stderr)


@contextmanager
def connected(end: Endpoint, test: str, size: int, host: str, port: int, faults: Rules = ()) -> Iterator[Run]:
    """Start a test with messages up to ``size``; tell the passive side of its start and its end."""
    with closing(dial(host, port)) as line:
        line.send(
            test=test, service=end.service, max_size=size, depth=end.depth, qps=len(end.qps),
            mtu_bytes=MTU_BYTES[end.mtu], end=end.describe(), faults=faults,
        )  # fmt: skip
        end.connect(line.receive()["end"])
        yield Run(end, line, test.partition("_")[0])
        line.send(bye=True)


def _count_for(duration_s: float, row: Row, operation: str) -> int:
    """Estimate from a shorter run how many messages take ``duration_s``."""
    if "msg_rate_Mpps" in row:
        return max(1, int(duration_s * 1e6 * row["msg_rate_Mpps"]))  # type: ignore[operator]
    trips = 1 if operation in ("read", "atomic") else 2
    return max(1, int(duration_s * 1e6 / (trips * row["t_avg_us"])))  # type: ignore[operator]


def check_combination(operation: str, service: str) -> None:
    """Raise if a service does not support an operation."""
    if service != "RC" and (operation in ("read", "atomic") or (service == "UD" and operation == "write")):
        raise PeerError(f"{operation} is not an operation of {service}: use --connection RC")


def plot(series: Mapping[str, list[Row]], kind: str, title: str, path: Path) -> None:
    """Plot results over message size as PNG.

    Args:
        series: rows of each line, by its label.
        kind: ``bw`` or ``lat``.
        title: title of the plot.
        path: file to write.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an optional extra, slow to load

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - likewise, and only after the choice of backend

    key, label = ("bw_average_MBps", "MB/s") if kind == "bw" else ("t_typical_us", "typical latency, us")
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, rows in series.items():
        axes.plot([float(row["bytes"]) for row in rows], [float(row[key]) for row in rows], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("message size, bytes")
    axes.set_ylabel(label)
    axes.set_title(title)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _listen(addr: str, port: int, udp_port: int | None, attach: bool, clients: int) -> None:
    with listen(addr, port) as listener:
        print(f"rnic perf: waiting for a client on {addr} TCP port {listener.getsockname()[1]}", flush=True)
        for _ in range(clients):
            sock, _ = listener.accept()
            line = Line(sock, timeout_s=600)
            try:
                serve(line, addr, udp_port, attach)
            finally:
                line.close()


@click.command(
    cls=Command,
    epilog="Without HOST, start a peer process on this machine.",
    renamed={
        **PORT_RENAMED,
        "--service": "--connection",
        "--attach": "--nic-process",
        "--lose": lambda value: ("--faults", f"drop=1/{value}"),
    },
)
@click.argument("test", type=click.Choice(TESTS))
@click.argument("host", required=False)
@click.option("--listen", "serving", is_flag=True, help="Wait for a client as the passive side.")
@device("Device, such as rnic0, instead of --addr.", default=None)
@addr("HOST")
@click.option("-i", "--ib-port", default=1, show_default=True, type=click.IntRange(1, 1), help="Port of the device.")
@click.option("-x", "--gid-index", default=0, show_default=True, type=click.IntRange(0, 255), help="GID table entry.")
@udp_port("UDP port (default: 4791, or any free port for a local peer).")
@tcp_port(DEFAULT_PORT)
@size(65536, LARGEST)
@click.option("-a", "--all", "all_sizes", is_flag=True, help="Run all sizes from 2 to 2^23 bytes.")
@iters(0, "Messages of each size.", low=0, most=10_000_000)
@click.option("-D", "--duration", type=click.FloatRange(0.1, 3600), help="Seconds for each size, instead of --iters.")
@click.option(
    "-t", "--tx-depth", default=32, show_default=True, type=click.IntRange(1, 8192), help="Messages in flight."
)
@click.option(
    "-q", "--qps", default=1, show_default=True, type=click.IntRange(1, MOST_QPS), help="Queue pairs, for _bw tests."
)
@click.option("-m", "--mtu", default=0, help="Path MTU: 256 to 4096; the port's by default.")
@connection()
@click.option(
    "--clients", default=1, hidden=True, type=click.IntRange(1), help="Serve this many clients, one after another."
)
@as_json("Print the rows as one JSON array.")
@click.option("--capture", type=OutFile(), help="Record the packets to this pcapng file.")
@nic_process()
@faults()
@click.option("--plot", "plot_file", type=OutFile("matplotlib", "plot"), help="Draw the result to this PNG file.")
def perf(
    test: str,
    host: str | None,
    serving: bool,
    device: str | None,
    addr: str | None,
    ib_port: int,
    gid_index: int,
    udp_port: int | None,
    port: int,
    size: int,
    all_sizes: bool,
    iters: int,
    duration: float | None,
    tx_depth: int,
    qps: int,
    mtu: int,
    service: str,
    clients: int,
    as_json: bool,
    capture: Path | None,
    nic_process: bool,
    faults: str | None,
    plot_file: Path | None,
) -> None:
    """Measure TEST (such as write_bw or send_lat) toward HOST, verifying the data.

    --faults applies to both sides.
    """
    if mtu and mtu not in MTU_BYTES.values():
        raise click.BadParameter(f"{mtu} is not a path MTU: use 256, 512, 1024, 2048 or 4096", param_hint="--mtu")
    rules = json.loads(fault_rules(faults) or "[]")
    if rules and nic_process:
        raise click.BadParameter("the NIC process has --faults of its own: rnic serve --faults", param_hint="--faults")
    if device is not None:
        if addr is not None:
            raise click.UsageError(f"--device {device} and --addr {addr} both name the device: give one")
        addr = address_of(device)
    if serving:
        _listen(addr or "127.0.0.1", port, udp_port, nic_process, clients)
        return
    operation = test.partition("_")[0]
    check_combination(operation, service)
    if qps > 1 and test.endswith("_lat"):
        raise click.BadParameter(f"{qps}: {test} measures one queue pair: use {operation}_bw", param_hint="--qps")
    if addr is None:
        own, peer = ("127.0.0.1", None) if host is None else towards(host, port)
        if own == peer and udp_port is None and not nic_process:
            udp_port = 0  # the peer, on the same machine, uses port 4791 of this address
        addr = own
    elif not is_local(parse_address(addr)):
        raise PeerError(f"--addr {addr} is not an address of this machine: rnic devinfo lists them")
    sizes = [ATOMIC_BYTES] if operation == "atomic" else list(ALL_SIZES) if all_sizes else [size]
    if service == "UD" and all_sizes:
        sizes = [each for each in sizes if each <= (mtu or 4096)]
    options: dict[str, Any] = {
        "addr": addr, "service": service, "iterations": iters, "depth": tx_depth, "mtu": mtu, "capture": capture,
        "attach": nic_process, "faults": rules, "duration_s": duration, "gid_index": gid_index, "qps": qps,
    }  # fmt: skip
    if host is None:
        free = udp_port if nic_process else 0
        with own_peer(addr, nic_process) as (peer_host, peer_port):
            rows = _collect(measure(test, sizes, peer_host, peer_port, udp_port=free, **options), test, sizes, as_json)
    else:
        rows = _collect(measure(test, sizes, host, port, udp_port=udp_port, **options), test, sizes, as_json)
    if as_json:
        print(json.dumps(rows, indent=2))
    if plot_file is not None:
        plot({test: rows}, test.partition("_")[2], f"rnic perf {test}", plot_file)
        print(f"plot written to {plot_file}", file=sys.stderr)
    if not all(row["verified"] for row in rows):
        raise PeerError("data differs from what was sent: see the rows marked WRONG")


def _collect(rows: Iterator[Row], test: str, sizes: list[int], as_json: bool) -> list[Row]:
    """Print rows as they come, with a progress bar on a terminal."""
    if not as_json:
        print(header_line(test))
    found = []
    quiet = not sys.stderr.isatty()
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} sizes"),
        disable=quiet, transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task(test, total=len(sizes))
        for row in rows:
            found.append(row)
            if not as_json:
                (print if quiet else progress.console.print)(row_line(test, row))
            progress.advance(task)
    return found
