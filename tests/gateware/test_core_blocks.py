"""The engine's own blocks, each alone, beat by beat against the documents' tables."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from rnic.gateware.axi_arbiter import AxiArbiter
from rnic.gateware.cmd_master import CmdMaster
from rnic.gateware.control_streams import CqStreamer, DescriptorParser
from rnic.gateware.params import BUS_WIDTHS, EngineParams
from rnic.gateware.registers import Registers
from rnic.gateware.rx_path import RxHeaderParser
from rnic.gateware.sim_bus import AxiLiteMaster, Stalls, StreamSink, StreamSource
from rnic.gateware.tx_path import TxHeaderInserter, TxStreamer
from rnic.rings.sqe import SQ_ENTRY
from rnic.spec import engine_regs as regs
from rnic.wire.engine_header import ENGINE_HEADER_BYTES, EngineHeader

pytestmark = pytest.mark.slow
CYCLE_LIMIT = 1500
Script = Callable[[Any], Awaitable[None]]
HEADER = EngineHeader(
    opcode=0x0A, psn=0xABCDEF, dqpn=0x123456, remote_addr=0x20304050, fragment_offset=0x10400, length=10, pkey=0xFFFF,
    service_level=3,
).pack()  # fmt: skip


def run(block: Any, script: Script, *models: Script, limit: int = CYCLE_LIMIT) -> None:
    """A block with its bus models, until the script ends; more cycles than ``limit`` are a failure."""
    m = Module()
    m.submodules.block = block
    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    for model in models:
        simulator.add_testbench(model, background=True)

    async def bound(ctx: Any) -> None:
        for _ in range(limit):
            await ctx.tick()
        raise AssertionError(f"no end after {limit} cycles")

    simulator.add_testbench(bound, background=True)
    simulator.add_testbench(script)
    simulator.run()


# ---------------------------------------------------------------- registers


@pytest.mark.parametrize("documented", [False, True], ids=["rtl", "documented"])
def test_every_register_has_its_offset_access_and_reset(documented: bool) -> None:
    block = Registers(EngineParams(watchdog_cycles=77, documented_debug=documented))
    bus = AxiLiteMaster(block.s_axil)
    rng = random.Random(1)

    async def access(ctx: Any, offset: int, value: int | None = None) -> tuple[int, int]:
        access = bus.post(offset, value)
        while not access.done:
            await ctx.tick()
        return access.result, access.response

    async def script(ctx: Any) -> None:
        for register in regs.register_map(documented):
            reset = 77 if register.name == "WATCHDOG" else register.reset
            assert await access(ctx, register.offset) == (reset, 0), register.name
            value = rng.getrandbits(32) & ~2  # not a soft reset
            await access(ctx, register.offset, value)
            kept = sum(field.mask << field.lsb for field in register.fields) or 0xFFFFFFFF
            want = value & kept if register.access == "RW" else reset
            assert await access(ctx, register.offset) == (want, 0), register.name
        for offset in (0xFC, 0x300, 0x1000):
            assert await access(ctx, offset) == (0, 2)
            assert (await access(ctx, offset, 1))[1] == 2

    run(block, script, bus.run)


def test_events_are_cleared_by_ones_and_raise_the_interrupt() -> None:
    block = Registers(EngineParams())
    bus = AxiLiteMaster(block.s_axil)

    async def script(ctx: Any) -> None:
        async def access(name: str, value: int | None = None) -> int:
            done = bus.post(regs.OFFSETS[name], value)
            while not done.done:
                await ctx.tick()
            return done.result

        ctx.set(block.events, 0b1001)
        await ctx.tick()
        ctx.set(block.events, 0)
        assert await access("IRQ_STATUS") == 0b1001
        await access("IRQ_ENABLE", 0b1000)
        assert not ctx.get(block.irq)
        await access("CONTROL", 1 << regs.CONTROL["global_irq_en"].lsb)
        assert ctx.get(block.irq)
        await access("IRQ_STATUS", 0b1000)
        assert await access("IRQ_STATUS") == 0b0001
        assert not ctx.get(block.irq)

    run(block, script, bus.run)


def test_doorbells_are_pulses_and_reset_clears_the_pointers() -> None:
    block = Registers(EngineParams())
    bus = AxiLiteMaster(block.s_axil)
    rings: list[int] = []

    async def count(ctx: Any) -> None:
        while True:
            _clk, _rst, rung = await ctx.tick().sample(block.doorbell)
            rings.append(rung)

    async def script(ctx: Any) -> None:
        async def access(name: str, value: int | None = None) -> int:
            done = bus.post(regs.OFFSETS[name], value)
            while not done.done:
                await ctx.tick()
            return done.result

        await access("SQ_TAIL", 3)
        assert sum(rings) == 1
        await access("SQ_DOORBELL", 9)
        assert sum(rings) == 2
        await access("CQ_HEAD", 2)
        await access("SQ_BASE_LO", 0x1000)
        assert sum(rings) == 2
        assert await access("SQ_TAIL") == 3
        await access("CONTROL", 3)
        assert await access("CONTROL") == 3
        assert ctx.get(block.soft_reset)
        ctx.set(block.clear, 1)
        await ctx.tick()
        ctx.set(block.clear, 0)
        assert [await access(name) for name in ("CONTROL", "SQ_TAIL", "CQ_HEAD", "SQ_BASE_LO")] == [1, 0, 0, 0x1000]

    run(block, script, bus.run, count)


# ---------------------------------------------------------------- control path


def test_the_command_master_sends_the_documented_words() -> None:
    block = CmdMaster()

    async def script(ctx: Any) -> None:
        ctx.set(block.saddr, 0x10000040)
        ctx.set(block.daddr, 0x40000020)
        for is_read, btt, word, port, status in (
            (1, 64, 0x10000040_40800040, block.mm2s_cmd, block.mm2s_sts),
            (0, 32, 0x40000020_40800020, block.s2mm_cmd, block.s2mm_sts),
        ):
            other = block.s2mm_cmd if is_read else block.mm2s_cmd
            complete = block.read_complete if is_read else block.write_complete
            for answer, failed in ((0x80, 0), (0x40, 1), (0x20, 1), (0x10, 1)):
                assert ctx.get(block.ready)
                ctx.set(block.is_read, is_read)
                ctx.set(block.btt, btt)
                ctx.set(block.start, 1)
                await ctx.tick()
                ctx.set(block.start, 0)
                assert not ctx.get(block.ready)
                for _ in range(2):  # held until it is taken
                    assert (ctx.get(port.tvalid), ctx.get(port.tdata), ctx.get(other.tvalid)) == (1, word, 0)
                    await ctx.tick()
                ctx.set(port.tready, 1)
                await ctx.tick()
                ctx.set(port.tready, 0)
                assert not ctx.get(port.tvalid)
                assert not ctx.get(complete)
                ctx.set(status.tdata, answer)
                ctx.set(status.tvalid, 1)
                await ctx.delay(1e-10)
                assert (ctx.get(complete), ctx.get(block.failed)) == (1, failed)
                await ctx.tick()
                ctx.set(status.tvalid, 0)

    run(block, script)


@pytest.mark.parametrize("width", BUS_WIDTHS)
def test_the_descriptor_parser_takes_64_bytes(width: int) -> None:
    block = DescriptorParser(EngineParams(bus_width=width))
    source = StreamSource(block.s_axis, Stalls(random.Random(2), 0.3))
    entries = [random.Random(index).randbytes(64) for index in range(2)]
    beats = 0

    async def script(ctx: Any) -> None:
        nonlocal beats
        for entry in entries:
            source.send(entry)
            valid = 0
            while not valid:
                _clk, _rst, valid, taken = await ctx.tick().sample(block.entry_valid, block.s_axis.tvalid)
                beats += taken
            fields = SQ_ENTRY.unpack(ctx.get(block.entry).to_bytes(64, "little"))
            assert fields == SQ_ENTRY.unpack(entry)
            assert not ctx.get(block.entry_valid), "more than a pulse"

    run(block, script, source.run)
    assert beats == 2 * 512 // width


@pytest.mark.parametrize("width", BUS_WIDTHS)
def test_the_cq_streamer_sends_32_bytes(width: int) -> None:
    block = CqStreamer(EngineParams(bus_width=width))
    sink = StreamSink(block.m_axis, Stalls(random.Random(3), 0.3), keep_beats=True)
    entry = bytes(range(32))

    async def script(ctx: Any) -> None:
        ctx.set(block.entry, int.from_bytes(entry, "little"))
        for _ in range(2):
            ctx.set(block.start, 1)
            await ctx.tick()
            ctx.set(block.start, 0)
            await ctx.tick().repeat(40)

    run(block, script, sink.run)
    assert [frame.data for frame in sink.frames] == [entry] * 2
    assert [len(frame.beats) for frame in sink.frames] == [max(1, 256 // width)] * 2


# ---------------------------------------------------------------- packets


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("serial", [True, False], ids=["serial", "overlapped"])
@pytest.mark.parametrize("width", BUS_WIDTHS)
def test_the_inserter_puts_the_header_in_beats_of_its_own(width: int, serial: bool, rate: float) -> None:
    block = TxHeaderInserter(EngineParams(bus_width=width, serial=serial))
    stalls = Stalls(random.Random(width), rate)
    source, sink = StreamSource(block.s_axis, stalls), StreamSink(block.m_axis, stalls, keep_beats=True)
    payloads = [bytes(range(1, size + 1)) for size in (10, 1, 100)]
    done = 0

    async def watch(ctx: Any) -> None:
        nonlocal done
        while True:
            _clk, _rst, pulse = await ctx.tick().sample(block.tx_done)
            done += pulse

    async def script(ctx: Any) -> None:
        ctx.set(block.header, int.from_bytes(HEADER, "little"))
        for payload in payloads:
            source.send(payload)
            while not ctx.get(block.start_ready):
                await ctx.tick()
            ctx.set(block.start_tx, 1)
            await ctx.tick()
            ctx.set(block.start_tx, 0)
        for _ in range(300):
            await ctx.tick()
            if done == len(payloads):
                break

    run(block, script, watch, source.run, sink.run)
    assert [frame.data for frame in sink.frames] == [HEADER + payload for payload in payloads]
    lanes = width // 8
    for frame, payload in zip(sink.frames, payloads, strict=True):
        counts = [count for _cycle, count in frame.beats]
        head = [min(lanes, ENGINE_HEADER_BYTES - at) for at in range(0, ENGINE_HEADER_BYTES, lanes)]
        assert counts[: len(head)] == head
        assert sum(counts[len(head) :]) == len(payload)
    assert done == len(payloads)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("width", BUS_WIDTHS)
def test_the_header_parser_splits_header_and_payload(width: int, rate: float) -> None:
    block = RxHeaderParser(EngineParams(bus_width=width))
    stalls = Stalls(random.Random(width), rate)
    source = StreamSource(block.s_axis, stalls, ENGINE_HEADER_BYTES)
    sink = StreamSink(block.m_axis, stalls)
    headers: list[tuple[bytes, int]] = []
    cuts = 0

    async def watch(ctx: Any) -> None:
        nonlocal cuts
        while True:
            ctx.set(block.header_ready, 1)
            _clk, _rst, valid, header, empty, cut = await ctx.tick().sample(
                block.header_valid, block.header, block.empty, block.cut
            )
            cuts += cut
            if valid:
                mask = (1 << ENGINE_HEADER_BYTES * 8) - 1
                headers.append(((header & mask).to_bytes(ENGINE_HEADER_BYTES, "little"), empty))

    async def script(ctx: Any) -> None:
        source.send(HEADER + b"payload")
        source.send(HEADER)
        if width < 224:
            source.send(HEADER[: width // 8])
        source.send(HEADER + bytes(65))
        while len(sink.frames) < 2:
            await ctx.tick()
        await ctx.tick().repeat(4)

    run(block, script, watch, source.run, sink.run)
    assert [frame.data for frame in sink.frames] == [b"payload", bytes(65)]
    assert headers == [(HEADER, 0), (HEADER, 1), (HEADER, 0)]
    assert cuts == (width < 224)


def fragments(address: int, length: int, block: int, boundary: int) -> list[tuple[int, int, int]]:
    """(address, offset, bytes) of each fragment: 001 3.4, in so many words."""
    out, offset = [], 0
    while offset < length:
        size = min(length - offset, block, boundary - (address + offset) % boundary)
        out.append((address + offset, offset, size))
        offset += size
    return out


@pytest.mark.parametrize(("block", "boundary"), [(1024, 1024), (4096, 4096), (1024, 4096), (4096, 1024)])
@pytest.mark.parametrize("serial", [True, False], ids=["serial", "overlapped"])
@pytest.mark.parametrize(("address", "length"), [(0x1000, 1024), (0x13FF, 4097), (0x1FFF, 1), (0x1001, 70000)])
def test_the_streamer_cuts_an_operation_into_fragments(
    serial: bool, block: int, boundary: int, address: int, length: int
) -> None:
    streamer = TxStreamer(EngineParams(serial=serial, block_size=block, boundary=boundary, network=False))
    descriptor = SQ_ENTRY.pack(
        {"wqe_id": 0xFF123456, "opcode": 0x120A, "local_addr": address, "remote_addr": 0x2000, "length": length}
    )
    want = fragments(address, length, block, boundary)
    got: list[tuple[int, int, int]] = []

    rng = random.Random(length)

    async def mover(ctx: Any) -> None:
        """Takes commands and headers; says of each some cycles later that it was read, and that it was sent."""
        ctx.set(streamer.start_ready, 1)
        ctx.set(streamer.dm_cmd.tready, 1)
        ctx.set(streamer.dm_sts.tdata, 0x80)
        reads: list[int] = []
        sends: list[int] = []
        headers: list[EngineHeader] = []
        now, late = 0, False
        while True:
            for due, wire in ((reads, streamer.dm_sts.tvalid), (sends, streamer.tx_done)):
                ctx.set(wire, bool(due) and due[0] <= now)
                if due and due[0] <= now:
                    due.pop(0)
            sampled = await ctx.tick().sample(
                streamer.start_tx, streamer.header, streamer.dm_cmd.tvalid, streamer.dm_cmd.tdata,
                streamer.fragment_id, streamer.more_fragments, streamer.cpl_valid,
            )  # fmt: skip
            now += 1
            start, header, command, word, number, more, complete = sampled[2:]
            if complete or (start and serial):
                assert (reads, sends) == ([], []), "went on before the fragment was read and sent"
            if start:
                headers.append(EngineHeader.parse(header.to_bytes(ENGINE_HEADER_BYTES, "little")))
                late = len(got) % 2 == 0  # what comes last takes turns
                sends.append(max([now, *sends]) + (30 if late else rng.randrange(2, 9)))
            if command:
                fields = regs.DM_COMMAND.unpack(word.to_bytes(9, "little"))
                assert (fields["type"], fields["eof"], fields["dsa"], fields["drr"], fields["tag"]) == (1, 1, 0, 0, 0)
                head = headers.pop()
                assert (head.opcode, head.psn, head.dqpn) == (0x0A, regs.TX_PSN, 0x123456)
                assert (head.remote_addr, head.length) == (0x2000, fields["btt"])
                assert (head.pkey, head.service_level, head.marker) == (0xFFFF, 0, 0xABABAB)
                assert (number, more) == (len(got), len(got) + 1 < len(want))
                got.append((fields["address"], head.fragment_offset, fields["btt"]))
                reads.append(max([now, *reads]) + (rng.randrange(1, 8) if late else 30))

    async def script(ctx: Any) -> None:
        ctx.set(streamer.descriptor, int.from_bytes(descriptor, "little"))
        ctx.set(streamer.cmd_valid, 1)
        await ctx.tick()
        ctx.set(streamer.cmd_valid, 0)
        while not ctx.get(streamer.cpl_valid):
            await ctx.tick()
        await ctx.tick()  # the mover looks too
        assert (ctx.get(streamer.cpl_error), ctx.get(streamer.cpl_bytes)) == (0, length)

    run(streamer, script, mover, limit=8000)
    assert got == want


def test_the_arbiter_keeps_write_data_in_the_order_of_their_addresses() -> None:
    block = AxiArbiter(EngineParams())
    first, second, bus = block.first, block.second, block.bus
    beats: list[tuple[int, int]] = []

    async def slave(ctx: Any) -> None:
        ctx.set(bus.awready, 1)
        ctx.set(bus.wready, 1)
        while True:
            _clk, _rst, valid, data, last = await ctx.tick().sample(bus.wvalid, bus.wdata, bus.wlast)
            if valid:
                beats.append((data, last))

    async def master(ctx: Any, side: Any, number: int) -> None:
        """Shows its data at once, its address after a while."""
        ctx.set(side.awid, number)
        ctx.set(side.wvalid, 1)
        ctx.set(side.wlast, 1)
        ctx.set(side.wdata, 0x100 + number)
        await ctx.tick().repeat(3 - number)
        ctx.set(side.awvalid, 1)
        while True:
            _clk, _rst, taken = await ctx.tick().sample(side.awready)
            if taken:
                break
        ctx.set(side.awvalid, 0)
        while True:
            _clk, _rst, taken = await ctx.tick().sample(side.wready)
            if taken:
                break
        ctx.set(side.wvalid, 0)

    async def one(ctx: Any) -> None:
        await master(ctx, first, 0)

    async def two(ctx: Any) -> None:
        await master(ctx, second, 1)

    async def script(ctx: Any) -> None:
        await ctx.tick().repeat(20)

    run(block, script, slave, one, two)
    assert beats == [(0x101, 1), (0x100, 1)]
