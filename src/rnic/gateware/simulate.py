"""A job for an engine in the simulator: WRITEs of given sizes and offsets, in loopback or to a second engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rnic.gateware.axi_model import Timing
from rnic.gateware.cache import SparseMemory
from rnic.gateware.driver import POLL_LIMIT, Completion, Driver, NetworkSetup, QueueLayout, Request, Window
from rnic.gateware.params import EngineParams
from rnic.gateware.sim import EngineMemory, Simulation
from rnic.gateware.sim_bus import AxiRam, Frame
from rnic.gateware.trace import StateLog, write_trace

SQ_BASE, REMOTE_BASE, PAYLOAD_BASE, CQ_BASE = 0x10000000, 0x20000000, 0x30000000, 0x40000000
"""Addresses of the documents' test program (``hardware.md`` 1b)."""
GUARD_BYTES = 64
GUARD = 0x5A
"""Byte that surrounds each destination and must still be there after the run."""

END_A = NetworkSetup(0x0A000001, 0x0A000002, 0x020000000001, 0x020000000002, 0xCE06, 0x138D, 0x138D)
END_B = NetworkSetup(0x0A000002, 0x0A000001, 0x020000000002, 0x020000000001, 0xCE06, 0x138D, 0x138D)


MEASURED = {
    f"{width} bit, {'serial' if serial else 'overlapped'}": EngineParams(bus_width=width, fifo_depth=64, serial=serial)
    for width in (32, 512)
    for serial in (True, False)
}
"""Engines whose speed the documentation lists, by their names there."""
LONG_BYTES, SHORT_BYTES = 16384, 64

TOLERANT = EngineParams(
    bus_width=512, fifo_depth=64, serial=False, in_flight=32, outstanding=64, clock_mhz=250, rx_fifo_bytes=16384
)
"""The engine of the plots over memory latency."""
LINE_GBPS = 100.0
LATENCIES = (0, 30, 60, 120, 250)
"""Cycles from an address, or from a burst's last beat, to the memory's answer."""


@dataclass(frozen=True, slots=True)
class Job:
    """``count`` WRITEs; size and offsets of the n-th are the n-th items of the lists, which repeat."""

    sizes: tuple[int, ...] = (4096,)
    local_offsets: tuple[int, ...] = (0,)
    remote_offsets: tuple[int, ...] = (0,)
    count: int = 16
    batch: bool = True
    """Keep the rings full; else run one WRITE at a time, as the documents' test does."""
    network: bool = False
    """Two engines connected through their MAC ports; else one in loopback."""
    ring_size: int = 4
    seed: int = 0
    stall_rate: float = 0.0
    loss: float = 0.0
    """Probability that the link loses a frame; network only."""
    local_window: Window | None = None
    remote_window: Window | None = None
    """Window that the driver opens to the engines; by default, the ranges of sources and destinations."""
    timing: Timing = field(default_factory=Timing)
    """Timing of the memories."""
    poll_limit: int = POLL_LIMIT
    """Consecutive reads of an unchanged CQ_TAIL after which the run gives up."""
    base: int = 0
    """Offset added to every address: of the rings, sources and destinations."""
    line_gbps: float = 0.0
    """Network only: MACs with a line of this many Gb/s between the engines; 0: a wire that takes a beat in each
    cycle."""


@dataclass
class Result:
    """Result of a job."""

    cycles: int
    """Cycles from the first doorbell to the last completion read."""
    start: int
    """The simulation cycle of the first doorbell."""
    arrived: int
    """Cycles from the first doorbell to the last data stored in the receiver's memory; network only."""
    payload_bytes: int
    completions: list[Completion]
    wrong: list[str]
    """Errors found, one line each."""
    frames: list[bytes] = field(default_factory=list)
    lost: int = 0
    line_bits: int = 0
    """Bits that the line from the sender has carried: preambles, padding, FCS and gaps too."""
    states: dict[str, dict[str, int]] = field(default_factory=dict)
    """Cycles by block and state, if a log was kept."""
    controller: dict[str, int] = field(default_factory=dict)
    """The controller's cycles by state, from the first write of SQ_TAIL to the last move of CQ_TAIL, likewise."""

    @property
    def passed(self) -> bool:
        """True if all data arrived at its destination, and nowhere else."""
        return not self.wrong

    @property
    def bytes_per_cycle(self) -> float:
        """Payload bytes for each clock cycle."""
        return self.payload_bytes / self.cycles if self.cycles else 0.0


def run_job(
    job: Job,
    params: EngineParams,
    vcd: Path | None = None,
    trace: Path | None = None,
    log_states: bool = False,
    memories: Sequence[EngineMemory] | None = None,
) -> Result:
    """Run a job in the simulator and verify every byte.

    Args:
        memories: each engine's DDR, which covers the documents' addresses; by default, memory in this process.

    Raises:
        EngineError: the engine did not complete the work; the message has the registers.
        OSError: ``vcd`` or ``trace`` cannot be written.
    """
    for path in (vcd, trace):
        if path is not None:
            path.write_bytes(b"")  # detect an unwritable file before the run
    rng = random.Random(job.seed)
    plan = [
        (
            job.sizes[index % len(job.sizes)],
            job.local_offsets[index % len(job.local_offsets)],
            job.remote_offsets[index % len(job.remote_offsets)],
        )
        for index in range(job.count)
    ]
    # each WRITE has its own slot on both sides, of the size of the largest
    slot = _up(max(size + max(local, remote) for size, local, remote in plan) + 2 * GUARD_BYTES, 4096)
    area = slot * job.count
    memories = memories or [_memory(area, job.ring_size, job.base) for _ in range(2 if job.network else 1)]
    loss_rng = random.Random(job.seed + 1)

    def lose(_frame: Frame) -> bool:
        return loss_rng.random() < job.loss

    line_rate = job.line_gbps * 1000 / 8 / (params.mac_clock_mhz or params.clock_mhz)
    simulation = Simulation(params, memories, job.seed, job.stall_rate, lose, job.timing, line_rate)
    sender, receiver = simulation.engines[0], simulation.engines[-1]
    logs = []
    if trace is not None or log_states:
        logs = [(engine, StateLog(engine, simulation)) for engine in simulation.engines]
    if vcd is not None:
        with simulation.simulator.write_vcd(str(vcd)):
            result = _drive(job, plan, slot, simulation, rng)
    else:
        result = _drive(job, plan, slot, simulation, rng)
    result.wrong += _verify(job, plan, slot, simulation, result)
    for engine in {id(sender): sender, id(receiver): receiver}.values():
        result.wrong += [str(each) for each in engine.cache.missing]
    if logs:
        log = logs[0][1]
        result.states = {
            block: log.cycles_by_state(block, result.start, result.start + result.cycles) for block in log.changes
        }
        doorbells = [cycle for cycle in log.doorbells if cycle >= result.start]
        if doorbells and log.completions:
            result.controller = log.cycles_by_state("controller", doorbells[0], log.completions[-1])
    if trace is not None:
        write_trace(trace, logs, simulation.cycle)
    return result


def _memory(area: int, ring: int, base: int) -> SparseMemory:
    sizes = {SQ_BASE: _up(ring * 64, 4096), CQ_BASE: _up(ring * 32, 4096), PAYLOAD_BASE: area, REMOTE_BASE: area}
    return SparseMemory(*((base + place, size) for place, size in sizes.items()))


def ddr_bytes(job: Job) -> int:
    """Return the bytes of DDR, starting at ``SQ_BASE``, that a job uses: up to the end of the CQ, which is last."""
    return CQ_BASE + _up(job.ring_size * 32, 4096) - SQ_BASE


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def _addresses(base: int, index: int, slot: int, local: int, remote: int) -> tuple[int, int]:
    at = base + index * slot
    return PAYLOAD_BASE + at + local, REMOTE_BASE + at + GUARD_BYTES + remote


def _drive(job: Job, plan: list[tuple[int, int, int]], slot: int, simulation: Simulation, rng: random.Random) -> Result:
    sender, receiver = simulation.engines[0], simulation.engines[-1]
    layout = QueueLayout(job.base + SQ_BASE, job.base + CQ_BASE, job.ring_size, job.ring_size)
    area = slot * job.count
    reads, writes = (
        chosen or Window(job.base + place, area)
        for chosen, place in ((job.local_window, PAYLOAD_BASE), (job.remote_window, REMOTE_BASE))
    )
    documented = sender.top.params.documented_cqe
    drivers = [Driver(engine, layout, job.poll_limit, reads, writes, documented) for engine in simulation.engines]
    for driver, end in zip(drivers, (END_A, END_B), strict=False):
        if job.network:
            driver.set_network(end)
        driver.start(job.network)
    requests = []
    for index, (size, local, remote) in enumerate(plan):
        source, target = _addresses(job.base, index, slot, local, remote)
        # the driver flushes payloads when it posts them; prepare the destination here
        sender.write(source, rng.randbytes(size))
        around = target - GUARD_BYTES, size + 2 * GUARD_BYTES
        receiver.write(around[0], bytes([GUARD]) * around[1])
        receiver.flush(*around)
        requests.append(Request(source, target, size, index))
    start = simulation.cycle
    driver = drivers[0]
    completions: list[Completion] = []
    if job.batch:
        completions = driver.run(requests)
    else:
        for request in requests:
            driver.submit([request])
            completions += driver.wait()
    cycles = simulation.cycle - start
    result = Result(cycles, start, 0, sum(each.bytes for each in completions), completions, [])
    if job.network:
        simulation.settle()
        if isinstance(receiver.ram, AxiRam):
            params = receiver.top.params
            slower = params.clock_mhz / (params.bus_clock_mhz or params.clock_mhz)
            result.arrived = round(receiver.ram.last_stored * slower) - start
        if sender.mac is not None:
            result.frames, result.lost, result.line_bits = sender.mac.frames, sender.mac.lost, sender.mac.line_bits
        else:
            result.frames = [frame.data for frame in simulation.links[0].frames]
            result.lost = len(simulation.links[0].lost)
    return result


def _verify(job: Job, plan: list[tuple[int, int, int]], slot: int, simulation: Simulation, result: Result) -> list[str]:
    """Return all differences from the expected state. Lost frames may leave the guard pattern, never anything else."""
    sender, receiver = simulation.engines[0], simulation.engines[-1]
    wrong = []
    for index, done in enumerate(result.completions):
        size = plan[index][0]
        if (done.wqe_id, done.status, done.bytes, done.requested) != (index, 0, size, size):
            wrong.append(f"completion {index}: {done}")
    if len(result.completions) != job.count:
        wrong.append(f"{len(result.completions)} completions for {job.count} WRITEs")
    for index, (size, local, remote) in enumerate(plan):
        source, target = _addresses(job.base, index, slot, local, remote)
        sent = sender.memory.read(source, size)
        # compare the destination and the guard bytes around it
        receiver.invalidate(target - GUARD_BYTES, size + 2 * GUARD_BYTES)
        around = receiver.read(target - GUARD_BYTES, size + 2 * GUARD_BYTES)
        guard = bytes([GUARD]) * GUARD_BYTES
        if around[:GUARD_BYTES] != guard or around[GUARD_BYTES + size :] != guard:
            wrong.append(f"WRITE {index}: bytes around {target:#010x} + {size} were changed")
        bad = [
            at
            for at in range(size)
            if around[GUARD_BYTES + at] != sent[at] and not (result.lost and around[GUARD_BYTES + at] == GUARD)
        ]
        if bad:
            wrong.append(f"WRITE {index}: {len(bad)} of {size} bytes differ, the first at {target + bad[0]:#010x}")
    return wrong


def summary(result: Result, params: EngineParams) -> dict[str, Any]:
    """Return the figures of a run, for printing and as JSON."""
    return {
        "passed": result.passed,
        "cycles": result.cycles,
        "payload_bytes": result.payload_bytes,
        "bytes_per_cycle": round(result.bytes_per_cycle, 4),
        "share_of_bus": round(result.bytes_per_cycle / params.bus_bytes, 4),
        "completions": len(result.completions),
        "frames": len(result.frames),
        "frames_lost": result.lost,
        "line_gbps": round(result.line_bits / max(result.cycles, result.arrived) * params.clock_mhz / 1000, 3),
        "wrong": result.wrong,
        "states": result.states,
    }


def measure_latency(
    size: int, latency: int, network: bool = False, count: int = 8, line_gbps: float = 0.0
) -> tuple[float, float]:
    """Measure the cycles of each of ``count`` WRITEs posted at once to :data:`TOLERANT`, with an in-order memory, and
    the bits on the line in each of them.

    From the first doorbell to the last completion read, and to the last data in the receiver's memory, so that filling
    the pipeline counts too.

    Raises:
        AssertionError: a byte is wrong, or a frame was lost.
    """
    timing = Timing(latency, depth=128)
    job = Job(sizes=(size,), count=count, ring_size=64, network=network, timing=timing, line_gbps=line_gbps)
    result = run_job(job, TOLERANT)
    assert result.passed, result.wrong
    assert result.lost == 0
    cycles = max(result.cycles, result.arrived)
    return cycles / count, result.line_bits / cycles


def measure(params: EngineParams) -> tuple[dict[str, int], dict[str, int]]:
    """Measure the controller's cycles by state, from doorbell to CQ_TAIL, for WRITEs of 16 KiB and of 64 bytes.

    Raises:
        AssertionError: a byte is wrong.
    """
    out = []
    for size in (LONG_BYTES, SHORT_BYTES):
        result = run_job(Job(sizes=(size,), count=1), params, log_states=True)
        assert result.passed, result.wrong
        out.append(result.controller)
    return out[0], out[1]
