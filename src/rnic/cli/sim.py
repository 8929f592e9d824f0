"""``rnic sim``: a scenario file run in virtual time, with tables, plots, captures and a trace for Perfetto."""

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


class SimError(RnicError):
    """A run that cannot be shown as asked."""


def figures(measure: Measure, scenario: Scenario, seed: int) -> dict[str, Any]:
    """All that a run shows, as plain data; nothing in it depends on this machine."""
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
    """Rows with the names of their columns above."""
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
    """The tables of a run."""
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
    """Whether Ctrl-C was pressed; a second time it is the interpreter's."""

    def __init__(self) -> None:
        self.pressed = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """While this lasts, Ctrl-C is heard here."""

        def press(number: int, frame: object) -> None:
            self.pressed = True
            signal.signal(signal.SIGINT, before)

        before = signal.signal(signal.SIGINT, press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def play(measure: Measure, limit_ns: int, go_on: Callable[[], bool]) -> str:
    """Run; what is to be said where it ended early."""
    try:
        measure.fabric.run(limit_ns, go_on)
    except TimeoutError as error:
        return str(error)
    return ""


def _parts(measure: Measure) -> tuple[int, int]:
    """Packets are what takes time, but flows what is known: how many are over, and how many there are."""
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
    """Where the file's own plot goes; why there is none is said, and nobody's run ends for it."""
    if not scenario.plot or not scenario.sample_ns:
        return None
    try:
        return OutFile("matplotlib", "plot").convert(scenario.plot, None, None)
    except click.BadParameter as error:
        click.echo(f"rnic sim: no plot {scenario.plot}: {error.message}", err=True)
        return None


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--seed", type=click.IntRange(0), help="Instead of the file's.")
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Instead of the file's: congestion.mode=none."
)
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
@click.option(
    "--csv", "csv_what", type=click.Choice(["flows", "ports", "sizes", "runs"]), help="Print these rows as CSV."
)
@click.option(
    "--parquet",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write flows, ports and sizes, or a sweep's runs, as Parquet into a folder (with pyarrow).",
)
@click.option("--plot", "plot_file", type=OutFile("matplotlib", "plot"), help="Draw a PNG.")
@click.option("--pcap", "links", multiple=True, metavar="LINK[=FILE]", help="Record a link, such as s0-h1, as pcapng.")
@click.option("--trace", "trace_file", type=OutFile(), help="Write flows, queues and pauses for ui.perfetto.dev.")
@click.option(
    "--sweep", "axes", multiple=True, metavar="KEY=V,V", help="A run for each value; several make all combinations."
)
@click.option(
    "--seeds", type=click.IntRange(1, 100_000), help="So many runs of each, seeds from --seed or the file's on."
)
@click.option("--workers", type=click.IntRange(1, 1_024), help="Of a sweep: processes; as many as cores by default.")
@click.option("--ray", "ray_address", metavar="ADDRESS", help="Of a sweep: a Ray cluster, or local (rnic[ray]).")
@click.option("--out", type=OutFile(), help="Of a sweep: keep rows there, and make only what is missing.")
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
) -> None:
    """Run the scenario of FILE (TOML) in virtual time: NICs, switches, workloads, congestion control.

    The same file and seed give the same output, byte for byte. Exit status: 0 if all flows are over, 1 if the limit of
    the file came first or a flow failed, 130 after Ctrl-C; what was measured is shown in any case.

    With --sweep or --seeds it runs many times, and shows a row for each.
    """
    if parquet is not None:
        check_parquet(parquet)
    if axes or seeds is not None:
        if plot_file or trace_file or links or csv_what not in (None, "runs"):
            raise click.UsageError("a sweep has a table: --json or --csv runs, and no --plot, --pcap or --trace")
        values = {key: [value] for key, value in map(changed, changes)} | dict(map(axis, axes))
        _sweep(file, values, seed, seeds or 1, workers, ray_address, out, as_json, csv_what, parquet)
        return
    if workers or ray_address or out or csv_what == "runs":
        raise click.UsageError("--workers, --ray, --out and --csv runs are of sweeps: give --sweep or --seeds too")
    scenario = Scenario.load(file, dict(map(changed, changes)))
    captures = _capture_files(links)
    own_plot = _own_plot(scenario) if plot_file is None and not as_json and csv_what is None else None
    if (plot_file or trace_file) and not scenario.sample_ns:
        raise SimError("sample_us=0: --plot and --trace show what is looked at over time: give another")
    stop = _Stop()
    used = scenario.seed if seed is None else seed
    with contextlib.ExitStack() as stack:
        fabric = stack.enter_context(scenario.fabric(used))
        for link, path in captures.items():
            capture(fabric, link, stack.enter_context(path.open("wb")))
        measure = Measure(fabric, scenario.sample_ns)
        with stop.heard(), _bar(measure, stop) as go_on:
            early = play(measure, scenario.limit_ns, go_on)
        found = figures(measure, scenario, used)
    if stop.pressed:
        early = f"stopped: {len(found['flows'])} flows are over, {found['summary']['flows_left']} are not"
    if as_json:
        click.echo(json.dumps(found, indent=1))
    elif csv_what is not None:
        click.echo(as_csv(found[csv_what]), nl=False)
    else:
        # a table in a file or pipe has the same width everywhere
        show(found, Console() if sys.stdout.isatty() else Console(width=120))
    if parquet is not None:
        write_parquet(parquet, {name: found[name] for name in ("flows", "ports", "sizes")})
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
    """A dotted key and its value, which is read as JSON where it is some."""
    key, equals, text = word.partition("=")
    if not key or not equals:
        raise click.UsageError(f"--set {word}: give KEY=VALUE, such as congestion.mode=dcqcn")
    try:
        return key, json_value(text)
    except ValueError:
        return key, text
