"""Programs that run the engine themselves share what the device may have in flight, by a page that all of them map."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rnic.spec.limits import ROCE_UDP_PORT
from rnic.state.budget import BUDGET, BYTES, NIC_ENTRY, SHARE, share_at
from rnic.testing import own_network
from rnic.transport.budget import LEAST
from rnic.transport.inflight import FIRST
from tests.abi.test_bypass import going_on, moves, packets, slots
from tests.abi.test_kills import LONGEST, Nic, served

NET = own_network()
"""Addresses that no other run of these tests uses at the same time."""

pytestmark = pytest.mark.timeout(180)  # the first test of a worker also compiles


@pytest.fixture
def bypass(env: dict[str, str]) -> dict[str, str]:
    """Environment of programs that ask for slots."""
    return {**env, "RNIC_BYPASS": "1", "RNIC_SHM": "0"}


class Sink:
    """A peer that takes packets and never answers."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, ROCE_UDP_PORT))
        self.socket.setblocking(False)
        self.seen: dict[int, set[int]] = {}
        """PSNs by the queue pair that they were for."""

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()
        self.socket.close()

    def look(self) -> dict[int, int]:
        """How many packets came for each queue pair, what was sent again counted once."""
        while True:
            try:
                packet = self.socket.recv(8192)
            except BlockingIOError:
                return {qpn: len(psns) for qpn, psns in self.seen.items()}
            self.seen.setdefault(int.from_bytes(packet[5:8], "big"), set()).add(int.from_bytes(packet[9:12], "big"))

    def settled(self) -> dict[int, int]:
        """The same, once nothing new came for a fifth of a second."""
        end = time.monotonic() + LONGEST
        before, since = self.look(), time.monotonic()
        while time.monotonic() < min(end, since + 0.2):
            time.sleep(0.005)
            now = self.look()
            if now != before:
                before, since = now, time.monotonic()
        return before


@contextmanager
def flooding(flood: Path, env: dict[str, str], address: str, qpn: int) -> Iterator[subprocess.Popen[str]]:
    """A program that sends what it may to a queue pair of somebody who does not answer."""
    command = [str(flood), address, str(qpn)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        try:
            assert program.stdout.readline() == "flooding\n", program.stderr.read()
            yield program
        finally:
            program.kill()


def budget(nic: Nic) -> dict[str, int]:
    seen: dict[str, int] = slots(nic)["budget"]
    return seen


def until(what: Callable[[], object]) -> bool:
    end = time.monotonic() + LONGEST
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def page_of(nic: Nic) -> Iterator[int]:
    """A descriptor of the page, as any program of the device has one."""
    folder = Path(f"/proc/{nic.process.pid}/fd")
    path = next(each for each in folder.iterdir() if "rnic budget" in os.readlink(each))
    fd = os.open(path, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.mark.slow
def test_two_programs_together_have_the_limit_of_one(flood: Path, bypass: dict[str, str]) -> None:
    """And what a program that is killed had is for the other."""
    with Sink(f"{NET}.81") as sink, served(bypass, f"{NET}.80") as nic:
        assert slots(nic)["budget"] is None
        with flooding(flood, bypass, f"{NET}.81", 1) as first:
            assert sink.settled() == {1: FIRST}
            assert budget(nic)["held"] == FIRST
            with flooding(flood, bypass, f"{NET}.81", 2):
                assert sink.settled() == {1: FIRST, 2: LEAST}, "nobody is kept from sending a little"
                seen = budget(nic)
                assert (seen["held"], seen["peers"]) == (FIRST + LEAST, 1)
                first.kill()
                first.wait()
                assert until(lambda: len(slots(nic)["slots"]) == 1)
                assert until(lambda: budget(nic)["held"] == LEAST), "what a program had that is no more is nobody's"
                with flooding(flood, bypass, f"{NET}.81", 3):
                    # the second waits, and half is for it until it has learned that nobody answers
                    assert sink.settled()[3] in (FIRST // 2, FIRST - LEAST)
        nic.settled()
        assert slots(nic)["budget"] is None


@pytest.mark.slow
def test_who_sends_to_another_peer_is_in_nobodys_way(flood: Path, bypass: dict[str, str]) -> None:
    with (
        Sink(f"{NET}.83") as one,
        Sink(f"{NET}.84") as other,
        served(bypass, f"{NET}.82") as nic,
        flooding(flood, bypass, f"{NET}.83", 1),
        flooding(flood, bypass, f"{NET}.84", 2),
    ):
        assert (one.settled(), other.settled()) == ({1: FIRST}, {2: FIRST})
        assert budget(nic)["peers"] == 2


@pytest.mark.slow
def test_the_nic_process_and_programs_share(flood: Path, bypass: dict[str, str]) -> None:
    """A program without a slot sends by the NIC process, in whose account its packets are."""
    with (
        Sink(f"{NET}.86") as sink,
        served(bypass, f"{NET}.85") as nic,
        flooding(flood, bypass, f"{NET}.86", 1),
        flooding(flood, {**bypass, "RNIC_BYPASS": "0"}, f"{NET}.86", 2),
    ):
        assert until(lambda: len(sink.look()) == 2), "the second sends by the NIC process, which may take a while"
        assert sink.settled() == {1: FIRST, 2: LEAST}
        assert budget(nic)["held"] == FIRST + LEAST


@pytest.mark.slow
def test_what_is_scribbled_into_the_page_costs_speed_alone(plain: Path, bypass: dict[str, str]) -> None:
    """Programs go on, with all that they check themselves, and what stands there is put right afterwards."""
    rng = random.Random(5)
    values: list[Callable[[int], bytes]] = [rng.randbytes, lambda size: b"\xff" * size, bytes]
    with (
        served(bypass, f"{NET}.87") as nic,
        going_on(plain, bypass) as program,
        going_on(plain, bypass) as other,
        page_of(nic) as page,
    ):
        assert moves(nic)
        for fill in values:
            before, end = by_slot(nic), time.monotonic() + 1.0
            while time.monotonic() < end:
                os.pwrite(page, fill(BYTES), 0)
            assert until(lambda was=before: all(count > was[slot] for slot, count in by_slot(nic).items()))  # type: ignore[misc]
        assert (program.poll(), other.poll(), nic.process.poll()) == (None, None, None)
        assert until(lambda: is_right(page))
        assert packets(nic)
        assert moves(nic)


def by_slot(nic: Nic) -> dict[Any, int]:
    """Packets that each program has taken."""
    return {slot["slot"]: slot["counters"].get("rx_packets", 0) for slot in slots(nic)["slots"]}


def is_right(page: int) -> bool:
    """Whether nobody has more in flight than the device may, and who is not there has nothing."""
    seen = os.pread(page, BYTES, 0)
    shares = [SHARE.unpack(seen, share_at(NIC_ENTRY, slot)) for slot in range(3)]
    limit = BUDGET.get(seen, "limit")
    return BUDGET.get(seen, "slots") == 3 and 8 <= limit <= 4096 and all(share["held"] <= limit for share in shares)
