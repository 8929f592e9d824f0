"""An engine, or two connected through their MAC ports, in Amaranth's simulator, as backends of the driver.

The driver is plain sequential Python; the simulation advances only while the driver waits for a register. So runs with
the same seed are identical to the cycle.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from amaranth.hdl import Module
from amaranth.sim import Simulator

from rnic.gateware.axi_model import Stalls
from rnic.gateware.cache import NonCoherentCache, SparseMemory
from rnic.gateware.params import EngineParams
from rnic.gateware.paxi_bus import PaxiBus, RemoteMemory
from rnic.gateware.sim_bus import AxiLiteMaster, AxiRam, Frame, MacLink, MacPort, StreamSink, StreamSource, Timing
from rnic.gateware.top import Top
from rnic.spec.errors import RnicError

CLOCK_PERIOD = 10e-9
ACCESS_LIMIT = 10_000
"""Cycles that a register access may take."""


EngineMemory = SparseMemory | RemoteMemory


class SimulationError(RnicError):
    """The simulated engine does not answer its register bus."""


class SimEngine:
    """One engine of a :class:`Simulation` as the driver's backend; its DMA bypasses the processor's cache."""

    def __init__(
        self,
        simulation: Simulation,
        params: EngineParams,
        memory: EngineMemory,
        stalls: Stalls,
        timing: Timing | None,
        line_rate: float,
    ) -> None:
        self._simulation = simulation
        self.top = Top(params)
        self.memory = memory
        self.cache = NonCoherentCache(memory)
        self.axil = AxiLiteMaster(self.top.s_axil)
        self.ram: AxiRam | PaxiBus
        if isinstance(memory, RemoteMemory):
            self.ram = PaxiBus(self.top.m_axi, memory, self.cache, stalls)
        else:
            self.ram = AxiRam(self.top.m_axi, self.cache.device, stalls, timing)
        self.mac_out = StreamSink(self.top.mac_tx_axis, stalls)
        self.mac_in = StreamSource(self.top.mac_rx_axis, stalls)
        self.mac = MacPort(self.top.mac_tx_axis, self.top.mac_rx_axis, line_rate) if line_rate else None
        """Replaces these two if there is a line."""
        self.ram.domain = "bus" if params.bus_clock_mhz else "sync"
        for port in (self.mac, self.mac_out, self.mac_in):
            if port is not None:
                port.domain = "mac" if params.mac_clock_mhz else "sync"
        self.accesses: list[tuple[int, int, int, int | None]] = []
        """(first cycle, last cycle, offset, value written or ``None``) of each register access."""
        self.notes: list[tuple[int, str, int, int]] = []
        """(cycle, call, address, bytes) of each memory and cache call of the driver."""

    def read32(self, offset: int) -> int:
        """Read a register over AXI4-Lite; run the simulation until it is answered."""
        return self._access(offset, None)

    def write32(self, offset: int, value: int) -> None:
        """Write a register over AXI4-Lite; run the simulation until it is answered."""
        self._access(offset, value)

    def _access(self, offset: int, value: int | None) -> int:
        simulation = self._simulation
        began = simulation.cycle
        access = self.axil.post(offset, value)
        while not access.done:
            simulation.step()
            if simulation.cycle - began > ACCESS_LIMIT:
                raise SimulationError(f"register {offset:#06x} did not answer in {ACCESS_LIMIT} cycles")
        self.accesses.append((began, simulation.cycle, offset, value))
        if access.response:
            raise SimulationError(f"register {offset:#06x} answered with AXI response {access.response}")
        return access.result

    def read(self, address: int, count: int) -> bytes:
        """Load as the processor does."""
        self._note("read", address, count)
        return self.cache.read(address, count)

    def write(self, address: int, data: bytes) -> None:
        """Store as the processor does."""
        self._note("write", address, len(data))
        self.cache.write(address, data)

    def flush(self, address: int, count: int) -> None:
        """Cache flush."""
        self._note("flush", address, count)
        self.cache.flush(address, count)

    def invalidate(self, address: int, count: int) -> None:
        """Cache invalidation."""
        self._note("invalidate", address, count)
        self.cache.invalidate(address, count)

    def traffic(self) -> tuple[int, ...]:
        """Return counts that stop changing once the engine has nothing to send, receive or store."""
        if self.mac is not None:
            return self.ram.moved, self.mac.moved, self.mac.line_bits, self.mac.busy()
        return self.ram.moved, self.mac_out.moved, self.mac_in.moved, len(self.mac_in.queue)

    def _note(self, call: str, address: int, count: int) -> None:
        self.notes.append((self._simulation.cycle, call, address, count))


class Simulation:
    """One or two engines on one clock.

    Args:
        params: parameters of each engine.
        memories: one memory for each engine, here or on another machine: one engine for loopback, two for a link.
        seed: seed of the stalls on every channel.
        stall_rate: probability that a channel stalls in a cycle.
        lose: two engines: called for each frame; true drops it.
        timing: timing of the memories.
        line_rate: two engines: bytes per cycle of the line between their MACs; 0: no MAC, but a wire that takes a beat
            in each cycle.
    """

    def __init__(
        self,
        params: EngineParams,
        memories: Sequence[EngineMemory],
        seed: int = 0,
        stall_rate: float = 0.0,
        lose: Callable[[Frame], bool] | None = None,
        timing: Timing | None = None,
        line_rate: float = 0.0,
    ) -> None:
        rng = random.Random(seed)
        self.cycle = 0
        self.watchers: list[Callable[[Any, int], None]] = []
        """Called at each clock edge with the simulator's context and the cycle, before the run starts to be slow."""
        self.engines = [
            SimEngine(self, params, memory, Stalls(rng, stall_rate), timing, line_rate) for memory in memories
        ]
        m = Module()
        for index, engine in enumerate(self.engines):
            m.submodules[f"engine{index}"] = engine.top
        self.simulator = Simulator(m)
        self.simulator.add_clock(CLOCK_PERIOD)
        for domain, mhz in (("mac", params.mac_clock_mhz), ("bus", params.bus_clock_mhz)):
            if mhz:
                self.simulator.add_clock(CLOCK_PERIOD * params.clock_mhz / mhz, phase=CLOCK_PERIOD / 3, domain=domain)
        self.links: list[MacLink] = []
        if len(self.engines) == 2:
            a, b = self.engines
            if a.mac is not None and b.mac is not None:
                a.mac.peer, b.mac.peer = b.mac, a.mac
                if lose is not None:
                    a.mac.harm = b.mac.harm = lambda frame: None if lose(Frame(frame)) else frame
            else:
                self.links = [MacLink(a.mac_out, b.mac_in, lose), MacLink(b.mac_out, a.mac_in, lose)]
        for engine in self.engines:
            network = (engine.mac,) if engine.mac is not None else (engine.mac_out, engine.mac_in)
            for model in (engine.axil, engine.ram, *network):
                self.simulator.add_testbench(model.run, background=True)
        self.simulator.add_testbench(self._count, background=True)

    async def _count(self, ctx: Any) -> None:
        while True:
            await ctx.tick()
            self.cycle += 1
            for watcher in self.watchers:
                watcher(ctx, self.cycle)

    def step(self) -> None:
        """Run one clock cycle."""
        cycle = self.cycle
        while self.cycle == cycle:
            self.simulator.advance()

    def run_cycles(self, count: int) -> None:
        """Run ``count`` clock cycles without the driver."""
        for _ in range(count):
            self.step()

    def settle(self, quiet: int = 128, limit: int = 100_000) -> None:
        """Run until no frame and no memory beat has moved for ``quiet`` cycles.

        Raises:
            SimulationError: that did not happen within ``limit`` cycles.
        """
        end = self.cycle + limit
        before: list[tuple[int, ...]] = []
        while before != (now := [engine.traffic() for engine in self.engines]):
            if self.cycle >= end:
                raise SimulationError(f"the engines were still running after {limit} cycles")
            before = now
            self.run_cycles(quiet)
