"""Runs inside the Verilog simulator: the exported engine between bus models written by others (cocotbext-axi, -eth).

The product's own driver runs the show, in a thread that cocotb stops whenever a register access takes simulated time.
Parameters come in ``RNIC_BENCH``, JSON: see :mod:`test_verilator`, which builds the simulator and starts these tests.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.task import bridge, resume
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import (
    AxiBus,
    AxiLiteBus,
    AxiLiteMaster,
    AxiSlave,
    AxiStreamBus,
    AxiStreamFrame,
    AxiStreamSink,
    AxiStreamSource,
)
from cocotbext.eth import EthMac, EthMacFrame

from rnic.gateware.cache import NonCoherentCache, SparseMemory
from rnic.gateware.driver import Driver, NetworkSetup, QueueLayout, Request, Window
from rnic.gateware.model import EngineModel, fragments
from rnic.gateware.params import EngineParams
from rnic.spec.engine_regs import OFFSETS, REGISTERS
from rnic.wire.engine_header import ENGINE_HEADER_BYTES, EngineHeader, EngineHeaderWide
from rnic.wire.ethernet import ETHERNET_BYTES, Ethernet
from rnic.wire.ip import IPV4_BYTES, UDP_BYTES, IPv4, Udp, checksum

OPTIONS = json.loads(os.environ["RNIC_BENCH"])
PARAMS = EngineParams(**OPTIONS["params"])
BASE = 0x7654_3211_0000_0000 - 0x20000000 - 0x1000 if PARAMS.wide else 0
"""With a high word nothing lies where the low one alone leads to, and the destination crosses a multiple of 4 GiB."""
SQ, REMOTE, PAYLOAD, CQ = (BASE + place for place in (0x10000000, 0x20000000, 0x30000000, 0x40000000))
EVERYTHING = Window(0, 1 << PARAMS.address_bits)
Codec = EngineHeaderWide if PARAMS.wide else EngineHeader
AREA = 1 << 18
FRAME_HEADER = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
SETUP = NetworkSetup(0x0A000001, 0x0A000002, 0x020000000001, 0x020000000002, 0xCE06, 0x138D, 0x138D)


class Dma:
    """cocotbext-axi's target: memory past the processor's cache. An address outside raises, and is answered SLVERR."""

    def __init__(self, cache: NonCoherentCache) -> None:
        self.cache = cache

    async def read(self, address: int, length: int, **_: Any) -> bytes:
        return self.cache.device.read(address, length)

    async def write(self, address: int, data: bytes, **_: Any) -> None:
        self.cache.device.write(address, bytes(data))


def stalls(rng: random.Random, rate: float) -> Iterator[bool]:
    while True:
        yield rng.random() < rate


class Bench:
    """The engine, its clock, its buses, and itself as the driver's backend."""

    def __init__(self, dut: Any, stall_rate: float = 0.0, seed: int = 1, eth_mac: bool = False) -> None:
        self.dut = dut
        self.memory = SparseMemory((SQ, 4096), (CQ, 4096), (PAYLOAD, AREA), (REMOTE, AREA))
        self.cache = NonCoherentCache(self.memory)
        cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
        dut.rst.value = 1
        self.axil = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
        self.attach_memory(dut)
        tx, rx = AxiStreamBus.from_prefix(dut, "mac_tx_axis"), AxiStreamBus.from_prefix(dut, "mac_rx_axis")
        if eth_mac:
            self.mac = EthMac(tx, dut.clk, dut.rst, rx_bus=rx, rx_clk=dut.clk, rx_rst=dut.rst, speed=1e9)
        else:
            self.sink = AxiStreamSink(tx, dut.clk, dut.rst)
            self.source = AxiStreamSource(rx, dut.clk, dut.rst)
        if stall_rate:
            rng = random.Random(seed)
            channels = [
                self.slave.write_if.aw_channel,
                self.slave.write_if.w_channel,
                self.slave.write_if.b_channel,
                self.slave.read_if.ar_channel,
                self.slave.read_if.r_channel,
            ]
            if not eth_mac:
                channels += [self.sink, self.source]
            for channel in channels:
                channel.set_pause_generator(stalls(rng, stall_rate))
        self.read32: Callable[[int], int] = resume(self._read32)
        self.write32: Callable[[int, int], None] = resume(self._write32)
        self.cycles: Callable[[int], None] = resume(self._cycles)
        self.read, self.write = self.cache.read, self.cache.write
        self.flush, self.invalidate = self.cache.flush, self.cache.invalidate

    def attach_memory(self, dut: Any) -> None:
        """Memory at the engine's AXI4 master."""
        self.slave = AxiSlave(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, target=Dma(self.cache))

    async def _read32(self, offset: int) -> int:
        return int(await self.axil.read_dword(offset))

    async def _write32(self, offset: int, value: int) -> None:
        await self.axil.write_dword(offset, value)

    async def _cycles(self, count: int) -> None:
        await ClockCycles(self.dut.clk, count)

    async def reset(self) -> None:
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)

    async def drive(self, program: Callable[[Driver], None], ring: int = 4) -> None:
        """Reset the engine, then run the driver's program beside the simulation."""
        await self.reset()
        driver = Driver(self, QueueLayout(SQ, CQ, ring, ring), poll_limit=20000, local=EVERYTHING, remote=EVERYTHING)
        await bridge(program)(driver)
        assert self.cache.missing == []


def random_requests(rng: random.Random, sizes: list[int], every_alignment: bool = False) -> list[Request]:
    """WRITEs of these sizes at random places that do not overlap at the destination."""
    out, remote = [], REMOTE
    for index, size in enumerate(sizes):
        source = PAYLOAD + (index % 64 if every_alignment else rng.randrange(4096))
        remote += index // 64 % 64 if every_alignment else rng.randrange(64)
        out.append(Request(source, remote, size, index))
        remote += size + 1
    return out


def check_against_model(bench: Bench, driver: Driver, requests: list[Request]) -> None:
    """Engine and reference model, given the same memory, end with the same memory and completions."""
    model = EngineModel(PARAMS, SparseMemory((SQ, 4096), (CQ, 4096), (PAYLOAD, AREA), (REMOTE, AREA)))
    twin = Driver(model, driver.layout, local=EVERYTHING, remote=EVERYTHING)
    payload = random.Random(9).randbytes(AREA)
    for backend in (bench, model):
        backend.write(PAYLOAD, payload)
        backend.flush(PAYLOAD, AREA)
    driver.start()
    twin.start()
    assert [vars_of(done) for done in driver.run(requests)] == [vars_of(done) for done in twin.run(requests)]
    assert driver.read_back(REMOTE, AREA) == twin.read_back(REMOTE, AREA)
    assert bench.memory.read(CQ, 4096) == model.memory.read(CQ, 4096)


def vars_of(done: Any) -> dict[str, int]:
    return {name: getattr(done, name) for name in done.__slots__}


@cocotb.test()
async def documents_own_test(dut: Any) -> None:
    """16 submissions of 4096 bytes, rings of 4, pattern 0xDEAD0000|i, one at a time (001, hardware.md 1b)."""
    bench = Bench(dut)

    def program(driver: Driver) -> None:
        driver.start()
        pattern = b"".join((0xDEAD0000 | word).to_bytes(4, "little") for word in range(1024))
        for index in range(16):
            bench.write(PAYLOAD, pattern)
            bench.write(REMOTE, bytes(4096))
            bench.flush(REMOTE, 4096)
            driver.submit([Request(PAYLOAD, REMOTE, 4096, 0x12345678 + index)])
            (done,) = driver.wait()
            assert (done.status, done.index, done.bytes, done.wqe_id) == (0, index % 4, 4096, 0x12345678 + index), done
            assert driver.read_back(REMOTE, 4096) == pattern
        assert driver.get("SQ_HEAD") == driver.get("CQ_TAIL") == 0

    await bench.drive(program)


@cocotb.test()
async def every_size_and_alignment(dut: Any) -> None:
    """Small sizes at each alignment of source and destination, held against the reference model."""
    bench = Bench(dut)
    rng = random.Random(2)
    requests = random_requests(rng, [rng.randrange(1, 150) for _ in range(OPTIONS.get("small", 400))], True)
    await bench.drive(lambda driver: check_against_model(bench, driver, requests), ring=16)


@cocotb.test()
async def long_sizes(dut: Any) -> None:
    """Up to and past 64 KiB, where a 16-bit offset would alias."""
    bench = Bench(dut)
    requests = random_requests(random.Random(3), [65536 + 4097, 1, 65535, 65536, 1023, 1024, 1025, 4096])
    await bench.drive(lambda driver: check_against_model(bench, driver, requests), ring=4)


@cocotb.test()
async def stalls_on_every_channel(dut: Any) -> None:
    bench = Bench(dut, stall_rate=0.4)
    rng = random.Random(4)
    requests = random_requests(rng, [rng.randrange(1, 3000) for _ in range(24)])
    await bench.drive(lambda driver: check_against_model(bench, driver, requests))


@cocotb.test()
async def registers(dut: Any) -> None:
    """Values after reset, and that RW registers hold what is written."""
    bench = Bench(dut)

    def program(driver: Driver) -> None:
        for register in REGISTERS:
            if register.name not in ("PARAMETERS", "WATCHDOG", "HW_STATUS"):
                assert driver.get(register.name) == register.reset, register.name
        for register in REGISTERS:
            if register.access == "RW" and register.name not in ("CONTROL", "SQ_TAIL"):
                driver.put(register.name, 0x00005A5A)
                assert driver.get(register.name) == 0x5A5A, register.name
        driver.put("SQ_DOORBELL", 1)
        assert (driver.get("SQ_TAIL"), driver.get("DOORBELLS")) == (0, 1)

    await bench.drive(program)


@cocotb.test()
async def bad_descriptors_and_bus_errors(dut: Any) -> None:
    """Each is completed with a status, and the next descriptor works."""
    bench = Bench(dut)
    hole = BASE + 0x50000000
    cases = [
        (Request(PAYLOAD, REMOTE, 0, 1), 3),
        (Request(1 << 40, REMOTE, 64, 2), 1),
        (Request(PAYLOAD, 1 << 40, 64, 3), 2),
        (Request(hole, REMOTE, 64, 4), 1),
        (Request(PAYLOAD, hole, 64, 5), 2),
        (Request(0xFFFFFFF0, REMOTE, 64, 6), 1),
        (Request(PAYLOAD, 0xFFFFFFF0, 64, 7), 2),
        (Request(PAYLOAD, REMOTE, 64, 8, opcode=0x04), 0),
    ]

    def program(driver: Driver) -> None:
        driver.start()
        bench.write(PAYLOAD, bytes(range(64)))
        for request, status in cases:
            driver.submit([request])
            (done,) = driver.wait()
            assert (done.status, done.wqe_id) == (status, request.wqe_id), str(done)
        assert driver.read_back(REMOTE, 64) == bytes(64)  # nothing was written by any of them
        driver.submit([Request(PAYLOAD, REMOTE, 64, 9)])
        assert driver.wait()[0].status == 0
        assert driver.read_back(REMOTE, 64) == bytes(range(64))

    await bench.drive(program)


def parse_frame(raw: bytes) -> tuple[EngineHeader | EngineHeaderWide, bytes]:
    """Header and payload of a frame, every field of the headers around them checked."""
    eth, ip, udp = Ethernet.parse(raw), IPv4.parse(raw, ETHERNET_BYTES), Udp.parse(raw, ETHERNET_BYTES + IPV4_BYTES)
    assert (eth.dst_mac, eth.src_mac, eth.ethertype) == (SETUP.dst_mac, SETUP.src_mac, 0x0800)
    assert (ip.version, ip.ihl, ip.protocol, ip.src, ip.dst) == (4, 5, 17, SETUP.src_ip, SETUP.dst_ip)
    assert checksum(raw[ETHERNET_BYTES : ETHERNET_BYTES + IPV4_BYTES]) == 0
    assert (udp.sport, udp.dport, udp.checksum) == (SETUP.src_port, SETUP.dst_port, 0)
    assert len(raw) == ETHERNET_BYTES + ip.total_length == FRAME_HEADER - UDP_BYTES + udp.length
    header = Codec.parse(raw, FRAME_HEADER)
    payload = raw[FRAME_HEADER + ENGINE_HEADER_BYTES :]
    assert header.length == len(payload)
    return header, payload


def check_packets(frames: list[bytes], request: Request, data: bytes) -> None:
    """The frames of one WRITE: the fragments that the rule gives, each decoded by rnic's codecs and by scapy."""
    expected = fragments(request.local, request.length, PARAMS)
    assert len(frames) == len(expected)
    for raw, (offset, size) in zip(frames, expected, strict=True):
        header, payload = parse_frame(raw)
        assert (header.opcode, header.psn, header.dqpn) == (request.opcode, 1, request.wqe_id & 0xFFFFFF)
        assert (header.address, header.fragment_offset) == (request.remote, offset)
        assert (header.pkey, header.service_level, header.marker) == (0xFFFF, 0, 0xABABAB)
        assert payload == data[offset : offset + size]
        check_with_scapy(raw)


def check_with_scapy(raw: bytes) -> None:
    try:
        from scapy.layers.inet import IP, UDP
        from scapy.layers.l2 import Ether
    except ImportError:
        cocotb.log.warning("scapy is not installed: packets are decoded by rnic's codecs alone")
        return
    packet = Ether(raw)
    assert packet.haslayer(UDP)
    assert packet[UDP].dport == SETUP.dst_port
    assert packet[UDP].len == len(raw) - ETHERNET_BYTES - IPV4_BYTES
    seen = packet[IP].chksum
    del packet[IP].chksum
    assert Ether(bytes(packet))[IP].chksum == seen


@cocotb.test()
async def packets_on_the_mac(dut: Any) -> None:
    """Network mode into an Ethernet MAC model: every frame decoded; the same frames back in are written to memory."""
    bench = Bench(dut, eth_mac=True)
    frames: list[bytes] = []

    async def collect() -> None:
        while True:
            frames.append(bytes((await bench.mac.tx.recv()).data))

    def program(driver: Driver) -> None:
        driver.set_network(SETUP)
        driver.start(network=True)
        data = random.Random(5).randbytes(3000)
        bench.write(PAYLOAD + 5, data)
        for index, size in enumerate((1, 2, 3, 64, 1000, 3000)):
            request = Request(PAYLOAD + 5, REMOTE + 8 + index, size, 0xABC0000 + index)
            frames.clear()
            driver.submit([request])
            (done,) = driver.wait()
            assert done.status == 0
            bench.cycles(size * 4 + 2000)
            check_packets(frames, request, data)
            # the way back: the frames that a peer would send
            bench.write(REMOTE, bytes(4096))
            bench.flush(REMOTE, 4096)
            send(frames)
            bench.cycles(size * 4 + 3000)
            assert driver.read_back(request.remote, size) == data[:size]
            assert driver.read_back(REMOTE, 8 + index) == bytes(8 + index)

    @resume
    async def send(raw: list[bytes]) -> None:
        for frame in list(raw):
            await bench.mac.rx.send(EthMacFrame(for_us(frame)))

    collector = cocotb.start_soon(collect())
    await bench.drive(program)
    collector.cancel()


def for_us(raw: bytes) -> bytes:
    """A frame that we sent, as our peer would have sent it."""
    macs = SETUP.src_mac.to_bytes(6, "big") + SETUP.dst_mac.to_bytes(6, "big")
    return macs + raw[12:26] + raw[30:34] + raw[26:30] + raw[34:]


@cocotb.test()
async def a_lost_fragment_harms_nothing_else(dut: Any) -> None:
    """A link back to ourselves that loses frames: each byte arrives or keeps its guard value, nothing else changes."""
    bench = Bench(dut, stall_rate=0.2)
    rng = random.Random(6)
    lost = itertools.count()
    lost_offsets: list[tuple[int, int]] = []

    async def link() -> None:
        while True:
            frame = await bench.sink.recv()
            raw = bytes(frame.tdata)
            if rng.random() < 0.3:
                next(lost)
                header, payload = parse_frame(raw)
                lost_offsets.append((header.address + header.fragment_offset, len(payload)))
            else:
                await bench.source.send(AxiStreamFrame(for_us(raw), tuser=0))

    def program(driver: Driver) -> None:
        driver.set_network(SETUP)
        driver.start(network=True)
        data = rng.randbytes(8192)
        bench.write(PAYLOAD, data)
        bench.write(REMOTE, b"\x5a" * 65536)
        bench.flush(REMOTE, 65536)
        requests, want = [], bytearray(b"\x5a" * 65536)
        at = 3
        for index in range(8):
            size = rng.randrange(1, 4096)
            requests.append(Request(PAYLOAD + index, REMOTE + at, size, index))
            want[at : at + size] = data[index : index + size]
            at += size + 5
        assert all(done.status == 0 for done in driver.run(requests))
        bench.cycles(20000)
        for address, size in lost_offsets:
            want[address - REMOTE : address - REMOTE + size] = b"\x5a" * size
        assert driver.read_back(REMOTE, 65536) == bytes(want)
        assert next(lost) > 0
        assert driver.backend.read32(OFFSETS["RX_ERRORS"]) == 0

    carrier = cocotb.start_soon(link())
    await bench.drive(program)
    carrier.cancel()


@cocotb.test()
async def soft_reset_at_any_time(dut: Any) -> None:
    """Reset while a transfer is in hand, at many moments: the engine comes back, and works."""
    bench = Bench(dut, stall_rate=0.1)

    def program(driver: Driver) -> None:
        driver.start()
        data = random.Random(7).randbytes(2048)
        bench.write(PAYLOAD, data)
        for moment in range(0, 400, 9):
            driver.submit([Request(PAYLOAD, REMOTE, 2048, moment)])
            bench.cycles(moment + 1)
            driver.recover()
            driver.submit([Request(PAYLOAD + 1, REMOTE + 4096, 100, moment)])
            (done,) = driver.wait()
            assert (done.status, done.index, done.phase) == (0, 0, 1), str(done)
            assert driver.read_back(REMOTE + 4096, 100) == data[1:101]
            bench.write(REMOTE + 4096, bytes(100))
            bench.flush(REMOTE + 4096, 100)

    await bench.drive(program)
