from __future__ import annotations

import pytest

from rnic.device.config import NicConfig
from rnic.spec.errors import VerbsError
from rnic.spec.gids import address_from_gid, gid_from_address

V4 = bytes((192, 0, 2, 1))
V6 = bytes.fromhex("20010db8000000000000000000000001")


def test_gids() -> None:
    assert gid_from_address(V4) == bytes.fromhex("00000000000000000000ffffc0000201")
    assert gid_from_address(V6) == V6
    assert address_from_gid(gid_from_address(V4)) == V4
    assert address_from_gid(V6) == V6


def test_defaults() -> None:
    config = NicConfig(V4)
    assert config.gid_table == (gid_from_address(V4),)
    assert config.guid
    assert config.guid == NicConfig(V4).guid
    assert config.guid != NicConfig(bytes((192, 0, 2, 2))).guid
    assert str(config) == "rnic0 at 192.0.2.1 port 4791"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("address", b"\1\2\3"),
        ("port", 0),
        ("port", 65536),
        ("log_max_qps", 3),
        ("log_max_qps", 15),
        ("mtu", 1500),
        ("pkeys", ()),
        ("pkeys", (0,)),
        ("pkeys", (1,) * 17),
        ("window_packets", 0),
        ("window_bytes", 0),
        ("ack_every", 0),
        ("turn_bytes", 0),
    ],
)
def test_bad_values_are_named(name: str, value: object) -> None:
    with pytest.raises(VerbsError, match=name) as error:
        NicConfig(**({"address": V4} | {name: value}))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
