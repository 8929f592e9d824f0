"""Headers of native InfiniBand and of RoCEv1, and their ICRC coverage (IBA vol. 1, ch. 7, 8, A16).

A packet without a GRH stays in its subnet: its ICRC covers the LRH except the virtual lane. A packet with a GRH may be
routed: eight bytes of ones replace its LRH, which RoCEv1 does not have at all.
"""

from __future__ import annotations

import struct

from rnic.spec.layout import Layout, bits
from rnic.wire.crc import crc32
from rnic.wire.flow import residue
from rnic.wire.header import Buffer, Header
from rnic.wire.ip import IPV6_BYTES, IPV6_HEADER, IPv6

LRH_BYTES = 8
GRH_BYTES = IPV6_BYTES
VCRC_BYTES = 2
LNH_LOCAL, LNH_GLOBAL = 2, 3
"""LNH, next header of an LRH: a BTH, or a GRH before the BTH; 0 and 1 are raw packets."""
NEXT_BTH = 0x1B
"""Next header of a GRH: a BTH."""

LRH = Layout(
    "LRH",
    LRH_BYTES,
    "big",
    "IBA vol. 1, 7.7",
    (
        bits("vl", 0, 31, 28, "virtual lane; not covered by the ICRC"),
        bits("lver", 0, 27, 24, "link version, 0"),
        bits("sl", 0, 23, 20, "service level"),
        bits("lrh_reserved2", 0, 19, 18, "reserved"),
        bits("lnh", 0, 17, 16, "next header: 2 BTH, 3 GRH"),
        bits("dlid", 0, 15, 0, "destination's local identifier"),
        bits("lrh_reserved5", 4, 31, 27, "reserved"),
        bits("packet_length", 4, 26, 16, "words from the LRH to the ICRC"),
        bits("slid", 4, 15, 0, "source's local identifier"),
    ),
)
GRH = Layout("GRH", GRH_BYTES, "big", "IBA vol. 1, 8.3", IPV6_HEADER.fields)
"""Laid out as an IPv6 header; the addresses are GIDs, and the payload length includes the ICRC."""


class Lrh(Header):
    """Local route header, 8 bytes, at the start of every native InfiniBand packet."""

    __slots__ = tuple(field.name for field in LRH.fields)

    layout = LRH
    vl: int
    lver: int
    sl: int
    lnh: int
    dlid: int
    packet_length: int
    slid: int


class Grh(IPv6):
    """Global route header, 40 bytes: in routable packets of native InfiniBand, and in all of RoCEv1."""

    __slots__ = ()

    layout = GRH


_ONES = b"\xff" * LRH_BYTES
_GRH = struct.Struct(">IHBB32s")
_LRH = struct.Struct(">HHHH")
_MAX_CACHED = 4_096


class IbFlow:
    """One direction of a path without UDP, and the CRC of the headers in front of the BTH.

    Args:
        src: sender's GID (16 bytes), or LID (2 bytes) without a GRH.
        dst: receiver's GID or LID, as long as ``src``.
        lrh: the first four bytes of the LRH, masked for the ICRC; empty if packets have a GRH.
    """

    __slots__ = ("_lrh", "_seeds", "dport", "dst", "sport", "src")

    def __init__(self, src: bytes, dst: bytes, lrh: bytes = b"") -> None:
        self.src = src
        self.dst = dst
        self.sport = self.dport = 0
        self._lrh = bytes((lrh[0] | 0xF0,)) + lrh[1:] if lrh else lrh
        self._seeds: dict[int, int] = {}

    def seed(self, length: int, ident: int = 0, frag: int = 0) -> int:
        """Return the CRC state before the BTH of a packet with ``length`` bytes from BTH to ICRC; there is no IP ID."""
        value = self._seeds.get(length)
        if value is None:
            if len(self._seeds) >= _MAX_CACHED:
                self._seeds.clear()
            value = self._seeds[length] = crc32(self._masked(length))
        return value

    @property
    def key(self) -> bytes:
        """Dictionary key of this path: its addresses, and the part of the LRH that the ICRC covers."""
        return self.src + self.dst + self._lrh

    def check(self, packet: Buffer, ident: int = 0, frag: int = 0) -> bool:
        """Return whether a whole packet from BTH to ICRC, at least 16 bytes, carries the right ICRC."""
        length = len(packet)
        return crc32(packet, self.seed(length)) == residue(length, packet[4])

    def _masked(self, length: int) -> bytes:
        if self._lrh:
            flags, dlid = struct.unpack(">HH", self._lrh)
            words = (LRH_BYTES + length) // 4
            return _LRH.pack(flags, dlid, words, int.from_bytes(self.src, "big"))
        return _ONES + _GRH.pack(0x6FFF_FFFF, length, NEXT_BTH, 0xFF, self.src + self.dst)
