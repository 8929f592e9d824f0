"""The figures of the README and of docs/comparison.md, all by one command, at the same minutes.

    ./dev bench figures [--short] [--rounds N] [--write]

``./dev bench rc`` is run as it is, then in plain Python; the rows of :data:`ROWS` are printed as the tables that the
pages have. ``--write`` puts the figures into ``docs/figures.json`` and the tables between the marks of the pages, which
a test holds to that file. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import bench_rc
import rc_figures
from peers import LeftOutError

from rnic.spec.errors import RnicError

ROOT = Path(__file__).resolve().parent.parent
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
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        raw = bench_rc.RawUdp(Path(folder))
        for turn in range(rounds):
            for name, measure in bench_rc.figures_of_a_round(raw, None, short):
                if name not in wanted:
                    continue
                print(f"\rround {turn + 1} of {rounds}: {name:<20}", end="", file=sys.stderr, flush=True)
                try:
                    value = measure()
                except (LeftOutError, rc_figures.NotMeasuredError, RnicError) as error:
                    print(f"\r{name}: {error}", file=sys.stderr)
                    continue
                found[name] = (min if name in less else max)(value, found.get(name, value))
    print("\r" + " " * 50 + "\r", end="", file=sys.stderr)
    return found


def take_in(way: str, options: list[str]) -> dict[str, float]:
    """:func:`take` in a process of its own, which imports rnic in this way; the first one measures the others, too."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, str(Path(__file__)), "--one-way", str(out), *options]
        command += ["--others"] if way == "engine" else []
        subprocess.run(command, env={**os.environ, **WAYS[way]}, check=True)
        found: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
    return found


def main(argv: list[str]) -> int:
    """Measure, print, and with ``--write`` put into the pages."""
    parser = argparse.ArgumentParser(prog="./dev bench figures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all figures (5)")
    parser.add_argument("--short", action="store_true", help="one round of short runs")
    parser.add_argument("--write", action="store_true", help="put them into docs/figures.json, README and comparison")
    parser.add_argument("--one-way", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--others", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    rounds = 1 if given.short else given.rounds
    if given.one_way:
        given.one_way.write_text(json.dumps(take(rounds, given.short, given.others)), encoding="utf-8")
        return 0
    options = ["--rounds", str(rounds), *(["--short"] if given.short else [])]
    document: dict[str, object] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "python": platform.python_version(),
        "linux": platform.release().split("-")[0],
        "how": f"best of {rounds} {'rounds' if rounds > 1 else 'short round'} of `./dev bench figures`",
        "measured": {way: take_in(way, options) for way in WAYS},
    }
    for name, table in TABLES.items():
        print(f"{name}\n\n{conditions(document)}{table(document['measured'])}")  # type: ignore[arg-type]
    if given.write:
        FIGURES.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        for page in (README, COMPARISON):
            page.write_text(page_with(page.read_text(encoding="utf-8"), document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
