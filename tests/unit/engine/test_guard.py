"""Faults in copies under guard, and what becomes of all others."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rnic.engine


@pytest.fixture(scope="session")
def signals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``guard_signals.c``, compiled."""
    if sys.platform != "linux":
        pytest.skip("guards are Linux's")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) here")
    sources, program = Path(rnic.engine.__file__).parent, tmp_path_factory.mktemp("guard") / "signals"
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-Werror", "-I", sources, "-o", program, "-pthread"]
    command += [Path(__file__).with_name("guard_signals.c"), sources / "guard.c", sources / "crc32.c"]
    subprocess.run([str(part) for part in command], check=True)
    return program


def test_a_program_s_handlers_have_its_own_faults_and_no_others(signals: Path) -> None:
    """Those that it had, those that it installs later, and those that they hand on to, again and again."""
    ended = subprocess.run([str(signals)], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "all\n")


@pytest.mark.parametrize("how", ["fault", "raise"])
def test_without_a_handler_a_program_ends_as_ever(signals: Path, how: str) -> None:
    ended = subprocess.run([str(signals), how], check=False, capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGSEGV
