"""Proves that each row of the map has a test that matters: its mutant, one changed constant or condition, must fail it.

    python tests/gateware/mutants.py [--only TEXT] [--jobs N] [--json]

A mutant is text in a source file, what it becomes, and the test that must then fail (``map/*.toml``). The sources are
copied, never touched. Exit status 1 if a mutant survives or is no gateware at all, or a test does not even pass without
one.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAP = Path(__file__).parent / "map"
PYTEST_FAILED = 1
NO_PROGRAM = re.compile(
    r"^E +((Syntax|Name|Import|Attribute|Type)Error|\S*(CombinationalCycle|DriverConflict|UnusedElaboratable)).*",
    re.MULTILINE,
)
"""Failures that say nothing of the test: the mutant could not be run."""


@dataclass(frozen=True)
class Row:
    """One row of the map: what the documents say, where it is, what shows it, and its mutant."""

    source: str
    item: str
    file: str
    test: str
    old: str
    new: str
    rule: str = ""


def rows() -> list[Row]:
    """All rows, in order of file and place."""
    out = []
    for path in sorted(MAP.glob("*.toml")):
        out += [Row(**row) for row in tomllib.loads(path.read_text())["row"]]
    return out


def run_tests(source: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests against the sources in ``source``."""
    # one short run is not worth a compilation
    env = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "RNIC_SIMULATOR": "amaranth"}
    options = ["-q", "-x", "-p", "no:cacheprovider", "-n", "0", "--full"]  # some rows' tests are long
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def survives(row: Row, source: Path) -> str | None:
    """Why a mutant counts as alive; ``None`` if its test kills it."""
    path = source.parent / row.file
    text = path.read_text()
    if text.count(row.old) != 1:
        return f"{row.old!r} occurs {text.count(row.old)} times in {row.file}"
    try:
        path.write_text(text.replace(row.old, row.new))
        done = run_tests(source, [row.test])
    finally:
        path.write_text(text)
    broken = NO_PROGRAM.search(done.stdout)
    if broken:
        return f"the mutant does not build: {broken.group()}"
    if done.returncode == PYTEST_FAILED:
        return None
    last = (done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"])[-1]
    return f"pytest ended with {done.returncode}: {last}"


def main() -> int:
    """Run the baseline, then every mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose item, file or test has this text")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at once; 2 unless told")
    parser.add_argument("--json", action="store_true", help="print the outcome of each row as JSON")
    options = parser.parse_args()
    chosen = [row for row in rows() if options.only in f"{row.item} {row.file} {row.test}"]
    with tempfile.TemporaryDirectory() as scratch:
        sources: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(max(1, options.jobs)):
            source = Path(scratch) / str(number) / "src"
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            sources.put(source)
        baseline = run_tests(source, sorted({row.test for row in chosen}))
        if baseline.returncode:
            print(baseline.stdout[-3000:], file=sys.stderr)
            print("the tests do not pass without a mutant", file=sys.stderr)
            return 1

        def judge(row: Row) -> dict[str, object]:
            source = sources.get()
            try:
                alive = survives(row, source)
            finally:
                sources.put(source)
            if not options.json:
                print(f"{'ALIVE  ' if alive else 'killed '} {row.item}{f': {alive}' if alive else ''}", flush=True)
            return {"item": row.item, "test": row.test, "killed": alive is None, "why": alive or ""}

        with ThreadPoolExecutor(max(1, options.jobs)) as pool:
            outcomes = list(pool.map(judge, chosen))
    killed = sum(bool(each["killed"]) for each in outcomes)
    if options.json:
        print(json.dumps(outcomes, indent=2))
    else:
        print(f"{killed} of {len(outcomes)} mutants killed")
    return 0 if killed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
