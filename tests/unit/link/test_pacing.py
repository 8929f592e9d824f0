from __future__ import annotations

import pytest

from rnic.link.loopback import loopback_pair
from rnic.link.pacing import PacedLink
from rnic.wire.bursts import TxBurst
from rnic.wire.flow import Flow


class Wire:
    """Links a and b, with a wire of 10 ns a packet and 100 ns long from a on."""

    def __init__(self, **settings: int) -> None:
        self.now_ns = 1_000
        inner, self.b = loopback_pair()
        self.a = PacedLink(inner, clock=lambda: self.now_ns, **({"packet_ns": 10, "latency_ns": 100} | settings))
        self.flow: Flow = self.a.local_flow(self.b.address, self.b.port)

    def send(self, *names: bytes) -> None:
        data = [name * 20 for name in names]
        self.a.send([TxBurst(self.flow, list(data), 20, len(data), 20 * len(data))])

    def arrived(self, now_ns: int) -> bytes:
        self.now_ns = now_ns
        assert self.a.receive(8) == []
        bursts = self.b.receive(99)
        assert all(burst.length == 20 for burst in bursts)
        return b"".join(bytes(burst.buf[:1]) for burst in bursts)


def test_one_packet_after_another_and_each_after_the_latency() -> None:
    wire = Wire()
    assert wire.a.next_deadline_ns() is None
    wire.send(b"a", b"b", b"c")
    assert wire.a.next_deadline_ns() == 1_110
    assert [wire.arrived(now) for now in (1_109, 1_110, 1_119, 1_130)] == [b"", b"a", b"", b"bc"]
    assert wire.a.next_deadline_ns() is None


def test_a_busy_wire_makes_the_next_burst_wait_and_an_idle_one_does_not() -> None:
    wire = Wire()
    wire.send(b"a", b"b")
    wire.now_ns = 1_005
    wire.send(b"c")
    assert [wire.arrived(now) for now in (1_120, 1_129, 1_130)] == [b"ab", b"", b"c"]
    wire.now_ns = 2_000
    wire.send(b"d")
    assert wire.a.next_deadline_ns() == 2_110


def test_what_is_due_leaves_with_what_is_sent() -> None:
    wire = Wire(packet_ns=0, latency_ns=0)
    wire.send(b"a", b"b")
    assert len(wire.b.receive(9)) == 2


def test_the_queue_is_bounded() -> None:
    wire = Wire(queue_packets=2)
    wire.send(b"a", b"b", b"c")
    assert wire.a.counters["drop_tx_queue_full"] == 1
    assert wire.arrived(9_999) == b"ab"


def test_the_inner_links_deadline_counts() -> None:
    wire = Wire()
    wire.a.inner.next_deadline_ns = lambda: 1_050  # type: ignore[method-assign]
    assert wire.a.next_deadline_ns() == 1_050
    wire.send(b"a")
    assert wire.a.next_deadline_ns() == 1_050
    wire.a.inner.next_deadline_ns = lambda: 1_500  # type: ignore[method-assign]
    assert wire.a.next_deadline_ns() == 1_110


@pytest.mark.parametrize("settings", [{"packet_ns": -1}, {"latency_ns": -1}, {"queue_packets": 0}])
def test_what_cannot_be(settings: dict[str, int]) -> None:
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"wire {name}={value} cannot be: give {value + 1} or more"):
        Wire(**settings)
