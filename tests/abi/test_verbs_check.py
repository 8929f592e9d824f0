"""What programs seldom ask of libibverbs, by a C program against rdma-core's own header, in both modes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rnic.abi.build import find_compiler
from rnic.testing import own_network

SOURCE = Path(__file__).resolve().parents[2] / "programs" / "verbs_check.c"


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built as a stranger would."""
    if not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("libibverbs-dev is not installed")
    compiler = find_compiler()
    assert compiler is not None
    out = tmp_path_factory.mktemp("verbs") / "verbs_check"
    flags = ["-Wall", "-Wextra", "-Werror", "-g", "-O1"]
    subprocess.run([compiler, *flags, str(SOURCE), str(libraries / "libibverbs.so.1"), "-o", str(out)], check=True)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("what", ["timestamps", "null_mr", "groups", "dmabuf"])
def test_what_programs_seldom_ask_for(program: Path, mode: dict[str, str], what: str) -> None:
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", f"{own_network()}.61", "--", str(program), what]
    done = subprocess.run(command, env=mode, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
