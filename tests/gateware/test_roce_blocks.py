"""Blocks of the RoCEv2 NIC beside the software's functions, bit for bit: ``icrc``, ``bth_parse``, ``bth_build``."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from roce_bench import beats_of, carry, packets_of

from rnic.gateware.combinational import combinational_paths
from rnic.gateware.roce.bth_build import BthBuild
from rnic.gateware.roce.bth_parse import BthParse
from rnic.gateware.roce.icrc import Icrc, IcrcCheck, IcrcGenerate, advance
from rnic.gateware.roce.streams import DROPS, HEADER, ROWS, WIDTHS
from rnic.spec.drops import DropReason
from rnic.spec.limits import BTH_BYTES, ICRC_BYTES
from rnic.wire.crc import crc32
from rnic.wire.flow import DONT_FRAGMENT, Flow
from rnic.wire.opcode import OPCODES
from rnic.wire.packet import Packet, build, parse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
GAPS, STALLS = 0.3, 0.4
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 20, 23, 24, 31, 35, 36, 47, 48, 51, 52, 60, 63, 64, 65, 100, 256, 1000)
"""Of payloads: around the ends of beats of either width behind headers of any length."""


RIGHT = [row for row in OPCODES if row and row.opcode in ROWS]
"""Opcodes that the blocks and the software know. XRC is the software's alone."""


def udp_payload(rng: random.Random, size: int, opcode: int | None = None) -> bytes:
    """BTH to pad of a right packet, with every bit of its fields at random."""
    row = OPCODES[opcode] if opcode is not None else rng.choice(RIGHT)
    assert row is not None
    values: dict[str, Any] = {name: rng.getrandbits(width) for name, width in WIDTH.items()}
    flags = {name: bool(rng.getrandbits(1)) for name in ("ackreq", "solicited", "migreq", "fecn", "becn")}
    payload = rng.randbytes(size) if row.payload else b""
    return bytes(build(row, payload=payload, **values, **flags))


WIDTH = dict.fromkeys(("rkey", "dma_length", "imm", "inv_rkey", "qkey"), 32) | {
    "dqpn": 24, "psn": 24, "pkey": 16, "va": 64, "swap_add": 64, "compare": 64, "syndrome": 8, "msn": 24, "orig": 64,
    "sqpn": 24,
}  # fmt: skip
"""Fields of :func:`~rnic.wire.packet.build`, and their bits."""


# ---------------------------------------------------------------- icrc


def on_the_wire(rng: random.Random, flow: Flow, frame: bytes, ident: int) -> bytes:
    """IP header, UDP header and a frame, with the fields that may change on the way at random."""
    length = len(frame)
    udp = struct.pack(">HHHH", flow.sport, flow.dport, length + 4 + 8, rng.getrandbits(16))
    if len(flow.src) == 4:
        total = length + 4 + 28
        tos, ttl, checksum = rng.getrandbits(8), rng.getrandbits(8), rng.getrandbits(16)
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, tos, total, ident, DONT_FRAGMENT, ttl, 17, checksum, flow.src, flow.dst)
    else:
        first = 0x6000_0000 | rng.getrandbits(28)
        ip = struct.pack(">IHBB16s16s", first, length + 4 + 8, 17, rng.getrandbits(8), flow.src, flow.dst)
    changed = bytearray(frame)
    changed[4] = rng.getrandbits(8)
    return ip + udp + changed


def l3_packets(rng: random.Random, version: int) -> Iterator[tuple[bytes, int]]:
    """Packets without their ICRC, and that."""
    size = 4 if version == 4 else 16
    for payload in SIZES:
        flow = Flow(rng.randbytes(size), rng.randbytes(size), rng.getrandbits(16))
        frame, ident = udp_payload(rng, payload), rng.getrandbits(16)
        packet = on_the_wire(rng, flow, frame, ident)
        yield packet, flow.icrc(frame, ident)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("width", WIDTHS)
def test_an_icrc_is_made_and_found_right(width: int, version: int) -> None:
    rng = random.Random(width + version)
    packets = list(l3_packets(rng, version))
    beats = [beat for packet, _ in packets for beat in beats_of(packet, width)]
    want = [packet + struct.pack("<I", icrc) for packet, icrc in packets]
    count = sum(len(beats_of(packet, width)) for packet in want)
    out, _ = carry(IcrcGenerate(width), {"beats": beats}, {"sealed": count}, GAPS, STALLS)
    assert packets_of(out["sealed"], width) == want


@pytest.mark.parametrize("width", WIDTHS)
def test_one_bit_that_differs_is_found(width: int) -> None:
    """Each bit that counts, in some packet; and none that does not."""
    rng = random.Random(width)
    packets, good = [], []
    for version in (4, 6):
        for packet, icrc in l3_packets(rng, version):
            whole = bytearray(packet + struct.pack("<I", icrc))
            packets.append(bytes(whole))
            good.append(1)
            at = rng.choice((0, 20, 24, 28, 33, len(whole) - 1, len(whole) - 4, rng.randrange(40, len(whole))))
            whole[at] ^= 1 << rng.randrange(4 if at == 0 else 8)
            if version == 6 and at == 0:
                whole[at + 8] ^= 1
            if (version, at) not in ((6, 52), (6, 46), (6, 47)):
                packets.append(bytes(whole))
                good.append(0)
    beats = [beat for packet in packets for beat in beats_of(packet, width)]
    out, _ = carry(IcrcCheck(width), {"beats": beats}, {"good": len(packets)}, stalls=0.2)
    assert out["good"] == good


@pytest.mark.parametrize("width", WIDTHS)
def test_a_beat_of_any_length_in_each_cycle(width: int) -> None:
    """Packets whose masked fields are ones already, so that the state is the plain CRC-32 behind eight ones."""
    rng = random.Random(3)
    packets = [b"\x45" + b"\xff" * 59 + rng.randbytes(size) for size in range(1, 66)]
    beats = [beat for packet in packets for beat in beats_of(packet, width)]
    out, cycles = carry(Icrc(width), {"beats": beats}, {"crc": len(packets)})
    assert [state ^ 0xFFFF_FFFF for state in out["crc"]] == [crc32(b"\xff" * 8 + packet) for packet in packets]
    assert cycles <= len(beats) + 10


def test_the_matrices_are_the_softwares() -> None:
    assert advance(0xFFFF_FFFF, b"123456789") ^ 0xFFFF_FFFF == crc32(b"123456789") == 0xCBF4_3926


def test_the_guides_example(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "gateware.md").read_text()
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "IcrcCheck" in block]
    exec(example, {})
    assert capsys.readouterr().out == "right\n"


# ---------------------------------------------------------------- bth_parse


def taken(packet: bytes) -> Packet | DropReason:
    """What the software makes of a packet, or would without XRC."""
    found = parse(memoryview(packet))
    if len(packet) < BTH_BYTES + ICRC_BYTES or found == DropReason.BAD_TVER or packet[0] in ROWS:
        return found
    return DropReason.BAD_OPCODE


def seen(packet: Packet | DropReason) -> dict[str, Any]:
    """What the software makes of a packet, as a record has it."""
    if isinstance(packet, DropReason):
        return {"drop": DROPS.index(packet)}
    names = {name for name in Packet.__slots__ if not name.startswith("_")} - {"burst", "row", "payload"}
    out = {name: int(getattr(packet, name)) for name in names if hasattr(packet, name)}
    if (feth := out.pop("feth", None)) is not None:
        out |= {"level": feth >> 4, "placement": feth & 0xF}
    flags = {name: int(getattr(packet, name)) for name in ("solicited", "migreq", "pad", "dqpn", "fecn", "becn")}
    return out | flags | {"payload_bytes": len(packet.payload), "drop": 0}


def wrong_packets(rng: random.Random, count: int) -> list[bytes]:
    """Packets that are none, or may be: cut, longer, with other opcodes and flags."""
    out = []
    for _ in range(count):
        packet = bytearray(udp_payload(rng, rng.choice(SIZES[:20])) + rng.randbytes(4))
        way = rng.randrange(5)
        if way == 0:
            packet = packet[: rng.randrange(1, len(packet) + 1)]
        elif way == 1:
            packet[0] = rng.getrandbits(8)
        elif way == 2:
            packet[1] = rng.getrandbits(8)
        elif way == 3:
            packet += rng.randbytes(rng.randrange(1, 9))
        else:
            packet = bytearray(rng.randbytes(rng.randrange(1, 90)))
        out.append(bytes(packet))
    return out


@pytest.mark.parametrize("width", WIDTHS)
def test_packets_are_taken_apart_as_by_the_software(width: int) -> None:
    rng = random.Random(width)
    packets = [udp_payload(rng, size) + rng.randbytes(4) for size in SIZES]
    packets += [udp_payload(rng, 5, row.opcode) + rng.randbytes(4) for row in RIGHT]
    packets += [bytes([opcode, 0]) + rng.randbytes(40) for opcode in range(256) if opcode not in ROWS]
    packets += [bytes([opcode, 0]) + rng.randbytes(26) for opcode in sorted(ROWS)]
    packets += wrong_packets(rng, 150)
    rng.shuffle(packets)
    want = [taken(packet) for packet in packets]
    payloads = [bytes(each.payload) for each in want if isinstance(each, Packet) and len(each.payload)]
    beats = [beat for packet in packets for beat in beats_of(packet, width)]
    expected = {"headers": len(packets), "payload": sum(len(beats_of(each, width)) for each in payloads)}
    out, _ = carry(BthParse(width), {"beats": beats}, expected, GAPS, STALLS)
    assert packets_of(out["payload"], width) == payloads
    for packet, record, each in zip(packets, out["headers"], want, strict=True):
        wanted = seen(each)
        assert {name: record[name] for name in wanted} == wanted, packet.hex()
        if not wanted["drop"]:
            others = {name for name in set(record) - set(wanted) if not name.startswith("reserved")}
            assert not any(record[name] for name in others), packet.hex()


def test_short_writes_take_few_cycles() -> None:
    rng = random.Random(1)
    packets = [udp_payload(rng, 64, 0x0A) + rng.randbytes(4) for _ in range(50)]
    beats = [beat for packet in packets for beat in beats_of(packet, 512)]
    _, cycles = carry(BthParse(512), {"beats": beats}, {"headers": 50, "payload": 50})
    assert cycles <= 4 * 50 + 4


# ---------------------------------------------------------------- bth_build


@pytest.mark.parametrize("width", WIDTHS)
def test_packets_are_built_as_by_the_software(width: int) -> None:
    """What the software takes apart is put together again, to the bit."""
    rng = random.Random(width + 1)
    frames = [udp_payload(rng, size) for size in SIZES]
    frames += [udp_payload(rng, size, row.opcode) for row in RIGHT for size in (0, 3, 64)]
    rng.shuffle(frames)
    headers, payloads = [], []
    for frame in frames:
        packet = parse(memoryview(frame + bytes(4)))
        assert isinstance(packet, Packet)
        values = seen(packet)
        headers.append({name: values.get(name, 0) for name, _ in HEADER} | {"pad": 3, "drop": 0})
        payloads += beats_of(bytes(packet.payload), width)
    count = sum(len(beats_of(frame, width)) for frame in frames)
    given = {"headers": headers, "payload": payloads}
    out, _ = carry(BthBuild(width), given, {"beats": count}, GAPS, STALLS)
    assert packets_of(out["beats"], width) == frames


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("width", WIDTHS)
def test_no_stream_has_a_path_without_a_register_to_another(width: int) -> None:
    """Of the streams that packets come by; a sink's ready may reach a source's."""
    for block in (Icrc, IcrcCheck):
        assert combinational_paths(block(width)) == []
