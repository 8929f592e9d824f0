"""What looks for processes left behind sees a living one, an orphan and a zombie, and none once they are gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rnic.testing.processes import RUN_VARIABLE, left_behind

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads Linux's /proc")
LASTING = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]


def test_living_processes_and_zombies_are_found() -> None:
    run = f"test-{os.getpid()}"
    env = {**os.environ, RUN_VARIABLE: run}
    process = subprocess.Popen(LASTING, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.read(1)
    (found,) = left_behind(run)
    assert found.startswith(f"{process.pid} ")
    assert left_behind("another run") == []
    process.stdin.close()
    end = time.monotonic() + 30
    while not any("zombie" in line for line in left_behind(run)):
        assert time.monotonic() < end
    process.wait(30)
    process.stdout.close()
    assert left_behind(run) == []
