"""What the kernel's objects promise, by a C program against the system's own headers; docs/kernel.md lists the rows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.abi.build import find_compiler
from rnic.testing import own_network

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("kernel.c")
NAMES = re.findall(r'\{ "(\w+)", \1 \}', SOURCE.read_text(encoding="utf-8"))
NAMED = re.compile(r"`(?P<path>tests/[\w/]+\.(py|c))::(?P<name>\w+)`")
FUNCTION = {".py": r"^def {name}\(", ".c": r"^static \w+ {name}\("}
"""How a function that is a test is defined."""
ADDRESS = f"{own_network()}.68"


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with all rows."""
    if not Path("/usr/include/rdma/rdma_cma.h").exists():
        pytest.skip("librdmacm-dev is not installed")
    compiler = find_compiler()
    assert compiler is not None
    out = tmp_path_factory.mktemp("kernel") / "kernel"
    linked = [str(libraries / name) for name in ("librdmacm.so.1", "libibverbs.so.1")]
    flags = ["-Wall", "-Wextra", "-Werror", "-g", "-O1"]
    subprocess.run([compiler, *flags, str(SOURCE), *linked, "-o", str(out)], check=True)
    return out


@pytest.mark.slow
def test_the_rows(program: Path, mode: dict[str, str]) -> None:
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", ADDRESS, "--", str(program), ADDRESS, *NAMES]
    done = subprocess.run(command, env=mode, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == NAMES


def test_each_row_of_the_page_has_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "kernel.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| what |")]
    assert len(rows) > 30
    held = {row: row.split("|")[-2].strip() for row in rows}
    named = [NAMED.fullmatch(test) for test in held.values() if test != "not tested"]
    assert None not in named, [row for row, test in held.items() if test != "not tested" and not NAMED.fullmatch(test)]
    found = [(match["path"], match["name"]) for match in named if match is not None]
    for path, name in found:
        defined = FUNCTION[Path(path).suffix].format(name=name)
        assert re.search(defined, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), f"{path} has no {name}()"
    assert {name for path, name in found if path == "tests/abi/kernel.c"} == set(NAMES)
