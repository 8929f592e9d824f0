"""Looks of a progress thread at programs that poll, on a clock of the test's own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_looks_become_rare_while_the_program_polls(c_program: Callable[..., Path]) -> None:
    """A look loads one word: the stubs give no clock, and no lock. Here it never changes while it is looked at."""
    program = c_program("lookout.c", "io/lookout.c")
    said = subprocess.run([program], capture_output=True, text=True, check=True, timeout=120).stdout
    found = {name: line.split() for name, line in (line.split(":") for line in said.splitlines())}
    growing = [word for sleep in ("160", "320", "640", "1280") for word in (sleep, "100")]
    assert found["polls"] == ["40", "80", *growing, *["1900", "100"] * 11, "polled"]
    # it polls no more when it is looked at: a second look follows, since the thread may have been given its core
    assert found["stops"] == ["40", "80", "160", "100", "320", "100", "quiet"]
    assert found["polls seldom"] == ["40", "100", "quiet"]
    assert found["is woken"] == ["40", "80", "160", "100", "320", "woken"]
    # one that left packets before is looked at as often as at first for a while, and believed at once
    assert found["left packets, and polls"] == [*["40"] * 32, "polled"]
    assert found["left packets, and stops"] == ["40", "40", "40", "quiet"]
    assert found["said that it stops"] == ["40", "100", "quiet"]
