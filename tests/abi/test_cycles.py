"""No two C files of a library depend on each other in a circle."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rnic.abi.build import ENGINE, FLAGS, SOURCES, find_compiler
from rnic.abi.header import write_headers
from tests.c_graph import Uses, compile_objects, dependencies, find_cycle

COMPILER = find_compiler()

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


def uses(sources: list[Path], out: Path) -> Uses:
    """What the files use of each other."""
    assert COMPILER is not None
    write_headers(out)
    flags = [*FLAGS, f"-I{out}", f"-I{SOURCES}", f"-I{ENGINE}"]
    return dependencies(compile_objects(shlex.split(COMPILER), flags, sources, out))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["libibverbs", "librdmacm"])
def test_the_files_of_a_library_depend_on_each_other_in_no_circle(library: str, tmp_path: Path) -> None:
    sources = sorted(path for path in SOURCES.glob("*.c") if path.name.startswith("rdmacm") == (library == "librdmacm"))
    found = uses(sources, tmp_path)
    assert any(found.values())
    assert not find_cycle(found)


def test_each_file_includes_its_own_header_first() -> None:
    for source in SOURCES.glob("*.c"):
        if source.with_suffix(".h").exists():
            first = next(line for line in source.read_text().splitlines() if line.startswith("#include"))
            assert first == f'#include "{source.stem}.h"', source.name


@pytest.mark.slow
def test_a_circle_of_files_is_reported_with_its_symbols(tmp_path: Path) -> None:
    texts = {
        "one.c": "int two(void);\nint one(void);\nint one(void) { return two(); }\n",
        "two.c": "int three(void);\nint two(void);\nint two(void) { return three(); }\n",
        "three.c": "int one(void);\nint three(void);\nint three(void) { return one(); }\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = find_cycle(uses([tmp_path / name for name in texts], tmp_path))
    here = tmp_path.name
    for user, symbol, used in (("one", "two", "two"), ("two", "three", "three"), ("three", "one", "one")):
        assert f"{here}/{user}.c uses {symbol} of {here}/{used}.c" in found
    (tmp_path / "three.c").write_text("int three(void);\nint three(void) { return 3; }\n")
    assert find_cycle(uses([tmp_path / name for name in texts], tmp_path)) == ""
