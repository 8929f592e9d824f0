"""Names that files take from ``rnic`` are there, also where other packages are not; the engine needs no higher room."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "docs", "examples", "interop", "programs", "src", "tests")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "_build" not in path.parts)


def place(module: str) -> Path | None:
    """The file of one of our modules, a package's ``__init__`` included; None where it is compiled or not there."""
    path = ROOT / "src" / Path(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def names(file: Path) -> frozenset[str] | None:
    """What a module binds at its top level, whatever the branch; None where it makes names as it runs."""
    found: set[str] = set()

    def walk(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            else:
                found.update(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
                found.update(
                    name.asname or name.name.split(".")[0]
                    for part in ast.walk(node)
                    if isinstance(part, ast.Import | ast.ImportFrom)
                    for name in part.names
                )
                for part in ("body", "orelse", "finalbody"):
                    walk(getattr(node, part, []))
                for handler in getattr(node, "handlers", []):
                    walk(handler.body)

    walk(ast.parse(file.read_text()).body)
    return None if {"__getattr__", "globals", "*"} & found else frozenset(found)


def missing(file: Path) -> list[str]:
    """The names that this file takes from modules of ours that have none such."""
    lost = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "rnic":
            module = str(node.module)
            source = place(module)
            there = names(source) if source else None
            if there is None:
                continue
            lost += [
                f"{node.lineno}: {module}.{name.name}"
                for name in node.names
                if name.name not in there and not place(f"{module}.{name.name}")
                if not list((ROOT / "src" / Path(*module.split("."))).glob(f"{name.name}.*"))
            ]
    return lost


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_imported_from_rnic_is_there(folder: str) -> None:
    files = [file for file in FILES if file.is_relative_to(ROOT / folder)]
    assert files
    assert {str(file.relative_to(ROOT)): lost for file in files if (lost := missing(file))} == {}


def test_a_name_that_a_module_lost_is_found(tmp_path: Path) -> None:
    file = tmp_path / "test_of_one.py"
    file.write_text("def test() -> None:\n    from rnic.context.messages import READS, WROTES\n")
    assert missing(file) == ["2: rnic.context.messages.WROTES"]


def test_the_engine_includes_its_own_files_alone() -> None:
    """Import contracts know no C and no Cython: what the fabric and the C libraries add to the engine, they keep."""
    engine = ROOT / "src" / "rnic" / "engine"
    sources = [path for path in engine.rglob("*") if path.suffix in (".c", ".h", ".pxd", ".pxi", ".pyx")]
    assert {engine / "_engine.pyx", engine / "engine.h"} <= set(sources)
    include = re.compile(r"^\s*(?:#include|include|cdef extern from) \"(?!Python.h)([^\"<]+)\"", re.MULTILINE)
    foreign = [
        f"{path.relative_to(engine)}: {name}"
        for path in sources
        for name in include.findall(path.read_text())
        if ".." in name or not ((engine / name).is_file() or (path.parent / name).is_file())
    ]
    assert foreign == []
    assert [path.name for path in sources if "rnic.sim" in path.read_text()] == []
