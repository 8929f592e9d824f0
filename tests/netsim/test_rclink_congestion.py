"""RC Link and congestion marks: in virtual time a queue that marks, and a mark on a real socket."""

from __future__ import annotations

import random
import time

import pytest

from rnic.link.faults import FaultRates, FaultyLink
from rnic.link.udp import UdpLink
from rnic.rclink import Path, RcLinkConfig, RcLinkPort, set_up
from rnic.rclink import registers as r
from rnic.testing import RcLinkNet

WINDOW_NS = 4_096
SPEED = 3 * 1_000
"""Three packets a window; a wire of 2 us a packet carries two."""


def stream(net: RcLinkNet, packets: int) -> int:
    """Send packets of 1000 bytes one after the other; virtual time that it took."""
    one, two = (port.endpoint for port in net.ports)
    one.write(r.QP_ID_SET, 1)
    one.write(r.TX_SPEED, SPEED)
    sent = got = 0
    start = net.clock.now_ns

    def over() -> bool:
        nonlocal sent, got
        while sent < packets and one.free_slots:
            one.send(1, bytes(1_000))
            sent += 1
        while two.recv() is not None:
            got += 1
        return got == packets

    assert net.run(over)
    return net.clock.now_ns - start


def marked(halves: bool) -> tuple[int, int]:
    """Marked packets of 400, and the time, over a wire that is slower than the QP's rate and faster than half of it."""
    settings = {"qp_num": 4, "cnp_halves": halves, "cnp_timer_ns": 100_000, "ost": 256}
    net = RcLinkNet(packet_ns=2_000, latency_ns=3_000, mark_packets=4, settings=settings)
    net.connect(0, 1, 1, 2)
    elapsed = stream(net, 400)
    one, two = (port.endpoint for port in net.ports)
    assert two.counters["ecn_received"] == net.ports[0].link.counters["marked_tx"] > 0
    assert one.counters["cnps_received"] == two.counters["cnps_sent"] >= 2
    assert one.next_congestion() == 1
    assert one.counters["retransmitted_packets"] == 0
    return two.counters["ecn_received"], elapsed


def test_a_queue_that_marks_slows_a_qp_that_listens() -> None:
    """Without a reaction the queue fills and every packet is marked; with it, some are, and the wire is kept busy."""
    deaf, deaf_ns = marked(halves=False)
    listening, listening_ns = marked(halves=True)
    assert deaf > 350
    assert listening < deaf / 2
    assert 400 * 2_000 <= deaf_ns < listening_ns < deaf_ns * 1.4


def test_without_ect_nothing_is_marked() -> None:
    net = RcLinkNet(packet_ns=2_000, mark_packets=4, settings={"qp_num": 4, "tclass": 0})
    net.connect(0, 1, 1, 2)
    stream(net, 50)
    assert net.ports[1].endpoint.counters["ecn_received"] == 0


def test_without_icrc_both_ways() -> None:
    net = RcLinkNet(settings={"qp_num": 4, "icrc": False})
    net.connect(0, 1, 1, 2)
    stream(net, 10)
    assert net.ports[1].endpoint.counters["rx_send"] == 10


def test_when_a_port_wants_to_be_called() -> None:
    net = RcLinkNet(settings={"qp_num": 4})
    net.connect(0, 1, 1, 2)
    one, two = net.ports
    assert one.next_deadline_ns() is None
    one.endpoint.send(1, b"x")
    assert one.next_deadline_ns() == net.clock.now_ns
    one.progress()
    assert one.next_deadline_ns() == 244 * WINDOW_NS, "the retry timer"
    two.progress()
    assert two.next_deadline_ns() == WINDOW_NS, "the merged ACK"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_marks_on_a_real_socket(address: str) -> None:
    """Every packet marked on its way out: the other socket sees it, a CNP comes back."""
    links = [UdpLink(address, 0, gso=False, gro=False) for _ in range(2)]
    clock = time.monotonic_ns
    marking = FaultyLink(links[0], clock=clock, rng=random.Random(1), tx=FaultRates(mark=1.0))
    try:
        ports = [RcLinkPort(link, RcLinkConfig(port=link.port, qp_num=4), clock) for link in (marking, links[1])]
        for port, peer, qpid in ((ports[0], links[1], 1), (ports[1], links[0], 1)):
            set_up(port.endpoint, qpid, Path(peer.address, 1, peer.port))
        ports[0].endpoint.send(1, b"marked")
        deadline = time.monotonic() + 10
        while ports[0].endpoint.next_congestion() is None:
            for port in ports:
                port.progress()
            assert time.monotonic() < deadline
        received = ports[1].endpoint.recv()
        assert received is not None
        assert received.payload == b"marked"
        assert ports[1].endpoint.counters["ecn_received"] >= 1
    finally:
        for link in links:
            link.close()
