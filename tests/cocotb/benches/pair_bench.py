"""Two peers back to back through a FIFO in each direction, with backpressure at every end."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, with_timeout

from rnic.testing.cocotb import Axis, RocePeer, random_stalls

OPTIONS = json.loads(os.environ["RNIC_BENCH"])
STALLS = 0.3
LIMIT_NS = 3_000_000


async def within(awaitable: Any) -> Any:
    return await with_timeout(awaitable, LIMIT_NS, "ns")


async def peers(dut: Any, faults: list[dict[str, object]] | None = None, speed: int = 1) -> tuple[RocePeer, RocePeer]:
    cocotb.start_soon(Clock(dut.clk, 4, unit="ns").start())
    dut.rst.value = 1
    made = []
    for number, side in enumerate("ab", 1):
        mac = f"02:00:00:00:00:0{number}" if OPTIONS["ethernet"] else None
        tx, rx = Axis(dut, f"{side}_tx", dut.clk), Axis(dut, f"{side}_rx", dut.clk)
        made.append(
            RocePeer(
                tx,
                rx,
                mac,
                f"10.0.0.{number}",
                mtu=OPTIONS["mtu"],
                faults=faults or () if side == "a" else (),
                stalls=random_stalls(STALLS, number),
                backpressure=random_stalls(STALLS, 10 + number),
                speed=speed,
                reset=dut.rst,
                seed=number,
            )
        )
    await ClockCycles(dut.clk, 5)
    dut.rst.value = 0
    a, b = made
    await a.connect_to(b)
    return a, b


async def traffic(a: RocePeer, b: RocePeer) -> None:
    """Every operation, from one packet to several, with lengths that fill no beat."""
    rng = random.Random(5)
    memory = b.serve(8192)
    for length in (1, 7, 64, OPTIONS["mtu"], 3 * OPTIONS["mtu"] + 13):
        data = rng.randbytes(length)
        await within(a.write(memory.addr + 3, data, memory.rkey))
        assert memory.data[3 : 3 + length] == data
        assert await within(a.read(memory.addr + 3, length, memory.rkey)) == data
        message = b.expect()
        await within(a.send(data))
        assert await within(message) == data
    start = int.from_bytes(memory.data[:8], "little")
    assert await within(a.fetch_add(memory.addr, 5, memory.rkey)) == start
    assert await within(a.compare_swap(memory.addr, start + 5, 99, memory.rkey)) == start + 5
    assert int.from_bytes(memory.data[:8], "little") == 99
    there = a.serve(64)
    await within(b.write(there.addr, b"back", there.rkey))
    assert there.data[:4] == b"back"


@cocotb.test()
async def every_operation(dut: Any) -> None:
    a, b = await peers(dut)
    await traffic(a, b)
    for peer in (a, b):
        peer.check(finished=True)
        assert peer._judge.packets > 20
        assert "retransmitted_packets" not in peer.counters


@cocotb.test()
async def losses_and_reorderings(dut: Any) -> None:
    faults = [
        {"match": {"direction": "tx"}, "every": 7, "action": "drop"},
        {"match": {"direction": "rx"}, "every": 11, "action": "drop"},
        {"match": {"direction": "tx"}, "nth": 5, "every": 9, "action": "reorder", "hold_ns": 100_000},
        {"match": {"direction": "tx"}, "every": 13, "action": "duplicate"},
    ]
    a, b = await peers(dut, faults, speed=100)
    await traffic(a, b)
    for peer in (a, b):
        peer.check(finished=True)
    assert a.counters["fault_tx_drop"] > 2
    assert a.counters["retransmitted_packets"] > 2
