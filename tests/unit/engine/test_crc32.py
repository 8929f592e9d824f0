"""The engine's CRC-32 against the one that wire/ uses, on every way that it takes."""

from __future__ import annotations

import ctypes
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnic.mem.space import address_of
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow

GUARD = 0xA5


def place(data: bytes, shift: int) -> tuple[bytearray, int]:
    """Memory that holds ``data`` behind ``shift`` bytes, and where it begins."""
    memory = bytearray(bytes(shift) + data + b"\0")
    return memory, address_of(memoryview(memory)) + shift


WIDTHS = (0, 1, 2, 4)
"""Blocks that are multiplied at once; without any, by tables."""


@contextmanager
def at_once(parts: ctypes.CDLL, blocks: int) -> Iterator[None]:
    """By so many blocks, or as many as this processor has."""
    parts.engine_crc32_blocks(blocks)
    try:
        yield
    finally:
        parts.engine_crc32_blocks(max(WIDTHS))


@pytest.fixture(params=WIDTHS)
def function(request: pytest.FixtureRequest, parts: ctypes.CDLL) -> Iterator[ctypes._NamedFuncPointer]:
    with at_once(parts, request.param):
        yield parts.engine_crc32


def test_every_short_length_and_every_alignment(function: ctypes._NamedFuncPointer) -> None:
    data = bytes(n * 167 + 13 & 0xFF for n in range(1100))
    for length in (*range(300), *range(500, 1100, 7)):
        memory, at = place(data[:length], length % 17)
        assert function(0, at, length) == crc32(data[:length]), length
        assert function(0xDEADBEEF, at, length) == crc32(data[:length], 0xDEADBEEF), length
        del memory


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=9000), st.integers(0, 0xFFFF_FFFF), st.integers(0, 63), st.data())
def test_any_bytes_whole_and_in_pieces(
    parts: ctypes.CDLL, data: bytes, state: int, shift: int, draw: st.DataObject
) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    memory, at = place(data, shift)
    expected = crc32(data, state)
    function = parts.engine_crc32
    for blocks in WIDTHS:
        with at_once(parts, blocks):
            assert function(state, at, len(data)) == expected
            assert function(function(state, at, cut), at + cut, len(data) - cut) == expected
    del memory


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=9000), st.integers(0, 0xFFFF_FFFF), st.integers(0, 31), st.integers(0, 31))
def test_copying_on_the_way_copies_just_that(
    parts: ctypes.CDLL, data: bytes, state: int, shift: int, there: int
) -> None:
    memory, at = place(data, shift)
    for blocks in WIDTHS:
        copy = bytearray([GUARD]) * (there + len(data) + 40)
        to = address_of(memoryview(copy)) + there
        with at_once(parts, blocks):
            assert parts.engine_crc32_copy(state, to, at, len(data)) == crc32(data, state)
        assert copy == bytes([GUARD]) * there + data + bytes([GUARD]) * 40
    del memory


def test_it_carries_a_flow_s_icrc(parts: ctypes.CDLL) -> None:
    """From the seed of the masked headers on, over a frame whose BTH byte 4 is masked."""
    for flow in (Flow(b"\x0a\0\0\1", b"\x0a\0\0\2", 49152), Flow(bytes(15) + b"\1", bytes(15) + b"\2", 49152)):
        for length in (12, 40, 1036, 4108):
            frame = bytes(n * 89 & 0xFF for n in range(length))
            masked = frame[:4] + b"\xff" + frame[5:]
            memory, at = place(masked, 3)
            assert parts.engine_crc32(flow.seed(length + 4), at, length) == flow.icrc(frame)
            del memory


def test_a_change_of_the_fifth_byte_may_be_one_of_the_state(parts: ctypes.CDLL) -> None:
    data = bytearray(random.Random(5).randbytes(40))
    for state in (0, 0xFFFF_FFFF, 0x1234_5678):
        for change in range(256):
            changed = data[:4] + bytes([data[4] ^ change]) + data[5:]
            moved = state ^ (parts.engine_crc32_fifth(change) & 0xFFFF_FFFF)
            assert crc32(data, moved) == crc32(changed, state)


def test_this_processor_takes_the_way_that_it_has(parts: ctypes.CDLL) -> None:
    with open("/proc/cpuinfo", encoding="ascii") as file:
        flags = next((set(line.split()) for line in file if line.startswith("flags")), set())
    wide = 4 if {"avx512f", "avx512vl"} <= flags else 2 if "avx2" in flags else 1
    has = 0 if not {"pclmulqdq", "sse4_1"} <= flags else wide if "vpclmulqdq" in flags else 1
    assert [parts.engine_crc32_blocks(blocks) for blocks in WIDTHS] == [min(blocks, has) for blocks in WIDTHS]


def test_no_wide_register_stays_in_use(c_program: Callable[..., Path]) -> None:
    """Else whatever comes next waits: a stream of 1 MiB WRITEs took a third longer."""
    program = c_program("wide_state.c", "queue_pair/crc32.c", "-O2")
    ended = subprocess.run([str(program)], check=False, capture_output=True, text=True)
    if ended.returncode == 2:
        pytest.skip("this processor does not say which registers are in use")
    assert ended.returncode == 0, ended.stdout
