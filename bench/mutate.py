"""Mutation testing: change one thing in the product, and check that a test fails.

    ./dev mutate [--count N] [--seed N] [--near] [--json FILE] [ROOM ...]
    ./dev mutate --chosen [WORD ...]

Draws mutants of the rooms (by default all with assigned tests) with a seeded generator, applies each to a copy of the
tree, and runs the tests near the room, and if these pass, all quick tests (not with ``--near``). A mutant that passes
has survived: write the missing test, or explain why the mutant is equivalent. Python is changed in its syntax tree, the
C of ``abi`` in its text, if the result compiles. ``--chosen`` runs the hand-written mutants of ``mutants.toml``, each
with its own tests, and none may survive; words select them by rule or path. CI runs these, since a small random draw
proves little.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import chosen_mutants

from rnic.abi.header import c_header, reasons_header

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = Path("src", "rnic")
NEAR = {
    "wire": ("tests/unit/wire", "tests/property/test_wire.py", "tests/fuzz", "tests/scripts"),
    "transport": ("tests/scripts", "tests/unit/transport", "tests/unit/device", "tests/netsim"),
    "device": ("tests/unit/device", "tests/fuzz/test_live.py", "tests/unit/context"),
    "link": ("tests/unit/link",),
    "runtime": ("tests/unit/runtime", "tests/verbs/test_nic_process.py"),
    "nic_process": ("tests/unit/nic_process", "tests/verbs/test_nic_process.py", "tests/verbs/test_seals.py"),
    "abi": ("tests/abi",),
    "rclink": ("tests/rclink", "tests/unit/rclink", "tests/property/test_rclink.py", "tests/netsim"),
}
WIDE = ("tests/unit", "tests/property", "tests/fuzz", "tests/scripts", "tests/netsim", "tests/verbs", "tests/cli")
TIMEOUT_S = {"near": 300, "wide": 600}
LEAST_PERCENT = 85

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    """A mutant: change number ``change`` of node ``node`` (in :func:`ast.walk` order) of a file."""

    path: Path
    node: int
    change: int
    line: int
    before: str
    after: str


def unmutated(node: ast.AST) -> Sequence[ast.AST]:
    """Return children of a node in which a change has no effect: annotations, docstrings, slots, typing-only blocks."""
    if isinstance(node, ast.FunctionDef):
        return [arg.annotation for arg in ast.walk(node.args) if isinstance(arg, ast.arg) and arg.annotation] + (
            [node.returns] if node.returns else []
        )
    if isinstance(node, ast.AnnAssign):
        return [node.annotation]
    if isinstance(node, ast.Assign) and "__slots__" in ast.unparse(node.targets[0]):
        return [node]
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return [node]
    if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
        return [node]
    return []


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every replacement of a node."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and len(new.ops) == 1:
        new.ops = [_SWAPS[type(new.ops[0])]()]  # type: ignore[list-item]
        yield new
    elif isinstance(new, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(new.op) in _SWAPS:
        new.op = _SWAPS[type(new.op)]()  # type: ignore[assignment]
        yield new
        if isinstance(new, ast.AugAssign):
            yield ast.Pass()
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not | ast.USub):
        yield new.operand
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        yield ast.Constant(not new.value)
    elif isinstance(new, ast.Constant) and isinstance(new.value, int):
        yield ast.Constant(new.value + 1)
    elif isinstance(new, ast.If | ast.While | ast.IfExp):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield new
    elif (isinstance(new, ast.Expr) and isinstance(new.value, ast.Call)) or (
        isinstance(new, ast.Assign) and not isinstance(new.targets[0], ast.Name)
    ):
        yield ast.Pass()
    elif isinstance(new, ast.Break):
        yield ast.Continue()
    elif isinstance(new, ast.Continue):
        yield ast.Break()


# Replacements in a line of C. Blanks distinguish a comparison from a shift, a pointer or a template.
_C_SWAPS = (
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "),
    (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" - ", " + "), (r" & ", " | "), (r" \| ", " & "),
    (r" << ", " >> "), (r" \+= ", " -= "), (r"\bif \(!", "if ("), (r"\bif \((?!!)", "if (!"),
    (r"\bwhile \((?!!)", "while (!"),
    (r"\breturn 0;", "return 1;"), (r"\breturn NULL;", "return (void *)1;"), (r"\b1\b", "2"), (r"\b0\b(?!x)", "1"),
    (r"\bbreak;", ";"), (r"^\t+\w+\([^;]*\);$", ";"), (r"^\t+[\w>.\[\]-]+ = [^;]*;$", ";"),
)  # fmt: skip
_SAME_IN_C = re.compile(r"\bpthread_(mutex|cond)_(init|destroy)\(&[^,]*(, NULL)?\);$")
"""Lines of C whose removal has no effect: zeroed memory is an initialized lock."""


def c_mutants(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a C file: ``node`` is the line, ``change`` the number of the replacement."""
    comment = False
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
        starts, ends = line.rfind("/*"), line.rfind("*/")
        told, comment = comment or starts >= 0, ends < starts if starts >= 0 or ends >= 0 else comment
        if told or line.startswith(("#", "static const", "}")) or '"' in line or _SAME_IN_C.search(line):
            continue
        for change, after in enumerate(c_changes(line)):
            yield Mutant(path, number, change, number, line.strip(), after.strip())


def c_changes(line: str) -> Iterator[str]:
    """Yield every replacement of a line."""
    for pattern, instead in _C_SWAPS:
        for found in re.finditer(pattern, line):
            yield line[: found.start()] + instead + line[found.end() :]


def compiles(path: Path) -> bool:
    """Return whether a C file compiles."""
    # generated from the tables when the library is built
    for name, text in (("rnic_hw.h", c_header), ("rnic_reasons.h", reasons_header)):
        if not (path.parent / name).exists():
            (path.parent / name).write_text(text(), encoding="utf-8")
    places = path.parent, path.parents[2] / "engine"
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-fsyntax-only", *(f"-I{at}" for at in places), str(path)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file of the product."""
    if path.suffix == ".c":
        yield from c_mutants(path)
        return
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    left_out: set[int] = set()
    for index, node in enumerate(ast.walk(tree)):
        for child in unmutated(node):
            left_out.update(map(id, ast.walk(child)))
        if id(node) in left_out:
            continue
        for change, new in enumerate(changes(node)):
            line = getattr(node, "lineno", 0)
            yield Mutant(path, index, change, line, first_line(node), first_line(new))


def first_line(node: ast.AST) -> str:
    """Return the changed line of a node's source."""
    return ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]


def mutated(mutant: Mutant) -> str:
    """Return the text of the mutated file."""
    if mutant.path.suffix == ".c":
        lines = (ROOT / mutant.path).read_text(encoding="utf-8").splitlines()
        lines[mutant.node - 1] = list(c_changes(lines[mutant.node - 1]))[mutant.change]
        return "\n".join(lines) + "\n"
    tree = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
    target = list(ast.walk(tree))[mutant.node]
    new = list(changes(target))[mutant.change]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is target else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Replace().visit(tree)))


def passes(tree: Path, tests: tuple[str, ...], timeout_s: int) -> bool:
    """Return whether the tests pass in a copy of the tree; a timeout is a failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not full"]
    env = chosen_mutants.environment(tree)
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            [*command, *tests], cwd=tree, env=env, check=False, timeout=timeout_s, stdout=quiet, stderr=quiet
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def survives(tree: Path, mutant: Mutant, near: bool) -> bool | None:
    """Apply a mutant to the copy of the tree, run the tests, and undo it; return ``None`` if it does not compile."""
    place = tree / mutant.path
    times = place.stat()
    original = place.read_bytes()
    place.write_text(mutated(mutant), encoding="utf-8")
    room = mutant.path.parts[len(PRODUCT.parts)]
    try:
        if place.suffix == ".c" and not compiles(place):
            return None
        return passes(tree, NEAR[room], TIMEOUT_S["near"]) and (near or passes(tree, WIDE, TIMEOUT_S["wide"]))
    finally:
        place.write_bytes(original)
        os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))  # keep its byte code valid


def main(argv: list[str]) -> int:
    """Run and print; exit status 1 if fewer than 85 % are killed."""
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__.splitlines()[0])
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"rooms, of {', '.join(NEAR)}; by default all")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--near", action="store_true", help="only the tests near each room")
    parser.add_argument(
        "--chosen", action="store_true", help="the mutants of mutants.toml; ROOM is then a word of path or rule"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the survivors to FILE")
    args = parser.parse_args(argv)
    if args.chosen:
        return chosen_mutants.run(args.rooms)
    rooms = args.rooms or list(NEAR)
    if unknown := set(rooms) - set(NEAR):
        parser.error(f"{', '.join(sorted(unknown))} has no assigned tests; give one of {', '.join(NEAR)}")
    kinds = ("*.py", "src/*.c") if shutil.which(os.environ.get("CC", "cc")) else ("*.py",)
    files = [
        p.relative_to(ROOT) for room in rooms for kind in kinds for p in sorted((ROOT / PRODUCT / room).glob(kind))
    ]
    every = [mutant for path in files for mutant in mutants(path)]
    drawn = random.Random(args.seed).sample(every, min(args.count, len(every)))
    with tempfile.TemporaryDirectory(prefix="rnic-mutants-") as scratch:
        tree = Path(scratch, "tree")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "_build", ".hypothesis"))
        subprocess.run([sys.executable, "-m", "compileall", "-q", tree], check=True)
        used = {mutant.path.parts[len(PRODUCT.parts)] for mutant in drawn}
        for tests in (*(NEAR[room] for room in rooms if room in used), *(() if args.near else (WIDE,))):
            if not passes(tree, tests, TIMEOUT_S["wide"]):
                print(f"mutate: {' '.join(tests)} fail without a mutant; fix them first", file=sys.stderr)
                return 2
        broken = [p for p in files if p.suffix == ".c" and not compiles(tree / p)]
        if broken:
            print(f"mutate: {broken[0]} does not compile without a mutant; fix it first", file=sys.stderr)
            return 2
        survivors = []
        start = time.monotonic()
        done = 0
        for mutant in drawn:
            survived = survives(tree, mutant, args.near)
            if survived is None:
                continue
            done += 1
            if survived:
                survivors.append(mutant)
                print(f"{mutant.path}:{mutant.line}: {mutant.before}  ->  {mutant.after}", flush=True)
            if done % 10 == 0:
                killed = f"{done - len(survivors)} of {done} killed"
                print(f"{killed}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    killed_percent = 100 * (done - len(survivors)) / max(1, done)
    said = f"{done} mutants of {len(every)} (seed {args.seed}): {killed_percent:.1f} % killed"
    print(f"{said}, at least {LEAST_PERCENT} required")
    if args.json:
        rows = [mutant._asdict() | {"path": str(mutant.path)} for mutant in survivors]
        args.json.write_text(json.dumps({"mutants": done, "survivors": rows}, indent=1) + "\n")
    return 0 if killed_percent >= LEAST_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
