"""Links and switches by themselves: times, marks, pauses, room."""

from __future__ import annotations

import random
from functools import partial

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


def packet(tclass: int = ECT, way: int = 0) -> Packet:
    length = SIZE - IPV4_WIRE_BYTES
    return Packet(TxBurst(Flow(b"\x0a\0\0\1", FAR, 1, tclass=tclass), [bytes(length)], length, 1, length), way)


class Bench:
    """One switch with ``inputs`` links towards it, and ``outputs`` to where everything goes, all of 1 Gb/s, 500 ns."""

    def __init__(self, row: Row, inputs: int = 1, outputs: int = 1, loss: float = 0.0) -> None:
        self.agenda = Agenda()
        self.switch = Switch(row, random.Random(1), 0)
        self.arrived: list[tuple[int, int, Packet]] = []
        """Time, output, packet."""
        self.near = [self._link(0.0)[1] for _ in range(inputs)]
        self.far = []
        for number in range(outputs):
            port, _ = self._link(loss)
            port.arrive = partial(self._arrive, number)
            self.far.append(port)
        self.switch.routes[FAR] = tuple(self.far)

    def _arrive(self, number: int, packet: Packet) -> None:
        self.arrived.append((self.agenda.now_ns, number, packet))

    def _link(self, loss: float) -> tuple[Port, Port]:
        """A port of the switch, and the one at the other end of its link."""
        link = Link("s", "x", gbps=1, delay_ns=500, loss=loss)
        port, other = (Port(self.agenda, "", link, random.Random(1), 0) for _ in range(2))
        port.peer, other.peer = other, port
        number = self.switch.add(port)
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
    # until a link stands, what its delay holds both ways and two packets at its ends still come
    headroom = 4 * SIZE + 2 * 500 // BYTE_NS + PAUSE_WIRE_BYTES
    row = Row("s", buffer_bytes=inputs * 3 * SIZE, xoff_bytes=3 * SIZE, xon_bytes=2 * SIZE, headroom_bytes=headroom)
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
    row = Row("s", buffer_bytes=8 * 3 * SIZE, xoff_bytes=3 * SIZE, xon_bytes=2 * SIZE)
    bench = Bench(row, inputs=8)
    bench.send(100)
    bench.run()
    assert bench.switch.dropped > 0


class _Watched:
    """A port, and how long its queue was for each packet that joined it, and whether that was marked."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.marked = 0
        self.joined: list[tuple[int, bool]] = []

    @property
    def queued_bytes(self) -> int:
        return self.port.queued_bytes

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
