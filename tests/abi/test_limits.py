"""As much as the limits promise, with as few descriptors as `ulimit -n` leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rnic.device.config import NicConfig
from rnic.nic_process.client_memory import MAX_SHARES
from rnic.testing import own_network

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""

pytestmark = pytest.mark.slow
ADDRESS = f"{NET}.121"
FEW_DESCRIPTORS = 1024


def run(many: Path, env: dict[str, str], *words: str) -> None:
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", ADDRESS, "--udp-port", "0", "--", str(many), *words]
    limited = ["sh", "-c", f'ulimit -n {FEW_DESCRIPTORS} && exec "$@"', "sh", *command]
    done = subprocess.run(limited, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_queue_pairs_need_no_descriptors(many: Path, env: dict[str, str]) -> None:
    """More rings than a context may share files, and more queue pairs than both sides may have descriptors."""
    run(many, env, str(MAX_SHARES // 2 + 2))


@pytest.mark.full
def test_a_program_has_every_queue_pair(many: Path, env: dict[str, str]) -> None:
    """All 8,192 of one device in one C program, each connected and at work."""
    queue_pairs = 1 << NicConfig(bytes((127, 0, 73, 1))).log_max_qps
    assert queue_pairs == 8192
    run(many, env, str(queue_pairs), "all")
