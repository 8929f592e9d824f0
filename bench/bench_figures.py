"""Measure the figures of the README and of docs/comparison.md, all in one run.

Runs ``./dev bench rc`` with the engine and in plain Python, and prints the rows of :data:`ROWS` as the tables of the
pages. ``--write`` writes the figures to ``docs/figures.json`` and the tables between the marks of the pages; a test
compares both. Run it on an idle machine.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import bench_rc
import harness
from harness import ROOT

FIGURES = ROOT / "docs" / "figures.json"
README = ROOT / "README.md"
COMPARISON = ROOT / "docs" / "comparison.md"

WAYS = {
    "engine": {},
    "plain": {"RNIC_ENGINE": "0", "RNIC_PLAIN": "1"},
}
"""Environment variables of each column of rnic."""
MISSING = "not measured"
MARKS = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """A line of the full table: names of the figure in ``bench rc`` for rnic and for others."""

    what: str
    figure: str
    unit: str
    raw: str = ""
    ucx: str = ""


ROWS = (
    Row("WRITE of 1 MiB", "write 4096", "GB/s", "raw 4096"),
    Row("READ of 1 MiB", "read", "GB/s"),
    Row("WRITE of 64 KiB", "write 64K", "GB/s", ucx="ucx 64K"),
    Row("WRITE of 8 bytes, half round trip", "write latency", "us", "raw latency", "ucx latency"),
    Row("SENDs of 8 bytes, `post_send`", "sends", "M/s", ucx="ucx rate"),
    Row("WRITEs of 8 bytes, `post_batch`", "batch", "M/s"),
)
Values = Mapping[str, float]
Measured = Mapping[str, Values]
"""Figures by column, then by their name in ``bench rc``."""


def shown(values: Values | None, name: str, unit: str) -> str:
    """Return a figure with two significant digits, or a placeholder."""
    value = (values or {}).get(name)
    if not name:
        return ""
    if value is None:
        return MISSING
    if value >= 10:
        return f"{value:.0f} {unit}"
    return f"{value:.1f} {unit}" if value >= 1 else f"{value:.2g} {unit}"


def full_table(measured: Measured) -> str:
    """Return the table of all figures, for docs/comparison.md."""
    engine = measured.get("engine")
    lines = [
        "| what | with the engine (C) | plain Python | raw UDP from C | UCX over TCP |",
        "|---|---|---|---|---|",
    ]
    for row in ROWS:
        if not any(row.figure in values for values in measured.values()):
            continue
        own = [shown(measured.get(way), row.figure, row.unit) for way in WAYS]
        lines.append(
            f"| {row.what} | {' | '.join(own)} | {shown(engine, row.raw, row.unit)}"
            f" | {shown(engine, row.ucx, row.unit)} |"
        )
    return "\n".join(lines) + "\n"


def comparison_table(measured: Measured) -> str:
    """Return the short table with UCX and raw UDP, for the README and docs/comparison.md."""
    engine = measured.get("engine")

    def one(name: str, unit: str) -> str:
        return shown(engine, name, unit)

    return (
        "| two processes on one machine | rnic | UCX over TCP | raw UDP from C |\n"
        "|---|---|---|---|\n"
        f"| one stream of long messages | {one('write 4096', 'GB/s')} (1 MiB) | {one('ucx 64K', 'GB/s')} (64 KiB)"
        f" | {one('raw 4096', 'GB/s')} |\n"
        f"| 8 bytes, half round trip | {one('write latency', 'us')} (WRITE) | {one('ucx latency', 'us')} (tag)"
        f" | {one('raw latency', 'us')} (40 bytes) |\n"
        f"| 8-byte messages, many in flight | {one('sends', 'M/s')} (SEND) | {one('ucx rate', 'M/s')} (tag) | |\n"
    )


TABLES = {"full": full_table, "comparison": comparison_table}


def conditions(document: Mapping[str, object]) -> str:
    """Return the line above a table: machine, date, and how it was measured."""
    return (
        f"{document['machine']}, CPython {document['python']}, Linux {document['linux']}, {document['date']}:"
        f" {document['how']}.\n\n"
    )


def page_with(text: str, document: Mapping[str, object]) -> str:
    """Return a page with the tables between its marks; raise ``ValueError`` if it has no marks."""
    measured = document["measured"]
    assert isinstance(measured, dict)
    new, count = MARKS.subn(
        lambda found: f"{found[1]}\n{conditions(document)}{TABLES[found[2]](measured)}\n{found[3]}", text
    )
    if count == 0:
        raise ValueError("no <!-- figures: NAME --> on this page")
    return new


def machine() -> str:
    """Return the number of cores that this process may use, and the processor's name."""
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return f"{len(os.sched_getaffinity(0))} cores of {found[1] if found else platform.machine()}"


def take(rounds: int, short: bool, others: bool) -> dict[str, float]:
    """Measure the figures of :data:`ROWS` in this process's configuration, and with ``others`` those of others; return
    the best."""
    wanted = {name for row in ROWS for name in (row.figure, *((row.raw, row.ucx) if others else ())) if name}
    less = {row.figure for row in bench_rc.ROWS if row.less}
    with tempfile.TemporaryDirectory() as folder:
        takes = [each for each in bench_rc.figures_of_a_round(Path(folder), None, short) if each[0] in wanted]
        found, missing = harness.in_turn(takes, rounds)
    for name, reason in missing.items():
        print(f"{name}: {reason}", file=sys.stderr)
    return {name: (min if name in less else max)(values) for name, values in found.items()}


def main(argv: list[str]) -> None:
    """Measure and print; with ``--write`` update the pages."""
    parser = harness.Parser("figures", __doc__, rounds=5, short="one round of short runs")
    parser.add_argument("--write", action="store_true", help="write them to docs/figures.json and the pages")
    given = parser.read(argv)
    rounds = given.rounds
    measured = {
        way: harness.call_in(ROOT, "bench_figures.take", rounds, given.short, way == "engine", env=env, quiet=False)
        for way, env in WAYS.items()
    }
    document: dict[str, object] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "python": platform.python_version(),
        "linux": platform.release().split("-")[0],
        "how": f"best of {rounds} {'rounds' if rounds > 1 else 'short round'} of `./dev bench figures`",
        "measured": measured,
    }
    for name, table in TABLES.items():
        print(f"{name}\n\n{conditions(document)}{table(measured)}")
    if given.write:
        FIGURES.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        for page in (README, COMPARISON):
            page.write_text(page_with(page.read_text(encoding="utf-8"), document), encoding="utf-8")


if __name__ == "__main__":
    harness.run(main)
