"""R_Key 0 where a shell translates addresses: which region it finds, and what is told."""

from __future__ import annotations

import random

from rnic.mem.table import VTP_LENGTH, VTP_SUCCESS, MemoryEntry, MemoryTable
from rnic.mem.tlb import Tlb
from rnic.mem.translation import COUNT, FIRST_KEY, Translation
from rnic.spec import access
from rnic.transport.sge import remote_payload

PD, QPN = 3, 0x40
RIGHTS = access.LOCAL_WRITE | access.REMOTE_WRITE | access.REMOTE_READ


class Table:
    """A memory table with a translation for one queue pair, and what it was asked and told."""

    def __init__(self) -> None:
        self.memory = MemoryTable(random.Random(1), 64)
        self.changes: list[int] = []
        self.memory.on_translation_change = lambda: self.changes.append(1)
        self.asked: list[tuple[int, int, bool]] = []
        self.refused = 0
        self.translation = Translation(7, Tlb(), self.translate, self.refuse)
        self.memory.set_translation(QPN, self.translation)

    def translate(self, va: int, length: int, write: bool) -> bool:
        self.asked.append((va, length, write))
        return True

    def refuse(self) -> None:
        self.refused += 1

    def region(self, start: int, length: int, rights: int = RIGHTS, pd: int = PD) -> MemoryEntry:
        entry = MemoryEntry(self.memory.alloc_key(), pd, rights, start, length, view=memoryview(bytearray(length)))
        self.memory.enable(entry)
        self.translation.add(entry)
        return entry

    def find(self, va: int, length: int, rights: int = access.REMOTE_WRITE, qpn: int = QPN) -> MemoryEntry | None:
        return self.memory.check(0, PD, va, length, rights, qpn)


def test_key_0_finds_the_region_that_holds_all_of_it() -> None:
    table = Table()
    low, high = table.region(0x1000, 100), table.region(0x2000, 100, access.REMOTE_READ)
    assert table.find(0x1000, 100) is low
    assert table.find(0x2010, 5, access.REMOTE_READ) is high
    assert table.memory.reason == VTP_SUCCESS
    for va, length, rights in (
        (0xFFF, 2, access.REMOTE_WRITE),
        (0x1000, 101, access.REMOTE_WRITE),
        (0x2000, 1, access.REMOTE_WRITE),  # it may be read alone
    ):
        assert table.find(va, length, rights) is None
        assert table.memory.reason == VTP_LENGTH
    assert table.refused == 3


def test_other_queue_pairs_domains_and_local_keys_do_not_find_it() -> None:
    table = Table()
    table.region(0x1000, 100)
    table.region(0x5000, 100, pd=PD + 1)
    assert table.find(0x1000, 8, qpn=QPN + 1) is None
    assert table.memory.check(0, PD, 0x1000, 8, access.LOCAL_WRITE, QPN, local=True) is None
    assert table.find(0x5000, 8) is None


def test_a_region_that_is_closed_is_out_of_reach_at_once() -> None:
    table = Table()
    entry = table.region(0x1000, 100)
    table.memory.disable(entry.key)
    assert table.find(0x1000, 8) is None
    table.translation.remove(entry)
    assert table.translation.words[COUNT] == 0


def test_the_engine_is_told_where_the_keys_lie() -> None:
    table = Table()
    assert table.changes == [1]
    keys = [table.region(0x1000 * at, 100).key for at in range(1, 20)]
    words = table.translation.words
    assert list(words[FIRST_KEY : FIRST_KEY + words[COUNT]]) == keys
    assert len(table.changes) > 1
    before = len(table.changes)
    table.memory.set_translation(QPN, None)
    table.region(0x100_0000, 100)
    assert len(table.changes) == before + 1
    assert table.find(0x1000, 8) is None


def test_counts_are_taken_once_and_outlive_a_move() -> None:
    table = Table()
    table.translation.written()
    table.translation.answered()
    assert table.translation.take_counts() == (1, 1)
    table.translation.written()
    for at in range(1, 20):
        table.region(0x1000 * at, 100)
    assert table.translation.take_counts() == (1, 0)
    assert table.translation.begin(0x1000, 10, access.REMOTE_WRITE)
    assert table.translation.begin(0x1000, 10, access.REMOTE_READ)
    assert table.asked == [(0x1000, 10, True), (0x1000, 10, False)]


def test_a_refusal_names_the_range_and_not_the_key() -> None:
    """Key 0 is no key of the table: a reason that looked it up there would say that it was never given out."""
    table = Table()
    table.region(0x1000, 100)
    assert table.find(0x1000, 101) is None
    reason, values = table.memory.why_refused(0, PD, 0x1000, 101, access.REMOTE_WRITE, QPN)
    assert reason.name == "KEY_ZERO"
    assert reason(**values) == "R_Key 0 does not open the 101 bytes from 0x1000 on for REMOTE_WRITE"
    table.memory.set_translation(QPN, None)
    assert table.memory.why_refused(0, PD, 0x1000, 8, access.REMOTE_READ, QPN)[0].name == "KEY_UNKNOWN"
    table.memory.set_guard(QPN, lambda *asked: None)
    assert table.memory.why_refused(0, PD, 0x1000, 8, access.REMOTE_READ, QPN)[0].name == "KEY_ZERO"
    assert table.memory.why_refused(0, PD, 0x1000, 8, 0, QPN, local=True)[0].name == "KEY_UNKNOWN"


def test_what_key_0_is_bound_to_names_the_region() -> None:
    """Both regions were bound as often: none that follows at the same addresses goes on with a message."""
    table = Table()
    entry = table.region(0x1000, 100)
    asked = (0x1000, 8, 0)
    bound = remote_payload(table.memory, PD, asked, access.REMOTE_READ, QPN).binding
    assert remote_payload(table.memory, PD, asked, access.REMOTE_READ, QPN, bound).valid
    table.memory.disable(entry.key)
    table.translation.remove(entry)
    other = table.region(0x1000, 100)
    assert other.record.binding == 0
    assert not remote_payload(table.memory, PD, asked, access.REMOTE_READ, QPN, bound).valid
    assert remote_payload(table.memory, PD, asked, access.REMOTE_READ, QPN).valid
