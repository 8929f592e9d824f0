"""Headers by name."""

from __future__ import annotations

import pytest

from rnic.wire import pretty
from rnic.wire.aeth import Aeth
from rnic.wire.bth import Bth
from rnic.wire.ethernet import Ethernet
from rnic.wire.flow import Flow
from rnic.wire.header import Header
from rnic.wire.ip import IPv4, IPv6
from rnic.wire.mad import Mad
from rnic.wire.packet import Packet, build, parse, seal

FLOW = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152)


def sealed(opcode: int, **values: object) -> memoryview:
    return memoryview(seal(build(opcode, **{"dqpn": 0x11, "psn": 7, **values}), FLOW))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            sealed(0x0A, ackreq=True, va=0x1000, rkey=0x102, dma_length=64, payload=bytes(63)),
            "RC_WRITE_ONLY qp=0x000011 psn=7 ackreq va=0x1000 rkey=0x00000102 len=64 [63]",
        ),
        (sealed(0x05, solicited=True, imm=5), "RC_SEND_ONLY_IMM qp=0x000011 psn=7 solicited imm=0x00000005 [0]"),
        (sealed(0x17, inv_rkey=0x103), "RC_SEND_ONLY_INV qp=0x000011 psn=7 inv_rkey=0x00000103 [0]"),
        (sealed(0x11, syndrome=0x1F, msn=3), "RC_ACKNOWLEDGE qp=0x000011 psn=7 ACK msn=3"),
        (
            sealed(0x12, syndrome=3, msn=3, orig=16),
            "RC_ATOMIC_ACKNOWLEDGE qp=0x000011 psn=7 ACK credits=3 msn=3 orig=0x10",
        ),
        (
            sealed(0x13, va=8, rkey=1, swap_add=2, compare=3),
            "RC_COMPARE_SWAP qp=0x000011 psn=7 va=0x8 rkey=0x00000001 swap_add=0x2 compare=0x3",
        ),
        (sealed(0x64, qkey=1, sqpn=2), "UD_SEND_ONLY qp=0x000011 psn=7 sqp=0x000002 qkey=0x00000001 [0]"),
        (sealed(0x81, becn=True, payload=bytes(16)), "CNP qp=0x000011 psn=7 becn [16]"),
    ],
)
def test_describe(data: memoryview, line: str) -> None:
    packet = parse(data)
    assert isinstance(packet, Packet)
    assert pretty.describe(packet) == line


@pytest.mark.parametrize(
    ("syndrome", "text"),
    [
        (0x1F, "ACK"),
        (0x00, "ACK credits=0"),
        (0x21, "RNR NAK 10 us"),
        (0x20, "RNR NAK 655360 us"),
        (0x60, "NAK PSN sequence error"),
        (0x62, "NAK remote access error"),
        (0x7E, "NAK code 30"),
        (0x40, "reserved"),
        (0x80, "reserved"),
    ],
)
def test_syndrome_text(syndrome: int, text: str) -> None:
    assert pretty.syndrome_text(syndrome) == text


def test_fields() -> None:
    found = pretty.fields(sealed(0x0B, va=1, rkey=2, dma_length=3, imm=4, payload=b"abc"))
    assert [name for name, _ in found] == ["BTH", "RETH", "ImmDt"]
    assert dict(found[0][1])["dqpn"] == 0x11
    assert found[1][1] == [("va", 1), ("rkey", 2), ("dma_length", 3)]
    assert found[2][1] == [("imm", 4)]


def test_headers_of_management_datagrams_and_cnps() -> None:
    mad = Mad(mgmt_class=7, attr_id=0x10).pack() + bytes(232)
    data = sealed(0x64, dqpn=1, payload=mad)
    assert [type(header).__name__ for header in pretty.headers(data)] == ["Bth", "Deth", "Mad", "ConnectRequest"]
    assert pretty.payload_bytes(data) == 0, "the message is all of it"
    other = sealed(0x64, dqpn=1, payload=Mad(mgmt_class=3, attr_id=0x10).pack() + bytes(232))
    assert [type(header).__name__ for header in pretty.headers(other)] == ["Bth", "Deth", "Mad"]
    assert pretty.payload_bytes(other) == 232
    assert [type(h).__name__ for h in pretty.headers(sealed(0x81, payload=bytes(16)))] == ["Bth", "Cnp"]
    assert pretty.payload_bytes(sealed(0x81, payload=bytes(16))) == 0


@pytest.mark.parametrize("size", [0, 1, 4, 255])
def test_payload_bytes(size: int) -> None:
    frame = sealed(0x0A, dma_length=size, payload=bytes(size))
    assert pretty.payload_bytes(frame) == size
    assert pretty.payload_bytes(frame[:28]) == 0


def test_headers_as_far_as_they_reach() -> None:
    data = sealed(0x0B)
    counts = [len(pretty.headers(data[:size])) for size in range(len(data) + 1)]
    assert counts == [0] * 12 + [1] * 16 + [2] * 4 + [3] * 5
    assert len(pretty.headers(memoryview(b"\x15" + bytes(40)))) == 1
    assert len(pretty.headers(memoryview(b"\x0b\x01" + bytes(40)))) == 1
    assert pretty.payload_bytes(data[:3]) == 0


@pytest.mark.parametrize(
    ("header", "name", "text"),
    [
        (Bth(opcode=4), "opcode", "0x04 (RC_SEND_ONLY)"),
        (Bth(opcode=0x15), "opcode", "0x15 (opcode 0x15)"),
        (Bth(psn=5, ackreq=True), "psn", "5"),
        (Bth.parse(bytes(8) + b"\x80" + bytes(3)), "ackreq", "1"),
        (Bth(dqpn=5), "dqpn", "0x000005"),
        (Aeth(syndrome=0x62), "syndrome", "0x62 (NAK remote access error)"),
        (IPv4(src=0x0A000001), "src", "10.0.0.1"),
        (IPv6(dst=1), "dst", "::1"),
        (Ethernet(src_mac=0x520000000001), "src_mac", "52:00:00:00:00:01"),
        (Ethernet(ethertype=0x8915), "ethertype", "0x8915 (RoCEv1)"),
        (Ethernet(ethertype=0x1234), "ethertype", "0x1234"),
        (Mad(mgmt_class=7, attr_id=0x13), "attr_id", "0x0013 (ConnectReply)"),
        (Mad(mgmt_class=1, attr_id=0x13), "attr_id", "0x0013"),
    ],
)
def test_text(header: Bth, name: str, text: str) -> None:
    assert pretty.text(header, name) == text


@pytest.mark.parametrize(
    ("feth", "words"),
    [(1, "GLOBAL range"), (2, "PERSISTENT range"), (0x13, "GLOBAL+PERSISTENT region"), (0x20, "nothing level 2")],
)
def test_flush(feth: int, words: str) -> None:
    frame = build(0x1C, dqpn=17, psn=7, feth=feth, va=16, rkey=2, dma_length=64)
    packet = parse(memoryview(frame + bytes(4)))
    assert isinstance(packet, Packet)
    assert pretty.describe(packet) == f"RC_FLUSH qp=0x000011 psn=7 {words} va=0x10 rkey=0x00000002 len=64"
    names = [name for name, _ in pretty.fields(memoryview(frame + bytes(4)))]
    assert names == ["BTH", "FETH", "RETH"]


def test_every_named_decimal_field_exists() -> None:
    from rnic.wire.cm_message import CM_MESSAGES
    from rnic.wire.ethernet import VlanTag
    from rnic.wire.feth import Feth
    from rnic.wire.ip import Udp
    from rnic.wire.reth import Reth

    kinds: list[type[Header]] = [Bth, Aeth, IPv4, IPv6, Ethernet, Mad, VlanTag, Udp, Reth, Feth]
    layouts = [*(kind.layout for kind in kinds), *(kind.layout for kind in CM_MESSAGES.values())]
    known = {field.name for layout in layouts for field in layout.fields}
    assert known >= pretty._DECIMAL
