"""``rnic exec`` starts the NIC process beside the program, and does not wait for it unless it has to."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rnic.spec.attach import LOCK_NAME, SOCKET_NAME
from rnic.testing import own_network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
EXEC = (sys.executable, "-m", "rnic.cli", "exec", "--addr", f"{own_network()}.198")
LATE = """
import os, sys, time
if "--handed" in sys.orig_argv:
    while not os.path.exists(os.environ["NIC_MAY_START"]):
        time.sleep(0.01)
"""
"""Loaded by each Python: a NIC process waits for a file before it does anything."""


@pytest.fixture
def late(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Environment in which a NIC process starts once the file ``go`` is there."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "sitecustomize.py").write_text(LATE)
    paths = [str(tmp_path / "late"), *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(paths), "NIC_MAY_START": str(tmp_path / "go")}


def test_a_program_that_opens_no_device_waits_for_nothing(late: dict[str, str], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    command = [*EXEC, "--", "sh", "-c", "echo run; exit 7"]
    done = subprocess.run(
        command, env=late, capture_output=True, text=True, timeout=60, check=False, pass_fds=(writing,)
    )
    os.close(writing)
    ended, _, _ = select.select([reading], [], [], 30)
    os.close(reading)
    (tmp_path / "go").touch()
    assert ended, "the NIC process keeps no pipe of the program's open"
    assert (done.stdout, done.stderr, done.returncode) == ("run\n", "", 7)


def test_programs_of_devices_and_of_their_paths_wait_until_it_is_there(late: dict[str, str], tmp_path: Path) -> None:
    script = (
        "echo begun; ls /sys/class/infiniband; cat /sys/class/infiniband/*/ports/1/state;"
        "readlink -f /sys/class/infiniband/rnic0; ls /sys/class/infiniband/"
    )
    verbs = (
        "import ctypes; v = ctypes.CDLL('libibverbs.so.1'); n = ctypes.c_int(); print('begun', flush=True);"
        "v.ibv_get_device_list(ctypes.byref(n)); print(n.value)"
    )
    commands = ("sh", "-c", script), (sys.executable, "-c", verbs)
    programs = []
    for command in commands:
        program = subprocess.Popen([*EXEC, "--", *command], env=late, stdout=subprocess.PIPE, text=True)
        programs.append(program)
        if len(programs) == 1:  # the second finds the NIC process of the first starting, and waits for its answer
            assert program.stdout is not None
            assert program.stdout.readline() == "begun\n"
    assert (Path(late["RNIC_RUNTIME_DIR"]) / SOCKET_NAME).exists()
    assert [program.poll() for program in programs] == [None, None]
    (tmp_path / "go").touch()
    paths, devices = (program.communicate(timeout=120)[0] for program in programs)
    assert paths == "rnic0\n4: ACTIVE\n/sys/devices/virtual/infiniband/rnic0\nrnic0\n"
    assert devices == "begun\n1\n"
    assert [program.returncode for program in programs] == [0, 0]


def test_what_can_be_refused_is_refused_before_the_program_runs(env: dict[str, str]) -> None:
    for options in (
        ("--capture", "/nowhere/at.all"),
        ("--addr", "192.0.2.1"),
        ("--congestion", "dcqcn", "--capture", "/nowhere/b"),
    ):
        done = subprocess.run(
            [*EXEC, *options, "--", "echo", "run"], env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.stdout, done.returncode) == ("", 2)
        assert done.stderr.count("\n") == 1


def test_one_that_cannot_start_is_no_obstacle_to_a_program_that_needs_none(env: dict[str, str], tmp_path: Path) -> None:
    """And one that needs it says why, in the words of the NIC process."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "sitecustomize.py").write_text(
        "import os, sys\nif '--handed' in sys.orig_argv:\n    os.write(2, b'no luck\\n'); os._exit(3)\n"
    )
    broken = {**env, "PYTHONPATH": str(tmp_path / "late")}
    done = subprocess.run(
        [*EXEC, "--", "echo", "run"], env=broken, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "run\n"
    code = "import ctypes; print(ctypes.CDLL('libibverbs.so.1').ibv_get_device_list(None))"
    done = subprocess.run(
        [*EXEC, "--", sys.executable, "-c", code], env=broken, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "0\n"
    assert "rnic: the NIC process ended at once: no luck" in done.stderr.splitlines()


def test_a_nic_process_that_nobody_needs_ends(late: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    subprocess.run([*EXEC, "--", "true"], env=late, timeout=60, check=True)
    runtime = Path(late["RNIC_RUNTIME_DIR"])
    deadline = time.monotonic() + 60
    while (runtime / SOCKET_NAME).exists() and time.monotonic() < deadline:  # waits: for its end
        time.sleep(0.05)
    assert sorted(path.name for path in runtime.iterdir()) == [LOCK_NAME, "nic.log"]
    assert (runtime / "nic.log").read_text() == ""
