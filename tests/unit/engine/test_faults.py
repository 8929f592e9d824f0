"""Lanes of packets in C and in Python: the same packets pass, in the same order, at the same times."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rnic.link.fault_rules import Counts, pack_rules
from rnic.link.fault_script import parse_script
from rnic.link.faults import NO_FAULTS, _Judge, _RxLane, _TxLane
from rnic.link.packets import MIN_PACKET
from rnic.link.udp_socket import raw_address, socket_address
from rnic.mem.space import address_of
from rnic.spec.opcodes import SEND_ONLY
from rnic.state.fault_table import COUNT_BYTES, TABLE_BYTES
from rnic.trace.counters import Counters
from rnic.trace.tracer import NullTracer
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow
from rnic.wire.packet import build, seal

HERE, PEER = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
PORT = 4791
PART = struct.Struct("<IIII")
NEVER = 1 << 63
Passed = list[tuple[bytes, bool, int]]
"""Of each packet the bytes before its ICRC, if it has one, whether that is right, and its traffic class."""


@pytest.fixture(scope="session")
def c_lanes(builds: Callable[..., ctypes.CDLL], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    sources = ("io/faults.c", "io/fault_rules.c", "queue_pair/icrc.c", "queue_pair/crc32.c")
    calls = str(Path(__file__).with_name("faults.c"))
    lanes = builds(tmp_path_factory.mktemp("faults") / "faults.so", *sources, flags=(calls,))
    lanes.lanes_new.restype = ctypes.c_void_p
    for name in ("lanes_transmit", "lanes_receive", "lanes_deadline"):
        getattr(lanes, name).restype = ctypes.c_uint64
    return lanes


def packets_of(data: bytes, segment: int, first: int, tclass: int, flow: Flow) -> Iterator[tuple[bytes, bool, int]]:
    for place, start in enumerate(range(0, len(data), segment)):
        packet = data[start : start + segment]
        whole = len(packet) >= MIN_PACKET
        yield packet[:-4] if whole else packet, whole and flow.check(packet, first + place), tclass


class Both:
    """Both lanes of one direction, by the same rules."""

    def __init__(self, c_lanes: ctypes.CDLL, script: list[dict[str, object]], direction: str) -> None:
        self.lib = c_lanes
        self.flow = Flow(HERE, PEER, PORT, PORT) if direction == "tx" else Flow(PEER, HERE, PORT, PORT)
        rules = parse_script(script, 7, Counts(memoryview(bytearray(COUNT_BYTES)))).rules
        self.table = ctypes.create_string_buffer(pack_rules(rules), TABLE_BYTES)
        self.memory = ctypes.create_string_buffer(COUNT_BYTES)
        new = c_lanes.lanes_new(self.table, self.memory, HERE, 4, ctypes.c_uint16(PORT))
        self.lanes = ctypes.c_void_p(new)
        self.counters = Counters()
        judge = _Judge(direction, rules, NO_FAULTS, random.Random(1), self.counters, NullTracer(), None)
        self.tx, self.rx = _TxLane(judge), _RxLane(judge)
        self.name = raw_address(socket_address(PEER, PORT, 0))
        self.out = ctypes.create_string_buffer(1 << 20)

    def _parts(self, length: int) -> Passed:
        passed: Passed = []
        at = 0
        while at < length:
            size, segment, first, tclass = PART.unpack_from(self.out.raw, at)
            at += PART.size
            passed += packets_of(self.out.raw[at : at + size], segment, first, tclass, self.flow)
            at += size
        return passed

    def c_take(self, way: str, frames: list[bytes], now: int) -> Passed:
        data = bytearray(b"".join(frames))
        call = self.lib.lanes_transmit if way == "tx" else self.lib.lanes_receive
        memory = ctypes.c_void_p(address_of(memoryview(data)) if data else None)
        length = ctypes.c_uint64(len(data))
        segment = len(frames[0]) if frames else 1
        arguments = (self.name, len(self.name), memory, length, segment, 0, ctypes.c_uint64(now), self.out)
        return self._parts(call(self.lanes, *arguments))

    def send(self, frames: list[bytes], now: int) -> Passed:
        out = self.tx.release(now)
        if frames:
            self.tx.take(TxBurst(self.flow, list(frames), len(frames[0]), len(frames), sum(map(len, frames))), now, out)
        return [
            each
            for burst in out
            for each in packets_of(b"".join(burst.buffers), burst.segment, 0, burst.flow.tclass, self.flow)
        ]

    def receive(self, frames: list[bytes], now: int) -> Passed:
        out = self.rx.release(now)
        if frames:
            data = memoryview(bytearray(b"".join(frames)))
            self.rx.take(RxBurst(self.flow, data, len(frames[0]), len(data), 0), now, out)
        passed: Passed = []
        for burst in out:
            assert burst.ident is not None
            passed += packets_of(bytes(burst.buf), burst.segment, burst.ident, burst.tclass, self.flow)
        return passed

    def deadline(self) -> int | None:
        mine = (self.tx if self.flow.src == HERE else self.rx).deadline_ns()
        theirs = int(self.lib.lanes_deadline(self.lanes))
        assert theirs == (NEVER if mine is None else mine)
        return mine

    def close(self) -> None:
        self.lib.lanes_free(self.lanes)


def random_script(rng: random.Random) -> list[dict[str, object]]:
    script: list[dict[str, object]] = []
    for _ in range(rng.randrange(1, 5)):
        action = rng.choice(["drop", "corrupt", "duplicate", "delay", "reorder", "mark", "truncate"])
        rule: dict[str, object] = {
            "action": action,
            "probability": rng.choice([0.05, 0.3, 1]),
            "seed": rng.getrandbits(8),
        }
        if action == "delay" or (action == "duplicate" and rng.random() < 0.5):
            rule["delay_ns"] = rng.randrange(5000)
        if action == "reorder":
            rule |= {"behind": rng.randrange(1, 5), "hold_ns": rng.randrange(1, 5000)}
        if action == "truncate" and rng.random() < 0.5:
            rule["bytes"] = rng.choice([1, 15, 20, 100])
        script.append(rule)
    return script


def compare(both: Both, direction: str, rng: random.Random, steps: int) -> int:
    now = psn = passed = 0
    for _ in range(steps):
        now += rng.randrange(3000)
        count = rng.choice([0, 1, 1, 2, 5, 16])
        frames = []
        for ident in range(count):
            size = rng.choice([8, 8, 4]) if ident == count - 1 else 8
            frames.append(bytes(seal(build(SEND_ONLY, dqpn=17, psn=psn, payload=bytes(size)), both.flow, ident)))
            psn += 1
        if direction == "tx":
            mine, theirs = both.send(frames, now), both.c_take("tx", frames, now)
        else:
            mine, theirs = both.receive(frames, now), both.c_take("rx", frames, now)
        assert theirs == mine
        both.deadline()
        passed += len(mine)
    return passed


@pytest.mark.parametrize("direction", ["tx", "rx"])
@pytest.mark.parametrize("seed", range(12))
def test_what_passes_is_the_same(c_lanes: ctypes.CDLL, direction: str, seed: int) -> None:
    rng = random.Random(seed)
    both = Both(c_lanes, random_script(rng), direction)
    compare(both, direction, rng, 40)
    both.close()


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["tx", "rx"])
def test_much_that_passes_is_the_same(c_lanes: ctypes.CDLL, direction: str) -> None:
    passed = 0
    for seed in range(150):
        rng = random.Random(1000 + seed)
        both = Both(c_lanes, random_script(rng), direction)
        passed += compare(both, direction, rng, 60)
        both.close()
    assert passed > 10_000


def test_a_port_that_is_down_passes_nothing(c_lanes: ctypes.CDLL) -> None:
    both = Both(c_lanes, [], "tx")
    frame = bytes(seal(build(SEND_ONLY, dqpn=17, psn=1, payload=bytes(8)), both.flow, 0))
    assert len(both.c_take("tx", [frame], 0)) == 1
    struct.pack_into("<Q", both.table, 8, 1)
    assert both.c_take("tx", [frame, frame], 0) == []
    assert both.c_take("rx", [frame, frame], 0) == []
    struct.pack_into("<Q", both.table, 8, 0)
    assert len(both.c_take("tx", [frame], 0)) == 1
    both.close()
