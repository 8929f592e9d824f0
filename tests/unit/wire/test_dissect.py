"""Taking captured frames apart."""

from __future__ import annotations

import struct

import pytest

from rnic.wire import dissect as d
from rnic.wire.dissect import dissect
from rnic.wire.ethernet import Ethernet, VlanTag
from rnic.wire.flow import Flow
from rnic.wire.ip import IPv4, IPv6, ip_packet
from rnic.wire.packet import build, seal

V4 = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152)
V6 = Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 50_000)
PAYLOAD = {flow: seal(build(0x04, dqpn=1, psn=2, payload=b"abcd"), flow, 9) for flow in (V4, V6)}
IP = {flow: ip_packet(flow, payload, 9) for flow, payload in PAYLOAD.items()}


def ethernet(data: bytes, ethertype: int = 0x0800) -> bytes:
    return Ethernet(dst_mac=1, src_mac=2, ethertype=ethertype).pack() + data


def names(frame: d.Frame) -> list[str]:
    return [type(header).__name__ for header in frame.headers]


@pytest.mark.parametrize(
    ("data", "linktype", "above"),
    [
        (ethernet(IP[V4]) + bytes(10), d.LINKTYPE_ETHERNET, ["Ethernet", "IPv4", "Udp"]),
        (ethernet(IP[V6], 0x86DD), d.LINKTYPE_ETHERNET, ["Ethernet", "IPv6", "Udp"]),
        (
            ethernet(VlanTag(vid=5, inner_type=0x0800).pack() + IP[V4], 0x8100),
            d.LINKTYPE_ETHERNET,
            ["Ethernet", "VlanTag", "IPv4", "Udp"],
        ),
        (
            ethernet(VlanTag(inner_type=0x8100).pack() + VlanTag(inner_type=0x86DD).pack() + IP[V6], 0x88A8),
            d.LINKTYPE_ETHERNET,
            ["Ethernet", "VlanTag", "VlanTag", "IPv6", "Udp"],
        ),
        (IP[V4], d.LINKTYPE_RAW, ["IPv4", "Udp"]),
        (IP[V6], d.LINKTYPE_IPV6, ["IPv6", "Udp"]),
        (bytes(14) + b"\x08\x00" + IP[V4], d.LINKTYPE_LINUX_SLL, ["IPv4", "Udp"]),
        (b"\x86\xdd" + bytes(18) + IP[V6], d.LINKTYPE_LINUX_SLL2, ["IPv6", "Udp"]),
    ],
)
def test_roce(data: bytes, linktype: int, above: list[str]) -> None:
    frame = dissect(memoryview(data), linktype)
    assert (frame.kind, frame.complete, frame.icrc_ok) == ("RoCEv2", True, True)
    assert names(frame) == above
    assert frame.payload in PAYLOAD.values()
    if "IPv6" in above:
        assert (frame.ident, frame.frag) == (0, 0)


@pytest.mark.parametrize("words", [0, 2])
def test_behind_an_ipv6_extension(words: int) -> None:
    extension = bytes((17, words)) + bytes(6 + 8 * words)
    data = bytearray(IP[V6][:40] + extension + IP[V6][40:])
    data[4:6] = (len(data) - 40).to_bytes(2, "big")
    data[6] = 0  # hop-by-hop options
    frame = dissect(memoryview(data), d.LINKTYPE_IPV6)
    assert (frame.kind, names(frame)) == ("UDP behind IP options", ["IPv6", "Udp"])
    assert frame.headers[1].dport == 4791  # type: ignore[attr-defined]


def test_wrong_icrc() -> None:
    data = bytearray(IP[V4])
    data[-1] ^= 1
    assert dissect(memoryview(data), d.LINKTYPE_RAW).icrc_ok is False


def test_cut_short() -> None:
    for size in range(28, len(IP[V4])):
        frame = dissect(memoryview(IP[V4])[:size], d.LINKTYPE_RAW)
        assert (frame.kind, frame.complete, frame.icrc_ok) == ("RoCEv2", False, None)
        assert frame.flow is not None  # its headers are there
        assert frame.payload == PAYLOAD[V4][: size - 28]
    for size in range(28):
        assert dissect(memoryview(IP[V4])[:size], d.LINKTYPE_RAW).kind == "incomplete"


def test_other_port() -> None:
    data = memoryview(ip_packet(Flow(V4.src, V4.dst, 1, 5000), seal(build(0x04, dqpn=1, psn=2), V4)))
    assert dissect(data, d.LINKTYPE_RAW).kind == "UDP"
    assert dissect(data, d.LINKTYPE_RAW, port=5000).kind == "RoCEv2"


def v4(data: bytes = bytes(20), **values: int) -> bytes:
    return IPv4(**{"total_length": 20 + len(data), **values}).pack() + data


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "incomplete"),
        (ethernet(bytes(40), 0x8915), "RoCEv1 without a BTH"),
        (ethernet(bytes(28), 0x0806), "ARP"),
        (ethernet(bytes(28), 0x88CC), "LLDP"),
        (ethernet(bytes(28), 0x1234), "EtherType 0x1234"),
        (ethernet(bytes(28), 40), "IEEE 802.3"),
        (ethernet(b"\x00", 0x8100), "VLAN"),
        (ethernet(b""), "incomplete"),
        (ethernet(b"\x55" * 40), "malformed"),
        (ethernet(v4(protocol=6)), "TCP"),
        (ethernet(v4(protocol=1)), "ICMP"),
        (ethernet(v4(protocol=132)), "IP protocol 132"),
        (ethernet(v4(protocol=17, flags_fragment=0x2000)), "IPv4 fragment"),
        (ethernet(v4(protocol=17, ihl=4)), "malformed"),
        (ethernet(v4(b"1234", protocol=17)), "incomplete"),
        (ethernet(v4(bytes(4) + struct.pack(">HHHH", 1, 4791, 24, 0) + bytes(16), protocol=17, ihl=6)),
         "UDP behind IP options"),
        (ethernet(v4(struct.pack(">HHHH", 1, 4791, 9, 0) + bytes(1), protocol=17)), "malformed"),
        (ethernet(v4(struct.pack(">HHHH", 1, 4791, 99, 0) + bytes(16), protocol=17)), "malformed"),
        (ethernet(IPv6(next_header=58, payload_length=4).pack() + bytes(4), 0x86DD), "ICMPv6"),
        (ethernet(IPv6(payload_length=8).pack() + b"\x3a" + bytes(7), 0x86DD), "ICMPv6"),
        (ethernet(IPv6(payload_length=8).pack() + b"\x3a", 0x86DD), "IP protocol 0"),
        (ethernet(IPv6().pack()[:39], 0x86DD), "incomplete"),
    ],
)  # fmt: skip
def test_others(data: bytes, kind: str) -> None:
    frame = dissect(memoryview(data))
    assert frame.kind == kind
    assert frame.icrc_ok is None
    assert (frame.ident, frame.frag, bytes(frame.payload), frame.complete) == (0, 0, b"", False)


def test_unknown_link_type() -> None:
    assert dissect(memoryview(bytes(60)), 198).kind == "link type 198"
