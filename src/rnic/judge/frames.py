"""Find the start and the path of a frame's packet, and check its checksums."""

from __future__ import annotations

from rnic.judge.stream import Stream
from rnic.wire.dissect import (
    LINKTYPE_ETHERNET,
    LINKTYPE_LINUX_SLL,
    LINKTYPE_LINUX_SLL2,
    LINKTYPE_RAW,
    Frame,
)
from rnic.wire.flow import Flow
from rnic.wire.header import Buffer
from rnic.wire.infiniband import IbFlow
from rnic.wire.ip import IPv4, IPv6, Udp

IPV4, VLAN = b"\x08\0", b"\x81\0"
ETHERNET = bytes(12) + IPV4
"""Placeholder for the link header before an IPv4 packet."""
ONES = 0xFFFF
"""A correct sum that includes its checksum is a multiple of this (RFC 1071)."""
Path = tuple[Flow | IbFlow, Stream, int, bool]
"""Flow that the ICRC covers ahead of the BTH, stream of the packet, sum of the words of both addresses, and whether the
capture tool rewrote the source port."""


def ipv4_at(linktype: int, data: bytes) -> int:
    """Return the offset of an IPv4 packet after the most common link headers; -1 for others."""
    if linktype == LINKTYPE_ETHERNET:
        return 18 if data[16:18] == IPV4 else -1
    if linktype == LINKTYPE_RAW:
        return 0 if data[:1] == b"\x45" else -1
    if linktype == LINKTYPE_LINUX_SLL:
        return 16 if data[14:16] == IPV4 else -1
    return 20 if linktype == LINKTYPE_LINUX_SLL2 and data[:2] == IPV4 else -1


def path_key(src: bytes, dst: bytes, sport: int, payload: Buffer) -> bytes:
    """Return the key of a path: addresses, source port as captured, and destination queue pair of the BTH."""
    return src + dst + sport.to_bytes(2, "big") + payload[5:8]


def sum_is_wrong(pseudo: int, ports: int, udp_sum: int, payload: bytes) -> bool:
    """Return whether a UDP checksum is wrong; a pseudo-header sum, which a NIC completes (offload), is not."""
    length = len(payload) + 8
    if pseudo < 0 or udp_sum % ONES == pseudo:
        return False
    return bool((pseudo + ports + length + udp_sum + int.from_bytes(payload, "big")) % ONES)


def outside(frame: Frame) -> tuple[bytes, bytes, Udp, int, int]:
    """Return addresses, UDP header, ident and fragment field of a frame, whole or cut."""
    network, udp = frame.headers[-2:]
    assert isinstance(udp, Udp)
    if isinstance(network, IPv4):
        source, destination = network.src.to_bytes(4, "big"), network.dst.to_bytes(4, "big")
        return source, destination, udp, network.identification, network.flags_fragment
    assert isinstance(network, IPv6)
    return network.src.to_bytes(16, "big"), network.dst.to_bytes(16, "big"), udp, 0, 0
