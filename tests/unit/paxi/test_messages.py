"""PAXI's messages in RC Link packets: both sides, and what a hostile peer sends."""

from __future__ import annotations

import random
from collections import deque

import pytest

from rnic.paxi import messages as m
from rnic.paxi.bridge import Request
from rnic.paxi.messages import HEADER, Memory, Requester
from rnic.rclink.receiver import Received

PIECE = 100


class Packets:
    """An endpoint whose packets the test carries."""

    def __init__(self, slots: int = 1_000) -> None:
        self.free_slots = slots
        self.sent: deque[bytes] = deque()
        self.inbox: deque[Received] = deque()

    def send(self, qpid: int, payload: bytes) -> None:
        assert self.free_slots, "no slot"
        assert len(payload) <= PIECE + HEADER.size
        self.free_slots -= 1
        self.sent.append(payload)

    def recv(self) -> Received | None:
        return self.inbox.popleft() if self.inbox else None

    def carry(self, other: Packets, slots: int = 1_000) -> None:
        while self.sent:
            other.inbox.append(Received(3, self.sent.popleft()))
        self.free_slots = slots


class Both:
    def __init__(self, size: int = 1_000, readonly: bool = False) -> None:
        self.here, self.there = Packets(), Packets()
        self.staging = bytearray(8_192)
        self.memory = bytearray(random.Random(1).randbytes(size))
        self.done: list[tuple[int, bool]] = []
        self.requester = Requester(
            self.here, 3, PIECE, memoryview(self.staging), lambda serial, refused: self.done.append((serial, refused))
        )
        self.served = Memory(self.there, 3, PIECE, memoryview(self.memory), readonly)

    def run(self, slots: int = 1_000) -> None:
        for _ in range(200):  # waits: in rounds of both
            moved = self.requester.turn()
            self.here.carry(self.there, slots)
            moved |= self.served.turn()
            self.there.carry(self.here, slots)
            if not moved and not self.here.inbox:
                return
        raise AssertionError("it never ends")


@pytest.mark.parametrize("slots", [1, 2, 1_000])
@pytest.mark.parametrize("length", [1, 99, 100, 101, 450])
def test_reads_and_writes_in_order_however_few_slots_there_are(length: int, slots: int) -> None:
    both = Both()
    before = bytes(both.memory)
    both.staging[:length] = random.Random(2).randbytes(length)
    both.requester.post(Request(7, True, 0, 33, length))
    both.requester.post(Request(8, False, 4_096, 30, length + 6))
    both.requester.post(Request(9, False, 1_000, 0, 3))
    both.run(slots)
    assert both.done == [(7, False), (8, False), (9, False)]
    assert both.memory == before[:33] + both.staging[:length] + before[33 + length :]
    assert both.staging[4_096 : 4_096 + length + 6] == both.memory[30 : 36 + length]
    assert both.served.executed == 3


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("at", [901, 1_000, 1 << 40])
def test_what_leaves_the_memory_is_refused_and_so_is_all_behind_it(write: bool, at: int) -> None:
    both = Both()
    before = bytes(both.memory)
    both.requester.post(Request(1, False, 0, 0, 100))
    both.requester.post(Request(2, write, 0, at, 100))
    both.requester.post(Request(3, True, 0, 0, 10))
    both.run()
    assert both.done == [(1, False), (2, True)]
    assert (both.served.executed, both.served.refused, both.requester.refused) == (1, True, True)
    assert both.memory == before
    assert [request.serial for request in both.requester.flying] == [3]


def test_memory_for_reading_refuses_writes() -> None:
    both = Both(readonly=True)
    both.requester.post(Request(1, False, 0, 0, 100))
    both.requester.post(Request(2, True, 0, 0, 1))
    both.run()
    assert both.done == [(1, False), (2, True)]


def test_random_messages_do_nothing_but_what_they_may() -> None:
    """Nothing raises, grows without bound, or touches what is not served."""
    rng = random.Random(5)
    for _ in range(300):
        both = Both(200)
        both.requester.post(Request(1, rng.random() < 0.5, 0, 0, rng.randint(1, 150)))
        both.requester.turn()
        for _ in range(30):
            head = HEADER.pack(rng.randrange(6), rng.randrange(4), rng.choice([0, 1, 100, 150, 65_535]),
                               rng.choice([0, 1, 2]), rng.choice([0, 50, 199, 1 << 40, (1 << 64) - 1]))  # fmt: skip
            message = rng.choice([head, head[:5], b"", head + rng.randbytes(rng.choice([1, 100, 150]))])
            rng.choice([both.here, both.there]).inbox.append(Received(rng.choice([3, 3, 4]), message))
        both.requester.turn()
        both.served.turn()
        assert len(both.memory) == 200
        assert len(both.staging) == 8_192
        assert len(both.served._out) <= m.MOST_WAITING + 656


def test_a_flood_of_reads_waits_for_room() -> None:
    both = Both(1_000)
    both.there.free_slots = 0
    for serial in range(3_000):
        both.there.inbox.append(Received(3, HEADER.pack(m.READ, m.LAST, 1_000, serial, 0)))
    both.served.turn()
    assert len(both.served._out) == m.MOST_WAITING + 4
    assert len(both.there.inbox) > 2_000
