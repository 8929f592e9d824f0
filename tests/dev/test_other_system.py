"""What needs no Linux works where Linux's modules, flags and calls are missing (``tests/other_system.py``)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "tests" / "other_system.py"
ROOMS = (
    "spec",
    "wire",
    "state",
    "context",
    "cc",
    "transport",
    "device",
    "judge",
    "sim",
    "testing",
    "conform",
    "rclink",
)
IMPORTS = f"""
import hypothesis, pytest, sys
sys.path.insert(0, {str(STUB.parent)!r})
import other_system
other_system.hide()
import fcntl_is_absent
"""
TESTED = (
    *("tests/unit/judge", "tests/unit/wire", "tests/unit/transport", "tests/unit/sim", "tests/unit/cc"),
    *("tests/scripts", "tests/netsim/test_judge.py", "tests/cli/test_decode.py"),
)
"""Tests that the macOS and Windows jobs of the workflow run."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RNIC_"))}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=1200
    )


def test_rooms_are_imported() -> None:
    code = IMPORTS.replace("import fcntl_is_absent", "\n".join(f"import rnic.{room}" for room in ROOMS))
    done = run("-c", code + "\nimport rnic.cli.check, rnic.cli.decode, rnic.cli.sim")
    assert (done.returncode, done.stderr) == (0, "")


def test_linux_is_hidden() -> None:
    """The stand-in does what it says."""
    absent = "import mmap, os, select, socket\nassert sys.platform == 'other'\n"
    absent += "for owner, name in ((mmap, 'MAP_SHARED'), (os, 'fork'), (select, 'epoll'), (socket, 'MSG_DONTWAIT')):\n"
    absent += "    assert not hasattr(owner, name), name\nimport fcntl"
    done = run("-c", IMPORTS.replace("import fcntl_is_absent", absent))
    assert "No module named 'fcntl' on this system" in done.stderr


def test_a_few_of_their_tests_pass() -> None:
    done = run(
        str(STUB), "-q", "-m", "not slow", "tests/unit/judge/test_connections.py", "tests/unit/sim/test_agenda.py"
    )
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout[-2000:]
    assert done.returncode == 0


@pytest.mark.full
@pytest.mark.timeout(1300)
def test_all_of_their_tests_pass() -> None:
    done = run(str(STUB), "-q", "-m", "not slow", *TESTED)
    assert done.returncode == 0, done.stdout[-4000:]
    found = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert found is not None
    assert int(found[1]) > 2000


def test_the_workflow_runs_them() -> None:
    text = (ROOT / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8")
    job = text.partition("\n  other-systems:")[2]
    assert all(f" {each}" in job for each in TESTED)
