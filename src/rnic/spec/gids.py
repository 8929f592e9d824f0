"""GIDs of RoCE: IP addresses in 16 bytes (Annex A17, 17.7)."""

from __future__ import annotations

_MAPPED = bytes(10) + b"\xff\xff"


def gid_from_address(address: bytes) -> bytes:
    """The 16-byte GID of an IP address: itself, or ``::ffff:a.b.c.d`` for 4 bytes (Annex A17, 17.7)."""
    return address if len(address) == 16 else _MAPPED + address


def address_from_gid(gid: bytes) -> bytes:
    """The IP address behind a GID: 4 bytes for ``::ffff:a.b.c.d``, else the GID itself."""
    return gid[12:] if gid[:12] == _MAPPED else gid
