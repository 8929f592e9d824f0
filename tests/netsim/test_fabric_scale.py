"""What a fabric costs: memory of a NIC and of a flow, events of a packet."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from rnic.engine import use
from rnic.sim import Fabric, Flow, Topology, all_to_all

pytestmark = pytest.mark.skipif(use.ENGINE is None, reason="the engine is not compiled")
NICS = 16


@pytest.mark.slow
def test_a_nic_and_a_flow_take_little_memory_and_leave_none_behind() -> None:
    """Mapped pages are not counted: those that nothing touches cost nothing."""
    settings = {"log_max_qps": 8}
    with Fabric(Topology.star(2), settings=settings) as fabric:  # what is made once
        fabric.add([Flow("h0", "h1", 1)])
        fabric.run()
    gc.collect()
    tracemalloc.start()
    try:
        with Fabric(Topology.star(NICS), settings=settings) as fabric:
            fabric.add(Flow(f"h{at}", f"h{(at + 1) % NICS}", 4_096) for at in range(NICS))
            gc.collect()
            nic = tracemalloc.get_traced_memory()[0] / NICS
            for _ in range(2):
                before = tracemalloc.get_traced_memory()[0]
                now_ns = fabric.agenda.now_ns
                pairs = [(at, (at + 1 + i % 3) % NICS) for at in range(NICS) for i in range(20)]
                fabric.add(Flow(f"h{at}", f"h{to}", 4_096, now_ns) for at, to in pairs)
                flow = (tracemalloc.get_traced_memory()[0] - before) / NICS / 20
                fabric.run()
                fabric.results.clear()
                left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert nic < 120_000
    assert flow < 6_000
    assert left < 20 * NICS * 300
    assert gc.isenabled()


@pytest.mark.slow
def test_a_packet_takes_few_events() -> None:
    """Two ports, two wires, and the rounds of two NICs: timers add next to nothing."""
    with Fabric(Topology.star(8), settings={"log_max_qps": 8}) as fabric:
        fabric.add(all_to_all(list(fabric.hosts), 64 << 10))
        fabric.run()
        arrived = sum(port.sent for (_, there), port in fabric.ports.items() if there in fabric.hosts)
        assert fabric.agenda.events < 6 * arrived


def test_what_the_program_froze_stays_frozen() -> None:
    """A run keeps collections off the fabric, and gives back only what it has frozen itself."""
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    with Fabric(Topology.star(2)) as fabric:
        fabric.add([Flow("h0", "h1", 4_096)])
        fabric.run()
    assert gc.get_freeze_count() > before // 2 > 0  # some have ended since
    if not frozen:
        gc.unfreeze()
