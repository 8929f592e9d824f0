"""Runs inside the Verilog simulator: the exported engine in front of rnic's own AXI4 slave, every beat checked.

The slave takes every freedom that AXI gives one (:mod:`rnic.gateware.axi_model`); the checker asserts AXI's rules at
each edge. ``RNIC_BENCH`` as in :mod:`engine_bench`, and ``timing``: the slave's.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge
from engine_bench import AREA, CQ, OPTIONS, PARAMS, PAYLOAD, REMOTE, SQ, Bench, check_against_model, random_requests
from hardship import endure

from rnic.gateware.axi_model import (
    Address,
    Answer,
    AxiChecker,
    AxiSlave,
    BusError,
    Data,
    Read,
    Stalls,
    Timing,
    Wires,
)
from rnic.gateware.driver import Driver, Request

TIMING = Timing(**OPTIONS.get("timing", {}))
STALLS = OPTIONS.get("stalls", 0.0)
HANG = 20_000
"""Cycles without a beat on any channel, with a descriptor in hand, after which the bench gives up."""
HALTED_POLLS = 1000
"""In vain, after which the driver asks whether the engine has halted: some 14,000 cycles, where a silence lasts 400."""


class OwnBench(Bench):
    """The engine with our slave in place of cocotbext-axi's."""

    def __init__(self, dut: Any) -> None:
        super().__init__(dut)
        stalls = Stalls(random.Random(3), STALLS)
        self.ram = AxiSlave(PARAMS.bus_bytes, self.cache.device, stalls, TIMING, seed=4)
        self.checker = AxiChecker(PARAMS.bus_bytes)

    def attach_memory(self, dut: Any) -> None:
        """Not cocotbext-axi's slave: :meth:`serve` is started after reset, in which a slave shows nothing."""
        for name in ("awready", "wready", "bvalid", "arready", "rvalid"):
            getattr(dut, f"m_axi_{name}").value = 0

    async def serve(self) -> None:
        dut, ram = self.dut, self.ram
        shown_r: Read | None = None
        shown_b: Answer | None = None

        def address(channel: str) -> Address | None:
            if not bit(f"{channel}valid"):
                return None
            fields = ("addr", "len", "size", "burst", "id")
            addr, length, size, burst, ident = (number(f"m_axi_{channel}{name}") for name in fields)
            return Address(addr, length + 1, size, burst, ident)

        def number(name: str) -> int:
            return int(getattr(dut, name).value)

        def bit(name: str) -> bool:
            value = getattr(dut, f"m_axi_{name}").value
            if not value.is_resolvable:
                raise BusError(f"m_axi_{name} is {value}: unknown after reset")
            return bool(int(value))

        while True:
            dut.m_axi_arready.value = int(ram.arready)
            dut.m_axi_awready.value = int(ram.awready)
            dut.m_axi_wready.value = int(ram.wready)
            dut.m_axi_rvalid.value = int(ram.r is not None)
            dut.m_axi_bvalid.value = int(ram.b is not None)
            if ram.r is not None and ram.r is not shown_r:
                shown_r = ram.r
                dut.m_axi_rdata.value, dut.m_axi_rresp.value = shown_r.data, shown_r.response
                dut.m_axi_rid.value, dut.m_axi_rlast.value = shown_r.ident, shown_r.last
            if ram.b is not None and ram.b is not shown_b:
                shown_b = ram.b
                dut.m_axi_bid.value, dut.m_axi_bresp.value = shown_b.ident, shown_b.response
            await RisingEdge(dut.clk)
            w = None
            if bit("wvalid"):
                w = Data(number("m_axi_wdata"), number("m_axi_wstrb"), number("m_axi_wlast"))
            # r and b ids are unknown before the first beat: what the engine does with them must not be
            wires = Wires(
                address("aw"), ram.awready, w, ram.wready, ram.b, bit("bready"), address("ar"), ram.arready, ram.r,
                bit("rready"),
            )  # fmt: skip
            self.checker.edge(wires)
            ram.edge(wires.aw, wires.w, wires.bready, wires.ar, wires.rready)

    async def reset(self) -> None:
        await super().reset()
        self.server = cocotb.start_soon(self.serve())


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def every_order_of_address_and_data(dut: Any) -> None:
    """WRITEs of many sizes and alignments, held against the reference model, in front of a slave of this order."""
    bench = OwnBench(dut)
    rng = random.Random(8)
    sizes = [*(rng.randrange(1, 150) for _ in range(20)), 4096, 3000, 1]
    requests = random_requests(rng, sizes, True)
    await bench.drive(lambda driver: check_against_model(bench, driver, requests), ring=8)
    bench.checker.quiet()
    assert bench.checker.bursts > 3 * len(sizes)
    if TIMING.order == "data_first":
        assert bench.checker.data_ahead > len(sizes)
    if TIMING.order in ("address_first", "together"):
        assert bench.checker.data_ahead == 0


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_soft_reset_keeps_the_bus_in_order(dut: Any) -> None:
    """Reset at many moments: what was promised on the bus is kept, each time, and the engine works afterwards."""
    bench = OwnBench(dut)

    def program(driver: Driver) -> None:
        driver.start()
        data = random.Random(7).randbytes(2048)
        bench.write(PAYLOAD, data)
        for moment in range(0, 160, 11):
            driver.submit([Request(PAYLOAD, REMOTE, 2048, moment)])
            bench.cycles(moment + 1)
            driver.recover()
            driver.submit([Request(PAYLOAD + 1, REMOTE + 4096, 100, moment)])
            assert driver.wait()[0].status == 0
            assert driver.read_back(REMOTE + 4096, 100) == data[1:101]
        bench.checker.quiet()

    await bench.drive(program)


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def memory_fails_and_falls_silent_anywhere(dut: Any) -> None:
    """Errors and silences at random, on every channel and at every address: see :func:`hardship.endure`.

    As long as one way out of them was not seen there is another turn, of a few.
    """
    bench = OwnBench(dut)

    def program(driver: Driver) -> None:
        driver.start()
        driver.poll_limit = HALTED_POLLS
        places = PAYLOAD, REMOTE, 128 * PARAMS.bus_bytes
        rng, seen = random.Random(11), Counter[str]()
        for _ in range(12):
            seen.update(endure(driver, bench.ram, rng, OPTIONS["rounds"], places))
            least = min(seen[name] for name in ("none", "halted", "the watchdog ran out"))
            if least:
                break
        cocotb.log.info("%s", dict(seen))
        assert least > 0, dict(seen)
        bench.checker.quiet()

    await bench.drive(program, ring=8)


__all__ = [
    "AREA",
    "CQ",
    "SQ",
    "a_soft_reset_keeps_the_bus_in_order",
    "every_order_of_address_and_data",
    "memory_fails_and_falls_silent_anywhere",
]
