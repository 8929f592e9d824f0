"""What every bench is made of: options, rounds in turn, ratios and verdicts, one table, JSON, other trees.

A bench names its figures and how each is taken (:func:`in_turn`), and its rows (:class:`Row`): a figure, or its ratio
to others of the same rounds. :func:`report` prints them.
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
"""Exit status of what this machine cannot run."""
MISSED = "MISSED"


class LeftOutError(Exception):
    """A figure that cannot be taken here, and why."""


def at_least_one(text: str) -> int:
    """A number of rounds, messages, queue pairs."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def plain(text: str | None) -> str:
    """A module's text without its markup."""
    return re.sub(r":\w+:`~?([^`]+)`", r"\1", text or "").replace("``", "")


class Parser(argparse.ArgumentParser):
    """Options of ``./dev bench NAME``; the module's text is the help, and an error is one line.

    Args:
        rounds: how many by default, with ``--rounds``; none for 0. A short run has one.
        short: what ``--short`` does; there is none where that is empty.
        before: the same of ``--before``.
        rows: names of the rows, with ``--only``.
        json: with ``--json``.
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
            self.add_argument("--rounds", type=at_least_one, metavar="N", help=f"how many; default {rounds}")
        if short:
            self.add_argument("--short", action="store_true", help=short)
        if before:
            self.add_argument("--before", "--against", metavar="TREE|COMMIT", help=before)
        if self.rows:
            self.add_argument("--only", default="", metavar="WORD", help="only rows with this word in their names")
        if json:
            self.add_argument(
                "--json", nargs="?", const="-", metavar="FILE", help="write JSON there, or print it and no table"
            )

    def add_turns(self) -> None:
        """Take the number of rounds as a word, too."""
        self.add_argument("turns", nargs="?", type=at_least_one, default=0, metavar="ROUNDS", help="as --rounds")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; exit status 2."""
        self.exit(2, f"{self.prog.removeprefix('./dev ')}: {message}; {self.prog} --help has the options\n")

    def read(self, argv: list[str]) -> argparse.Namespace:
        """What was given; ``--only`` has to match a row."""
        given = self.parse_args(argv)
        given.rounds = given.turns or given.rounds or (1 if given.short else self.rounds)
        if self.rows and not any(given.only in row for row in self.rows):
            self.error(f"--only {given.only}: no row has that in its name; the rows are: {'; '.join(self.rows)}")
        return given


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure, or its ratio to others of the same rounds.

    ``against`` are figures of which the best counts. ``less`` means that less is better; of a ``speed``, which is
    measured as a time, the ratio is turned round. Floor and aim are of the ratio where there is one, else of the
    figure. The verdict is that of the best rounds, since whatever else runs on a machine only takes away; with
    ``middle`` that of the medians.
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
        """Of a figure's rounds."""
        return (min if self.less else max)(values)


Found = dict[str, list[float]]
"""Values by figure, one for each time that it was taken."""
Take = Callable[[], float | Mapping[str, float]]
"""Measures one figure, or several by their names."""


def in_turn(takes: Sequence[tuple[str, Take]], rounds: int) -> tuple[Found, dict[str, str]]:
    """Take all figures in turn, ``rounds`` times: what is compared is of the same minutes.

    Every other round goes backwards, so that neither of two figures always comes first.

    Returns:
        Values by name, and why figures are left out: such a one is not taken again.
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
    """Whether a figure reaches its aim, or its floor; nothing where it has no floor."""
    if floor is None:
        return ""
    floor_met, aim_met = (mark is not None and (value <= mark if less else value >= mark) for mark in (floor, aim))
    return "aim met" if aim_met else MISSED if not floor_met else "met" if aim is None else "floor met"


def line(row: Row, found: Found, missing: Mapping[str, str]) -> dict[str, Any]:
    """One row of the table, with its verdict or why there is none."""
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
    """Print the table, with what a line has in ``note`` at its end, and how many floors were missed."""

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
    """Do what ``--json`` asks for; whether that was to print, and no table is wanted."""
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
    """Print the table and write the JSON, which also has ``about``, of the rows that ``--only`` leaves.

    Args:
        notes: what stands at the end of a row of this name.
        wrong: why a row of this name missed what is not in its figure.

    Returns:
        1 where a floor was missed, else 0. Most benches do not fail of that, since machines differ.
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
    """Names of the figures of all rows with ``word`` in their names, and of those that they are compared to."""
    return {name for row in rows if word in row.what for name in (row.figure, *row.against)}


def beside(rows: Iterable[Row]) -> list[Row]:
    """The rows of figures alone, each compared with the same figure of another tree."""
    return [
        replace(row, what=f"{row.what}, to before", floor=None, aim=None, against=(f"before: {row.figure}",))
        for row in rows
    ]


@contextmanager
def tree_of(commit: str | None, build: bool = False) -> Iterator[Path | None]:
    """A work tree of a commit, for as long as this lasts, or the tree that is named; ``None`` where none is wanted.

    Args:
        build: its ``./dev setup`` makes its environment, with the compiled parts.
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
        raise SystemExit(f"bench: {tree}: ./dev setup failed there; the reason is above")
    return tree


def call_in(tree: Path, name: str, *arguments: object, env: Mapping[str, str] | None = None, quiet: bool = True) -> Any:
    """What ``module.function`` of ``bench/`` returns in a process of its own that imports the rnic of a tree.

    Args:
        quiet: what it says on stderr is the reason where it fails, and not printed.

    Raises:
        LeftOutError: it failed, or the tree has no such rnic.
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
    """A TCP port of 127.0.0.1 that nobody has."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return str(sock.getsockname()[1])


def last_row(said: str) -> list[str]:
    """Columns of the last line of figures that perftest or ``ucx_perftest`` printed; empty where there is none."""
    lines = [each.split() for each in said.splitlines() if re.match(r"^\s*(\d+|Final:)\s", each)]
    return lines[-1] if lines else []


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


def run(main: Callable[[list[str]], int | None]) -> NoReturn:
    """Run a bench; what cannot run here is said in one line, exit status 77, and a closed pipe is no traceback."""
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
