"""``rnic paxi`` as a stranger runs it: memory in one process, a window in another."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rnic.testing import own_network

ADDR = f"{own_network()}.75"
RNIC = [sys.executable, "-m", "rnic.cli"]


def rnic(*args: str, status: int = 0) -> str:
    """Standard output, or, where it has to fail, the one line on standard error."""
    done = subprocess.run([*RNIC, *args], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr + done.stdout
    if status and not done.stdout:
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr
    return done.stdout


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The target's process and its port."""
    command = [*RNIC, "paxi", "serve", "--addr", ADDR, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"port (\d+)$|\"port\": (\d+)", line)
            assert found is not None, line
            yield process, found[1] or found[2]
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("width", ["8", "512"])
def test_check_and_the_targets_own_digest(width: str) -> None:
    with serving("--size", "0x8001", "--windows", "1") as (target, port):
        shown = rnic("paxi", "check", ADDR, "-p", port, "-n", "150", "--width", width, "--seed", "5")
        assert shown.endswith("pass\n")
        digest = re.search(r"memory of 32769 bytes, sha256 (\w{64})", shown)
        assert digest is not None
        rest, _ = target.communicate(timeout=120)
        assert rest == f"1 window, sha256 {digest[1]}\n"
        assert target.returncode == 0


@pytest.mark.slow
def test_json_of_both_ends() -> None:
    with serving("--size", "5000", "--json") as (target, port):
        found = json.loads(rnic("paxi", "check", ADDR, "-p", port, "-n", "60", "--json"))
        assert found["passed"] is True
        assert found["reads"] + found["writes"] + found["refusals"] == 60
        assert found["counters"]["paxi_requests"] > 0
        target.send_signal(signal.SIGTERM)
        rest, _ = target.communicate(timeout=120)
        assert json.loads(rest) == {"windows": 1, "sha256": found["sha256"]}


@pytest.mark.slow
def test_write_and_read() -> None:
    with serving("--size", "4096") as (_target, port):
        place = (ADDR, "-p", port, "--base", "0x1000")
        assert rnic("paxi", "write", *place, "0x1100", "48656c6c6f2c2050415849") == "11 bytes written at 0x1100\n"
        assert rnic("paxi", "read", *place, "0x10ff", "14") == (
            "0x000010ff  00 48 65 6c 6c 6f 2c 20 50 41 58 49 00 00        .Hello, PAXI..\n"
        )
        shown = json.loads(rnic("paxi", "read", *place, "0x1100", "5", "--json"))
        assert shown == {"address": 0x1100, "data": "48656c6c6f"}
        assert "leave the window of 4096 bytes at 0x1000" in rnic("paxi", "read", *place, "0xff0", "5", status=2)


@pytest.mark.slow
def test_memory_that_is_served_for_reading() -> None:
    with serving("--size", "64", "--readonly") as (_target, port):
        said = rnic("paxi", "write", ADDR, "-p", port, "0", "ff", status=1)
        assert said.startswith("rnic paxi: write of 1 beats of 64 bytes at 0x0 of")
        assert "DECERR" in said


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("read", ADDR, "-p", "9", "0", "4"), 1, "nobody listens on"),
        (("read", ADDR, "zero", "4"), 2, "'zero' is not a whole number, such as 4096 or 0x1000"),
        (("read", ADDR, "0", "0"), 2, "0: 1 to 1048576"),
        (("write", ADDR, "0", "abc"), 2, "'abc': pairs of hexadecimal digits"),
        (("serve", "--size", "0"), 2, "0: 1 to"),
        (("check", ADDR, "--width", "48"), 2, "'48' is not one of"),
    ],
)
def test_wrong_calls_are_one_line(args: tuple[str, ...], status: int, said: str) -> None:
    assert said in rnic("paxi", *args, status=status)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("amaranth") is None, reason="no amaranth: pip install '.[gateware]'")
@pytest.mark.timeout(300)
def test_the_descriptor_engine_with_its_ddr_there() -> None:
    run = ("gateware", "run", "--count", "1", "--size", "300", "--width", "64", "--fifo-depth", "64", "--ring", "2")
    with serving("--size", "0x30001000", "--windows", "2") as (target, port):
        found = json.loads(rnic(*run, "--ddr", ADDR, "--ddr-port", port, "--json"))
        assert found["passed"] is True
        assert found["payload_bytes"] == 300
        rest, _ = target.communicate(timeout=60)
        assert rest.startswith("2 windows, sha256 ")
    with serving("--size", "4096") as (_target, port):
        said = rnic(*run, "--ddr", ADDR, "--ddr-port", port, status=2)
        assert "rnic paxi serve --size 805310464" in said
