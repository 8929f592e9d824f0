"""Faults in copies under guard, and what becomes of all others."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def signals(c_program: Callable[..., Path]) -> Path:
    """``guard_signals.c``, compiled."""
    return c_program("guard_signals.c", "memory/fault_guard.c", "-O2")


def test_a_program_s_handlers_have_its_own_faults_and_no_others(signals: Path) -> None:
    """Those that it had, those that it installs later, and those that they hand on to, again and again."""
    ended = subprocess.run([str(signals)], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "all\n")


@pytest.mark.parametrize("how", ["fault", "raise"])
def test_without_a_handler_a_program_ends_as_ever(signals: Path, how: str) -> None:
    ended = subprocess.run([str(signals), how], check=False, capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGSEGV
