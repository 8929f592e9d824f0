from __future__ import annotations

import errno
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from rnic.link import udp as udp_module
from rnic.link import udp_inbox, udp_socket
from rnic.link.base import LinkError
from rnic.link.interface import DEFAULT_MTU, interface_of, ip_mtu, is_local
from rnic.link.udp import UdpLink
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow

LINUX = sys.platform == "linux"
GROUPS = {"127.0.0.1": bytes([239, 77, 1, 9]), "::1": bytes.fromhex("ff0100000000000000000000004d0109")}

Opener = Callable[..., UdpLink]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(params=["127.0.0.1", "::1"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "::1" and not has_ipv6():
        pytest.skip("this machine has no ::1")
    return str(request.param)


TWINS = ["plain"] if udp_module._calls is None else ["plain", "compiled"]


@pytest.fixture(params=TWINS)
def opener(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens links that are closed in the end; each test runs with either twin of the system calls."""
    if request.param == "plain":
        monkeypatch.setattr(udp_module, "_calls", None)
    links: list[UdpLink] = []

    def make(address: str, **options: Any) -> UdpLink:
        links.append(UdpLink(address, 0, **options))
        return links[-1]

    yield make
    for link in links:
        link.close()


def flow_to(sender: UdpLink, receiver: UdpLink) -> Flow:
    return sender.local_flow(receiver.address, receiver.port)


def sealed(flow: Flow, ident: int, size: int = 40) -> bytes:
    frame = bytes([ident]) * (size - 4)
    return frame + struct.pack("<I", flow.icrc(frame, ident))


def burst_of(flow: Flow, sizes: Sequence[int]) -> TxBurst:
    frames = [sealed(flow, ident, size) for ident, size in enumerate(sizes)]
    buffers = [part for frame in frames for part in (frame[:12], memoryview(frame)[12:])]
    return TxBurst(flow, list(buffers), sizes[0], len(sizes), sum(sizes))


def drain(link: UdpLink, packets: int, limit: int = 8) -> list[RxBurst]:
    """Bursts until ``packets`` have come, with memory of their own."""
    out: list[RxBurst] = []
    while sum(-(-burst.length // burst.segment) for burst in out) < packets:
        readable, _, _ = select.select(link.filenos(), [], [], 2)
        assert readable, f"{packets} packets expected, came: {[(b.segment, b.length) for b in out]}"
        for burst in link.receive(limit):
            burst.buf = memoryview(bytes(burst.buf))
            out.append(burst)
    return out


def test_one_packet(address: str, opener: Opener) -> None:
    a, b = opener(address), opener(address)
    flow = flow_to(a, b)
    a.send([TxBurst(flow, [sealed(flow, 0)], 40, 1, 40)])
    (got,) = drain(b, 1)
    assert bytes(got.buf) == sealed(flow, 0)
    assert (got.flow.src, got.flow.dst, got.flow.sport, got.flow.dport) == (a.address, b.address, a.port, b.port)
    assert (got.segment, got.length, got.ident) == (40, 40, None)
    assert b.receive(4) == []


def test_a_nic_talks_to_itself(address: str, opener: Opener) -> None:
    a = opener(address)
    flow = flow_to(a, a)
    a.send([burst_of(flow, [40, 40])])
    assert b"".join(burst.buf for burst in drain(a, 2)) == sealed(flow, 0) + sealed(flow, 1)


@pytest.mark.skipif(not LINUX, reason="UDP_SEGMENT and UDP_GRO are Linux options")
def test_a_burst_stays_one(address: str, opener: Opener) -> None:
    a, b = opener(address), opener(address)
    if not (a.gso and b.gro):
        pytest.skip("this kernel lacks UDP_SEGMENT or UDP_GRO")
    flow = flow_to(a, b)
    assert a.max_segments(flow) == 64
    sizes = [4112] * 14 + [100]
    burst = burst_of(flow, sizes)
    a.send([burst])
    (got,) = drain(b, 15)
    assert (got.segment, got.length) == (4112, sum(sizes))
    assert bytes(got.buf) == b"".join(burst.buffers)


@pytest.mark.parametrize(("gso", "gro"), [(False, True), (True, False), (False, False)])
def test_without_offloads_packets_come_one_by_one(address: str, opener: Opener, gso: bool, gro: bool) -> None:
    a, b = opener(address, gso=gso), opener(address, gro=gro)
    flow = flow_to(a, b)
    assert a.gso is gso or not LINUX
    assert gso or a.max_segments(flow) == 1
    sizes = [60, 60, 60, 32]
    a.send([burst_of(flow, sizes)])
    got = drain(b, 4)
    assert [(burst.segment, burst.length) for burst in got] == [(size, size) for size in sizes]
    for ident, burst in enumerate(got):
        assert flow.check(burst.buf, ident if gso else 0), "sealed for the ident that the packet left with"


def test_without_sendmsg_and_recvmsg(address: str, opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp_socket, "HAS_SENDMSG", False)
    monkeypatch.setattr(udp_socket, "HAS_RECVMSG_INTO", False)
    monkeypatch.setattr(udp_module, "HAS_SENDMSG", False)
    monkeypatch.setattr(udp_module, "_calls", None)
    a, b = opener(address), opener(address)
    assert (a.gso, b.gro, b.headers) == (False, False, False)
    flow = flow_to(a, b)
    a.send([burst_of(flow, [60, 60]), TxBurst(flow, [bytes(12), bytes(28)], 40, 1, 40)])
    assert [burst.length for burst in drain(b, 3)] == [60, 60, 40]


@pytest.mark.skipif(not LINUX, reason="elsewhere the IP header is not read")
@pytest.mark.parametrize("gro", [True, False])
def test_what_the_ip_header_said(address: str, opener: Opener, gro: bool) -> None:
    """Traffic class, hop limit and flow label as they were sent, of a burst that comes in one piece as well."""
    a, b = opener(address), opener(address, gro=gro)
    flow = flow_to(a, b)
    said = [(0, 64, 0x12345), (2, 1, 0xFFFFF), (0x6B, 255, 1), (1, 7, 0x54321)]
    for tclass, hop_limit, label in said:
        flow = Flow(flow.src, flow.dst, flow.sport, flow.dport, tclass, hop_limit, label)
        for sizes in ([40], [40, 40, 40]):
            a.send([burst_of(flow, sizes)])
            got = drain(b, len(sizes))
            for burst in got:
                assert (burst.tclass, burst.ecn, burst.hop_limit) == (tclass, tclass & 3, hop_limit)
                assert burst.flow_label == (label if address == "::1" else 0)
    assert len(got) == (1 if gro else 3)
    assert a.counters == {}


@pytest.mark.skipif(not LINUX, reason="elsewhere sockets have no priority")
def test_the_service_level_is_the_priority(address: str, opener: Opener) -> None:
    a, b = opener(address), opener(address)
    flow = flow_to(a, b)
    for tclass, sl in ((0, 3), (0, 5), (0x10, 5), (0x10, 0), (0, 6)):
        flow.tclass, flow.sl = tclass, sl
        a.send([burst_of(flow, [40])])
        assert a._main.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == sl
    drain(b, 5)
    assert a.counters == {}


@pytest.mark.skipif(not LINUX, reason="elsewhere sockets have no priority")
def test_a_priority_that_is_not_to_be_had(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 7 on Linux asks for CAP_NET_ADMIN: 6 serves instead, and is counted."""
    a, b = opener("127.0.0.1"), opener("127.0.0.1")
    allowed = udp_socket.set_option

    def unprivileged(sock: socket.socket, level: int, option: int, value: int) -> bool:
        return not (option == socket.SO_PRIORITY and value > 6) and allowed(sock, level, option, value)

    monkeypatch.setattr(udp_socket, "set_option", unprivileged)
    flow = flow_to(a, b)
    flow.sl = 9
    a.send([burst_of(flow, [40]), burst_of(flow, [40])])
    assert a._main.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 6
    assert a.counters == {"priority_refused": 1}


def test_source_ports(address: str, opener: Opener) -> None:
    """Packets leave from the port that their path says, and what comes back comes to the bound one."""
    a, b = opener(address, source_ports=4), opener(address)
    assert len(set(a.source_ports)) == 4
    assert a.port not in a.source_ports
    assert b.source_ports == (b.port,)
    to = flow_to(a, b)
    for sport in a.source_ports:
        flow = Flow(to.src, to.dst, sport, to.dport, 2)
        a.send([burst_of(flow, [60, 60])])
        for burst in drain(b, 2):
            assert (burst.flow.src, burst.flow.sport) == (a.address, sport)
    stray = Flow(to.src, to.dst, 9, to.dport)
    a.send([burst_of(stray, [40])])
    assert drain(b, 1)[0].flow.sport == a.port
    b.send([burst_of(flow_to(b, a), [40])])
    assert drain(a, 1)[0].flow.dport == a.port
    with pytest.raises(LinkError, match="source_ports=257: give 0 to 256"):
        opener(address, source_ports=257)


def test_bursts_beyond_a_datagram_or_64_segments_are_taken_apart(opener: Opener) -> None:
    a, b = opener("127.0.0.1"), opener("127.0.0.1")
    flow = flow_to(a, b)
    for sizes in ([4112] * 17, [40] * 65):
        frame = bytes(sizes[0])
        a.send([TxBurst(flow, [frame] * len(sizes), sizes[0], len(sizes), sum(sizes))])
        got = drain(b, len(sizes))
        assert [burst.length for burst in got] == sizes
    assert a.counters == {}


class Refusing:
    """A socket whose sends fail as told; everything else is the real one's."""

    def __init__(self, real: socket.socket, failures: list[int], vectored_only: bool = False) -> None:
        self.real = real
        self.failures = failures
        self.vectored_only = vectored_only

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def _fail(self) -> None:
        if self.failures:
            number = self.failures.pop(0)
            if number:
                raise OSError(number, "told to")

    def sendto(self, *args: Any) -> int:
        if not self.vectored_only:
            self._fail()
        return self.real.sendto(*args)

    def sendmsg(self, *args: Any) -> int:
        self._fail()
        return self.real.sendmsg(*args)


class RefusingCalls:
    """The same for the compiled calls, which return the error's number."""

    def __init__(self, real: Any, failures: list[int], vectored_only: bool) -> None:
        self.real = real
        self.failures = failures
        self.vectored_only = vectored_only

    def send(self, descriptor: int, to: bytes, buffers: list[Any], segment: int) -> int:
        vectored = len(buffers) > 1 or segment
        if self.failures and (vectored or not self.vectored_only):
            number = self.failures.pop(0)
            if number:
                return number
        result: int = self.real.send(descriptor, to, buffers, segment)
        return result


def refuse(link: UdpLink, failures: list[int], vectored_only: bool = False) -> None:
    """Let the next sends of ``link`` fail so; both twins take the errors from the same list."""
    link._main.socket = Refusing(link._main.socket, failures, vectored_only)  # type: ignore[assignment]
    if link._calls is not None:
        link._calls = RefusingCalls(link._calls, failures, vectored_only)


@pytest.mark.parametrize(
    ("number", "counter"),
    [
        (errno.EMSGSIZE, "drop_tx_too_long"),
        (errno.ECONNREFUSED, "drop_tx_unreachable"),
        (errno.ENETUNREACH, "drop_tx_unreachable"),
        (errno.ENOBUFS, "drop_tx_blocked"),
        (errno.EPERM, "drop_tx_error"),
    ],
)
def test_refused_sends_are_counted_drops(opener: Opener, number: int, counter: str) -> None:
    a, b = opener("127.0.0.1"), opener("127.0.0.1")
    refuse(a, [number])
    flow = flow_to(a, b)
    a.send([burst_of(flow, [40]), burst_of(flow, [24])])
    assert a.counters == {counter: 1}
    assert [burst.length for burst in drain(b, 1)] == [24]


def test_too_long_a_datagram_is_a_counted_drop(opener: Opener) -> None:
    a, b = opener("127.0.0.1"), opener("127.0.0.1")
    a.send([TxBurst(flow_to(a, b), [bytes(65_508)], 65_508, 1, 65_508)])
    assert a.counters == {"drop_tx_too_long": 1}


def test_a_blocked_send_is_tried_again_and_then_dropped(opener: Opener) -> None:
    a, b = opener("127.0.0.1"), opener("127.0.0.1")
    flow = flow_to(a, b)
    failures = [errno.EAGAIN] * 3
    refuse(a, failures)
    a.send([burst_of(flow, [40])])
    assert a.counters == {}
    failures += [errno.EAGAIN] * 4
    a.send([burst_of(flow, [24]), burst_of(flow, [28])])
    assert a.counters == {"drop_tx_blocked": 1}
    failures += [errno.EAGAIN, errno.EMSGSIZE]
    a.send([burst_of(flow, [24])])
    assert a.counters == {"drop_tx_blocked": 1, "drop_tx_too_long": 1}
    assert [burst.length for burst in drain(b, 2)] == [40, 28]


@pytest.mark.skipif(not LINUX, reason="UDP_SEGMENT is a Linux option")
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_refused_gso_is_off_for_good(opener: Opener, number: int) -> None:
    a, b = opener("127.0.0.1"), opener("127.0.0.1")
    flow = flow_to(a, b)
    refuse(a, [number], vectored_only=True)
    a.send([burst_of(flow, [40, 40, 40])])
    got = drain(b, 3)
    assert all(flow.check(burst.buf, 0) for burst in got)
    assert a.max_segments(flow) == 1
    assert a.max_segments(flow_to(a, b)) == 1
    a.allow_gso(flow)
    assert a.max_segments(flow) == 1
    assert a.counters == {"gso_refused": 1}


def test_gso_is_for_this_machine_and_peers_that_agreed(opener: Opener) -> None:
    a = opener("127.0.0.1")
    if not a.gso:
        pytest.skip("this system lacks UDP_SEGMENT")
    peer = bytes([192, 0, 2, 77])
    assert a.max_segments(a.local_flow(bytes([127, 0, 0, 9]), 4791)) == 64
    agreed, other = a.local_flow(peer, 4791), a.local_flow(peer, 4792)
    assert a.max_segments(agreed) == 1
    a.allow_gso(agreed)
    assert a.max_segments(agreed) == 64
    assert a.max_segments(a.local_flow(peer, 4791)) == 64
    assert a.max_segments(other) == 1


def test_a_flow_moves_between_links(opener: Opener) -> None:
    a, b, c = (opener("127.0.0.1") for _ in range(3))
    flow = flow_to(a, c)
    for link in (a, b, a):
        link.send([burst_of(flow, [40])])
        assert drain(c, 1)[0].flow.sport == link.port


def test_receive_gives_no_more_than_its_limit(opener: Opener) -> None:
    a, b = opener("127.0.0.1"), opener("127.0.0.1")
    flow = flow_to(a, b)
    for _ in range(3):
        a.send([burst_of(flow, [40])] * 20)
        total = 0
        while total < 20:
            got = b.receive(3)
            assert len(got) <= 3
            total += len(got)
    assert b.receive(3) == []


def test_empty_datagrams_are_counted(opener: Opener) -> None:
    b = opener("127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"", ("127.0.0.1", b.port))
        sock.sendto(bytes(20), ("127.0.0.1", b.port))
    assert [burst.length for burst in drain(b, 1)] == [20]
    assert b.counters == {"drop_too_short": 1}


def test_errors_of_the_receiving_socket_are_counted(opener: Opener) -> None:
    class Failing:
        def recvmsg_into(self, *_: Any) -> None:
            raise ConnectionResetError

        recvfrom_into = recvmsg_into

    b = opener("127.0.0.1")
    inbox = b._inboxes[0]
    real, inbox.socket = inbox.socket, Failing()  # type: ignore[assignment]
    if inbox._receive is not None:
        inbox._receive = lambda _: errno.ECONNRESET
    assert b.receive(4) == []
    inbox.socket = real
    assert b.counters == {"rx_socket_error": 1}


def test_buffers_live_until_the_next_receive_and_are_reused(opener: Opener) -> None:
    a, b = opener("127.0.0.1"), opener("127.0.0.1")
    flow = flow_to(a, b)
    a.send([TxBurst(flow, [b"first"], 5, 1, 5)])
    select.select(b.filenos(), [], [], 2)
    (first,) = b.receive(4)
    assert bytes(first.buf) == b"first"
    a.send([TxBurst(flow, [b"other"], 5, 1, 5)])
    select.select(b.filenos(), [], [], 2)
    (second,) = b.receive(4)
    assert bytes(first.buf) == bytes(second.buf) == b"other"
    assert second.flow is first.flow


@pytest.mark.parametrize("bind", ["127.0.0.1", "::1"])
def test_multicast_needs_a_join(bind: str, opener: Opener) -> None:
    if bind == "::1" and not has_ipv6():
        pytest.skip("this machine has no ::1")
    a = opener(bind)
    group = GROUPS[bind]
    try:
        a.join(group)
    except LinkError as error:
        pytest.skip(f"this machine's loopback carries no multicast: {error}")
    a.join(group)
    assert len(a.filenos()) == 2
    flow = a.local_flow(group, a.port)
    assert a.max_segments(flow) == 1
    a.send([TxBurst(flow, [sealed(flow, 0)], 40, 1, 40), burst_of(flow_to(a, a), [24])])
    if not a.counters:
        got = {burst.flow.dst: bytes(burst.buf) for burst in drain(a, 2)}
        assert got == {group: sealed(flow, 0), a.address: sealed(flow_to(a, a), 0, 24)}
    a.leave(group)
    a.leave(group)
    assert len(a.filenos()) == 1


def test_joining_what_is_no_group_is_refused(opener: Opener) -> None:
    with pytest.raises(LinkError, match="is not a multicast address"):
        opener("127.0.0.1").join(bytes([127, 0, 0, 1]))


def test_a_taken_port_says_where_and_what_to_do(address: str, opener: Opener) -> None:
    a = opener(address)
    with pytest.raises(LinkError) as caught:
        UdpLink(address, a.port)
    message = str(caught.value)
    assert message == (
        f"UDP port {a.port} on {address} is taken: give another port (0 lets the system choose one) "
        "or another local address; programs that are to share one NIC open it with rnic.open()"
    )


@pytest.mark.parametrize(
    ("where", "port", "message"),
    [
        ("192.0.2.254", 0, "the address is not one of this machine"),
        ("127.0.0.1", 70_000, "UDP port 70000 is not a port: give 0 to 65535"),
        ("localhost", 0, "'localhost' is not an IPv4 or IPv6 address"),
        ("0.0.0.0", 0, "is a wildcard"),
        ("fe80::1%nosuch0", 0, "names no interface"),
    ],
)
def test_what_cannot_be_opened_is_refused_in_one_line(where: str, port: int, message: str) -> None:
    with pytest.raises(LinkError) as caught:
        UdpLink(where, port)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_peers_of_the_other_version_are_refused(opener: Opener) -> None:
    with pytest.raises(LinkError, match="is not of the IP version"):
        opener("127.0.0.1").local_flow(bytes(16), 4791)


def test_close(opener: Opener) -> None:
    a = opener("127.0.0.1")
    flow = flow_to(a, a)
    assert a.fileno() is not None
    a.close()
    a.close()
    assert (a.fileno(), a.filenos(), a.receive(4), a.next_deadline_ns()) == (None, [], [], None)
    with pytest.raises(LinkError, match=r"UDP link 127\.0\.0\.1 port \d+ is closed"):
        a.send([burst_of(flow, [40])])


def test_window_follows_the_granted_buffer(opener: Opener) -> None:
    small, large = opener("127.0.0.1", buffer_bytes=65_536), opener("127.0.0.1")
    for link in (small, large):
        granted = link._main.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert link.window_bytes == link.window_packets * 4096
        assert 0 < link.window_packets * 8456 <= granted
    assert small.window_bytes < large.window_bytes


@pytest.mark.skipif(not LINUX, reason="elsewhere nobody may have more than others")
@pytest.mark.parametrize(("granted", "short"), [(425_984, True), (6 << 20, True), (8 << 20, False)])
def test_a_buffer_is_forced_where_the_system_grants_others_less(granted: int, short: bool) -> None:
    """What ``net.core.rmem_max`` is by default holds 37 packets; who may has more. Linux tells the double."""
    asked: list[tuple[int, int]] = []

    class Socket:
        def setsockopt(self, level: int, option: int, value: int) -> None:
            asked.append((option, value))
            if option == 33:
                raise PermissionError

        def getsockopt(self, level: int, option: int) -> int:
            return granted

    udp_socket.set_buffer(cast("socket.socket", Socket()), socket.SO_RCVBUF, 4 << 20)
    assert asked == [(socket.SO_RCVBUF, 4 << 20), *([(33, 4 << 20)] if short else [])]


def test_a_window_of_lone_packets_is_held(opener: Opener) -> None:
    a, b = opener("127.0.0.1", gso=False), opener("127.0.0.1", buffer_bytes=200_000)
    flow = flow_to(a, b)
    a.send([TxBurst(flow, [bytes(4112)], 4112, 1, 4112)] * b.window_packets)
    assert len(drain(b, b.window_packets)) == b.window_packets


@pytest.mark.skipif(not LINUX, reason="interfaces are looked up on Linux only")
def test_interfaces() -> None:
    for loopback in (bytes([127, 0, 0, 1]), bytes([127, 3, 2, 1])):
        assert interface_of(loopback) == "lo"
        assert ip_mtu(loopback) > 1500
        assert is_local(loopback)
    assert interface_of(bytes([192, 0, 2, 254])) is None
    assert ip_mtu(bytes([192, 0, 2, 254])) == DEFAULT_MTU
    assert not is_local(bytes([192, 0, 2, 254]))
    if has_ipv6():
        assert interface_of(bytes(15) + b"\1") == "lo"
        assert is_local(bytes(15) + b"\1")


def test_a_senders_flood_of_ports_is_bounded(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (udp_module, udp_inbox):
        monkeypatch.setattr(module, "MAX_CACHED_FLOWS", 4)
    b = opener("127.0.0.1")
    for _ in range(10):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(bytes(20), ("127.0.0.1", b.port))
            drain(b, 1)
    assert len(b._inboxes[0].flows) <= 4
    for port in range(1, 10):
        b.max_segments(b.local_flow(b.address, port))
    assert len(b._paths) <= 4


@pytest.mark.parametrize("address", ["255.255.255.255", "127.255.255.255", "224.0.0.1", "239.1.2.3", "ff02::1"])
def test_addresses_of_many_are_no_devices(address: str) -> None:
    with pytest.raises(LinkError, match="multicast or broadcast"):
        UdpLink(address, 0)
