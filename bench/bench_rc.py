"""RC over UDP on loopback beside raw sockets, UCX, libfabric and ZeroMQ: one table with floors, aims and verdicts.

    ./dev bench rc [--rounds N] [--short] [--before COMMIT|TREE] [--json FILE] [--only WORD]

All figures of a round are taken in turn, some of them twice, and the rounds follow each other: what is compared is of
the same minutes. Best and median of all; the verdict is that of the best, since whatever else runs on a machine only
takes away.
Raw sockets are a C program that is built here (``raw_udp.c``). A miss is printed as a miss and does not fail the run,
since machines differ; what is not installed is left out with the reason. ``--before`` compares the reference, without
engine, with that commit's, both as plain Python; given a tree instead in which the twins are compiled, with the twins.
``--short`` is one round of short runs, under a minute on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import bench_busy
import peers
import rc_figures as own
from peers import LeftOutError

from rnic.spec import twins
from rnic.spec.errors import RnicError

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 8
"""A shared host changes its speed for seconds: of few rounds the bests of two figures may be of different speeds."""
TWICE = frozenset(
    (
        *("raw 4096", "write 4096", "raw 1024", "write 1024", "read", "send"),
        *("raw latency", "ucx latency", "write latency"),
        *("ucx 64K", "libfabric 64K", "zeromq 64K", "write 64K"),
        *("batch", "memory"),
    )
)
"""Figures that a round takes once more at its end, unless it is a short one: each takes less than two seconds, and the
host is fast or slow for longer than that."""
LOST_ONE_IN = 100
SEGMENT_4096, SEGMENT_1024 = 4096 + 16, 1024 + 16
"""BTH, payload, ICRC: the packets in the middle of a WRITE."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure, or its ratio to others of the same rounds.

    ``against`` are figures of which the best counts. ``less`` means that less is better. Floor and aim are of the ratio
    where there is one, else of the figure.
    """

    what: str
    figure: str
    unit: str
    floor: float | None = None
    aim: float | None = None
    against: tuple[str, ...] = ()
    less: bool = False


ROWS = (
    Row("raw C UDP, GSO and GRO, segments of 4112", "raw 4096", "GB/s"),
    Row("raw C UDP, GSO and GRO, segments of 1040", "raw 1024", "GB/s"),
    Row("raw C UDP, half round trip of 40 bytes", "raw latency", "us", less=True),
    Row("UCX tcp tag, half round trip of 8 bytes", "ucx latency", "us", less=True),
    Row("UCX tcp tag, 8 bytes", "ucx rate", "M/s"),
    Row("UCX tcp tag, 64 KiB", "ucx 64K", "GB/s"),
    Row("libfabric tcp, 64 KiB, one in flight", "libfabric 64K", "GB/s"),
    Row("ZeroMQ, 64 KiB", "zeromq 64K", "GB/s"),
    Row("8-byte WRITE, half round trip, to raw C UDP", "write latency", "us", 2.2, 1.6, ("raw latency",), True),
    Row("8-byte WRITE, half round trip, to UCX tcp tag", "write latency", "us", 1.2, 0.8, ("ucx latency",), True),
    Row("1 MiB WRITE, PMTU 4096, to raw C UDP GSO", "write 4096", "GB/s", 0.6, 0.72, ("raw 4096",)),
    Row("1 MiB WRITE, PMTU 1024, to raw C UDP GSO", "write 1024", "GB/s", 0.4, 0.55, ("raw 1024",)),
    Row("1 MiB READ, to WRITE", "read", "GB/s", 0.85, 0.95, ("write 4096",)),
    Row("1 MiB SEND, to WRITE", "send", "GB/s", 0.85, 0.95, ("write 4096",)),
    Row(
        "64 KiB WRITE, to the best of UCX, libfabric, ZeroMQ",
        "write 64K",
        "GB/s",
        1.0,
        1.3,
        ("ucx 64K", "libfabric 64K", "zeromq 64K"),
    ),
    Row("8-byte WRITEs by post_batch, 64 a doorbell", "batch", "M/s", 3.0, 10.0),
    Row("8-byte SENDs by post_send, to UCX tcp tag", "sends", "M/s", 0.8, 1.2, ("ucx rate",)),
    Row("in-memory loopback, 1 MiB, with ICRC", "memory", "GB/s", 8.0, 15.0),
    Row("1 MiB WRITE at 1 % loss, to none", "loss", "GB/s", 0.5, 0.7, ("no loss",)),
    Row("reference, 8 bytes: speed of the release before", "reference short", "us", 0.5, 0.8, ("before short",), True),
    Row("reference, 1 MiB: speed of the release before", "reference long", "us", 0.5, 0.8, ("before long",), True),
    Row("256 busy queue pairs, time to one's", "busy 256", "s", 1.2, 1.05, ("alone 256",), True),
    Row("1,024 busy queue pairs, time to one's", "busy 1024", "s", 1.2, 1.05, ("alone 1024",), True),
)
_SPEEDS = ("reference short", "reference long")
"""Times whose floor is a speed's: the ratio is turned round."""


class RawUdp:
    """The C program, built where a compiler is."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "raw_udp"
        self.missing = ""
        compiler = shutil.which("cc")
        if compiler is None:
            self.missing = "no C compiler (cc) to build raw_udp.c with"
            return
        source = Path(__file__).with_name("raw_udp.c")
        done = subprocess.run(
            [compiler, "-O2", "-std=c11", "-o", str(self.program), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            self.missing = f"raw_udp.c was not built: {(done.stderr.splitlines() or ['cc failed'])[0]}"

    def run(self, *words: str) -> float:
        """What it prints."""
        if self.missing:
            raise LeftOutError(self.missing)
        done = subprocess.run([self.program, *words], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise LeftOutError(done.stderr.strip() or "raw_udp failed")
        return float(done.stdout)


@contextmanager
def tree_of(commit: str | None, folder: Path) -> Iterator[Path | None]:
    """A work tree of a commit, for as long as this lasts, or the tree that is named; ``None`` where none is wanted."""
    if commit is None:
        yield None
        return
    if (Path(commit) / "src" / "rnic").is_dir():
        yield Path(commit).resolve()
        return
    tree = folder / "before"
    git = ["git", "-C", str(ROOT), "worktree"]
    done = subprocess.run([*git, "add", "--detach", str(tree), commit], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench rc: --before {commit}: {done.stderr.strip().splitlines()[-1]}")
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def has_twins(tree: Path) -> bool:
    """Whether a tree's inner loops are compiled."""
    return any(tree.glob("src/rnic/mem/_order.*.so"))


def processor_time(tree: Path, rounds: int, plain: bool) -> dict[str, float]:
    """What :mod:`rc_processor_time` finds in a tree, without the engine, in a process of its own."""
    code = (
        f"import sys; sys.path[:0] = [{str(tree / 'src')!r}, {str(ROOT / 'bench')!r}]\n"
        "import json, rnic\n"
        f"assert rnic.__file__.startswith({str(tree)!r}), rnic.__file__\n"
        "import rc_processor_time as t\n"
        f"print(json.dumps(t.processor_time({rounds})))\n"
    )
    env = {**os.environ, "RNIC_PLAIN": "1" if plain else "0", "RNIC_ENGINE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise LeftOutError(f"{tree.name} does not run: {words[-1] if words else 'it said nothing'}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def figures_of_a_round(raw: RawUdp, before: Path | None, short: bool) -> Iterator[tuple[str, Callable[[], float]]]:
    """Names of all figures in the order in which they are taken, and what takes each."""
    seconds = "0.3" if short else "0.8"
    long, small = (60, 8_000) if short else (400, 80_000)
    yield "raw 4096", lambda: raw.run("bw", str(SEGMENT_4096), seconds)
    yield "write 4096", lambda: own.gbps("write", own.LONG, long)
    yield "raw 1024", lambda: raw.run("bw", str(SEGMENT_1024), seconds)
    yield "write 1024", lambda: own.gbps("write", own.LONG, long, 1024)
    yield "read", lambda: own.gbps("read", own.LONG, long)
    yield "send", lambda: own.gbps("send", own.LONG, long)
    yield "raw latency", lambda: raw.run("lat", "20000")
    yield "ucx latency", lambda: peers.ucx_tag_latency(5_000 if short else 20_000)
    yield "write latency", lambda: own.write_latency(2_000 if short else 6_000)
    yield "ucx 64K", lambda: peers.ucx_tag_gbps(1 << 16, 3_000)
    yield "libfabric 64K", lambda: peers.libfabric_gbps(1 << 16, 1_000)
    yield "zeromq 64K", lambda: peers.zeromq_gbps(1 << 16)
    yield "write 64K", lambda: own.gbps("write", 1 << 16, long * 8)
    yield "batch", lambda: own.batch_rate(float(seconds))
    yield "ucx rate", lambda: peers.ucx_tag_rate(small)
    yield "sends", lambda: own.send_rate(float(seconds))
    yield "memory", lambda: own.memory_gbps(0.3 if short else 0.8)
    yield "no loss", lambda: own.lossy_gbps(0, long)
    yield "loss", lambda: own.lossy_gbps(LOST_ONE_IN, long)
    for kind in ("short", "long"):
        yield from _reference(kind, before, 2 if short else 6)


def _reference(kind: str, before: Path | None, rounds: int) -> Iterator[tuple[str, Callable[[], float]]]:
    plain = not (has_twins(ROOT) and before is not None and has_twins(before))

    def then() -> float:
        if before is None:
            raise LeftOutError("no release to compare with: give --before COMMIT")
        return processor_time(before, rounds, plain)[kind]

    yield f"reference {kind}", lambda: processor_time(ROOT, rounds, plain)[kind]
    yield f"before {kind}", then


def busy(found: dict[str, list[float]], numbers: tuple[int, ...]) -> None:
    """Seconds of many queue pairs, and of one with the same bytes."""
    conn, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=bench_busy.other_process, args=(there,), daemon=True)
    process.start()
    for number in numbers:
        alone, many = bench_busy.one_round(conn, "one way", number)
        if many["failed"] or alone["failed"]:
            raise LeftOutError(f"{number} busy queue pairs: {int(many['failed'] + alone['failed'])} WRITEs failed")
        found.setdefault(f"alone {number}", []).append(alone["seconds"])
        found.setdefault(f"busy {number}", []).append(many["seconds"])
    conn.send(("stop",))
    process.join(10)


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, list[float]], dict[str, str]]:
    """All figures by name, a value for each round, and why some are not there."""
    raw = RawUdp(folder)
    found: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    wanted = names_for(arguments.only)
    with tree_of(arguments.before, folder) as before:
        for turn in range(arguments.rounds):
            figures = list(figures_of_a_round(raw, before, arguments.short))
            again = [] if arguments.short else [each for each in figures if each[0] in TWICE]
            for name, take in figures + again:
                if name in missing or name not in wanted:
                    continue
                print(f"\rround {turn + 1} of {arguments.rounds}: {name:<20}", end="", file=sys.stderr, flush=True)
                try:
                    found.setdefault(name, []).append(take())
                except (LeftOutError, own.NotMeasuredError, RnicError) as error:
                    missing[name] = str(error)
            numbers = tuple(n for n in ((256,) if arguments.short else (256, 1024, 256)) if f"busy {n}" in wanted)
            if numbers:
                try:
                    busy(found, numbers)
                except (LeftOutError, RnicError) as error:
                    missing.update({f"busy {number}": str(error) for number in numbers})
    print("\r" + " " * 50 + "\r", end="", file=sys.stderr)
    if arguments.short and "busy 1024" in wanted:
        missing["busy 1024"] = "takes long: not with --short"
    return {name: values for name, values in found.items() if values}, missing


def names_for(word: str | None) -> set[str]:
    """Names of the figures of all rows whose text has ``word`` in it, with those that they are compared to."""
    return {name for row in ROWS if word is None or word in row.what for name in (row.figure, *row.against)}


def line(row: Row, found: dict[str, list[float]], missing: dict[str, str]) -> dict[str, object]:
    """One row of the table, with its verdict: ``floor missed``, ``ok``, ``aim reached``, or why there is none."""
    out: dict[str, object] = {"what": row.what, "unit": row.unit, "floor": row.floor, "aim": row.aim}
    values = found.get(row.figure)
    if values is None or row.figure in missing:
        return out | {"verdict": f"left out: {missing.get(row.figure, 'not asked for')}"}
    best = min if row.less else max
    out |= {"best": best(values), "median": median(values)}
    measure_of = values
    if row.against:
        others = [found[name] for name in row.against if name in found and name not in missing]
        if not others:
            return out | {"verdict": f"left out: {missing.get(row.against[0], 'nothing to compare with')}"}
        ratios = (best(values) / best(best(other) for other in others),
                  median(values) / best(median(other) for other in others))  # fmt: skip
        if row.figure in _SPEEDS:
            ratios = (1 / ratios[0], 1 / ratios[1])
        out |= {"ratio_best": ratios[0], "ratio_median": ratios[1]}
        measure_of = [ratios[0]]
    if row.floor is None or row.aim is None:
        return out | {"verdict": ""}
    less = row.less and row.figure not in _SPEEDS
    figure = min(measure_of) if less else max(measure_of)
    reached = [figure <= mark if less else figure >= mark for mark in (row.floor, row.aim)]
    return out | {"verdict": "aim reached" if reached[1] else "ok" if reached[0] else "MISSED"}


def show(lines: list[dict[str, object]]) -> None:
    """Print the table."""

    def cell(value: object, width: int = 9) -> str:
        if not isinstance(value, float):
            return " " * width
        return f"{value:>{width}.2f}" if value >= 1 else f"{value:>{width}.3f}"

    print(f"{'':<52}{'best':>9}{'median':>9} {'':5}{'ratio':>8}{'median':>9}{'floor':>7}{'aim':>7}")
    for one in lines:
        less = any(row.what == one["what"] and row.less and row.figure not in _SPEEDS for row in ROWS)
        sign = " " if one["floor"] is None else "≤" if less else "≥"
        print(
            f"{one['what']:<52}{cell(one.get('best'))}{cell(one.get('median'))} {one['unit']:<5}"
            f"{cell(one.get('ratio_best'), 8)}{cell(one.get('ratio_median'))}"
            f" {sign}{cell(one['floor'], 5)}{cell(one['aim'], 7)}  {one['verdict']}"
        )
    judged = [one for one in lines if one["floor"] is not None and not str(one["verdict"]).startswith("left out")]
    missed = sum(one["verdict"] == "MISSED" for one in judged)
    print(f"{missed} of {len(judged)} floors missed" if missed else f"all of {len(judged)} floors met")


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="./dev bench rc", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=0, help=f"rounds of all figures; {ROUNDS}, with --short 1")
    parser.add_argument("--short", action="store_true", help="one round of short runs")
    parser.add_argument("--before", metavar="COMMIT", help="compare the reference with this commit's, or a tree's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and all values there too")
    parser.add_argument("--only", metavar="WORD", help="only rows whose text has this word in it")
    arguments = parser.parse_args(argv)
    arguments.rounds = arguments.rounds or (1 if arguments.short else ROUNDS)
    if not names_for(arguments.only):
        parser.error(f"--only {arguments.only}: no row has that in it")
    with tempfile.TemporaryDirectory() as folder:
        found, missing = measure(arguments, Path(folder))
    rows = [row for row in ROWS if {row.figure} <= names_for(arguments.only)]
    lines = [line(row, found, missing) for row in rows]
    compiled = sorted(name for name, used in twins.in_use.items() if used)
    print(f"compiled: {', '.join(compiled) or 'nothing, plain Python'}; {arguments.rounds} rounds")
    show(lines)
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps({"rows": lines, "figures": found, "left_out": missing, "compiled": compiled}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
