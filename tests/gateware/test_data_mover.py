"""``data_mover`` alone: any size at any alignment, stalls everywhere, errors of bus and stream, abort at any time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from rnic.gateware.axi_model import ORDERS
from rnic.gateware.data_mover import DataMover
from rnic.gateware.interfaces import Resp
from rnic.gateware.params import EngineParams
from rnic.gateware.sim_bus import AxiRam, Stalls, StreamSink, StreamSource, Timing
from rnic.spec.engine_regs import DM_COMMAND, DM_STATUS, dm_command

BASE = 0x1000
SPACE = 0x8000
WIDTHS = (32, 64, 512)
FEW_AND_MANY = (32, 128)
"""Of many lanes a joiner makes the beats that are written."""
pytestmark = pytest.mark.slow


class Ram:
    """Bytes from BASE on; outside it the bus answers DECERR."""

    def __init__(self, rng: random.Random) -> None:
        self.bytes = bytearray(rng.randbytes(SPACE))

    def read(self, address: int, count: int) -> bytes:
        if not BASE <= address <= BASE + SPACE - count:
            raise LookupError(address)
        return bytes(self.bytes[address - BASE : address - BASE + count])

    def write(self, address: int, data: bytes) -> None:
        if not BASE <= address <= BASE + SPACE - len(data):
            raise LookupError(address)
        self.bytes[address - BASE : address - BASE + len(data)] = data


class Bench:
    """A DataMover between a memory and two stream ends; statuses are gathered."""

    def __init__(
        self,
        params: EngineParams,
        seed: int = 1,
        rate: float = 0.0,
        latency: int = 2,
        ends: bool = True,
        order: str = "any",
    ) -> None:
        rng = random.Random(seed)
        self.mover = DataMover(params, 1)
        self.ram = Ram(rng)
        stalls = Stalls(rng, rate)
        self.axi = AxiRam(self.mover.axi, self.ram, stalls, Timing(latency, order))
        self.sink = StreamSink(self.mover.mm2s, stalls)
        self.source = StreamSource(self.mover.s2mm, stalls)
        self.read_commands: list[int] = []
        self.write_commands: list[int] = []
        self.read_status: list[dict[str, int]] = []
        self.write_status: list[dict[str, int]] = []
        self.cycles = 0
        m = Module()
        m.submodules.mover = self.mover
        self.simulator = Simulator(m)
        self.simulator.add_clock(1e-8)
        stream_ends = (self.sink.run, self.source.run) if ends else ()
        for model in (self.axi.run, *stream_ends, self._commands, self._statuses):
            self.simulator.add_testbench(model, background=True)

    async def _commands(self, ctx: Any) -> None:
        mover = self.mover
        while True:
            for queue, port in ((self.read_commands, mover.mm2s_cmd), (self.write_commands, mover.s2mm_cmd)):
                ctx.set(port.tvalid, bool(queue))
                ctx.set(port.tdata, queue[0] if queue else 0)
            offered = (mover.mm2s_cmd.tvalid, mover.mm2s_cmd.tready, mover.s2mm_cmd.tvalid, mover.s2mm_cmd.tready)
            _clk, _rst, read, read_taken, write, write_taken = await ctx.tick().sample(*offered)
            self.cycles += 1
            if self.read_commands and read and read_taken:
                self.read_commands.pop(0)
            if self.write_commands and write and write_taken:
                self.write_commands.pop(0)

    async def _statuses(self, ctx: Any) -> None:
        mover = self.mover
        ctx.set(mover.mm2s_sts.tready, 1)
        ctx.set(mover.s2mm_sts.tready, 1)
        while True:
            _clk, _rst, read, r_word, write, w_word = await ctx.tick().sample(
                mover.mm2s_sts.tvalid, mover.mm2s_sts.tdata, mover.s2mm_sts.tvalid, mover.s2mm_sts.tdata
            )
            if read:
                self.read_status.append(DM_STATUS.unpack(bytes([r_word])))
            if write:
                self.write_status.append(DM_STATUS.unpack(bytes([w_word])))

    def run(self, reads: int = 0, writes: int = 0, limit: int = 4000) -> None:
        """Until so many statuses have come."""

        async def wait(ctx: Any) -> None:
            while len(self.read_status) < reads or len(self.write_status) < writes:
                await ctx.tick()
                assert self.cycles < limit, (len(self.read_status), len(self.write_status), self.cycles)
            await ctx.tick().repeat(4)
            assert ctx.get(self.mover.mm2s_quiet)
            assert ctx.get(self.mover.s2mm_quiet)

        self.simulator.add_testbench(wait)
        self.simulator.run()
        self.axi.checker.quiet()


def okay(status: dict[str, int], tag: int = 0) -> bool:
    return status == {"tag": tag, "interr": 0, "decerr": 0, "slverr": 0, "okay": 1}


def params_of(width: int, max_burst: int = 4) -> EngineParams:
    return EngineParams(bus_width=width, max_burst=max_burst)


def cases(width: int, rng: random.Random, count: int) -> list[tuple[int, int]]:
    """(address, bytes): all small sizes around a beat at random alignments, some across bursts."""
    lanes = width // 8
    sizes = [1, 2, 3, lanes - 1, lanes, lanes + 1, 2 * lanes, 5 * lanes + 3]
    return [(BASE + rng.randrange(2 * lanes), rng.choice(sizes)) for _ in range(count)]


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("width", WIDTHS)
def test_mm2s_brings_the_bytes_of_any_address_and_length(width: int, rate: float) -> None:
    bench = Bench(params_of(width), seed=width, rate=rate)
    commands = cases(width, random.Random(width), 16)
    bench.read_commands = [dm_command(address, size, index % 16) for index, (address, size) in enumerate(commands)]
    bench.run(reads=len(commands))
    assert [frame.data for frame in bench.sink.frames] == [bench.ram.read(*command) for command in commands]
    assert all(okay(status, index % 16) for index, status in enumerate(bench.read_status))


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("width", WIDTHS)
def test_s2mm_stores_packets_at_any_address_and_touches_nothing_else(width: int, rate: float) -> None:
    rng = random.Random(width + 1)
    bench = Bench(params_of(width), seed=width, rate=rate)
    want = bytearray(bench.ram.bytes)
    commands = cases(width, rng, 16)
    for index, (address, size) in enumerate(commands):
        payload = rng.randbytes(size)
        want[address - BASE : address - BASE + size] = payload
        bench.source.send(payload)
        bench.write_commands.append(dm_command(address, size, index % 16))
    bench.run(writes=len(commands))
    assert bench.ram.bytes == want
    assert all(okay(status, index % 16) for index, status in enumerate(bench.write_status))


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [32, 512])
def test_a_slave_may_want_data_before_it_takes_their_address(width: int, order: str, rate: float) -> None:
    rng = random.Random(width)
    bench = Bench(params_of(width), seed=width, rate=rate, order=order)
    if not rate:
        # the data are there: cycles from an address shown to data shown, registers of which many lanes have one more
        bench.axi.checker.patience = 4 + params_of(width).broad
    want = bytearray(bench.ram.bytes)
    for index, (address, size) in enumerate(cases(width, rng, 12)):
        payload = rng.randbytes(size)
        want[address - BASE : address - BASE + size] = payload
        bench.source.send(payload)
        bench.write_commands.append(dm_command(address, size, index))
    bench.run(writes=12)
    assert bench.ram.bytes == want
    if order != "any":
        assert (bench.axi.checker.data_ahead > 0) == (order == "data_first")


@pytest.mark.parametrize("offset", range(4))
def test_every_alignment_of_source_and_sizes_up_to_three_beats(offset: int) -> None:
    bench = Bench(params_of(32))
    commands = [(BASE + 8 + offset, size) for size in range(1, 13)]
    bench.read_commands = [dm_command(*command) for command in commands]
    want = bytearray(bench.ram.bytes)
    for index, (address, size) in enumerate(commands):
        payload, at = bytes([index + 1] * size), address - BASE + 0x1000 + 64 * index
        bench.source.send(payload)
        want[at : at + size] = payload
        bench.write_commands.append(dm_command(BASE + at, size))
    bench.run(reads=len(commands), writes=len(commands))
    assert [frame.data for frame in bench.sink.frames] == [bench.ram.read(*command) for command in commands]
    assert bench.ram.bytes == want


@pytest.mark.parametrize("width", [32, 512])
def test_bursts_stop_at_4_kb_and_overlap(width: int) -> None:
    # AxiRam raises where a burst crosses; the latency would show one burst at a time
    size = 2 * 64 * width // 8 if width == 32 else 1024
    bench = Bench(EngineParams(bus_width=width, max_burst=16), latency=20)
    address = BASE + 0x1000 - size // 2 - 1
    bench.read_commands = [dm_command(address, size)] * 2
    bench.run(reads=2)
    assert [frame.data for frame in bench.sink.frames] == [bench.ram.read(address, size)] * 2
    beats = 2 * (size // (width // 8) + 1)
    assert bench.cycles < beats + 20 + 24, "bursts and commands do not overlap"


def test_writes_of_successive_commands_overlap_with_their_responses() -> None:
    bench = Bench(EngineParams(bus_width=64, max_burst=16), latency=20)
    for index in range(4):
        bench.source.send(bytes(128))
        bench.write_commands.append(dm_command(BASE + 128 * index, 128))
    bench.run(writes=4)
    assert bench.cycles < 64 + 4 + 20 + 24


@pytest.mark.parametrize(
    "word", [dm_command(BASE, 0, 5), dm_command(BASE, 8, 5) & ~(1 << 23)], ids=["without bytes", "type fixed"]
)
def test_a_command_without_bytes_or_of_type_fixed_is_refused(word: int) -> None:
    bench = Bench(params_of(32))
    bench.source.send(b"12345678")
    bench.source.send(b"abcdefgh")
    bench.read_commands = [dm_command(BASE, 8), word, dm_command(BASE + 8, 8)]
    bench.write_commands = [dm_command(BASE + 64, 8), word, dm_command(BASE + 72, 8)]
    bench.run(reads=3, writes=3)
    refused = {"tag": 5, "interr": 1, "decerr": 0, "slverr": 0, "okay": 0}
    for status in (bench.read_status, bench.write_status):
        assert okay(status[0])
        assert status[1] == refused
        assert okay(status[2])
    assert bench.ram.read(BASE + 64, 16) == b"12345678abcdefgh"
    assert len(bench.sink.frames) == 2


def test_without_eof_a_command_does_not_end_the_packet() -> None:
    bench = Bench(params_of(32))
    bench.read_commands = [dm_command(BASE, 8) & ~(1 << DM_COMMAND["eof"].lsb), dm_command(BASE + 8, 8)]
    bench.run(reads=2)
    assert [frame.data for frame in bench.sink.frames] == [bench.ram.read(BASE, 16)]


@pytest.mark.parametrize("response", [Resp.SLVERR, Resp.DECERR])
@pytest.mark.parametrize("channel", ["read", "write"])
def test_bus_errors_become_statuses(channel: str, response: Resp) -> None:
    bench = Bench(params_of(32))
    bench.axi.faults[channel, (BASE + 0x1000) >> 12] = response
    before = bytes(bench.ram.bytes)
    commands = [dm_command(BASE, 32), dm_command(BASE + 0x1000, 32), dm_command(BASE, 32)]
    if channel == "read":
        bench.read_commands = commands
        bench.run(reads=3)
        status = bench.read_status
        assert [frame.bad for frame in bench.sink.frames] == [False, True, False]
    else:
        bench.write_commands = commands
        for _ in commands:
            bench.source.send(before[:32])
        bench.run(writes=3)
        status = bench.write_status
        assert bench.ram.bytes == before
    name = "slverr" if response == Resp.SLVERR else "decerr"
    assert okay(status[0])
    assert okay(status[2])
    assert status[1] == {"tag": 0, "interr": 0, "decerr": 0, "slverr": 0, "okay": 0} | {name: 1}


@pytest.mark.parametrize(("sent", "asked"), [(4, 20), (19, 20), (21, 20), (24, 20), (60, 20), (1, 2), (2, 1)])
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("width", FEW_AND_MANY)
def test_a_packet_of_another_length_than_btt(sent: int, asked: int, offset: int, width: int) -> None:
    bench = Bench(params_of(width))
    want = bytearray(bench.ram.bytes)
    payload = bytes(range(1, sent + 1))
    kept = min(sent, asked)
    want[256 + offset : 256 + offset + kept] = payload[:kept]
    want[512:516] = b"next"
    bench.source.send(payload)
    bench.source.send(b"next")
    bench.write_commands = [dm_command(BASE + 256 + offset, asked), dm_command(BASE + 512, 4)]
    bench.run(writes=2)
    assert bench.write_status[0]["interr"]
    assert not bench.write_status[0]["okay"]
    assert okay(bench.write_status[1])
    assert bench.ram.bytes == want


@pytest.mark.parametrize("width", FEW_AND_MANY)
def test_bad_beats_are_not_stored(width: int) -> None:
    bench, lanes = Bench(params_of(width)), width // 8
    want = bytearray(bench.ram.bytes)
    want[3 : 3 + lanes] = b"g" * lanes
    bench.source.send(b"g" * lanes + b"b" * lanes, bad=True)
    bench.write_commands = [dm_command(BASE + 3, 2 * lanes)]
    bench.run(writes=1)
    assert bench.ram.bytes == want
    assert bench.write_status[0]["interr"]


@pytest.mark.parametrize("when", range(1, 40, 3))
@pytest.mark.parametrize("width", FEW_AND_MANY)
def test_abort_leaves_the_bus_in_order_and_the_channels_usable(when: int, width: int) -> None:
    rng, lanes = random.Random(when), width // 8
    bench = Bench(params_of(width), seed=when, rate=0.3, ends=False)
    mover = bench.mover
    bench.read_commands = [dm_command(BASE + 2, 70), dm_command(BASE + 512, 70)]
    bench.write_commands = [dm_command(BASE + 0x1003, 70), dm_command(BASE + 0x1100, 70)]
    untouched = bytes(bench.ram.bytes)

    frames: list[bytes] = []

    async def sink(ctx: Any) -> None:
        data = bytearray()
        while True:
            ctx.set(mover.mm2s.tready, rng.random() < 0.6)
            ready = ctx.get(mover.mm2s.tready)
            _c, _r, valid, word, keep, last, aborting = await ctx.tick().sample(
                mover.mm2s.tvalid, mover.mm2s.tdata, mover.mm2s.tkeep, mover.mm2s.tlast, mover.mm2s_abort
            )
            if aborting:
                data.clear()
            elif valid and ready:
                data += word.to_bytes(lanes, "little")[: keep.bit_length()]
                if last:
                    frames.append(bytes(data))
                    data.clear()

    async def source(ctx: Any) -> None:
        """Both packets of the first round, then, after the abort, the last one."""
        for payload, aborted in ((rng.randbytes(140), True), (b"afterwards!!", False)):
            if not aborted:
                while not bench.write_commands:
                    await ctx.tick()
            for at in range(0, len(payload), lanes):
                beat = payload[at : at + lanes]
                ctx.set(mover.s2mm.tdata, int.from_bytes(beat, "little"))
                ctx.set(mover.s2mm.tkeep, (1 << len(beat)) - 1)
                ctx.set(mover.s2mm.tlast, at + lanes >= len(payload) or (aborted and at == 70 // lanes * lanes))
                ctx.set(mover.s2mm.tvalid, 1)
                while True:
                    _c, _r, taken, aborting = await ctx.tick().sample(mover.s2mm.tready, mover.s2mm_abort)
                    if taken or aborting:
                        break
                ctx.set(mover.s2mm.tvalid, 0)
                if aborting:
                    break

    async def scenario(ctx: Any) -> None:
        await ctx.tick().repeat(when)
        ctx.set(mover.mm2s_abort, 1)
        ctx.set(mover.s2mm_abort, 1)
        bench.read_commands.clear()
        bench.write_commands.clear()
        for _ in range(400):
            await ctx.tick()
            if ctx.get(mover.mm2s_quiet) and ctx.get(mover.s2mm_quiet):
                break
        else:
            pytest.fail("the bus never came to rest")
        await ctx.tick()
        ctx.set(mover.mm2s_abort, 0)
        ctx.set(mover.s2mm_abort, 0)
        bench.read_status.clear()
        bench.write_status.clear()
        frames.clear()
        bench.read_commands.append(dm_command(BASE + 5, 11, 3))
        bench.write_commands.append(dm_command(BASE + 0x2001, 12, 4))
        for _ in range(300):
            await ctx.tick()
            if bench.read_status and bench.write_status:
                break
        assert okay(bench.read_status[0], 3)
        assert okay(bench.write_status[0], 4)
        assert frames == [bench.ram.read(BASE + 5, 11)]
        assert bench.ram.read(BASE + 0x2001, 12) == b"afterwards!!"
        outside = bytearray(untouched)
        for start, size in ((0x1003, 70), (0x1100, 70), (0x2001, 12)):
            outside[start : start + size] = bench.ram.bytes[start : start + size]
        assert bench.ram.bytes == outside, "an abort stored bytes outside the commands' places"

    for model in (sink, source):
        bench.simulator.add_testbench(model, background=True)
    bench.simulator.add_testbench(scenario)
    bench.simulator.run()
