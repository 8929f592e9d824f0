"""``rnic sim --sweep``: many runs of one scenario, and one table."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from rnic.sim.sweep import Failed, Job, Pool, Ray, Results, Row, jobs_of, sweep
from rnic.spec.json_text import json_value

SHOWN = (
    "seed", "flows_over", "fct_p50_ns", "fct_p99_ns", "slowdown_p50", "slowdown_p99", "goodput_gbps",
    "queue_peak_bytes", "dropped", "pauses", "cnps_sent", "retransmitted_packets",
)  # fmt: skip
"""Columns of the table after the swept values; JSON and CSV have all columns."""


def axis(word: str) -> tuple[str, list[Any]]:
    """Parse a dotted key and its values: a JSON list, or words separated by commas."""
    key, equals, text = word.partition("=")
    if not key or not equals or not text:
        raise click.UsageError(f"--sweep {word}: give KEY=VALUE,VALUE, such as congestion.mode=none,dcqcn")
    try:
        values = json_value(text)
    except ValueError:
        values = [_value(each) for each in text.split(",")]
    return key, values if isinstance(values, list) else [values]


def _value(text: str) -> Any:
    try:
        return json_value(text)
    except ValueError:
        return text


class Swept(NamedTuple):
    """Rows, the reason for each run without a row, the total number of runs, and whether the user stopped the sweep."""

    rows: list[Row]
    failed: dict[int, str]
    runs: int
    stopped: bool


@contextlib.contextmanager
def _one_ctrl_c() -> Iterator[None]:
    """Stop the block at the first Ctrl-C; ignore further ones during cleanup, so that rows are still shown."""

    pressed = False

    def press(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread handles Ctrl-C
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        if not pressed:
            signal.signal(signal.SIGINT, before)


def run_sweep(
    path: Path, axes: Mapping[str, Sequence[Any]], seeds: Sequence[int], workers: int, ray: str | None, out: Path | None
) -> Swept:
    """Do the runs. After Ctrl-C, the rows of finished runs are kept."""
    jobs = jobs_of(path, axes, seeds)
    results = Results(out)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} of {task.total} runs"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        there = sum(job.key in results.rows for job in jobs)
        task = progress.add_task("sweeping", completed=there, total=len(jobs))

        def told(job: Job, outcome: Row | Failed) -> None:
            if not isinstance(outcome, Failed):
                progress.advance(task)

        backend = Pool(workers) if ray is None else Ray(ray)
        try:
            with _one_ctrl_c():
                rows, failed = sweep(jobs, backend, results, told=told)
        except KeyboardInterrupt:
            return Swept(results.of(jobs), {}, len(jobs), True)
    return Swept(rows, failed, len(jobs), False)


def show_sweep(rows: list[Row], keys: list[str], console: Console) -> None:
    """Print the table of a sweep."""
    table = Table(box=None, pad_edge=False)
    names = [*keys, *SHOWN]
    for name in names:
        table.add_column(name.removesuffix("_ns").replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_cell(name, row.get(name)) for name in names))
    console.print(table)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, int | float) and name.endswith("_ns"):
        return f"{value / 1_000:,.1f} us"
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return "-" if value is None else str(value)
    return (
        f"{value:,.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else json.dumps(value)
    )
