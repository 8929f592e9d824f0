"""Sheets that a wire in memory trades (engine/io/loopback.c) against a list, and the bell of who listens to it."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnic.mem.space import address_of
from rnic.verbs import enums as e
from tests.unit.engine.test_loopback import joined
from tests.unit.engine.test_udp import Slot

ROOM, TX_PAGES, TX_PAGE_BYTES = 1 << 20, 64, 4096


@pytest.fixture(scope="module")
def library(builds: Callable[..., ctypes.CDLL], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = builds(tmp_path_factory.mktemp("wire") / "wire.so", "io/loopback.c")
    made.loopback_make.argtypes, made.loopback_make.restype = (ctypes.c_void_p, ctypes.c_uint64), ctypes.c_void_p
    made.loopback_trade.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t)
    made.loopback_trade.restype = ctypes.c_void_p
    return made


Ring = ctypes.CFUNCTYPE(None, ctypes.c_size_t)
StandIn = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t)


class Sleeper(ctypes.Structure):
    """``struct loopback_sleeper``."""

    _fields_ = (("wake", Ring), ("run_inline", StandIn), ("self", ctypes.c_size_t))


class Wire:
    """A wire in C, and the buffer that its sender has."""

    def __init__(self, library: ctypes.CDLL, room: int = ROOM) -> None:
        self.library = library
        self.memory = bytearray(room)
        self.sleepers: list[Sleeper] = []
        self.wire = ctypes.c_void_p(library.loopback_make(address_of(memoryview(self.memory)), room))
        self._libc = ctypes.CDLL(None)
        self._libc.malloc.argtypes, self._libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
        self._libc.free.argtypes = (ctypes.c_void_p,)
        self.buffer = self._libc.malloc(TX_PAGE_BYTES)

    def free(self) -> None:
        self._libc.free(self.buffer)
        self.library.loopback_free(self.wire)

    def put(self, data: bytes) -> None:
        kept = ctypes.create_string_buffer(data, len(data))
        what = Slot(buffer=ctypes.addressof(kept), size=len(data), segment=1)
        assert self.library.loopback_put(self.wire, ctypes.byref(what)) == 0

    def trade(self, bursts: list[bytes]) -> bool:
        """Lay bursts out in the buffer, and trade it."""
        slots = (Slot * len(bursts))()
        at = self.buffer
        for slot, data in zip(slots, bursts, strict=True):
            ctypes.memmove(at, data, len(data))
            slot.buffer, slot.size, slot.segment = at, len(data), 1
            at += len(data)
        other = self.library.loopback_trade(self.wire, slots, len(bursts), self.buffer, TX_PAGE_BYTES)
        if other is None:
            return False
        assert other != self.buffer
        self.buffer = other
        ctypes.memset(other, 0xEE, TX_PAGE_BYTES)  # a reader that still used it would see that
        return True

    def listen(self, bell: int, run_inline: Callable[[int], int] | None = None) -> bool:
        """Whether nothing waits; whoever puts something is to call then."""
        ring = Ring(lambda _: os.eventfd_write(bell, 1))
        sleeper = Sleeper(ring, StandIn() if run_inline is None else StandIn(run_inline), 7)
        self.sleepers.append(sleeper)  # one that runs may not go
        return bool(self.library.loopback_listen(self.wire, ctypes.byref(sleeper)))

    def take(self, count: int) -> list[Slot]:
        slots = (Slot * max(count, 1))()
        return list(slots[: self.library.loopback_take(self.wire, slots, count)])


def seen(slot: Slot) -> bytes:
    return ctypes.string_at(slot.buffer, slot.size)


STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, ROOM // 3)),
    st.tuples(st.just("trade"), st.integers(1, 4)),
    st.tuples(st.just("take"), st.integers(0, 6)),
)


@pytest.mark.slow
@given(st.lists(STEPS, max_size=120))
@settings(max_examples=60, deadline=None)
def test_what_is_traded_and_put_is_taken_in_order_as_it_was(library: ctypes.CDLL, steps: list[tuple[str, int]]) -> None:
    wire = Wire(library)
    waiting: deque[bytes] = deque()
    looked_at: list[tuple[bytes, Slot]] = []
    for turn, (what, number) in enumerate(steps):
        byte = bytes([turn & 0x7F])
        if what == "put":
            wire.put(byte * number)
            if not library.loopback_lost(wire.wire):
                waiting.append(byte * number)
            else:
                held = sum(map(len, waiting)) + sum(len(was) for was, _ in looked_at)
                assert held + number > ROOM // 2, "lost although more than half of the room was free"
        elif what == "trade":
            bursts = [byte * (place + 1) * 100 for place in range(number)]
            if wire.trade(bursts):
                waiting += bursts
            else:
                assert len(waiting) + len(looked_at) >= TX_PAGES, "refused although there are buffers"
        else:
            got = wire.take(number)
            assert len(got) == min(number, len(waiting))
            looked_at = [(waiting.popleft(), slot) for slot in got]
        assert all(seen(slot) == was for was, slot in looked_at), "what was taken last changed"
    wire.free()


def test_no_buffer_is_left_until_one_has_been_looked_at(library: ctypes.CDLL) -> None:
    wire = Wire(library)
    for number in range(TX_PAGES):
        assert wire.trade([bytes([number]), b"and its second burst"])
    assert not wire.trade([b"one more"])
    assert [seen(slot) for slot in wire.take(1)] == [b"\0"]
    assert wire.take(0) == []
    assert not wire.trade([b"the second burst of the first is not looked at yet"])
    wire.take(1)
    wire.take(0)
    assert wire.trade([b"one more"])
    wire.free()


def test_a_wire_with_little_room_and_a_closed_one_have_no_buffers(library: ctypes.CDLL) -> None:
    small, closed = Wire(library, ROOM - 1), Wire(library)
    library.loopback_close(closed.wire)
    for wire in (small, closed):
        mine = wire.buffer
        assert not wire.trade([b"x"])
        assert wire.buffer == mine
        wire.free()


@pytest.fixture
def bell() -> Iterator[int]:
    made = os.eventfd(0, os.EFD_NONBLOCK)
    yield made
    os.close(made)


def rings(bell: int) -> bool:
    heard = bool(select.select([bell], [], [], 0)[0])
    if heard:
        os.eventfd_read(bell)
    return heard


@pytest.mark.parametrize("how", ["put", "trade"])
def test_the_bell_rings_once_for_who_listens_to_an_empty_wire(library: ctypes.CDLL, bell: int, how: str) -> None:
    wire = Wire(library)

    def send() -> None:
        if how == "put":
            wire.put(b"x")
        else:
            wire.trade([b"x"])
        library.loopback_notify(wire.wire)

    send()
    assert not wire.listen(bell), "something waits"
    send()
    assert not rings(bell), "nobody listens who found something"
    wire.take(2)
    assert wire.listen(bell)
    assert not rings(bell)
    send()
    assert rings(bell)
    send()
    assert not rings(bell), "once is enough"
    wire.take(2)
    assert wire.listen(bell)
    library.loopback_unlisten(wire.wire)
    send()
    assert not rings(bell), "who listens no more is not called"
    wire.free()


def test_who_stands_in_for_a_sleeper_is_asked_first_and_once(library: ctypes.CDLL, bell: int) -> None:
    wire = Wire(library)
    asked: list[int] = []

    def run_inline(me: int) -> int:
        asked.append(me)
        return len(asked) != 2

    assert wire.listen(bell, run_inline)
    for number, (calls, rang) in enumerate([(1, False), (1, False), (2, True), (3, False)]):
        if number >= 2:
            wire.take(2)
            assert wire.listen(bell, run_inline)
        wire.put(b"x")
        library.loopback_notify(wire.wire)
        assert (len(asked), rings(bell)) == (calls, rang)
    assert set(asked) == {7}
    wire.free()


def test_nobody_leaves_a_wire_while_another_stands_in_for_him(library: ctypes.CDLL, bell: int) -> None:
    wire = Wire(library)
    stands, may_go, left = threading.Event(), threading.Event(), threading.Event()

    def run_inline(_: int) -> int:
        stands.set()
        assert may_go.wait(20)
        assert not left.is_set()
        return wire.listen(bell)

    def leave() -> None:
        library.loopback_unlisten(wire.wire)
        left.set()

    assert wire.listen(bell, run_inline)
    wire.put(b"x")
    caller = threading.Thread(target=library.loopback_notify, args=(wire.wire,))
    leaver = threading.Thread(target=leave)
    caller.start()
    assert stands.wait(20)
    leaver.start()
    wire.take(1)
    assert not left.wait(0.05)
    may_go.set()
    caller.join(20)
    leaver.join(20)
    assert left.is_set()
    wire.put(b"x")
    library.loopback_notify(wire.wire)
    assert not rings(bell), "what the other one did last counts no more"
    wire.free()


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_concurrent_puts_trades_and_takes_do_not_interfere(c_program: Callable[..., Path], sanitizer: str) -> None:
    program = c_program("loopback_threads.c", "io/loopback.c", f"-fsanitize={sanitizer}")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "3600\n"), done.stderr


def test_a_nic_that_nobody_drives_takes_its_packets_by_its_own_thread() -> None:
    a, b = joined()
    b.ctx.runtime.start()
    a.mr.buffer[:] = bytes(n * 11 & 0xFF for n in range(1 << 18))
    assert a.write(b, 1 << 18, drives=False) == e.IBV_WC_SUCCESS
    assert b.mr.buffer == a.mr.buffer
    a.ctx.close()
    b.ctx.close()
