"""Dissect a captured frame: find its headers, and tell whether it is RoCEv2.

Any capture is accepted: truncated frames and other protocols are reported as such.
"""

from __future__ import annotations

from rnic.spec.limits import BTH_BYTES, ICRC_BYTES, ROCE_UDP_PORT
from rnic.wire import ethernet, ip, tunnels
from rnic.wire.datagram import Datagram, parse_ip
from rnic.wire.ethernet import Ethernet, VlanTag
from rnic.wire.flow import Flow
from rnic.wire.header import Header
from rnic.wire.infiniband import GRH_BYTES, LNH_GLOBAL, LNH_LOCAL, LRH_BYTES, NEXT_BTH, Grh, IbFlow, Lrh
from rnic.wire.ip import IPv4, IPv6, Udp

LINKTYPE_NULL = 0
LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101
LINKTYPE_LOOP = 108
LINKTYPE_LINUX_SLL = 113
LINKTYPE_ERF = 197
LINKTYPE_IPV4 = 228
LINKTYPE_IPV6 = 229
LINKTYPE_INFINIBAND = 247
LINKTYPE_LINUX_SLL2 = 276
"""Link types of capture files that hold IP or InfiniBand packets (tcpdump.org/linktypes.html)."""

MAX_HEADERS = 24
"""Most headers to follow before an IP or InfiniBand packet: tags, labels, nested tunnels."""
_RAW_TYPES = (12, 14, LINKTYPE_RAW, LINKTYPE_IPV4, LINKTYPE_IPV6)
_COOKED = {LINKTYPE_LINUX_SLL: (16, 14), LINKTYPE_LINUX_SLL2: (20, 0)}
"""Linux cooked headers by link type: length, and offset of the EtherType."""
_IP_FAMILIES = (2, 24, 28, 30)
"""Address families: IPv4, and IPv6 on three BSD systems."""
_ERF_BYTES = 16
_ERF_ETHERNET, _ERF_IP, _ERF_INFINIBAND = (2, 11, 16, 20), (22, 23), 21
"""Types of ERF records (Endace's format); two pad bytes precede an Ethernet frame."""
_VLAN_TYPES = (ethernet.TYPE_VLAN, ethernet.TYPE_VLAN_SERVICE, ethernet.TYPE_VLAN_OLD)
_TYPE_IP, _TYPE_INFINIBAND = -1, -2
"""Pseudo EtherTypes: an IP packet of either version, and an LRH."""

ROCE = "RoCEv2"
ROCE_V1 = "RoCEv1"
INFINIBAND = "InfiniBand"
ROCE_LEAST = BTH_BYTES + ICRC_BYTES
"""Bytes of the shortest UDP payload that is RoCEv2."""
JUDGED = (ROCE, ROCE_V1, INFINIBAND)
"""Kinds of frames whose payload starts with a BTH."""
MALFORMED = "malformed"
"""Kind of a frame with inconsistent headers."""
INCOMPLETE = "incomplete"
"""Kind of a frame that was cut before its protocol is known."""

_V6_EXTENSIONS = (0, 43, 60)
"""IPv6 extension headers with a length in units of 8 bytes: hop-by-hop, routing and destination options."""


class Frame:
    """A dissected frame.

    ``kind`` is ``"RoCEv2"`` (or the protocol of the requested port), ``"RoCEv1"``, ``"InfiniBand"``, the name of
    another protocol, ``"malformed"`` or ``"incomplete"``; ``headers`` the records found in front of the BTH. For the
    first three, ``payload`` is the captured part of the packet from BTH to ICRC, ``complete`` is true if that is all of
    it, and ``flow``, ``ident`` and ``frag`` are inputs of the ICRC.
    """

    __slots__ = ("complete", "flow", "frag", "headers", "ident", "kind", "payload")

    def __init__(self, kind: str, headers: list[Header]) -> None:
        self.kind = kind
        self.headers = headers
        self.payload = memoryview(b"")
        self.complete = False
        self.flow: Flow | IbFlow | None = None
        self.ident = 0
        self.frag = 0

    @property
    def icrc_ok(self) -> bool | None:
        """True if the ICRC is right; ``None`` if it cannot be checked: not RoCEv2, or truncated."""
        if self.flow is None or not self.complete:
            return None
        return self.flow.check(self.payload, self.ident, self.frag)


def dissect(
    data: memoryview,
    linktype: int = LINKTYPE_ETHERNET,
    port: int = ROCE_UDP_PORT,
    kind: str = ROCE,
    least: int = ROCE_LEAST,
) -> Frame:
    """Dissect a frame. Never raises.

    Args:
        data: the frame as captured, perhaps truncated.
        linktype: link type of the capture, a ``LINKTYPE_*`` number.
        port: the UDP destination port to look for: RoCEv2's, or another protocol's.
        kind: name of the protocol on that port.
        least: bytes of its shortest UDP payload.
    """
    headers: list[Header] = []
    step = _link(data, linktype, headers)
    for _ in range(MAX_HEADERS):
        if isinstance(step, Frame):
            return step
        ethertype, data = step
        if ethertype in (_TYPE_IP, ethernet.TYPE_IPV4, ethernet.TYPE_IPV6):
            step = _dissect_ip(data, headers, port, kind, least)
        elif ethertype == tunnels.TYPE_ETHERNET:
            step = _ethernet(data, headers)
        elif ethertype in _VLAN_TYPES and len(data) >= ethernet.VLAN_BYTES:
            tag = VlanTag.parse(data)
            headers.append(tag)
            step = tag.inner_type, data[ethernet.VLAN_BYTES :]
        elif ethertype in tunnels.IN_ETHERTYPE:
            step = _tunnel(tunnels.IN_ETHERTYPE[ethertype](data), headers, tunnels.TUNNEL_NAMES[ethertype])
        elif ethertype == ethernet.TYPE_ROCE_V1:
            step = _dissect_grh(data, headers, ROCE_V1)
        elif ethertype == _TYPE_INFINIBAND:
            step = _dissect_lrh(data, headers)
        elif ethertype < 0x0600:
            step = Frame("IEEE 802.3", headers)
        else:
            step = Frame(ethernet.ETHERTYPE_NAMES.get(ethertype, f"EtherType {ethertype:#06x}"), headers)
    return step if isinstance(step, Frame) else _contradiction(headers)


_Step = Frame | tuple[int, memoryview]
"""Result of a step: the final frame, or the EtherType of the next header and the bytes from there on."""


def _link(data: memoryview, linktype: int, headers: list[Header]) -> _Step:
    """Parse the first header of a frame of this capture link type."""
    if linktype == LINKTYPE_ETHERNET:
        return _ethernet(data, headers)
    if linktype in _RAW_TYPES:
        return _TYPE_IP, data
    if linktype in _COOKED:
        at, type_at = _COOKED[linktype]
        return int.from_bytes(data[type_at : type_at + 2], "big"), data[at:]
    if linktype in (LINKTYPE_NULL, LINKTYPE_LOOP):
        family = bytes(data[:4])
        # in the byte order of the capturing machine
        number = min(int.from_bytes(family, "big"), int.from_bytes(family, "little"))
        return (_TYPE_IP, data[4:]) if number in _IP_FAMILIES else Frame(f"address family {number}", headers)
    if linktype == LINKTYPE_INFINIBAND:
        return _TYPE_INFINIBAND, data
    if linktype == LINKTYPE_ERF:
        return _erf(data, headers)
    return Frame(f"link type {linktype}", headers)


def _ethernet(data: memoryview, headers: list[Header]) -> _Step:
    if len(data) < ethernet.ETHERNET_BYTES:
        return Frame(INCOMPLETE, headers)
    first = Ethernet.parse(data)
    headers.append(first)
    return first.ethertype, data[ethernet.ETHERNET_BYTES :]


def _erf(data: memoryview, headers: list[Header]) -> _Step:
    if len(data) < _ERF_BYTES:
        return Frame(INCOMPLETE, headers)
    kind, more, at = data[8] & 0x7F, data[8] & 0x80, _ERF_BYTES
    while more and len(data) > at:  # extension headers of 8 bytes; each says whether another follows
        more = data[at] & 0x80
        at += 8
    if kind in _ERF_ETHERNET:
        return tunnels.TYPE_ETHERNET, data[at + 2 :]
    if kind in _ERF_IP:
        return _TYPE_IP, data[at:]
    return (_TYPE_INFINIBAND, data[at:]) if kind == _ERF_INFINIBAND else Frame(f"ERF record of type {kind}", headers)


def _contradiction(headers: list[Header]) -> Frame:
    """Return the result for inconsistent headers: plain UDP if only the port suggested a tunnel, else malformed."""
    guessed = any(isinstance(header, Udp) for header in headers)
    return Frame("UDP" if guessed else MALFORMED, headers)


def _tunnel(found: tunnels.Found, headers: list[Header], name: str) -> _Step:
    """Continue after the header of a tunnel, or return a frame that names the unsupported contents."""
    if found is None:
        return Frame(name, headers)
    ethertype, rest, header = found
    headers.append(header)
    return ethertype, rest


def _dissect_lrh(data: memoryview, headers: list[Header]) -> Frame:
    """Dissect a packet of native InfiniBand; the VCRC may follow its ICRC."""
    if len(data) < LRH_BYTES:
        return Frame(INCOMPLETE, headers)
    lrh = Lrh.parse(data)
    headers.append(lrh)
    end = lrh.packet_length * 4
    if lrh.lnh == LNH_GLOBAL:
        return _dissect_grh(data[LRH_BYTES:], headers, INFINIBAND, end - LRH_BYTES - GRH_BYTES)
    if lrh.lnh != LNH_LOCAL:
        return Frame("raw InfiniBand", headers)
    flow = IbFlow(lrh.slid.to_bytes(2, "big"), lrh.dlid.to_bytes(2, "big"), bytes(data[:4]))
    return _without_udp(INFINIBAND, headers, flow, data[LRH_BYTES:], end - LRH_BYTES)


def _dissect_grh(data: memoryview, headers: list[Header], kind: str, length: int | None = None) -> Frame:
    """Dissect a GRH and the packet after it, ``length`` bytes if an LRH gives the length."""
    if len(data) < GRH_BYTES:
        return Frame(INCOMPLETE, headers)
    grh = Grh.parse(data)
    if grh.version != 6 or grh.next_header != NEXT_BTH:
        return Frame(f"{kind} without a BTH", headers)
    headers.append(grh)
    if length is not None and length != grh.payload_length:
        return Frame(MALFORMED, headers)
    flow = IbFlow(bytes(data[8:24]), bytes(data[24:40]))
    return _without_udp(kind, headers, flow, data[GRH_BYTES:], grh.payload_length)


def _without_udp(kind: str, headers: list[Header], flow: IbFlow, data: memoryview, length: int) -> Frame:
    """Dissect a packet whose BTH follows the LRH or GRH directly."""
    if length < ROCE_LEAST or length % 4:
        return Frame(MALFORMED, headers)
    frame = Frame(kind, headers)
    frame.payload = data[:length]
    frame.complete = len(data) >= length
    frame.flow = flow
    return frame


def _dissect_ip(data: memoryview, headers: list[Header], port: int, kind: str, least: int) -> _Step:
    """Dissect a packet from its IP header on."""
    version = data[0] >> 4 if len(data) else 0
    if version == 4 and len(data) >= ip.IPV4_BYTES:
        v4 = IPv4.parse(data)
        headers.append(v4)
        protocol = v4.protocol
        at = v4.ihl * 4
        end = v4.total_length
        if v4.flags_fragment & ip.FRAGMENT_MASK:
            return Frame("IPv4 fragment", headers)
    elif version == 6 and len(data) >= ip.IPV6_BYTES:
        v6 = IPv6.parse(data)
        headers.append(v6)
        protocol = v6.next_header
        at = ip.IPV6_BYTES
        end = at + v6.payload_length
        while protocol in _V6_EXTENSIONS and len(data) >= at + 8:
            protocol = data[at]
            at += 8 + data[at + 1] * 8
    else:
        return _contradiction(headers) if version not in (4, 6) and len(data) else Frame(INCOMPLETE, headers)
    if protocol in tunnels.IN_IP and at >= ip.IPV4_BYTES:
        return tunnels.IN_IP[protocol], data[at:]
    if protocol == tunnels.PROTO_GRE and at >= ip.IPV4_BYTES:
        return _tunnel(tunnels.gre(data[at:]), headers, "GRE")
    if protocol != ip.PROTO_UDP:
        return Frame(ip.PROTOCOL_NAMES.get(protocol, f"IP protocol {protocol}"), headers)
    if at < ip.IPV4_BYTES:
        return _contradiction(headers)
    if len(data) < at + ip.UDP_BYTES:
        return Frame(INCOMPLETE, headers)
    udp = Udp.parse(data, at)
    headers.append(udp)
    if udp.dport != port:
        carried = tunnels.IN_UDP.get(udp.dport)
        return Frame("UDP", headers) if carried is None else _tunnel(carried(data[at + ip.UDP_BYTES :]), headers, "UDP")
    if at != (ip.IPV6_BYTES if version == 6 else ip.IPV4_BYTES):
        return Frame("UDP behind IP options", headers)
    if end < at + ip.UDP_BYTES + least or at + udp.length != end:
        return Frame(MALFORMED, headers)
    frame = Frame(kind, headers)
    frame.payload = data[at + ip.UDP_BYTES : end]
    whole = data if len(data) >= end else memoryview(bytes(data).ljust(end, b"\0"))
    found = parse_ip(whole, port)
    if isinstance(found, Datagram):
        frame.complete = whole is data
        frame.flow = found.flow()
        frame.ident = found.ident
        frame.frag = found.frag
    return frame
