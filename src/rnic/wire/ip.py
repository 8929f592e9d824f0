"""IPv4, IPv6 and UDP headers: layouts, codecs, and whole packets."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar

from rnic.spec.layout import Layout, bits, half, octet, wide, word
from rnic.wire.header import Buffer, Header

if TYPE_CHECKING:
    from rnic.wire.flow import Flow

IPV4_BYTES = 20
IPV6_BYTES = 40
UDP_BYTES = 8
PROTO_TCP = 6
PROTO_UDP = 17

PROTOCOL_NAMES = {1: "ICMP", 2: "IGMP", PROTO_TCP: "TCP", PROTO_UDP: "UDP", 58: "ICMPv6"}

DONT_FRAGMENT = 0x4000
FRAGMENT_MASK = 0x3FFF
"""More-fragments flag and fragment offset: not 0 in a fragment."""

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
        octet("next_header", 6, "17 for UDP; 1Bh for a BTH"),
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
        half("sport", 0, "source port: entropy for ECMP load balancing"),
        half("dport", 2, "destination port, 4791 for RoCEv2"),
        half("length", 4, "bytes with this header"),
        half("checksum", 6, "checksum; 0 is none"),
    ),
)


class IPv4(Header):
    """IPv4 header without options, 20 bytes."""

    __slots__ = tuple(field.name for field in IPV4_HEADER.fields)

    layout = IPV4_HEADER
    CONSTANTS: ClassVar[dict[str, int]] = {"version": 4, "ihl": 5}
    version: int
    ihl: int
    tos: int
    total_length: int
    identification: int
    flags_fragment: int
    ttl: int
    protocol: int
    checksum: int
    src: int
    dst: int


class IPv6(Header):
    """IPv6 header, 40 bytes."""

    __slots__ = tuple(field.name for field in IPV6_HEADER.fields)

    layout = IPV6_HEADER
    CONSTANTS: ClassVar[dict[str, int]] = {"version": 6}
    version: int
    traffic_class: int
    flow_label: int
    payload_length: int
    next_header: int
    hop_limit: int
    src: int
    dst: int


class Udp(Header):
    """UDP header, 8 bytes."""

    __slots__ = ("sport", "dport", "length", "checksum")

    layout = UDP_HEADER
    sport: int
    dport: int
    length: int
    checksum: int


_IPV4 = struct.Struct(">BBHHHBBH4s4s")
_IPV6 = struct.Struct(">IHBB16s16s")
_UDP = struct.Struct(">HHHH")
_IPV4_UDP = struct.Struct(">BBHHHBBH4s4sHHHH")


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return the Internet checksum (RFC 1071) of ``data``."""
    if len(data) % 2:
        data = bytes(data) + b"\0"
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def ip_header(flow: Flow, udp_payload: int, ident: int = 0, frag: int = DONT_FRAGMENT) -> bytes:
    """Return the IP header of a packet on ``flow`` with ``udp_payload`` bytes after its UDP header."""
    return _header(flow, udp_payload, ident, frag, flow.tclass, flow.hop_limit, flow.flow_label)


def _header(flow: Flow, udp_payload: int, ident: int, frag: int, tclass: int, hop_limit: int, label: int) -> bytes:
    if len(flow.src) == 4:
        fields = (0x45, tclass, udp_payload + 28, ident, frag, hop_limit, PROTO_UDP)
        plain = _IPV4.pack(*fields, 0, flow.src, flow.dst)
        return _IPV4.pack(*fields, checksum(plain), flow.src, flow.dst)
    first = 6 << 28 | tclass << 20 | label
    return _IPV6.pack(first, udp_payload + UDP_BYTES, PROTO_UDP, hop_limit, flow.src, flow.dst)


def ip_packet(
    flow: Flow,
    payload: Buffer,
    ident: int = 0,
    frag: int = DONT_FRAGMENT,
    arrived: tuple[int, int, int] | None = None,
) -> bytes:
    """Return a whole IP packet around a UDP payload, with a UDP checksum for IPv6 and none for IPv4.

    Args:
        flow: addresses, ports and other header fields.
        payload: from the BTH to the ICRC.
        ident: IPv4 identification.
        frag: IPv4 flags and fragment offset.
        arrived: traffic class, hop limit and flow label of a received packet, if they may differ from the
            flow's.
    """
    changeable = arrived or (flow.tclass, flow.hop_limit, flow.flow_label)
    header = _header(flow, len(payload), ident, frag, *changeable)
    length = len(payload) + UDP_BYTES
    udp = _UDP.pack(flow.sport, flow.dport, length, 0)
    if len(flow.src) == 16:
        pseudo = flow.src + flow.dst + struct.pack(">II", length, PROTO_UDP)
        value = checksum(pseudo + udp + bytes(payload)) or 0xFFFF
        udp = _UDP.pack(flow.sport, flow.dport, length, value)
    return header + udp + bytes(payload)


class IPv4Headers:
    """IPv4 and UDP headers of packets that differ only in length and IP ID; ten times as fast as :func:`ip_packet`.

    Args:
        flow: addresses and ports.
        frag: flags and fragment offset.
        tclass: type of service.
        hop_limit: time to live.
    """

    __slots__ = ("_ends", "_frag", "_hop_limit", "_ports", "_sum", "_tclass")

    def __init__(self, flow: Flow, frag: int, tclass: int, hop_limit: int) -> None:
        self._ends = flow.src, flow.dst
        self._ports = flow.sport, flow.dport
        self._frag, self._tclass, self._hop_limit = frag, tclass, hop_limit
        words = struct.unpack(">4H", flow.src + flow.dst)
        self._sum = (0x4500 | tclass) + frag + (hop_limit << 8 | PROTO_UDP) + sum(words)

    def make(self, udp_payload: int, ident: int) -> bytes:
        """Return both headers of a packet with this many bytes after them."""
        length = udp_payload + IPV4_BYTES + UDP_BYTES
        total = self._sum + length + ident
        total = (total & 0xFFFF) + (total >> 16)
        check = ~(total + (total >> 16)) & 0xFFFF
        fields = 0x45, self._tclass, length, ident, self._frag, self._hop_limit, PROTO_UDP, check
        return _IPV4_UDP.pack(*fields, *self._ends, *self._ports, udp_payload + UDP_BYTES, 0)


def synthesize_grh(flow: Flow, udp_payload: int, tclass: int, hop_limit: int, flow_label: int = 0) -> bytes:
    """Return the 40 bytes before the payload of a UD receive: an IPv6 header, or 20 unused bytes and an IPv4 header
    (A17.4.5.1).

    Args:
        flow: addresses.
        udp_payload: bytes from the BTH to the ICRC, both included.
        tclass: type of service or traffic class as received.
        hop_limit: time to live or hop limit as received.
        flow_label: IPv6 flow label as received.

    The IP ID, which a UDP socket does not report, is 0.
    """
    header = _header(flow, udp_payload, 0, DONT_FRAGMENT, tclass, hop_limit, flow_label)
    return bytes(IPV6_BYTES - len(header)) + header
