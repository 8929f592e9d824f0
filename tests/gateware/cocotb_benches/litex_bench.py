"""Runs inside the Verilog simulator: LiteX's system of ``examples/litex_soc.py``, a host at its AXI4-Lite port.

The product's driver is the host's program. It reaches memory and engine by LiteX's bus alone, and so does the engine.
"""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.task import bridge, resume
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from rnic.gateware.driver import Driver, QueueLayout, Request, Window
from rnic.spec.engine_regs import CONTROL, IRQ_STATUS

ENGINE, MEMORY = 0x8000_0000, 0x1000_0000
SQ, CQ, SOURCE, TARGET, SPACE = (MEMORY + at for at in (0, 0x400, 0x1000, 0x2000, 0x1000))


class Host:
    """The driver's backend. LiteX's memory has no cache in front of it."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        dut.rst.value = 1
        self.bus = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "host"), dut.clk, dut.rst)
        self._read, self._write = resume(self.bus.read), resume(self.bus.write)

    def read32(self, offset: int) -> int:
        return int.from_bytes(self.read(ENGINE + offset, 4), "little")

    def write32(self, offset: int, value: int) -> None:
        self.write(ENGINE + offset, value.to_bytes(4, "little"))

    def read(self, address: int, count: int) -> bytes:
        return bytes(self._read(address, count).data)

    def write(self, address: int, data: bytes) -> None:
        self._write(address, data)

    def flush(self, address: int, count: int) -> None: ...

    def invalidate(self, address: int, count: int) -> None: ...


@cocotb.test()
async def writes_through_the_bus_of_litex(dut: Any) -> None:
    """More WRITEs than the ring holds, of any alignment; each byte, what lies around it, and the interrupt."""
    host = Host(dut)
    await ClockCycles(dut.clk, 5)
    dut.rst.value = 0
    await ClockCycles(dut.clk, 5)
    rng = random.Random(1)

    def program(driver: Driver) -> None:
        data, before = rng.randbytes(210), rng.randbytes(300)
        host.write(SOURCE, data)
        host.write(TARGET, before)
        driver.start()
        completion = 1 << IRQ_STATUS["completion"].lsb
        driver.put("IRQ_ENABLE", completion)
        driver.put("CONTROL", driver.get("CONTROL") | 1 << CONTROL["global_irq_en"].lsb)
        assert dut.irq.value == 0
        want, at, requests = bytearray(before), 1, []
        for index, size in enumerate((1, 3, 64, 9, 200)):
            requests.append(Request(SOURCE + index, TARGET + at, size, index))
            want[at : at + size] = data[index : index + size]
            at += size + 3
        done = driver.run(requests)
        assert [(each.status, each.wqe_id, each.bytes) for each in done] == [(0, r.wqe_id, r.length) for r in requests]
        assert driver.read_back(TARGET, 300) == want
        assert dut.irq.value == 1
        driver.put("IRQ_STATUS", completion)
        assert driver.get("IRQ_STATUS") & completion == 0
        assert dut.irq.value == 0

    local, remote = Window(SOURCE, SPACE), Window(TARGET, SPACE)
    await bridge(program)(Driver(host, QueueLayout(SQ, CQ, 4, 4), poll_limit=20000, local=local, remote=remote))
