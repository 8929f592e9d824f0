"""Runs of equal packets, in C: made in one go as they are made one by one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rnic.engine import header

CC = shutil.which(os.environ.get("CC", "cc"))
ENGINE = header.PATH.parent
SOURCES = ("frames.c", "icrc.c", "crc32.c", "memory.c")


@pytest.mark.slow
@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_a_run_has_the_bytes_of_its_packets(tmp_path: Path) -> None:
    """Over idents, bursts, path MTUs and PSNs, with kept ICRC states and without; and nothing is left of one that fails."""
    assert CC is not None
    program = tmp_path / "runs"
    flags = ["-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", f"-I{ENGINE}"]
    sources = [Path(__file__).with_name("runs.c"), *(ENGINE / name for name in SOURCES)]
    subprocess.run([CC, *flags, *map(str, sources), "-o", str(program)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=60)
    found = re.fullmatch(r"(\d+) of (\d+), 0 0 0\n", said.stdout)
    assert found and not said.stderr, said.stdout + said.stderr
    assert int(found[1]) > 0.6 * int(found[2])
