"""Building and parsing whole packets."""

from __future__ import annotations

import pytest

from rnic.spec.drops import DropReason
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES
from rnic.wire.packet import Packet, build, parse, seal

FLOW = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152)


def parsed(frame: bytes | bytearray) -> Packet:
    packet = parse(memoryview(seal(frame, FLOW)))
    assert isinstance(packet, Packet)
    return packet


def test_write_only_golden() -> None:
    """Typed by hand: BTH, RETH, three bytes of payload and one of pad."""
    frame = build(
        0x0A,
        dqpn=0x11,
        psn=0xFFFFFF,
        ackreq=True,
        solicited=True,
        va=0x7F0012345678,
        rkey=0x0102,
        dma_length=3,
        payload=b"abc",
    )
    assert frame.hex(" ", 4) == "0ad0ffff 00000011 80ffffff 00007f00 12345678 00000102 00000003 61626300"
    packet = parsed(frame)
    assert packet.row is OPCODES[0x0A]
    assert (packet.opcode, packet.pad, packet.pkey, packet.dqpn, packet.psn) == (0x0A, 1, 0xFFFF, 0x11, 0xFFFFFF)
    assert (packet.ackreq, packet.solicited, packet.migreq, packet.fecn, packet.becn) == (
        True,
        True,
        True,
        False,
        False,
    )
    assert (packet.va, packet.rkey, packet.dma_length) == (0x7F0012345678, 0x0102, 3)
    assert bytes(packet.payload) == b"abc"


def test_flags() -> None:
    packet = parsed(build(0x04, dqpn=1, psn=2, migreq=False, fecn=True, pkey=0x7FFF))
    assert (packet.fecn, packet.becn, packet.migreq, packet.ackreq, packet.solicited) == (
        True,
        False,
        False,
        False,
        False,
    )
    packet = parsed(build(0x04, dqpn=1, psn=2, becn=True))
    assert (packet.fecn, packet.becn) == (False, True)
    assert bytes(packet.payload) == b""


def test_reserved_bits_are_ignored() -> None:
    """Huawei's NIC sets one of them."""
    frame = build(0x04, dqpn=0x123456, psn=0x654321)
    frame[4] |= 0x3F
    frame[8] |= 0x7F
    packet = parsed(frame)
    assert (packet.dqpn, packet.psn) == (0x123456, 0x654321)
    assert (packet.fecn, packet.becn, packet.ackreq) == (False, False, False)


@pytest.mark.parametrize(
    ("opcode", "values"),
    [
        (0x0B, {"va": 8, "rkey": 9, "dma_length": 4, "imm": 10}),
        (0x05, {"imm": 0xFFFFFFFF}),
        (0x17, {"inv_rkey": 0x204}),
        (0x11, {"syndrome": 0x63, "msn": 0xABCDEF}),
        (0x12, {"syndrome": 0x1F, "msn": 1, "orig": 2**64 - 1}),
        (0x13, {"va": 8, "rkey": 9, "swap_add": 2**63, "compare": 5}),
        (0x64, {"qkey": 0x80010000, "sqpn": 0xFFFFFE}),
        (0x65, {"qkey": 1, "sqpn": 2, "imm": 3}),
    ],
)
def test_extended_headers(opcode: int, values: dict[str, int]) -> None:
    payload = b"1234" if opcode not in (0x11, 0x12, 0x13) else b""
    packet = parsed(build(opcode, dqpn=1, psn=2, payload=payload, **values))  # type: ignore[arg-type]
    assert {name: getattr(packet, name) for name in values} == values
    assert packet.payload == payload


def test_atomics_are_eight_bytes() -> None:
    assert parsed(build(0x14, dqpn=1, psn=2)).dma_length == 8


def test_fields_that_are_not_given_are_zero() -> None:
    for row in OPCODES:
        if row is not None:
            assert not any(build(row, dqpn=0, psn=0)[12:]), row.name


def test_build_takes_a_row() -> None:
    row = OPCODES[0x04]
    assert row is not None
    assert build(row, dqpn=1, psn=2) == build(0x04, dqpn=1, psn=2)


@pytest.mark.parametrize(
    ("opcode", "values", "message"),
    [
        (0x15, {}, "opcode=0x15 is not in the opcode table"),
        (0x04, {"psn": 1 << 24}, r"BTH\.psn=0x1000000 does not fit in 24 bits"),
        (0x04, {"dqpn": -1}, r"BTH\.dqpn"),
        (0x11, {"syndrome": 256}, r"AETH\.syndrome"),
        (0x64, {"sqpn": 1 << 24}, r"DETH\.sqpn"),
    ],
)
def test_build_refuses(opcode: int, values: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(opcode, **{"dqpn": 1, "psn": 2, **values})  # type: ignore[arg-type]


def drop(data: bytes | bytearray) -> DropReason:
    reason = parse(memoryview(data))
    assert isinstance(reason, DropReason)
    return reason


def test_drops() -> None:
    good = seal(build(0x0A, dqpn=1, psn=2, payload=b"abcd"), FLOW)
    assert drop(good[:15]) is DropReason.TOO_SHORT
    assert drop(b"") is DropReason.TOO_SHORT
    assert drop(good[:1] + b"\x41" + good[2:]) is DropReason.BAD_TVER
    assert drop(b"\x35" + good[1:]) is DropReason.BAD_OPCODE
    assert drop(good[:31]) is DropReason.TOO_SHORT, "RETH and ICRC overlap"
    assert drop(seal(build(0x0A, dqpn=1, psn=2), FLOW)[:1] + b"\x70" + good[2:32]) is DropReason.TOO_SHORT, "pad"
    ack = seal(build(0x11, dqpn=1, psn=2), FLOW)
    assert drop(ack + b"1234") is DropReason.BAD_LENGTH
    assert drop(ack[:1] + b"\x50" + ack[2:] + b"1") is DropReason.BAD_LENGTH, "pad without payload"


def test_version_comes_before_opcode_and_length_before_both() -> None:
    assert drop(b"\x15\x0f" + bytes(14)) is DropReason.BAD_TVER
    assert drop(b"\x15\x0f" + bytes(13)) is DropReason.TOO_SHORT


def test_payload_is_a_view() -> None:
    data = bytearray(seal(build(0x04, dqpn=1, psn=2, payload=b"abcd"), FLOW))
    packet = parse(memoryview(data))
    assert isinstance(packet, Packet)
    data[12] = ord("z")
    assert bytes(packet.payload) == b"zbcd"
