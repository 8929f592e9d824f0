"""Sockets that share a port, each for a range of queue pairs: as an ordinary user, on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rnic.link import steering
from rnic.link.base import LinkError, parse_address
from rnic.link.udp_socket import open_socket
from rnic.testing import own_network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SO_REUSEPORT filters are Linux's")

ADDRESS = f"{own_network()}.71"
BUFFER_BYTES = 1 << 20
FIRST = steering.FIRST_STEERED_QPN
RANGE = 1 << steering.LOG_RANGE
PACKET_BYTES = 4112
BUNDLE = 15


class Ends:
    """A group of three members, and a socket to send from."""

    def __init__(self) -> None:
        address = parse_address(ADDRESS)
        self.first = open_socket(address, 0, 0, BUFFER_BYTES)
        self.port = self.first.getsockname()[1]
        self.group = steering.Group(self.first, address, self.port, BUFFER_BYTES)
        assert [self.group.join() for _ in range(3)] == [1, 2, 3]
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def send(self, qpn: int, size: int = 28) -> None:
        # the byte before the QPN holds congestion bits, which are none of the filter's business
        self.sender.sendto(struct.pack(">II", 0, 0xC0 << 24 | qpn) + bytes(size - 8), (ADDRESS, self.port))

    def arrived(self) -> list[int]:
        """Which sockets got something, one number for each datagram."""
        found = []
        members = range(1, len(self.group) + 1)
        for number, sock in enumerate([self.first, *map(self.group.socket_of, members)]):
            with sock.dup() as own:
                while True:
                    try:
                        own.recv(65536)
                    except BlockingIOError:
                        break
                    found.append(number)
        return found

    def close(self) -> None:
        self.group.close()
        self.first.close()
        self.sender.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


@pytest.mark.parametrize(
    ("qpn", "member"),
    [
        (0, 0),
        (1, 0),
        (16, 0),
        (FIRST - 1, 0),
        (FIRST, 1),
        (FIRST + RANGE - 1, 1),
        (FIRST + RANGE, 2),
        (FIRST + 3 * RANGE - 1, 3),
        (FIRST + 3 * RANGE, 0),
        (0xFFFFFE, 0),
        (0xFFFFFF, 0),
    ],
)
def test_packets_go_where_their_queue_pair_is(ends: Ends, qpn: int, member: int) -> None:
    """By ranges; what has no range is the first socket's, multicast and management among it."""
    ends.send(qpn)
    assert ends.arrived() == [member]
    if member:
        assert steering.member_of(qpn) == member
        assert steering.first_qpn(member) <= qpn < steering.first_qpn(member) + RANGE


def test_packets_of_a_sender_that_counts_come_by_three_bits_of_their_idents(ends: Ends) -> None:
    """Whatever their queue pair, and those of others by their queue pair as before."""
    ends.sender.setsockopt(socket.IPPROTO_IP, 10, 0)  # IP_MTU_DISCOVER: without DF Linux counts
    ends.sender.bind((ADDRESS, 0))
    by_ident = ends.group.open_for_idents()
    ends.group.separate(parse_address(ADDRESS))
    for number in range(256):
        ends.send(FIRST + RANGE * (number & 3))
    assert ends.arrived() == []
    counts = []
    for sock in by_ident:
        counts.append(0)
        with contextlib.suppress(BlockingIOError):
            while sock.recv(100):
                counts[-1] += 1
    assert sum(counts) == 256
    assert all(count % 8 == 0 for count in counts) or min(counts) > 16, counts
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((f"{own_network()}.70", 0))
        other.sendto(struct.pack(">II", 0, FIRST + RANGE) + bytes(20), (ADDRESS, ends.port))
    assert ends.arrived() == [2]


def test_members_may_join_after_the_sockets_for_idents(ends: Ends) -> None:
    ends.group.open_for_idents()
    ends.group.separate(parse_address("127.9.9.9"))
    assert ends.group.join() == 4
    for member in range(1, 5):
        ends.send(steering.first_qpn(member))
        assert ends.arrived() == [member]


def test_a_bounded_number_of_senders_is_told_apart(ends: Ends) -> None:
    ends.group.open_for_idents()
    for number in range(steering.MAX_SENDERS + 8):
        ends.group.separate(bytes([127, 9, 9, number]))
    assert len(steering.program(3, ends.group._senders, 4)) < 100
    assert len(ends.group._senders) == steering.MAX_SENDERS
    ends.send(FIRST)
    assert ends.arrived() == [1]


def test_sockets_for_idents_that_the_system_refuses_leave_all_as_it_was(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[socket.socket] = []

    def refuse(*how: Any, **more: Any) -> socket.socket:
        if len(opened) == 3:
            raise LinkError("no more")
        opened.append(open_socket(*how, **more))
        return opened[-1]

    monkeypatch.setattr(steering, "open_socket", refuse)
    with pytest.raises(LinkError, match="no more"):
        ends.group.open_for_idents()
    monkeypatch.undo()
    assert ends.group.join() == 4
    for member in range(1, 5):
        ends.send(steering.first_qpn(member))
        assert ends.arrived() == [member]


def test_what_is_too_short_is_the_first_sockets(ends: Ends) -> None:
    """A datagram without a whole BTH."""
    for size in range(8):
        ends.sender.sendto(bytes(size), (ADDRESS, ends.port))
    assert ends.arrived() == [0] * 8


def test_a_bundle_goes_whole_to_one_socket(ends: Ends) -> None:
    """The system cuts what was sent as one; the first packet's queue pair says whose all of it is."""
    packet = struct.pack(">II", 0, FIRST + RANGE) + bytes(PACKET_BYTES - 8)
    try:
        ends.sender.setsockopt(17, 103, PACKET_BYTES)
    except OSError as error:
        pytest.skip(f"no segmentation offload here: {error}")
    ends.sender.sendto(packet * BUNDLE, (ADDRESS, ends.port))
    assert ends.arrived() == [2] * BUNDLE


def test_nobody_else_gets_the_port(ends: Ends) -> None:
    """A second NIC on the same address and port is refused although the group lets members join."""
    with pytest.raises(LinkError, match="taken"):
        open_socket(parse_address(ADDRESS), ends.port, 0, BUFFER_BYTES)


def test_a_filter_that_was_taken_away_is_attached_anew(ends: Ends) -> None:
    """Any member may detach it: packets then go anywhere, until the group steers again."""
    ends.first.setsockopt(socket.SOL_SOCKET, 68, 0)  # SO_DETACH_REUSEPORT_BPF
    ends.group.steer()
    for member in (1, 2, 3):
        ends.send(steering.first_qpn(member))
        assert ends.arrived() == [member]


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to become an ordinary user")
def test_it_takes_no_privilege() -> None:
    """The same as user 65534, in a child."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setresuid(65534, 65534, 65534)
            ends = Ends()
            ends.send(FIRST + RANGE)
            code = 0 if ends.arrived() == [2] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
