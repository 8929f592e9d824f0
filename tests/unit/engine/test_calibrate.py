"""What the engine makes of a machine's speed, in C, by a clock of the test's own."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_slow_machine_is_found_out(c_program: Callable[..., Path]) -> None:
    """Emulators fold a CRC bit by bit, so that tables are quicker there; and programs answer later than elsewhere."""
    said = subprocess.run(
        [c_program("calibrates.c")], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    folds = platform.machine() == "x86_64" and "pclmulqdq" in Path("/proc/cpuinfo").read_text(encoding="ascii")
    assert said == ["most", "tables" if folds else "most", "1", "1", "1", "2", "9", "64"]
