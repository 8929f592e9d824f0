"""Frames inside of other headers: what mirrors and overlays put in front of RoCE is followed to its BTH."""

from __future__ import annotations

import struct

import pytest

from rnic.wire import dissect as d
from rnic.wire.crc import crc32
from rnic.wire.ethernet import Ethernet, VlanTag
from rnic.wire.flow import Flow
from rnic.wire.infiniband import Grh, IbFlow, Lrh
from rnic.wire.ip import IPv4, IPv6, ip_packet
from rnic.wire.packet import build, seal

V4 = Flow(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 49_152)
V6 = Flow(bytes(15) + b"\x01", bytes(15) + b"\x02", 50_000)
PAYLOAD = {flow: seal(build(0x04, dqpn=1, psn=2, payload=b"abcd"), flow, 9) for flow in (V4, V6)}
IP4, IP6 = (ip_packet(flow, PAYLOAD[flow], 9) for flow in (V4, V6))


def ethernet(data: bytes, ethertype: int = 0x0800) -> bytes:
    return Ethernet(dst_mac=1, src_mac=2, ethertype=ethertype).pack() + data


def in_ip(protocol: int, data: bytes) -> bytes:
    return ethernet(IPv4(total_length=20 + len(data), protocol=protocol, ttl=9, src=1, dst=2).pack() + data)


def in_ip6(protocol: int, data: bytes) -> bytes:
    return ethernet(IPv6(payload_length=len(data), next_header=protocol, src=1, dst=2).pack() + data, 0x86DD)


def in_udp(port: int, data: bytes) -> bytes:
    return in_ip(17, struct.pack(">HHHH", 1234, port, 8 + len(data), 0) + data)


def label(number: int, bottom: int) -> bytes:
    return (number << 12 | bottom << 8 | 64).to_bytes(4, "big")


ERSPAN2 = struct.pack(">HHI", 0x1000 | 5, 0x0007, 0)
ERSPAN3 = struct.pack(">HHIHH", 0x2000 | 5, 0x0007, 1, 0, 0)
ERSPAN3_MORE = struct.pack(">HHIHH", 0x2000 | 5, 0x0007, 1, 0, 1) + bytes(8)
VXLAN = b"\x08\0\0\0" + b"\0\0\x2a\0"
INNER = ethernet(IP4)

CARRIED = {
    "GRE, IPv4": in_ip(47, b"\0\0\x08\0" + IP4),
    "GRE, IPv6": in_ip(47, b"\0\0\x86\xdd" + IP6),
    "GRE with key and sequence": in_ip(47, b"\x30\0\x08\0" + bytes(8) + IP4),
    "GRE with checksum": in_ip(47, b"\x80\0\x08\0" + bytes(4) + IP4),
    "GRE over IPv6": in_ip6(47, b"\0\0\x65\x58" + INNER),
    "NVGRE": in_ip(47, b"\x20\0\x65\x58" + bytes(4) + INNER),
    "ERSPAN I": in_ip(47, b"\0\0\x88\xbe" + INNER),
    "ERSPAN II": in_ip(47, b"\x10\0\x88\xbe" + bytes(4) + ERSPAN2 + INNER),
    "ERSPAN III": in_ip(47, b"\x10\0\x22\xeb" + bytes(4) + ERSPAN3 + INNER),
    "ERSPAN III with a platform's part": in_ip(47, b"\x10\0\x22\xeb" + bytes(4) + ERSPAN3_MORE + INNER),
    "VXLAN": in_udp(4789, VXLAN + INNER),
    "VXLAN at Linux's port": in_udp(8472, VXLAN + INNER),
    "VXLAN with a group policy": in_udp(4789, b"\x88\0\0\x10" + VXLAN[4:] + INNER),
    "VXLAN-GPE, IPv4": in_udp(4790, b"\x0c\0\0\1" + b"\0\0\x2a\0" + IP4),
    "VXLAN in VXLAN": in_udp(4789, VXLAN + in_udp(4789, VXLAN + INNER)),
    "Geneve": in_udp(6081, b"\0\0\x65\x58" + b"\0\0\x2a\0" + INNER),
    "Geneve with options": in_udp(6081, b"\x02\0\x86\xdd" + b"\0\0\x2a\0" + bytes(8) + IP6),
    "MPLS": ethernet(label(16, 0) + label(17, 1) + IP4, 0x8847),
    "MPLS, IPv6": ethernet(label(16, 1) + IP6, 0x8848),
    "MPLS pseudowire": ethernet(label(16, 1) + bytes(4) + INNER, 0x8847),
    "MPLS pseudowire without control word": ethernet(label(16, 1) + b"\xa2" + INNER[1:], 0x8847),
    "the same to an address that begins as one": ethernet(label(16, 1) + b"\x0c" + INNER[1:], 0x8847),
    "the same to one that begins as a channel": ethernet(label(16, 1) + b"\x1c" + INNER[1:], 0x8847),
    "MPLS in UDP": in_udp(6635, label(16, 1) + IP4),
    "IPv4 in IPv4": in_ip(4, IP4),
    "IPv6 in IPv4": in_ip(41, IP6),
    "IPv4 in IPv6": in_ip6(4, IP4),
    "QinQ of old": ethernet(VlanTag(inner_type=0x8100).pack() + VlanTag(inner_type=0x0800).pack() + IP4, 0x9100),
    "ERSPAN of QinQ": in_ip(
        47,
        b"\x10\0\x88\xbe" + bytes(4) + ERSPAN2
        + ethernet(VlanTag(inner_type=0x8100).pack() + VlanTag(inner_type=0x0800).pack() + IP4, 0x88A8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CARRIED)
def test_what_a_tunnel_carries_is_found(name: str) -> None:
    frame = d.dissect(memoryview(CARRIED[name]))
    assert (frame.kind, frame.complete, frame.icrc_ok) == ("RoCEv2", True, True)
    assert bytes(frame.payload) in PAYLOAD.values()


@pytest.mark.parametrize("name", CARRIED)
def test_a_tunnel_that_is_cut_anywhere_is_no_error(name: str) -> None:
    for size in range(len(CARRIED[name])):
        frame = d.dissect(memoryview(CARRIED[name])[:size])
        assert frame.icrc_ok is None or size >= len(CARRIED[name])
        assert frame.kind != d.MALFORMED


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (in_ip(47, b"\x40\0\x08\0" + IP4), "GRE"),
        (in_ip(47, b"\0\1\x88\x0b" + IP4), "GRE"),
        (in_ip(47, b"\0\0"), "GRE"),
        (in_ip(47, b"\x10\0\x88\xbe" + bytes(4) + b"\x70" + bytes(30)), "ERSPAN"),
        (in_udp(4789, bytes(8) + INNER), "UDP"),
        (in_udp(4790, b"\x0c\0\0\x09" + bytes(4) + IP4), "UDP"),
        (in_udp(6081, b"\xc0\0\x65\x58" + bytes(4) + INNER), "UDP"),
        (ethernet(label(16, 1) + b"\x10" + bytes(30), 0x8847), "MPLS"),
        (ethernet(label(16, 1) + b"\x90" + bytes(30), 0x8847), "IEEE 802.3"),
        (ethernet(label(16, 0) * 40, 0x8847), "malformed"),
        (in_udp(4789, VXLAN + ethernet(bytes(28), 0x0806)), "ARP"),
        # what goes to the port of a tunnel by chance is none
        (in_udp(4789, VXLAN + ethernet(b"\x55" * 40)), "UDP"),
        (in_udp(4790, b"\x0c\0\0\1" + bytes(4) + b"\x44" + IP4[1:]), "UDP"),
        (in_udp(6081, b"\0\0\x86\xdd" + bytes(4) + b"\x70" + bytes(60)), "UDP"),
        (in_udp(6635, label(16, 0) * 40), "UDP"),
        # and what goes to that of RoCEv2 in it is a packet with wrong lengths
        (in_udp(4789, VXLAN + ethernet(IP4[:24] + b"\0\x99" + IP4[26:])), "malformed"),
    ],
)
def test_what_is_no_tunnel(data: bytes, kind: str) -> None:
    assert d.dissect(memoryview(data)).kind == kind


# ---------------------------------------------------------------------------------------- other link types


@pytest.mark.parametrize(
    ("linktype", "data"),
    [
        (d.LINKTYPE_NULL, struct.pack("<I", 2) + IP4),
        (d.LINKTYPE_NULL, struct.pack(">I", 2) + IP4),
        (d.LINKTYPE_NULL, struct.pack("<I", 24) + IP6),
        (d.LINKTYPE_NULL, struct.pack("<I", 28) + IP6),
        (d.LINKTYPE_LOOP, struct.pack(">I", 30) + IP6),
        (d.LINKTYPE_LINUX_SLL, bytes(14) + b"\x81\0" + VlanTag(inner_type=0x0800).pack() + IP4),
        (d.LINKTYPE_LINUX_SLL2, b"\x08\0" + bytes(18) + IP4),
        (d.LINKTYPE_ERF, bytes(8) + b"\x02" + bytes(7) + bytes(2) + INNER),
        (d.LINKTYPE_ERF, bytes(8) + b"\x82" + bytes(7) + b"\x80" + bytes(7) + bytes(8) + bytes(2) + INNER),
        (d.LINKTYPE_ERF, bytes(8) + b"\x16" + bytes(7) + IP4),
        (d.LINKTYPE_ERF, bytes(8) + b"\x17" + bytes(7) + IP6),
    ],
)
def test_link_types(linktype: int, data: bytes) -> None:
    frame = d.dissect(memoryview(data), linktype)
    assert (frame.kind, frame.complete, frame.icrc_ok) == ("RoCEv2", True, True)
    for size in range(len(data)):
        assert d.dissect(memoryview(data)[:size], linktype).icrc_ok is None


def test_link_types_that_hold_something_else() -> None:
    assert d.dissect(memoryview(bytes(30)), d.LINKTYPE_NULL).kind == "address family 0"
    assert d.dissect(memoryview(bytes(8) + b"\x01" + bytes(30)), d.LINKTYPE_ERF).kind == "ERF record of type 1"


# ------------------------------------------------------------------------------- RoCEv1, native InfiniBand

GIDS = bytes(15) + b"\x07", bytes(15) + b"\x08"
BODY = bytes(build(0x04, dqpn=1, psn=2, payload=b"abcd"))


def sealed(flow: IbFlow) -> bytes:
    masked = BODY[:4] + b"\xff" + BODY[5:]
    return BODY + struct.pack("<I", crc32(masked, flow.seed(len(BODY) + 4)))


GLOBAL = sealed(IbFlow(*GIDS))
GRH = Grh(
    version=6, traffic_class=3, flow_label=5, payload_length=len(GLOBAL), next_header=0x1B, hop_limit=9,
    src=int.from_bytes(GIDS[0], "big"), dst=int.from_bytes(GIDS[1], "big"),
).pack()  # fmt: skip


def lrh(lnh: int, size: int) -> bytes:
    return Lrh(vl=3, sl=2, lnh=lnh, dlid=5, packet_length=(8 + size) // 4, slid=4).pack()


LRH = lrh(2, len(GLOBAL))
LOCAL = sealed(IbFlow(b"\0\4", b"\0\5", LRH[:4]))
NATIVE = {
    "RoCEv1": (ethernet(GRH + GLOBAL, 0x8915), d.LINKTYPE_ETHERNET),
    "RoCEv1, VLAN": (ethernet(VlanTag(inner_type=0x8915).pack() + GRH + GLOBAL + bytes(6), 0x8100), 1),
    "InfiniBand": (LRH + LOCAL + b"vc", d.LINKTYPE_INFINIBAND),
    "InfiniBand, GRH": (lrh(3, 40 + len(GLOBAL)) + GRH + GLOBAL + b"vc", d.LINKTYPE_INFINIBAND),
    "InfiniBand, ERF": (bytes(8) + b"\x15" + bytes(7) + LRH + LOCAL, d.LINKTYPE_ERF),
}


@pytest.mark.parametrize("name", NATIVE)
def test_without_udp(name: str) -> None:
    data, linktype = NATIVE[name]
    frame = d.dissect(memoryview(data), linktype)
    assert (frame.kind, frame.complete, frame.icrc_ok) == (name.partition(",")[0], True, True)
    assert bytes(frame.payload)[:-4] == BODY
    for at in range(len(data)):
        assert d.dissect(memoryview(data)[:at], linktype).icrc_ok is not True or at >= len(data) - 6


def test_what_the_icrc_does_not_cover() -> None:
    """Virtual lane, traffic class, flow label and hop limit may change on the way; service level and LIDs may not."""
    data = bytearray(NATIVE["InfiniBand"][0])
    data[0] ^= 0xF0
    assert d.dissect(memoryview(data), d.LINKTYPE_INFINIBAND).icrc_ok is True
    data[1] ^= 0x10
    assert d.dissect(memoryview(data), d.LINKTYPE_INFINIBAND).icrc_ok is False
    data = bytearray(NATIVE["InfiniBand, GRH"][0])
    data[1] ^= 0x10  # a router may change all of an LRH
    data[8 + 1 : 8 + 4] = b"\x5f\xff\xff"
    data[8 + 7] ^= 0xFF
    assert d.dissect(memoryview(data), d.LINKTYPE_INFINIBAND).icrc_ok is True
    data[8 + 8] ^= 1
    assert d.dissect(memoryview(data), d.LINKTYPE_INFINIBAND).icrc_ok is False


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (lrh(0, 40) + bytes(40), "raw InfiniBand"),
        (lrh(2, 8) + bytes(40), "malformed"),
        (lrh(3, 40) + GRH + GLOBAL, "malformed"),
        (lrh(3, 40)[:7], "incomplete"),
        (lrh(3, 80) + bytes(80), "InfiniBand without a BTH"),
    ],
)
def test_other_infiniband(data: bytes, kind: str) -> None:
    frame = d.dissect(memoryview(data), d.LINKTYPE_INFINIBAND)
    assert (frame.kind, frame.icrc_ok, bytes(frame.payload)) == (kind, None, b"")
