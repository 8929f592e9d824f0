"""What the engine makes of a machine's speed, in C, by a clock of the test's own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.engine import header

CC = shutil.which(os.environ.get("CC", "cc"))


@pytest.mark.slow
@pytest.mark.skipif(CC is None or sys.platform != "linux", reason="no C compiler, or not Linux, whose socket it is")
def test_a_slow_machine_is_found_out(tmp_path: Path) -> None:
    """Emulators fold a CRC bit by bit, so that tables are quicker there; and programs answer later than elsewhere."""
    assert CC is not None
    program = tmp_path / "speeds"
    flags = ["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{header.PATH.parent}"]
    subprocess.run([CC, *flags, str(Path(__file__).with_name("speeds.c")), "-o", str(program)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=30).stdout.split()
    folds = platform.machine() == "x86_64" and "pclmulqdq" in Path("/proc/cpuinfo").read_text(encoding="ascii")
    assert said == ["most", "tables" if folds else "most", "1", "1", "1", "2", "9", "64"]
