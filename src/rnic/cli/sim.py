"""``rnic sim``: run a scenario file in virtual time, with tables, plots, captures and a trace for Perfetto."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from rnic.cli.files import OutFile
from rnic.cli.sim_parquet import check_parquet, write_parquet
from rnic.cli.sim_pictures import plot
from rnic.cli.sim_sweep import axis, run_sweep, show_sweep
from rnic.cli.sim_trace import trace_document
from rnic.sim.measure import Measure, capture
from rnic.sim.scenario import Scenario
from rnic.spec.errors import RnicError
from rnic.spec.json_text import json_value
from rnic.spec.source import install_hint

SHOWN_PORTS = 12
EXIT_UNFINISHED = 1
_EXIT_INTERRUPTED = 130
_FIGURES = ("flows", "ports", "sizes")
_SAMPLES = ("series", "progress")
"""Rows over time, which only CSV and Parquet have."""


class SimError(RnicError):
    """The results of a run cannot be shown as requested."""


def figures(measure: Measure, scenario: Scenario, seed: int) -> dict[str, Any]:
    """Return all results of a run as plain data, which does not depend on this machine."""
    return {
        "scenario": scenario.name,
        "seed": seed,
        "congestion": scenario.congestion.mode,
        "summary": measure.summary(),
        "sizes": measure.sizes(),
        "ports": measure.port_rows(),
        "flows": measure.flows(),
    }


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Format rows as CSV, with a header of column names."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _time(value_ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value_ns >= size:
            return f"{value_ns / size:,.3f} {unit}"
    return f"{value_ns:g} ns"


def show(found: dict[str, Any], console: Console) -> None:
    """Print the tables of a run."""
    summary = found["summary"]
    console.print(
        f"{found['scenario']}: seed {found['seed']}, congestion control {found['congestion']}, "
        f"{summary['nics']} NICs, {_time(summary['virtual_ns'])} of virtual time",
        highlight=False,
    )
    figures_table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in summary.items():
        if value or name in ("flows_over", "dropped", "cnps_sent", "retransmitted_packets", "pauses"):
            shown = _time(value) if name.endswith("_ns") else f"{value:,}"
            figures_table.add_row(name.removesuffix("_ns").replace("_", " "), shown)
    console.print(figures_table)
    if found["sizes"]:
        table = Table(title="flows by bytes", title_justify="left", box=None, pad_edge=False)
        for title in ("bytes", "flows", "FCT p50", "p99", "worst", "slowdown p50", "p99", "worst"):
            table.add_column(title, justify="right")
        for row in found["sizes"]:
            times = [_time(row[f"fct_p{each}_ns"]) for each in (50, 99, 100)]
            slow = [f"{row[f'slowdown_p{each}']:.2f}" for each in (50, 99, 100)]
            table.add_row(row["size"], f"{row['flows']:,}", *times, *slow)
        console.print(table)
    ports = sorted(found["ports"], key=lambda row: (-row["queue_peak_bytes"], row["port"]))
    title = "ports" if len(ports) <= SHOWN_PORTS else f"ports with the {SHOWN_PORTS} longest queues of {len(ports)}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("port", "packets", "queue peak", "p99", "mean", "marked", "lost", "pauses", "paused"):
        table.add_column(name, justify="left" if name == "port" else "right")
    for row in ports[:SHOWN_PORTS]:
        queue = [row["queue_peak_bytes"], row["queue_p99_bytes"], row["queue_mean_bytes"]]
        table.add_row(
            row["port"], f"{row['packets']:,}", *("-" if each is None else f"{each:,}" for each in queue),
            *(f"{row[name]:,}" for name in ("marked", "lost", "pauses")), _time(row["paused_ns"]),
        )  # fmt: skip
    console.print(table)


class _Stop:
    """Records the first Ctrl-C; the interpreter handles the second one."""

    def __init__(self) -> None:
        self.pressed = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Handle Ctrl-C inside the block."""

        def press(number: int, frame: object) -> None:
            self.pressed = True
            signal.signal(signal.SIGINT, before)

        before = signal.signal(signal.SIGINT, press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def play(measure: Measure, limit_ns: int, go_on: Callable[[], bool]) -> str:
    """Run; return the reason if it ended early, else an empty string."""
    try:
        measure.fabric.run(limit_ns, go_on)
    except TimeoutError as error:
        return str(error)
    return ""


def _parts(measure: Measure) -> tuple[int, int]:
    """Return how many flows have ended, and their total, as the progress of a run."""
    over = len(measure.fabric.results)
    return over, over + measure.fabric.left


@contextlib.contextmanager
def _bar(measure: Measure, stop: _Stop) -> Iterator[Callable[[], bool]]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("simulating", said="")

        def go_on() -> bool:
            over, whole = _parts(measure)
            said = f"{over:,} of {whole:,} flows, {_time(measure.fabric.agenda.now_ns)} of virtual time"
            progress.update(task, completed=over, total=max(1, whole), said=said)
            return not stop.pressed

        yield go_on


def _capture_files(words: tuple[str, ...]) -> dict[str, Path]:
    files = {}
    for word in words:
        link, _, name = word.partition("=")
        files[link] = OutFile().convert(name or f"{link}.pcapng", None, None)
    return files


def _own_plot(scenario: Scenario) -> Path | None:
    """Return the path of the scenario's own plot; if it cannot be drawn, report why, and go on."""
    if not scenario.plot or not scenario.sample_ns:
        return None
    try:
        return OutFile("matplotlib", "plot").convert(scenario.plot, None, None)
    except click.BadParameter as error:
        click.echo(f"rnic sim: no plot {scenario.plot}: {error.message}", err=True)
        return None


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--seed", type=click.IntRange(0), help="Seed, instead of the file's.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value of the file, such as congestion.mode=none; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
@click.option(
    "--csv",
    "csv_what",
    type=click.Choice(["flows", "ports", "sizes", "series", "progress", "runs"]),
    help="Print these rows as CSV.",
)
@click.option(
    "--parquet",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the rows of --csv, each kind a Parquet file, into a directory (needs pyarrow).",
)
@click.option("--plot", "plot_file", type=OutFile("matplotlib", "plot"), help="Draw the result to this PNG file.")
@click.option(
    "--pcap", "links", multiple=True, metavar="LINK[=FILE]", help="Record a link, such as s0-h1, as pcapng; repeatable."
)
@click.option("--trace", "trace_file", type=OutFile(), help="Write flows, queues and pauses for ui.perfetto.dev.")
@click.option(
    "--sweep",
    "axes",
    multiple=True,
    metavar="KEY=V,V",
    help="Run once for each value; several sweeps run all combinations.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 100_000),
    help="Run each combination with this many seeds, starting at --seed or the file's seed.",
)
@click.option("--workers", type=click.IntRange(1, 1_024), help="Processes of a sweep; by default one per core.")
@click.option("--ray", "ray_address", metavar="ADDRESS", help="Ray cluster for a sweep, or local (needs rnic[ray]).")
@click.option(
    "--out", type=OutFile(), help="Keep the rows of a sweep in this file, and run only those that are missing."
)
@click.option(
    "--run",
    "command",
    metavar="COMMAND",
    help="Run programs instead of workloads, in real time: each `rnic exec -- PROGRAM` in COMMAND is a host.",
)
@click.option(
    "--slower",
    type=click.IntRange(1),
    help="With --run: slow time down by this factor.  [default: estimated from the link rates]",
)
def sim(
    file: Path,
    seed: int | None,
    changes: tuple[str, ...],
    as_json: bool,
    csv_what: str | None,
    parquet: Path | None,
    plot_file: Path | None,
    links: tuple[str, ...],
    trace_file: Path | None,
    axes: tuple[str, ...],
    seeds: int | None,
    workers: int | None,
    ray_address: str | None,
    out: Path | None,
    command: str | None,
    slower: int | None,
) -> None:
    """Run the scenario of FILE (TOML) in virtual time: NICs, switches, workloads, congestion control.

    The same file and seed give the same output, byte for byte. Exit status: 0 if all flows ended, 1 if the scenario's
    time limit ended it or a flow failed, 130 after Ctrl-C. The figures measured so far are always shown.

    With --sweep or --seeds, run many times and show a row for each run. With --run, the exit status is the command's.
    """
    if parquet is not None:
        check_parquet(parquet)
    if axes or seeds is not None:
        if command is not None:
            raise click.UsageError("--run is one run in real time: leave out --sweep and --seeds")
        if plot_file or trace_file or links or csv_what not in (None, "runs"):
            raise click.UsageError("a sweep has a table: --json or --csv runs, and no --plot, --pcap or --trace")
        values = {key: [value] for key, value in map(changed, changes)} | dict(map(axis, axes))
        _sweep(file, values, seed, seeds or 1, workers, ray_address, out, as_json, csv_what, parquet)
        return
    if workers or ray_address or out or csv_what == "runs":
        raise click.UsageError("--workers, --ray, --out and --csv runs apply to sweeps: give --sweep or --seeds, too")
    if slower is not None and command is None:
        raise click.UsageError("--slower applies to real time: give --run, too")
    scenario = Scenario.load(file, dict(map(changed, changes)), live=command is not None)
    for line in scenario.topology.warnings():
        click.echo(f"rnic sim: {line}", err=True)
    captures = _capture_files(links)
    own_plot = _own_plot(scenario) if plot_file is None and not as_json and csv_what is None else None
    if (plot_file or trace_file) and not scenario.sample_ns:
        raise SimError("sample_us=0: --plot and --trace show what is looked at over time: give another")
    stop = _Stop()
    used = scenario.seed if seed is None else seed
    with contextlib.ExitStack() as stack:
        real, every_ns = None, scenario.sample_ns
        if command is not None:
            from rnic.cli.sim_run import live, run, sample_ns  # noqa: PLC0415 - real time needs what Linux has

            real = live(replace(scenario, seed=used), slower)
            every_ns = sample_ns(scenario, real)
        fabric = stack.enter_context(scenario.fabric(used) if real is None else real)
        for link, path in captures.items():
            capture(fabric, link, stack.enter_context(path.open("wb")))
        measure, early, status = Measure(fabric, every_ns), "", 0
        if real is not None and command is not None:
            status = run(real, file, command)
        else:
            with stop.heard(), _bar(measure, stop) as go_on:
                early = play(measure, scenario.limit_ns, go_on)
        found = figures(measure, scenario, used)
        if real is not None:
            found["summary"] |= real.lateness()
    if stop.pressed:
        early = f"stopped: {len(found['flows'])} flows are over, {found['summary']['flows_left']} are not"
    if as_json:
        click.echo(json.dumps(found, indent=1))
    elif csv_what is not None:
        click.echo(as_csv(_rows(measure, found, csv_what)), nl=False)
    else:
        # a table in a file or pipe has the same width everywhere
        show(found, Console() if sys.stdout.isatty() else Console(width=120))
    if parquet is not None:
        write_parquet(parquet, {name: _rows(measure, found, name) for name in (*_FIGURES, *_SAMPLES)})
    if plot_file is not None:
        plot(measure, found, plot_file)
    if own_plot is not None:
        plot(measure, found, own_plot)
        click.echo(f"plot: {own_plot}")
    if trace_file is not None:
        trace_file.write_text(json.dumps(trace_document(measure)), encoding="utf-8")
    if early:
        click.echo(f"rnic sim: {early}", err=True)
    if stop.pressed:
        sys.exit(_EXIT_INTERRUPTED)
    if early or found["summary"]["flows_failed"]:
        sys.exit(EXIT_UNFINISHED)
    if status:
        sys.exit(status)


def _rows(measure: Measure, found: dict[str, Any], what: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = found[what] if what in _FIGURES else getattr(measure, what)()
    return rows


def _sweep(
    file: Path,
    axes: dict[str, list[Any]],
    seed: int | None,
    seeds: int,
    workers: int | None,
    ray_address: str | None,
    out: Path | None,
    as_json: bool,
    csv_what: str | None,
    parquet: Path | None,
) -> None:
    changes = {key: each[0] for key, each in axes.items() if each}
    first = Scenario.load(file, changes).seed if seed is None else seed
    if ray_address is not None and importlib.util.find_spec("ray") is None:
        raise SimError(f"--ray {ray_address} wants ray: {install_hint('ray')}")
    rows, failed, runs, stopped = run_sweep(
        file, axes, range(first, first + seeds), workers or os.cpu_count() or 1, ray_address, out
    )
    if parquet is not None:
        write_parquet(parquet, {"runs": rows})
    if as_json:
        click.echo(json.dumps({"runs": rows, "failed": failed}, indent=1))
    elif csv_what is not None:
        click.echo(as_csv(rows), nl=False)
    else:
        show_sweep(rows, list(axes), Console() if sys.stdout.isatty() else Console(width=200))
    for number, why in failed.items():
        click.echo(f"rnic sim: run {number}: {why}", err=True)
    if stopped:
        kept = (
            f"{out} has them, and the same command goes on" if out else "with --out FILE the same command would go on"
        )
        click.echo(f"rnic sim: stopped: these are {len(rows)} of {runs} runs; {kept}", err=True)
        sys.exit(_EXIT_INTERRUPTED)
    if failed or not all(row["finished"] for row in rows):
        sys.exit(EXIT_UNFINISHED)


def changed(word: str) -> tuple[str, Any]:
    """Parse a dotted key and its value, which is JSON if it parses as such."""
    key, equals, text = word.partition("=")
    if not key or not equals:
        raise click.UsageError(f"--set {word}: give KEY=VALUE, such as congestion.mode=dcqcn")
    try:
        return key, json_value(text)
    except ValueError:
        return key, text
