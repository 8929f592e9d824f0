"""Functions of the engine that one 8-byte WRITE enters, with its ACK, on both ends.

The engine is compiled into a temporary directory without inlining and with counters (``count_calls.c``) in the
functions of its C files; what stands in headers is a few loads, and not counted. One thread posts each WRITE and polls
both ends until it has completed: in process over UDP; with the program's own data path, between two devices of a NIC
process over UDP, or of one device by shared rings. Other threads are the progress threads: what they enter is counted
for 1,000 messages of a program that polls. ``--functions`` lists the functions entered most.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
from call_counts import MESSAGES
from harness import ROOT, LeftOutError, Row

ROUNDS = 9
PLAIN = ("-O1", "-fno-inline", "-fPIC", "-pthread", "-w")
COUNTED = ("-finstrument-functions", "-finstrument-functions-exclude-file-list=.h")
CARRIERS = {"in process": "in process, UDP", "udp": "own data path, UDP", "rings": "own data path, shared rings"}
HERE, ELSEWHERE, POLLS = "calls of a message", "calls of other threads, of 1,000 messages", "polls of a message"
FLOORS = {HERE: (800.0, 250.0), ELSEWHERE: (5.0, 5.0), POLLS: (None, None)}
"""Floor and aim of each figure."""
ROWS = [
    Row(f"{text}: {what}", f"{carrier}: {what}", "", *FLOORS[what], less=True)
    for carrier, text in CARRIERS.items()
    for what in (HERE, ELSEWHERE, POLLS)
]
LISTED = 40


def compile_one(compiler: str, tree: Path, folder: Path, source: Path, flags: tuple[str, ...]) -> Path:
    """Compile a file of the engine; return the object."""
    made = folder / f"{source.parent.name}_{source.stem}.o"
    include = [f"-I{tree / 'src/rnic/engine'}", f"-I{sysconfig.get_path('include')}"]
    done = subprocess.run(
        [compiler, *flags, *include, "-c", "-o", str(made), str(source)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LeftOutError(f"{source.name} was not compiled: {(done.stderr.splitlines() or ['cc failed'])[0]}")
    return made


def module_of(tree: Path) -> Path:
    """Return the C file that Cython has made of a tree's module."""
    return tree / "build/cython/src/rnic/engine/_engine.c"


def build(tree: Path, folder: Path) -> Path:
    """Build a tree's engine with counters."""
    compiler = shutil.which("cc")
    module = module_of(tree)
    if compiler is None or not module.exists():
        raise LeftOutError(f"{tree}: no C compiler (cc), or no {module.relative_to(tree)}: run ./dev setup there")
    sources: list[tuple[Path, tuple[str, ...]]] = [
        (path, (*PLAIN, *COUNTED)) for path in sorted((tree / "src/rnic/engine").glob("*/*.c"))
    ]
    # what Cython made is the same whatever the engine does
    sources += [(module, PLAIN), (ROOT / "bench/count_calls.c", PLAIN)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda one: compile_one(compiler, tree, folder, *one), sources))
    library = folder / f"_engine{sysconfig.get_config_var('EXT_SUFFIX')}"
    # else the C library's own functions of these names, which do nothing, come first
    subprocess.run(
        [compiler, "-shared", "-pthread", "-Wl,-Bsymbolic", "-o", str(library), *map(str, objects)], check=True
    )
    return library


def counted(tree: Path, library: Path, carrier: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Count in a process of its own."""
    paths = [str(tree / "src"), str(ROOT / "bench")]
    code = (
        f"import sys; sys.path[:0] = {paths!r}\n"
        f"import rnic.engine; rnic.engine.__path__.insert(0, {str(library.parent)!r})\n"
        "import json, call_counts\n"
        f"print(json.dumps(call_counts.count({carrier!r}, {str(folder)!r}, {rounds})))\n"
    )
    env = {**os.environ, "RNIC_SHM": "1" if carrier == "rings" else "0", "PYTHONPATH": paths[0]}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LeftOutError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def names_of(library: Path) -> dict[int, str]:
    """Return the names of a library's functions, by their distance from ``calls_of``."""
    lines = subprocess.run(["nm", str(library)], capture_output=True, text=True, check=True).stdout.splitlines()
    symbols = {int(line.split()[0], 16): line.split()[2] for line in lines if len(line.split()) == 3}
    (base,) = (place for place, name in symbols.items() if name == "calls_of")
    return {(place - base) % (1 << 64): name for place, name in symbols.items()}


def list_functions(library: Path, carrier: str, rounds: int, found: dict[str, Any]) -> None:
    """Print the functions entered most: for a message, and for 1,000 by other threads."""
    names = names_of(library)
    counts = rounds * MESSAGES, rounds * MESSAGES / 1_000
    for who, calls, messages in zip(("this thread", "others"), found["functions"], counts, strict=True):
        print(f"\n{CARRIERS[carrier]}, {who}:")
        for place, count in sorted(calls.items(), key=lambda one: -one[1])[:LISTED]:
            print(f"{count / messages:10.2f}  {names.get(int(place), place)}")


def main(argv: list[str]) -> int:
    """Count, print the table."""
    rows = [row.what for row in ROWS]
    parser = harness.Parser("calls", __doc__, rounds=ROUNDS, before="also count with this tree", rows=rows, json=True)
    parser.add_argument("--functions", action="store_true", help="also list the functions entered most")
    given = parser.read(argv)
    found: harness.Found = {}
    missing: dict[str, str] = {}
    with harness.tree_of(given.before, build=True) as before:
        for prefix, tree in (("", ROOT), ("before: ", before)):
            if tree is not None:
                count_tree(prefix, tree, given, found, missing)
    harness.report(given, ROWS + (harness.beside(ROWS) if given.before else []), found, missing)
    return 0


def count_tree(
    prefix: str, tree: Path, given: argparse.Namespace, found: harness.Found, missing: dict[str, str]
) -> None:
    """Count with a tree's engine; enter the figures, or why there are none."""
    wanted = harness.figures_for(ROWS, given.only)
    with tempfile.TemporaryDirectory(prefix="rnic-calls-") as made:
        folder = Path(made)
        library = build(tree, folder)
        for carrier in CARRIERS:
            names = [f"{carrier}: {what}" for what in (HERE, ELSEWHERE, POLLS)]
            if not wanted & set(names):
                continue
            try:
                one = counted(tree, library, carrier, folder, given.rounds)
            except LeftOutError as reason:
                missing |= {prefix + name: str(reason) for name in names}
                continue
            columns = zip(*one["figures"], strict=True)
            found |= {prefix + name: list(column) for name, column in zip(names, columns, strict=True)}
            if given.functions and not prefix:
                list_functions(library, carrier, given.rounds, one)


if __name__ == "__main__":
    harness.run(main)
