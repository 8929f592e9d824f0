"""Programs and NIC processes that are killed or stopped at any moment, while others exchange messages.

Every message of the others is completed once, in order, at both ends (``storm.c``). In the long form 200 programs and
200 NIC processes are killed, and programs stopped 50 times; each run says what it counted.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rnic.runtime.attach import ask
from rnic.testing import own_network
from tests.abi.test_kills import Nic, served
from tests.abi.test_shm import ended
from tests.attempts import best_of

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""
BYSTANDERS = 2
GONE = 3
LONGEST = 60.0
"""Seconds within which a program has to notice that its NIC process has gone, or to be done."""
TOGETHER = 32

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FULL = [pytest.mark.full, pytest.mark.timeout(3600)]


@pytest.fixture(params=["bypass", "shm"])
def bypass(request: pytest.FixtureRequest, env: dict[str, str]) -> dict[str, str]:
    """Environment of programs that run the engine themselves, by the wire or by rings."""
    return {**env, "RNIC_BYPASS": "1", "RNIC_SHM": str(int(request.param == "shm"))}


class Pair:
    """``storm``: two programs, and what they say."""

    def __init__(self, program: Path, env: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.asks = subprocess.Popen([str(program)], env=env, stdout=pipe, stderr=pipe, text=True)
        assert self.asks.stdout is not None
        line = self.asks.stdout.readline()
        assert line, self.asks.communicate()
        self.pids = tuple(map(int, line.split()))

    def messages(self) -> int:
        """Have it end; how many messages there were, each of which both have seen once."""
        self.asks.send_signal(signal.SIGTERM)
        said, errors = self.asks.communicate(timeout=LONGEST)
        assert (self.asks.returncode, errors) == (0, ""), errors
        return int(said.split()[0])

    def kill(self) -> None:
        """Whatever state it is in."""
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.asks.communicate()
        assert ended(self.pids[1], LONGEST)


@contextmanager
def going(program: Path, env: dict[str, str], count: int) -> Iterator[list[Pair]]:
    with ExitStack() as stack:
        pairs = []
        for _ in range(count):
            pairs.append(Pair(program, env))
            stack.callback(pairs[-1].kill)
        yield pairs


def held(nic: Nic) -> dict[str, int]:
    """What the NIC process has: files by kind, mappings of memory files, threads, slots, queue blocks."""
    queues, _ = nic.settled()
    root = Path("/proc", str(nic.process.pid))
    kinds: Counter[str] = Counter()
    for fd in (root / "fd").iterdir():
        try:
            kinds[os.readlink(fd).split(":")[0].split(" ")[0]] += 1
        except OSError:
            continue  # it was closed meanwhile
    slots = ask(nic.directory, "rnic0", "slots")
    kinds["socket"] -= slots["sockets"]  # kept for the next programs
    return {
        **kinds,
        "mapped": (root / "maps").read_text().count("/memfd:rnic"),
        "threads": len(list((root / "task").iterdir())),
        "slots": len(slots["slots"]),
        "queues": queues,
    }


def settled(nic: Nic, before: dict[str, int]) -> dict[str, int]:
    """The same, once that is what it was; or what it still is."""
    end = time.monotonic() + LONGEST
    while (now := held(nic)) != before and time.monotonic() < end:
        time.sleep(0.05)
    return now


def stop_for_a_while(pid: int, rng: random.Random) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(rng.random() * 0.08)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(("kills", "stops"), [(6, 4), pytest.param(200, 50, marks=FULL)])
def test_programs_die_or_stand_still_beside_others(storm: Path, bypass: dict[str, str], kills: int, stops: int) -> None:
    """Of a pair either dies, its other one or both; who stands still is one of those that are to come to no harm."""
    rng = random.Random(kills)
    what = [0] * kills + [1] * stops
    rng.shuffle(what)
    with served(bypass, f"{NET}.71") as nic:
        before = settled(nic, held(nic))
        with going(storm, bypass, BYSTANDERS) as others:
            for stopped in what:
                if stopped:
                    stop_for_a_while(rng.choice(rng.choice(others).pids), rng)
                    continue
                victim = Pair(storm, bypass)
                time.sleep(rng.random() * 0.1)
                os.kill(rng.choice(victim.pids), signal.SIGKILL)
                time.sleep(rng.random() * 0.05)
                victim.kill()
            counted = [pair.messages() for pair in others]
            assert min(counted) > kills
        print(f"seed {kills}: {kills} killed, {stops} times stopped, messages of the others: {counted}")
        assert settled(nic, before) == before
        assert nic.process.poll() is None


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=FULL)])
def test_a_nic_process_dies_under_several(storm: Path, bypass: dict[str, str], kills: int) -> None:
    """Each program ends by itself and says why; what had been completed had been once, and in order."""
    rng = random.Random(kills)
    for _ in range(kills):
        with served(bypass, f"{NET}.72") as nic, going(storm, bypass, BYSTANDERS) as pairs:
            time.sleep(rng.random() * 0.05)
            nic.process.kill()
            for pair in pairs:
                said, errors = pair.asks.communicate(timeout=LONGEST)
                assert (pair.asks.returncode, said) == (GONE, ""), errors
                assert f"NIC process {nic.process.pid} has gone" in errors
                assert ended(pair.pids[1], LONGEST)
    print(f"seed {kills}: {kills} NIC processes killed under {2 * BYSTANDERS} programs each")


def test_many_programs_at_once(storm: Path, bypass: dict[str, str]) -> None:
    """Far more than cores: each comes along, and nothing stays."""
    with served(bypass, f"{NET}.73") as nic:
        before = settled(nic, held(nic))
        with going(storm, bypass, TOGETHER // 2) as pairs:
            assert len(ask(nic.directory, "rnic0", "slots")["slots"]) == TOGETHER
            time.sleep(2)
            counted = [pair.messages() for pair in pairs]
            assert min(counted) > 0
        print(f"{TOGETHER} programs: {sum(counted)} messages, {min(counted)} to {max(counted)} each")
        assert settled(nic, before) == before


def processor_seconds(pid: int) -> float:
    words = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def a_processor_second(pair: Pair, seconds: float) -> float:
    """Messages of a pair for each second that a processor spent on it, whoever else wanted one meanwhile."""
    time.sleep(seconds)
    spent = sum(map(processor_seconds, pair.pids))
    return pair.messages() / spent


@contextmanager
def on_two_cores() -> Iterator[None]:
    """What is started meanwhile keeps to two cores, or to as many as there are."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that never rest."""
    with ExitStack() as stack:
        for _ in range(count):
            program = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(program.kill)
        yield


def test_two_programs_on_two_cores_do_not_collapse(storm: Path, bypass: dict[str, str]) -> None:
    """Whoever waits for the other yields: beside others that never rest a message costs about what it costs alone, and
    no slice of the scheduler."""

    def cost() -> float:
        alone = a_processor_second(Pair(storm, bypass), 1.5)
        with busy(2):
            beside = a_processor_second(Pair(storm, bypass), 4)
        print(f"messages a processor second: {alone:.0f} alone, {beside:.0f} beside two that never rest")
        return alone / beside

    with on_two_cores(), served(bypass, f"{NET}.74"):
        assert best_of(3, cost, below=4, why="processor time that the machine itself takes counts as the programs'") < 4
