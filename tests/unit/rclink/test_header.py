"""RH bit by bit, packets of the standard format, and the ICRC that covers all of RH."""

from __future__ import annotations

import zlib

import pytest

from rnic.rclink.drops import RcLinkDrop
from rnic.rclink.header import MD, RH, Md, Rh
from rnic.rclink.numbers import OP_ACK, OP_CNP, OP_SEND, PSN_MASK, psn_add, psn_diff, timestamp
from rnic.rclink.packet import RcLinkPacket, build, classify, icrc_ok, parse, seal
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet

FLOW = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 50_000, 4793)

# most and least significant bit of the 64-bit word, typed from hardware.md §4; 58:57 is what it leaves free
PLACES = {
    "dest_qp": (12, 0),
    "psn": (24, 13),
    "len_syndrome": (31, 25),
    "pkey": (39, 32),
    "timestamp": (55, 40),
    "ts_en": (56, 56),
    "reserved": (58, 57),
    "pad": (60, 59),
    "fack": (61, 61),
    "opcode": (63, 62),
}


def test_the_table_is_the_documents() -> None:
    assert {field.name: (field.msb, field.lsb) for field in RH.fields} == PLACES
    assert (RH.size, RH.endian) == (8, "big")


@pytest.mark.parametrize("name", PLACES)
def test_each_field_alone(name: str) -> None:
    msb, lsb = PLACES[name]
    raw = Rh(**{name: (1 << msb - lsb + 1) - 1}).pack()
    assert int.from_bytes(raw, "big") == (1 << msb + 1) - (1 << lsb)
    assert getattr(Rh.parse(raw), name) == (1 << msb - lsb + 1) - 1
    with pytest.raises(ValueError, match=f"RH.{name}=.* does not fit"):
        Rh(**{name: 1 << msb - lsb + 1}).pack()


def test_golden_bytes() -> None:
    """Computed by hand: op 0, FACK, pad 1, ts_en, timestamp 1234h, P_Key ABh, length 11, PSN 5, QP 3."""
    frame = build(Rh(fack=1, ts_en=1, timestamp=0x1234, pkey=0xAB, psn=5, dest_qp=3), b"abc")
    word = 0 << 62 | 1 << 61 | 1 << 59 | 1 << 56 | 0x1234 << 40 | 0xAB << 32 | 11 << 25 | 5 << 13 | 3
    assert frame == word.to_bytes(8, "big") + b"abc\0"
    assert frame.hex() == "291234ab1600a00361626300"


def test_memory_descriptor() -> None:
    """TYPE3 is refused, and its descriptor is read all the same."""
    md = Md(address=0x1000, buffer_size=4_096, data_size=64, sf=1, lf=1)
    raw = md.pack()
    assert raw == (0x1000 << 64 | 4_096 << 48 | 1 << 21 | 1 << 20 | 64 << 4).to_bytes(16, "little")
    assert Md.parse(raw) == md
    assert MD.size == 16


@pytest.mark.parametrize("size", [1, 2, 3, 4, 118, 119, 120, 121, 1_344, 4_096])
def test_sends_round_trip(size: int) -> None:
    payload = bytes(range(256)) * 16
    data = seal(build(Rh(psn=7, dest_qp=9), payload[:size]), FLOW)
    assert len(data) % 4 == 0
    packet = parse(memoryview(data))
    assert isinstance(packet, RcLinkPacket)
    assert bytes(packet.payload) == payload[:size]
    assert packet.rh.len_syndrome == (8 + size if 8 + size <= 127 else 0)
    bare = parse(memoryview(build(Rh(psn=7, dest_qp=9), payload[:size])), with_icrc=False)
    assert isinstance(bare, RcLinkPacket)
    assert bytes(bare.payload) == payload[:size]


def send(size: int = 5, **values: int) -> bytearray:
    rh = Rh(psn=1, dest_qp=2)
    frame = bytearray(build(rh, bytes(size)))
    frame[:8] = Rh(**{**rh.values(), **values}).pack()
    return frame + bytes(4)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", RcLinkDrop.TOO_SHORT),
        (bytes(11), RcLinkDrop.TOO_SHORT),
        (bytes(8 + 4_096 + 4 + 4), RcLinkDrop.TOO_LONG),
        (Rh(opcode=3).pack() + bytes(4), RcLinkDrop.BAD_OPCODE),
        (Rh(opcode=OP_ACK, fack=1).pack() + bytes(4), RcLinkDrop.FACK),
        (Rh(opcode=OP_CNP, fack=1).pack() + bytes(4), RcLinkDrop.FACK),
        (Rh(opcode=OP_ACK).pack() + bytes(8), RcLinkDrop.BAD_LENGTH),
        (Rh(opcode=OP_ACK, pad=1).pack() + bytes(4), RcLinkDrop.BAD_LENGTH),
        (Rh(opcode=OP_SEND).pack() + bytes(4), RcLinkDrop.BAD_LENGTH),
        (send()[:-1], RcLinkDrop.BAD_PAD),
        (send(pad=2), RcLinkDrop.BAD_LENGTH),
        (send(len_syndrome=12), RcLinkDrop.BAD_LENGTH),
        (send(len_syndrome=0), RcLinkDrop.BAD_LENGTH),
        (send(200, len_syndrome=1), RcLinkDrop.BAD_LENGTH),
        (send(120, len_syndrome=127), RcLinkDrop.BAD_LENGTH),
    ],
)
def test_bad_packets(data: bytes, reason: RcLinkDrop) -> None:
    assert parse(memoryview(data)) is reason


def test_every_drop_has_words() -> None:
    for reason in RcLinkDrop:
        assert reason.words
        assert reason.value.startswith("drop_")


def test_icrc_is_roces_but_covers_byte_4() -> None:
    """The CRC of ones, masked headers and packet, computed here from a whole IP packet."""
    frame = build(Rh(psn=0xABC, dest_qp=77), b"payload!")
    data = seal(frame, FLOW, ident=0)
    masked = bytearray(ip_packet(FLOW, data)[:-4])
    for variant in (1, 8, 10, 11, 26, 27):  # type of service, time to live, both checksums
        masked[variant] = 0xFF
    assert data[-4:] == zlib.crc32(b"\xff" * 8 + masked).to_bytes(4, "little")
    for at in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            assert not icrc_ok(bytes(bad), FLOW), f"byte {at}"
    assert not icrc_ok(data, FLOW, ident=1)


@pytest.mark.parametrize(
    ("dst", "port", "kind"),
    [
        ("0a000002", 4793, "TYPE1"),
        ("e0000001", 4793, "TYPE2"),
        ("0a000002", 4794, "TYPE2"),
        ("0a000002", 4791, "TYPE3"),
        ("fd" + "00" * 14 + "01", 4793, "TYPE1"),
        ("ff02" + "00" * 13 + "01", 4793, "TYPE2"),
    ],
)
def test_types(dst: str, port: int, kind: str) -> None:
    address = bytes.fromhex(dst)
    assert classify(Flow(bytes(len(address)), address, 1, port)) == kind


def test_type1_may_have_type2s_port() -> None:
    assert classify(Flow(bytes(4), b"\x0a\0\0\x01", 1, 4794), port=4794) == "TYPE1"


def test_psn_arithmetic() -> None:
    assert psn_add(4_095, 1) == 0
    assert psn_add(0, -1) == PSN_MASK
    assert psn_diff(0, 4_095) == 1
    assert psn_diff(4_095, 0) == -1
    assert psn_diff(2_047, 0) == 2_047
    assert psn_diff(2_048, 0) == -2_048


def test_timestamps_count_1024_ns() -> None:
    assert timestamp(1_023) == 0
    assert timestamp(1_024 * 65_537) == 1
