"""``ip_encapsulator``, ``ip_decapsulator`` and ``endpoint_lookup``, each alone, against rnic's codecs."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from rnic.gateware.endpoint_lookup import EndpointLookup
from rnic.gateware.ip_decapsulator import IpDecapsulator
from rnic.gateware.ip_encapsulator import IpEncapsulator
from rnic.gateware.params import BUS_WIDTHS, EngineParams
from rnic.gateware.sim_bus import Frame, Stalls, StreamSink, StreamSource
from rnic.spec import engine_net_regs as net
from rnic.wire.engine_header import ENGINE_HEADER_BYTES, EngineHeader
from rnic.wire.ethernet import Ethernet
from rnic.wire.ip import IPv4, Udp, checksum

SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 25, 26, 27, 57, 58, 59, 63, 64, 65, 100, 1024, 1444)
ENABLE, SOFT_RESET, START = 1, 4, 2


async def write_reg(ctx: Any, regs: Any, offset: int, value: int, strobe: int = 15) -> None:
    ctx.set(regs.addr, offset)
    ctx.set(regs.wdata, value)
    ctx.set(regs.wstrb, strobe)
    ctx.set(regs.write, 1)
    await ctx.tick()
    ctx.set(regs.write, 0)


async def read_reg(ctx: Any, regs: Any, offset: int) -> int:
    ctx.set(regs.addr, offset)
    ctx.set(regs.read, 1)
    await ctx.tick()
    ctx.set(regs.read, 0)
    await ctx.tick()
    return int(ctx.get(regs.rdata))


def engine_packet(rng: random.Random, payload: int) -> bytes:
    header = EngineHeader(opcode=0x0A, psn=1, dqpn=5, remote_addr=rng.getrandbits(32), length=payload, pkey=0xFFFF)
    return header.pack() + rng.randbytes(payload)


def frame_of(packet: bytes, **changes: int) -> bytes:
    """The frame that carries a packet to the documented endpoint, with some fields changed."""
    eth = Ethernet(
        dst_mac=changes.get("dst_mac", net.DEFAULT_SRC_MAC),
        src_mac=changes.get("src_mac", net.DEFAULT_DST_MAC),
        ethertype=changes.get("ethertype", 0x0800),
    )
    ip = IPv4(
        version=changes.get("version", 4),
        ihl=changes.get("ihl", 5),
        total_length=changes.get("total_length", 28 + len(packet)),
        identification=changes.get("identification", 0),
        flags_fragment=changes.get("flags_fragment", 0x4000),
        ttl=64,
        protocol=changes.get("protocol", 17),
        src=changes.get("src", net.DEFAULT_DST_IP),
        dst=changes.get("dst", net.DEFAULT_SRC_IP),
    )
    ip.checksum = (checksum(ip.pack()) + changes.get("checksum_off", 0)) & 0xFFFF
    udp = Udp(
        sport=changes.get("sport", net.DEFAULT_SRC_PORT),
        dport=changes.get("dport", net.DEFAULT_DST_PORT),
        length=changes.get("udp_length", 8 + len(packet)),
    )
    if "udp_checksum_off" in changes:  # else 0: there is none
        pseudo = ip.src.to_bytes(4, "big") + ip.dst.to_bytes(4, "big") + bytes([0, 17]) + udp.length.to_bytes(2, "big")
        whole = pseudo + udp.pack() + packet + bytes(len(packet) % 2)
        udp.checksum = ((checksum(whole) or 0xFFFF) + changes["udp_checksum_off"]) & 0xFFFF
    return eth.pack() + ip.pack() + udp.pack() + packet


def test_udp_checksums_are_those_of_scapy() -> None:
    inet = pytest.importorskip("scapy.layers.inet", reason="no scapy: pip install '.[test]'")
    l2 = pytest.importorskip("scapy.layers.l2")
    for size in (1, 8, 33):
        raw = frame_of(engine_packet(random.Random(size), size), udp_checksum_off=0)
        packet = l2.Ether(raw)
        stated = packet[inet.UDP].chksum
        del packet[inet.UDP].chksum
        assert l2.Ether(bytes(packet))[inet.UDP].chksum == stated


META_OF_ENDPOINT = {
    "src_ip": net.DEFAULT_SRC_IP,
    "dst_ip": net.DEFAULT_DST_IP,
    "src_port": net.DEFAULT_SRC_PORT,
    "dst_port": net.DEFAULT_DST_PORT,
}


class EncapBench:
    """An encapsulator with its endpoint table, a source, a sink and a queue of META words."""

    def __init__(self, width: int, stalls: Stalls | None = None, **parameters: Any) -> None:
        params = EngineParams(bus_width=width, **parameters)
        self.dut = IpEncapsulator(params)
        self.table = EndpointLookup(params)
        m = Module()
        m.submodules.dut, m.submodules.table = self.dut, self.table
        wiring.connect(m, self.dut.lookup, self.table.lookup)
        self.source = StreamSource(self.dut.s_axis, stalls, ENGINE_HEADER_BYTES)
        self.sink = StreamSink(self.dut.m_axis, stalls)
        self.metas: list[dict[str, int]] = []
        self.errors = 0
        self.fates: list[int] = []
        self.sim = Simulator(m)
        self.sim.add_clock(1e-8)

    def send(self, packet: bytes, **meta: int) -> None:
        self.source.send(packet)
        self.metas.append({"length": len(packet), **META_OF_ENDPOINT, **meta})

    async def _meta(self, ctx: Any) -> None:
        port = self.dut.s_meta
        while True:
            if self.metas:
                for name, value in self.metas[0].items():
                    ctx.set(getattr(port, name), value)
            ctx.set(port.valid, bool(self.metas))
            sampled = await ctx.tick().sample(port.ready, self.dut.error, self.dut.done, self.dut.done_code)
            ready, error, done, code = sampled[2:]
            self.errors += error
            if done:
                self.fates.append(code)
            if ready and self.metas and ctx.get(port.valid):
                self.metas.pop(0)

    def run(self, test: Callable[[Any], Awaitable[None]]) -> None:
        for background in (self.source.run, self.sink.run, self._meta):
            self.sim.add_testbench(background, background=True)
        self.sim.add_testbench(test)
        self.sim.run()


def check_frame(frame: Frame, packet: bytes, ident: int) -> None:
    """The frame is what rnic's codecs make of the packet."""
    expected = frame_of(
        packet,
        dst_mac=net.DEFAULT_DST_MAC,
        src_mac=net.DEFAULT_SRC_MAC,
        src=net.DEFAULT_SRC_IP,
        dst=net.DEFAULT_DST_IP,
        identification=ident,
    )
    assert frame.data == expected
    assert not frame.bad


@pytest.mark.parametrize("width", BUS_WIDTHS)
@pytest.mark.parametrize("stall_rate", [0.0, 0.4])
def test_encapsulator_makes_the_frames_of_the_codecs(width: int, stall_rate: float) -> None:
    rng = random.Random(width)
    bench = EncapBench(width, Stalls(rng, stall_rate))
    packets = [engine_packet(rng, size) for size in SIZES]
    if stall_rate:
        packets = packets[:-2]

    async def test(ctx: Any) -> None:
        await write_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["CTRL"], ENABLE)
        for packet in packets:
            bench.send(packet)
        for _ in range(20000):
            if len(bench.sink.frames) == len(packets):
                break
            await ctx.tick()
        offsets = net.ENCAP_OFFSETS
        assert await read_reg(ctx, bench.dut.regs, offsets["PKT_CNT"]) == len(packets)
        total = sum(len(packet) + 42 for packet in packets)
        assert await read_reg(ctx, bench.dut.regs, offsets["BYTE_CNT_LO"]) == total
        assert await read_reg(ctx, bench.dut.regs, offsets["BYTE_CNT_HI"]) == 0
        assert await read_reg(ctx, bench.dut.regs, offsets["DROP_CNT"]) == 0

    bench.run(test)
    assert len(bench.sink.frames) == len(packets)
    for ident, (frame, packet) in enumerate(zip(bench.sink.frames, packets, strict=True)):
        check_frame(frame, packet, ident)
    assert bench.errors == 0


META_FAULTS = [
    ({"length": 0}, net.META_LENGTH_ZERO),
    ({"length": 1473}, net.META_LENGTH_LONG),
    ({"src_ip": 0}, net.META_SRC_IP),
    ({"dst_ip": 0}, net.META_DST_IP),
    ({"src_port": 0}, net.META_SRC_PORT),
    ({"dst_port": 0}, net.META_DST_PORT),
    ({"dst_ip": 0x0A000001}, net.TX_LOOKUP_MISS),
    # another address of the same slot: a collision
    ({"dst_ip": net.DEFAULT_DST_IP ^ 0x0101}, net.TX_LOOKUP_MISS),
]


@pytest.mark.parametrize(("meta", "code"), META_FAULTS)
def test_refused_packet_is_drained_and_named(meta: dict[str, int], code: int) -> None:
    rng = random.Random(1)
    bench = EncapBench(32)
    good = engine_packet(rng, 9)

    async def test(ctx: Any) -> None:
        regs, offsets = bench.dut.regs, net.ENCAP_OFFSETS
        await write_reg(ctx, regs, offsets["CTRL"], ENABLE)
        bench.send(engine_packet(rng, 40), **meta)
        bench.send(good)
        for _ in range(400):
            await ctx.tick()
        status = await read_reg(ctx, regs, offsets["STATUS"])
        seen = net.NET_STATUS.unpack(status.to_bytes(4, "little"))
        assert seen == {"busy": 0, "error": 1, "lookup_error": code == net.TX_LOOKUP_MISS, "code": code, "fsm": 0}
        assert await read_reg(ctx, regs, offsets["DROP_CNT"]) == 1
        await write_reg(ctx, regs, offsets["IRQ_ACK"], 0)
        assert await read_reg(ctx, regs, offsets["STATUS"]) == 0
        await write_reg(ctx, regs, offsets["CTRL"], ENABLE | SOFT_RESET)
        assert await read_reg(ctx, regs, offsets["DROP_CNT"]) == 0
        assert await read_reg(ctx, regs, offsets["CTRL"]) == ENABLE

    bench.run(test)
    assert len(bench.sink.frames) == 1
    check_frame(bench.sink.frames[0], good, 0)
    assert bench.errors == 1


def test_largest_meta_length_passes_and_the_check_has_an_order() -> None:
    bench = EncapBench(512)
    packet = engine_packet(random.Random(2), 1444)

    async def test(ctx: Any) -> None:
        regs, offsets = bench.dut.regs, net.ENCAP_OFFSETS
        await write_reg(ctx, regs, offsets["CTRL"], ENABLE)
        bench.send(packet)
        bench.send(engine_packet(random.Random(3), 4), length=0, src_ip=0)
        for _ in range(300):
            await ctx.tick()
        status = await read_reg(ctx, regs, offsets["STATUS"])
        assert net.NET_STATUS.get(status.to_bytes(4, "little"), "code") == net.META_LENGTH_ZERO

    bench.run(test)
    check_frame(bench.sink.frames[0], packet, 0)


def test_start_checks_the_registers_and_sends_nothing() -> None:
    bench = EncapBench(32)

    async def test(ctx: Any) -> None:
        regs, offsets = bench.dut.regs, net.ENCAP_OFFSETS
        await write_reg(ctx, regs, offsets["CTRL"], START)
        for _ in range(5):
            await ctx.tick()
        status = await read_reg(ctx, regs, offsets["STATUS"])
        assert net.NET_STATUS.get(status.to_bytes(4, "little"), "code") == net.META_LENGTH_ZERO
        await write_reg(ctx, regs, offsets["IRQ_ACK"], 1)
        await write_reg(ctx, regs, offsets["META_LEN"], 1472)
        await write_reg(ctx, regs, offsets["CTRL"], START)
        for _ in range(5):
            await ctx.tick()
        assert await read_reg(ctx, regs, offsets["STATUS"]) == 0
        assert await read_reg(ctx, regs, offsets["DROP_CNT"]) == 0

    bench.run(test)
    assert not bench.sink.frames


def test_disabled_encapsulator_drains() -> None:
    bench = EncapBench(64)

    async def test(ctx: Any) -> None:
        bench.send(engine_packet(random.Random(4), 30))
        for _ in range(60):
            await ctx.tick()
        status = await read_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["STATUS"])
        assert net.NET_STATUS.get(status.to_bytes(4, "little"), "code") == net.TX_DISABLED

    bench.run(test)
    assert not bench.sink.frames
    assert bench.source.sent == 1


@pytest.mark.parametrize("width", [32, 512])
@pytest.mark.parametrize(
    ("sent", "said", "bad"), [(100, 99, False), (100, 101, False), (0, 1, False), (100, 100, True)]
)
def test_packet_that_turns_out_bad_never_leaves(width: int, sent: int, said: int, bad: bool) -> None:
    bench = EncapBench(width)
    packet = engine_packet(random.Random(5), sent)
    good = engine_packet(random.Random(6), 33)

    async def test(ctx: Any) -> None:
        await write_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["CTRL"], ENABLE)
        bench.source.send(packet, bad)
        bench.send(b"", length=28 + said)
        bench.send(good)
        for _ in range(200):
            await ctx.tick()
        status = await read_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["STATUS"])
        assert net.NET_STATUS.get(status.to_bytes(4, "little"), "code") == net.TX_PACKET_LENGTH
        assert await read_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["DROP_CNT"]) == 1

    bench.run(test)
    assert len(bench.sink.frames) == 1
    check_frame(bench.sink.frames[0], good, 0)
    assert bench.fates == [net.TX_PACKET_LENGTH, net.META_OK]


def test_packet_results_are_in_order_and_a_frames_follows_its_end() -> None:
    bench = EncapBench(32)
    rng = random.Random(15)

    async def test(ctx: Any) -> None:
        await write_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["CTRL"], ENABLE)
        bench.sink.stalls = Stalls(random.Random(0), 1.0)  # the MAC takes nothing
        bench.send(engine_packet(rng, 40))
        bench.send(engine_packet(rng, 8), dst_ip=0)
        bench.send(engine_packet(rng, 9), dst_ip=0x0A000001)
        bench.send(engine_packet(rng, 10))
        await ctx.tick().repeat(200)
        assert bench.fates == []
        bench.sink.stalls = Stalls()
        await ctx.tick().repeat(200)
        await write_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["CTRL"], 0)
        bench.send(engine_packet(rng, 10))
        await ctx.tick().repeat(100)

    bench.run(test)
    assert bench.fates == [net.META_OK, net.META_DST_IP, net.TX_LOOKUP_MISS, net.META_OK, net.TX_DISABLED]
    assert len(bench.sink.frames) == 2


@pytest.mark.parametrize("ready", [0.1, *(pytest.param(ready, marks=pytest.mark.full) for ready in (1.0, 0.0))])
def test_a_reset_never_glues_two_frames(ready: float) -> None:
    """Whatever the MAC does while it lasts: what has begun to leave ends as it should, and nothing else comes."""
    rng = random.Random(7)
    before, after = engine_packet(rng, 64), engine_packet(rng, 50)
    begun = 0
    for cycles in range(1, 75, 6):
        bench = EncapBench(32)

        async def test(ctx: Any, bench: EncapBench = bench, cycles: int = cycles) -> None:
            nonlocal begun
            await write_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["CTRL"], ENABLE)
            bench.sink.stalls = Stalls(random.Random(cycles), 1 - ready)
            bench.send(before)
            bench.send(before)
            await ctx.tick().repeat(cycles)
            begun += ctx.get(bench.dut.m_axis.tvalid)
            ctx.set(bench.dut.reset, 1)
            bench.metas.clear()
            bench.source.queue.clear()
            await ctx.tick().repeat(4)
            ctx.set(bench.dut.reset, 0)
            await ctx.tick()
            bench.fates.clear()
            bench.send(after)
            await ctx.tick().repeat(30)
            bench.sink.stalls = Stalls()
            await ctx.tick().repeat(150)

        bench.run(test)
        assert len(bench.sink.frames) in (1, 2, 3)
        for number, frame in enumerate(bench.sink.frames[:-1]):
            check_frame(frame, before, number)
        last = bench.sink.frames[-1]
        check_frame(last, after, int.from_bytes(last.data[18:20], "big"))
        assert bench.fates == [net.META_OK]
    assert begun > 0


@pytest.mark.parametrize("width", BUS_WIDTHS)
def test_a_frame_leaves_without_a_gap(width: int) -> None:
    """However slowly its packet comes: a MAC that has begun must go on."""
    rng = random.Random(width)
    bench = EncapBench(width)
    bench.source.stalls = Stalls(rng, 0.6)
    bench.sink.keep_beats = True
    packets = [engine_packet(rng, size) for size in (1, 200, 1024)]

    async def test(ctx: Any) -> None:
        await write_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["CTRL"], ENABLE)
        for packet in packets:
            bench.send(packet)
        for _ in range(4000):
            if len(bench.sink.frames) == len(packets):
                break
            await ctx.tick()

    bench.run(test)
    for ident, (frame, packet) in enumerate(zip(bench.sink.frames, packets, strict=True)):
        check_frame(frame, packet, ident)
        cycles = [cycle for cycle, _count in frame.beats]
        assert cycles == list(range(cycles[0], cycles[0] + len(cycles))), "a gap inside a frame"


def test_the_ip_checksum_has_its_last_carry() -> None:
    """A header whose sum, folded once, carries again."""
    bench = EncapBench(32)
    packet = engine_packet(random.Random(12), 5)
    fixed = IPv4(total_length=28 + len(packet), flags_fragment=0x4000, ttl=64, protocol=17, dst=net.DEFAULT_DST_IP)
    raw = fixed.pack()
    total = sum(int.from_bytes(raw[at : at + 2], "big") for at in range(0, 20, 2))
    src_ip = (0xFFFF << 16) | (0xFFFF - total & 0xFFFF)  # the low half of the sum is then 0xFFFE, with carries above
    total += (src_ip >> 16) + (src_ip & 0xFFFF)
    assert (total & 0xFFFF) + (total >> 16) > 0xFFFF

    async def test(ctx: Any) -> None:
        await write_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["CTRL"], ENABLE)
        bench.send(packet, src_ip=src_ip)
        await ctx.tick().repeat(100)

    bench.run(test)
    (frame,) = bench.sink.frames
    assert checksum(frame.data[14:34]) == 0


SEVERAL: dict[str, Any] = {"serial": False, "in_flight": 4}
"""META is checked, and endpoints are looked up, ahead of the packet in hand."""


@pytest.mark.parametrize("width", [64, 512])
def test_meta_ahead_refuses_what_it_must_and_tells_each_fate_in_turn(width: int) -> None:
    rng = random.Random(17)
    bench = EncapBench(width, Stalls(rng, 0.2), **SEVERAL)
    good: list[bytes] = []
    fates: list[int] = []

    async def test(ctx: Any) -> None:
        regs, offsets = bench.dut.regs, net.ENCAP_OFFSETS
        await write_reg(ctx, regs, offsets["CTRL"], ENABLE)
        for number, (meta, code) in enumerate(META_FAULTS):
            bench.send(engine_packet(rng, 40 + number), **meta)
            good.append(engine_packet(rng, SIZES[number] * 5))
            bench.send(good[-1])
            short = engine_packet(rng, 30)
            bench.send(short, length=len(short) + 1)
            fates.extend([code, net.META_OK, net.TX_PACKET_LENGTH])
        while len(bench.fates) < len(fates):  # the test's own time limit ends it
            await ctx.tick().repeat(50)
        assert await read_reg(ctx, regs, offsets["PKT_CNT"]) == len(good)
        assert await read_reg(ctx, regs, offsets["DROP_CNT"]) == 2 * len(META_FAULTS)

    bench.run(test)
    assert bench.fates == fates
    assert bench.errors == 2 * len(META_FAULTS)
    assert len(bench.sink.frames) == len(good)
    for ident, (frame, packet) in enumerate(zip(bench.sink.frames, good, strict=True)):
        check_frame(frame, packet, ident)


def test_the_registers_are_checked_beside_meta_ahead() -> None:
    bench = EncapBench(64, **SEVERAL)
    packet = engine_packet(random.Random(18), 30)

    async def test(ctx: Any) -> None:
        regs, offsets = bench.dut.regs, net.ENCAP_OFFSETS
        await write_reg(ctx, regs, offsets["CTRL"], START)
        await ctx.tick().repeat(6)
        status = await read_reg(ctx, regs, offsets["STATUS"])
        assert net.NET_STATUS.get(status.to_bytes(4, "little"), "code") == net.META_LENGTH_ZERO
        assert await read_reg(ctx, regs, offsets["DROP_CNT"]) == 0
        bench.send(packet)  # not enabled
        await ctx.tick().repeat(40)
        status = await read_reg(ctx, regs, offsets["STATUS"])
        assert net.NET_STATUS.get(status.to_bytes(4, "little"), "code") == net.TX_DISABLED
        await write_reg(ctx, regs, offsets["CTRL"], ENABLE)
        bench.send(packet)
        await ctx.tick().repeat(60)

    bench.run(test)
    assert bench.fates == [net.TX_DISABLED, net.META_OK]
    check_frame(bench.sink.frames[0], packet, 0)


def test_frames_follow_one_another() -> None:
    """512 bits, packets of 1024 bytes: 17 beats in, 18 out, and not more than 19 cycles each, identifications in order;
    a sum whose carries meet the identification's."""
    bench = EncapBench(512, **SEVERAL)
    bench.sink.keep_beats = True
    rng = random.Random(19)
    packets = [engine_packet(rng, 1024) for _ in range(12)]

    async def test(ctx: Any) -> None:
        await write_reg(ctx, bench.dut.regs, net.ENCAP_OFFSETS["CTRL"], ENABLE)
        for packet in packets:
            bench.send(packet)
        await ctx.tick().repeat(300)

    bench.run(test)
    for ident, (frame, packet) in enumerate(zip(bench.sink.frames, packets, strict=True)):
        check_frame(frame, packet, ident)
    ends = [frame.beats[-1][0] for frame in bench.sink.frames]
    assert ends[-1] - ends[1] <= 19 * (len(ends) - 2)


class DecapBench:
    """A decapsulator between a source and a sink. It must take a beat in every cycle."""

    def __init__(self, width: int, stalls: Stalls | None = None, **parameters: Any) -> None:
        self.dut = IpDecapsulator(EngineParams(bus_width=width, **parameters))
        self.source = StreamSource(self.dut.s_axis, stalls)
        self.sink = StreamSink(self.dut.m_axis, stalls, keep_beats=True)
        self.errors = 0
        self.sim = Simulator(self.dut)
        self.sim.add_clock(1e-8)

    async def _count(self, ctx: Any) -> None:
        async for _c, _r, error, ready in ctx.tick().sample(self.dut.error, self.dut.s_axis.tready):
            self.errors += error
            assert ready, "the MAC was made to wait"

    def run(self, test: Callable[[Any], Awaitable[None]]) -> None:
        for background in (self.source.run, self.sink.run, self._count):
            self.sim.add_testbench(background, background=True)
        self.sim.add_testbench(test)
        self.sim.run()


@pytest.mark.parametrize("width", BUS_WIDTHS)
@pytest.mark.parametrize("stall_rate", [0.0, 0.4])
def test_decapsulator_gives_back_the_packets(width: int, stall_rate: float) -> None:
    rng = random.Random(width + 1)
    bench = DecapBench(width, Stalls(rng, stall_rate))
    packets = [engine_packet(rng, size) for size in (SIZES if not stall_rate else SIZES[:-2])]

    async def test(ctx: Any) -> None:
        regs, offsets = bench.dut.regs, net.DECAP_OFFSETS
        await write_reg(ctx, regs, offsets["CTRL"], ENABLE)
        for index, packet in enumerate(packets):
            summed = {"udp_checksum_off": 0} if index % 3 == 0 else {}
            bench.source.send(frame_of(packet, **summed) + rng.randbytes(index % 20))  # what follows is padding
            while len(bench.source.queue) > 40:  # no more than a MAC's wire would bring
                await ctx.tick()
            await ctx.tick().repeat(30)
        for _ in range(20000):
            if len(bench.sink.frames) == len(packets):
                break
            await ctx.tick()
        assert await read_reg(ctx, regs, offsets["PKT_CNT"]) == len(packets)
        assert await read_reg(ctx, regs, offsets["HDR_VALID"]) == 1
        assert await read_reg(ctx, regs, offsets["HDR_VALID"]) == 0
        last = {
            "RX_SRC_IP": net.DEFAULT_DST_IP,
            "RX_DST_IP": net.DEFAULT_SRC_IP,
            "RX_SRC_PORT": net.DEFAULT_SRC_PORT,
            "RX_DST_PORT": net.DEFAULT_DST_PORT,
            "RX_LEN": len(packets[-1]),
        }
        assert {name: await read_reg(ctx, regs, offsets[name]) for name in last} == last

    bench.run(test)
    assert [frame.data for frame in bench.sink.frames] == packets
    lanes = width // 8
    for frame in bench.sink.frames:  # the header stands in beats of its own
        sizes = [count for _cycle, count in frame.beats]
        header = [min(lanes, ENGINE_HEADER_BYTES - at) for at in range(0, ENGINE_HEADER_BYTES, lanes)]
        assert sizes[: len(header)] == header
    assert bench.errors == 0


FRAME_FAULTS = [
    ({"dst_mac": 0x0123456789AA}, net.RX_MAC),
    ({"dst_mac": 0x0023456789AB}, net.RX_MAC),
    ({"ethertype": 0x0806}, net.RX_NOT_IPV4),
    ({"version": 6}, net.RX_IP_VERSION),
    ({"ihl": 6}, net.RX_IP_IHL),
    ({"checksum_off": 1}, net.RX_IP_CHECKSUM),
    ({"protocol": 6}, net.RX_NOT_UDP),
    ({"flags_fragment": 0x2000}, net.RX_FRAGMENT),
    ({"flags_fragment": 0x0001}, net.RX_FRAGMENT),
    ({"dport": 4791}, net.RX_PORT),
    ({"dport": net.DEFAULT_DST_PORT ^ 0x0100}, net.RX_PORT),
    ({"dst": net.DEFAULT_SRC_IP ^ 1}, net.RX_ADDRESS),
    ({"dst": net.DEFAULT_SRC_IP ^ 0x01000000}, net.RX_ADDRESS),
    ({"udp_checksum_off": 1}, net.RX_UDP_CHECKSUM),
    ({"udp_checksum_off": 0x8000}, net.RX_UDP_CHECKSUM),
    ({"total_length": 27, "udp_length": 7}, net.RX_LENGTH),
    ({"total_length": 55, "udp_length": 35}, net.RX_LENGTH),
    ({"udp_length": 68}, net.RX_LENGTH),
    ({"total_length": 1501, "udp_length": 1481}, net.RX_LENGTH),
    ({"total_length": 99, "udp_length": 79}, net.RX_FRAME),
    ({"total_length": 1500, "udp_length": 1480}, net.RX_FRAME),
]


@pytest.mark.parametrize("width", [32, pytest.param(64, marks=pytest.mark.full), 512])
@pytest.mark.parametrize(("changes", "code"), FRAME_FAULTS)
def test_bad_frame_is_dropped_and_named(width: int, changes: dict[str, int], code: int) -> None:
    rng = random.Random(8)
    bench = DecapBench(width)
    packet, good = engine_packet(rng, 42), engine_packet(rng, 11)

    async def test(ctx: Any) -> None:
        regs, offsets = bench.dut.regs, net.DECAP_OFFSETS
        await write_reg(ctx, regs, offsets["CTRL"], ENABLE)
        bench.source.send(frame_of(packet, **changes))
        bench.source.send(frame_of(good, dst_mac=net.BROADCAST_MAC))
        for _ in range(160):
            await ctx.tick()
        status = await read_reg(ctx, regs, offsets["STATUS"])
        assert net.NET_STATUS.unpack(status.to_bytes(4, "little")) == {
            "busy": 0,
            "error": 1,
            "lookup_error": 0,
            "code": code,
            "fsm": 0,
        }
        assert await read_reg(ctx, regs, offsets["DROP_CNT"]) == 1
        await write_reg(ctx, regs, offsets["IRQ_ACK"], 0)
        assert await read_reg(ctx, regs, offsets["STATUS"]) == 0

    bench.run(test)
    assert [frame.data for frame in bench.sink.frames] == [good]
    assert bench.errors == 1


@pytest.mark.parametrize("width", [32, 128, 512])
def test_frames_cut_anywhere_and_spoilt_ones_are_dropped(width: int) -> None:
    bench = DecapBench(width)
    packet = engine_packet(random.Random(9), 80)
    whole = frame_of(packet)

    async def test(ctx: Any) -> None:
        await write_reg(ctx, bench.dut.regs, net.DECAP_OFFSETS["CTRL"], ENABLE)
        for cut in range(1, len(whole), 7):
            bench.source.send(whole[:cut])
        bench.source.send(whole, bad=True)
        bench.source.send(whole * 6)  # far too long, but its first part is a good frame with padding
        bench.source.send(whole)
        for _ in range(2500):
            await ctx.tick()
        drops = await read_reg(ctx, bench.dut.regs, net.DECAP_OFFSETS["DROP_CNT"])
        assert drops == len(range(1, len(whole), 7)) + 1

    bench.run(test)
    assert [frame.data for frame in bench.sink.frames] == [packet, packet]


@pytest.mark.parametrize("width", [32, 128, 512])
def test_the_next_frame_is_gathered_before_the_sum_is_known(width: int) -> None:
    """Frames without a gap between them, good and bad in turn: each meets its own fate, and the registers show the last
    good one's fields, not those of the frame behind it."""
    rng = random.Random(20)
    bench = DecapBench(width)
    packets = [engine_packet(rng, size) for size in (1, 64, 200, 3, 70)]
    offsets, shown = net.DECAP_OFFSETS, {}

    async def test(ctx: Any) -> None:
        await write_reg(ctx, bench.dut.regs, offsets["CTRL"], ENABLE)
        for number, packet in enumerate(packets):
            bench.source.send(frame_of(packet, src=number + 1, sport=number + 9, udp_checksum_off=0))
            bench.source.send(frame_of(packet, src=0x77, sport=0x77, udp_checksum_off=1))  # a wrong sum
            bench.source.send(frame_of(packet, src=0x88, sport=0x88, dport=1))  # refused while the sum is waited for
        await ctx.tick().repeat(900 * 32 // width + 200)
        assert await read_reg(ctx, bench.dut.regs, offsets["PKT_CNT"]) == len(packets)
        assert await read_reg(ctx, bench.dut.regs, offsets["DROP_CNT"]) == 2 * len(packets)
        names = ("RX_SRC_IP", "RX_DST_IP", "RX_SRC_PORT", "RX_DST_PORT", "RX_LEN")
        shown.update({name: await read_reg(ctx, bench.dut.regs, offsets[name]) for name in names})

    bench.run(test)
    assert [frame.data for frame in bench.sink.frames] == packets
    assert bench.errors == 2 * len(packets)
    assert shown == {
        "RX_SRC_IP": len(packets),
        "RX_DST_IP": net.DEFAULT_SRC_IP,
        "RX_SRC_PORT": len(packets) + 8,
        "RX_DST_PORT": net.DEFAULT_DST_PORT,
        "RX_LEN": len(packets[-1]),
    }


def test_frames_that_follow_one_another_are_taken_apart_as_fast() -> None:
    """512 bits, packets of 1024 bytes, sums to check: 18 beats in, 17 out, not more than 21 cycles each."""
    bench = DecapBench(512)
    rng = random.Random(21)
    packets = [engine_packet(rng, 1024) for _ in range(7)]

    async def test(ctx: Any) -> None:
        await write_reg(ctx, bench.dut.regs, net.DECAP_OFFSETS["CTRL"], ENABLE)
        for packet in packets:
            bench.source.send(frame_of(packet, udp_checksum_off=0))
        await ctx.tick().repeat(250)

    bench.run(test)
    assert [frame.data for frame in bench.sink.frames] == packets
    ends = [frame.beats[-1][0] for frame in bench.sink.frames]
    assert ends[-1] - ends[0] <= 21 * (len(ends) - 1)


@pytest.mark.parametrize("width", [pytest.param(32, marks=pytest.mark.full), 512])
def test_frames_without_room_are_dropped_whole_and_counted(width: int) -> None:
    bench = DecapBench(width, rx_fifo_bytes=2048)
    rng = random.Random(13)
    packets = [engine_packet(rng, 400 + index) for index in range(30)]
    counted = 0

    async def test(ctx: Any) -> None:
        nonlocal counted
        await write_reg(ctx, bench.dut.regs, net.DECAP_OFFSETS["CTRL"], ENABLE)
        bench.sink.stalls = Stalls(random.Random(0), 1.0)
        for packet in packets[:-1]:
            bench.source.send(frame_of(packet))
        await ctx.tick().repeat(6000)
        assert len(bench.source.queue) == 0
        status = await read_reg(ctx, bench.dut.regs, net.DECAP_OFFSETS["STATUS"])
        assert net.NET_STATUS.get(status.to_bytes(4, "little"), "code") == net.RX_FULL
        bench.sink.stalls = Stalls()
        await ctx.tick().repeat(2500)
        bench.source.send(frame_of(packets[-1]))
        await ctx.tick().repeat(600)
        counted = await read_reg(ctx, bench.dut.regs, net.DECAP_OFFSETS["DROP_CNT"])

    bench.run(test)
    got = [frame.data for frame in bench.sink.frames]
    whole = iter(packets)
    assert all(packet in whole for packet in got), "other packets, or in another order"
    assert got[-1] == packets[-1]
    assert len(got) > 4
    assert counted == len(packets) - len(got)


@pytest.mark.parametrize("changes", [{"dst": 1}, {"udp_checksum_off": 1}])
def test_the_checks_of_address_and_sum_can_be_left_out(changes: dict[str, int]) -> None:
    bench = DecapBench(32, check_address=False, check_udp_checksum=False)
    packet = engine_packet(random.Random(14), 20)

    async def test(ctx: Any) -> None:
        await write_reg(ctx, bench.dut.regs, net.DECAP_OFFSETS["CTRL"], ENABLE)
        bench.source.send(frame_of(packet, **changes))
        await ctx.tick().repeat(200)

    bench.run(test)
    assert [frame.data for frame in bench.sink.frames] == [packet]


def test_frames_for_an_engine_that_is_not_in_network_mode_are_dropped() -> None:
    bench = DecapBench(32)
    packet = engine_packet(random.Random(16), 20)

    async def test(ctx: Any) -> None:
        regs, offsets = bench.dut.regs, net.DECAP_OFFSETS
        await write_reg(ctx, regs, offsets["CTRL"], ENABLE)
        ctx.set(bench.dut.accept, 0)
        for _ in range(3):
            bench.source.send(frame_of(packet))
        await ctx.tick().repeat(300)
        assert not ctx.get(bench.dut.pending)
        assert await read_reg(ctx, regs, offsets["DROP_CNT"]) == 3
        status = await read_reg(ctx, regs, offsets["STATUS"])
        assert net.NET_STATUS.get(status.to_bytes(4, "little"), "code") == net.RX_MODE
        ctx.set(bench.dut.accept, 1)
        bench.sink.stalls = Stalls(random.Random(0), 1.0)
        bench.source.send(frame_of(packet))
        await ctx.tick().repeat(100)
        assert ctx.get(bench.dut.pending)
        bench.sink.stalls = Stalls()
        await ctx.tick().repeat(60)
        assert not ctx.get(bench.dut.pending)

    bench.run(test)
    assert [frame.data for frame in bench.sink.frames] == [packet]


def test_local_port_and_mac_are_registers() -> None:
    bench = DecapBench(64)
    packet = engine_packet(random.Random(10), 5)

    async def test(ctx: Any) -> None:
        regs, offsets = bench.dut.regs, net.DECAP_OFFSETS
        bench.source.send(frame_of(packet))  # not enabled yet
        for _ in range(60):
            await ctx.tick()
        status = await read_reg(ctx, regs, offsets["STATUS"])
        assert net.NET_STATUS.get(status.to_bytes(4, "little"), "code") == net.RX_DISABLED
        await write_reg(ctx, regs, offsets["CTRL"], ENABLE)
        await write_reg(ctx, regs, offsets["LOCAL_PORT"], 0xFFFF12B7)
        await write_reg(ctx, regs, offsets["LOCAL_MAC_LO"], 0x11223344)
        await write_reg(ctx, regs, offsets["LOCAL_MAC_HI"], 0x0255)
        assert await read_reg(ctx, regs, offsets["LOCAL_PORT"]) == 4791
        bench.source.send(frame_of(packet, dport=4791, dst_mac=0x025511223344))
        bench.source.send(frame_of(packet))
        beat = await read_reg(ctx, regs, offsets["HEARTBEAT"])
        for _ in range(100):
            await ctx.tick()
        assert await read_reg(ctx, regs, offsets["HEARTBEAT"]) > beat
        assert await read_reg(ctx, regs, offsets["DROP_CNT"]) == 2
        await write_reg(ctx, regs, offsets["CTRL"], ENABLE | SOFT_RESET)
        assert await read_reg(ctx, regs, offsets["DROP_CNT"]) == 0
        assert await read_reg(ctx, regs, offsets["PKT_CNT"]) == 0

    bench.run(test)
    assert [frame.data for frame in bench.sink.frames] == [packet]


def test_reset_forgets_packets_and_the_rest_of_a_frame() -> None:
    packet = engine_packet(random.Random(11), 64)
    for cycles in range(0, 60, 4):
        bench = DecapBench(32)

        async def test(ctx: Any, bench: DecapBench = bench, cycles: int = cycles) -> None:
            await write_reg(ctx, bench.dut.regs, net.DECAP_OFFSETS["CTRL"], ENABLE)
            bench.source.send(frame_of(packet))
            for _ in range(cycles):
                await ctx.tick()
            bench.sink.stalls = Stalls(random.Random(0), 1.0)
            ctx.set(bench.dut.reset, 1)
            await ctx.tick().repeat(2)
            ctx.set(bench.dut.reset, 0)
            await ctx.tick()
            assert not ctx.get(bench.dut.m_axis.tvalid)
            bench.sink.stalls = Stalls()
            bench.source.send(frame_of(packet))
            for _ in range(200):
                await ctx.tick()
            await write_reg(ctx, bench.dut.regs, net.DECAP_OFFSETS["LOCAL_PORT"], 1)

        bench.run(test)
        # what was on its way out when the reset came stands before it: the parser behind is reset as well
        assert bench.sink.frames[-1].data.endswith(packet)
        assert bench.errors == 0  # the rest of the frame was not taken for another one


def test_endpoint_table_words_and_collisions() -> None:
    table = EndpointLookup(EngineParams())
    sim = Simulator(table)
    sim.add_clock(1e-8)
    entries = {0x0A000102: (0x020000000001, 0x020000000002), 0x0A0003FF: (0xABCDEF012345, 0x123456789ABC)}

    async def ask(ctx: Any, ip: int, read_too: bool = False) -> tuple[int, int, int]:
        ctx.set(table.lookup.ip, ip)
        ctx.set(table.lookup.request, 1)
        ctx.set(table.regs.read, read_too)
        await ctx.tick()
        ctx.set(table.lookup.request, 0)
        ctx.set(table.lookup.ip, 0)
        if read_too:  # the question asks for the table in its second cycle; software reads for two more
            await ctx.tick()
            await ctx.tick()
        ctx.set(table.regs.read, 0)
        for _ in range(5):
            if ctx.get(table.lookup.response):
                break
            await ctx.tick()
        assert ctx.get(table.lookup.response)
        return ctx.get(table.lookup.hit), ctx.get(table.lookup.dst_mac), ctx.get(table.lookup.src_mac)

    async def test(ctx: Any) -> None:
        assert await ask(ctx, net.DEFAULT_DST_IP) == (1, net.DEFAULT_DST_MAC, net.DEFAULT_SRC_MAC)
        for ip, (dst, src) in entries.items():
            raw = net.ENDPOINT_ENTRY.pack({"valid": 1, "dst_ip": ip, "dst_mac": dst, "src_mac": src})
            base = net.endpoint_index(ip) * 32
            for at in range(0, 32, 4):
                await write_reg(ctx, table.regs, base + at, int.from_bytes(raw[at : at + 4], "little"))
            for at in range(0, 32, 4):
                assert await read_reg(ctx, table.regs, base + at) == int.from_bytes(raw[at : at + 4], "little")
        for ip, (dst, src) in entries.items():
            assert await ask(ctx, ip) == (1, dst, src)
            assert await ask(ctx, ip, read_too=True) == (1, dst, src)
            assert await ask(ctx, ip ^ 0x0101) == (0, 0, 0)  # same slot, other address
            assert await ask(ctx, ip ^ 0x80000000) == (0, 0, 0)
        base = net.endpoint_index(0x0A000102) * 32
        await write_reg(ctx, table.regs, base + 20, 0, strobe=8)  # the valid bit's byte alone
        assert await ask(ctx, 0x0A000102) == (0, 0, 0)
        assert await read_reg(ctx, table.regs, base + 16) == 0x0A000102

    sim.add_testbench(test)
    sim.run()


def test_endpoint_registers_and_their_reset_values() -> None:
    bench = EncapBench(32)
    names = {"SRC_IP": "src_ip", "DST_IP": "dst_ip", "SRC_PORT": "src_port", "DST_PORT": "dst_port"}

    async def test(ctx: Any) -> None:
        regs, endpoint = bench.dut.regs, bench.dut.endpoint
        assert [ctx.get(getattr(endpoint, name)) for name in names.values()] == [
            0xAC1F09CA,
            0xAC1F09C9,
            0xCE06,
            0x138D,
        ]
        for number, (register, name) in enumerate(names.items(), 1):
            await write_reg(ctx, regs, net.ENCAP_OFFSETS[register], 0x01020300 + number)
            expected = 0x01020300 + number if "IP" in register else 0x0300 + number
            assert await read_reg(ctx, regs, net.ENCAP_OFFSETS[register]) == expected
            assert ctx.get(getattr(endpoint, name)) == expected
        await write_reg(ctx, regs, net.ENCAP_OFFSETS["SRC_IP"], 0xFFFFFFFF, strobe=0b0100)
        assert await read_reg(ctx, regs, net.ENCAP_OFFSETS["SRC_IP"]) == 0x01FF0301

    bench.run(test)
