"""What a program may do with its memory is what it may do now, not what it could when it registered it."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import sys
from collections.abc import Iterator

import pytest

from rnic.nic_process.client_maps import ClientMaps
from rnic.nic_process.client_memory import ProgramMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc/PID/maps is Linux's")
PAGE = mmap.PAGESIZE
PAGES = 6
NONE, READ, WRITE, EXECUTE = 0, 1, 2, 4


@pytest.fixture
def pages() -> Iterator[tuple[mmap.mmap, int]]:
    """Six pages of this process, and their address; private ones, since into shared ones the kernel forces nothing."""
    memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = ctypes.c_char.from_buffer(memory)
    yield memory, ctypes.addressof(first)
    del first
    memory.close()


def protect(va: int, length: int, rights: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(va), ctypes.c_size_t(length), rights) == 0


@pytest.fixture(params=["asked", "read"])
def maps(request: pytest.FixtureRequest) -> Iterator[ClientMaps]:
    made = ClientMaps(os.getpid())
    if request.param == "read":
        made._query = False  # as on a kernel without PROCMAP_QUERY
    yield made
    made.close()


def test_every_page_and_span_against_the_rights_that_were_given(maps: ClientMaps, pages: tuple[mmap.mmap, int]) -> None:
    _, va = pages
    rng = random.Random(1)
    for _ in range(20):
        rights = [rng.choice((NONE, READ, READ | WRITE, READ | EXECUTE)) for _ in range(PAGES)]
        for page, right in enumerate(rights):
            protect(va + page * PAGE, PAGE, right)
        maps.invalidate()
        for _ in range(30):
            start = rng.randrange(PAGES * PAGE)
            length = rng.randrange(1, PAGES * PAGE - start + 1)
            touched = rights[start // PAGE : (start + length - 1) // PAGE + 1]
            for writable in (False, True):
                need = READ | WRITE if writable else READ
                assert maps.covers(va + start, length, writable) is all(right & need == need for right in touched)
    protect(va, PAGES * PAGE, READ | WRITE)


def test_rights_are_looked_up_at_each_access(pages: tuple[mmap.mmap, int]) -> None:
    """The kernel would write through read-only and executable pages; the program itself could not."""
    memory, va = pages
    port = ProgramMemory(os.open("/proc/self/mem", os.O_RDWR), os.getpid())
    assert port.write(va, b"one")
    for rights in (READ, READ | EXECUTE, NONE):
        protect(va, PAGE, rights)
        port._maps.invalidate()
        assert not port.write(va, b"two")
        assert port.read(va, bytearray(3)) is (rights != NONE)
        assert not port.write(va + PAGE - 1, b"over the edge")
        protect(va, PAGE, READ | WRITE)
        port._maps.invalidate()
    assert memory[:3] == b"one"
    assert port.write(va, b"two")
    assert memory[:3] == b"two"
    port.close()


def test_no_address_raises(maps: ClientMaps) -> None:
    for va in (0, 8, 1 << 47, (1 << 64) - 4096, (1 << 64) - 1):
        for length in (1, 4096, 1 << 62):
            assert not maps.covers(va, length, True)
