"""Run worlds: NICs in virtual time that execute random plans, each made from a seed, and check the results.

The judge of ``rnic check`` checks every packet. The reference runs every eighth seed (with ``--alone`` none). With
``--both`` engine and reference run each seed and must give the same bytes. A failing seed is shrunk to the smallest
plan that fails in the same way. That plan is printed, or written to ``--script``; ``--replay`` runs it with the same
executor. With ``--done`` each completed seed is recorded in a file; a later call continues after it and sums up.

Exit status 1: there are findings, in this call or in the file of ``--done``.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import multiprocessing
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rnic.engine import use
from rnic.spec.json_text import json_value
from rnic.testing.executors import executed_by
from rnic.testing.world.plan import Plan, make_plan
from rnic.testing.world.run import Figures, described, run_both, run_plan
from rnic.testing.world.shrink import MOST_TRIES, shrink

_EACH = 8
LIMIT = 600.0
LATE = "the seed is not over"
DIED = "the process died"
_NOT_SHRUNK = (LATE, DIED)
"""Findings that are not shrunk: each try may take as long, or end this process."""
_STALLED = 10
"""A seed that uses little CPU time, since the machine is busy with others, may last this many times its limit."""
_GRACE = 1.5 * _STALLED
"""A worker that overruns its time limit by this factor is killed."""
_SUMS = ("operations", "packets", "faults", "virtual_ns")


class _LateError(BaseException):
    """The time limit of a seed has passed; handlers of ``Exception`` do not catch this."""


def executor(seed: int, *, both: bool, alone: bool) -> str:
    """Return the executor of a seed: ``"engine"``, ``"reference"`` or ``"both"``."""
    if use.COMPILED is None:
        return "reference"
    return "both" if both else "reference" if seed % _EACH == 0 and not alone else "engine"


def run_seed(seed: int, *, steps: int, both: bool, alone: bool, limit: float = LIMIT) -> dict[str, Any]:
    """Run one seed for at most ``limit`` seconds of CPU time; return its figures, executor and seconds."""
    by_what = executor(seed, both=both, alone=alone)
    began = time.monotonic()
    found = _run(make_plan(seed, steps), by_what, limit)
    return {**found._asdict(), "by": by_what, "seconds": round(time.monotonic() - began, 3)}


def _work(run: Callable[[int], dict[str, Any]], limit: float, seed: int) -> dict[str, Any]:
    """Run one seed in a worker process, which exits if the seed hangs."""
    faulthandler.dump_traceback_later(_GRACE * limit, exit=True)
    try:
        return run(seed)
    finally:
        faulthandler.cancel_dump_traceback_later()


def in_processes(
    run: Callable[[int], dict[str, Any]], seeds: Iterable[int], jobs: int, limit: float
) -> Iterator[dict[str, Any]]:
    """Run seeds in processes; if a process dies, each seed in flight gets a finding.

    Args:
        run: runs one seed; must be picklable.
        seeds: seeds, possibly without end.
        jobs: number of processes, 1 or more.
        limit: time limit of each seed in seconds of CPU time.
    """
    left = iter(seeds)
    more = True
    while more:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            flying: dict[Future[dict[str, Any]], int] = {}
            try:
                while True:
                    for seed in islice(left, jobs - len(flying)):
                        try:
                            flying[pool.submit(_work, run, limit, seed)] = seed
                        except BrokenProcessPool:
                            left = chain([seed], left)
                            raise
                    if not flying:
                        more = False
                        break
                    over = wait(flying, return_when=FIRST_COMPLETED).done
                    found = [future.result() for future in over]
                    for future in over:
                        del flying[future]
                    yield from found
            except BrokenProcessPool:
                lost = sorted(flying.values())
            else:
                lost = []
        named = ", ".join(map(str, lost))
        for seed in lost:
            figures = Figures(seed, 0, 0, 0, 0, 0, f"{DIED}; in flight: seeds {named}", 0)
            yield {**figures._asdict(), "by": "", "seconds": 0.0}


def _run(plan: Plan, by_what: str, limit: float) -> Figures:
    """Run a plan; report a finding if it exceeds ``limit`` seconds or fails before it begins."""
    try:
        with _limited(limit):
            if by_what == "both":
                return run_both(plan)
            if use.COMPILED is None:
                return run_plan(plan)
            with executed_by(engine=by_what == "engine"):
                return run_plan(plan)
    except _LateError:
        return _nothing(plan, f"{LATE} after {limit:g} s")
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        return _nothing(plan, described(error))


def _nothing(plan: Plan, finding: str) -> Figures:
    return Figures(plan.seed, 0, 0, 0, 0, 0, finding, len(plan.steps))


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise :class:`_LateError` in the main thread after ``seconds`` of CPU time, or many times as long without it.

    Raise it repeatedly, since a destructor may swallow it.
    """
    used = time.process_time()

    def late(number: int, frame: object) -> None:
        if time.process_time() - used >= seconds or time.monotonic() - began >= _STALLED * seconds:
            raise _LateError

    before = signal.signal(signal.SIGALRM, late)
    began = time.monotonic()
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds, min(seconds, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.001))


def kind(finding: str) -> str:
    """Return the kind of a finding: its words without names and numbers."""
    return re.sub(r"<.*?>|\b\S*\d\S*\b|\b(?:[0-9a-f]{2}){2,}\b|\(\w+\)", "", finding)[:60]


def smallest(plan: Plan, finding: str, run: Callable[[Plan], Figures], tries: int = MOST_TRIES) -> Plan:
    """Return the smallest part of a plan that fails in the same way."""
    return shrink(plan, lambda part: kind(run(part).finding) == kind(finding), tries)


def main(argv: list[str]) -> int:
    """Run the command line, and print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m rnic.testing.world", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="the first seed (default 1)")
    parser.add_argument(
        "--seeds",
        type=int,
        default=None,
        metavar="N",
        help="number of seeds (default 1, or no limit with --packets or --seconds)",
    )
    parser.add_argument("--packets", type=int, default=None, metavar="N", help="continue until N packets were carried")
    parser.add_argument("--seconds", type=float, default=None, metavar="S", help="stop after S seconds")
    parser.add_argument(
        "--steps", type=int, default=300, metavar="N", help="approximate steps of each plan (default 300)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT,
        metavar="S",
        help=f"CPU time limit of each seed in seconds (default {LIMIT:g})",
    )
    parser.add_argument("--both", action="store_true", help="run every seed with both executors, and compare")
    parser.add_argument("--alone", action="store_true", help="run every seed with the engine")
    parser.add_argument("--script", type=Path, metavar="FILE", help="write the smallest failing plan to FILE")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the plan in FILE, once")
    parser.add_argument(
        "--done", type=Path, metavar="FILE", help="record completed seeds in FILE; skip seeds recorded there"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: a line for each seed, and one with sums")
    args = parser.parse_args(argv)
    if args.replay is not None:
        return _replay(args)
    made = {"steps": args.steps, "both": args.both, "alone": args.alone}
    try:
        over = _noted(args.done, made)
    except (OSError, ValueError) as error:
        print(f"world: {args.done}: {error}", file=sys.stderr)
        return 2
    known = {line["seed"] for line in over}
    seeds: Iterable[int] = (seed for seed in range(args.seed, 1 << 40) if seed not in known)
    if args.seeds is not None or (args.packets is None and args.seconds is None):
        seeds = islice(seeds, args.seeds or 1)
    began = time.monotonic()
    packets = sum(line["packets"] for line in over)
    each = partial(run_seed, **made, limit=args.limit)
    results = map(each, seeds) if args.jobs == 1 else in_processes(each, seeds, args.jobs, args.limit)
    for found in results:
        over.append(found)
        packets += found["packets"]
        if args.done is not None:
            with args.done.open("a") as file:
                print(json.dumps(found), file=file)
        _print_seed(found, as_json=args.json)
        if found["finding"]:
            _print_smallest(found, args)
        late = args.seconds is not None and time.monotonic() - began > args.seconds
        if late or (args.packets is not None and packets >= args.packets):
            break
    _print_sums(over, as_json=args.json)
    return 1 if any(line["finding"] for line in over) else 0


def _noted(path: Path | None, made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the completed seeds in a ``--done`` file; a new file begins with the parameters of its seeds.

    A torn last line is cut off.

    Raises:
        ValueError: its seeds have other parameters, or it is not such a file.
    """
    if path is None:
        return []
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    if not whole:
        path.write_text(json.dumps(made) + "\n")
        return []
    head, *lines = [json_value(line) for line in whole.splitlines()]
    if head != made:
        raise ValueError(
            f"its seeds have parameters {json.dumps(head)}, not {json.dumps(made)}: use the same, or a new file"
        )
    return lines


def _replay(args: argparse.Namespace) -> int:
    try:
        plan = Plan.read(args.replay.read_text())
    except (OSError, ValueError) as error:
        print(f"world: {args.replay}: {error}", file=sys.stderr)
        return 2
    began = time.monotonic()
    by_what = executor(1, both=args.both or plan.by == "both", alone=True)
    if plan.by == "reference" and not args.both:
        by_what = plan.by
    found = _run(plan, by_what, args.limit)
    _print_seed({**found._asdict(), "by": by_what, "seconds": round(time.monotonic() - began, 3)}, as_json=args.json)
    return 1 if found.finding else 0


def _print_seed(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found), flush=True)
        return
    print(
        f"seed {found['seed']}: {found['operations']} operations, {found['packets']} packets, "
        f"{found['faults']} faults, {found['virtual_ns'] / 1e9:.3f} s virtual, {found['seconds']:.2f} s, "
        f"digest {found['digest']:08x}",
        flush=True,
    )
    if found["finding"]:
        print(f"seed {found['seed']}, step {found['step']}: {found['finding']}", file=sys.stderr, flush=True)


def _print_smallest(found: dict[str, Any], args: argparse.Namespace) -> None:
    """Shrink a failing plan, and print how to reproduce it."""
    seed, finding = found["seed"], found["finding"]
    if finding.startswith(_NOT_SHRUNK):
        print(f"seed {seed}: not shrunk: run it alone with --seed {seed}", file=sys.stderr, flush=True)
        return
    run = partial(_run, by_what=found["by"], limit=args.limit)
    plan = make_plan(seed, args.steps)
    plan = replace(plan.having(plan.steps[: found["step"] + 1]), by=found["by"])
    if kind(run(plan).finding) == kind(finding):
        plan = smallest(plan, finding, run)
        said = f"{len(plan.steps)} steps are enough"
    else:
        said = f"seed {seed}: not reproduced by its first {len(plan.steps)} steps"
    text = plan.text()
    if args.script is not None:
        args.script.write_text(text)
        print(f"{said}: --replay {args.script}", file=sys.stderr, flush=True)
    else:
        print(f"{said}:\n{text}", file=sys.stderr, flush=True)


def _print_sums(over: list[dict[str, Any]], *, as_json: bool) -> None:
    sums = {name: sum(line[name] for line in over) for name in _SUMS}
    seconds = sum(line["seconds"] for line in over)
    figures = {
        "seeds": len(over),
        **sums,
        "seconds": round(seconds, 1),
        "packets_per_second": round(sums["packets"] / max(seconds, 1e-9)),
        "virtual_hours_per_hour": round(sums["virtual_ns"] / 1e9 / max(seconds, 1e-9), 3),
        "findings": sum(bool(line["finding"]) for line in over),
    }
    if as_json:
        print(json.dumps(figures), flush=True)
    else:
        print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items()), flush=True)


__all__ = ["in_processes", "kind", "main", "run_seed", "smallest"]
