"""Memory that fails and falls silent anywhere, behind each kind of engine, on Amaranth's simulator."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hardship import endure

from rnic.gateware.axi_model import ORDERS, Timing
from rnic.gateware.cache import SparseMemory
from rnic.gateware.driver import EVERYTHING, Driver, QueueLayout
from rnic.gateware.params import EngineParams
from rnic.gateware.sim import Simulation
from rnic.gateware.sim_bus import AxiRam

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SQ, CQ, SOURCE, TARGET, SPACE = 0x1000, 0x2000, 0x10000, 0x20000, 1024
KINDS: dict[str, dict[str, Any]] = {
    "serial": {"serial": True},
    "overlapped": {"serial": False},
    "several": {"serial": False, "in_flight": 4},
}


@pytest.mark.parametrize("width", [32, 512])
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_memory_fails_and_falls_silent_anywhere(kind: str, width: int) -> None:
    params = EngineParams(bus_width=width, block_size=64, boundary=64, fifo_depth=64, **KINDS[kind])
    memory = SparseMemory((SQ, 0x1000), (CQ, 0x1000), (SOURCE, SPACE), (TARGET, SPACE))
    order = ORDERS[len(kind) % len(ORDERS)]
    simulation = Simulation(params, [memory], seed=3, stall_rate=0.05, timing=Timing(9, order, 16, mix_ids=True))
    engine = simulation.engines[0]
    driver = Driver(engine, QueueLayout(SQ, CQ, 8, 8), poll_limit=400, local=EVERYTHING, remote=EVERYTHING)
    driver.start()
    assert isinstance(engine.ram, AxiRam)
    seen = endure(driver, engine.ram, random.Random(width), 12, (SOURCE, TARGET, SPACE))
    print(kind, width, dict(seen))
    # each of them happened: else the memory was not bad enough to say anything
    assert min(seen[name] for name in ("none", "halted", "the watchdog ran out")) > 0
    assert engine.cache.missing == []
    engine.ram.checker.quiet()
