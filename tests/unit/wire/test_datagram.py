"""Finding the UDP datagram in an IP packet."""

from __future__ import annotations

import pytest

from rnic.spec.drops import DropReason
from rnic.wire.datagram import Datagram, parse_ip
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet

V4 = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152, tclass=2, hop_limit=63)
V6 = Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 50_000, tclass=0x6A, hop_limit=1, flow_label=0x12345)


def patched(packet: bytes, at: int, value: int) -> memoryview:
    out = bytearray(packet)
    out[at] = value
    return memoryview(out)


@pytest.mark.parametrize("flow", [V4, V6], ids=["v4", "v6"])
def test_round_trip(flow: Flow) -> None:
    found = parse_ip(memoryview(ip_packet(flow, b"payload", 0x1234) + b"padding"))
    assert isinstance(found, Datagram)
    assert bytes(found.payload) == b"payload"
    assert (found.ident, found.frag) == ((0x1234, 0x4000) if flow is V4 else (0, 0))
    got = found.flow()
    for name in ("src", "dst", "sport", "dport", "tclass", "hop_limit", "flow_label"):
        assert getattr(got, name) == getattr(flow, name), name


def test_other_ports() -> None:
    packet = memoryview(ip_packet(Flow(V4.src, V4.dst, 1, 5000), b"x"))
    assert parse_ip(packet) is DropReason.NOT_ROCE
    assert isinstance(parse_ip(packet, 5000), Datagram)
    assert isinstance(parse_ip(packet, None), Datagram)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, 0x46, DropReason.BAD_IP),  # options
        (0, 0x55, DropReason.BAD_IP),  # version 5
        (3, 200, DropReason.BAD_IP),  # longer than what is there
        (3, 35, DropReason.BAD_IP),  # shorter than the UDP length says
        (6, 0x20, DropReason.BAD_IP),  # more fragments
        (7, 1, DropReason.BAD_IP),  # a later fragment
        (9, 6, DropReason.NOT_ROCE),  # TCP
        (25, 4, DropReason.BAD_IP),  # UDP length below 8
        (25, 99, DropReason.BAD_IP),
    ],
)
def test_bad_ipv4(at: int, value: int, reason: DropReason) -> None:
    assert parse_ip(patched(ip_packet(V4, b"12345678"), at, value)) is reason


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [(5, 200, DropReason.BAD_IP), (6, 58, DropReason.NOT_ROCE), (45, 7, DropReason.BAD_IP)],
)
def test_bad_ipv6(at: int, value: int, reason: DropReason) -> None:
    assert parse_ip(patched(ip_packet(V6, b"12345678"), at, value)) is reason


def test_too_short() -> None:
    for flow in (V4, V6):
        packet = ip_packet(flow, b"12345678")
        for size in range(len(packet)):
            assert parse_ip(memoryview(packet)[:size]) is DropReason.BAD_IP
