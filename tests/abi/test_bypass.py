"""Programs that run the engine themselves, on slots of a device: what both sides count, stops, falls back to."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rnic.runtime.attach import ask, fault
from tests.abi.test_kills import LONGEST, WELL, Nic, served

pytestmark = pytest.mark.timeout(180)  # the compiler's time counts for whoever comes first
STOPS = [6, pytest.param(50, marks=[pytest.mark.full, pytest.mark.timeout(300)])]


@pytest.fixture
def bypass(env: dict[str, str]) -> dict[str, str]:
    """Environment of programs that ask for slots."""
    return {**env, "RNIC_BYPASS": "1"}


@contextmanager
def going_on(plain: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """``loop forever``, which checks what it sends itself."""
    command = [str(plain), "forever"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "going on\n"
            yield program
        finally:
            program.kill()


def slots(nic: Nic) -> dict[str, Any]:
    seen: dict[str, Any] = ask(nic.directory, "rnic0", "slots")
    return seen


def packets(nic: Nic) -> int:
    return sum(slot["counters"].get("rx_packets", 0) for slot in slots(nic)["slots"])


def moves(nic: Nic) -> bool:
    """Whether packets are taken in slots."""
    before, end = packets(nic), time.monotonic() + LONGEST
    while time.monotonic() < end:
        if packets(nic) > before:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.slow
def test_the_program_takes_its_packets_itself(plain: Path, bypass: dict[str, str]) -> None:
    """Its slot's packets are not the NIC process's, and the device's counters are of both together."""
    with served(bypass, "127.0.71.31") as nic, going_on(plain, bypass) as program:
        assert moves(nic)
        (slot,) = slots(nic)["slots"]
        assert slot["pid"] == program.pid
        assert not slot["served"]
        seen = ask(nic.directory, "rnic0", "counters")
        assert seen["slot_0_rx_packets"] == 0
        assert seen["slot_1_rx_packets"] > 0
        assert seen["rx_packets"] >= seen["slot_1_rx_packets"]
        # the first packets of a sender are the reference's, whatever follows
        assert seen["punt_unknown"] > 0
        assert all(qp["qpn"] >= slot["first_qpn"] for qp in ask(nic.directory, "rnic0", "top")["qps"])
        program.kill()
        program.wait()
        nic.settled()
        assert slots(nic)["slots"] == []


@pytest.mark.slow
@pytest.mark.parametrize("stops", STOPS)
def test_a_program_that_is_stopped_again_and_again(plain: Path, bypass: dict[str, str], stops: int) -> None:
    """At any moment, its engine's lock taken or not: nothing it sent itself is lost or doubled, and others go on."""
    rng = random.Random(stops)
    with served(bypass, "127.0.71.32") as nic, going_on(plain, bypass) as program, going_on(plain, bypass) as other:
        for _ in range(stops):
            time.sleep(rng.random() * 0.03)
            program.send_signal(signal.SIGSTOP)
            time.sleep(rng.random() * 0.08)
            program.send_signal(signal.SIGCONT)
        assert program.poll() is None
        assert other.poll() is None
        assert moves(nic)


@pytest.mark.slow
def test_who_watches_sees_every_packet(plain: Path, bypass: dict[str, str]) -> None:
    """An event on command has the NIC process take the slot's packets from then on; the program does not notice."""
    with served(bypass, "127.0.71.33") as nic, going_on(plain, bypass) as program:
        assert moves(nic)
        fault(nic.directory, "rnic0", [])
        (slot,) = slots(nic)["slots"]
        assert slot["served"]
        assert moves(nic)
        assert program.poll() is None
        assert "NIC process takes them" in slots(nic)["refused"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "options", "why"),
    [("127.0.71.34", ["--faults", "[]"], "--faults"), ("127.0.71.36", ["--congestion", "limit"], "congestion")],
)
def test_devices_that_take_the_other_way(
    plain: Path, env: dict[str, str], address: str, options: list[str], why: str
) -> None:
    """The program works as without ``--bypass``, and the device says why."""
    command = [sys.executable, "-m", "rnic.cli", "exec", "--bypass", "--addr", address, *options, "--"]
    with subprocess.Popen(
        [*command, str(plain), "forever"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "going on\n"
            seen = ask(Path(env["RNIC_RUNTIME_DIR"]), "rnic0", "slots")
            assert seen["slots"] == []
            assert why in seen["refused"]
        finally:
            program.kill()


@pytest.mark.slow
def test_slots_are_used_again(plain: Path, bypass: dict[str, str]) -> None:
    """One program after another on the same socket, with other numbers, and nothing is left of the last."""
    with served(bypass, "127.0.71.35") as nic:
        firsts = set()
        for _ in range(3):
            with going_on(plain, bypass) as program:
                assert moves(nic)
                (slot,) = slots(nic)["slots"]
                firsts.add(slot["first_qpn"])
                program.kill()
                program.wait()
            nic.settled()
        assert len(firsts) == 3
        assert slots(nic)["sockets"] == 1
        done = subprocess.run([str(plain)], env=bypass, capture_output=True, text=True, check=True)
        assert WELL in done.stdout
        assert os.listdir(f"/proc/{nic.process.pid}/fd")
