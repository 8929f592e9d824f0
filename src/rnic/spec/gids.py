"""GIDs of RoCE: IP addresses in 16 bytes (Annex A17, 17.7)."""

from __future__ import annotations

_MAPPED = bytes(10) + b"\xff\xff"
_MAPPED_GROUP = b"\xff\x0e" + bytes(8) + b"\xff\xff"
_IPV4_GROUPS = 0xE
"""The upper four bits of an IPv4 group."""


def gid_from_address(address: bytes) -> bytes:
    """The 16-byte GID of an IP address: itself, or ``::ffff:a.b.c.d`` for 4 bytes (Annex A17, 17.7)."""
    return address if len(address) == 16 else _MAPPED + address


def address_from_gid(gid: bytes) -> bytes:
    """The IP address behind a GID: 4 bytes for ``::ffff:a.b.c.d``, else the GID itself.

    An IPv4 group has two spellings: that one, and ``ff0e::ffff:a.b.c.d``, as RoCE v1 and older programs have it.
    """
    if gid[:12] == _MAPPED or (gid[:12] == _MAPPED_GROUP and gid[12] >> 4 == _IPV4_GROUPS):
        return gid[12:]
    return gid
