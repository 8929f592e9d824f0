"""Addresses of more than 32 bits: rings, windows, sources and destinations above 4 GiB, and across multiples of it.

Memory is nowhere but where it should be, so a high word that is lost on its way is a bus error, not a lucky hit.
"""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from rnic.gateware.cache import SparseMemory
from rnic.gateware.driver import Completion, Driver, QueueLayout, Request, Window
from rnic.gateware.model import EngineModel
from rnic.gateware.params import EngineParams
from rnic.gateware.rx_path import RxStreamer
from rnic.gateware.sim import Simulation
from rnic.gateware.simulate import CQ_BASE, PAYLOAD_BASE, REMOTE_BASE, SQ_BASE, Job, run_job
from rnic.gateware.tx_path import TxStreamer
from rnic.rings.sqe import SQ_ENTRY
from rnic.spec import engine_regs as regs
from rnic.spec.status import ENGINE_LOCAL_ACCESS, ENGINE_REMOTE_ACCESS, ENGINE_SUCCESS
from rnic.wire.engine_header import ENGINE_HEADER_BYTES, EngineHeader, EngineHeaderWide

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
GIB_4 = 1 << 32
ENGINES: dict[str, dict[str, Any]] = {
    "serial": {"serial": True},
    "overlapped": {"serial": False},
    "several": {"serial": False, "in_flight": 4},
}
EACH = [pytest.param(name, marks=() if name == "several" else pytest.mark.full) for name in ENGINES]
"""In short the one that has most beside the addresses; the serial one has the other widths."""
FAR = 0xFEDC_BA98_0000_0000


def params_of(name: str, **changes: Any) -> EngineParams:
    """A small engine with 64-bit addresses."""
    small: dict[str, Any] = {"block_size": 64, "boundary": 64, "fifo_depth": 64, "address_bits": 64}
    return EngineParams(**small | ENGINES[name] | changes)


# ---------------------------------------------------------------- whole jobs, every byte verified


@pytest.mark.parametrize("network", [False, True], ids=["loopback", "network"])
@pytest.mark.parametrize("name", EACH)
def test_all_of_it_lies_above_4_gib(name: str, network: bool) -> None:
    """Every byte of the address differs from every other, as do the four places."""
    job = Job(
        sizes=(1, 150, 64),
        local_offsets=(0, 3),
        remote_offsets=(0, 5, 2),
        count=6,
        network=network,
        base=FAR,
        poll_limit=500,
    )
    result = run_job(job, params_of(name))
    assert result.wrong == []
    assert all(done.status == 0 for done in result.completions)
    if network:
        headers = [EngineHeaderWide.parse(frame, 42) for frame in result.frames]
        assert {header.address >> 32 for header in headers} == {FAR >> 32}


@pytest.mark.parametrize("place", ["SQ", "CQ", "source", "destination"])
@pytest.mark.parametrize("name", EACH)
def test_each_place_may_cross_a_multiple_of_4_gib(name: str, place: str) -> None:
    """In the middle of a ring of 8; inside the first WRITE, at an address that no fragment boundary is at."""
    inside = {
        "SQ": SQ_BASE + 64,
        "CQ": CQ_BASE + 32 * 2,
        "source": PAYLOAD_BASE + 192,
        "destination": REMOTE_BASE + 320,
    }
    base = FAR + 3 * GIB_4 - inside[place]
    job = Job(
        sizes=(700,), local_offsets=(3,), remote_offsets=(5,), count=4, ring_size=8, base=base & -64, poll_limit=500
    )
    assert run_job(job, params_of(name, block_size=256, boundary=256)).wrong == []


@pytest.mark.full
def test_a_bus_on_its_own_clock() -> None:
    params = params_of("several", bus_clock_mhz=70.0, mac_clock_mhz=60.0)
    assert run_job(Job(sizes=(150,), count=2, network=True, base=FAR, poll_limit=500), params).wrong == []


@pytest.mark.parametrize("bits", [pytest.param(36, marks=pytest.mark.full), 48])
def test_addresses_of_other_widths(bits: int) -> None:
    base = (1 << bits) - GIB_4
    assert (
        run_job(Job(sizes=(150,), count=2, base=base, poll_limit=500), params_of("serial", address_bits=bits)).wrong
        == []
    )
    with pytest.raises(ValueError, match=f"inside {bits} bits"):
        run_job(Job(sizes=(150,), count=1, base=base + GIB_4), params_of("serial", address_bits=bits))


# ---------------------------------------------------------------- what is refused

SQ, CQ, SOURCE, TARGET = (FAR + place for place in (0x1000, 0x2000, GIB_4 - 0x100, 5 * GIB_4 - 0x100))
LOCAL, REMOTE = Window(SOURCE, 0x200), Window(TARGET, 0x200)
TOP = (1 << 64) - 0x40


class Engine:
    """One engine with windows that end above a multiple of 4 GiB, and its reference model beside it."""

    def __init__(self, name: str, local: Window = LOCAL, remote: Window = REMOTE, **changes: Any) -> None:
        params = params_of(name, **changes)
        places: tuple[tuple[int, int], ...] = (
            (SQ, 0x1000),
            (CQ, 0x1000),
            (SOURCE, 0x200),
            (TARGET, 0x200),
            (0, 0x200),
            (TOP, 0x40),
        )
        aliases = tuple((address % GIB_4, 0x200) for address in (SOURCE, TARGET))
        places += aliases[:1]  # both have the same low word
        self.memory = SparseMemory(*places)
        self.simulation = Simulation(params, [self.memory])
        self.sim = self.simulation.engines[0]
        self.model = EngineModel(params, SparseMemory(*places))
        layout = QueueLayout(SQ, CQ, 4, 4)
        self.drivers = [Driver(each, layout, 300, local, remote) for each in (self.sim, self.model)]
        for driver in self.drivers:
            driver.start()

    def write(self, local: int, remote: int, length: int) -> Completion:
        """One WRITE by both; they agree."""
        out = []
        for driver in self.drivers:
            tail = driver.get("SQ_TAIL")
            entry = {"opcode": 0x0A, "local_addr": local, "remote_addr": remote, "length": length}
            # the driver would flush a source that may be nowhere
            driver.backend.write(SQ + 64 * tail, SQ_ENTRY.pack(entry))
            driver.backend.flush(SQ + 64 * tail, 64)
            driver._posted[tail] = Request(local, remote, length)
            driver.put("SQ_TAIL", (tail + 1) % 4)
            out += driver.wait()
        assert out[0] == out[1]
        return out[0]


@pytest.mark.parametrize("name", EACH)
def test_windows_that_end_above_4_gib(name: str) -> None:
    engine = Engine(name)
    for at, length in ((0, 0x200), (0xFF, 2), (0x100, 0x100), (0, 1), (0x1FF, 1)):
        payload = bytes((at + n) % 251 for n in range(length))
        engine.sim.write(SOURCE + at, payload)
        engine.sim.flush(SOURCE + at, length)
        engine.model.write(SOURCE + at, payload)
        engine.model.flush(SOURCE + at, length)
        assert engine.write(SOURCE + at, TARGET + at, length).status == ENGINE_SUCCESS
        assert engine.memory.read(TARGET + at, length) == payload
    untouched = engine.memory.read(TARGET, 0x200)
    local, remote = (ENGINE_LOCAL_ACCESS, regs.ERR_LOCAL_WINDOW), (ENGINE_REMOTE_ACCESS, regs.ERR_REMOTE_WINDOW)
    for source, target, length, refused in (
        (SOURCE - 1, TARGET, 8, local),
        (SOURCE + 0x200, TARGET, 1, local),
        (SOURCE + 0x1F9, TARGET, 8, local),
        (SOURCE - GIB_4, TARGET, 8, local),
        (SOURCE + GIB_4, TARGET, 8, local),
        (SOURCE % GIB_4, TARGET, 8, local),
        (SOURCE - (1 << 63), TARGET, 8, local),
        (SOURCE, TARGET - 1, 8, remote),
        (SOURCE, TARGET + 0x200, 1, remote),
        (SOURCE, TARGET + 0x1F9, 8, remote),
        (SOURCE, TARGET - GIB_4, 8, remote),
        (SOURCE, TARGET + GIB_4, 8, remote),
        (SOURCE, TARGET % GIB_4, 8, remote),
        (SOURCE, TARGET - (1 << 63), 8, remote),
    ):
        done = engine.write(source, target, length)
        assert (done.status, done.detail) == refused, (hex(source), hex(target), length)
    assert engine.memory.read(TARGET, 0x200) == untouched
    assert engine.memory.read(TARGET % GIB_4, 0x200) == bytes(0x200)


@pytest.mark.parametrize("name", EACH)
def test_nothing_wraps_around_at_the_end_of_the_addresses(name: str) -> None:
    everything = Window(0, 1 << 64)
    engine = Engine(name, everything, everything)
    assert engine.write(TOP, TARGET, 0x40).status == ENGINE_SUCCESS
    assert engine.write(SOURCE, TOP, 0x40).status == ENGINE_SUCCESS
    done = engine.write(TOP, TARGET, 0x41)
    assert (done.status, done.detail) == (ENGINE_LOCAL_ACCESS, regs.ERR_LOCAL_WINDOW)
    done = engine.write(SOURCE, TOP, 0x41)
    assert (done.status, done.detail, done.bytes) == (ENGINE_REMOTE_ACCESS, regs.ERR_REMOTE_WINDOW, 0)
    done = engine.write(SOURCE, TOP, 0x80)
    assert (done.status, done.detail, done.bytes) == (ENGINE_REMOTE_ACCESS, regs.ERR_REMOTE_WINDOW, 0)
    assert engine.memory.read(0, 0x200) == bytes(0x200)


@pytest.mark.parametrize("name", EACH)
def test_addresses_past_those_of_the_engine(name: str) -> None:
    """Bits that its bus has not got are not left out: the descriptor is refused."""
    bits = 40
    sq, cq, source, target = (0x76_0000_0000 + place for place in (0x1000, 0x2000, 0x3000, 0x4000))
    engine = Simulation(params_of(name, address_bits=bits), [SparseMemory((sq, 0x4000))]).engines[0]
    driver = Driver(engine, QueueLayout(sq, cq), 300, Window(0, 1 << bits), Window(0, 1 << bits))
    driver.start()
    assert driver.address_bits() == bits
    engine.write(source, b"a" * 8)
    assert driver.run([Request(source, target, 8)])[0].status == ENGINE_SUCCESS
    for local, remote, detail in (
        (source + (1 << bits), target, regs.ERR_LOCAL_WINDOW),
        (source, target + (1 << bits), regs.ERR_REMOTE_WINDOW),
        (source, target + (1 << 63), regs.ERR_REMOTE_WINDOW),
    ):
        tail = driver.get("SQ_TAIL")
        engine.write(
            sq + 64 * tail, SQ_ENTRY.pack({"opcode": 0x0A, "local_addr": local, "remote_addr": remote, "length": 8})
        )
        engine.flush(sq + 64 * tail, 64)
        driver._posted[tail] = Request(local, remote, 8)
        driver.put("SQ_TAIL", (tail + 1) % 4)
        (done,) = driver.wait()
        assert (done.detail, done.bytes) == (detail, 0), "a byte was sent"


def test_an_engine_that_was_reset_reaches_nothing() -> None:
    engine = Engine("serial")
    for window in ("LOCAL", "REMOTE"):
        at = {"LOCAL": SOURCE, "REMOTE": TARGET}[window]
        assert engine.sim.read32(regs.OFFSETS[f"{window}_WINDOW_BASE_HI"]) == at >> 32
    fresh = Simulation(params_of("serial"), [SparseMemory((SQ, 0x1000), (CQ, 0x1000))]).engines[0]
    found = {name: fresh.read32(regs.OFFSETS[name]) for name in regs.OFFSETS if "WINDOW" in name}
    assert found == {name: 0xFFFFFFFF if "BASE" in name else 0 for name in found}
    assert len(found) == 8


@pytest.mark.parametrize("bits", [32, 36, 64])
def test_the_engine_says_how_many_bits_it_has(bits: int) -> None:
    fresh = Simulation(params_of("serial", address_bits=bits), [SparseMemory((SQ, 0x1000))]).engines[0]
    assert Driver(fresh).address_bits() == bits
    assert Driver(EngineModel(params_of("serial", address_bits=bits), SparseMemory())).address_bits() == bits


# ---------------------------------------------------------------- the two ends of the header


def simulate(block: Any, script: Any, model: Any = None) -> None:
    m = Module()
    m.submodules.block = block
    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    if model is not None:
        simulator.add_testbench(model, background=True)
    simulator.add_testbench(script)
    simulator.run()


@pytest.mark.parametrize(
    ("serial", "multiples"),
    [
        pytest.param(True, 1, id="serial-once"),
        pytest.param(True, 2, id="serial-twice", marks=pytest.mark.full),
        pytest.param(False, 2, id="overlapped-twice", marks=pytest.mark.full),
    ],
)
def test_an_offset_of_more_than_16_mib_goes_into_the_address(serial: bool, multiples: int) -> None:
    params = EngineParams(serial=serial, block_size=32768, boundary=65536, network=False, address_bits=64)
    streamer = TxStreamer(params)
    source, target, length = 0x12_FFF0_0000, 0x3456_789A_FF00_1234, (multiples << 24) + 5000
    descriptor = SQ_ENTRY.pack({"opcode": 0x0A, "local_addr": source, "remote_addr": target, "length": length})
    places: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []

    async def mover(ctx: Any) -> None:
        """Takes all at once; each fragment is read and sent a cycle later."""
        ctx.set(streamer.start_ready, 1)
        ctx.set(streamer.dm_cmd.tready, 1)
        ctx.set(streamer.dm_sts.tdata, 0x80)
        while True:
            _clk, _rst, start, header, command, word = await ctx.tick().sample(
                streamer.start_tx, streamer.header, streamer.dm_cmd.tvalid, streamer.dm_cmd.tdata
            )
            ctx.set(streamer.tx_done, start)
            ctx.set(streamer.dm_sts.tvalid, command)
            if start:
                head = EngineHeaderWide.parse(header.to_bytes(ENGINE_HEADER_BYTES, "little"))
                assert head.fragment_offset < 1 << 24
                places.append((head.address + head.fragment_offset, head.length))
            if command:
                fields = regs.DM_COMMAND_WIDE.unpack(word.to_bytes(13, "little"))
                assert (fields["type"], fields["eof"], fields["tag"]) == (1, 1, 0)
                read.append((fields["address"], fields["btt"]))

    async def script(ctx: Any) -> None:
        ctx.set(streamer.descriptor, int.from_bytes(descriptor, "little"))
        ctx.set(streamer.cmd_valid, 1)
        await ctx.tick()
        ctx.set(streamer.cmd_valid, 0)
        for _ in range(20_000):
            if ctx.get(streamer.cpl_valid):
                break
            await ctx.tick()
        await ctx.tick()

    simulate(streamer, script, mover)
    assert [(address - target + source, size) for address, size in places] == read
    ends = [address + size for address, size in read]
    assert [address for address, _size in read] == [source, *ends[:-1]]
    assert ends[-1] == source + length


@pytest.mark.parametrize(
    ("address", "offset", "length", "written"),
    [
        pytest.param(0x0123_4567_89AB_CDEF, 0, 16, 0x0123_4567_89AB_CDEF, id="every byte"),
        pytest.param(0xFEDC_BA98_FFFF_FFF0, 0x20, 16, 0xFEDC_BA99_0000_0010, id="offset across 4 GiB"),
        pytest.param(0xFFFF_FFFF_FFFF_FFF0, 0, 16, 0xFFFF_FFFF_FFFF_FFF0, id="up to the end"),
        pytest.param(0xFFFF_FFFF_FFFF_FFF0, 0, 17, None, id="one too long"),
        pytest.param(0xFFFF_FFFF_FFFF_FFF0, 0x10, 1, None, id="offset past the end"),
        pytest.param(0xFFFF_FFFF_FFFF_FFF0, 0xFFFFFF, 16, None, id="offset far past it"),
    ],
)
@pytest.mark.parametrize("serial", [True, False], ids=["serial", "overlapped"])
def test_the_receiver_goes_where_the_header_says(
    serial: bool, address: int, offset: int, length: int, written: int | None
) -> None:
    """With a window that is all there is: an address that would wrap around is outside."""
    streamer = RxStreamer(EngineParams(serial=serial, address_bits=64))
    parts = {
        "remote_addr": address & 0xFFFFFFFF,
        "remote_addr_39_32": address >> 32 & 0xFF,
        "remote_addr_55_40": address >> 40 & 0xFFFF,
        "remote_addr_63_56": address >> 56,
    }
    header = EngineHeaderWide(opcode=0x0A, fragment_offset=offset, length=length, pkey=0xFFFF, **parts)
    assert header.address == address
    shown: list[int | None] = []

    async def script(ctx: Any) -> None:
        ctx.set(streamer.window_last, (1 << 64) - 1)
        ctx.set(streamer.header, int.from_bytes(header.pack(), "little"))
        ctx.set(streamer.header_valid, 1)
        ctx.set(streamer.s_axis.tvalid, 1)
        ctx.set(streamer.s_axis.tlast, 1)
        for _ in range(20):
            if ctx.get(streamer.dm_cmd.tvalid):
                word = ctx.get(streamer.dm_cmd.tdata).to_bytes(13, "little")
                shown.append(regs.DM_COMMAND_WIDE.unpack(word)["address"])
                break
            if ctx.get(streamer.finished):
                assert ctx.get(streamer.dropped)
                assert ctx.get(streamer.error) == regs.ERR_REMOTE_WINDOW
                shown.append(None)
                break
            await ctx.tick()

    simulate(streamer, script)
    assert shown == [written]


def test_engines_of_both_kinds_understand_each_other_below_4_gib() -> None:
    """The header is the same, bit for bit, as long as the offset is below 16 MiB."""
    narrow = EngineHeader(opcode=0x0A, psn=1, dqpn=5, remote_addr=0x80001000, fragment_offset=0x10400, length=9)
    wide = EngineHeaderWide.parse(narrow.pack())
    assert (wide.address, wide.fragment_offset, wide.length) == (0x80001000, 0x10400, 9)
    assert wide.pack() == narrow.pack()


# ---------------------------------------------------------------- the driver


class Registers(EngineModel):
    """Writes down what is stored, and what the windows are after each store."""

    def __init__(self, params: EngineParams) -> None:
        super().__init__(params, SparseMemory())
        self.seen: list[tuple[int, int]] = []

    def write32(self, offset: int, value: int) -> None:
        super().write32(offset, value)
        ends = (self._address(f"REMOTE_WINDOW_{end}", f"REMOTE_WINDOW_{end}_HI") for end in ("BASE", "LAST"))
        base, last = ends
        if base <= last:
            self.seen.append((base, last))


@pytest.mark.parametrize("later", [Window(0x3_8000_0000, 0x100), Window(0x80, 0x5_0000_0000)])
def test_a_window_is_never_open_further_while_it_is_moved(later: Window) -> None:
    backend = Registers(params_of("serial"))
    first = Window(0x1_F000_0000, 0x2000_0000)
    for window in (first, later):
        Driver(backend, QueueLayout(SQ, CQ), remote=window).start()
    allowed = [(window.base, window.base + window.size - 1) for window in (first, later)]
    assert backend.seen[0] == allowed[0]
    assert backend.seen[-1] == allowed[1]
    for base, last in backend.seen:
        assert any(low <= base and last <= high for low, high in allowed), (hex(base), hex(last))


def test_what_an_engine_cannot_reach_is_refused() -> None:
    narrow, wide = EngineModel(EngineParams(), SparseMemory()), EngineModel(params_of("serial"), SparseMemory())
    refused: tuple[tuple[QueueLayout, dict[str, Any], str], ...] = (
        (QueueLayout(SQ, 0), {}, "SQ of 256 bytes at 0xfedcba9800001000: inside 32 bits"),
        (QueueLayout(0, GIB_4 - 96), {}, "CQ of 128 bytes at 0xffffffa0: inside 32 bits"),
        (QueueLayout(), {"local": Window(1, GIB_4)}, "local window of 4294967296 bytes at 0x1: inside 32 bits"),
        (QueueLayout(), {"remote": Window(GIB_4, 1)}, "remote window of 1 bytes at 0x100000000: inside 32 bits"),
    )
    for layout, windows, said in refused:
        with pytest.raises(ValueError, match=said):
            Driver(narrow, layout, **windows).start()
        Driver(wide, layout, **windows).start()


def test_values_that_are_no_width() -> None:
    for bits in (0, 31, 33, 68):
        with pytest.raises(ValueError, match=f"address_bits={bits}: 32 to 64, a multiple of 4"):
            EngineParams(address_bits=bits)
