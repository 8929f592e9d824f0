"""IP addresses as text, the same whatever the Python."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def address_text(address: bytes) -> str:
    """Text form of an address of 4 or 16 bytes, as ``inet_ntop`` writes it: ``::ffff:192.0.2.1`` where it is mapped.

    ``str`` of an ``IPv6Address`` writes mapped ones in hex before Python 3.13.
    """
    parsed = ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return f"::ffff:{mapped}" if mapped else str(parsed)
