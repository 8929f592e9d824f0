"""IDs, port spaces and event channels over two devices of a simulated network, request by request."""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from rnic.cm.ids import MAPPED, NOWHERE, ip_header
from rnic.cm.service import CmService
from rnic.spec import attach_cm as a
from rnic.spec import cm
from rnic.testing.net import SimNet
from rnic.wire.cm import IP_HEADER


class EventSignal:
    def __init__(self) -> None:
        self.rings = 0
        self.closed = False

    def __call__(self) -> None:
        self.rings += 1

    def withdraw(self) -> None:
        self.rings -= 1

    def close(self) -> None:
        self.closed = True


class Program:
    """One program with one channel."""

    def __init__(self, service: CmService, net: SimNet, devices: str = "") -> None:
        self.service = service
        self.net = net
        self.signals: list[EventSignal] = []
        self.ask(a.CM_OPEN, private=devices.encode())
        self.channel = self.ask(a.CM_CHANNEL)["id"]

    def make_signal(self) -> EventSignal:
        self.signals.append(EventSignal())
        return self.signals[-1]

    def raw(self, op: int, private: bytes = b"", **fields: int | bytes) -> bytes:
        said = {
            name: int.from_bytes(value, "little") if isinstance(value, bytes) else value
            for name, value in fields.items()
        }
        body = bytearray(a.CM_REQUEST.pack({"op": op, "private_bytes": len(private), **said}))
        body[96 : 96 + len(private)] = private
        return self.service.request(self, bytes(body), self.make_signal, self.net.clock())

    def ask(self, op: int, private: bytes = b"", **fields: int | bytes) -> dict[str, int]:
        answer = self.raw(op, private, **fields)
        return a.CM_RECORD.unpack(answer) if answer else {}

    def create(self, space: int = cm.PS_TCP, kind: int = a.QP_RC) -> int:
        return self.ask(a.CM_CREATE, channel=self.channel, port_space=space, qp_type=kind)["id"]

    def event(self, channel: int = 0) -> tuple[int, dict[str, int], bytes]:
        """The next event: its number, all it says, its private data; the simulation runs until there is one."""
        found: list[bytes] = []

        def look() -> bool:
            answer = self.raw(a.CM_GET_EVENT, channel=channel or self.channel)
            if a.CM_RECORD.get(answer, "event") != a.CM_NO_EVENT:
                found.append(answer)
            return bool(found)

        if not look():
            self.net.run(look, 120_000_000_000)
        said = a.CM_RECORD.unpack(found[0])
        return said["event"], said, found[0][112 : 112 + said["private_bytes"]]

    def expect(self, event: int) -> dict[str, int]:
        got, said, _ = self.event()
        assert cm.EVENT_NAMES[got] == cm.EVENT_NAMES[event]
        return said

    def no_event(self) -> bool:
        return self.ask(a.CM_GET_EVENT, channel=self.channel)["event"] == a.CM_NO_EVENT


class Pair:
    def __init__(self, net: SimNet) -> None:
        self.net = net
        self.service = CmService(random.Random(3))
        for node in net.nodes:
            self.service.add_device(f"rnic{node.index}", node.nic)
        self.client, self.server = Program(self.service, net, "rnic0"), Program(self.service, net, "rnic1")
        self.gids = [node.nic.gsi.gid for node in net.nodes]

    def listen(self, port: int = 7174, space: int = cm.PS_TCP, kind: int = a.QP_RC, backlog: int = 0) -> int:
        listening = self.server.create(space, kind)
        self.server.ask(a.CM_BIND, id=listening, src_port=port)
        self.server.ask(a.CM_LISTEN, id=listening, value=backlog)
        return listening

    def resolved(self, port: int = 7174, space: int = cm.PS_TCP, kind: int = a.QP_RC) -> int:
        number = self.client.create(space, kind)
        self.client.ask(a.CM_RESOLVE_ADDR, id=number, src=self.gids[0], dst=self.gids[1], dst_port=port)
        self.client.expect(cm.EVENT_ADDR_RESOLVED)
        self.client.ask(a.CM_RESOLVE_ROUTE, id=number)
        self.client.expect(cm.EVENT_ROUTE_RESOLVED)
        return number

    def established(self) -> tuple[int, int]:
        self.listen()
        mine = self.resolved()
        self.client.ask(a.CM_CONNECT, b"ping", id=mine, qpn=0x20, responder_resources=3, initiator_depth=5)
        asked = self.server.expect(cm.EVENT_CONNECT_REQUEST)
        self.server.ask(a.CM_ACCEPT, b"pong", id=asked["id"], qpn=0x30, responder_resources=4, initiator_depth=2)
        self.client.expect(cm.EVENT_CONNECT_RESPONSE)
        self.client.ask(a.CM_ESTABLISH, id=mine)
        self.server.expect(cm.EVENT_ESTABLISHED)
        return mine, asked["id"]


@pytest.fixture(params=[False, True], ids=["IPv4", "IPv6"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with SimNet(2, ipv6=request.param) as net:
        yield Pair(net)


def test_a_connection_from_both_sides(pair: Pair) -> None:
    listening = pair.listen()
    mine = pair.resolved()
    pair.client.ask(
        a.CM_CONNECT,
        b"ping",
        id=mine,
        qpn=0x20,
        responder_resources=3,
        initiator_depth=5,
        retry_count=6,
        rnr_retry_count=7,
    )
    event, said, private = pair.server.event()
    assert event == cm.EVENT_CONNECT_REQUEST
    assert private == b"ping".ljust(56, b"\0")
    assert (said["listen_id"], said["responder_resources"], said["initiator_depth"]) == (listening, 5, 3)
    assert said["src"].to_bytes(16, "little") == pair.gids[1]
    assert said["dst"].to_bytes(16, "little") == pair.gids[0]
    assert said["dst_port"] == pair.client.ask(a.CM_QUERY, id=mine)["src_port"] >= cm.FIRST_DYNAMIC_PORT
    assert said["device"].to_bytes(16, "little").rstrip(b"\0") == b"rnic1"
    theirs = said["id"]
    pair.server.ask(a.CM_ACCEPT, b"pong", id=theirs, qpn=0x30, responder_resources=4, initiator_depth=2)
    event, said, private = pair.client.event()
    assert event == cm.EVENT_CONNECT_RESPONSE
    assert private == b"pong".ljust(196, b"\0")
    assert (said["qpn"], said["responder_resources"], said["initiator_depth"]) == (0x30, 2, 4)
    pair.client.ask(a.CM_ESTABLISH, id=mine)
    assert pair.server.expect(cm.EVENT_ESTABLISHED)["id"] == theirs
    here, there = pair.client.ask(a.CM_QUERY, id=mine), pair.server.ask(a.CM_QUERY, id=theirs)
    assert (here["qpn"], there["qpn"]) == (0x30, 0x20)
    assert (here["sq_psn"], here["rq_psn"]) == (there["rq_psn"], there["sq_psn"])
    (said,) = pair.net.nodes[0].nic.gsi.agent.connections.values()  # type: ignore[union-attr]
    # a starting PSN is what its sender expects, not what it sends: so Linux has it
    assert (here["rq_psn"], here["sq_psn"]) == (said.local.psn, said.remote.psn)
    assert (here["responder_resources"], here["initiator_depth"]) == (2, 4)
    assert (there["responder_resources"], there["initiator_depth"]) == (4, 2)
    assert (here["retry_count"], there["retry_count"], there["rnr_retry_count"]) == (6, 6, 7)
    pair.client.ask(a.CM_DISCONNECT, id=mine)
    assert pair.server.expect(cm.EVENT_DISCONNECTED)["id"] == theirs
    assert pair.client.expect(cm.EVENT_DISCONNECTED)["id"] == mine
    assert pair.client.expect(cm.EVENT_TIMEWAIT_EXIT)["id"] == mine
    assert pair.server.expect(cm.EVENT_TIMEWAIT_EXIT)["id"] == theirs
    for end in (pair.client, pair.server):
        assert end.signals[0].rings > 0


def test_each_event_rings_once(pair: Pair) -> None:
    pair.resolved()
    assert pair.client.signals[0].rings == 2


def test_a_rejection_says_why(pair: Pair) -> None:
    pair.listen()
    mine = pair.resolved()
    pair.client.ask(a.CM_CONNECT, id=mine, qpn=0x20)
    asked = pair.server.expect(cm.EVENT_CONNECT_REQUEST)
    pair.server.ask(a.CM_REJECT, b"no", id=asked["id"])
    event, said, private = pair.client.event()
    assert (event, said["status"]) == (cm.EVENT_REJECTED, cm.REJ_CONSUMER_DEFINED)
    assert private == b"no".ljust(148, b"\0")


def test_a_request_that_was_taken_leaves_its_place_in_the_backlog(pair: Pair) -> None:
    pair.listen(backlog=1)
    peers = [pair.resolved() for _ in range(2)]
    for number, peer in enumerate(peers):
        pair.client.ask(a.CM_CONNECT, id=peer, qpn=0x20 + number)
    counters = pair.net.nodes[1].nic.counters
    pair.net.run(lambda: counters["cm_backlog_full"] > 0)
    assert pair.server.signals[0].rings == 1
    first = pair.server.expect(cm.EVENT_CONNECT_REQUEST)
    second = pair.server.expect(cm.EVENT_CONNECT_REQUEST)
    assert (first["qpn"], second["qpn"]) == (0x20, 0x21), "its repetition came in, the first unanswered yet"
    pair.server.ask(a.CM_ACCEPT, id=second["id"], qpn=0x30)
    assert pair.client.expect(cm.EVENT_CONNECT_RESPONSE)["id"] == peers[1]


def test_a_program_hears_of_a_peer_that_gave_up_when_it_accepts(pair: Pair) -> None:
    pair.listen()
    mine = pair.resolved()
    pair.client.ask(a.CM_CONNECT, id=mine, qpn=0x20)
    theirs = pair.server.expect(cm.EVENT_CONNECT_REQUEST)["id"]
    pair.client.ask(a.CM_DESTROY, id=mine)
    counters = pair.net.nodes[1].nic.counters
    pair.net.run(lambda: counters["cm_rx_rej"] == 1)
    assert pair.server.no_event()
    with pytest.raises(
        OSError, match=r"the peer has given up: it took its request back \(timeout, reason 4\)"
    ) as refused:
        pair.server.ask(a.CM_ACCEPT, id=theirs, qpn=0x30)
    assert refused.value.errno == errno.EINVAL
    assert pair.server.ask(a.CM_QUERY, id=theirs)["status"] == cm.REJ_TIMEOUT
    pair.server.ask(a.CM_DESTROY, id=theirs)


def test_requests_that_a_program_left_until_their_peers_gave_up_make_way(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnic.cm.service.MAX_IDS", 3)  # the listener, and two more
    pair.listen()
    left = []
    counters = pair.net.nodes[1].nic.counters
    for _ in range(2):
        mine = pair.resolved()
        pair.client.ask(a.CM_CONNECT, id=mine, qpn=0x20)
        left.append(pair.server.expect(cm.EVENT_CONNECT_REQUEST)["id"])
        pair.client.ask(a.CM_DESTROY, id=mine)
    pair.net.run(lambda: counters["cm_rx_rej"] == 2)
    mine = pair.resolved()
    pair.client.ask(a.CM_CONNECT, id=mine, qpn=0x20)
    theirs = pair.server.expect(cm.EVENT_CONNECT_REQUEST)["id"]
    for gone in left:
        with pytest.raises(OSError, match=f"CM ID {gone} is not there"):
            pair.server.ask(a.CM_QUERY, id=gone)
    pair.server.ask(a.CM_ACCEPT, id=theirs, qpn=0x30)
    pair.client.expect(cm.EVENT_CONNECT_RESPONSE)
    another = pair.resolved()
    pair.client.ask(a.CM_CONNECT, id=another, qpn=0x21)
    pair.server.expect(cm.EVENT_CONNECT_REQUEST)
    refused = pair.resolved()
    pair.client.ask(a.CM_CONNECT, id=refused, qpn=0x22)
    assert pair.client.expect(cm.EVENT_REJECTED)["status"] == cm.REJ_NO_RESOURCES, "these are not left"


def test_a_program_hears_of_a_peer_that_gives_up_after_it_accepted(pair: Pair) -> None:
    pair.listen()
    mine = pair.resolved()
    pair.client.ask(a.CM_CONNECT, id=mine, qpn=0x20)
    theirs = pair.server.expect(cm.EVENT_CONNECT_REQUEST)["id"]
    pair.server.ask(a.CM_ACCEPT, id=theirs, qpn=0x30)
    pair.client.expect(cm.EVENT_CONNECT_RESPONSE)
    pair.client.ask(a.CM_DESTROY, id=mine)
    said = pair.server.expect(cm.EVENT_REJECTED)
    assert (said["id"], said["status"]) == (theirs, cm.REJ_CONSUMER_DEFINED)


def test_nobody_listens(pair: Pair) -> None:
    mine = pair.resolved()
    pair.client.ask(a.CM_CONNECT, id=mine, qpn=0x20)
    said = pair.client.expect(cm.EVENT_REJECTED)
    assert said["status"] == cm.REJ_INVALID_SERVICE_ID


def test_a_datagram_service_is_resolved(pair: Pair) -> None:
    pair.listen(space=cm.PS_UDP, kind=a.QP_UD)
    mine = pair.resolved(space=cm.PS_UDP, kind=a.QP_UD)
    pair.client.ask(a.CM_CONNECT, b"who", id=mine)
    event, said, private = pair.server.event()
    assert (event, said["qp_type"]) == (cm.EVENT_CONNECT_REQUEST, a.QP_UD)
    assert private == b"who".ljust(180, b"\0")
    pair.server.ask(a.CM_ACCEPT, b"me", id=said["id"], qpn=0x40, qkey=cm.UDP_QKEY)
    event, said, private = pair.client.event()
    assert (event, said["qpn"], said["qkey"]) == (cm.EVENT_ESTABLISHED, 0x40, cm.UDP_QKEY)
    assert private == b"me".ljust(136, b"\0")


def test_a_datagram_service_refuses(pair: Pair) -> None:
    pair.listen(space=cm.PS_UDP, kind=a.QP_UD)
    mine = pair.resolved(space=cm.PS_UDP, kind=a.QP_UD)
    pair.client.ask(a.CM_CONNECT, id=mine)
    pair.server.ask(a.CM_REJECT, id=pair.server.expect(cm.EVENT_CONNECT_REQUEST)["id"])
    said = pair.client.expect(cm.EVENT_UNREACHABLE)
    assert said["status"] == cm.SIDR_REJECTED


def test_a_peer_that_is_gone_is_unreachable(pair: Pair) -> None:
    mine = pair.resolved()
    pair.net.nodes[1].nic.gsi.agent = None
    pair.client.ask(a.CM_CONNECT, id=mine, qpn=0x20)
    event, said, _ = pair.client.event()
    assert (event, said["status"]) == (cm.EVENT_UNREACHABLE, 2**32 - 110)


def test_who_listens_no_more_takes_requests_along_that_nobody_saw(pair: Pair) -> None:
    listening = pair.listen()
    mine = pair.resolved()
    pair.client.ask(a.CM_CONNECT, id=mine, qpn=0x20)
    pair.net.run(lambda: pair.server.signals[0].rings == 1)
    pair.server.ask(a.CM_DESTROY, id=listening)
    assert pair.client.expect(cm.EVENT_REJECTED)["status"] == cm.REJ_CONSUMER_DEFINED
    assert pair.server.no_event()
    pair.listen()


def test_a_program_that_ends_disconnects_its_peer(pair: Pair) -> None:
    mine, _ = pair.established()
    pair.service.remove_program(pair.server, pair.net.clock())
    assert pair.client.expect(cm.EVENT_DISCONNECTED)["id"] == mine
    assert pair.server.signals[0].closed
    pair.net.run()
    assert not pair.net.nodes[1].nic.gsi.agent.connections  # type: ignore[union-attr]


def test_a_destroyed_id_disconnects_its_peer_and_says_nothing_more(pair: Pair) -> None:
    mine, theirs = pair.established()
    pair.client.ask(a.CM_DESTROY, id=mine)
    assert pair.server.expect(cm.EVENT_DISCONNECTED)["id"] == theirs
    assert pair.server.expect(cm.EVENT_TIMEWAIT_EXIT)["id"] == theirs
    assert pair.client.no_event()


def test_ports_are_each_devices_own_and_taken_once(pair: Pair) -> None:
    pair.listen(9)
    other = pair.client.create()
    pair.client.ask(a.CM_BIND, id=other, src_port=9)
    again = pair.server.create()
    with pytest.raises(OSError, match="port 9 is taken") as refused:
        pair.server.ask(a.CM_BIND, id=again, src_port=9)
    assert refused.value.errno == errno.EADDRNOTAVAIL  # both at all addresses
    udp = pair.server.create(cm.PS_UDP)
    pair.server.ask(a.CM_BIND, id=udp, src_port=9)


def test_two_that_both_say_so_share_a_port(pair: Pair) -> None:
    ids = [pair.server.create() for _ in range(2)]
    for number in ids:
        pair.server.ask(a.CM_BIND, id=number, src_port=9, flags=a.CM_REUSEADDR)
    # a listener shares it no more
    with pytest.raises(OSError, match="port 9 is taken"):
        pair.server.ask(a.CM_LISTEN, id=ids[0])
    pair.server.ask(a.CM_DESTROY, id=ids[1])
    pair.server.ask(a.CM_LISTEN, id=ids[0])
    with pytest.raises(OSError, match="port 9 is taken"):
        pair.server.ask(a.CM_BIND, id=pair.server.create(), src_port=9, flags=a.CM_REUSEADDR)


_ANY4, _ANY6 = MAPPED + bytes(4), NOWHERE


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ((_ANY4, 0), (_ANY6, a.CM_AFONLY), 0),
        ((_ANY6, a.CM_AFONLY), (_ANY4, 0), 0),
        ((_ANY4, 0), (_ANY6, 0), errno.EADDRNOTAVAIL),
        ((_ANY6, 0), (_ANY4, 0), errno.EADDRNOTAVAIL),
        ((_ANY6, 0), (_ANY6, a.CM_AFONLY), errno.EADDRNOTAVAIL),
        ((_ANY4, 0), (None, 0), errno.EADDRNOTAVAIL),
        ((None, 0), (_ANY4, 0), errno.EADDRNOTAVAIL),
        ((_ANY6, a.CM_AFONLY), (None, 0), 0),
        ((None, 0), (None, 0), errno.EADDRINUSE),
        ((None, a.CM_REUSEADDR), (None, a.CM_REUSEADDR), 0),
        ((_ANY4, a.CM_REUSEADDR), (None, a.CM_REUSEADDR), 0),
        ((None, a.CM_REUSEADDR), (None, 0), errno.EADDRINUSE),
    ],
)
def test_two_ids_at_one_port(first: tuple[bytes | None, int], second: tuple[bytes | None, int], wanted: int) -> None:
    """As Linux's ``cma_check_port`` has it, of a device that has an IPv4 address; ``None`` is that address."""
    net = SimNet(1)
    service = CmService(random.Random(3))
    service.add_device("rnic0", net.nodes[0].nic)
    program = Program(service, net)

    def bind(src: bytes | None, flags: int) -> None:
        gid = net.nodes[0].nic.gsi.gid if src is None else src
        program.ask(a.CM_BIND, id=program.create(), src=gid, src_port=9, flags=flags)

    assert net.nodes[0].nic.gsi.gid.startswith(MAPPED)
    bind(*first)
    if not wanted:
        bind(*second)
        return
    with pytest.raises(OSError, match="port 9 is taken") as refused:
        bind(*second)
    assert refused.value.errno == wanted


def test_anybody_may_bind_ports_below_1024(pair: Pair) -> None:
    """No right is asked for, and the service has none to ask of."""
    for number in (1, 1023):
        pair.listen(number)
        assert pair.client.ask(a.CM_QUERY, id=pair.resolved(number))["dst_port"] == number


def test_a_listener_that_was_not_bound_has_a_port_of_both_families(pair: Pair) -> None:
    listening = pair.server.create()
    pair.server.ask(a.CM_LISTEN, id=listening)
    port = pair.server.ask(a.CM_QUERY, id=listening)["src_port"]
    assert cm.FIRST_DYNAMIC_PORT <= port <= cm.LAST_DYNAMIC_PORT
    for address, flags in ((_ANY4, 0), (_ANY6, a.CM_AFONLY), (pair.gids[1], 0)):
        with pytest.raises(OSError, match=f"port {port} is taken"):
            pair.server.ask(a.CM_BIND, id=pair.server.create(), src=address, src_port=port, flags=flags)
    pair.client.ask(a.CM_CONNECT, id=pair.resolved(port))
    assert pair.server.expect(cm.EVENT_CONNECT_REQUEST)["listen_id"] == listening


def test_a_loopback_address_of_no_device_stands_for_all(pair: Pair) -> None:
    number = pair.server.create()
    mapped = pair.gids[1].startswith(bytes(10) + b"\xff\xff")
    loopback = bytes(10) + b"\xff\xff\x7f\0\0\x63" if mapped else bytes(15) + b"\x01"
    pair.server.ask(a.CM_BIND, id=number, src=loopback, src_port=9)
    again = pair.server.create()
    with pytest.raises(OSError, match="port 9 is taken"):
        pair.server.ask(a.CM_BIND, id=again, src=pair.gids[1], src_port=9)


def test_an_address_of_no_device_of_the_program_is_refused(pair: Pair) -> None:
    with pytest.raises(OSError, match="no device of this program") as refused:
        pair.server.ask(a.CM_BIND, id=pair.server.create(), src=pair.gids[0])
    assert refused.value.errno == errno.EADDRNOTAVAIL


def test_an_address_that_cannot_be_reached_is_an_event(pair: Pair) -> None:
    mine = pair.client.create()
    pair.client.ask(a.CM_RESOLVE_ADDR, id=mine, dst=pair.gids[1])
    assert pair.client.expect(cm.EVENT_ADDR_ERROR)["status"] == 2**32 - 19


def test_an_id_moves_to_another_channel_with_its_events(pair: Pair) -> None:
    mine = pair.client.create()
    pair.client.ask(a.CM_RESOLVE_ADDR, id=mine, src=pair.gids[0], dst=pair.gids[1])
    second = pair.client.ask(a.CM_CHANNEL)["id"]
    pair.client.ask(a.CM_MIGRATE, id=mine, channel=second)
    assert pair.client.no_event()
    assert pair.client.signals[1].rings == 1
    assert pair.client.event(second)[0] == cm.EVENT_ADDR_RESOLVED


def test_a_group_is_joined(pair: Pair) -> None:
    mine = pair.resolved(space=cm.PS_UDP, kind=a.QP_UD)
    group = bytes(10) + b"\xff\xff" + bytes((239, 0, 0, 9))
    pair.client.ask(a.CM_JOIN, id=mine, dst=group, context=0x1234)
    said = pair.client.expect(cm.EVENT_MULTICAST_JOIN)
    assert said["dst"].to_bytes(16, "little") == group
    assert (said["qpn"], said["qkey"], said["context"]) == (0xFFFFFF, cm.UDP_QKEY, 0x1234)


def test_a_device_that_goes_is_told(pair: Pair) -> None:
    mine = pair.resolved()
    pair.service.remove_device("rnic0")
    assert pair.client.expect(cm.EVENT_DEVICE_REMOVAL)["id"] == mine
    with pytest.raises(OSError, match="bound to no device"):
        pair.client.ask(a.CM_RESOLVE_ROUTE, id=mine)


@pytest.mark.parametrize("op", range(a.CM_CLOSE_CHANNEL, a.CM_LEAVE + 3))
def test_requests_that_make_no_sense_are_refused_with_words(pair: Pair, op: int) -> None:
    """Numbers of nothing, and a fresh ID that is asked for what it cannot do."""
    with pytest.raises(OSError) as refused:
        pair.client.ask(op, id=999, channel=999)
    assert refused.value.args[1]
    fresh = pair.client.create()
    needs_peer = op in (a.CM_RESOLVE_ROUTE, a.CM_JOIN, *range(a.CM_CONNECT, a.CM_NOTIFY + 1))
    if needs_peer:
        with pytest.raises(OSError):
            pair.client.ask(op, id=fresh)


def test_the_ip_header_of_annex_a11() -> None:
    src, dst = (bytes(10) + b"\xff\xff" + bytes((192, 168, 1, last)) for last in (1, 2))
    header = ip_header(src, 0x1234, dst)
    assert header == bytes.fromhex("00401234" + "00" * 12 + "c0a80101" + "00" * 12 + "c0a80102")
    assert IP_HEADER.unpack(ip_header(bytes(15) + b"\1", 5, bytes(15) + b"\2"))["ip_version"] == 6


def test_the_end_of_a_program_looks_once_at_what_it_never_took(pair: Pair) -> None:
    """Each of its IDs would else look through all events of its channel, and everybody would wait."""
    program = Program(pair.service, pair.net)
    numbers = [program.create() for _ in range(20)]
    for number in numbers:
        for _ in range(5):
            program.ask(a.CM_RESOLVE_ADDR, id=number, dst=pair.gids[1])  # no device: an event
    (channel,) = pair.service._clients[program].channels.values()
    looked = Looked(channel.events)
    channel.events = looked  # type: ignore[assignment]
    pair.service.remove_program(program, 0)
    assert looked.times <= len(numbers) + 5


@pytest.mark.parametrize("op", [a.CM_CLOSE_CHANNEL, a.CM_MIGRATE], ids=["close", "migrate"])
def test_what_waits_on_a_channel_is_looked_at_once(op: int, pair: Pair) -> None:
    """One program that lets many events wait holds up nobody else."""
    first, second = (pair.client.create() for _ in range(2))
    for _ in range(50):
        for number in (first, second):
            pair.client.ask(a.CM_RESOLVE_ADDR, id=number, dst=pair.gids[1])  # no device: an event
    old, new = pair.client.channel, pair.client.ask(a.CM_CHANNEL)["id"]
    channel = pair.service._clients[pair.client].channels[old]
    looked = Looked(channel.events)
    channel.events = looked  # type: ignore[assignment]
    if op == a.CM_MIGRATE:
        pair.client.ask(op, id=second, channel=new)
        assert looked.times <= 100
        assert [pair.client.event()[1]["id"] for _ in range(50)] == [first] * 50
        assert [pair.client.event(new)[1]["id"] for _ in range(50)] == [second] * 50
    else:
        pair.client.ask(op, channel=old)
        assert looked.times <= 100
        with pytest.raises(OSError, match="is not there"):
            pair.client.ask(a.CM_QUERY, id=first)


class Looked(deque[tuple[object, bytes]]):
    """Counts the entries that are looked at."""

    times = 0

    def __iter__(self) -> Iterator[tuple[object, bytes]]:
        for each in super().__iter__():
            self.times += 1
            yield each

    def popleft(self) -> tuple[object, bytes]:
        self.times += 1
        return super().popleft()

    def remove(self, value: tuple[object, bytes]) -> None:
        self.times += self.index(value) + 1
        super().remove(value)


@pytest.mark.parametrize("bound", [True, False])
def test_a_listener_on_all_addresses_hears_on_devices_that_come_later(bound: bool) -> None:
    net = SimNet(2)
    service = CmService(random.Random(3))
    service.add_device("rnic0", net.nodes[0].nic)
    server = Program(service, net)
    listening = server.create()
    if bound:
        server.ask(a.CM_BIND, id=listening, src_port=7174)
    port = server.ask(a.CM_LISTEN, id=listening)["src_port"]
    service.add_device("rnic1", net.nodes[1].nic)
    client = Program(service, net, "rnic0")
    number = client.create()
    gids = [node.nic.gsi.gid for node in net.nodes]
    client.ask(a.CM_RESOLVE_ADDR, id=number, src=gids[0], dst=gids[1], dst_port=port)
    client.expect(cm.EVENT_ADDR_RESOLVED)
    client.ask(a.CM_CONNECT, id=number, qpn=0x20)
    assert server.expect(cm.EVENT_CONNECT_REQUEST)["src"] == int.from_bytes(gids[1], "little")
    # the port is taken there, and free again once the listener is gone
    other = server.create()
    with pytest.raises(OSError, match="is taken"):
        server.ask(a.CM_BIND, id=other, src=gids[1], src_port=port)
    server.ask(a.CM_DESTROY, id=listening)
    server.ask(a.CM_BIND, id=other, src=gids[1], src_port=port)


def test_devices_that_come_later_and_are_not_the_listeners() -> None:
    """Of another family, of another program, or with the port taken: the listener goes on without."""
    net = SimNet(3)
    service = CmService(random.Random(3))
    service.add_device("rnic0", net.nodes[0].nic)
    first, second = Program(service, net, "rnic0,rnic2"), Program(service, net)
    listeners = []
    for program in (first, second):
        listeners.append(program.create())
        program.ask(a.CM_BIND, id=listeners[-1], src_port=7174 if program is first else 7175)
        program.ask(a.CM_LISTEN, id=listeners[-1])

    def services(node: int) -> Any:
        agent = net.nodes[node].nic.gsi.agent
        assert agent is not None
        return agent.view()["services"]

    service.add_device("rnic1", net.nodes[1].nic)
    assert sorted(services(1)) == [cm.service_id(cm.PS_TCP, 7175)]
    service.add_device("rnic2", net.nodes[2].nic)
    assert len(services(2)) == 2
    # one that goes takes its bindings along: of the same name it may come again
    service.remove_device("rnic2")
    service.add_device("rnic2", net.nodes[2].nic)
    assert len(services(2)) == 2
    # two listeners of one number: the port is the first one's there
    for program in (first, second):
        both = program.create()
        program.ask(a.CM_BIND, id=both, src_port=7180)
        if program is first:
            service.remove_device("rnic2")
            service.remove_device("rnic0")
    service.add_device("rnic2", net.nodes[2].nic)
    assert net.nodes[2].nic.counters["cm_late_listeners_refused"] == 1


def test_more_names_of_devices_than_one_request_holds() -> None:
    net = SimNet(2)
    service = CmService(random.Random(3))
    for node in net.nodes:
        service.add_device(f"rnic{node.index}", node.nic)
    program = Program(service, net, "rnic7")
    program.ask(a.CM_OPEN, b"rnic1", flags=a.CM_MORE)
    listening = program.create()
    program.ask(a.CM_BIND, id=listening, src=net.nodes[1].nic.gsi.gid, src_port=7174)
    other = program.create()
    with pytest.raises(OSError, match="no device of this program has this address"):
        program.ask(a.CM_BIND, id=other, src=net.nodes[0].nic.gsi.gid, src_port=7174)
    program.ask(a.CM_OPEN, b"rnic0")
    program.ask(a.CM_BIND, id=other, src=net.nodes[0].nic.gsi.gid, src_port=7174)


def test_an_answer_may_be_the_event(pair: Pair) -> None:
    """A program that says so is told of addresses and routes at once, and no event waits."""
    number = pair.client.create()
    signal = pair.client.signals[0]
    where: dict[str, Any] = {"src": pair.gids[0], "dst": pair.gids[1], "dst_port": 7174}
    said = pair.client.ask(a.CM_RESOLVE_ADDR, id=number, flags=a.CM_TELL, **where)
    assert (said["event"], said["status"], said["device"] > 0) == (cm.EVENT_ADDR_RESOLVED, 0, True)
    said = pair.client.ask(a.CM_RESOLVE_ROUTE, id=number, flags=a.CM_TELL)
    assert (said["event"], said["id"]) == (cm.EVENT_ROUTE_RESOLVED, number)
    assert signal.rings == 0
    assert pair.client.no_event()
    other = pair.client.create()
    said = pair.client.ask(a.CM_RESOLVE_ADDR, id=other, flags=a.CM_TELL, dst=pair.gids[1])
    assert said["event"] == cm.EVENT_ADDR_ERROR, "no device has the address 0"
    with pytest.raises(OSError, match="bound to no device"):
        pair.client.ask(a.CM_RESOLVE_ROUTE, id=other, flags=a.CM_TELL)
    pair.client.ask(a.CM_RESOLVE_ADDR, id=other, **where)
    assert signal.rings == 1, "who does not say so is told on the channel, also after one that was refused"


def test_one_answer_holds_as_many_events_as_are_asked_for(pair: Pair) -> None:
    numbers = [pair.client.create() for _ in range(a.CM_MOST_EVENTS + 3)]
    for number in numbers:
        pair.client.ask(a.CM_RESOLVE_ADDR, id=number, src=pair.gids[0], dst=pair.gids[1], dst_port=7174)

    def told(most: int) -> list[int]:
        answer = pair.client.raw(a.CM_GET_EVENT, channel=pair.client.channel, value=most)
        return [a.CM_RECORD.get(answer, "id", at) for at in range(0, len(answer), a.CM_RECORD.size)]

    seen = [told(0), told(2), told(1 << 31)]
    assert [len(each) for each in seen] == [1, 2, a.CM_MOST_EVENTS]
    assert [number for each in seen for number in each] == numbers
    assert pair.client.no_event()


def test_an_event_that_goes_unfetched_takes_its_ring_back(pair: Pair) -> None:
    """Or who polls the channel's descriptor would wait in it for an event that is not there."""
    client = pair.client
    other = client.ask(a.CM_CHANNEL)["id"]
    first, second = client.create(), client.create()
    before = [signal.rings for signal in client.signals]
    for number in (first, second):
        client.ask(a.CM_RESOLVE_ADDR, id=number, src=pair.gids[0], dst=pair.gids[1], dst_port=7174)
    client.ask(a.CM_MIGRATE, id=first, channel=other)
    assert [signal.rings for signal in client.signals] == [before[0] + 1, before[1] + 1]
    client.ask(a.CM_DESTROY, id=second)
    assert [signal.rings for signal in client.signals] == [before[0], before[1] + 1]
    assert client.event(other)[1]["id"] == first


def test_requests_that_go_with_their_listener_take_their_rings_back(pair: Pair) -> None:
    listening = pair.listen()
    number = pair.resolved()
    pair.client.ask(a.CM_CONNECT, id=number, qpn=7)
    signal = pair.server.signals[0]
    before = signal.rings
    pair.net.run(lambda: signal.rings > before, 1_000_000_000)
    pair.server.ask(a.CM_DESTROY, id=listening)
    assert signal.rings == before
    assert pair.server.no_event()
