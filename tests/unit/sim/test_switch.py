"""Links and switches by themselves: times, marks, pauses, room."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from rnic.sim.agenda import Agenda
from rnic.sim.port import IPV4_WIRE_BYTES, PAUSE_WIRE_BYTES, Packet, Port
from rnic.sim.switch import Switch
from rnic.sim.topology import Link
from rnic.sim.topology import Switch as Row
from rnic.wire.bursts import TxBurst
from rnic.wire.flow import ECT, Flow

FAR = b"\x0a\0\0\2"
SIZE = 1_000
"""Bytes of a packet on the wire."""
BYTE_NS = 8
"""At 1 Gb/s."""
HEADROOM = 2 * 501 // BYTE_NS + PAUSE_WIRE_BYTES + 2 * SIZE
"""What a link of 1 Gb/s and 500 ns needs: its delay both ways, a PFC frame, a packet at each end."""


def packet(tclass: int = ECT, way: int = 0, priority: int = 0) -> Packet:
    length = SIZE - IPV4_WIRE_BYTES
    flow = Flow(b"\x0a\0\0\1", FAR, 1, tclass=tclass)
    return Packet(TxBurst(flow, [bytes(length)], length, 1, length), way, priority)


class Bench:
    """One switch with ``inputs`` links towards it, and ``outputs`` to where everything goes, all of 1 Gb/s, 500 ns."""

    def __init__(self, row: Row, inputs: int = 1, outputs: int = 1, loss: float = 0.0) -> None:
        self.agenda = Agenda()
        self.switch = Switch(row, random.Random(1), 0)
        self.arrived: list[tuple[int, int, Packet]] = []
        """Time, output, packet."""
        self._headroom = HEADROOM if row.headroom_bytes is None else row.headroom_bytes
        self.near = [self._link(0.0)[1] for _ in range(inputs)]
        self.far = []
        for number in range(outputs):
            port, _ = self._link(loss, row.weights)
            port.arrive = partial(self._arrive, number)
            self.far.append(port)
        self.switch.routes[FAR] = tuple(self.far)

    def _arrive(self, number: int, packet: Packet) -> None:
        self.arrived.append((self.agenda.now_ns, number, packet))

    def _link(self, loss: float, weights: tuple[int, ...] = ()) -> tuple[Port, Port]:
        """A port of the switch, and the one at the other end of its link."""
        link = Link("s", "x", gbps=1, delay_ns=500, loss=loss)
        port, other = (Port(self.agenda, "", link, random.Random(1), 0, weights) for _ in range(2))
        port.peer, other.peer = other, port
        number = self.switch.add(port, self._headroom)
        port.left, other.left = self.switch.left, lambda packet: None
        other.arrive = lambda packet: self.switch.arrive(packet, number)
        return port, other

    def send(self, count: int, **how: int) -> None:
        """So many packets from every input at once."""
        for port in self.near:
            for _ in range(count):
                port.put(packet(**how))

    def run(self) -> None:
        while self.agenda.step():
            pass
        assert self.switch.buffered_bytes == 0


def test_a_packet_takes_its_length_and_the_delay_at_each_hop() -> None:
    bench = Bench(Row("s"))
    bench.send(3)
    bench.run()
    hop = SIZE * BYTE_NS + 500
    assert [time for time, _, _ in bench.arrived] == [2 * hop, 2 * hop + SIZE * BYTE_NS, 2 * hop + 2 * SIZE * BYTE_NS]


def test_a_rate_is_kept_exactly_over_many_packets() -> None:
    """At 3 Gb/s a packet of 1,000 bytes takes 2,666.67 ns."""
    agenda = Agenda()
    port = Port(agenda, "", Link("a", "b", gbps=3, delay_ns=0), random.Random(1), 0)
    times: list[int] = []
    port.left = lambda packet: None
    port.arrive = lambda packet: times.append(agenda.now_ns)
    for _ in range(300):
        port.put(packet())
    while agenda.step():
        pass
    assert times[-1] == 800_000


def test_losses() -> None:
    bench = Bench(Row("s"), loss=0.1)
    bench.send(1_000)
    bench.run()
    (out,) = bench.far
    assert out.lost + len(bench.arrived) == out.sent == 1_000
    assert 60 < out.lost < 140


def test_what_finds_no_room_is_dropped_and_the_rest_comes() -> None:
    bench = Bench(Row("s", buffer_bytes=10 * SIZE), inputs=4)
    bench.send(20)
    bench.run()
    assert bench.switch.dropped > 0
    assert bench.switch.dropped + len(bench.arrived) == 80
    assert bench.switch.peak_bytes == 10 * SIZE


@pytest.mark.parametrize("inputs", [2, 5])
def test_pauses_lose_nothing_where_the_headroom_holds_what_is_on_its_way(inputs: int) -> None:
    row = Row("s", buffer_bytes=inputs * 3 * SIZE, xoff_bytes=3 * SIZE, xon_bytes=2 * SIZE)
    bench = Bench(row, inputs=inputs)
    bench.send(100)
    bench.run()
    assert bench.switch.dropped == 0
    assert len(bench.arrived) == 100 * inputs
    assert all(port.pauses > 1 for port in bench.near)
    assert all(not port.paused and port.paused_ns > 0 for port in bench.near)
    # a paused sender costs no time: the output never stands
    assert bench.arrived[-1][0] == 2 * (SIZE * BYTE_NS + 500) + (100 * inputs - 1) * SIZE * BYTE_NS


def test_without_headroom_pauses_come_too_late() -> None:
    row = Row("s", buffer_bytes=8 * 3 * SIZE, xoff_bytes=3 * SIZE, xon_bytes=2 * SIZE, headroom_bytes=0)
    bench = Bench(row, inputs=8)
    bench.send(100)
    bench.run()
    assert bench.switch.dropped > 0


def test_packets_beyond_xoff_use_headroom_not_the_shared_buffer() -> None:
    """Each link holds no more than its threshold of the buffer, however full its headroom is."""
    row = Row("s", buffer_bytes=100 * SIZE, xoff_bytes=3 * SIZE, xon_bytes=2 * SIZE)
    bench = Bench(row, inputs=4)
    most = 0
    bench.send(100)
    while bench.agenda.step():
        most = max(most, bench.switch.buffered_bytes)
    assert most == 4 * 3 * SIZE
    assert bench.switch.dropped == 0
    assert bench.switch.peak_bytes > most


@pytest.mark.parametrize("buffer", [2, 5, 12])
def test_headroom_prevents_loss_in_a_buffer_below_the_sum_of_thresholds(buffer: int) -> None:
    bench = Bench(Row("s", buffer_bytes=buffer * SIZE, xoff_bytes=3 * SIZE, xon_bytes=2 * SIZE), inputs=6)
    bench.send(100)
    bench.run()
    assert bench.switch.dropped == 0
    assert len(bench.arrived) == 600
    assert not any(port.paused for port in bench.near)


def test_a_pause_stops_its_priority_alone() -> None:
    row = Row("s", buffer_bytes=1_000 * SIZE, xoff_bytes=3 * SIZE, xon_bytes=2 * SIZE)
    bench = Bench(row, inputs=2)
    for port in bench.near:
        for _ in range(60):
            port.put(packet(priority=0))
    for _ in range(20):
        bench.near[0].put(packet(priority=5))
    bench.run()
    assert bench.switch.dropped == 0
    urgent = [time for time, _, each in bench.arrived if each.priority == 5]
    others = [time for time, _, each in bench.arrived if each.priority == 0]
    # strict: they wait for the packet that has begun at either hop, and for no pause
    assert urgent[-1] < 2 * (SIZE * BYTE_NS + 500) + 24 * SIZE * BYTE_NS < others[-1] / 4


def test_a_priority_without_pfc_loses_packets_and_is_never_paused() -> None:
    row = Row("s", buffer_bytes=8 * SIZE, xoff_bytes=3 * SIZE, xon_bytes=2 * SIZE, pfc_priorities=(3,))
    for priority, lossless in ((3, True), (0, False)):
        bench = Bench(row, inputs=4)
        bench.send(50, priority=priority)
        bench.run()
        assert (bench.switch.dropped == 0) is lossless
        assert all((port.pauses > 0) is lossless for port in bench.near)


def test_weights_share_a_port_and_weight_0_goes_first() -> None:
    weights = (1, 3, 0, 0, 0, 0, 0, 0)
    bench = Bench(Row("s", buffer_bytes=10_000 * SIZE, weights=weights), inputs=3)
    for priority, port in enumerate(bench.near):
        for _ in range(400):
            port.put(packet(priority=priority))
    bench.run()
    order = [each.priority for _, _, each in bench.arrived]
    first = order[: 3 * 400 // 2]
    # the strict one has all that its link brings, which is the port's whole rate; then 1 to 3
    assert first.count(2) >= 398
    both = [priority for priority in order if priority < 2][:400]
    assert both.count(1) == pytest.approx(3 * both.count(0), rel=0.1)


@pytest.mark.parametrize("alpha", [0.5, 2])
def test_a_dynamic_threshold_leaves_a_part_of_the_buffer_free(alpha: float) -> None:
    """Of a buffer of B, one queue takes B alpha / (1 + alpha), with PFC for its link, without for itself."""
    whole = 100 * SIZE
    expected = whole * alpha / (1 + alpha)
    rows: list[dict[str, Any]] = [{}, {"xoff_bytes": whole, "xon_bytes": whole - 2 * SIZE}]
    for more in rows:
        bench = Bench(Row("s", buffer_bytes=whole, alpha=alpha, **more), inputs=3 if not more else 1)
        if more:  # one link, whose packets find their way blocked
            bench.far[0].stop(0, stop=True)
        bench.send(150)
        most = 0
        while bench.agenda.step():
            most = max(most, bench.switch.buffered_bytes)
        assert most == pytest.approx(expected, abs=2 * SIZE)
        assert (bench.switch.dropped > 0) is (not more)


class _Watched:
    """A port, and how long its queue was for each packet that joined it, and whether that was marked."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.marked = 0
        self.class_bytes = port.class_bytes
        self.joined: list[tuple[int, bool]] = []

    def put(self, packet: Packet) -> None:
        self.joined.append((self.port.queued_bytes, packet.ce))
        self.port.put(packet)


def test_marks_begin_at_kmin_and_are_certain_from_kmax_on() -> None:
    bench = Bench(Row("s", kmin_bytes=5 * SIZE, kmax_bytes=20 * SIZE, pmax=0.2), inputs=2)
    (out,) = bench.far
    watched = _Watched(out)
    bench.switch.routes[FAR] = (watched,)  # type: ignore[assignment]
    bench.send(1_000)
    bench.run()
    queued = watched.joined
    below = [ce for length, ce in queued if length <= 5 * SIZE]
    between = [(length, ce) for length, ce in queued if 5 * SIZE < length < 20 * SIZE]
    above = [ce for length, ce in queued if length >= 20 * SIZE]
    assert not any(below)
    assert all(above)
    assert above
    expected = sum(0.2 * (length - 5 * SIZE) / (15 * SIZE) for length, _ in between)
    assert sum(ce for _, ce in between) == pytest.approx(expected, abs=4 * expected**0.5 + 1)


def test_who_does_not_understand_marks_gets_none() -> None:
    bench = Bench(Row("s", kmax_bytes=SIZE), inputs=2)
    bench.send(20, tclass=0)
    bench.run()
    assert not any(packet.ce for _, _, packet in bench.arrived)


def test_a_flow_keeps_to_one_way_and_many_use_all() -> None:
    bench = Bench(Row("s"), outputs=4)
    for way in range(400):
        bench.near[0].put(packet(way=way))
        bench.near[0].put(packet(way=way))
    bench.run()
    ways: dict[int, set[int]] = {}
    for _, at, each in bench.arrived:
        ways.setdefault(each.way, set()).add(at)
    assert all(len(used) == 1 for used in ways.values())
    counts = [sum(used == {at} for used in ways.values()) for at in range(4)]
    assert min(counts) > 60
