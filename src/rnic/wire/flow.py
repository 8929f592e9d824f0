"""One direction of a UDP path, and the invariant CRC of the packets on it (Annex A17, 17.9.3 and software.md 4).

The ICRC covers eight bytes of ones, the IP and UDP headers with their variant fields set to ones, and the
packet from the BTH on with BTH byte 4 set to ones. A flow knows every header field but the length and the IP ID,
so the CRC state after the headers is one cached number for each length, and the IP ID's share is XORed in.

CRCs are linear: the change that the masked BTH byte makes to a packet's CRC depends only on the packet's length
(:func:`tx_delta`), and a CRC that runs over the packet with its own ICRC ends in a constant (:func:`residue`).
So neither direction ever copies a header to mask it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rnic.spec.limits import ROCE_UDP_PORT
from rnic.wire.crc import crc32

if TYPE_CHECKING:
    from rnic.wire.ident import IdentTracker

MAX_IDENTS = 64
"""Most segments of one UDP_SEGMENT send, and the number of IP IDs that :meth:`Flow.seeds` covers."""

DONT_FRAGMENT = 0x4000
ECT = 0b10
"""ECN bits of an ECN-capable sender, ECT(0) (RFC 3168)."""
CE = 0b11
"""ECN bits of a packet that experienced congestion, CE (RFC 3168)."""

_ONES = b"\xff" * 8
_IPV4 = struct.Struct(">BBHHHBBH4s4s")
_IPV6 = struct.Struct(">IHBB16s16s")
_UDP = struct.Struct(">HHHH")
_GOOD = 0x2144DF1C
"""crc32(message || little-endian crc32(message)), the same for every message."""
_MAX_CACHED = 4_096
_UNPROVEN = 4
_MAX_SEED_LISTS = 8
"""Bounds of the caches: packet lengths, which a peer chooses, are their keys."""


def _effect(value: int, after: int) -> int:
    """Return the change of a CRC when one byte, ``after`` bytes before the end, is XORed with ``value``."""
    return crc32(bytes([value]) + bytes(after)) ^ crc32(bytes(after + 1))


def _byte_effects(after: int) -> tuple[int, ...]:
    """Return :func:`_effect` of every value of one byte. CRCs are linear: XOR the effects of its bits."""
    single = [_effect(1 << bit, after) for bit in range(8)]
    effects = [0] * 256
    for value in range(1, 256):
        lowest = value & -value
        effects[value] = effects[value ^ lowest] ^ single[lowest.bit_length() - 1]
    return tuple(effects)


# arguments: bytes of the IPv4 and UDP headers after each byte of [IP ID | flags and offset]
IDENT_HIGH, IDENT_LOW, _FRAG_HIGH, _FRAG_LOW = (_byte_effects(after) for after in (23, 22, 21, 20))
"""Values to XOR into the seed of IP ID 0, for either byte of the IP ID."""
_SMALL_IDENTS = IDENT_LOW[:MAX_IDENTS]

_tx_deltas: dict[int, int] = {}
_residues: dict[int, int] = {}


def tx_delta(length: int) -> int:
    """Return the value to XOR into the CRC of a packet whose BTH byte 4 is 0, to get its ICRC.

    Args:
        length: bytes of the UDP payload with its ICRC, at least 16.
    """
    delta = _tx_deltas.get(length)
    if delta is None:
        if len(_tx_deltas) >= _MAX_CACHED:
            _tx_deltas.clear()
        delta = _tx_deltas[length] = _effect(0xFF, length - 4 - 5)
    return delta


def residue(length: int, byte4: int = 0) -> int:
    """Return the CRC over a received UDP payload, from the flow's seed on, if its ICRC is right.

    Args:
        length: bytes of the UDP payload with its ICRC, at least 16.
        byte4: the value of BTH byte 4 as received.
    """
    key = length << 8 | byte4
    value = _residues.get(key)
    if value is None:
        if len(_residues) >= _MAX_CACHED:
            _residues.clear()
        value = _residues[key] = _GOOD ^ _effect(0xFF ^ byte4, length - 5)
    return value


def masked_headers(flow: Flow, length: int = 0, ident: int = 0, frag: int | None = None) -> bytes:
    """Return the ones, the IP header and the UDP header as the ICRC sees them, for a UDP payload of ``length`` bytes.

    By default return a template: both length fields, IP ID, flags and offset are zero.
    """
    udp_length, ip_length = (length + 8, length + 28) if frag is not None else (0, 0)
    udp = _UDP.pack(flow.sport, flow.dport, udp_length, 0xFFFF)
    if len(flow.src) == 4:
        ip = _IPV4.pack(0x45, 0xFF, ip_length, ident, frag or 0, 0xFF, 17, 0xFFFF, flow.src, flow.dst)
    else:
        ip = _IPV6.pack(0x6FFF_FFFF, udp_length, 17, 0xFF, flow.src, flow.dst)
    return _ONES + ip + udp


class Flow:
    """Addresses, ports and the unmasked header fields of one direction of a path.

    Args:
        src: sender's address, 4 or 16 bytes.
        dst: receiver's address, as long as ``src``.
        sport: sender's UDP port.
        dport: receiver's UDP port.
        tclass: type of service or traffic class (not covered by the ICRC).
        hop_limit: time to live or hop limit (not covered).
        flow_label: IPv6 flow label (not covered).
        sl: service level, the priority in the sender's queues (not on the wire).
    """

    __slots__ = (
        "_marked",
        "_seed_lists",
        "_seeds",
        "_v4",
        "dport",
        "dst",
        "flow_label",
        "hop_limit",
        "idents",
        "kept",
        "link",
        "place",
        "settled",
        "dmac",
        "sl",
        "smac",
        "sport",
        "src",
        "tclass",
    )

    def __init__(
        self,
        src: bytes,
        dst: bytes,
        sport: int,
        dport: int = ROCE_UDP_PORT,
        tclass: int = 0,
        hop_limit: int = 64,
        flow_label: int = 0,
        sl: int = 0,
    ) -> None:
        self.src = src
        self.dst = dst
        self.sport = sport
        self.dport = dport
        self.tclass = tclass
        self.hop_limit = hop_limit
        self.flow_label = flow_label
        self.sl = sl
        self.smac = self.dmac = 0
        """MAC addresses, for a link with Ethernet headers; 0 to let the link choose."""
        self.link: object = None
        """Data that the link keeps for this path, such as a socket address."""
        self.kept = _MAX_CACHED
        """Most lengths whose CRC states are cached: few until a packet on this path had the right ICRC, since any host
        may have sent the first one."""
        self.place = 0
        """Offset of its record in its device's arena, 0 if it has none."""
        self._v4 = len(src) == 4
        self.idents: IdentTracker | None = None
        """Tracker of the sender's IP IDs; set once the ICRC of a packet with a hidden IP ID was right."""
        self.settled = not self._v4
        """True if IP IDs need no tracking: the sender's pattern is known, or the path is IPv6."""
        self._marked: Flow | None = None
        self._seeds: dict[int, int] = {}
        self._seed_lists: dict[int, tuple[int, ...]] = {}

    def __repr__(self) -> str:
        return f"Flow({self.src.hex()}:{self.sport} -> {self.dst.hex()}:{self.dport})"

    def doubt(self) -> Flow:
        """Mark this path, learned from a received packet, as unproven, and return it."""
        self.kept = _UNPROVEN
        return self

    def prove(self) -> None:
        """Note that a packet on this path had the right ICRC."""
        self.kept = _MAX_CACHED

    def reverse(self) -> Flow:
        """Return the reverse path."""
        return Flow(self.dst, self.src, self.dport, self.sport, self.tclass, self.hop_limit, self.flow_label, self.sl)

    def marked(self) -> Flow:
        """Return this path with ECN CE, as after a switch that marks."""
        if self.tclass & CE == CE:
            return self
        if self._marked is None:
            tclass = self.tclass | CE
            self._marked = Flow(
                self.src, self.dst, self.sport, self.dport, tclass, self.hop_limit, self.flow_label, self.sl
            )
        return self._marked

    def masked_headers(self, length: int, ident: int = 0, frag: int = DONT_FRAGMENT) -> bytes:
        """Return the ones, the IP header and the UDP header as the ICRC sees them, for a UDP payload of ``length``."""
        return masked_headers(self, length, ident, frag)

    def seed(self, length: int, ident: int = 0, frag: int = DONT_FRAGMENT) -> int:
        """Return the CRC state after the masked headers of a packet.

        Args:
            length: bytes of the UDP payload with its ICRC.
            ident: IPv4 identification.
            frag: IPv4 flags and fragment offset. IPv6 has neither and ignores both.
        """
        value = self._seeds.get(length)
        if value is None:
            if len(self._seeds) >= self.kept:
                self._seeds.clear()
            value = self._seeds[length] = crc32(self.masked_headers(length))
        if self._v4:
            if ident:
                value ^= IDENT_HIGH[ident >> 8] ^ IDENT_LOW[ident & 0xFF]
            if frag != DONT_FRAGMENT:
                frag ^= DONT_FRAGMENT
                value ^= _FRAG_HIGH[frag >> 8] ^ _FRAG_LOW[frag & 0xFF]
        return value

    def seeds(self, length: int) -> tuple[int, ...]:
        """Return :meth:`seed` for IP IDs 0 to 63 with DF set. IPv6 has no IP ID: all are equal."""
        values = self._seed_lists.get(length)
        if values is None:
            if len(self._seed_lists) >= _MAX_SEED_LISTS:
                self._seed_lists.clear()
            base = self.seed(length)
            values = tuple([base ^ effect for effect in _SMALL_IDENTS]) if self._v4 else (base,) * MAX_IDENTS
            self._seed_lists[length] = values
        return values

    def icrc(self, frame: bytes | bytearray | memoryview, ident: int = 0, frag: int = DONT_FRAGMENT) -> int:
        """Return the ICRC of a frame from BTH to pad, without ICRC; BTH byte 4 may have any value."""
        length = len(frame) + 4
        return crc32(frame, self.seed(length, ident, frag)) ^ _effect(0xFF ^ frame[4], length - 4 - 5)

    def check(self, packet: bytes | bytearray | memoryview, ident: int = 0, frag: int = DONT_FRAGMENT) -> bool:
        """Return whether a whole UDP payload, at least 16 bytes, carries the right ICRC."""
        length = len(packet)
        return crc32(packet, self.seed(length, ident, frag)) == residue(length, packet[4])
