"""Rounds of the engine, in C, on stubs of what they call."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_turn_that_a_nak_has_opened_is_over_with_the_round(c_program: Callable[..., Path]) -> None:
    """Who takes the arena next gives turns by the same record, and would take an open one for nobody's."""
    program = c_program("round_turns.c", "round.c")
    said = subprocess.run([program], capture_output=True, text=True, check=True, timeout=30).stdout
    assert said == "stops 1, turn of 0, program 0\n"
