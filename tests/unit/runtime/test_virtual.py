from __future__ import annotations

import random

import pytest

from rnic.device import Nic, NicConfig
from rnic.link.loopback import loopback_pair
from rnic.runtime import Runtime
from rnic.runtime.virtual import SimLoop, VirtualClock
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow


def make_loop(count: int = 2) -> tuple[SimLoop, list[Runtime]]:
    loop = SimLoop()
    runtimes = []
    for index, link in enumerate(loopback_pair()[:count]):
        nic = Nic(NicConfig(link.address), rng=random.Random(index))
        runtimes.append(Runtime(nic, link, loop.clock))
        loop.add(runtimes[-1])
    return loop, runtimes


def arrive(runtime: Runtime) -> None:
    """A packet that the NIC will drop."""
    flow = Flow(b"\x7f\0\0\x63", runtime.link.address, 4791)
    data = memoryview(bytes(20))
    runtime.link._queue.append(RxBurst(flow, data, 20, 20, 0))  # type: ignore[attr-defined]


def test_time_moves_only_where_something_moves() -> None:
    loop, runtimes = make_loop()
    assert not loop.step()
    assert loop.clock() == 0
    arrive(runtimes[0])
    assert loop.step()
    assert loop.clock() == loop.round_ns
    assert runtimes[0].nic.counters["rx_packets"] == 1


def test_run_until() -> None:
    loop, runtimes = make_loop()
    arrive(runtimes[1])
    assert loop.run(lambda: runtimes[1].nic.counters["rx_packets"] == 1)
    assert not loop.run(lambda: False)
    assert loop.run()
    assert loop.next_deadline_ns() is None


def test_the_clock_does_not_turn_back() -> None:
    clock = VirtualClock(5)
    clock.advance(0)
    assert clock() == 5
    with pytest.raises(ValueError, match="delta_ns=-1"):
        clock.advance(-1)
