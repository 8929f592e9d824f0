"""The pump on real sockets: what the link's own calls say of the same packets."""

from __future__ import annotations

import ctypes
import errno
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rnic.engine
from rnic.link.udp import UdpLink
from rnic.link.udp_socket import raw_address, socket_address
from rnic.mem.space import address_of
from rnic.wire.bursts import TxBurst

NAME_BYTES, SLOTS, BUFFER, INBOX = 28, 64, 1 << 16, 1 << 16


class Slot(ctypes.Structure):
    """``struct rx_buffer``."""

    _fields_ = (
        ("buffer", ctypes.c_void_p),
        ("room", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
        ("segment", ctypes.c_uint32),
        ("name_bytes", ctypes.c_uint32),
        ("name", ctypes.c_uint8 * NAME_BYTES),
        ("tclass", ctypes.c_uint8),
        ("hop_limit", ctypes.c_uint8),
        ("flow_label", ctypes.c_uint32),
    )


class Outlet(ctypes.Structure):
    """``struct tx_socket``."""

    _fields_ = tuple(
        (name, ctypes.c_int32)
        for name in (
            *("fd", "ipv4", "tclass", "hop_limit", "priority"),
            *("may_set_segment", "segment", "same_size_runs", "last_segment"),
        )
    )


class Path_(ctypes.Structure):  # noqa: N801 - pathlib has the name
    """``struct tx_path``."""

    _fields_ = (
        ("outlet", ctypes.POINTER(Outlet)),
        ("wire", ctypes.c_void_p),
        ("name", ctypes.c_uint8 * NAME_BYTES),
        ("name_bytes", ctypes.c_uint32),
        ("flow_label", ctypes.c_uint32),
        ("max_segments", ctypes.c_uint32),
        ("tclass", ctypes.c_int32),
        ("hop_limit", ctypes.c_int32),
        ("priority", ctypes.c_int32),
        ("divert", ctypes.c_void_p),
        ("divert_arg", ctypes.c_void_p),
    )


DROPS = ("drop_tx_too_long", "drop_tx_unreachable", "drop_tx_blocked", "drop_tx_error")
COUNTS = ("sent", *DROPS, "gso_refused", "priority_refused", "look")


class Counts(ctypes.Structure):
    """``struct tx_counts``."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in COUNTS)

    def seen(self) -> dict[str, int]:
        """Those that are not zero."""
        return {name: getattr(self, name) for name in COUNTS if getattr(self, name)}


@pytest.fixture(scope="session")
def pump(builds: Callable[..., ctypes.CDLL], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return builds(tmp_path_factory.mktemp("pump") / "pump.so", "io/udp.c", "io/loopback.c")


class Side:
    """The link's socket, driven by the pump."""

    def __init__(self, pump: ctypes.CDLL, address: str) -> None:
        self.pump = pump
        self.link = UdpLink(address, 0)
        self.outlet = Outlet(self.link.fileno() or 0, len(self.link.address) == 4, -1, -1)
        self.inbox = ctypes.create_string_buffer(INBOX)
        self.buffers = [bytearray(b"\xee" * BUFFER) for _ in range(SLOTS)]
        self.slots = (Slot * SLOTS)()
        for slot, buffer in zip(self.slots, self.buffers, strict=True):
            slot.buffer, slot.room = address_of(memoryview(buffer)), BUFFER

    def path(self, peer: Side, segments: int = 64, tclass: int = 0, hop_limit: int = 64) -> Path_:
        raw = raw_address(socket_address(peer.link.address, peer.link.port, 0))
        path = Path_(ctypes.pointer(self.outlet), None, (ctypes.c_uint8 * NAME_BYTES)(*raw), len(raw), 0, segments)
        path.tclass, path.hop_limit = tclass, hop_limit
        return path

    def send(self, path: Path_, data: bytes, segment: int) -> dict[str, int]:
        counts = Counts()
        memory = bytearray(data)
        place = ctypes.c_void_p(address_of(memoryview(memory)))
        self.pump.udp_transmit(
            ctypes.byref(path), place, ctypes.c_size_t(len(data)), ctypes.c_uint32(segment), ctypes.byref(counts)
        )
        return counts.seen()

    def receive(self, count: int) -> int:
        return int(self.pump.udp_receive(self.outlet.fd, self.inbox, self.slots, ctypes.c_uint(count)))

    def taken(self, at: int) -> bytes:
        return bytes(self.buffers[at][: self.slots[at].size])


@pytest.fixture(params=["127.0.0.1", "::1"])
def sides(request: pytest.FixtureRequest, pump: ctypes.CDLL) -> Iterator[tuple[Side, Side]]:
    a, b = Side(pump, request.param), Side(pump, request.param)
    yield a, b
    a.link.close()
    b.link.close()


def test_the_room_for_the_calls_is_enough(builds: Callable[..., ctypes.CDLL], tmp_path: Path) -> None:
    size = "unsigned long size(void) { return sizeof(struct udp_rx_scratch); }"
    code = f'#define _GNU_SOURCE\n#include "io/udp.h"\n{size}\n'
    (tmp_path / "size.c").write_text(code)
    sources = Path(rnic.engine.__file__).parent
    assert builds(tmp_path / "size.so", str(tmp_path / "size.c"), flags=(f"-I{sources}",)).size() <= INBOX


@pytest.mark.parametrize("count", [1, 2, 64])
@pytest.mark.parametrize(("length", "segment"), [(40, 40), (64 * 40, 40), (15 * 4112, 4112), (5000, 4112)])
def test_what_the_link_says_the_pump_says(sides: tuple[Side, Side], count: int, length: int, segment: int) -> None:
    a, b = sides
    data = bytes(n * 7 & 0xFF for n in range(length))
    flow = a.link.local_flow(b.link.address, b.link.port)
    packets = -(-length // segment)
    a.link.send([TxBurst(flow, [memoryview(data)], segment, packets, length)])
    (expected,) = b.link.receive(64)
    assert a.send(a.path(b), data, segment) == {"sent": packets}
    assert b.receive(count) == 1
    slot = b.slots[0]
    assert b.taken(0) == bytes(expected.buf) == data
    assert (slot.segment, slot.tclass, slot.hop_limit) == (expected.segment, expected.tclass, expected.hop_limit)
    assert bytes(slot.name[: slot.name_bytes]) == raw_address(socket_address(a.link.address, a.link.port, 0))
    assert b.receive(count) == 0


def test_many_come_in_one_call(sides: tuple[Side, Side]) -> None:
    a, b = sides
    path = a.path(b)
    for number in range(70):
        assert a.send(path, bytes([number]) * 40, 40) == {"sent": 1}
    assert [b.receive(3), b.receive(100), b.receive(100), b.receive(1)] == [3, 64, 3, 0]
    assert b.taken(0) == bytes([67]) * 40


def test_traffic_class_and_hop_limit_are_the_path_s(sides: tuple[Side, Side]) -> None:
    a, b = sides
    for tclass, hop_limit in ((0x2E << 2 | 2, 7), (0, 64), (3, 255)):
        assert a.send(a.path(b, tclass=tclass, hop_limit=hop_limit), bytes(40), 40) == {"sent": 1}
        assert b.receive(1) == 1
        assert (b.slots[0].tclass, b.slots[0].hop_limit) == (tclass, hop_limit)


def test_without_offload_packets_go_one_by_one(sides: tuple[Side, Side]) -> None:
    a, b = sides
    assert a.send(a.path(b, segments=1), bytes(range(100)), 40) == {"sent": 3}
    assert b.receive(64) == 3
    assert [b.slots[n].size for n in range(3)] == [40, 40, 20]
    path = a.path(b)
    assert a.send(path, bytes(40 * 65), 40) == {"sent": 65}
    assert path.max_segments == 64


def test_a_refused_burst_goes_packet_by_packet_from_then_on(sides: tuple[Side, Side]) -> None:
    """The system refuses segments of bytes that no interface takes as one packet: EINVAL."""
    a, b = sides
    path = a.path(b, segments=200)  # more than the system takes in one send
    assert a.send(path, bytes(40 * 130), 40) == {"sent": 130, "gso_refused": 1}
    assert path.max_segments == 1


def test_failures_are_counted_as_the_link_counts_them(pump: ctypes.CDLL) -> None:
    a, b = Side(pump, "127.0.0.1"), Side(pump, "127.0.0.1")
    assert a.send(a.path(b), bytes(66_000), 66_000) == {"drop_tx_too_long": 1}
    path = a.path(b)
    path.name[1] = 99  # no family
    assert set(a.send(path, bytes(40), 40)) == {"drop_tx_error"}
    assert a.send(a.path(b), b"", 40) == a.send(a.path(b), bytes(40), 0) == {}
    a.link.close()
    b.link.close()
    assert a.send(a.path(b), bytes(80), 40) == {"drop_tx_error": 2}
    assert b.receive(2) == b.receive(1) == -errno.EBADF


def test_a_full_send_buffer_is_waited_for_and_then_counted(pump: ctypes.CDLL) -> None:
    """A UNIX socket whose receiver takes nothing is full for good."""
    side = Side(pump, "127.0.0.1")
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    near.setblocking(False)
    side.outlet.fd = near.fileno()
    path = Path_(ctypes.pointer(side.outlet), max_segments=1)
    lost: dict[str, int] = {}
    for _ in range(2000):  # waits: until the send buffer is full
        lost = side.send(path, bytes(40), 40)
        if lost != {"sent": 1}:
            break
    assert lost == {"drop_tx_blocked": 1}
    far.recv(64)
    assert side.send(path, bytes(40), 40) == {"sent": 1}
    for each in (near, far, side.link):
        each.close()
