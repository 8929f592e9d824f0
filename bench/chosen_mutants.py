"""The mutants of ``mutants.toml``: each has a rule, its violation, and the tests that must fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ENGINE = Path("src", "rnic", "engine")
NATIVE = Path("src", "rnic", "sim", "native")
C_SOURCES = (f"{ENGINE}/*/*.c", f"{NATIVE}/[!_]*.c")
MODULES = (ENGINE / "_engine", NATIVE / "_fabric")
"""Extension modules built from this C code, without suffix; each is linked with all of it here."""
GENERATED = Path("build", "cython")
"""Directory of the C files that Cython generated at installation."""
TIMEOUT_S = 900
VOID = "no valid attempt"
"""Message of a test that did not get its cores in time (``tests/attempts.py``)."""
VALID_TRIES = 4
QUICK = "-O0 -fno-lto"
"""Compiler options for the libraries in the tests of ``abi``, since compiling takes longer than the tests."""


class Chosen(NamedTuple):
    """A mutant: ``old``, which must occur once in the file, is replaced by ``new``."""

    rule: str
    path: Path
    old: str
    new: str
    tests: tuple[str, ...]


def is_of_engine(path: Path) -> bool:
    """Return whether a file is C code of the engine's modules."""
    return ENGINE in path.parents or NATIVE in path.parents


def chosen() -> list[Chosen]:
    """Return all mutants.

    Raises:
        ValueError: a mutant no longer matches the tree.
    """
    rows = tomllib.loads((ROOT / "bench" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    found = [Chosen(row["rule"], Path(row["path"]), row["old"], row["new"], tuple(row["tests"])) for row in rows]
    for mutant in found:
        count = (ROOT / mutant.path).read_text(encoding="utf-8").count(mutant.old)
        if count != 1:
            raise ValueError(f"{mutant.path}: {mutant.old!r} occurs {count} times, not once")
    return found


class EngineBuild:
    """Engine and fabric of a copy of the tree, built file by file, so that a mutant costs one compilation and a link.

    Args:
        tree: the copy.
        flags: for compiler and linker.

    Raises:
        OSError: there is no compiler, or the engine was not compiled at installation.
    """

    def __init__(self, tree: Path, *flags: str) -> None:
        self._tree = tree
        self._flags = flags or ("-O1",)
        self._objects = tree / "build" / "objects"
        self._compiler = shutil.which(os.environ.get("CC", "cc"))
        generated = [GENERATED / f"{module}.c" for module in MODULES]
        if self._compiler is None or not all((tree / source).exists() for source in generated):
            raise OSError("mutants of the engine need a C compiler and a compiled installation")
        self._objects.mkdir(parents=True, exist_ok=True)
        for source in (*generated, *sorted(path.relative_to(tree) for root in C_SOURCES for path in tree.glob(root))):
            self.make(source)
        self.link()

    def make(self, source: Path) -> None:
        """Compile one file."""
        includes = [f"-I{self._tree / ENGINE}", f"-I{self._tree / NATIVE}", f"-I{sysconfig.get_path('include')}"]
        command = [str(self._compiler), *self._flags, "-fPIC", "-fvisibility=hidden", "-w", *includes]
        subprocess.run([*command, "-c", str(source), "-o", str(self._object(source))], cwd=self._tree, check=True)

    def link(self) -> None:
        """Link the modules into Python's import path."""
        shared = [str(path) for path in self._objects.glob("*.o") if path not in map(self._object, MODULES)]
        for module in MODULES:
            target = self._tree / f"{module}{sysconfig.get_config_var('EXT_SUFFIX')}"
            command = [str(self._compiler), *self._flags, "-shared", str(self._object(module)), *shared]
            subprocess.run([*command, "-o", str(target)], check=True)

    def _object(self, source: Path) -> Path:
        return self._objects / f"{source.parent.name}_{source.stem}.o"


@contextmanager
def changed(tree: Path, mutant: Chosen, engine: EngineBuild | None) -> Iterator[None]:
    """Apply the mutant to the tree, and compile it if it is C of the engine; the tests of ``abi`` compile theirs."""
    place = tree / mutant.path
    original = place.read_text(encoding="utf-8")
    compiled = engine if is_of_engine(mutant.path) else None
    place.write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        if compiled is not None:
            compiled.make(mutant.path)
            compiled.link()
        yield
    finally:
        place.write_text(original, encoding="utf-8")
        if compiled is not None:
            compiled.make(mutant.path)


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of tests that run in a copy of the tree."""
    path = str(tree / "src")
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "CFLAGS": QUICK, "RNIC_UNTIMED": "1"}


def tried(tree: Path, tests: tuple[str, ...]) -> tuple[str, str]:
    """Run tests in a copy of the tree; return the first failure, empty if all pass, and pytest's last line.

    If a test had no valid attempt (``tests/attempts.py``), return its line instead.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-rfEs",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "not full",
    ]
    env = environment(tree)
    try:
        done = subprocess.run(
            [*command, *tests], cwd=tree, env=env, check=False, timeout=TIMEOUT_S, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return "they did not end", ""
    lines = done.stdout.splitlines() or [""]
    closed = next((line for line in lines if line.startswith("SKIPPED") and VOID in line), lines[-1])
    if not done.returncode:
        return "", closed
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].partition(" ")[2] if failed else f"pytest ended with {done.returncode}", closed


def tried_validly(tree: Path, tests: tuple[str, ...]) -> tuple[str, str]:
    """Run tests as :func:`tried`, and again if one had no valid attempt; return the first failure, or the reason for
    none."""
    for _ in range(VALID_TRIES):
        failed, closed = tried(tree, tests)
        if failed or VOID not in closed:
            return failed, ""
    return "", closed


def unfit(tree: Path, tests: tuple[str, ...]) -> str:
    """Return why tests were skipped here, and so cannot kill a mutant; empty if they pass.

    Raises:
        ValueError: they fail without a mutant.
    """
    failed, closed = tried(tree, tests)
    if failed:
        name, _, why = failed.partition(" - ")
        raise ValueError(f"{name} fails without a mutant; fix that first: {why or 'no reason given'}")
    return "" if " passed" in closed or VOID in closed else closed


def run(words: list[str]) -> int:
    """Run the mutants whose rule or path contains one of the words, or all; return 1 if one survives, 2 if none ran."""
    mutants = [m for m in chosen() if not words or any(word in f"{m.path} {m.rule}" for word in words)]
    start = time.monotonic()
    survivors = left_out = 0
    with tempfile.TemporaryDirectory(prefix="rnic-chosen-") as scratch:
        tree = Path(scratch, "tree")
        # files of other tasks may vanish while they are copied
        others = shutil.ignore_patterns(".git", ".venv", "_build", ".hypothesis", "__pycache__", "dist", "*.egg-info")
        shutil.copytree(ROOT, tree, ignore=others)
        try:
            engine = EngineBuild(tree) if any(is_of_engine(mutant.path) for mutant in mutants) else None
            skipped = {t: unfit(tree, (t,)) for t in sorted({test for mutant in mutants for test in mutant.tests})}
        except (OSError, ValueError) as error:
            print(f"mutate: {error}", file=sys.stderr)
            return 2
        for mutant in mutants:
            tests = tuple(test for test in mutant.tests if not skipped[test])
            if not tests:
                left_out += 1
                print(f"LEFT OUT  {mutant.path}: {mutant.rule}  ({mutant.tests[0]}: {skipped[mutant.tests[0]]})")
                continue
            with changed(tree, mutant, engine):
                by, undecided = tried_validly(tree, tests)
            if undecided:
                left_out += 1
                print(f"LEFT OUT  {mutant.path}: {mutant.rule}  ({undecided})", flush=True)
                continue
            survivors += not by
            name = by.partition(" - ")[0] or "by nobody"
            print(f"{'killed' if by else 'ALIVE '}  {mutant.path}: {mutant.rule}  ({name})", flush=True)
    done = len(mutants) - left_out
    print(f"{done - survivors} of {done} killed in {time.monotonic() - start:.0f} s")
    return 1 if survivors else 0 if done else 2
