"""Mutation testing: change one thing in the product, and see whether a test notices.

    ./dev mutate [--count N] [--seed N] [--json FILE] [ROOM ...]

Draws mutants of the rooms (by default wire and transport) with a seeded generator, puts each into a copy of the
tree, and runs first the tests near the room, then, where those pass, all that are quick. A mutant that passes both
has survived: read it, then write the test that it lacks or say why it changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = Path("src", "rnic")
NEAR = {
    "wire": ("tests/unit/wire", "tests/property/test_wire.py", "tests/fuzz", "tests/scripts"),
    "transport": ("tests/scripts", "tests/unit/transport", "tests/unit/device", "tests/netsim"),
    "rclink": ("tests/rclink", "tests/unit/rclink", "tests/property/test_rclink.py", "tests/netsim"),
}
DEFAULT_ROOMS = ("wire", "transport")
WIDE = ("tests/unit", "tests/property", "tests/fuzz", "tests/scripts", "tests/netsim", "tests/verbs", "tests/cli")
TIMEOUT_S = {"near": 60, "wide": 300}

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change: the ``change``-th of node ``node`` (in :func:`ast.walk` order) of a file."""

    path: Path
    node: int
    change: int
    line: int
    before: str
    after: str


def unmutated(node: ast.AST) -> Sequence[ast.AST]:
    """The children of a node where a change has no effect: annotations, docstrings, slots, typing-only blocks."""
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
    """Every node that may stand in the place of this one."""
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


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a file of the product."""
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
    """A node as source, shortened to the line that changes."""
    return ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]


def mutated(mutant: Mutant) -> str:
    """The file with the change made."""
    tree = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
    target = list(ast.walk(tree))[mutant.node]
    new = list(changes(target))[mutant.change]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is target else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Replace().visit(tree)))


def passes(tree: Path, tests: tuple[str, ...], timeout_s: int) -> bool:
    """Whether the tests pass in a copy of the tree; a mutant that hangs does not."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not full"]
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            [*command, *tests], cwd=tree, env=env, check=False, timeout=timeout_s, stdout=quiet, stderr=quiet
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def survives(tree: Path, mutant: Mutant) -> bool:
    """Put a mutant into the copy of the tree, run the tests, take it out again."""
    place = tree / mutant.path
    times = place.stat()
    original = place.read_bytes()
    place.write_text(mutated(mutant), encoding="utf-8")
    room = mutant.path.parts[len(PRODUCT.parts)]
    try:
        return passes(tree, NEAR[room], TIMEOUT_S["near"]) and passes(tree, WIDE, TIMEOUT_S["wide"])
    finally:
        place.write_bytes(original)
        os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))  # its compiled form holds again


def main(argv: list[str]) -> int:
    """Run and print; exit status 1 where fewer than 85 % are killed."""
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__.splitlines()[0])
    parser.add_argument(
        "rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(NEAR)}; {' and '.join(DEFAULT_ROOMS)} by default"
    )
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the survivors there too")
    args = parser.parse_args(argv)
    rooms = args.rooms or list(DEFAULT_ROOMS)
    if unknown := set(rooms) - set(NEAR):
        parser.error(f"no tests are named for {', '.join(sorted(unknown))}; give one of {', '.join(NEAR)}")
    files = [p.relative_to(ROOT) for room in rooms for p in sorted((ROOT / PRODUCT / room).glob("*.py"))]
    every = [mutant for path in files for mutant in mutants(path)]
    drawn = random.Random(args.seed).sample(every, min(args.count, len(every)))
    with tempfile.TemporaryDirectory(prefix="rnic-mutants-") as scratch:
        tree = Path(scratch, "tree")
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "_build", ".hypothesis"))
        subprocess.run([sys.executable, "-m", "compileall", "-q", tree], check=True)
        for tests in (*(NEAR[room] for room in rooms), WIDE):
            if not passes(tree, tests, TIMEOUT_S["wide"]):
                print(f"mutate: {' '.join(tests)} fail without any mutant; mend them first", file=sys.stderr)
                return 2
        survivors = []
        start = time.monotonic()
        for done, mutant in enumerate(drawn, 1):
            if survives(tree, mutant):
                survivors.append(mutant)
                print(f"{mutant.path}:{mutant.line}: {mutant.before}  ->  {mutant.after}", flush=True)
            if done % 10 == 0:
                killed = f"{done - len(survivors)} of {done} killed"
                print(f"{killed}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    killed_percent = 100 * (len(drawn) - len(survivors)) / len(drawn)
    print(f"{len(drawn)} mutants of {len(every)} (seed {args.seed}): {killed_percent:.1f} % killed, at least 85 asked")
    if args.json:
        rows = [mutant._asdict() | {"path": str(mutant.path)} for mutant in survivors]
        args.json.write_text(json.dumps({"mutants": len(drawn), "survivors": rows}, indent=1) + "\n")
    return 0 if killed_percent >= 85 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
