"""The time where the system takes long to tell it (engine/io/clock.c), in C, by a clock of the test's own."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_slow_clock_is_asked_now_and_then_and_the_time_never_goes_back(c_program: Callable[..., Path]) -> None:
    done = subprocess.run([c_program("clocks.c")], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    quick, slow = map(int, done.stdout.split())
    assert quick > 1_000_000 // 600, "a clock that is quick is asked each time"
    if platform.machine() == "x86_64":
        assert slow <= 9, "for 160 us an answer lasts"
