from __future__ import annotations

import pytest

from rnic.device.multicast import Groups, is_multicast
from rnic.device.uar import Doorbells, Uar
from rnic.mem.space import SimAddressSpace
from rnic.spec.gids import gid_from_address

ADDRESS = bytes((239, 1, 2, 3))
GROUP = gid_from_address(ADDRESS)
OTHER_SPELLING = bytes.fromhex("ff0e") + GROUP[2:]
GROUP6 = bytes.fromhex("ff0e000000000000000000000000 0001".replace(" ", ""))


@pytest.mark.parametrize(
    ("gid", "multicast"),
    [
        (GROUP, True),
        (gid_from_address(bytes((224, 0, 0, 1))), True),
        (GROUP6, True),
        (OTHER_SPELLING, True),
        (gid_from_address(bytes((10, 0, 0, 1))), False),
        (gid_from_address(bytes((240, 0, 0, 1))), False),
        (bytes.fromhex("fe80") + bytes(14), False),
        (bytes(16), False),
    ],
)
def test_is_multicast(gid: bytes, multicast: bool) -> None:
    assert is_multicast(gid) is multicast


def test_lists_of_two_contexts_add_up() -> None:
    one, two = (Uar(SimAddressSpace(), Doorbells(), 1) for _ in range(2))
    groups = Groups()
    groups.set(GROUP, one, (20, 21))
    groups.set(GROUP, two, (30,))
    groups.set(GROUP6, two, (30,))
    assert groups.members == {ADDRESS: (20, 21, 30), GROUP6: (30,)}
    assert groups.get(GROUP, one) == (20, 21)
    assert groups.attached(30)
    assert not groups.attached(22)
    assert groups.changes == [(ADDRESS, True), (GROUP6, True)]
    groups.set(GROUP, one, ())
    assert groups.members[ADDRESS] == (30,)
    groups.forget(two)
    assert groups.members == {}
    assert groups.changes[2:] == [(ADDRESS, False), (GROUP6, False)]
    groups.set(GROUP, one, ())
    assert len(groups.changes) == 4


def test_both_spellings_of_an_ipv4_group_are_one_group() -> None:
    uar = Uar(SimAddressSpace(), Doorbells(), 1)
    groups = Groups()
    groups.set(OTHER_SPELLING, uar, (20,))
    assert groups.members == {ADDRESS: (20,)}
    assert groups.get(GROUP, uar) == (20,)
    groups.set(GROUP, uar, ())
    assert groups.get(OTHER_SPELLING, uar) == ()
    assert groups.changes == [(ADDRESS, True), (ADDRESS, False)]
    # no IPv4 group, and so an IPv6 group of its own
    groups.set(bytes.fromhex("ff0e") + bytes(8) + b"\xff\xff" + bytes((10, 0, 0, 1)), uar, (20,))
    assert [len(address) for address in groups.members] == [16]
