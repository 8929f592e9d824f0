"""Descriptors and receive entries as the device reads them from the driver's memory."""

from __future__ import annotations

import pytest

from rnic.mem.space import SimAddressSpace
from rnic.rings.sqe import FLAG_INLINE, FLAG_LIST, SGE_STRUCT, SQE_STRUCT
from rnic.spec.opcodes import WR_SEND
from rnic.state.queue_pair import SEND_WQE
from rnic.state.queues import SEND_RING
from rnic.transport.message import Message
from rnic.transport.wqe import ReceiveRing, SendRing

ENTRIES, SLAB, STRIDE = 4, 128, 48


class FarSpace(SimAddressSpace):
    """Memory of another process: read and written, never seen."""

    def views(self, va: int, length: int) -> memoryview | None:
        return None


class NearSpace(SimAddressSpace):
    """Memory that is seen, and cannot be read in any other way."""

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        return False


class DeadSpace(FarSpace):
    """Memory of a process that is gone."""

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        return False


class FadingSpace(FarSpace):
    """Memory of a process that goes after so many reads."""

    def __init__(self, reads: int) -> None:
        super().__init__()
        self._left = reads

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        self._left -= 1
        return self._left >= 0 and super().read(va, buf)


@pytest.fixture(params=[SimAddressSpace, FarSpace], ids=["near", "far"])
def space(request: pytest.FixtureRequest) -> SimAddressSpace:
    made: SimAddressSpace = request.param()
    return made


class Receives:
    """A receive ring of four entries, three scatter entries each."""

    def __init__(self, space: SimAddressSpace) -> None:
        self.memory = bytearray(ENTRIES * STRIDE)
        self.tail = 0
        self.heads: list[int] = []
        self.ring = ReceiveRing(space, space.map(self.memory).va, ENTRIES, STRIDE, lambda: self.tail, self.heads.append)

    def put(self, *sges: tuple[int, int, int]) -> None:
        for place, sge in enumerate(sges):
            SGE_STRUCT.pack_into(self.memory, self.tail * STRIDE + place * 16, *sge)
        self.tail = (self.tail + 1) % ENTRIES


def test_entries_come_in_order_and_wrap(space: SimAddressSpace) -> None:
    receives = Receives(space)
    ring = receives.ring
    assert (ring.available(), ring.take()) == (0, None)
    for lap in range(5):
        receives.put((0x1000 + lap, 5, 9))
        assert ring.available() == 1
        wqe = ring.take()
        assert wqe is not None
        assert (wqe.index, wqe.sges[0]) == (lap % ENTRIES, (0x1000 + lap, 5, 9))
    assert receives.heads == [1, 2, 3, 0, 1]
    for _ in range(3):
        receives.put()
    assert ring.available() == 3


def test_an_entry_of_zeros_ends_the_list(space: SimAddressSpace) -> None:
    receives = Receives(space)
    receives.put((1, 2, 3), (0, 0, 0), (4, 5, 6))
    receives.put((1, 2, 0), (7, 0, 8), (4, 5, 6))
    receives.put()
    taken = [receives.ring.take() for _ in range(3)]
    assert [wqe and wqe.sges for wqe in taken] == [[(1, 2, 3)], [(1, 2, 0), (7, 0, 8), (4, 5, 6)], []]


def test_a_tail_beyond_the_ring_is_an_empty_ring(space: SimAddressSpace) -> None:
    receives = Receives(space)
    receives.tail = ENTRIES
    assert (receives.ring.available(), receives.ring.take()) == (0, None)
    receives.tail = ENTRIES - 1
    assert receives.ring.available() == 3


def test_memory_that_is_gone_gives_nothing() -> None:
    space = DeadSpace()
    receives = Receives(space)
    receives.put((1, 2, 3))
    assert receives.ring.take() is None
    memory, ring = send_ring(space)
    SQE_STRUCT.pack_into(memory, 0, 7, WR_SEND, 0, 0, 0, 1, 2, 0, 0)
    assert fetch(ring, 0) is None


def test_the_rest_of_a_descriptor_may_be_gone() -> None:
    """Its slot could be read, and the list or the inline data behind it not."""
    for flags, length, count in ((FLAG_LIST, 0, 1), (FLAG_INLINE, 8, 0)):
        space = FadingSpace(reads=1)
        memory, ring = send_ring(space)
        SQE_STRUCT.pack_into(memory, 0, 7, WR_SEND, flags, 0, 0, length, count, 0, 0)
        message = fetched(ring, 0)
        assert (ring.inline(message) if flags & FLAG_INLINE else ring.sges(message)) is None


def test_no_word_of_a_shared_record_says_how_much_is_read(space: SimAddressSpace) -> None:
    """A program that runs the engine itself may store what it likes there: more than any ring has is not allocated."""
    receives = Receives(space)
    receives.put((1, 2, 3))
    receives.ring.view = None  # as where the program has not shared the ring itself
    receives.ring.stride = 1 << 40
    assert receives.ring.take() is None


def test_memory_in_reach_is_read_where_it_lies() -> None:
    space = NearSpace()
    receives = Receives(space)
    memory, ring = send_ring(space)
    receives.put((1, 2, 3))
    assert receives.ring.take() is not None
    SQE_STRUCT.pack_into(memory, 0, 7, WR_SEND, 0, 0, 0, 1, 2, 0, 0)
    assert fetch(ring, 0) is not None


def fetch(ring: SendRing, index: int) -> Message | None:
    message = Message(memoryview(bytearray(SEND_WQE.size)), 0, index)
    return message if ring.fetch(message) else None


def fetched(ring: SendRing, index: int) -> Message:
    message = fetch(ring, index)
    assert message is not None
    return message


def send_ring(space: SimAddressSpace) -> tuple[bytearray, SendRing]:
    memory = bytearray(ENTRIES * (64 + SLAB))
    record = memoryview(bytearray(SEND_RING.size))
    return memory, SendRing(record, 0, space, space.map(memory).va, ENTRIES, SLAB)


@pytest.mark.parametrize(("length", "valid"), [(30, True), (29, False), (31, False), (0, False)])
def test_a_lists_lengths_add_up(space: SimAddressSpace, length: int, valid: bool) -> None:
    memory, ring = send_ring(space)
    SQE_STRUCT.pack_into(memory, 64, 7, WR_SEND, FLAG_LIST, 0, 0, length, 2, 0, 0)
    for place, sge in enumerate(((100, 10, 1), (200, 20, 2))):
        SGE_STRUCT.pack_into(memory, ENTRIES * 64 + SLAB + 16 * place, *sge)
    message = fetched(ring, 1)
    assert (message.index, message.wqe_id, message.opcode, message.list, message.inline) == (1, 7, WR_SEND, 1, 0)
    assert ring.sges(message) == ([(100, 10, 1), (200, 20, 2)] if valid else None)


@pytest.mark.parametrize(("count", "valid"), [(0, True), (8, True), (9, False), (1 << 31, False)])
def test_a_list_stays_in_its_slot(space: SimAddressSpace, count: int, valid: bool) -> None:
    memory, ring = send_ring(space)
    SQE_STRUCT.pack_into(memory, 0, 7, WR_SEND, FLAG_LIST, 0, 0, 0, count, 0, 0)
    assert ring.sges(fetched(ring, 0)) == ([] if valid else None)


@pytest.mark.parametrize(("length", "valid"), [(0, True), (SLAB, True), (SLAB + 1, False)])
def test_inline_data_stays_in_its_slot(space: SimAddressSpace, length: int, valid: bool) -> None:
    memory, ring = send_ring(space)
    memory[-SLAB:] = bytes(range(SLAB))
    SQE_STRUCT.pack_into(memory, 3 * 64, 7, WR_SEND, FLAG_INLINE, 0, 0, length, 0, 0, 0)
    data = ring.inline(fetched(ring, 3))
    assert (None if data is None else bytes(data)) == (bytes(range(length)) if valid else None)
