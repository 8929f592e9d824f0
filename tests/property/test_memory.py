"""Memory tables and address spaces against models that look at every byte."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from rnic.mem.keys import key_index, key_tag, make_key
from rnic.mem.space import AddressSpace, Mapping
from rnic.mem.table import MemoryEntry, MemoryTable
from rnic.spec.access import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE


@given(st.integers(0, (1 << 32) - 1))
def test_keys_split_and_join(key: int) -> None:
    index, tag = key_index(key), key_tag(key)
    assert 0 <= index < 1 << 24
    assert make_key(index, tag) == key


@given(
    start=st.integers(0, (1 << 64) - 200),
    length=st.integers(1, 100),
    offset=st.integers(-150, 150),
    asked=st.integers(1, 150),
)
def test_a_check_passes_exactly_where_every_byte_is_inside(start: int, length: int, offset: int, asked: int) -> None:
    table = MemoryTable(random.Random(0), 4)
    entry = MemoryEntry(table.alloc_key(), 1, 0, start, length)
    table.enable(entry)
    inside = set(range(length)) >= set(range(offset, offset + asked))
    assert (table.check(entry.key, 1, start + offset, asked, 0) is entry) == inside


@given(st.integers(0, 0xF), st.integers(0, 0xF))
def test_rights_pass_exactly_where_all_are_granted(granted: int, asked: int) -> None:
    table = MemoryTable(random.Random(0), 4)
    if granted & ~REMOTE_READ:
        granted |= LOCAL_WRITE
    entry = MemoryEntry(table.alloc_key(), 1, granted, 0x1000, 8)
    table.enable(entry)
    assert (table.check(entry.key, 1, 0x1000, 8, asked) is entry) == (not asked & ~granted)


class Keys(RuleBasedStateMachine):
    """Keys that were given back never open anything again, until the same number is handed out anew."""

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.table = MemoryTable(random.Random(5), 4)
        self.known: dict[int, MemoryEntry] = {}
        self.dead: set[int] = set()

    @rule(target=live)
    def register(self) -> int:
        if len(self.known) == 4:
            return 0
        key = self.table.alloc_key()
        self.known[key] = MemoryEntry(key, 1, LOCAL_WRITE | REMOTE_WRITE, 0x1000, 16)
        self.table.enable(self.known[key])
        self.dead.discard(key)
        return key

    @rule(key=consumes(live))
    def deregister(self, key: int) -> None:
        if key in self.known:
            self.table.free_key(key)
            del self.known[key]
            self.dead.add(key)

    @rule()
    def look(self) -> None:
        assert len(self.table) == len(self.known)
        for key, entry in self.known.items():
            assert self.table.check(key, 1, 0x1000, 16, REMOTE_WRITE) is entry
        for key in self.dead:
            assert self.table.check(key, 1, 0x1000, 16, REMOTE_WRITE) is None


class Space(RuleBasedStateMachine):
    """Parts of one buffer mapped and unmapped in any order: what is in reach is what some mapping holds whole."""

    mapped = Bundle("mapped")
    size = 64

    def __init__(self) -> None:
        super().__init__()
        self.space = AddressSpace()
        self.buffer = bytearray(range(self.size))
        self.va = AddressSpace().map(self.buffer).va
        self.parts: dict[Mapping, range] = {}

    @rule(target=mapped, low=st.integers(0, 63), length=st.integers(1, 64), readonly=st.booleans())
    def map(self, low: int, length: int, readonly: bool) -> Mapping:
        view = memoryview(self.buffer)[low : low + length]
        mapping = self.space.map(view.toreadonly() if readonly else view)
        self.parts[mapping] = range(low, low + view.nbytes)
        assert mapping.va == self.va + low
        return mapping

    @rule(mapping=consumes(mapped))
    def unmap(self, mapping: Mapping) -> None:
        self.space.unmap(mapping)
        del self.parts[mapping]

    @rule(low=st.integers(-8, 72), length=st.integers(1, 72))
    def reach(self, low: int, length: int) -> None:
        wanted = range(low, low + length)
        holders = [mapping for mapping, part in self.parts.items() if set(part) >= set(wanted)]
        view = self.space.views(self.va + low, length)
        assert (view is not None) == bool(holders)
        if view is not None:
            assert view.tobytes() == bytes(wanted)
            assert view.readonly == all(mapping.readonly for mapping in holders)
            assert self.space.write(self.va + low, bytes(wanted)) == (not view.readonly)


TestKeys = Keys.TestCase
TestSpace = Space.TestCase
TestKeys.settings = TestSpace.settings = settings(max_examples=15, stateful_step_count=30)
