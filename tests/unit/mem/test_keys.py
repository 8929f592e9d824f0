"""R_Key arithmetic, typed from ``design.md`` "R_Key" and 004 7.3 "MR Table"."""

from __future__ import annotations

import pytest

from rnic.mem.keys import INDEX_LIMIT, key_index, key_tag, make_key


@pytest.mark.parametrize(
    ("key", "index", "tag"),
    [
        (0x00000000, 0x000000, 0x00),
        (0x00010000, 0x000001, 0x00),  # 004: the high 16 bits are the index
        (0x123400AB, 0x001234, 0xAB),  # 004: the low 8 bits are the key
        (0xFFFF00FF, 0x00FFFF, 0xFF),  # the last index without the middle byte
        (0x00000100, 0x010000, 0x00),  # the middle byte extends the index
        (0x123456AB, 0x561234, 0xAB),
        (0xFFFFFFFF, 0xFFFFFF, 0xFF),
    ],
)
def test_key(key: int, index: int, tag: int) -> None:
    assert (key_index(key), key_tag(key)) == (index, tag)
    assert make_key(index, tag) == key


def test_limit() -> None:
    assert INDEX_LIMIT == 0x1000000
