"""Ethernet header and VLAN tag, for links and captures that carry whole frames."""

from __future__ import annotations

from rnic.spec.layout import Layout, bits, half, wide
from rnic.wire.header import Header

ETHERNET_BYTES = 14
VLAN_BYTES = 4

TYPE_IPV4 = 0x0800
TYPE_ARP = 0x0806
TYPE_VLAN = 0x8100
TYPE_VLAN_SERVICE = 0x88A8
TYPE_VLAN_OLD = 0x9100
TYPE_IPV6 = 0x86DD
TYPE_ROCE_V1 = 0x8915
TYPE_LLDP = 0x88CC
TYPE_PAUSE = 0x8808

ETHERTYPE_NAMES = {
    TYPE_IPV4: "IPv4",
    TYPE_ARP: "ARP",
    TYPE_VLAN: "VLAN",
    TYPE_VLAN_SERVICE: "VLAN",
    TYPE_VLAN_OLD: "VLAN",
    TYPE_IPV6: "IPv6",
    TYPE_ROCE_V1: "RoCEv1",
    TYPE_LLDP: "LLDP",
    TYPE_PAUSE: "Ethernet flow control",
}

ETHERNET = Layout(
    "Ethernet header",
    ETHERNET_BYTES,
    "big",
    "IEEE 802.3, 3.2",
    (
        wide("dst_mac", 0, "destination address", 6),
        wide("src_mac", 6, "source address", 6),
        half("ethertype", 12, "what follows"),
    ),
)
VLAN_TAG = Layout(
    "VLAN tag",
    VLAN_BYTES,
    "big",
    "IEEE 802.1Q, 9.6",
    (
        bits("pcp", 0, 31, 29, "priority code point"),
        bits("dei", 0, 28, 28, "drop eligible"),
        bits("vid", 0, 27, 16, "VLAN identifier"),
        bits("inner_type", 0, 15, 0, "what follows"),
    ),
)


class Ethernet(Header):
    """Ethernet II header, 14 bytes; addresses are integers of 48 bits."""

    __slots__ = ("dst_mac", "src_mac", "ethertype")

    layout = ETHERNET
    dst_mac: int
    src_mac: int
    ethertype: int


class VlanTag(Header):
    """VLAN tag, 4 bytes, between an Ethernet header of type 8100h or 88A8h and its payload."""

    __slots__ = ("pcp", "dei", "vid", "inner_type")

    layout = VLAN_TAG
    pcp: int
    dei: int
    vid: int
    inner_type: int
