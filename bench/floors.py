"""Measure branch coverage of every room and of the engine's C, and compare it with floors.

    python bench/floors.py [python | c]     both by default

Python is measured in all processes of the tests. The C is compiled without optimization in a copy of the tree, and
measured with gcov. ``./dev test`` measures five of these rooms, with the quick tests only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import chosen_mutants

ROOT = Path(__file__).resolve().parents[1]
QUICK = ("tests/unit", "tests/property", "tests/scripts", "tests/fuzz")
SLOW = ("tests/cli", "tests/verbs", "tests/rclink")
C_TESTS = ("tests/unit/engine", "tests/unit/runtime", "tests/scripts", "tests/fuzz", "tests/property/test_engine.py")
C_SLOW = ("tests/verbs/test_bypass.py", "tests/netsim/test_fabric_native.py")

PYTHON_FLOORS = {
    "abi": 40,
    "arrays": 94,
    "cc": 98,
    "cli": 89,
    "cm": 93,
    "conform": 95,
    "context": 96,
    "coyote": 95,
    "device": 97,
    "engine": 97,
    "judge": 94,
    "link": 96,
    "mem": 97,
    "nic_process": 90,
    "paxi": 96,
    "rclink": 98,
    "rings": 98,
    "runtime": 92,
    "sim": 88,
    "spec": 97,
    "state": 97,
    "testing": 74,
    "trace": 98,
    "transport": 97,
    "verbs": 96,
    "wire": 98,
}
"""Floors of line and branch coverage in percent, by room. Gateware has none, since its tests run in simulators
(``./dev gateware``). The code that builds the libraries of ``abi`` is covered by tests not listed above."""

C_FLOORS = {
    "engine": 99,
    "engine/bypass": 49,
    "engine/device": 81,
    "engine/io": 79,
    "engine/memory": 49,
    "engine/queue_pair": 82,
    "sim/native": 87,
}
"""Floors of the engine's C by directory."""

Share = tuple[int, int]
"""Number covered, and total."""


def python_shares() -> tuple[dict[str, Share], int]:
    """Return the coverage of each room by the tests above and their processes, and pytest's exit status."""
    with tempfile.TemporaryDirectory(prefix="rnic-coverage-") as scratch:
        settings, report = Path(scratch, "settings"), Path(scratch, "report.json")
        exclude = "exclude_also =\n  if TYPE_CHECKING:\n  class .*\\(Protocol.*\\):\n  assert_never\\("
        settings.write_text(
            f"[run]\nbranch = true\nsource = rnic\nparallel = true\npatch = subprocess\ndata_file = {scratch}/data\n"
            f"[report]\n{exclude}\n"
        )
        coverage = (sys.executable, "-m", "coverage")
        pytest = ("-m", "pytest", "-q", "-n", "3", "--dist", "loadfile", *QUICK, *SLOW)
        done = subprocess.run([*coverage, "run", f"--rcfile={settings}", *pytest], cwd=ROOT, check=False)
        for words in (["combine", "-q"], ["json", "-q", "-o", str(report)]):
            subprocess.run([*coverage, *words, f"--rcfile={settings}"], cwd=ROOT, check=True)
        files = json.loads(report.read_text())["files"]
    found: dict[str, Share] = {}
    for name, data in files.items():
        room = Path(name).parts[Path(name).parts.index("rnic") + 1]
        what = data["summary"]
        add(
            found,
            room,
            what["covered_lines"] + what["covered_branches"],
            what["num_statements"] + what["num_branches"],
        )
    rooms = {room: share for room, share in found.items() if not room.endswith(".py") and room != "gateware"}
    return rooms, done.returncode


def add(found: dict[str, Share], name: str, reached: int, of: int) -> None:
    """Add counts."""
    before = found.get(name, (0, 0))
    found[name] = before[0] + reached, before[1] + of


def c_shares() -> tuple[dict[str, Share], int]:
    """Return the coverage of each directory of the engine's C, and pytest's exit status."""
    with tempfile.TemporaryDirectory(prefix="rnic-gcov-") as scratch:
        tree = Path(scratch, "tree")
        others = shutil.ignore_patterns(".git", ".venv", "_build", ".hypothesis", "__pycache__", "dist", "*.egg-info")
        shutil.copytree(ROOT, tree, ignore=others)
        chosen_mutants.EngineBuild(tree, "-O0", "--coverage", "-fprofile-update=atomic")
        command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile", "-p", "no:cacheprovider"]
        env = chosen_mutants.environment(tree)
        done = subprocess.run([*command, *C_TESTS, *C_SLOW], cwd=tree, env=env, check=False)
        return read_gcov(tree), done.returncode


def read_gcov(tree: Path) -> dict[str, Share]:
    """Return gcov's results of all objects; a line of a header counts once, covered if any object covers it."""
    lines: dict[tuple[str, int], bool] = {}
    branches: dict[tuple[str, int, int], bool] = {}
    objects = tree / "build" / "objects"
    gcov = [os.environ.get("GCOV", "gcov"), "--json-format", "--stdout", "--branch-probabilities"]
    for notes in sorted(objects.glob("*.gcno")):
        said = subprocess.run([*gcov, str(notes)], cwd=tree, capture_output=True, text=True, check=True).stdout
        for part in json.loads(said)["files"]:
            name = part["file"].removeprefix(f"{tree}/").removeprefix("src/rnic/")
            if name.startswith("/") or Path(name).name.startswith("_engine"):
                continue
            for line in part["lines"]:
                place = name, line["line_number"]
                lines[place] = lines.get(place, False) or line["count"] > 0
                for number, branch in enumerate(line["branches"]):
                    way = *place, number
                    branches[way] = branches.get(way, False) or branch["count"] > 0
    found: dict[str, Share] = {}
    names = (*((key[0], hit) for key, hit in lines.items()), *((key[0], hit) for key, hit in branches.items()))
    for name, reached in names:
        add(found, Path(name).parent.as_posix(), reached, 1)
    return found


def compare(title: str, found: dict[str, Share], status: int, floors: dict[str, int]) -> list[str]:
    """Print a table; return the names below their floors, and a note if tests failed."""
    print(f"\n{title}")
    low = [f"failed tests (pytest's exit status {status})"] if status else []
    for name in sorted(found.keys() | floors.keys()):
        reached, of = found.get(name, (0, 0))
        percent = 100 * reached / of if of else 0.0
        floor = floors.get(name)
        print(f"  {name:20} {percent:6.1f} %   ({'no floor' if floor is None else f'at least {floor} %'})")
        if floor is not None and percent < floor:
            low.append(name)
    return low


def main(words: Iterable[str]) -> int:
    """Measure the given languages, or both."""
    wanted = set(words) or {"python", "c"}
    if wanted - {"python", "c"}:
        print(__doc__, file=sys.stderr)
        return 2
    low = []
    if "python" in wanted:
        low += compare("lines and branches of Python", *python_shares(), PYTHON_FLOORS)
    if "c" in wanted:
        low += compare("lines and branches of C", *c_shares(), C_FLOORS)
    if low:
        print(f"floors: coverage too low: {', '.join(low)}", file=sys.stderr)
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
