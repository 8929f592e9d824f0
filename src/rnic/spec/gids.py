"""GIDs of RoCE: IP addresses in 16 bytes (Annex A17, 17.7)."""

from __future__ import annotations

from rnic.spec import reasons

_LINK_LOCAL = b"\xfe\x80"
_MAPPED = bytes(10) + b"\xff\xff"
_MAPPED_GROUP = b"\xff\x0e" + bytes(8) + b"\xff\xff"
_IPV4_GROUPS = 0xE
"""The upper four bits of an IPv4 multicast address."""


def gid_from_address(address: bytes) -> bytes:
    """Return the 16-byte GID of an IP address: itself, or ``::ffff:a.b.c.d`` for 4 bytes (Annex A17, 17.7)."""
    return address if len(address) == 16 else _MAPPED + address


def address_from_gid(gid: bytes) -> bytes:
    """Return the IP address behind a GID: 4 bytes for ``::ffff:a.b.c.d``, else the GID itself.

    An IPv4 multicast group has two forms: that one, and ``ff0e::ffff:a.b.c.d``, which RoCE v1 and older programs use.
    """
    if gid[:12] == _MAPPED or (gid[:12] == _MAPPED_GROUP and gid[12] >> 4 == _IPV4_GROUPS):
        return gid[12:]
    return gid


def source_refusal(gid: bytes, of_v1: bool, own: bytes) -> reasons.Reason | None:
    """Return why no packet can be sent from an entry of a GID table; ``None`` if one can.

    Args:
        gid: GID of the entry.
        of_v1: true for an entry of RoCE v1.
        own: the GID of the device's own address.
    """
    if of_v1:
        return reasons.GID_TYPE
    return reasons.GID_ELSEWHERE if gid[:2] == _LINK_LOCAL and gid != own else None
