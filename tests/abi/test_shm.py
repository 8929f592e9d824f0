"""Loopback inside the NIC: two programs of one device whose packets go by rings, not by the wire."""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rnic import enums as e
from rnic.runtime.attach import ask, fault
from rnic.state.shm_loopback import BYTES_AT, RING_ALL
from rnic.testing import own_network
from tests.abi.test_bypass import taken_from
from tests.abi.test_kills import LONGEST, WELL, Nic, served
from tests.attempts import STANDS_STILL_MS, every_valid

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""
LEAST = 2048
"""Bytes from which on a message is not copied into packets."""
GONE = 3
"""Exit status of ``shm forever`` once one of the two has gone."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ENDS = (
    "retries exceeded\n",
    # while a program dies its NIC process answers for it, and its memory is gone already
    f"status {e.IBV_WC_REM_ACCESS_ERR}\n",
    f"status {e.IBV_WC_REM_OP_ERR}\n",
)
KILLS = [6, pytest.param(60, marks=[pytest.mark.full, pytest.mark.timeout(600)])]


@pytest.fixture
def shm(env: dict[str, str]) -> dict[str, str]:
    """Environment of programs that run the engine themselves and say nothing of rings."""
    return {**env, "RNIC_BYPASS": "1"}


def run(program: Path, env: dict[str, str], *arguments: str) -> None:
    command = [str(program), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert WELL in done.stdout
    assert "ERROR" not in done.stderr


def counters(nic: Nic) -> dict[str, int]:
    seen: dict[str, int] = ask(nic.directory, "rnic0", "counters")
    return seen


def test_data_goes_by_the_rings(both: Path, shm: dict[str, str]) -> None:
    """Every kind of message, checked at both ends; long ones without a copy, and hardly anything by the wire."""
    with served(shm, f"{NET}.51") as nic:
        run(both, shm, "data")
        nic.settled()
        seen = counters(nic)
        assert seen["shm_bytes"] > 60 << 20
        assert seen["shm_packets"] > 1000
        assert seen["shm_lost"] == 0
        # what was sent at all is more than what went by the wire, a burst of which has at most 64 packets
        assert seen["shm_wire"] * 64 < seen["tx_packets"] / 4


def test_the_bytes_of_reads_are_copied_once(both: Path, shm: dict[str, str]) -> None:
    """All those long enough; by the ring go the requests, and the responses of short ones."""
    wanted = sum(bytes_ for at in range(40) for bytes_ in lengths(at) if bytes_ >= LEAST)

    def attempt() -> None:
        before = counters(nic)
        run(both, shm, "reads")
        nic.settled()
        seen = counters(nic)
        copied, lost = (seen[name] - before.get(name, 0) for name in ("shm_bytes", "shm_lost"))
        assert (copied, lost) == (wanted, 0)

    why = "the NIC process answers, by the wire, for a program that stands still"
    with served(shm, f"{NET}.63") as nic:
        every_valid(attempt, limit_ms=STANDS_STILL_MS, why=why, but=[nic.process.pid])


def lengths(turn: int) -> list[int]:
    """Of the four READs of a turn of ``shm reads``."""
    some = (8, 100, 1024, 2047, 2048, 2049, 4097, 65536, 300001, 1 << 20)
    return [some[(turn + at) % len(some)] for at in range(4)]


@pytest.mark.parametrize("program", ["both", "both_sanitized"])
def test_a_key_that_ends_takes_its_memory_along(
    request: pytest.FixtureRequest, shm: dict[str, str], program: str
) -> None:
    """Who asks is stopped between its READ and the answer; what the memory holds afterwards never reaches it."""
    built: Path = request.getfixturevalue(program)
    with served(shm, f"{NET}.64") as nic:
        run(built, shm, "ended")
        nic.settled()
        assert counters(nic)["shm_refused"] > 0


def test_nobody_takes_part_who_did_not_ask(both: Path, shm: dict[str, str]) -> None:
    with served(shm, f"{NET}.52") as nic:
        run(both, {**shm, "RNIC_SHM": "0"}, "data")
        nic.settled()
        assert not any(name.startswith("shm") and count for name, count in counters(nic).items())


def test_two_under_sanitizers(both_sanitized: Path, shm: dict[str, str]) -> None:
    with served(shm, f"{NET}.53"):
        run(both_sanitized, shm, "data")
        run(both_sanitized, shm, "key")
        run(both_sanitized, shm, "reads")


@pytest.mark.parametrize("runs", [2, pytest.param(48, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("rings", [True, False], ids=["rings", "wire"])
def test_long_reads_beside_other_load_spend_no_retries(both: Path, shm: dict[str, str], rings: bool, runs: int) -> None:
    """A note that is refused or asked for again is no loss, and a probe for what only came late refuses none."""
    spins = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        with served(shm, f"{NET}.65") as nic:
            for _ in range(runs):
                run(both, {**shm, "RNIC_SHM": str(int(rings))}, "long reads 1")
            nic.settled()
            assert (counters(nic).get("shm_bytes", 0) > 0) == rings
    finally:
        for spin in spins:
            spin.kill()
            spin.wait()


@pytest.mark.parametrize("what", ["key", "unmapped", "unmapped there", "read here", "read there"])
def test_mistakes_end_as_on_the_wire(both: Path, shm: dict[str, str], what: str) -> None:
    """The program knows which status is right; the same without rings."""
    with served(shm, f"{NET}.54"):
        run(both, shm, what)
        run(both, {**shm, "RNIC_SHM": "0"}, what)


@contextmanager
def going_on(both: Path, env: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run ``shm forever``: the requester, and the responder's process number."""
    pipe = subprocess.PIPE
    with subprocess.Popen([str(both), "forever"], env=env, stdout=pipe, stderr=pipe, text=True) as program:
        assert program.stdout is not None
        server = 0
        try:
            asks, server = map(int, program.stdout.readline().split())
            assert asks == program.pid
            yield program, server
        finally:
            program.kill()
            if server and not ended(server, 0):
                os.kill(server, signal.SIGKILL)


def ended(pid: int, seconds: float) -> bool:
    """Whether a process that is no child of ours ends in time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def moves(nic: Nic, what: str) -> bool:
    """Whether a counter of the slots goes up."""
    before, end = counters(nic).get(what, 0), time.monotonic() + LONGEST
    while time.monotonic() < end:
        if counters(nic).get(what, 0) > before:
            return True
        time.sleep(0.01)
    return False


@contextmanager
def scribbling(server: int, rng: random.Random) -> Iterator[None]:
    """Meanwhile somebody stores nonsense into the rings of a process, records and positions alike."""
    rings = [mmap.mmap(fd, os.fstat(fd).st_size) for fd in taken_from(server, "/memfd:rnic shm")]
    assert rings
    over = threading.Event()

    def scribble() -> None:
        while not over.wait(0.0005):
            for ring in rings:
                at = rng.choice((0, RING_ALL)) + rng.choice((0, 64, 72, 80, BYTES_AT + rng.randrange(1 << 14))) & ~7
                ring[at : at + 8] = rng.choice((bytes(8), rng.randbytes(8), bytes([255] * 8)))

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for ring in rings:
            ring.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nonsense_in_the_rings(both_sanitized: Path, shm: dict[str, str], seed: int) -> None:
    """Neither end reads or stores where it may not; what they make of wrong data is not asked here."""
    rng = random.Random(seed)
    with served(shm, f"{NET}.59") as nic:
        with going_on(both_sanitized, shm) as (program, server):
            assert moves(nic, "shm_packets")
            with scribbling(nic.process.pid, rng):
                ended(server, 1.5)
            program.kill()
            assert ended(server, LONGEST)
            assert program.stderr is not None
            said = program.stderr.read()
            assert "Sanitizer" not in said
            assert "runtime error" not in said
        run(both_sanitized, shm, "data")
        assert nic.process.poll() is None


@pytest.mark.parametrize("attackers", [4, pytest.param(150, marks=[pytest.mark.full, pytest.mark.timeout(600)])])
def test_one_that_writes_nonsense_harms_no_third(attack_sanitized: Path, shm: dict[str, str], attackers: int) -> None:
    """Records, notes with wild addresses, and words that change between check and use; an honest peer goes on."""
    with served(shm, f"{NET}.66") as nic:
        command = [str(attack_sanitized), str(attackers), "100", "1"]
        done = subprocess.run(command, env=shm, capture_output=True, text=True, timeout=500, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        rounds, records, words = map(int, done.stdout.split())
        assert (rounds > 2 * attackers, records > 50 * attackers, words > 1000 * attackers) == (True,) * 3, done.stdout
        nic.settled()
        assert counters(nic)["shm_packets"] > 0
        assert nic.process.poll() is None


@pytest.mark.parametrize("kills", KILLS)
def test_either_side_is_killed(both: Path, shm: dict[str, str], kills: int) -> None:
    """The requester sees that nobody answers; the responder goes on; the next two find everything in order."""
    rng = random.Random(kills)
    with served(shm, f"{NET}.55") as nic:
        before = nic.settled()
        for number in range(kills):
            with going_on(both, shm) as (program, server):
                time.sleep(rng.random() * 0.2)
                if number % 2:
                    program.kill()
                    assert ended(server, LONGEST)
                    continue
                os.kill(server, signal.SIGKILL)
                said, errors = program.communicate(timeout=LONGEST)
                assert program.returncode == GONE, errors
                assert said in ENDS, said
        run(both, shm, "data")
        assert nic.settled(before) == before
        assert ask(nic.directory, "rnic0", "slots")["slots"] == []


def test_one_that_is_stopped_goes_on_where_it_was(both: Path, shm: dict[str, str]) -> None:
    """The NIC process answers for who is stopped, by the wire; nothing is lost, and the rings are used again."""
    rng = random.Random(5)
    with served(shm, f"{NET}.56") as nic, going_on(both, shm) as (program, server):
        for _ in range(6):
            time.sleep(rng.random() * 0.05)
            os.kill(server, signal.SIGSTOP)
            time.sleep(rng.random() * 0.1)
            os.kill(server, signal.SIGCONT)
        assert moves(nic, "shm_packets")
        assert program.poll() is None


def test_who_watches_sees_the_packets(both: Path, shm: dict[str, str]) -> None:
    """An event on command has the NIC process take both slots: from then on all goes by the wire."""
    with served(shm, f"{NET}.57") as nic, going_on(both, shm) as (program, _):
        assert moves(nic, "shm_packets")
        fault(nic.directory, "rnic0", ["path-loss", "127.0.0.99"])
        assert moves(nic, "tx_packets")
        before = counters(nic)["shm_packets"]
        assert moves(nic, "tx_packets")
        assert counters(nic)["shm_packets"] == before
        assert program.poll() is None


def test_slots_say_with_whom_they_share_rings(both: Path, shm: dict[str, str]) -> None:
    with served(shm, f"{NET}.58") as nic, going_on(both, shm) as (_, server):
        assert moves(nic, "shm_packets")
        rows: list[dict[str, Any]] = ask(nic.directory, "rnic0", "slots")["slots"]
        assert sorted(row["shm"] for row in rows) == [[1], [2]]
        assert server in {row["pid"] for row in rows}


def test_bytes_that_came_by_the_rings_are_the_queue_pair_s(both: Path, shm: dict[str, str]) -> None:
    """Those that its program fetched from the other's memory, too."""
    with served(shm, f"{NET}.60") as nic, going_on(both, shm):
        end, sent = time.monotonic() + LONGEST, 0
        while sent < 8 << 20:
            assert time.monotonic() < end
            sent = most(nic, "sent_bytes")
        came = most(nic, "came_bytes")  # asked for after that, or what was sent between two looks would be missing
        assert came > 0.8 * sent


def most(nic: Nic, name: str) -> int:
    """What the queue pair with the most of it has."""
    pairs: list[dict[str, int]] = ask(nic.directory, "rnic0", "top")["qps"]
    return max((pair[name] for pair in pairs), default=0)


def test_a_peer_of_another_device_with_the_same_number_is_another(twins: Path, shm: dict[str, str]) -> None:
    """Each device counts its slots from one, and a slot's queue pairs begin where its number says."""
    with served(shm, f"{NET}.61", f"{NET}.62") as nic:
        done = subprocess.run([str(twins)], env=shm, capture_output=True, text=True, timeout=LONGEST, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert counters(nic)["shm_packets"] + counters(nic)["shm_bytes"] > 0
