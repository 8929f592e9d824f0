"""Programs and NIC processes that die at any moment, and programs that fork, execute and are interrupted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rnic.runtime.attach import ProcessConnection, ask, connect
from rnic.spec.errors import RnicError
from rnic.testing import own_network

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""

pytestmark = pytest.mark.timeout(180)  # the first test of a worker also compiles
ROUNDS = [10, pytest.param(200, marks=[pytest.mark.full, pytest.mark.timeout(1200)])]
WELL = "all as it should be"
GONE = 3
"""Exit status of ``loop forever`` once its NIC process is gone."""
LONGEST = 20.0
"""Seconds within which a program has to notice."""


class Nic:
    """A NIC process with a device for each address, held by a connection so that it outlives its programs."""

    def __init__(
        self,
        directory: Path,
        env: dict[str, str],
        *addresses: str,
        options: Sequence[str] = (),
        first: Callable[[], None] | None = None,
    ) -> None:
        self.directory = directory
        command = [sys.executable, "-m", "rnic.cli", "serve", *options]
        for address in addresses:
            command += ["--addr", address]
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=env, stdout=null, stderr=null, preexec_fn=first)  # noqa: PLW1509
        end = time.monotonic() + LONGEST
        while not self._answers():
            assert self.process.poll() is None, f"the NIC process ended with {self.process.returncode}"
            assert time.monotonic() < end
            time.sleep(0.01)

    def _answers(self) -> ProcessConnection | None:
        try:
            connection = connect(self.directory)
        except (OSError, RnicError):
            return None
        if connection:
            connection.close()
        return connection

    def descriptors(self) -> int:
        """Open files but the sockets of slots, kept for the next; when our own connections have been dropped too."""
        kept: int = ask(self.directory, "", "slots")["sockets"]
        counts = []
        for _ in range(20):
            counts.append(len(os.listdir(f"/proc/{self.process.pid}/fd")))
            time.sleep(0.01)
        return min(counts) - kept

    def queues(self) -> int:
        """Queue blocks in use."""
        return len(ask(self.directory, "", "regs")["blocks"])

    def settled(self, before: tuple[int, int] | None = None) -> tuple[int, int]:
        """Queue blocks and files once the connections of dead programs have been dropped, or they are as before."""
        end = time.monotonic() + LONGEST
        while self.queues() and time.monotonic() < end:
            time.sleep(0.01)
        while (now := (self.queues(), self.descriptors())) != before and before is not None and time.monotonic() < end:
            time.sleep(0.01)
        return now


@contextmanager
def served(
    env: dict[str, str], *addresses: str, options: Sequence[str] = (), first: Callable[[], None] | None = None
) -> Iterator[Nic]:
    nic = Nic(Path(env["RNIC_RUNTIME_DIR"]), env, *addresses, options=options, first=first)
    try:
        yield nic
    finally:
        nic.process.kill()
        nic.process.wait()


def _run(program: Path, env: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [str(program), *arguments], env=env, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("rounds", ROUNDS)
def test_programs_killed_at_any_moment_leave_nothing_behind(plain: Path, mode: dict[str, str], rounds: int) -> None:
    rng = random.Random(rounds)
    with served(mode, f"{NET}.11") as nic:
        before = nic.settled()
        for number in range(rounds):
            command = [str(plain), "forever"] if number % 2 else [str(plain)]
            with subprocess.Popen(command, env=mode, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as victim:
                time.sleep(rng.random() * 0.15)
                victim.kill()
        assert WELL in _run(plain, mode)
        assert nic.settled(before) == before
        assert nic.process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("rounds", ROUNDS)
def test_programs_notice_that_their_nic_process_was_killed(plain: Path, mode: dict[str, str], rounds: int) -> None:
    rng = random.Random(rounds)
    for _ in range(rounds):
        with served(mode, f"{NET}.12") as nic:
            program = subprocess.Popen(
                [str(plain), "forever"], env=mode, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            assert program.stdout is not None
            assert program.stdout.readline() == "going on\n"
            time.sleep(rng.random() * 0.05)
            nic.process.kill()
            _, said = program.communicate(timeout=LONGEST)
            assert program.returncode == GONE, said
            assert said == f"rnic: NIC process {nic.process.pid} has gone: device rnic0 is dead\n"
    with served(mode, f"{NET}.12"):
        assert WELL in _run(plain, mode)


@pytest.mark.slow
def test_a_nic_process_that_is_told_to_end_wakes_who_sleeps(plain: Path, mode: dict[str, str]) -> None:
    with served(mode, f"{NET}.13") as nic:
        program = subprocess.Popen([str(plain), "asleep"], env=mode, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert program.stdout is not None
        assert program.stdout.readline() == b"going on\n"
        nic.process.send_signal(signal.SIGTERM)
        program.communicate(timeout=LONGEST)
        assert program.returncode == GONE


@pytest.mark.slow
def test_a_program_that_executes_itself_again_and_again(plain: Path, mode: dict[str, str]) -> None:
    with served(mode, f"{NET}.14") as nic:
        before = nic.settled()
        assert WELL in _run(plain, mode, "exec", "30")
        assert nic.settled(before) == before


@pytest.mark.slow
def test_a_program_that_is_interrupted_every_millisecond(plain: Path, mode: dict[str, str]) -> None:
    with served(mode, f"{NET}.15"):
        assert WELL in _run(plain, mode, "signals")


@pytest.mark.slow
@pytest.mark.timeout(180)  # compilers are slow with sanitizers
def test_threads_that_share_a_context(sanitized: Path, mode: dict[str, str]) -> None:
    with served(mode, f"{NET}.17") as nic:
        before = nic.settled()
        assert WELL in _run(sanitized, mode, "threads")
        assert nic.settled(before) == before


@pytest.mark.slow
@pytest.mark.parametrize("way", ["mem", "copy"])
def test_both_ways_to_reach_a_programs_memory(plain: Path, mode: dict[str, str], way: str) -> None:
    with served(mode, f"{NET}.16"):
        assert WELL in _run(plain, {**mode, "RNIC_DMA": way})
