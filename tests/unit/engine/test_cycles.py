"""The engine's C files use each other in one direction only, and so do its folders."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

import rnic.engine
from rnic.abi.build import find_compiler
from tests.c_graph import Uses, compile_objects, dependencies, find_cycle

ENGINE = Path(rnic.engine.__file__).parent
FOLDERS = ("memory", "queue_pair", "device", "io", "bypass")
"""Each uses only those before it."""


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> Uses:
    """What the engine's files use of each other."""
    compiler = find_compiler()
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler (cc)")
    flags = ("-std=gnu11", f"-I{ENGINE}")
    out = tmp_path_factory.mktemp("objects")
    return dependencies(compile_objects(shlex.split(compiler), flags, sorted(ENGINE.glob("*/*.c")), out))


@pytest.mark.slow
def test_no_circle_among_the_engine_s_files(uses: Uses) -> None:
    assert len(uses) > 20
    assert not find_cycle(uses)


@pytest.mark.slow
def test_folders_use_those_below_them(uses: Uses) -> None:
    up = [
        f"{file} uses {', '.join(symbols)} of {used}"
        for file, of in uses.items()
        for used, symbols in of.items()
        if FOLDERS.index(Path(file).parts[0]) < FOLDERS.index(Path(used).parts[0])
    ]
    assert up == []


def test_each_file_includes_its_own_header_first() -> None:
    for source in (*ENGINE.glob("queue_pair/*.c"), *ENGINE.glob("memory/*.c")):
        if source.with_suffix(".h").exists():
            first = next(line for line in source.read_text().splitlines() if line.startswith("#include"))
            assert first == f'#include "{source.parent.name}/{source.stem}.h"', source.name
