"""The engine's C alone, under AddressSanitizer and UBSan, against hostile memory and packets."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rnic.engine import header

HERE = Path(__file__).parent
CC = shutil.which(os.environ.get("CC", "cc"))
WARN = ("-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror")
SANITIZE = (*WARN, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SOURCES = sorted(path for path in header.PATH.parent.glob("*.c") if not path.name.startswith("_"))


@pytest.mark.slow
@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_hostile_memory_and_packets_under_sanitizers(tmp_path: Path) -> None:
    assert CC is not None
    program = tmp_path / "hostile"
    empty = b"int main(void){return 0;}"
    probe = subprocess.run([CC, *SANITIZE, "-xc", "-", "-o", str(program)], input=empty, check=False)
    if probe.returncode or subprocess.run([str(program)], check=False).returncode:
        pytest.skip("the compiler has no sanitizers that run here")
    own = [str(path) for path in SOURCES]
    subprocess.run([CC, *SANITIZE, str(HERE / "hostile.c"), *own, "-o", str(program)], check=True)
    for seed in (1, 2, 3):
        done = subprocess.run([str(program), str(seed), "20000"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        taken, made, answered, late, asked, placed = map(int, done.stdout.split())
        # most rounds are refused, but many must get past every check for the others to mean anything
        enough = (taken > 2_000, made > 2_000, answered > 700, late > 500, asked > 200, placed > 120)
        assert enough == (True,) * 6, done.stdout
