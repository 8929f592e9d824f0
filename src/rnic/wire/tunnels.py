"""Encapsulation headers of port mirrors and overlays: GRE, ERSPAN, VXLAN, Geneve, MPLS.

Each function parses one header and returns the EtherType and the bytes after it, or ``None`` if the bytes are not that
header.
"""

from __future__ import annotations

from rnic.spec.layout import Layout, bits, half, octet
from rnic.wire.ethernet import TYPE_IPV4, TYPE_IPV6, TYPE_ROCE_V1, TYPE_VLAN, TYPE_VLAN_SERVICE
from rnic.wire.header import Header

PROTO_IPV4, PROTO_IPV6, PROTO_GRE, PROTO_MPLS = 4, 41, 47, 137
"""IP protocol numbers of tunnels directly over IP."""
VXLAN_PORT, VXLAN_GPE_PORT, GENEVE_PORT, MPLS_PORT = 4789, 4790, 6081, 6635
VXLAN_LINUX_PORT = 8472
"""Default UDP port of VXLAN in Linux, older than the IANA port; container networks use it."""
TYPE_ETHERNET = 0x6558
"""EtherType of an encapsulated Ethernet frame (Transparent Ethernet Bridging)."""
TYPE_MPLS, TYPE_MPLS_UPSTREAM = 0x8847, 0x8848
TYPE_ERSPAN, TYPE_ERSPAN3 = 0x88BE, 0x22EB
TUNNEL_NAMES = {
    TYPE_ETHERNET: "Ethernet in a tunnel",
    TYPE_MPLS: "MPLS",
    TYPE_MPLS_UPSTREAM: "MPLS",
    TYPE_ERSPAN: "ERSPAN",
    TYPE_ERSPAN3: "ERSPAN III",
}
Found = tuple[int, memoryview, Header] | None

GRE = Layout(
    "GRE header",
    4,
    "big",
    "RFC 2784, RFC 2890",
    (
        bits("has_checksum", 0, 31, 31, "4 bytes of checksum follow"),
        bits("has_routing", 0, 30, 30, "obsolete"),
        bits("has_key", 0, 29, 29, "4 bytes of key follow"),
        bits("has_sequence", 0, 28, 28, "4 bytes of sequence number follow"),
        bits("gre_reserved", 0, 27, 19, "0"),
        bits("gre_version", 0, 18, 16, "0"),
        bits("protocol_type", 0, 15, 0, "EtherType of the payload"),
    ),
)
ERSPAN = Layout(
    "ERSPAN header",
    4,
    "big",
    "draft-foschiano-erspan-03, 4",
    (
        bits("erspan_version", 0, 31, 28, "1 for type II, 2 for type III"),
        bits("vlan", 0, 27, 16, "VLAN of the mirrored port"),
        bits("cos", 0, 15, 13, "class of service"),
        bits("encapsulation", 0, 12, 11, "how the frame was tagged"),
        bits("truncated", 0, 10, 10, "the frame was cut"),
        bits("session", 0, 9, 0, "which mirror"),
    ),
)
VXLAN = Layout(
    "VXLAN header",
    8,
    "big",
    "RFC 7348, 5",
    (
        octet(
            "vxlan_flags",
            0,
            "08h: the identifier is valid; 04h: the next protocol is valid; 80h: the group policy is valid",
        ),
        half("vxlan_reserved", 1, "reserved"),
        octet("next_protocol", 3, "of the generic extension: 1 IPv4, 2 IPv6, 3 Ethernet, 5 MPLS"),
        bits("vni", 4, 31, 8, "network identifier"),
        bits("vxlan_reserved8", 4, 7, 0, "reserved"),
    ),
)
GENEVE = Layout(
    "Geneve header",
    8,
    "big",
    "RFC 8926, 3.4",
    (
        bits("geneve_version", 0, 31, 30, "0"),
        bits("options_length", 0, 29, 24, "options in units of 4 bytes"),
        bits("control", 0, 23, 23, "control packet"),
        bits("critical", 0, 22, 22, "critical options"),
        bits("geneve_reserved", 0, 21, 16, "reserved"),
        bits("protocol_type", 0, 15, 0, "EtherType of the payload"),
        bits("vni", 4, 31, 8, "network identifier"),
        bits("geneve_reserved8", 4, 7, 0, "reserved"),
    ),
)
MPLS = Layout(
    "MPLS label",
    4,
    "big",
    "RFC 3032, 2.1",
    (
        bits("label", 0, 31, 12, "label"),
        bits("traffic_class3", 0, 11, 9, "traffic class"),
        bits("bottom", 0, 8, 8, "the last label"),
        bits("label_ttl", 0, 7, 0, "time to live"),
    ),
)


class Gre(Header):
    """GRE header, 4 bytes, before its optional fields."""

    __slots__ = tuple(field.name for field in GRE.fields)

    layout = GRE
    has_checksum: int
    has_routing: int
    has_key: int
    has_sequence: int
    gre_version: int
    protocol_type: int


class Erspan(Header):
    """The first 4 bytes of an ERSPAN header, of type II or III."""

    __slots__ = tuple(field.name for field in ERSPAN.fields)

    layout = ERSPAN
    erspan_version: int
    session: int


class Vxlan(Header):
    """VXLAN header, 8 bytes."""

    __slots__ = tuple(field.name for field in VXLAN.fields)

    layout = VXLAN
    vxlan_flags: int
    next_protocol: int
    vni: int


class Geneve(Header):
    """Geneve header, 8 bytes, before its options."""

    __slots__ = tuple(field.name for field in GENEVE.fields)

    layout = GENEVE
    geneve_version: int
    options_length: int
    protocol_type: int
    vni: int


class MplsLabel(Header):
    """MPLS label, 4 bytes."""

    __slots__ = tuple(field.name for field in MPLS.fields)

    layout = MPLS
    label: int
    bottom: int


def gre(data: memoryview) -> Found:
    """Return the frame or packet in GRE version 0. ERSPAN without a sequence number is type I, which has no header."""
    if len(data) < GRE.size:
        return None
    header = Gre.parse(data)
    if header.gre_version or header.has_routing:
        return None
    inner = header.protocol_type
    if inner == TYPE_ERSPAN and not header.has_sequence:
        inner = TYPE_ETHERNET
    return inner, data[4 + 4 * (header.has_checksum + header.has_key + header.has_sequence) :], header


def erspan(data: memoryview) -> Found:
    """Return the mirrored frame after an ERSPAN header of type II or III."""
    if len(data) < 12:
        return None
    header = Erspan.parse(data)
    if header.erspan_version == 1:
        return TYPE_ETHERNET, data[8:], header
    if header.erspan_version == 2:
        # the last bit says that 8 bytes of platform-specific data follow
        return TYPE_ETHERNET, data[20 if data[11] & 1 else 12 :], header
    return None


_GPE_TYPES = {1: TYPE_IPV4, 2: TYPE_IPV6, 3: TYPE_ETHERNET, 5: TYPE_MPLS}


def vxlan(data: memoryview) -> Found:
    """Return the frame in VXLAN, or the payload that the generic protocol extension (GPE) names.

    The flags may indicate a group policy in the reserved bytes (draft-smith-vxlan-group-policy).
    """
    if len(data) < VXLAN.size:
        return None
    header = Vxlan.parse(data)
    if not header.vxlan_flags & 0x08 or header.vxlan_flags & 0x70:
        return None
    inner = _GPE_TYPES.get(header.next_protocol) if header.vxlan_flags & 0x04 else TYPE_ETHERNET
    return None if inner is None else (inner, data[8:], header)


def geneve(data: memoryview) -> Found:
    """Return the payload of Geneve, after its options."""
    if len(data) < GENEVE.size:
        return None
    header = Geneve.parse(data)
    if header.geneve_version:
        return None
    return header.protocol_type, data[8 + 4 * header.options_length :], header


_FRAME_TYPES = (TYPE_IPV4, TYPE_IPV6, TYPE_VLAN, TYPE_VLAN_SERVICE, TYPE_ROCE_V1)
"""EtherTypes by which a frame is told from a control word if its destination address begins like one."""


def mpls(data: memoryview) -> Found:
    """Return the payload after one label: another label, an IP packet, or a frame with an optional control word."""
    if len(data) <= MPLS.size:
        return None
    header = MplsLabel.parse(data)
    rest = data[4:]
    if not header.bottom:
        return TYPE_MPLS, rest, header
    kind = rest[0] >> 4
    if kind in (4, 6):
        return (TYPE_IPV4 if kind == 4 else TYPE_IPV6), rest, header
    if kind > 1 or int.from_bytes(rest[12:14], "big") in _FRAME_TYPES:
        return TYPE_ETHERNET, rest, header
    # RFC 4385: 0 begins a control word, 1 an associated channel
    return (TYPE_ETHERNET, rest[4:], header) if kind == 0 else None


IN_UDP = {
    VXLAN_PORT: vxlan,
    VXLAN_LINUX_PORT: vxlan,
    VXLAN_GPE_PORT: vxlan,
    GENEVE_PORT: geneve,
    MPLS_PORT: mpls,
}
"""Tunnels by UDP destination port."""
IN_IP = {PROTO_IPV4: TYPE_IPV4, PROTO_IPV6: TYPE_IPV6, PROTO_MPLS: TYPE_MPLS}
"""EtherType of the payload of an IP protocol."""
IN_ETHERTYPE = {
    TYPE_MPLS: mpls,
    TYPE_MPLS_UPSTREAM: mpls,
    TYPE_ERSPAN: erspan,
    TYPE_ERSPAN3: erspan,
}
