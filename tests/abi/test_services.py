"""Services that few programs use (FLUSH, ATOMIC WRITE, device memory), by a C program against the system's headers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.abi.build import find_compiler
from rnic.testing import own_network

SOURCE = Path(__file__).with_name("services.c")
NAMES = re.findall(r"\bROW\((\w+)\),", SOURCE.read_text(encoding="utf-8"))
ADDRESS = f"{own_network()}.69"


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with all functions."""
    compiler = find_compiler()
    assert compiler is not None
    out = tmp_path_factory.mktemp("services") / "services"
    flags = ["-Wall", "-Wextra", "-Werror", "-g", "-O1"]
    subprocess.run([compiler, *flags, str(SOURCE), str(libraries / "libibverbs.so.1"), "-o", str(out)], check=True)
    return out


@pytest.mark.slow
def test_the_services(program: Path, mode: dict[str, str]) -> None:
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", ADDRESS, "--", str(program), *NAMES]
    done = subprocess.run(command, env=mode, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, NAMES), done.stderr
