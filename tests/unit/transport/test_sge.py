"""Payloads over several extents, against plain bytes; with memory that is in reach and memory that is not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.mem.space import SimAddressSpace
from rnic.mem.table import MemoryEntry, MemoryTable
from rnic.transport.sge import ANY_BINDING, Inline, Payload, local_payload, remote_payload

SIZE = 512
PIECES = st.lists(st.tuples(st.integers(0, SIZE - 64), st.integers(1, 64), st.booleans()), min_size=1, max_size=6)


class Memory:
    """One region twice: with a view of its bytes, and reached through the port alone."""

    def __init__(self) -> None:
        self.table = MemoryTable(random.Random(1))
        self.data = bytearray(random.Random(2).randbytes(SIZE))
        space = SimAddressSpace()
        mapping = space.map(self.data)
        self.va = mapping.va
        self.entries = []
        for view in (mapping.view, None):
            entry = MemoryEntry(self.table.alloc_key(), 1, 0xF, self.va, SIZE, view=view, port=space)
            self.table.enable(entry)
            self.entries.append(entry)

    def payload(self, pieces: list[tuple[int, int, bool]]) -> Payload:
        sges = [(self.va + at, length, self.entries[far].key) for at, length, far in pieces]
        return local_payload(self.table, 1, sges, False)

    def remote(self, offset: int, length: int, far: bool = False, binding: int = ANY_BINDING) -> Payload:
        entry = self.entries[far]
        return remote_payload(self.table, 1, (self.va + offset, length, entry.key), 0, 16, binding)


@pytest.mark.slow
@given(PIECES, st.integers(0, 400), st.integers(0, 400))
def test_read_and_window(pieces: list[tuple[int, int, bool]], offset: int, length: int) -> None:
    memory = Memory()
    payload = memory.payload(pieces)
    whole = b"".join(memory.data[at : at + size] for at, size, _ in pieces)
    assert payload.total == len(whole)
    offset = min(offset, len(whole))
    length = min(length, len(whole) - offset)
    read = payload.read(offset, length)
    assert read is not None
    assert bytes(read) == whole[offset : offset + length]
    window = payload.window(offset, length)
    start = 0
    inside = False
    for _, size, far in pieces:
        inside = inside or (not far and start <= offset and offset + length <= start + size)
        start += size
    if length:
        assert (window is not None) == inside
    if window is not None:
        assert bytes(window) == whole[offset : offset + length]


@pytest.mark.slow
@given(PIECES, st.integers(0, 400), st.integers(1, 200))
def test_write(pieces: list[tuple[int, int, bool]], offset: int, length: int) -> None:
    memory = Memory()
    payload = memory.payload(pieces)
    offset = min(offset, payload.total)
    data = bytes(index + 1 & 0xFF for index in range(min(length, payload.total - offset)))
    model = bytearray(memory.data)
    places = [at + index for at, size, _ in pieces for index in range(size)]
    for place, byte in zip(places[offset:], data, strict=False):
        model[place] = byte
    assert payload.write(offset, data)
    assert memory.data == model


def test_a_window_may_end_where_its_extent_ends() -> None:
    memory = Memory()
    payload = memory.payload([(0, 8, False), (64, 8, False)])
    first, second = payload.window(0, 8), payload.window(8, 8)
    assert first is not None
    assert second is not None
    assert bytes(first) == memory.data[:8]
    assert bytes(second) == memory.data[64:72]
    assert payload.window(7, 2) is None


def test_it_is_valid_as_long_as_its_regions_are() -> None:
    memory = Memory()
    near, far = memory.entries
    for entry in (near, far):
        pieces = [(0, 8, False), (0, 8, True)]
        assert memory.payload(pieces).valid
        memory.table.disable(entry.key)
        assert not memory.payload(pieces).valid
        memory.table.enable(entry)
    binding = memory.remote(0, 8).binding
    assert memory.remote(0, 8, binding=binding).valid
    near.binding += 1
    payload = memory.remote(0, 8, binding=binding)
    assert not payload.valid
    assert payload.read(0, 8) is None
    assert not payload.write(0, b"12345678")
    assert payload.window(0, 8) is None


def test_rights_domain_and_range_are_looked_at_each_time() -> None:
    memory = Memory()
    payload = memory.payload([(SIZE - 8, 8, False)])
    entry = memory.entries[0]
    assert local_payload(memory.table, 2, payload.sges, False).read(0, 8) is None
    assert not local_payload(memory.table, 1, [(memory.va + SIZE - 8, 9, entry.key)], False).valid
    entry.access = 0
    assert payload.read(0, 8) is not None
    assert not local_payload(memory.table, 1, payload.sges, True).write(0, b"1")


@pytest.mark.parametrize("far", [False, True])
def test_memory_that_refuses(far: bool) -> None:
    memory = Memory()
    entry = memory.entries[1]
    entry.port = None
    payload = memory.payload([(0, 8, True), (8, 8, far)])
    assert payload.read(0, 8) is None
    assert not payload.write(0, b"12345678")


def test_what_has_no_pieces() -> None:
    table = MemoryTable(random.Random(1))
    empty = local_payload(table, 1, [], False)
    assert (empty.total, empty.valid, empty.read(0, 0), empty.write(0, b"")) == (0, True, b"", True)
    assert not local_payload(table, 1, [(0, 8, 77)], False).valid


def test_inline_and_remote() -> None:
    inline = Inline(b"abcdef")
    assert inline.valid
    assert bytes(inline.read(2, 3) or b"") == b"cde"
    memory = Memory()
    assert bytes(memory.remote(4, 8).read(0, 8) or b"") == memory.data[4:12]


@given(PIECES, st.data())
def test_gather_gives_the_bytes_wherever_they_lie(pieces: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    memory = Memory()
    payload = memory.payload(pieces)
    whole = b"".join(memory.data[at : at + length] for at, length, _ in pieces)
    low = data.draw(st.integers(0, payload.total))
    high = data.draw(st.integers(low, payload.total))
    got = payload.gather(low, high - low)
    assert got is not None
    assert bytes(got) == whole[low:high]


def test_gather_of_memory_that_cannot_be_read_gives_none() -> None:
    memory = Memory()
    entry = memory.entries[1]
    entry.port = SimAddressSpace()
    assert memory.remote(0, 64, True).gather(0, 64) is None
