"""Rounds of the engine, in C, on stubs of what they call."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_turn_that_a_nak_has_opened_is_over_with_the_round(c_program: Callable[..., Path]) -> None:
    """Who takes the arena next gives turns by the same record, and would take an open one for nobody's."""
    program = c_program("poll_turns.c", "io/poll.c")
    said = subprocess.run([program], capture_output=True, text=True, check=True, timeout=120).stdout
    assert said.splitlines()[0] == "stops 1, turn of 0, program 0"


@pytest.mark.slow
def test_a_socket_by_which_nothing_comes_is_looked_at_the_less_often(c_program: Callable[..., Path]) -> None:
    """In the seventh look something is found; in the last four rounds take long."""
    program = c_program("poll_turns.c", "io/poll.c")
    said = subprocess.run([program], capture_output=True, text=True, check=True, timeout=120).stdout
    rounds = [int(word) for word in said.splitlines()[1].split()]
    assert rounds[2:7] == [32, 64, 64, 64, 64]
    assert rounds[7:12] == [8, 16, 32, 64, 64]
    assert rounds[12:] == [8, 8, 8, 8]
