"""Rounds of the engine, in C, on stubs of what they call."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.engine import header

CC = shutil.which(os.environ.get("CC", "cc"))
ENGINE = header.PATH.parent


@pytest.mark.slow
@pytest.mark.skipif(CC is None or sys.platform != "linux", reason="no C compiler, or not Linux, whose rounds they are")
def test_a_turn_that_a_nak_has_opened_is_over_with_the_round(tmp_path: Path) -> None:
    """Who takes the arena next gives turns by the same record, and would take an open one for nobody's."""
    assert CC is not None
    program = tmp_path / "round_turns"
    flags = ["-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ENGINE}"]
    source = Path(__file__).with_name("round_turns.c")
    subprocess.run([CC, *flags, str(source), str(ENGINE / "round.c"), "-o", str(program)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=30).stdout
    assert said == "stops 1, turn of 0, program 0\n"
