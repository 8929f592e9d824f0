"""Runs inside the simulator: cocotbext-axi's master on a bus whose slave is a PAXI window onto another process.

Options come in ``RNIC_BENCH``, JSON; :mod:`test_paxi_cocotb` builds the simulator and starts these tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiBurstType, AxiBus, AxiLockType, AxiMaster, AxiResp

import rnic.paxi
from rnic.gateware.paxi_cocotb import CocotbPaxi
from rnic.paxi.bridge import BridgeConfig

OPTIONS = json.loads(os.environ["RNIC_BENCH"])
ADDR = OPTIONS["addr"]
WIDTH = OPTIONS["width"]
BASE, SIZE = 0x4000_0000, 0x8000
SERVE = f"""
import hashlib, sys
import rnic.paxi
memory = bytearray({SIZE})
with rnic.paxi.serve(memory, {ADDR!r}, 0, readonly="readonly" in sys.argv) as target:
    print(target.port, flush=True)
    for line in sys.stdin:
        print(hashlib.sha256(memory).hexdigest(), flush=True)
"""


@contextmanager
def target_process(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [OPTIONS["python"], "-c", SERVE, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def bench(dut: Any, *options: str, seed: int = 0) -> Iterator[tuple[AxiMaster, Any, rnic.paxi.Window]]:
    """The master, the target's process, the window."""
    with target_process(*options) as process:
        assert process.stdout is not None
        config = BridgeConfig(data_bits=WIDTH, base=BASE, read_slots=4, write_slots=4)
        with rnic.paxi.open_window(ADDR, int(process.stdout.readline()), config=config, udp_port=0) as window:
            clock = cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
            dut.rst.value = 1
            master = AxiMaster(AxiBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
            rng = random.Random(seed)
            stalls = (lambda: rng.random() < 0.3) if seed else None
            slave = CocotbPaxi(dut, "m_axi", dut.clk, window, stalls).start()
            if seed:
                for channel in (
                    master.write_if.aw_channel,
                    master.write_if.w_channel,
                    master.write_if.b_channel,
                    master.read_if.ar_channel,
                    master.read_if.r_channel,
                ):
                    channel.set_pause_generator(pauses(rng))
            try:
                yield master, process, window
            finally:
                slave.cancel()
                clock.cancel()


def pauses(rng: random.Random) -> Iterator[bool]:
    while True:
        yield rng.random() < 0.3


async def out_of_reset(dut: Any) -> None:
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    await ClockCycles(dut.clk, 2)


def digest(process: Any) -> str:
    """What the target's process finds in its memory."""
    process.stdin.write("\n")
    process.stdin.flush()
    return str(process.stdout.readline().strip())


async def random_traffic(dut: Any, seed: int) -> None:
    """Four tasks, each with its own part of the memory and its own model of it."""
    model = bytearray(SIZE)
    part = SIZE // 4

    async def task(master: AxiMaster, index: int) -> None:
        rng = random.Random(seed * 10 + index)
        for _ in range(OPTIONS["bursts"]):
            size = rng.randrange(WIDTH.bit_length() - 3)
            at = index * part + rng.randrange(part - 600)
            count = rng.randint(1, 600) >> rng.randrange(9) or 1
            if rng.random() < 0.5:
                data = rng.randbytes(count)
                written = await master.write(BASE + at, data, size=size)
                assert written.resp == AxiResp.OKAY
                model[at : at + count] = data
            else:
                read = await master.read(BASE + at, count, size=size)
                assert read.resp == AxiResp.OKAY
                assert read.data == model[at : at + count]

    with bench(dut, seed=seed) as (master, process, window):
        await out_of_reset(dut)
        tasks = [cocotb.start_soon(task(master, index)) for index in range(4)]
        for each in tasks:
            await each
        whole = await master.read(BASE, SIZE)
        assert whole.data == model
        assert digest(process) == hashlib.sha256(model).hexdigest()
        assert window.counters["paxi_slverr"] == window.counters["paxi_decerr"] == 0


@cocotb.test()
async def traffic(dut: Any) -> None:
    await random_traffic(dut, 0)


@cocotb.test()
async def traffic_with_stalls_on_every_channel(dut: Any) -> None:
    await random_traffic(dut, 3)


@cocotb.test()
async def wrapping_and_fixed_bursts(dut: Any) -> None:
    word = WIDTH // 8
    data = random.Random(31).randbytes(4 * word)
    with bench(dut) as (master, _process, _window):
        await out_of_reset(dut)
        assert (await master.write(BASE + 2 * word, data, burst=AxiBurstType.WRAP)).resp == AxiResp.OKAY
        turned = data[2 * word :] + data[: 2 * word]
        assert (await master.read(BASE, 4 * word)).data == turned
        line = await master.read(BASE + word, 4 * word, burst=AxiBurstType.WRAP)
        assert line.data == turned[word:] + turned[:word]
        assert (await master.write(BASE + 8 * word, data, burst=AxiBurstType.FIXED)).resp == AxiResp.OKAY
        assert (await master.read(BASE + 8 * word, word)).data == data[3 * word :]
        again = await master.read(BASE + 8 * word, 3 * word, burst=AxiBurstType.FIXED)
        assert again.data == data[3 * word :] * 3


@cocotb.test()
async def exclusive_accesses(dut: Any) -> None:
    """OKAY and not EXOKAY: the master learns that it has no exclusive access, and its store is a plain one (A7.2)."""
    word, exclusive = WIDTH // 8, AxiLockType.EXCLUSIVE
    data = random.Random(32).randbytes(2 * word)
    with bench(dut) as (master, _process, _window):
        await out_of_reset(dut)
        assert (await master.read(BASE, word, lock=exclusive)).resp == AxiResp.OKAY
        assert (await master.write(BASE, data[:word], lock=exclusive)).resp == AxiResp.OKAY
        assert (await master.write(BASE + word, data[word:])).resp == AxiResp.OKAY
        read = await master.read(BASE, 2 * word, lock=exclusive)
        assert (read.resp, read.data) == (AxiResp.OKAY, data)


@cocotb.test()
async def error_answers(dut: Any) -> None:
    with bench(dut, "readonly") as (master, _process, window):
        await out_of_reset(dut)
        # a WRAP burst of one beat is none of AXI4's
        assert (await master.read(BASE, WIDTH // 8, burst=AxiBurstType.WRAP)).resp == AxiResp.SLVERR
        assert (await master.write(BASE, bytes(WIDTH // 8), burst=AxiBurstType.WRAP)).resp == AxiResp.SLVERR
        assert (await master.read(BASE + SIZE, 8)).resp == AxiResp.DECERR
        assert window.counters["paxi_requests"] == 0
        assert (await master.write(BASE, bytes(8))).resp == AxiResp.DECERR, "the target serves for reading"
        assert (await master.read(BASE, 8)).resp == AxiResp.OKAY


@cocotb.test()
async def a_dead_target_is_slverr(dut: Any) -> None:
    with bench(dut) as (master, process, _window):
        await out_of_reset(dut)
        assert (await master.write(BASE, b"alive")).resp == AxiResp.OKAY
        process.kill()
        process.wait()
        assert (await master.read(BASE, 8)).resp == AxiResp.SLVERR
        assert (await master.write(BASE, bytes(8))).resp == AxiResp.SLVERR
