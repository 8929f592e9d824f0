"""Programs that close descriptors which are not theirs: nothing of rnic is written into what they open then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rnic.abi.build import find_compiler
from rnic.testing import own_network

HERE = Path(__file__).parent
ADDRESS = f"{own_network()}.61"
"""One that no other run of these tests uses at the same time."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # the first test of a worker also compiles
SKIPPED = ["range", "from", "loop", "unshare"]
SEEN_LATER = ["raw", "dup"]
LOST = "this program has closed descriptors of"


@pytest.fixture(scope="session")
def closes(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = find_compiler()
    headers = Path("/usr/include/infiniband/verbs.h")
    if compiler is None or not headers.exists():
        pytest.skip("needs a C compiler and the headers of libibverbs")
    made = tmp_path_factory.mktemp("closes") / "closes"
    source = str(HERE / "closes.c")
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-g", source, "-o", str(made)]
    subprocess.run([*command, f"-L{libraries}", "-l:libibverbs.so.1"], check=True)
    return made


def run(mode: dict[str, str], *command: str) -> tuple[int, str, str]:
    ours = [sys.executable, "-m", "rnic.cli", "exec", "--addr", ADDRESS, "--", *command]
    done = subprocess.run(ours, env=mode, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("how", [*SKIPPED, "child", "channel"])
def test_private_descriptors_stay_open(closes: Path, mode: dict[str, str], how: str) -> None:
    assert run(mode, str(closes), how) == (0, "works\n", "")


@pytest.mark.parametrize("how", SEEN_LATER)
def test_a_device_without_descriptors_says_so(closes: Path, mode: dict[str, str], how: str) -> None:
    status, said, words = run(mode, str(closes), how)
    assert (status, said) == (0, "fatal\n")
    assert LOST in words
    assert len(words.splitlines()) == 1


@pytest.mark.parametrize("how", ["range", "loop", "child"])
def test_python_programs_keep_theirs(libraries: Path, mode: dict[str, str], how: str) -> None:
    assert run(mode, sys.executable, str(HERE / "python_closes.py"), how, ADDRESS) == (0, "works\n", "")


@pytest.mark.parametrize("how", SEEN_LATER)
def test_a_python_device_without_descriptors_says_so(libraries: Path, mode: dict[str, str], how: str) -> None:
    status, said, words = run(mode, sys.executable, str(HERE / "python_closes.py"), how, ADDRESS)
    assert (status, said) == (0, "fatal\n"), words
    assert LOST in words
