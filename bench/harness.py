"""Common parts of benches: options, interleaved rounds, ratios and verdicts, table, JSON, other trees.

A bench defines its figures with functions that measure them (:func:`in_turn`), and its rows (:class:`Row`): a figure,
or its ratio to others of the same rounds. :func:`report` prints them.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

from rnic.spec.errors import RnicError

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = 77
"""Exit status if this machine cannot run the bench."""
MISSED = "MISSED"


class LeftOutError(Exception):
    """A figure cannot be measured here; the message has the reason."""


def at_least_one(text: str) -> int:
    """Parse a number of rounds, messages or queue pairs."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of 1 or more")
    return int(text)


def plain(text: str | None) -> str:
    """Return a docstring without its markup."""
    return re.sub(r":\w+:`~?([^`]+)`", r"\1", text or "").replace("``", "")


class Parser(argparse.ArgumentParser):
    """Options of ``./dev bench NAME``; the module's docstring is the help, and an error is one line.

    Args:
        rounds: default of ``--rounds``; 0 for no such option. A short run has one round.
        short: help of ``--short``; empty for no such option.
        before: help of ``--before``; empty for no such option.
        rows: names of the rows for ``--only``.
        json: true to add ``--json``.
    """

    def __init__(
        self, name: str, text: str | None, *, rounds: int = 0, short: str = "", before: str = "",
        rows: Iterable[str] = (), json: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            prog=f"./dev bench {name}", description=plain(text), formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.rounds, self.rows = rounds, list(rows)
        self.set_defaults(json=None, before=None, only="", short=False, rounds=0, turns=0)
        if rounds:
            self.add_argument("--rounds", type=at_least_one, metavar="N", help=f"number of rounds; default {rounds}")
        if short:
            self.add_argument("--short", action="store_true", help=short)
        if before:
            self.add_argument("--before", "--against", metavar="TREE|COMMIT", help=before)
        if self.rows:
            self.add_argument("--only", default="", metavar="WORD", help="only rows with this word in their names")
        if json:
            self.add_argument(
                "--json", nargs="?", const="-", metavar="FILE", help="write JSON to FILE, or print JSON, not the table"
            )

    def add_turns(self) -> None:
        """Also accept the number of rounds as a positional argument."""
        self.add_argument("turns", nargs="?", type=at_least_one, default=0, metavar="ROUNDS", help="as --rounds")

    def error(self, message: str) -> NoReturn:
        """Print an error in one line; exit with status 2."""
        self.exit(2, f"{self.prog.removeprefix('./dev ')}: {message}; {self.prog} --help has the options\n")

    def read(self, argv: list[str]) -> argparse.Namespace:
        """Parse the options; ``--only`` must match a row."""
        given = self.parse_args(argv)
        given.rounds = given.turns or given.rounds or (1 if given.short else self.rounds)
        if self.rows and not any(given.only in row for row in self.rows):
            self.error(f"--only {given.only}: no row's name contains this; the rows are: {'; '.join(self.rows)}")
        return given


@dataclass(frozen=True)
class Row:
    """A line of the table: a figure, or its ratio to others of the same rounds.

    The best of the figures ``against`` is the baseline. ``less`` means that lower is better; for a ``speed``, which is
    measured as a time, the ratio is inverted. Floor and aim apply to the ratio if there is one, otherwise to the
    figure. The verdict uses the best rounds, since other load can only slow a run down; with ``middle`` it uses the
    medians.
    """

    what: str
    figure: str
    unit: str
    floor: float | None = None
    aim: float | None = None
    against: tuple[str, ...] = ()
    less: bool = False
    speed: bool = False
    middle: bool = False

    def best(self, values: Iterable[float]) -> float:
        """Return the best of a figure's rounds."""
        return (min if self.less else max)(values)


Found = dict[str, list[float]]
"""Measured values by figure."""
Take = Callable[[], float | Mapping[str, float]]
"""Function that measures one figure, or several by name."""


def in_turn(takes: Sequence[tuple[str, Take]], rounds: int) -> tuple[Found, dict[str, str]]:
    """Measure all figures in turn, ``rounds`` times, so that compared values are from the same minutes.

    Every other round runs in reverse order, so that neither of two figures always comes first.

    Returns:
        Values by name, and the reasons of figures left out, which are not measured again.
    """
    found: Found = {}
    missing: dict[str, str] = {}
    for turn in range(rounds):
        for name, take in takes[::-1] if turn % 2 else takes:
            if name in missing:
                continue
            print(f"\rround {turn + 1} of {rounds}: {name:<60}", end="", file=sys.stderr, flush=True)
            try:
                value = take()
            except (LeftOutError, RnicError) as error:
                missing[name] = str(error)
                continue
            for key, one in value.items() if isinstance(value, Mapping) else ((name, value),):
                found.setdefault(key, []).append(one)
    print("\r" + " " * 80 + "\r", end="", file=sys.stderr, flush=True)
    return found, missing


def verdict(value: float, floor: float | None, aim: float | None = None, less: bool = False) -> str:
    """Return whether a figure reaches its aim, or its floor; empty without a floor."""
    if floor is None:
        return ""
    floor_met, aim_met = (mark is not None and (value <= mark if less else value >= mark) for mark in (floor, aim))
    return "aim met" if aim_met else MISSED if not floor_met else "met" if aim is None else "floor met"


def line(row: Row, found: Found, missing: Mapping[str, str]) -> dict[str, Any]:
    """Return one row of the table, with its verdict or the reason for none."""
    less = row.less and not row.speed
    out: dict[str, Any] = {"what": row.what, "unit": row.unit, "floor": row.floor, "aim": row.aim, "less": less}
    values = found.get(row.figure)
    if not values or row.figure in missing:
        return out | {"verdict": f"left out: {missing.get(row.figure, 'not asked for')}"}
    judged = row.best(values), median(values)
    out |= {"best": judged[0], "median": judged[1]}
    if row.against:
        others = [found[name] for name in row.against if found.get(name) and name not in missing]
        marks = [row.best(choose(other) for other in others) for choose in (row.best, median)] if others else [0.0]
        if not all(0 < mark < inf for mark in marks):
            return out | {"verdict": f"left out: {missing.get(row.against[0], 'nothing to compare with')}"}
        judged = judged[0] / marks[0], judged[1] / marks[1]
        if row.speed:
            judged = 1 / judged[0], 1 / judged[1]
        out |= {"ratio_best": judged[0], "ratio_median": judged[1]}
    return out | {"verdict": verdict(judged[row.middle], row.floor, row.aim, less)}


def show(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print the table, with each line's ``note`` at its end, and the number of missed floors."""

    def cell(value: float | None, width: int) -> str:
        if value is None:
            return " " * width
        return f"{value:>{width},.0f}" if abs(value) >= 1000 else f"{value:>{width}.{2 if abs(value) >= 1 else 3}f}"

    width = max(len(one["what"]) for one in lines)
    print(f"{'':<{width}}{'best':>11}{'median':>11} {'':10}{'ratio':>8}{'median':>9}{'floor':>11}{'aim':>10}")
    for one in lines:
        sign = " " if one["floor"] is None and one["aim"] is None else "≤" if one["less"] else "≥"
        text = (
            f"{one['what']:<{width}}{cell(one.get('best'), 11)}{cell(one.get('median'), 11)} {one['unit']:<10}"
            f"{cell(one.get('ratio_best'), 8)}{cell(one.get('ratio_median'), 9)}"
            f" {sign}{cell(one['floor'], 9)}{cell(one['aim'], 10)}  {one['verdict']}  {one.get('note', '')}"
        )
        print(text.rstrip())
    judged = [one["verdict"] for one in lines if one["floor"] is not None and not one["verdict"].startswith("left out")]
    if judged:
        missed = judged.count(MISSED)
        print(f"{missed} of {len(judged)} floors missed" if missed else f"all of {len(judged)} floors met")


def write_json(given: argparse.Namespace, document: object) -> bool:
    """Handle ``--json``; return whether JSON was printed instead of the table."""
    text = json.dumps(document, indent=1) + "\n"
    if given.json == "-":
        print(text, end="")
    elif given.json is not None:
        Path(given.json).write_text(text, encoding="utf-8")
    return bool(given.json == "-")


def report(
    given: argparse.Namespace, rows: Iterable[Row], found: Found, missing: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None, wrong: Mapping[str, str] | None = None, **about: object,
) -> int:  # fmt: skip
    """Print the table and write the JSON, which also has ``about``, for the rows selected by ``--only``.

    Args:
        notes: notes at the ends of rows, by name.
        wrong: failures of rows apart from their figures, by name.

    Returns:
        1 if a floor was missed, else 0. Most benches ignore that, since machines differ.
    """
    lines = [line(row, found, missing or {}) for row in rows if given.only in row.what]
    for one in lines:
        one["note"] = (notes or {}).get(one["what"], "")
        if reason := (wrong or {}).get(one["what"]):
            one |= {"verdict": MISSED, "note": "; ".join(filter(None, (reason, one["note"])))}
    if not write_json(given, {**about, "rows": lines, "figures": found, "left_out": missing or {}}):
        show(lines)
    return int(any(one["verdict"] == MISSED for one in lines))


def figures_for(rows: Iterable[Row], word: str = "") -> set[str]:
    """Return the names of the figures and baselines of all rows with ``word`` in their names."""
    return {name for row in rows if word in row.what for name in (row.figure, *row.against)}


def beside(rows: Iterable[Row]) -> list[Row]:
    """Return rows that compare each figure with the same figure of another tree."""
    return [
        replace(row, what=f"{row.what}, to before", floor=None, aim=None, against=(f"before: {row.figure}",))
        for row in rows
    ]


@contextmanager
def tree_of(commit: str | None, build: bool = False) -> Iterator[Path | None]:
    """Yield a temporary work tree of a commit, or the given tree; ``None`` without ``commit``.

    Args:
        build: true to create its environment with compiled parts by its ``./dev setup``.
    """
    if commit is None:
        yield None
        return
    if (Path(commit) / "src" / "rnic").is_dir():
        yield _built(Path(commit).resolve(), build)
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="rnic-before-") as folder:
        tree = Path(folder) / "before"
        done = subprocess.run([*git, "add", "--detach", str(tree), commit], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"bench: --before {commit}: {done.stderr.strip().splitlines()[-1]}")
        try:
            yield _built(tree, build)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _built(tree: Path, build: bool) -> Path:
    if build and subprocess.run([tree / "dev", "setup"], cwd=tree, check=False).returncode:
        raise SystemExit(f"bench: {tree}: ./dev setup failed: see above")
    return tree


def call_in(tree: Path, name: str, *arguments: object, env: Mapping[str, str] | None = None, quiet: bool = True) -> Any:
    """Call ``module.function`` of ``bench/`` in a process that imports the rnic of a tree; return the result.

    Args:
        quiet: true to not print its stderr, but use it as the reason of a failure.

    Raises:
        LeftOutError: it failed, or the tree has no such function.
    """
    module = name.rpartition(".")[0]
    code = (
        f"import sys; sys.path[:0] = [{str(tree / 'src')!r}, {str(ROOT / 'bench')!r}]\n"
        "import json, rnic\n"
        f"assert rnic.__file__.startswith({str(tree)!r}), rnic.__file__\n"
        f"import {module}\n"
        f"print(json.dumps({name}(*{arguments!r})))\n"
    )
    err = subprocess.PIPE if quiet else None
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=err, text=True, check=False
    )
    if done.returncode:
        words = (done.stderr or "").strip().splitlines()
        raise LeftOutError(f"{tree.name} does not run: {words[-1] if words else 'it said nothing'}")
    return json.loads(done.stdout)


def free_port() -> str:
    """Return an unused TCP port of 127.0.0.1."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return str(sock.getsockname()[1])


def last_row(said: str) -> list[str]:
    """Return the columns of the last line of figures of perftest or ``ucx_perftest``; empty without one."""
    lines = [each.split() for each in said.splitlines() if re.match(r"^\s*(\d+|Final:)\s", each)]
    return lines[-1] if lines else []


def resident_bytes() -> int:
    """Return the bytes of this process's resident memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


def run(main: Callable[[list[str]], int | None]) -> NoReturn:
    """Run a bench; print one line with exit status 77 if it cannot run here, and no traceback on a closed pipe."""
    try:
        status = main(sys.argv[1:]) or 0
        sys.stdout.flush()
    except LeftOutError as reason:
        print(f"bench {Path(sys.argv[0]).stem.removeprefix('bench_')}: LEFT OUT: {reason}", file=sys.stderr)
        status = LEFT_OUT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
