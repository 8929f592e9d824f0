"""PSN arithmetic at the edges; a property test in ``tests/property`` covers the rest."""

from __future__ import annotations

import pytest

from rnic.spec.psn import PSN_BITS, PSN_MASK, PSN_WINDOW, psn_add, psn_count, psn_diff


def test_constants() -> None:
    assert (PSN_BITS, PSN_MASK, PSN_WINDOW) == (24, 0xFFFFFF, 0x7FFFFF)


@pytest.mark.parametrize(
    ("psn", "count", "total"),
    [(0, 0, 0), (0xFFFFFF, 1, 0), (0xFFFFF0, 0x20, 0x10), (0, -1, 0xFFFFFF), (5, 1 << 24, 5)],
)
def test_add(psn: int, count: int, total: int) -> None:
    assert psn_add(psn, count) == total


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (0, 1, -1),
        (0, 0xFFFFFF, 1),
        (0xFFFFFF, 0, -1),
        (0x7FFFFF, 0, 0x7FFFFF),
        (0x800000, 0, -0x800000),
        (0, 0x800000, -0x800000),
        (0x800001, 0, -0x7FFFFF),
    ],
)
def test_diff(a: int, b: int, distance: int) -> None:
    assert psn_diff(a, b) == distance


@pytest.mark.parametrize(
    ("length", "mtu", "count"),
    [(0, 1024, 1), (1, 1024, 1), (1024, 1024, 1), (1025, 1024, 2), (1 << 31, 256, 1 << 23), (8192, 4096, 2)],
)
def test_count(length: int, mtu: int, count: int) -> None:
    assert psn_count(length, mtu) == count
