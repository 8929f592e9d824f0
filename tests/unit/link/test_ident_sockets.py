"""Sockets that show bits of idents: their packets come in the order in which they arrived."""

from __future__ import annotations

import errno
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterator

import pytest

from rnic.link import udp as udp_module
from rnic.link.base import parse_address
from rnic.link.ident_sockets import MASK, IdentSockets
from rnic.link.steering import Group
from rnic.link.udp import UdpLink
from rnic.testing import own_network
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="SO_REUSEPORT filters are Linux's")

ADDRESS = f"{own_network()}.73"
FLOW = Flow(bytes(4), bytes(4), 1)


class Ends:
    """Eight sockets; a packet says itself when it arrived."""

    def __init__(self) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(8)]
        self.near, self.far = [near for near, _ in pairs], [far for _, far in pairs]
        for near in self.near:
            near.setblocking(False)
        self.before_read: Callable[[int], None] = lambda value: None
        self.inbox = IdentSockets(self.near, [self.reader(value) for value in range(8)])

    def reader(self, value: int) -> Callable[[tuple[memoryview]], tuple[bool, RxBurst | None, int]]:
        def read(buffer: tuple[memoryview]) -> tuple[bool, RxBurst | None, int]:
            self.before_read(value)
            try:
                size = self.near[value].recv_into(buffer[0])
            except BlockingIOError:
                return True, None, 0
            if size < 4:
                return False, None, 0
            return False, RxBurst(FLOW, buffer[0][:size], size, size), int.from_bytes(buffer[0][:4], "big")

        return read

    def arrive(self, value: int, *stamps: int) -> None:
        for stamp in stamps:
            self.far[value].send(struct.pack(">I", stamp))

    def given(self, limit: int = 64) -> list[int]:
        return [int.from_bytes(burst.buf, "big") for burst in self.inbox.receive(limit)]

    def close(self) -> None:
        self.inbox.close()
        for sock in (*self.near, *self.far):
            sock.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_packets_of_several_sockets_are_given_as_they_arrived(ends: Ends) -> None:
    ends.arrive(5, 1, 2, 7)
    ends.arrive(0, 3, 6)
    ends.arrive(3, 4, 5)
    bursts = ends.inbox.receive(64)
    assert [int.from_bytes(burst.buf, "big") for burst in bursts] == [1, 2, 3, 4, 5, 6, 7]
    assert [burst.known for burst in bursts] == [(MASK, value << 3) for value in (5, 5, 0, 3, 3, 0, 5)]
    assert ends.given() == []


def test_a_packet_between_two_socket_reads_keeps_its_order(ends: Ends) -> None:
    """Its socket was found empty just before the later one was read."""

    def before_read(value: int) -> None:
        if value == 5:
            ends.before_read = lambda value: None
            ends.arrive(2, 90)
            ends.arrive(5, 100)
            ends.arrive(3, 110)

    ends.before_read = before_read
    ends.arrive(5, 80)
    assert ends.given() == [80, 90, 100]
    assert ends.inbox.pending, "whether others came before the last one, shows the next look"
    ends.arrive(1, 105)
    assert ends.given() == [105, 110]
    assert not ends.inbox.pending


def test_a_busy_socket_delays_packets_later_than_those_read(ends: Ends) -> None:
    ends.arrive(6, *range(100, 140))
    ends.arrive(1, 120, 150)
    got = ends.given()
    while more := ends.given():
        got += more
    assert got == sorted([*range(100, 140), 120, 150])


def test_no_more_are_given_than_asked_for(ends: Ends) -> None:
    ends.arrive(6, 1, 3, 5)
    ends.arrive(1, 2, 4)
    assert [ends.given(2) for _ in range(4)] == [[1, 2], [3, 4], [5], []]


def test_what_is_no_packet_is_passed_over(ends: Ends) -> None:
    ends.far[4].send(b"x")
    ends.arrive(4, 1)
    assert ends.given() == [1]


def test_buffers_are_used_again(ends: Ends) -> None:
    for stamp in range(50):
        ends.arrive(stamp & 7, stamp)
        assert ends.given() == [stamp]
    assert len(ends.inbox._free) + len(ends.inbox._given) <= 4


@pytest.mark.parametrize("twin", ["plain"] if udp_module._calls is None else ["plain", "compiled"])
def test_a_link_gives_the_packets_of_a_sender_that_counts_in_order(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an ordinary user. Those that came before it was known to count come before."""
    if twin == "plain":
        monkeypatch.setattr(udp_module, "_calls", None)
    link = UdpLink(ADDRESS, 0)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.IPPROTO_IP, 10, 0)  # IP_MTU_DISCOVER: without DF Linux counts
    sender.bind((ADDRESS, 0))
    try:
        sent = 0
        got: list[tuple[int, tuple[int, int]]] = []
        flows = set[int]()
        for batch in range(40):
            for _ in range(8):
                sender.sendto(struct.pack(">QI", 0, sent) + bytes(28), (ADDRESS, link.port))
                sent += 1
            if batch == 4:
                assert link.separate(parse_address(ADDRESS))
                assert not link.separate(parse_address(ADDRESS)), "no more sockets"
            for _ in range(4):
                for burst in link.receive(8):
                    got.append((int.from_bytes(burst.buf[8:12], "big"), burst.known))
                    flows.add(id(burst.flow))
        while bursts := link.receive(8):
            got += [(int.from_bytes(burst.buf[8:12], "big"), burst.known) for burst in bursts]
        assert [number for number, _ in got] == list(range(sent))
        assert {known for _, known in got} == {(0, 0)} | {(MASK, value << 3) for value in range(8)}
        assert len(flows) == 1
        assert len(link.filenos()) == 2
    finally:
        sender.close()
        link.close()


@pytest.mark.parametrize("refused", ["the descriptor that tells which socket has packets", "the filter"])
def test_a_sender_is_told_apart_only_once_its_packets_are_read(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "no more descriptors")

    link = UdpLink(ADDRESS, 0)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind((ADDRESS, 0))
    try:
        link.group.join()
        link.group.steer()
        if refused == "the filter":
            link.group.open_for_idents()
            monkeypatch.setattr(Group, "open_for_idents", lambda group: group._of_idents)
            monkeypatch.setattr(Group, "steer", refuse)
        else:
            monkeypatch.setattr(select, "epoll", refuse)
        link.separate(parse_address(ADDRESS))
        monkeypatch.undo()
        link.group.steer()  # as the next program's socket has it done
        for number in range(64):
            sender.sendto(struct.pack(">QI", 0, number) + bytes(28), (ADDRESS, link.port))
        got = [burst for _ in range(16) for burst in link.receive(8)]
        assert [burst.known for burst in got] == [(0, 0)] * 64
    finally:
        sender.close()
        link.close()


def test_a_link_that_may_share_no_port_receives_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(udp_module, "Group", refuse)
    link = UdpLink(ADDRESS, 0)
    try:
        assert not link.separate(parse_address(ADDRESS))
        assert link.idents is None
        assert len(link.filenos()) == 1
    finally:
        link.close()
