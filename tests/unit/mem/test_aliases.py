from __future__ import annotations

from errno import EEXIST, EINVAL, ENOENT, ENOMEM

import pytest

from rnic.mem.aliases import AliasTable
from rnic.spec.errors import VerbsError


def error(call: object, *args: object) -> int | None:
    with pytest.raises(VerbsError) as caught:
        call(*args)  # type: ignore[operator]
    return caught.value.errno


def test_lowest_free_number_first() -> None:
    table = AliasTable("r_key", 4, first=1)
    assert [table.add(0x1000 + n) for n in range(3)] == [1, 2, 3]
    table.remove(2)
    assert table.add(0x2000) == 2
    assert (table.full(2), table.short(0x2000), table.short(0x1001)) == (0x2000, 2, None)


def test_a_full_number_keeps_its_alias() -> None:
    table = AliasTable("r_key", 8)
    assert table.add(77) == table.add(77) == table.add(77, 0) == 0
    assert len(table) == 1
    assert error(table.add, 77, 5) == EEXIST


def test_chosen_numbers() -> None:
    table = AliasTable("qpn", 12)
    assert table.add(0x123456, 0xFFF) == 0xFFF
    assert error(table.add, 0x1, 0xFFF) == EEXIST
    assert error(table.add, 0x1, 0x1000) == EINVAL
    assert error(table.full, 0x1000) == ENOENT
    assert len(table) == 1


def test_full_table() -> None:
    table = AliasTable("qpn", 2)
    for number in range(4):
        table.add(number + 100)
    assert error(table.add, 99) == ENOMEM
    table.remove(3)
    table.remove(3)
    assert table.add(99) == 3
