"""Each test twice: with the queues of Python, and with the engine's wires in their place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rnic.engine import use
from rnic.link.base import Link, LinkError
from rnic.link.loopback import MAX_FRAMES, Fabric, LoopbackLink, loopback_pair
from rnic.wire.bursts import Buffer, TxBurst
from rnic.wire.flow import Flow

A, B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
GROUP = bytes([239, 0, 0, 1])


@pytest.fixture(autouse=True, params=["queue", "wire"])
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "queue":
        return
    if use.COMPILED is None:
        pytest.skip("the engine is not compiled: there are no wires")
    loopback = use.COMPILED.Loopback
    attach: Callable[..., LoopbackLink] = Fabric.attach

    def wired(*args: object, **settings: object) -> LoopbackLink:
        link = attach(*args, **settings)
        link.use_wire(loopback(link.window_bytes))
        return link

    monkeypatch.setattr(Fabric, "attach", wired)


def burst(flow: Flow, *buffers: Buffer, segment: int = 0) -> TxBurst:
    length = sum(map(len, buffers))
    segment = segment or length
    return TxBurst(flow, list(buffers), segment, -(-length // segment), length)


def test_a_burst_arrives_whole_with_known_idents() -> None:
    a, b = loopback_pair(A, B)
    flow = a.local_flow(B, b.port)
    flow.tclass = 2
    flow.hop_limit = 9
    a.send([burst(flow, b"ab", b"cdef", b"g", segment=3)])
    (got,) = b.receive(8)
    assert bytes(got.buf) == b"abcdefg"
    assert (got.segment, got.length, got.ident, got.frag) == (3, 7, 0, 0x4000)
    assert repr(got.flow) == repr(flow)
    assert (got.tclass, got.ecn, got.hop_limit) == (2, 2, 9)
    assert b.receive(8) == []
    assert a.receive(8) == []


def test_buffers_are_the_senders_again() -> None:
    a, b = loopback_pair(A, B)
    memory = bytearray(b"before")
    a.send([burst(a.local_flow(B, b.port), memoryview(memory))])
    memory[:] = b"after!"
    assert bytes(b.receive(1)[0].buf) == b"before"


def test_receive_gives_no_more_than_its_limit_and_keeps_order() -> None:
    a, b = loopback_pair(A, B)
    flow = a.local_flow(B, b.port)
    a.send([burst(flow, bytes([i])) for i in range(5)])
    assert [bytes(got.buf) for got in b.receive(2)] == [b"\0", b"\1"]
    assert [bytes(got.buf) for got in b.receive(9)] == [b"\2", b"\3", b"\4"]


def test_a_nic_talks_to_itself() -> None:
    a = Fabric().attach(A)
    a.send([burst(a.local_flow(A, a.port), b"me")])
    (got,) = a.receive(1)
    assert (bytes(got.buf), got.flow.src, got.flow.dst) == (b"me", A, A)


def test_links_are_told_apart_by_address_and_port() -> None:
    fabric = Fabric()
    links = {(address, port): fabric.attach(address, port) for address in (A, B) for port in (4791, 4792)}
    for (address, port), link in links.items():
        flow = links[A, 4791].local_flow(address, port, sport=50_000)
        assert flow.sport == 50_000
        links[A, 4791].send([burst(flow, address + bytes([port & 0xFF]))])
        assert [bytes(got.buf) for got in link.receive(9)] == [address + bytes([port & 0xFF])]
    assert all(link.receive(9) == [] for link in links.values())


def test_unknown_destination_is_a_counted_drop() -> None:
    a, _ = loopback_pair(A, B)
    a.send([burst(a.local_flow(B, 1), b"xy", segment=1)])
    assert a.counters["drop_tx_unreachable"] == 2


def test_a_full_queue_is_a_counted_drop() -> None:
    fabric = Fabric()
    a, b = fabric.attach(A), fabric.attach(B, queue_bytes=100)
    flow = a.local_flow(B, b.port)
    a.send([burst(flow, bytes(60)), burst(flow, bytes(60), segment=30), burst(flow, bytes(40))])
    assert [got.length for got in b.receive(9)] == [60, 40]
    assert b.counters["drop_rx_queue_full"] == 2
    assert b.receive(9) == []  # nobody looks at those any more
    a.send([burst(flow, bytes(100))])
    assert [got.length for got in b.receive(9)] == [100]


def test_whole_packets_are_carried_as_they_are() -> None:
    fabric = Fabric()
    links = [fabric.attach(A, 4791), fabric.attach(A, 4792), fabric.attach(B)]
    for number in range(MAX_FRAMES + 3):
        fabric.carry(A, bytes([number & 255]))
    assert [len(link.frames) for link in links] == [MAX_FRAMES, MAX_FRAMES, 0]
    assert links[0].frames[1] == b"\1"
    assert links[0].counters["drop_rx_queue_full"] == 3
    assert links[0].receive(4) == []
    links[0].close()
    fabric.carry(A, b"late")
    assert len(links[0].frames) == 0


def test_a_taken_place_is_refused() -> None:
    fabric = Fabric()
    fabric.attach(A)
    with pytest.raises(LinkError, match=r"UDP port 4791 on 10\.0\.0\.1 is taken on this fabric: give another port"):
        fabric.attach(A)


def test_multicast_reaches_every_member_once() -> None:
    fabric = Fabric()
    a, b, c = (fabric.attach(bytes([10, 0, 0, i])) for i in (1, 2, 3))
    for link in (a, b, b):
        link.join(GROUP)
    flow = a.local_flow(GROUP, 4791)
    a.send([burst(flow, b"all")])
    assert [[bytes(got.buf) for got in link.receive(9)] for link in (a, b, c)] == [[b"all"], [b"all"], []]
    b.leave(GROUP)
    b.leave(GROUP)
    a.close()
    c.send([burst(c.local_flow(GROUP, 4791), b"none")])
    assert c.counters["drop_tx_unreachable"] == 1
    with pytest.raises(LinkError, match="is not a multicast address"):
        c.join(A)


def test_close() -> None:
    a, b = loopback_pair(A, B)
    flow = a.local_flow(B, b.port)
    a.send([burst(flow, b"x")])
    b.close()
    b.close()
    assert b.receive(9) == []
    a.send([burst(flow, b"x")])
    assert a.counters["drop_tx_unreachable"] == 1
    with pytest.raises(LinkError, match=r"loopback link 10\.0\.0\.2 port 4791 is closed"):
        b.send([burst(b.local_flow(A, 4791), b"x")])


def test_it_is_a_link() -> None:
    link: Link = Fabric().attach(A, mtu=1500, max_segments=7)
    flow = link.local_flow(B, 4791)
    link.allow_gso(flow)
    assert (link.max_segments(flow), link.mtu) == (7, 1500)
    assert (link.fileno(), link.filenos(), link.next_deadline_ns()) == (None, [], None)
    assert link.window_bytes > 0
    assert link.window_packets > 0
