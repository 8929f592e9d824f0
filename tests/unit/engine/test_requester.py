"""Middles of a message, in C: made a burst at a time as they are made one by one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

CALLED = (
    "queue_pair/encap.c",
    "queue_pair/icrc.c",
    "queue_pair/crc32.c",
    "memory/memory_key.c",
    "memory/guarded.c",
    "memory/own_process.c",
    "memory/fault_guard.c",
    "queue_pair/sge.c",
)
NOTHING_ELSE = ("-no-pie", "-Wl,--unresolved-symbols=ignore-all")
"""What send.c calls for others is not called here."""


@pytest.mark.slow
def test_a_run_has_the_bytes_of_its_packets(c_program: Callable[..., Path]) -> None:
    """Over memory, idents, bursts, path MTUs and PSNs; where a page is gone both stop at the same packet."""
    program = c_program("runs.c", *CALLED, *NOTHING_ELSE, "-fsanitize=undefined")
    said = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, said.stderr) == (0, ""), said.stdout + said.stderr
    packets, gone = map(int, said.stdout.split())
    assert packets > 50_000
    assert gone > 200
