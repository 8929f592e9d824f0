"""Middles of a message, in C: made a burst at a time as they are made one by one."""

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
CALLED = ("frames.c", "icrc.c", "crc32.c", "memory.c", "memory_guarded.c", "memory_own.c", "guard.c", "source.c")


@pytest.mark.slow
@pytest.mark.skipif(CC is None or sys.platform != "linux", reason="no C compiler, or not Linux, whose faults they are")
def test_a_run_has_the_bytes_of_its_packets(tmp_path: Path) -> None:
    """Over memory, idents, bursts, path MTUs and PSNs; where a page is gone both stop at the same packet."""
    assert CC is not None
    program = tmp_path / "runs"
    flags = ["-g", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", f"-I{ENGINE}"]
    flags += [
        "-pthread",
        "-no-pie",
        "-Wl,--unresolved-symbols=ignore-all",
    ]  # what send.c calls for others is not called here
    sources = [Path(__file__).with_name("runs.c"), *(ENGINE / name for name in CALLED)]
    subprocess.run([CC, *flags, *map(str, sources), "-o", str(program)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, said.stderr) == (0, ""), said.stdout + said.stderr
    packets, gone = map(int, said.stdout.split())
    assert packets > 50_000
    assert gone > 200
