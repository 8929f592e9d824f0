"""Other people's programs while a port flaps or a path is gone: as docs/fault.md says, by its own example."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rnic.testing import own_network

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
RNIC = [sys.executable, "-m", "rnic.cli"]
UCX = {"UCX_RC_TIMEOUT": "20ms"}
NET = own_network()


def rule() -> str:
    """The fault script of the page's example."""
    page = (ROOT / "docs" / "fault.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"--faults '(.*)' &$", page, re.MULTILINE)
    return str(found)


def missing(*programs: str) -> pytest.MarkDecorator:
    absent = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")


@contextmanager
def devices(env: dict[str, str], faults: str, *last: int) -> Iterator[list[str]]:
    """A NIC process whose devices follow a fault script, and the options of a program on them."""
    options = [word for number in last for word in ("--addr", f"{NET}.{number}")]
    process = subprocess.Popen([*RNIC, "serve", *options, "--faults", faults], env=env, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while subprocess.run([*RNIC, "fault", "rnic0"], env=env, capture_output=True, check=False).returncode:
            assert time.monotonic() < end
        yield options
    finally:
        process.terminate()
        process.wait(10)


def counters(env: dict[str, str], device: str) -> dict[str, int]:
    done = subprocess.run([*RNIC, "counters", "-d", device, "--json"], env=env, capture_output=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def assert_hit_in_the_middle(env: dict[str, str]) -> None:
    both = [counters(env, device) for device in ("rnic0", "rnic1")]
    for each in both:
        assert each["fault_event_port_down"] == 1
        assert each["rx_packets"] + each["tx_packets"] > 200, "and others went on behind it"
    assert sum(each["fault_port_down"] for each in both) > 0, "the flaps took packets"
    assert sum(each.get("ack_timeouts", 0) for each in both) > 0
    assert sum(each.get("retries_exceeded", 0) for each in both) == 0


@missing("ucx_perftest")
def test_ucx_perftest_lives_through_a_flap(env: dict[str, str]) -> None:
    env = {**env, **UCX, "UCX_TLS": "rc_v"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with devices(env, rule(), 41, 42) as options:
        perftest = [*RNIC, "exec", *options[:2], "--", "stdbuf", "-o0", "ucx_perftest", "-p", port]
        pipes = {"env": env, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        server = subprocess.Popen(perftest, **pipes)  # type: ignore[call-overload]
        try:
            assert "Waiting for connection" in server.stdout.readline()
            what = ["-t", "tag_bw", "-n", "100", "-w", "10", "-s", "65536", "-f", "127.0.0.1"]
            client = [*RNIC, "exec", *options[2:], "--", "ucx_perftest", "-p", port, *what]
            done = subprocess.run(client, timeout=120, check=False, **pipes)  # type: ignore[call-overload]
            said, _ = server.communicate(timeout=120)
        finally:
            server.kill()
            server.communicate()
        assert (done.returncode, server.returncode) == (0, 0), done.stdout + said
        assert_hit_in_the_middle(env)


@missing("mpirun.mpich", "mpicc.mpich")
def test_mpi_over_ucx_lives_through_a_flap_with_its_data_right(env: dict[str, str], tmp_path: Path) -> None:
    env = {**env, **UCX, "UCX_TLS": "rc_v,ud_v,self"}
    program = tmp_path / "mpi_check"
    subprocess.run(["mpicc.mpich", ROOT / "programs" / "mpi_check.c", "-o", program], check=True)
    with devices(env, rule(), 43, 44) as options:
        command = [*RNIC, "exec", *options, "--", "mpirun.mpich", "-np", "2", str(program)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=40, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "data right" in done.stdout
        assert_hit_in_the_middle(env)


@pytest.mark.skipif(
    importlib.util.find_spec("mooncake") is None,
    reason="not installed: pip install mooncake-transfer-engine-non-cuda",
)
def test_mooncake_lives_through_a_lost_path_with_its_data_right(env: dict[str, str]) -> None:
    lost = {"match": {"opcode": "RC_WRITE*"}, "nth": 100, "action": "path-loss", "peer": f"{NET}.45", "for": "200ms"}
    with devices(env, json.dumps([lost]), 45, 46) as options:
        command = [*RNIC, "exec", *options, "--", sys.executable, str(ROOT / "programs" / "pypi_mooncake.py")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=40, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "data right" in done.stdout
        target = counters(env, "rnic1")
        assert target["fault_event_path_loss"] == 1
        assert target["fault_path_loss"] > 0
