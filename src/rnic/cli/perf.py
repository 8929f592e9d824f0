"""``rnic perf``: perftest's measurements between two processes, by themselves or with a named peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn

from rnic.cli.files import OutFile
from rnic.cli.perf_peer import ATOMIC_BYTES, SERVICES, Endpoint, Line, PerfError, dial, listen
from rnic.cli.perf_tests import OPERATIONS, Row, Run
from rnic.cli.route import ADDR_HELP, towards
from rnic.link.base import parse_address
from rnic.link.interface import is_local
from rnic.spec.errors import RnicError
from rnic.spec.limits import MTU_BYTES

TESTS = tuple(f"{operation}_{kind}" for operation in OPERATIONS for kind in ("bw", "lat"))
DEFAULT_PORT = 18515
ALL_SIZES = tuple(1 << shift for shift in range(1, 24))
_LAT_DEPTH = 64
"""Latency tests ask for a completion now and then only, so their rings must hold what lies between."""
LARGEST = 1 << 30
_BYTES_PER_ROW = 256 << 20
"""About how much a bandwidth row moves, unless ``--iters`` says otherwise."""

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
    """Key, heading and format of each column of a test's table."""
    return BW_COLUMNS if test.endswith("_bw") else LAT_COLUMNS


def header_line(test: str) -> str:
    """The table's heading."""
    return "".join(f" {heading:<18}" for _, heading, _ in columns_of(test)).rstrip()


def row_line(test: str, row: Row) -> str:
    """One row under :func:`header_line`."""
    cells = []
    for key, _, form in columns_of(test):
        value = row[key]
        text = ("verified" if value else "WRONG") if key == "verified" else format(value, form)
        cells.append(f" {text:<18}")
    return "".join(cells).rstrip()


def iterations_for(test: str, size: int) -> int:
    """How often a size is measured by default: enough to be steady, few enough to be quick."""
    if test.endswith("_lat"):
        return 1_000 if size <= 65_536 else 100
    return max(20, min(5_000, _BYTES_PER_ROW // size))


def serve(line: Line, addr: str, udp_port: int | None, attach: bool = False) -> None:
    """The passive side: do what the client's first message says, until it hangs up."""
    spec: dict[str, Any] = {}
    end: Endpoint | None = None
    try:
        spec = line.receive()
        operation, kind = str(spec["test"]).split("_")
        if operation not in OPERATIONS or spec["service"] not in SERVICES:
            raise PerfError(f"test {spec['test']!r} with {spec['service']!r} is not known here")
        size = min(int(spec["max_size"]), LARGEST)
        depth = min(int(spec["depth"]), 8_192)
        end = Endpoint(addr, udp_port, spec["service"], size, depth, int(spec["mtu_bytes"]), attach=attach)
        end.connect(spec["end"])
        end.lose(int(spec.get("lose", 0)))
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
        raise PerfError(f"client asked for something that is not known here: {error!r}") from None
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
    """Say why this side hangs up, if anybody is there to hear it."""
    with suppress(PerfError):
        line.send(error=words)


@contextmanager
def own_peer(addr: str, attach: bool = False, clients: int = 1) -> Iterator[tuple[str, int]]:
    """A passive side in a process of its own, for so many clients one after another; its host and TCP port."""
    command = [sys.executable, "-m", "rnic.cli", "perf", "write_bw", "--listen", "--addr", addr, "--port", "0"]
    command += ["--attach"] if attach else ["--udp-port", "0"]
    command += ["--clients", str(clients)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    # Behind one NIC process there are three parties, and the scheduler knows best.
    restore = _nothing if attach else _keep_apart(process.pid)
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if not words or not words[-1].isdigit():
            raise PerfError("the peer process did not start; its message is above")
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
    """Give nothing back."""


def _keep_apart(peer: int) -> Callable[[], None]:
    """Give the peer process a core of its own: two parties that spin on one core measure the scheduler.

    Returns:
        What gives this process its cores back.
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
    lose: int = 0,
) -> Iterator[Row]:
    """The active side: a row for each size, as it is measured; both sides lose one in ``lose`` packets that arrive.

    Raises:
        PerfError: no peer, a bad combination, or a completion in error.
    """
    operation, kind = test.split("_")
    check_combination(operation, service)
    depth = max(depth, _LAT_DEPTH) if kind == "lat" else depth
    end = Endpoint(addr, udp_port, service, max(sizes), depth, mtu, capture, attach)
    try:
        if service == "UD" and max(sizes) > MTU_BYTES[end.mtu]:
            raise PerfError(f"size={max(sizes)}: a UD message fits the path MTU of {MTU_BYTES[end.mtu]} bytes")
        line = dial(host, port)
        try:
            line.send(
                test=test,
                service=service,
                max_size=max(sizes),
                depth=end.depth,
                mtu_bytes=MTU_BYTES[end.mtu],
                end=end.describe(),
                lose=lose,
            )
            end.connect(line.receive()["end"])
            end.lose(lose)
            run = Run(end, line, operation)
            for size in sizes:
                count = iterations or iterations_for(test, size)
                row = run.bandwidth(size, count) if kind == "bw" else run.latency(size, count)
                row["test"] = test
                yield row
            line.send(bye=True)
            if capture is not None:
                ports = " ".join(f"--port {port}" for port in (end.ctx.udp_port, end.peer["udp_port"]))
                print(f"packets recorded: rnic decode {ports} {capture}", file=sys.stderr)
        finally:
            line.close()
    finally:
        end.close()


def check_combination(operation: str, service: str) -> None:
    """Refuse an operation that a service does not have."""
    if service != "RC" and (operation in ("read", "atomic") or (service == "UD" and operation == "write")):
        raise PerfError(f"{operation} is not an operation of {service}: use --service RC")


def plot(series: Mapping[str, list[Row]], kind: str, title: str, path: Path) -> None:
    """Draw figures over message size as PNG.

    Args:
        series: rows of each line, by its label.
        kind: ``bw`` or ``lat``.
        title: above the picture.
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


@click.command(epilog="Without HOST a peer process is started on this machine.")
@click.argument("test", type=click.Choice(TESTS))
@click.argument("host", required=False)
@click.option("--listen", "serving", is_flag=True, help="Be the passive side and wait for a client.")
@click.option("--addr", help=ADDR_HELP.format("HOST"))
@click.option("--udp-port", type=click.IntRange(0, 65535), help="UDP port; 4791, or any locally.")
@click.option(
    "-p",
    "--tcp-port",
    "--port",
    "port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="TCP port.",
)
@click.option("-s", "--size", default=65536, show_default=True, type=click.IntRange(1, LARGEST), help="Message bytes.")
@click.option("-a", "--all", "all_sizes", is_flag=True, help="Sizes 2 to 2^23.")
@click.option("-n", "--iters", default=0, type=click.IntRange(0, 10_000_000), help="Messages of each size.")
@click.option("-t", "--tx-depth", default=32, show_default=True, type=click.IntRange(1, 8192), help="In flight.")
@click.option("-m", "--mtu", default=0, help="Path MTU: 256 to 4096; the port's by default.")
@click.option("-c", "--service", default="RC", show_default=True, type=click.Choice(tuple(SERVICES)), help="Service.")
@click.option("--clients", default=1, hidden=True, type=click.IntRange(1), help="Serve so many, one after another.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as one JSON array.")
@click.option("--capture", type=OutFile(), help="Record the packets as pcapng.")
@click.option("--attach", is_flag=True, help="Through this user's NIC process, as programs under rnic exec.")
@click.option("--lose", default=0, type=click.IntRange(0), help="Lose one in so many packets that arrive at each end.")
@click.option("--plot", "plot_file", type=OutFile("matplotlib", "plot"), help="Draw a PNG.")
def perf(
    test: str,
    host: str | None,
    serving: bool,
    addr: str | None,
    udp_port: int | None,
    port: int,
    size: int,
    all_sizes: bool,
    iters: int,
    tx_depth: int,
    mtu: int,
    service: str,
    clients: int,
    as_json: bool,
    capture: Path | None,
    attach: bool,
    lose: int,
    plot_file: Path | None,
) -> None:
    """Measure TEST (such as write_bw or send_lat) towards HOST, verifying the data."""
    if mtu and mtu not in MTU_BYTES.values():
        raise click.BadParameter(f"{mtu} is no path MTU: use 256, 512, 1024, 2048 or 4096", param_hint="--mtu")
    if lose and attach:
        raise click.BadParameter("the NIC process loses packets by its own --faults", param_hint="--lose")
    if serving:
        _listen(addr or "127.0.0.1", port, udp_port, attach, clients)
        return
    operation = test.partition("_")[0]
    check_combination(operation, service)
    if addr is None:
        own, peer = ("127.0.0.1", None) if host is None else towards(host, port)
        if own == peer and udp_port is None and not attach:
            udp_port = 0  # 4791 of this address is the peer's, on the same machine
        addr = own
    elif not is_local(parse_address(addr)):
        raise PerfError(f"--addr {addr} is not an address of this machine: rnic devinfo lists them")
    sizes = [ATOMIC_BYTES] if operation == "atomic" else list(ALL_SIZES) if all_sizes else [size]
    if service == "UD" and all_sizes:
        sizes = [each for each in sizes if each <= (mtu or 4096)]
    options: dict[str, Any] = {
        "addr": addr, "service": service, "iterations": iters, "depth": tx_depth, "mtu": mtu, "capture": capture,
        "attach": attach, "lose": lose,
    }  # fmt: skip
    if host is None:
        free = udp_port if attach else 0
        with own_peer(addr, attach) as (peer_host, peer_port):
            rows = _collect(measure(test, sizes, peer_host, peer_port, udp_port=free, **options), test, sizes, as_json)
    else:
        rows = _collect(measure(test, sizes, host, port, udp_port=udp_port, **options), test, sizes, as_json)
    if as_json:
        print(json.dumps(rows, indent=2))
    if plot_file is not None:
        plot({test: rows}, test.partition("_")[2], f"rnic perf {test}", plot_file)
        print(f"plot written to {plot_file}", file=sys.stderr)
    if not all(row["verified"] for row in rows):
        raise PerfError("data differs from what was sent: see the rows marked WRONG")


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
