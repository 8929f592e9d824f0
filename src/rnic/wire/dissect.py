"""Taking a captured frame apart: which headers stand where, and whether it is RoCEv2.

Meant for looking at anything that was on a network: cut frames and other protocols come out as such.
"""

from __future__ import annotations

from rnic.spec.limits import BTH_BYTES, ICRC_BYTES, ROCE_UDP_PORT
from rnic.wire import ethernet, ip
from rnic.wire.datagram import Datagram, parse_ip
from rnic.wire.ethernet import Ethernet, VlanTag
from rnic.wire.flow import Flow
from rnic.wire.header import Header
from rnic.wire.ip import IPv4, IPv6, Udp

LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101
LINKTYPE_LINUX_SLL = 113
LINKTYPE_IPV4 = 228
LINKTYPE_IPV6 = 229
LINKTYPE_LINUX_SLL2 = 276
"""Link types of capture files that hold IP packets (tcpdump.org/linktypes.html)."""

_RAW_TYPES = (12, 14, LINKTYPE_RAW, LINKTYPE_IPV4, LINKTYPE_IPV6)
_COOKED = {LINKTYPE_LINUX_SLL: (16, 14), LINKTYPE_LINUX_SLL2: (20, 0)}
"""Bytes of the pseudo header that Linux puts in place of a link header, and where in it the EtherType is."""
_VLAN_TYPES = (ethernet.TYPE_VLAN, ethernet.TYPE_VLAN_SERVICE)

ROCE = "RoCEv2"
ROCE_LEAST = BTH_BYTES + ICRC_BYTES
"""Bytes of the shortest UDP payload that is RoCEv2."""
MALFORMED = "malformed"
"""Headers that contradict each other."""
INCOMPLETE = "incomplete"
"""Ends before it says what it is."""

_V6_EXTENSIONS = (0, 43, 60)
"""Hop-by-hop, routing and destination options: headers between IPv6 and the protocol, in units of 8 bytes."""


class Frame:
    """A frame taken apart.

    ``kind`` is ``"RoCEv2"`` (or whatever the port that was asked for belongs to), the name of another protocol,
    ``"malformed"`` or ``"incomplete"``; ``headers`` the records found in front of the BTH. For RoCEv2, ``payload`` is
    the UDP payload (BTH to ICRC) as far as it was captured, and ``complete`` says whether that is all; then ``flow``,
    ``ident`` and ``frag`` are what the ICRC needs.
    """

    __slots__ = ("complete", "flow", "frag", "headers", "ident", "kind", "payload")

    def __init__(self, kind: str, headers: list[Header]) -> None:
        self.kind = kind
        self.headers = headers
        self.payload = memoryview(b"")
        self.complete = False
        self.flow: Flow | None = None
        self.ident = 0
        self.frag = 0

    @property
    def icrc_ok(self) -> bool | None:
        """The ICRC's verdict; ``None`` where there is nothing to check: not RoCEv2, or cut short."""
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
    """Take a frame apart. Never raises, whatever the bytes.

    Args:
        data: the frame as captured, perhaps cut short.
        linktype: what it starts with, a ``LINKTYPE_*`` number.
        port: the UDP destination port to look for: RoCEv2's, or another protocol's.
        kind: the name of what goes to that port.
        least: bytes of the shortest UDP payload that it has.
    """
    headers: list[Header] = []
    if linktype in _RAW_TYPES:
        return _dissect_ip(data, headers, port, kind, least)
    if linktype in _COOKED:
        at, type_at = _COOKED[linktype]
        ethertype = int.from_bytes(data[type_at : type_at + 2], "big")
    elif linktype == LINKTYPE_ETHERNET:
        at = ethernet.ETHERNET_BYTES
        if len(data) < at:
            return Frame(INCOMPLETE, headers)
        first = Ethernet.parse(data)
        headers.append(first)
        ethertype = first.ethertype
    else:
        return Frame(f"link type {linktype}", headers)
    while ethertype in _VLAN_TYPES and len(data) >= at + ethernet.VLAN_BYTES:
        tag = VlanTag.parse(data, at)
        headers.append(tag)
        ethertype = tag.inner_type
        at += ethernet.VLAN_BYTES
    if ethertype in (ethernet.TYPE_IPV4, ethernet.TYPE_IPV6):
        return _dissect_ip(data[at:], headers, port, kind, least)
    if ethertype < 0x0600:
        return Frame("IEEE 802.3", headers)
    return Frame(ethernet.ETHERTYPE_NAMES.get(ethertype, f"EtherType {ethertype:#06x}"), headers)


def _dissect_ip(data: memoryview, headers: list[Header], port: int, kind: str, least: int) -> Frame:
    """The part from the IP header on."""
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
        return Frame(MALFORMED if version not in (4, 6) and len(data) else INCOMPLETE, headers)
    if protocol != ip.PROTO_UDP:
        return Frame(ip.PROTOCOL_NAMES.get(protocol, f"IP protocol {protocol}"), headers)
    if at < ip.IPV4_BYTES:
        return Frame(MALFORMED, headers)
    if len(data) < at + ip.UDP_BYTES:
        return Frame(INCOMPLETE, headers)
    udp = Udp.parse(data, at)
    headers.append(udp)
    if udp.dport != port:
        return Frame("UDP", headers)
    if at != (ip.IPV6_BYTES if version == 6 else ip.IPV4_BYTES):
        return Frame("UDP behind IP options", headers)
    if end < at + ip.UDP_BYTES + least or at + udp.length != end:
        return Frame(MALFORMED, headers)
    frame = Frame(kind, headers)
    frame.payload = data[at + ip.UDP_BYTES : end]
    found = parse_ip(data, port)
    if isinstance(found, Datagram):
        frame.complete = True
        frame.flow = found.flow()
        frame.ident = found.ident
        frame.frag = found.frag
    return frame
