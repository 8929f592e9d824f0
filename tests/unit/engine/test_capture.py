"""The recorder's ring: what a program's engine puts there, and what the NIC process makes of it."""

from __future__ import annotations

import ctypes
import fcntl
import io
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock

import pytest

from rnic.link import recording
from rnic.link.pcap import read_capture, read_packets
from rnic.link.recording import SNAP_MAX, Burst, Recording
from rnic.link.udp import UdpLink
from rnic.link.udp_socket import raw_address, socket_address
from rnic.mem.space import address_of
from rnic.nic_process.capture_rings import CaptureRing, CaptureRings
from rnic.spec.opcodes import SEND_ONLY
from rnic.state.capture_ring import ALL, AT, BYTES
from rnic.testing import own_network
from rnic.trace.counters import Counters
from rnic.wire.bursts import Buffer
from rnic.wire.dissect import LINKTYPE_ETHERNET, LINKTYPE_RAW
from rnic.wire.flow import Flow
from rnic.wire.packet import build, seal

pytestmark = pytest.mark.skipif(recording._compiled is None, reason="no program has a ring without the compiled twin")
NET = own_network()
PEER = bytes([10, 0, 0, 2])


@pytest.fixture(scope="session")
def c_capture(builds: Callable[..., ctypes.CDLL], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    calls = str(Path(__file__).with_name("capture.c"))
    lib = builds(tmp_path_factory.mktemp("capture") / "capture.so", "io/capture.c", flags=(calls,))
    lib.capture_new.restype = ctypes.c_void_p
    return lib


class Program:
    """A program's end of a ring, and the file that the other end writes."""

    def __init__(
        self,
        lib: ctypes.CDLL,
        host: int,
        snap: int = SNAP_MAX,
        waits: bool = False,
        count: int = 1,
        file: BinaryIO | None = None,
    ) -> None:
        self.lib = lib
        self.link = UdpLink(f"{NET}.{host}", 0)
        self.file = io.BytesIO()
        self.counters = Counters()
        self.recording = Recording(self.file if file is None else file, self.counters, snap=snap, waits=waits)
        self.rings = CaptureRings(self.recording, waits)
        self.ring: list[CaptureRing] = [self.rings.add(self.link) for _ in range(count)]
        port = ctypes.c_uint16(self.link.port)
        self.ends = [
            ctypes.c_void_p(
                lib.capture_new(ctypes.c_void_p(address_of(memoryview(ring._page))), self.link.address, port)
            )
            for ring in self.ring
        ]
        self.out = self.link.local_flow(PEER, 4791)
        self.name = raw_address(socket_address(PEER, 4791, 0))

    def burst(self, flow: Flow, psn: int, count: int, size: int) -> bytes:
        frames = [seal(build(SEND_ONLY, dqpn=17, psn=psn + at, payload=bytes(size)), flow, at) for at in range(count)]
        return b"".join(map(bytes, frames))

    def record(self, which: str, data: bytes, segment: int, tclass: int = 0, end: int = 0, name: bytes = b"") -> None:
        call = self.lib.record_sent if which == "sent" else self.lib.record_received
        memory = ctypes.create_string_buffer(data, len(data))
        name = name or self.name
        call(self.ends[end], name, len(name), memory, ctypes.c_uint64(len(data)), ctypes.c_uint32(segment), tclass)

    def finish(self) -> None:
        while self.rings.drain():
            pass
        self.recording.finish()

    def packets(self) -> list[bytes]:
        self.finish()
        return [bytes(packet.data) for packet in read_capture(io.BytesIO(self.file.getvalue()), "")]

    def close(self) -> None:
        for ring in self.ring:
            self.rings.remove(ring)
        self.link.close()


@pytest.fixture
def program(c_capture: ctypes.CDLL) -> Iterator[Program]:
    made = Program(c_capture, 91)
    yield made
    made.close()


def psns(packets: list[bytes]) -> list[int]:
    """PSNs of packets behind Ethernet, IPv4 and UDP headers."""
    return [int.from_bytes(packet[14 + 20 + 8 + 9 :][:3]) for packet in packets]


def test_long_bursts_of_rings_are_recorded(program: Program) -> None:
    program.record("sent", program.burst(program.out, 0, 40, 4096), 4112)
    assert psns(program.packets()) == list(range(40))


def test_packets_are_recorded_as_they_left_and_came(program: Program) -> None:
    back = program.out.reverse()
    program.record("sent", program.burst(program.out, 10, 3, 64), 80, tclass=2)
    program.record("received", program.burst(back, 20, 2, 32), 48, tclass=3)
    found = program.packets()
    assert psns(found) == [10, 11, 12, 20, 21]
    for at, packet in enumerate(found):
        flow, ident = (program.out, at) if at < 3 else (back, at - 3)
        assert flow.check(packet[42:], ident)
        assert packet[14 + 1] == (2 if at < 3 else 3)
        assert int.from_bytes(packet[14 + 4 :][:2]) == ident
        assert (packet[14 + 12 :][:4], packet[14 + 16 :][:4]) == (flow.src, flow.dst)


def test_what_the_device_sent_itself_is_recorded_once(program: Program) -> None:
    own = raw_address(socket_address(program.link.address, program.link.port, 0))
    program.record("received", program.burst(program.out, 1, 1, 32), 48, name=own)
    assert program.packets() == []


def test_a_full_ring_leaves_packets_out_and_says_how_many(c_capture: ctypes.CDLL) -> None:
    program = Program(c_capture, 92)
    data = program.burst(program.out, 0, 8, 4000)
    bursts = BYTES // len(data) + 20
    for _ in range(bursts):
        program.record("sent", data, 4016)
    there = len(program.packets())
    missing = 8 * bursts - there
    assert missing > 100
    assert program.counters["capture_dropped"] == missing
    assert program.file.getvalue()[-24:].count(missing.to_bytes(8, "little")) == 1, "the statistics block has it"
    program.close()


def test_records_go_round_the_ring(c_capture: ctypes.CDLL) -> None:
    program = Program(c_capture, 93)
    psn = 0
    for size in (4000, 100, 1000, 12) * 60:
        data = program.burst(program.out, psn, 16, size)
        program.record("sent", data, len(data) // 16)
        psn += 16
        if psn % 320 == 0:
            program.rings.drain()
    assert psns(program.packets()) == list(range(psn))
    program.close()


@pytest.mark.parametrize(("segment", "length"), [(0xFFFF, 0xFFFF), (1, 70_000), (0, 8), (4096, 1 << 23)])
def test_a_burst_that_no_engine_makes_ends_nothing(program: Program, segment: int, length: int) -> None:
    """Lengths that no packet has, and more packets than a burst: the rest of the ring is recorded."""
    program.record("sent", bytes(16), 16)
    page = program.ring[0]._page
    # of the first record: bytes, then behind kind and time the burst's length and segment
    page[AT + 24 : AT + 40] = length.to_bytes(8, "little") + segment.to_bytes(8, "little")
    program.record("sent", program.burst(program.out, 7, 1, 64), 80)
    assert psns(program.packets()) == [7]


def test_a_snap_length_keeps_the_beginning(c_capture: ctypes.CDLL) -> None:
    program = Program(c_capture, 94, snap=20)
    program.record("sent", program.burst(program.out, 5, 3, 64), 80)
    program.rings.drain()
    program.recording.finish()
    found = list(read_capture(io.BytesIO(program.file.getvalue()), ""))
    assert [len(packet.data) for packet in found] == [42 + 20] * 3
    assert [packet.length for packet in found] == [42 + 80] * 3
    assert psns([bytes(packet.data) for packet in found]) == [5, 6, 7]
    program.close()


def test_rings_are_put_in_the_order_of_time(c_capture: ctypes.CDLL) -> None:
    program = Program(c_capture, 95, count=3)
    rng = random.Random(1)
    for psn in range(300):
        program.record("sent", program.burst(program.out, psn, 1, 32), 48, end=rng.randrange(3))
        if rng.random() < 0.1:
            program.rings.drain()
        time.sleep(1e-6)
    assert psns(program.packets()) == list(range(300))
    program.close()


@pytest.mark.parametrize("seed", range(30))
def test_what_else_a_program_writes_there_ends_nothing_but_its_part(c_capture: ctypes.CDLL, seed: int) -> None:
    rng = random.Random(seed)
    program = Program(c_capture, 96, count=2)
    for _ in range(20):
        program.record("sent", program.burst(program.out, 1, 2, 64), 80, end=0)
        page = program.ring[0]._page
        for _ in range(rng.randrange(1, 6)):
            at = rng.choice([rng.randrange(128), AT + rng.randrange(2000), rng.randrange(ALL - 8)])
            page[at : at + 8] = rng.choice(
                [rng.randbytes(8), b"\xff" * 8, bytes(8), rng.randrange(BYTES).to_bytes(8, "little")]
            )
        program.record("sent", program.burst(program.out, 7, 1, 64), 80, end=1)
        program.rings.drain()
    found = psns(program.packets())
    assert found.count(7) >= 20
    program.close()


def test_records_that_no_file_and_no_reader_gets_are_not_looked_at(c_capture: ctypes.CDLL) -> None:
    program = Program(c_capture, 69)
    program.recording.finish()
    (ring,) = program.ring
    ring.learn = Mock()  # type: ignore[method-assign]
    program.record("sent", program.burst(program.out, 1, 2, 100), 116)
    assert not program.rings.drain()
    ring.learn.assert_not_called()
    assert ring._tail > 0
    program.close()


@pytest.mark.parametrize("snap", [SNAP_MAX, 20, 15])
@pytest.mark.parametrize("linktype", [LINKTYPE_ETHERNET, LINKTYPE_RAW])
def test_compiled_blocks_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch, snap: int, linktype: int) -> None:
    rng = random.Random(snap)
    flow = Flow(bytes([10, 0, 0, 1]), PEER, 0xC001, 4791)
    bursts = []
    for count in (1, 2, 7, 272, 1, 40, 40):
        segment = rng.randrange(16, 90) if count < 40 else 4112
        length = (count - 1) * segment + rng.randrange(1, segment + 1)
        stride = min(snap, segment)
        kept = memoryview(rng.randbytes((count - 1) * stride + min(stride, length - (count - 1) * segment)))
        idents = rng.choice([None, [rng.randrange(1 << 16) for _ in range(count)]])
        arrived = rng.randrange(256), 64, 0
        bursts.append(Burst(rng.getrandbits(62), flow, b"", kept, length, segment, idents, arrived))

    def recorded() -> bytes:
        file = io.BytesIO()
        made = Recording(file, Counters(), linktype, snap=snap)
        for burst in bursts:
            made.put(burst._replace(head=made.head(flow, burst.arrived)))
        made.flush()
        made.finish()
        return file.getvalue()

    mine = recorded()
    monkeypatch.setattr(recording, "_compiled", None)
    assert recorded() == mine


@pytest.mark.parametrize("snap", [SNAP_MAX, 20])
def test_what_a_ring_records_is_what_the_reference_records(c_capture: ctypes.CDLL, snap: int) -> None:
    program = Program(c_capture, 67, snap=snap)
    rng = random.Random(snap)
    for _ in range(30):
        size, count = rng.randrange(1, 4200), rng.choice([1, 2, 15])
        data = program.burst(program.out, 0, count, size)[: rng.randrange((count - 1) * (size + 16) + 17, 1 << 20)]
        program.record("sent", data, size + 16, tclass=rng.choice([0, 2]))
    (ring,) = program.ring
    records = program.recording.records()
    ring.take(records)
    records.sort()
    file = io.BytesIO()
    reference = Recording(file, Counters(), snap=snap)
    for _ in range(len(records)):
        _, _, time_ns, length, segment, label, *how, name, port, at, size = records.take()
        kept = bytes(ring._bytes[at : at + size])
        stride, sizes = min(snap, segment), [min(segment, length - first) for first in range(0, length, segment)]
        packets = [(kept[index * stride :][: min(stride, each)], each, index) for index, each in enumerate(sizes)]
        assert (name, port) == (program.name, program.link.port)
        reference.write_blocks(reference.blocks(time_ns, program.out, packets, arrived=(how[0], how[1], label)), 1)
    ring._tail = ring._freed
    program.rings.drain()
    program.recording.flush()
    assert len(file.getvalue()) > 30 * 60
    assert program.file.getvalue() == file.getvalue()
    program.close()


def test_a_program_gets_room_back_while_its_packets_are_written(c_capture: ctypes.CDLL) -> None:
    """A ring that is full is no longer so after the first part of it: the program goes on beside the recorder."""
    program = Program(c_capture, 68)
    (ring,) = program.ring
    data, used = program.burst(program.out, 0, 16, 4000), list[int]()
    for _ in range(80):
        program.record("sent", data, 4016)
    write = program.recording.write_blocks

    def noted(blocks: Buffer | None, packets: int) -> None:
        used.append(ring._words[0] - ring._words[8])
        write(blocks, packets)

    program.recording.write_blocks = noted  # type: ignore[method-assign]
    assert len(program.packets()) == 80 * 16
    assert len(used) > 5
    assert used == sorted(used, reverse=True)
    assert used[-1] < used[0] / 4
    program.close()


def test_the_system_writes_packets_out_of_the_ring_and_all_else_out_of_the_recorder(
    c_capture: ctypes.CDLL, tmp_path: Path
) -> None:
    """A program that changes what it has handed over changes the bytes of its packets, and no block around them."""
    place = tmp_path / "run.pcapng"
    with place.open("wb", buffering=0) as file:
        program = Program(c_capture, 65, file=file)
        (ring,) = program.ring
        program.record("sent", program.burst(program.out, 0, 3, 4096), 4112)
        program.record("sent", program.burst(program.out, 3, 5, 64), 80)
        write = program.recording.write_blocks

        def changed(blocks: Buffer | None, packets: int) -> None:
            ring._bytes[AT:] = b"\xff" * BYTES
            write(blocks, packets)

        program.recording.write_blocks = changed  # type: ignore[method-assign]
        program.finish()
        program.close()
    found = [packet.data for packet in read_packets(place)]
    assert [len(packet) - 42 for packet in found] == [4112] * 3 + [80] * 5
    assert [packet[42:] == b"\xff" * 4112 for packet in found] == [True] * 3 + [False] * 5
    assert psns(found)[3:] == [3, 4, 5, 6, 7]
    assert {packet[14 + 12 : 14 + 20] for packet in found} == {program.out.src + program.out.dst}


def test_a_pipe_that_takes_a_part_gets_the_rest_later(c_capture: ctypes.CDLL) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    room = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    packet = 42 + 4112 + 32
    with os.fdopen(writer, "wb", buffering=0) as file, os.fdopen(reader, "rb", buffering=0) as source:
        program = Program(c_capture, 66, file=file)
        for at in range(0, 30, 10):
            program.record("sent", program.burst(program.out, at, 10, 4096), 4112)
        assert program.rings.drain()
        first = source.read(room)
        assert len(first) < 30 * packet
        program.finish()
        rest = source.read(room)
        program.close()
    assert psns([packet.data for packet in read_capture(io.BytesIO(first + rest), "")]) == list(range(30))
