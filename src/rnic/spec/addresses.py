"""Parse and format IP addresses, independent of the Python version."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

from rnic.spec.errors import LinkError


def address_text(address: bytes) -> str:
    """Return the text of an address of 4 or 16 bytes as ``inet_ntop`` does: ``::ffff:192.0.2.1`` if it is mapped.

    ``str`` of an ``IPv6Address`` writes mapped ones in hex before Python 3.13.
    """
    parsed = ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return f"::ffff:{mapped}" if mapped else str(parsed)


def parse_address(text: str) -> bytes:
    """Return an IPv4 or IPv6 address as 4 or 16 bytes.

    Raises:
        LinkError: not an address, or the wildcard; the ICRC covers the actual address.
    """
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        raise LinkError(f"address {text!r} is not an IPv4 or IPv6 address: give one such as 127.0.0.1") from None
    if address.is_unspecified:
        raise LinkError(f"address {text} is a wildcard: give an address of this machine, since the ICRC covers it")
    return address.packed
