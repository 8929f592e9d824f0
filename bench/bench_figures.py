"""The figures of the README and of docs/comparison.md, all by one command, at the same minutes.

``./dev bench rc`` is run as it is, then in plain Python; the rows of :data:`ROWS` are printed as the tables that the
pages have. ``--write`` puts the figures into ``docs/figures.json`` and the tables between the marks of the pages, which
a test holds to that file. Run it on a machine that does nothing else.
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
"""The environment of each column that is rnic's."""
MISSING = "not measured"
MARKS = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """A line of the README's table: rnic's figure in ``bench rc``, and those of others beside it."""

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
"""By way, then by the name that ``bench rc`` gives the figure."""


def shown(values: Values | None, name: str, unit: str) -> str:
    """A figure with two digits that count, or that there is none."""
    value = (values or {}).get(name)
    if not name:
        return ""
    if value is None:
        return MISSING
    if value >= 10:
        return f"{value:.0f} {unit}"
    return f"{value:.1f} {unit}" if value >= 1 else f"{value:.2g} {unit}"


def readme_table(measured: Measured) -> str:
    """What stands between the README's marks."""
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
    """What stands between the marks of the page on others."""
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


TABLES = {"readme": readme_table, "comparison": comparison_table}


def conditions(document: Mapping[str, object]) -> str:
    """The line above a table: machine, date, and how it was measured."""
    return (
        f"{document['machine']}, CPython {document['python']}, Linux {document['linux']}, {document['date']}:"
        f" {document['how']}.\n\n"
    )


def page_with(text: str, document: Mapping[str, object]) -> str:
    """A page with the tables of these figures between its marks; ``ValueError`` where it has no marks."""
    measured = document["measured"]
    assert isinstance(measured, dict)
    new, count = MARKS.subn(
        lambda found: f"{found[1]}\n{conditions(document)}{TABLES[found[2]](measured)}\n{found[3]}", text
    )
    if count == 0:
        raise ValueError("no <!-- figures: NAME --> on this page")
    return new


def machine() -> str:
    """The processor by its own name, and how many of them this process may use."""
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return f"{len(os.sched_getaffinity(0))} cores of {found[1] if found else platform.machine()}"


def take(rounds: int, short: bool, others: bool) -> dict[str, float]:
    """The best of each figure of :data:`ROWS` in the way that this process has, with the others' where asked for."""
    wanted = {name for row in ROWS for name in (row.figure, *((row.raw, row.ucx) if others else ())) if name}
    less = {row.figure for row in bench_rc.ROWS if row.less}
    with tempfile.TemporaryDirectory() as folder:
        takes = [each for each in bench_rc.figures_of_a_round(Path(folder), None, short) if each[0] in wanted]
        found, missing = harness.in_turn(takes, rounds)
    for name, reason in missing.items():
        print(f"{name}: {reason}", file=sys.stderr)
    return {name: (min if name in less else max)(values) for name, values in found.items()}


def main(argv: list[str]) -> None:
    """Measure, print, and with ``--write`` put into the pages."""
    parser = harness.Parser("figures", __doc__, rounds=5, short="one round of short runs")
    parser.add_argument("--write", action="store_true", help="put them into docs/figures.json, README and comparison")
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
