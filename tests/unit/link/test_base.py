from __future__ import annotations

import pytest

from rnic.link.base import (
    LinkError,
    active_mtu_bytes,
    check_group,
    flow_between,
    format_address,
    parse_address,
)

V4 = bytes([10, 0, 0, 1])
V6 = bytes(15) + b"\x01"


@pytest.mark.parametrize(
    ("ip_mtu", "expected"),
    [(65_536, 4096), (9_000, 4096), (4_180, 4096), (4_179, 2048), (1_500, 1024), (1_400, 1024), (576, 256), (68, 256)],
)
def test_active_mtu_is_the_largest_that_fits(ip_mtu: int, expected: int) -> None:
    assert active_mtu_bytes(ip_mtu) == expected


@pytest.mark.parametrize("text", ["10.0.0.1", "::1", "fe80::1"])
def test_addresses_round_trip(text: str) -> None:
    assert format_address(parse_address(text)) == text


def test_parse_address_leaves_out_the_scope() -> None:
    assert parse_address("fe80::1%lo") == parse_address("fe80::1")


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3", "1.2.3.4.5", "::g"])
def test_parse_address_refuses_what_is_none(text: str) -> None:
    with pytest.raises(LinkError, match="is not an IPv4 or IPv6 address: give one such as"):
        parse_address(text)


@pytest.mark.parametrize("text", ["0.0.0.0", "::"])
def test_parse_address_refuses_wildcards(text: str) -> None:
    with pytest.raises(LinkError, match=f"address {text} is a wildcard: give an address"):
        parse_address(text)


def test_flow_between() -> None:
    flow = flow_between(V4, 4791, bytes([10, 0, 0, 2]), 4792)
    assert (flow.src, flow.dst, flow.sport, flow.dport) == (V4, bytes([10, 0, 0, 2]), 4791, 4792)


def test_flow_between_versions_is_refused() -> None:
    with pytest.raises(LinkError, match=r"peer ::1 is not of the IP version of this link's address 10\.0\.0\.1"):
        flow_between(V4, 4791, V6, 4791)


def test_groups() -> None:
    check_group(bytes([239, 1, 2, 3]), V4)
    with pytest.raises(LinkError, match=r"10\.0\.0\.1 is not a multicast address"):
        check_group(V4, V4)
    with pytest.raises(LinkError, match="aabb is not a multicast address"):
        check_group(b"\xaa\xbb", V4)
    with pytest.raises(LinkError, match=r"group 239\.1\.2\.3 is not of the IP version"):
        check_group(bytes([239, 1, 2, 3]), V6)
