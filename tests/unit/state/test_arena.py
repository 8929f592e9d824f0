from __future__ import annotations

import mmap
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.mem.space import address_of
from rnic.state.arena import ALIGN, Arena, private_memory

OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


def test_pieces_lie_apart_and_are_zero_at_first() -> None:
    arena = Arena(1 << 16)
    places = [arena.allocate(size) for size in (2000, 3000, 1025)]
    assert places == [0, 2048, 2048 + 3008]
    assert not any(arena.memory)
    assert arena.used == 2048 + 3008 + 1088


def test_small_pieces_of_a_size_lie_side_by_side() -> None:
    arena = Arena(1 << 20)
    assert [arena.allocate(100) for _ in range(3)] == [0, 128, 256]
    assert arena.allocate(5000) == 65_536
    assert [arena.allocate(128) for _ in range(600)][-1] == 65_536 + 5056 + (602 - 512) * 128


def test_what_is_given_back_is_given_again_for_the_same_size_alone() -> None:
    arena = Arena(1 << 12)
    first, second = arena.allocate(100), arena.allocate(100)
    assert first is not None
    arena.free(first, 100)
    assert arena.allocate(200) not in (first, second, None)
    assert arena.allocate(128) == first


def test_a_full_arena_says_so() -> None:
    arena = Arena(4096)
    assert arena.allocate(4096) == 0
    assert arena.allocate(1) is None
    arena.free(0, 4096)
    assert arena.allocate(4096) == 0


def test_words_are_the_memory() -> None:
    arena = Arena(4096)
    words = arena.words(64, 16)
    words[1] = (1 << 64) - 2
    assert (len(words), arena.cells[9], len(arena.cells)) == (2, (1 << 64) - 2, 512)
    assert any(arena.memory[72:80])


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=60))
def test_no_two_pieces_overlap(steps: list[tuple[int, bool]]) -> None:
    arena = Arena(1 << 14)
    held: dict[int, int] = {}
    for size, keep in steps:
        at = arena.allocate(size)
        if at is None:
            continue
        assert at % ALIGN == 0
        assert all(at + size <= other or other + length <= at for other, length in held.items())
        if keep:
            held[at] = size
        else:
            arena.free(at, size)


def test_what_lies_first_has_the_offset_0_and_nothing_else_does() -> None:
    arena = Arena(8_192)
    assert arena.allocate_first(100) == 0
    assert (arena.used, arena.allocate(64)) == (128, 128)
    with pytest.raises(MemoryError, match="the first 64 bytes of 8192 bytes of state are in use"):
        arena.allocate_first(64)
    with pytest.raises(MemoryError, match="or too few"):
        Arena(4_096).allocate_first(5_000)


@pytest.fixture(params=["named", "without a name"])
def no_reserve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has a name for the flag, as from 3.13 on, or has none."""
    if request.param == "named":
        monkeypatch.setattr(mmap, "MAP_NORESERVE", 0x4000, raising=False)
    else:
        monkeypatch.delattr(mmap, "MAP_NORESERVE", raising=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.usefixtures("no_reserve")
def test_a_forked_child_has_a_copy() -> None:
    arena = Arena(4096)
    arena.cells[0] = 1
    child = os.fork()
    if child == 0:
        seen = arena.cells[0]
        arena.cells[0] = 2
        os._exit(seen != 1)
    assert os.waitpid(child, 0)[1] == 0
    assert arena.cells[0] == 1


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="the number is Linux's on x86")
@pytest.mark.usefixtures("no_reserve")
@pytest.mark.skipif(
    not (OVERCOMMIT.exists() and OVERCOMMIT.read_text().strip() in ("0", "1")), reason="this system reserves all memory"
)
def test_private_memory_reserves_addresses_alone() -> None:
    memory = private_memory(1 << 20)
    va = address_of(memoryview(memory))
    flags = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            within = int(found[1], 16) <= va < int(found[2], 16)
        elif within and line.startswith("VmFlags:"):
            flags = line
    assert "nr" in flags.split()
