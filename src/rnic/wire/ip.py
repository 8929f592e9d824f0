"""IPv4, IPv6 and UDP headers: layouts, and whole packets made of them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rnic.spec.layout import Layout, bits, half, octet, wide, word

if TYPE_CHECKING:
    from rnic.wire.flow import Flow

IPV4_BYTES = 20
IPV6_BYTES = 40
UDP_BYTES = 8
PROTO_UDP = 17

IPV4_HEADER = Layout(
    "IPv4 header",
    IPV4_BYTES,
    "big",
    "RFC 791",
    (
        bits("version", 0, 31, 28, "4"),
        bits("ihl", 0, 27, 24, "header length in 32-bit words; 5 on RoCE"),
        bits("tos", 0, 23, 16, "DSCP and ECN"),
        bits("total_length", 0, 15, 0, "bytes with this header"),
        half("identification", 4, "identification; covered by the ICRC"),
        half("flags_fragment", 6, "flags and fragment offset; 4000h is DF"),
        octet("ttl", 8, "time to live"),
        octet("protocol", 9, "17 for UDP"),
        half("checksum", 10, "header checksum"),
        word("src", 12, "source address"),
        word("dst", 16, "destination address"),
    ),
)
IPV6_HEADER = Layout(
    "IPv6 header",
    IPV6_BYTES,
    "big",
    "RFC 8200",
    (
        bits("version", 0, 31, 28, "6"),
        bits("traffic_class", 0, 27, 20, "DSCP and ECN"),
        bits("flow_label", 0, 19, 0, "flow label"),
        half("payload_length", 4, "bytes after this header"),
        octet("next_header", 6, "17 for UDP"),
        octet("hop_limit", 7, "hop limit"),
        wide("src", 8, "source address", 16),
        wide("dst", 24, "destination address", 16),
    ),
)
UDP_HEADER = Layout(
    "UDP header",
    UDP_BYTES,
    "big",
    "RFC 768",
    (
        half("sport", 0, "source port: entropy for load balancing"),
        half("dport", 2, "destination port, 4791 for RoCEv2"),
        half("length", 4, "bytes with this header"),
        half("checksum", 6, "checksum; 0 is none"),
    ),
)

_IPV4 = struct.Struct(">BBHHHBBH4s4s")
_IPV6 = struct.Struct(">IHBB16s16s")
_UDP = struct.Struct(">HHHH")


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Internet checksum (RFC 1071) of ``data``."""
    if len(data) % 2:
        data = bytes(data) + b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def ip_header(flow: Flow, udp_payload: int, ident: int = 0, frag: int = 0x4000) -> bytes:
    """IP header of a packet on ``flow`` with ``udp_payload`` bytes after its UDP header."""
    if len(flow.src) == 4:
        fields = (0x45, flow.tclass, udp_payload + 28, ident, frag, flow.hop_limit, PROTO_UDP)
        plain = _IPV4.pack(*fields, 0, flow.src, flow.dst)
        return _IPV4.pack(*fields, checksum(plain), flow.src, flow.dst)
    first = 6 << 28 | flow.tclass << 20 | flow.flow_label
    return _IPV6.pack(first, udp_payload + UDP_BYTES, PROTO_UDP, flow.hop_limit, flow.src, flow.dst)


def ip_packet(flow: Flow, payload: bytes | bytearray | memoryview, ident: int = 0, frag: int = 0x4000) -> bytes:
    """A whole IP packet around a UDP payload. IPv4 has no UDP checksum, IPv6 the right one."""
    header = ip_header(flow, len(payload), ident, frag)
    length = len(payload) + UDP_BYTES
    udp = _UDP.pack(flow.sport, flow.dport, length, 0)
    if len(flow.src) == 16:
        pseudo = flow.src + flow.dst + struct.pack(">II", length, PROTO_UDP)
        value = checksum(pseudo + udp + bytes(payload)) or 0xFFFF
        udp = _UDP.pack(flow.sport, flow.dport, length, value)
    return header + udp + bytes(payload)


def synthesize_grh(flow: Flow, payload: int) -> bytes:
    """The 40 bytes in front of a UD receive: an IPv6 header, or 20 unused bytes and an IPv4 header (A17.4.5.1).

    ``payload`` is the message's length in bytes; the header's own length field counts BTH, DETH and ICRC too.
    """
    header = ip_header(flow, payload + 12 + 8 + 4)
    return bytes(IPV6_BYTES - len(header)) + header
