"""Memory that its owner changes while it is sent: any bytes, but the ICRC is right (``design.md``: copied first)."""

from __future__ import annotations

import mmap
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import pytest

from rnic.wire.packet import Packet, parse
from tests.scripts.conftest import NewScript, Script

SIZE = 60_000
WANTED = 300
LIMIT_S = 10.0


def scribble(memory: mmap.mmap, ready: Any) -> None:
    """Store other bytes all over, for ever."""
    patterns = [bytes([value]) * SIZE for value in (0x55, 0xAA)]
    ready.set()
    while True:
        for pattern in patterns:
            memory[:SIZE] = pattern


def read(s: Script) -> None:
    s.inject("READ_REQUEST", s.ctx.expected_psn, va=s.va, rkey=s.key, dma_length=SIZE)


def write(s: Script) -> None:
    s.post("WRITE", SIZE)


def send(s: Script) -> None:
    s.post("SEND", SIZE)


def scattered(s: Script) -> None:
    s.post("WRITE", SIZE, sges=[(at, SIZE // 3) for at in (0, SIZE // 3, 2 * SIZE // 3)])


def small(s: Script) -> None:
    for at in range(0, 2048, 256):
        s.post("WRITE", 256, at)


WORK = [read, write, send, scattered, small]


def over(s: Script, memory: Any) -> None:
    """Let the queue pair use ``memory`` instead of its own."""
    s.mr = s.register(memory)
    s.key, s.va = s.mr.key, s.mr.start


def acknowledge(s: Script) -> None:
    requester = s.qp.requester
    if requester.una != requester.sent_psn:
        s.ack(requester.sent_psn - 1)


@pytest.mark.parametrize("mtu", [1, 5])
@pytest.mark.parametrize("segments", [1, 15])
@pytest.mark.parametrize("work", WORK)
def test_what_was_made_does_not_change_any_more(
    new: NewScript, work: Callable[[Script], None], segments: int, mtu: int
) -> None:
    s = new(segments=segments, mtu=mtu)
    memory = bytearray(s.data)
    over(s, memory)
    work(s)
    packets = 0
    while bursts := s.bursts():
        memory[:] = bytes(value ^ 0xFF for value in memory)
        for burst in bursts:
            data = memoryview(b"".join(burst.buffers))
            for index in range(burst.count):
                packet = data[index * burst.segment : (index + 1) * burst.segment]
                assert burst.flow.check(packet, index)
                assert isinstance(parse(packet), Packet)
                packets += 1
        acknowledge(s)
    assert packets >= (8 if work is small else SIZE // (256 << mtu - 1))


@pytest.mark.slow
@pytest.mark.parametrize("segments", [1, 15])
@pytest.mark.parametrize("work", WORK)
def test_another_process_writes_all_the_while(new: NewScript, work: Callable[[Script], None], segments: int) -> None:
    memory = mmap.mmap(-1, SIZE)
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    process = fork.Process(target=scribble, args=(memory, ready), daemon=True)
    process.start()
    assert ready.wait(LIMIT_S)
    try:
        s = new(segments=segments, mtu=5)
        s.still = False  # two executors, one after the other, would not find the same bytes
        over(s, memory)
        checked = 0
        seen: set[int] = set()
        end = time.monotonic() + LIMIT_S
        while (checked < WANTED or not seen >= {0x55, 0xAA}) and time.monotonic() < end:
            work(s)
            while packets := s.packets():  # which checks each ICRC
                checked += len(packets)
                seen |= {packet.payload[0] for packet in packets if len(packet.payload)}
                acknowledge(s)
        assert checked >= WANTED
        assert seen >= {0x55, 0xAA}, "the other process wrote"
    finally:
        process.kill()
        process.join()
