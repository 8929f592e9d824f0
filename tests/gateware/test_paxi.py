"""The descriptor engine with its DDR on another machine: its AXI bus goes through PAXI and RoCEv2."""

from __future__ import annotations

import hashlib
import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import rnic.paxi
from rnic.gateware.cache import NonCoherentCache
from rnic.gateware.driver import Driver, EngineError, Request
from rnic.gateware.interfaces import Axi4
from rnic.gateware.params import EngineParams
from rnic.gateware.paxi_bus import PaxiBus, RemoteMemory
from rnic.gateware.sim import Simulation
from rnic.gateware.simulate import CQ_BASE, PAYLOAD_BASE, REMOTE_BASE, SQ_BASE, Job, run_job
from rnic.link.faults import FaultRates
from rnic.paxi.bridge import BridgeConfig
from rnic.testing import own_network
from rnic.testing.paxi import PaxiPair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ADDR = f"{own_network()}.73"
DDR_BYTES = CQ_BASE + 0x1_0000 - SQ_BASE
"""From the submission ring to behind the completion ring, as the documents' test places them; pages come when used."""
SERVE = f"""
import hashlib, mmap, sys
import rnic.paxi
memory = mmap.mmap(-1, {DDR_BYTES})
with rnic.paxi.serve(memory, sys.argv[1], 0) as target:
    print(target.port, flush=True)
    for line in sys.stdin:
        at, count = map(int, line.split())
        print(hashlib.sha256(memory[at : at + count]).hexdigest(), flush=True)
"""


class DdrProcess:
    """Another process whose memory is the engine's DDR."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline())

    def digest(self, address: int, count: int) -> str:
        """What that process itself finds in its memory."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{address - SQ_BASE} {count}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def ddr_process() -> Iterator[DdrProcess]:
    command = [sys.executable, "-c", SERVE, ADDR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield DdrProcess(process)
        finally:
            process.kill()


def of(params: EngineParams) -> BridgeConfig:
    return BridgeConfig(data_bits=params.bus_width, base=SQ_BASE)


def run_in_another_process(job: Job, params: EngineParams) -> None:
    with (
        ddr_process() as ddr,
        rnic.paxi.open_window(ADDR, ddr.port, config=of(params), udp_port=0) as processor,
        rnic.paxi.open_window(ADDR, ddr.port, config=of(params), udp_port=0) as bus,
    ):
        result = run_job(job, params, memories=[RemoteMemory(processor, bus)])
        assert result.passed, result.wrong
        assert len(result.completions) == job.count
        assert bus.counters["paxi_write_bytes"] >= sum(job.sizes) + 32 * job.count
        assert bus.counters["paxi_slverr"] == bus.counters["paxi_decerr"] == 0
        # the driver has compared every byte through its window; that process looks at its memory itself
        slot = REMOTE_BASE - SQ_BASE
        found = processor[slot : slot + 8192]
        assert any(found)
        assert ddr.digest(REMOTE_BASE, 8192) == hashlib.sha256(found).hexdigest()


def test_writes_with_ddr_in_another_process() -> None:
    """Descriptors, payloads and completions of 001's WRITE, unaligned too: all of it in the other process's memory."""
    job = Job(sizes=(2100, 64), local_offsets=(5, 0), remote_offsets=(3, 61), count=3, batch=False, ring_size=2)
    run_in_another_process(job, EngineParams(bus_width=64, fifo_depth=64))


@pytest.mark.full
@pytest.mark.parametrize("width", [32, 512])
def test_the_documents_own_test_with_ddr_in_another_process(width: int) -> None:
    """16 submissions of 4096 bytes, rings of 4, one at a time (001, hardware.md 1b)."""
    run_in_another_process(Job(batch=False), EngineParams(bus_width=width))


@pytest.mark.full
def test_a_bad_network_changes_nothing_but_time() -> None:
    params = EngineParams(bus_width=128, fifo_depth=64, serial=False)
    job = Job(sizes=(1500,), local_offsets=(9,), remote_offsets=(30,), count=3, stall_rate=0.1)
    cycles = []
    for rates in (FaultRates(), FaultRates(drop=0.05, duplicate=0.05, reorder=0.05)):
        with PaxiPair(mmap.mmap(-1, DDR_BYTES), of(params), tx=rates) as pair:
            bus, _far = pair.open(of(params))
            result = run_job(job, params, memories=[RemoteMemory(pair.window, bus)])
            assert result.passed, result.wrong
            cycles.append(pair.net.clock.now_ns)
            struck = sum(node.counters["fault_tx_drop"] for node in pair.net.nodes)
            assert bool(struck) == bool(rates.drop)
    assert cycles[0] < cycles[1]


def test_ddr_that_is_lost_halts_the_engine_and_hangs_nothing() -> None:
    params = EngineParams(bus_width=64, fifo_depth=64)
    with PaxiPair(mmap.mmap(-1, DDR_BYTES), of(params)) as pair:
        bus, far = pair.open(of(params))
        memory = RemoteMemory(pair.window, bus)
        simulation = Simulation(params, [memory])
        driver = Driver(simulation.engines[0], poll_limit=200)
        driver.start()
        assert isinstance(simulation.engines[0].ram, PaxiBus)
        far.served.close()
        far.dead = True
        driver.submit([Request(PAYLOAD_BASE, REMOTE_BASE, 64)])
        with pytest.raises(EngineError, match="halted"):
            driver.wait()
        # the descriptor could not be read, and the completion could not be written
        assert bus.counters["paxi_slverr"] >= 2
        assert bus.registers.get("RETRY_ERROR") == 1


def test_a_bus_of_another_width() -> None:
    with PaxiPair(0x1000, BridgeConfig(data_bits=32)) as pair:
        memory = RemoteMemory(pair.window, pair.window)
        with pytest.raises(ValueError, match="a window of 32 bits on a bus of 64"):
            PaxiBus(Axi4(64, 1).create(), memory, NonCoherentCache(memory))
