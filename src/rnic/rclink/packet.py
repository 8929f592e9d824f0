"""RC Link packets in the standard format: RH, payload, pad, and an optional ICRC.

The ICRC is RoCEv2's (Annex A17, 17.9.3) with one exception: RoCEv2 masks byte 4 of the transport header, which routers
may change; here all bytes of RH are covered.
"""

from __future__ import annotations

import struct

from rnic.rclink.drops import RcLinkDrop
from rnic.rclink.header import Rh
from rnic.rclink.numbers import (
    ICRC_BYTES,
    MAX_PKT_LEN,
    OP_NAMES,
    OP_SEND,
    RH_BYTES,
    SHORT_LENGTH,
    TYPE1_UDP_PORT,
    TYPE2_UDP_PORT,
)
from rnic.wire.bursts import DONT_FRAGMENT
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow

_ICRC = struct.Struct("<I")

TYPES = ("TYPE1", "TYPE2", "TYPE3")


class RcLinkPacket:
    """A parsed packet; ``payload`` is a view without pad and ICRC."""

    __slots__ = ("payload", "rh")

    def __init__(self, rh: Rh, payload: memoryview) -> None:
        self.rh = rh
        self.payload = payload


def classify(flow: Flow, port: int = TYPE1_UDP_PORT, type2_port: int = TYPE2_UDP_PORT) -> str:
    """Return ``TYPE1``, ``TYPE2`` or ``TYPE3`` by the UDP destination port; packets to a multicast group are TYPE2."""
    if flow.dport == type2_port and type2_port != port:
        return "TYPE2"
    if flow.dport != port:
        return "TYPE3"
    first = flow.dst[0]
    to_group = first >> 4 == 0xE if len(flow.dst) == 4 else first == 0xFF
    return "TYPE2" if to_group else "TYPE1"


def parse(buf: memoryview, with_icrc: bool = True) -> RcLinkPacket | RcLinkDrop:
    """Parse a UDP payload, RH to ICRC; the ICRC is not checked here.

    Args:
        buf: the whole UDP payload.
        with_icrc: true if its last four bytes are an ICRC.

    Returns:
        The packet, or the reason to drop it. Never raises.
    """
    end = len(buf) - (ICRC_BYTES if with_icrc else 0)
    if end < RH_BYTES:
        return RcLinkDrop.TOO_SHORT
    if end > RH_BYTES + MAX_PKT_LEN:
        return RcLinkDrop.TOO_LONG
    rh = Rh.parse(buf)
    if rh.opcode not in OP_NAMES:
        return RcLinkDrop.BAD_OPCODE
    if rh.opcode != OP_SEND:
        if rh.fack:
            return RcLinkDrop.FACK
        if end != RH_BYTES or rh.pad:
            return RcLinkDrop.BAD_LENGTH
        return RcLinkPacket(rh, buf[end:end])
    if end % 4:
        return RcLinkDrop.BAD_PAD
    used = end - rh.pad
    if used <= RH_BYTES or rh.len_syndrome != (used if used <= SHORT_LENGTH else 0):
        return RcLinkDrop.BAD_LENGTH
    return RcLinkPacket(rh, buf[RH_BYTES:used])


def build(rh: Rh, payload: bytes | memoryview = b"") -> bytes:
    """Return RH, payload and pad, without ICRC; set ``pad``, and the length of a SEND. Other fields must fit."""
    rh.pad = -len(payload) % 4
    if rh.opcode == OP_SEND:
        used = RH_BYTES + len(payload)
        rh.len_syndrome = used if used <= SHORT_LENGTH else 0
    return rh.encode() + payload + bytes(rh.pad)


def icrc(frame: bytes | memoryview, flow: Flow, ident: int = 0, frag: int = DONT_FRAGMENT) -> int:
    """Return the ICRC of a frame, RH to pad, on a path."""
    return crc32(frame, flow.seed(len(frame) + ICRC_BYTES, ident, frag))


def seal(frame: bytes, flow: Flow, ident: int = 0) -> bytes:
    """Return the frame with its ICRC."""
    return frame + _ICRC.pack(icrc(frame, flow, ident))


def icrc_ok(packet: bytes | memoryview, flow: Flow, ident: int = 0, frag: int = DONT_FRAGMENT) -> bool:
    """Return whether a UDP payload of at least four bytes ends with the right ICRC."""
    (carried,) = _ICRC.unpack_from(packet, len(packet) - ICRC_BYTES)
    return bool(carried == icrc(packet[:-ICRC_BYTES], flow, ident, frag))
