"""The ways to memory: bytes move whole or there is an error, and never a signal."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rnic.mem.space import address_of

PAGE = mmap.PAGESIZE
CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t)


class Table(ctypes.Structure):
    """``struct engine_memory``."""

    _fields_ = (("read", CALL), ("write", CALL))


class Reach:
    """One way, for what ``self`` stands for."""

    def __init__(self, parts: ctypes.CDLL, name: str, *numbers: int) -> None:
        self.table = Table.in_dll(parts, name)
        # as long as the longest of them: no mappings stand between
        self.what = (ctypes.c_int * 64)(*numbers)
        self.here = ctypes.addressof(self.what)

    def read(self, va: int, length: int) -> bytes | None:
        buffer = bytearray(length + 1)
        done = self.table.read(self.here, va, address_of(memoryview(buffer)), length)
        assert done in (0, -1)
        assert not buffer[length]
        return bytes(buffer[:length]) if not done else None

    def write(self, va: int, data: bytes) -> bool:
        buffer = bytearray(data + b"\0")
        done = self.table.write(self.here, va, address_of(memoryview(buffer)), len(data))
        assert done in (0, -1)
        return not done


@contextmanager
def guarded(parts: ctypes.CDLL) -> Iterator[Reach]:
    """The way by the processor; faults are caught meanwhile."""
    assert parts.fault_guard_install() == 0
    yield Reach(parts, "guarded_process", os.getpid())
    parts.fault_guard_remove()


@pytest.fixture(params=["own", "guarded", "file"])
def reach(request: pytest.FixtureRequest, parts: ctypes.CDLL) -> Iterator[Reach]:
    if request.param == "own":
        yield Reach(parts, "own_process", os.getpid())
        return
    if request.param == "guarded":
        with guarded(parts) as way:
            yield way
        return
    fd = os.open("/proc/self/mem", os.O_RDWR)
    yield Reach(parts, "proc_mem", fd)
    os.close(fd)


@pytest.fixture
def pages() -> tuple[int, mmap.mmap]:
    """Two pages that can be used and one behind them that is out of reach; where they begin."""
    fd = os.memfd_create("pages")
    os.ftruncate(fd, 3 * PAGE)
    memory = mmap.mmap(fd, 3 * PAGE)
    os.ftruncate(fd, 2 * PAGE)
    os.close(fd)
    return address_of(memoryview(memory)), memory


@pytest.mark.parametrize("length", [0, 1, 8, 4096, PAGE + 3])
def test_bytes_move(reach: Reach, pages: tuple[int, mmap.mmap], length: int) -> None:
    at, memory = pages
    data = bytes(n * 31 + 7 & 0xFF for n in range(length))
    assert reach.write(at + 5, data)
    assert memory[5 : 5 + length] == data
    assert reach.read(at + 5, length) == data


def test_what_is_out_of_reach_is_an_error(reach: Reach, pages: tuple[int, mmap.mmap]) -> None:
    at, memory = pages
    end = at + 2 * PAGE
    for va in (0, 1, (1 << 64) - 4096, 1 << 63, (1 << 47) + 5):
        assert reach.read(va, 8) is None
        assert not reach.write(va, bytes(8))
    assert reach.read(end - 8, 9) is None
    assert not reach.write(end - PAGE - 8, bytes(2 * PAGE))
    assert reach.read(end - 8, 8) == bytes(8)
    assert memory[:8] == bytes(8)


def test_memory_that_is_given_back_is_out_of_reach(reach: Reach) -> None:
    memory = mmap.mmap(-1, PAGE)
    view = memoryview(memory)
    at = address_of(view)
    assert reach.write(at, b"here")
    view.release()
    memory.close()
    assert reach.read(at, 4) is None
    assert not reach.write(at, b"gone")


def test_read_only_memory_of_one_s_own_is_not_stored_to(parts: ctypes.CDLL) -> None:
    """By a file of /proc it would be: rights are checked before."""
    with open("/proc/self/exe", "rb") as file, mmap.mmap(file.fileno(), PAGE, prot=mmap.PROT_READ) as memory:
        view = memoryview(memory)
        assert not Reach(parts, "own_process", os.getpid()).write(address_of(view), b"\0")
        with guarded(parts) as way:
            assert not way.write(address_of(view), b"\0")
            assert way.read(address_of(view), 4) == b"\x7fELF"
        assert bytes(view[:4]) == b"\x7fELF"
        view.release()


_CHILD = """
import ctypes, sys
buffer = ctypes.create_string_buffer(b"child")
print(ctypes.addressof(buffer), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_process_that_is_gone_is_out_of_reach(parts: ctypes.CDLL) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-S", "-c", _CHILD], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        at = int(child.stdout.readline())
        fd = os.open(f"/proc/{child.pid}/mem", os.O_RDWR)
        ways = [Reach(parts, "own_process", child.pid), Reach(parts, "proc_mem", fd)]
        assert [way.read(at, 5) for way in ways] == [b"child"] * 2
        child.stdin.close()
        child.wait(20)
    assert [way.read(at, 5) for way in ways] == [None] * 2
    assert [way.write(at, b"x") for way in ways] == [False] * 2
    os.close(fd)


def test_a_program_s_own_rights_count(parts: ctypes.CDLL) -> None:
    """The kernel itself would store through a read-only page by this way: its maps say what the program may."""
    with mmap.mmap(-1, 3 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        view = memoryview(memory)
        at = address_of(view)
        fds = [os.open(f"/proc/self/{name}", flag) for name, flag in (("mem", os.O_RDWR), ("maps", os.O_RDONLY))]
        way = Reach(parts, "proc_mem_checked", *fds)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(at + PAGE), ctypes.c_size_t(PAGE), mmap.PROT_READ) == 0
        if not way.write(at, b"mine"):
            assert libc.ioctl(fds[1], 0, None) == -1  # before Linux 6.11 nothing is in reach
            pytest.skip("the kernel has no PROCMAP_QUERY")
        assert way.read(at, 4) == b"mine"
        assert way.read(at + PAGE - 2, 4) == bytes(4)
        assert not way.write(at + PAGE - 2, b"over")
        assert not way.write(at + PAGE, b"x")
        assert view[PAGE - 2] == view[PAGE] == 0
        assert libc.mprotect(ctypes.c_void_p(at + 2 * PAGE), ctypes.c_size_t(PAGE), 0) == 0
        assert way.read(at + 2 * PAGE, 1) is None
        assert way.read((1 << 64) - 4, 8) is None
        assert libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(3 * PAGE), mmap.PROT_READ | mmap.PROT_WRITE) == 0
        for fd in fds:
            os.close(fd)
        assert not way.write(at, b"gone")
        view.release()


class Mapping(ctypes.Structure):
    """``struct own_process_file``."""

    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("fd", ctypes.c_int))


class Own(ctypes.Structure):
    """``struct own_process``."""

    _fields_ = (
        ("pid", ctypes.c_int),
        ("files", Mapping * 2),
        ("desk", ctypes.c_void_p),
        ("desk_bytes", ctypes.c_size_t),
    )


class Piece(ctypes.Structure):
    """``struct engine_piece``."""

    _fields_ = (("va", ctypes.c_uint64), ("here", ctypes.c_uint64), ("length", ctypes.c_size_t))


SEVERAL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Piece), ctypes.c_size_t)


@pytest.fixture
def several(parts: ctypes.CDLL) -> Iterator[tuple[Own, memoryview]]:
    """A file in memory as packets lie in it, with its desk at the end."""
    fd = os.memfd_create("packets")
    os.ftruncate(fd, 4 * PAGE)
    memory = mmap.mmap(fd, 4 * PAGE)
    base = address_of(memoryview(memory))
    own = Own(os.getpid(), (Mapping * 2)(Mapping(base, 4 * PAGE, fd)), base + 3 * PAGE, PAGE)
    yield own, memoryview(memory)
    os.close(fd)


def all_at_once(parts: ctypes.CDLL, own: Own, way: str, pieces: list[tuple[int, int, int]]) -> int:
    offset = {"read": 2, "write": 3}[way] * ctypes.sizeof(ctypes.c_void_p)
    call = SEVERAL.from_address(ctypes.addressof(Table.in_dll(parts, "own_process")) + offset)
    made = (Piece * len(pieces))(*(Piece(*piece) for piece in pieces))
    return int(call(ctypes.addressof(own), made, len(pieces)))


def test_several_pieces_move_in_one_call(parts: ctypes.CDLL, several: tuple[Own, memoryview]) -> None:
    """Each to its place, whatever lies between them in the file."""
    own, packets = several
    base = own.files[0].base
    user = bytearray(range(256)) * 8
    view = memoryview(user)
    at = address_of(view)
    places = [(at + 8 * n, base + 40 + 48 * n, 8) for n in range(64)]
    assert all_at_once(parts, own, "read", places) == 0
    for n in range(64):
        assert packets[40 + 48 * n :][:8] == view[8 * n : 8 * n + 8]
    back = [(at + 1000 - 8 * n, here, 8) for n, (_, here, _) in enumerate(places)]
    assert all_at_once(parts, own, "write", back) == 0
    for n in range(64):
        assert view[1000 - 8 * n :][:8] == packets[40 + 48 * n :][:8]


def test_several_pieces_with_one_out_of_reach_are_an_error(parts: ctypes.CDLL, several: tuple[Own, memoryview]) -> None:
    own, _ = several
    base = own.files[0].base
    with mmap.mmap(-1, PAGE, prot=mmap.PROT_READ) as memory:
        view = memoryview(memory)
        at = address_of(view)
        for way in ("read", "write"):
            assert all_at_once(parts, own, way, [(at, base, 8), (1 << 20, base + 16, 8)]) == -1
            assert all_at_once(parts, own, way, [(at, base + 16, 8), (at, base, 8)]) == -1, "they do not ascend"
            assert all_at_once(parts, own, way, [(at, base + 3 * PAGE, 8), (at, base + 8 * PAGE, 8)]) == -1
            assert all_at_once(parts, own, way, [(at, base + 16 * n, 8) for n in range(65)]) == -1
        assert all_at_once(parts, own, "read", [(at, base, 8), (at, base + 16, 8)]) == 0
        assert all_at_once(parts, own, "write", [(at, base, 8), (at, base + 16, 8)]) == -1
        view.release()
