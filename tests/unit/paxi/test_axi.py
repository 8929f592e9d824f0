"""Where the bytes of a burst lie, by the examples of IHI 0022 A3.4 and by hand."""

from __future__ import annotations

import pytest

from rnic.paxi.axi import Address, beat_bytes, fault, runs, span
from rnic.paxi.window import write_beats
from rnic.spec.axi import Burst


@pytest.mark.parametrize(
    ("addr", "len_", "size", "beats"),
    [
        (0x00, 3, 2, [(0, 4), (4, 8), (8, 12), (12, 16)]),
        (0x07, 3, 2, [(7, 8), (8, 12), (12, 16), (16, 20)]),  # figure A3-13: unaligned on a 32-bit bus
        (0x01, 4, 0, [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]),  # narrow
        (0x1005, 1, 3, [(0x1005, 0x1008), (0x1008, 0x1010)]),
    ],
)
def test_bytes_of_each_beat(addr: int, len_: int, size: int, beats: list[tuple[int, int]]) -> None:
    address = Address(0, addr, len_, size)
    assert [beat_bytes(address, number) for number in range(len_ + 1)] == beats
    assert span(address) == (beats[0][0], beats[-1][1])


def test_a_wrapping_burst_fills_its_container() -> None:
    """A CPU's fill of a line of 32 bytes whose word at 14h it wants first."""
    address = Address(0, 0x114, 7, 2, Burst.WRAP)
    starts = [beat_bytes(address, number)[0] for number in range(8)]
    assert starts == [0x114, 0x118, 0x11C, 0x100, 0x104, 0x108, 0x10C, 0x110]
    assert span(address) == (0x100, 0x120)
    aligned = Address(0, 0x100, 1, 4, Burst.WRAP)
    assert [beat_bytes(aligned, number) for number in range(2)] == [(0x100, 0x110), (0x110, 0x120)]


def test_all_beats_of_a_fixed_burst_are_of_the_same_bytes() -> None:
    address = Address(0, 0x103, 15, 2, Burst.FIXED)
    assert {beat_bytes(address, number) for number in range(16)} == {(0x103, 0x104)} == {span(address)}


@pytest.mark.parametrize(
    ("address", "lanes", "why"),
    [
        (Address(0, 0, 255, 0), 64, ""),
        (Address(0, 0, 63, 6), 64, ""),
        (Address(0, 0xFC0, 0, 6), 64, ""),
        (Address(0, 0, 64, 6), 64, "4 KB boundary"),
        (Address(0, 0xFFF, 1, 0), 64, "4 KB boundary"),
        (Address(0, 0xFFF, 0, 6), 64, ""),  # the aligned beat ends at the boundary
        (Address(0, 0, 0, 6), 32, "size"),
        (Address(0, 0, 256, 0), 64, "length"),
        (Address(0, 0, 31, 7), 128, ""),
        (Address(0, 0, 0, 7), 64, "size"),
        (Address(0, 3, 15, 2, Burst.FIXED), 64, ""),
        (Address(0, 0, 16, 2, Burst.FIXED), 64, "length"),
        (Address(0, 4, 1, 2, Burst.WRAP), 64, ""),
        (Address(0, 0xF80, 15, 7, Burst.WRAP), 128, ""),  # the container ends at the boundary
        (Address(0, 0, 0, 2, Burst.WRAP), 64, "length"),
        (Address(0, 0, 2, 2, Burst.WRAP), 64, "length"),
        (Address(0, 0, 31, 2, Burst.WRAP), 64, "length"),
        (Address(0, 2, 3, 2, Burst.WRAP), 64, "alignment"),
        (Address(0, 0, 0, 0, 3), 64, "burst type"),
    ],
)
def test_what_is_refused(address: Address, lanes: int, why: str) -> None:
    assert fault(address, lanes) == why


@pytest.mark.parametrize(
    ("strobe", "found"),
    [(0, []), (1, [(0, 1)]), (0b1111, [(0, 4)]), (0b1011_0110, [(1, 3), (4, 6), (7, 8)]), (1 << 63, [(63, 64)])],
)
def test_runs_of_strobes(strobe: int, found: list[tuple[int, int]]) -> None:
    assert runs(strobe) == found


def test_beats_of_an_unaligned_write_with_a_hole() -> None:
    first, second = write_beats(Address(0, 6, 1, 2), memoryview(b"abcde"), 8, [1, 1, 0, 1, 1])
    assert (first.data, first.strobe, first.last) == (b"\0\0\0\0\0\0ab", 0b1100_0000, False)
    assert (second.data, second.strobe, second.last) == (b"cde\0\0\0\0\0", 0b0110, True)


def test_a_write_that_ends_before_its_last_beat_does() -> None:
    (beat,) = write_beats(Address(0, 0, 0, 3), memoryview(b"abc"), 8)
    assert (beat.data, beat.strobe, beat.last) == (b"abc\0\0\0\0\0", 0b111, True)
