"""IP headers and packets made from a flow."""

from __future__ import annotations

import pytest

from rnic.wire.flow import Flow
from rnic.wire.ip import IPv4, IPv6, Udp, checksum, ip_packet, synthesize_grh

V4 = Flow(b"\xc6\x33\x64\x0c", b"\xc6\x33\x64\x0b", 55_410, tclass=2)
V6 = Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 50_000, tclass=0x6A, hop_limit=1, flow_label=0x12345)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0xFFFF),
        (b"\x00\x01\xf2\x03\xf4\xf5\xf6\xf7", 0x220D),  # RFC 1071, section 3
        (b"\x01", 0xFEFF),
        (b"\xff" * 64, 0),
    ],
)
def test_checksum(data: bytes, value: int) -> None:
    assert checksum(data) == value


def test_ipv4_packet() -> None:
    packet = ip_packet(V4, b"12345", 0xC25B)
    ip = IPv4.parse(packet)
    assert (ip.tos, ip.total_length, ip.identification, ip.flags_fragment) == (2, 33, 0xC25B, 0x4000)
    assert (ip.ttl, ip.protocol, ip.src, ip.dst) == (64, 17, 0xC633640C, 0xC633640B)
    assert checksum(packet[:20]) == 0
    assert Udp.parse(packet, 20) == Udp(sport=55_410, dport=4791, length=13)
    assert packet[28:] == b"12345"


def test_ipv6_packet() -> None:
    packet = ip_packet(V6, b"12345")
    ip = IPv6.parse(packet)
    assert (ip.traffic_class, ip.flow_label, ip.payload_length, ip.next_header, ip.hop_limit) == (
        0x6A,
        0x12345,
        13,
        17,
        1,
    )
    assert (ip.src, ip.dst) == (1, 2)
    pseudo = V6.src + V6.dst + bytes([0, 0, 0, 13, 0, 0, 0, 17])
    assert checksum(pseudo + packet[40:]) == 0
    assert packet[48:] == b"12345"


def test_grh() -> None:
    grh = synthesize_grh(V4, 124, 0x6B, 7)
    assert len(grh) == 40
    assert grh[:20] == bytes(20)
    ip = IPv4.parse(grh, 20)
    assert (ip.total_length, ip.tos, ip.ttl) == (20 + 8 + 124, 0x6B, 7)
    assert checksum(grh[20:]) == 0
    assert synthesize_grh(V6, 124, 0x6B, 7, 0x12345)[:8] == bytes.fromhex("66b12345 0084 11 07")
