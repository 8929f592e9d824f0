"""UDP datagrams inside whole IP packets, for links and captures that carry IP packets."""

from __future__ import annotations

import struct

from rnic.spec.drops import DropReason
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.wire.flow import Flow
from rnic.wire.ip import FRAGMENT_MASK, IPV4_BYTES, IPV6_BYTES, PROTO_UDP, UDP_BYTES

_IPV4 = struct.Struct(">BBHHHBBH4s4sHHH")
_IPV6 = struct.Struct(">IHBB16s16sHHH")
"""IP header, then UDP ports and length."""


class Datagram:
    """One UDP datagram and its IP header's fields. ``payload`` is a view; for IPv6, ``ident`` and ``frag`` are 0."""

    __slots__ = ("dport", "dst", "flow_label", "frag", "hop_limit", "ident", "payload", "sport", "src", "tclass")

    src: bytes
    dst: bytes
    sport: int
    dport: int
    ident: int
    frag: int
    tclass: int
    hop_limit: int
    flow_label: int
    payload: memoryview

    def flow(self) -> Flow:
        """Return the direction in which the datagram travels."""
        return Flow(self.src, self.dst, self.sport, self.dport, self.tclass, self.hop_limit, self.flow_label)


def parse_ip(buf: memoryview, port: int | None = ROCE_UDP_PORT) -> Datagram | DropReason:
    """Find the UDP datagram in an IP packet; bytes after the packet (Ethernet padding) are ignored.

    Args:
        buf: from the first byte of the IP header on.
        port: destination port that it must have; ``None`` for any.

    Returns:
        The datagram, or ``BAD_IP`` (truncated packet, fragment, IPv4 options, inconsistent lengths) or ``NOT_ROCE``
        (another protocol or port). Never raises. Checksums are not checked: the ICRC covers more, and hardware sends
        UDP checksum 0.
    """
    size = len(buf)
    if size < IPV4_BYTES + UDP_BYTES:
        return DropReason.BAD_IP
    out = Datagram()
    if buf[0] == 0x45:
        (_, out.tclass, total, out.ident, out.frag, out.hop_limit, protocol, _,
         out.src, out.dst, out.sport, out.dport, length) = _IPV4.unpack_from(buf)  # fmt: skip
        header = IPV4_BYTES
        out.flow_label = 0
        if out.frag & FRAGMENT_MASK:
            return DropReason.BAD_IP
    elif buf[0] >> 4 == 6 and size >= IPV6_BYTES + UDP_BYTES:
        first, total, protocol, out.hop_limit, out.src, out.dst, out.sport, out.dport, length = _IPV6.unpack_from(buf)
        header = IPV6_BYTES
        total += header
        out.tclass = first >> 20 & 0xFF
        out.flow_label = first & 0xFFFFF
        out.ident = out.frag = 0
    else:
        return DropReason.BAD_IP
    if protocol != PROTO_UDP or (port is not None and out.dport != port):
        return DropReason.NOT_ROCE
    if total > size or length < UDP_BYTES or header + length != total:
        return DropReason.BAD_IP
    out.payload = buf[header + UDP_BYTES : total]
    return out
