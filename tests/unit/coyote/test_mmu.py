"""Shared virtual memory: the TLB, faults that the host side handles, prefetch, invalidation, addresses of others."""

from __future__ import annotations

import mmap
import random

import pytest

from rnic.coyote.mmu import PAGE_BYTES, READ, WRITE, Fault, Mmu, ProcessTable, SpaceTable, Tlb
from rnic.engine import use
from rnic.mem.space import SimAddressSpace, address_of
from rnic.trace.counters import Counters

ONE, TWO = 0x101, 0x102
"""Two processes: threads 1 and 2 of region 1."""


class Host:
    """An MMU over one process of 16 pages, and what has been asked of the host side."""

    def __init__(self, tlb: Tlb | None = None) -> None:
        self.space = SimAddressSpace()
        self.memory = bytearray(random.Random(1).randbytes(16 * PAGE_BYTES))
        self.mapping = self.space.map(self.memory)
        self.va = self.mapping.va
        self.counters = Counters()
        self.mmu = Mmu(self.counters, tlb)
        self.mmu.attach(ONE, SpaceTable(self.space))
        self.faults: list[tuple[Fault, bool]] = []
        self.mmu.observe = lambda fault, done: self.faults.append((fault, done))

    def count(self, *names: str) -> list[int]:
        return [self.counters[name] for name in names]


def test_a_tlb_miss_faults_and_the_access_is_repeated() -> None:
    host = Host()
    buf = bytearray(3 * PAGE_BYTES)
    assert host.mmu.read(ONE, host.va + 100, buf)
    assert buf == host.memory[100 : 100 + len(buf)]
    # one fault for the range; the pages behind the first are hits already
    assert host.faults == [(Fault(ONE, host.va + 100, len(buf), False), True)]
    assert host.count("tlb_misses", "tlb_hits", "page_faults", "page_faults_refused") == [1, 3, 1, 0]
    assert host.mmu.write(ONE, host.va + 100, b"new")
    assert host.memory[100:103] == b"new"
    assert len(host.faults) == 1


def test_prefetched_pages_do_not_fault() -> None:
    host = Host()
    assert host.mmu.prefetch(ONE, host.va, len(host.memory)) == 16
    assert host.mmu.write(ONE, host.va, bytes(len(host.memory)))
    assert host.faults == []
    assert host.count("tlb_prefetched", "tlb_hits", "tlb_misses") == [16, 16, 0]


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("at", [-1, 16 * PAGE_BYTES - 3, 20 * PAGE_BYTES, 1 << 40, -(1 << 36)])
def test_an_address_that_is_not_the_processs_is_refused(write: bool, at: int) -> None:
    host = Host()
    before = bytes(host.memory)
    if write:
        assert not host.mmu.write(ONE, host.va + at, b"\xff" * 8)
    else:
        assert not host.mmu.read(ONE, host.va + at, bytearray(8))
    assert host.memory == before
    assert host.counters["page_faults_refused"] > 0
    assert host.faults[-1][1] is False


def test_processes_do_not_see_each_other() -> None:
    host = Host()
    other = SimAddressSpace(base=host.va)
    theirs = bytearray(b"their" * 1000)
    assert other.map(theirs).va == host.va
    assert not host.mmu.read(TWO, host.va, bytearray(5))
    host.mmu.attach(TWO, SpaceTable(other))
    for number, memory in ((ONE, host.memory), (TWO, theirs)):
        buf = bytearray(5)
        assert host.mmu.read(number, host.va, buf)
        assert buf == memory[:5]
    host.mmu.detach(TWO)
    assert not host.mmu.read(TWO, host.va, bytearray(5))
    assert host.mmu.read(ONE, host.va, bytearray(5))


def test_read_only_memory_is_not_written() -> None:
    host = Host()
    va = host.space.map(bytes(100)).va
    assert host.mmu.read(ONE, va, bytearray(100))
    assert not host.mmu.write(ONE, va, b"x")
    # known as readable, it faults for writing, and stays refused
    assert host.faults[-1] == (Fault(ONE, va, 1, True), False)


def test_memory_that_goes_away_is_forgotten() -> None:
    host = Host()
    assert host.mmu.prefetch(ONE, host.va, len(host.memory)) == 16
    host.space.unmap(host.mapping)
    assert host.mmu.invalidate(ONE, host.va, len(host.memory)) == 16
    assert not host.mmu.write(ONE, host.va, b"x")
    assert host.count("tlb_invalidations", "page_faults", "page_faults_refused") == [16, 1, 1]


def test_memory_that_went_away_without_a_word_is_found_out() -> None:
    """Nobody invalidated: the access fails, the pages are forgotten, and the host side is asked anew."""
    host = Host()
    host.mmu.prefetch(ONE, host.va, len(host.memory))
    host.space.unmap(host.mapping)
    assert not host.mmu.read(ONE, host.va, bytearray(10))
    assert host.count("tlb_invalidations", "page_faults", "page_faults_refused") == [1, 1, 1]
    assert len(host.mmu.tlb) == 15


def test_the_host_side_can_be_another() -> None:
    host = Host()
    seen: list[Fault] = []

    def handler(fault: Fault) -> bool:
        seen.append(fault)
        return len(seen) > 1 and host.mmu.handle(fault)

    host.mmu.handler = handler
    assert not host.mmu.read(ONE, host.va, bytearray(4))
    assert host.mmu.read(ONE, host.va, bytearray(4))
    # who says yes and fills nothing is not believed
    host.mmu.handler = lambda fault: True
    assert not host.mmu.read(ONE, host.va + 9 * PAGE_BYTES, bytearray(4))


@pytest.mark.parametrize(("order", "ways"), [(0, 1), (0, 2), (1, 1), (3, 4), (9, 4)])
def test_random_accesses_with_any_tlb(order: int, ways: int) -> None:
    host = Host(Tlb(order, ways))
    rng = random.Random(order * 10 + ways)
    model = bytearray(host.memory)
    for _ in range(300):
        start = rng.randrange(-100, len(model) + 100)
        length = rng.choice((1, 8, PAGE_BYTES, 3 * PAGE_BYTES, len(model)))
        inside = start >= 0 and start + length <= len(model)
        if rng.random() < 0.5:
            data = rng.randbytes(length)
            assert host.mmu.write(ONE, host.va + start, data) == inside
            if inside:
                model[start : start + length] = data
        else:
            buf = bytearray(length)
            assert host.mmu.read(ONE, host.va + start, buf) == inside
            assert not inside or buf == model[start : start + length]
        if rng.random() < 0.1:
            host.mmu.invalidate(ONE, host.va + rng.randrange(len(model)), rng.randrange(1, len(model)))
        assert len(host.mmu.tlb) <= ways << order
    assert host.memory == model
    assert (host.counters["tlb_evictions"] > 0) == (ways << order < 16)


def test_the_least_recently_used_page_goes() -> None:
    tlb = Tlb(order=0, ways=2)
    assert not tlb.insert(ONE, 1, READ)
    assert not tlb.insert(ONE, 2, READ)
    assert tlb.lookup(ONE, 1) == READ
    assert tlb.insert(ONE, 3, WRITE)
    assert (tlb.lookup(ONE, 1), tlb.lookup(ONE, 2), tlb.lookup(ONE, 3)) == (READ, None, WRITE)


def test_this_processs_own_memory() -> None:
    """Any address of the program, as the kernel has it: writable, read-only, and gone."""
    counters = Counters()
    mmu = Mmu(counters)
    table = ProcessTable()
    mmu.attach(ONE, table)
    pages = mmap.mmap(-1, 4 * PAGE_BYTES)
    va = address_of(memoryview(pages))
    assert mmu.write(ONE, va + 4000, b"across a page" * 10)
    assert pages[4000:4130] == b"across a page" * 10
    buf = bytearray(130)
    assert mmu.read(ONE, va + 4000, buf)
    assert buf == pages[4000:4130]
    fixed = mmap.mmap(-1, PAGE_BYTES, prot=mmap.PROT_READ)
    with memoryview(fixed) as view:
        fixed_va = address_of(view)
    assert mmu.read(ONE, fixed_va, bytearray(10))
    assert not mmu.write(ONE, fixed_va, b"x")
    # one question to the kernel fills a range
    assert mmu.prefetch(ONE, va, 4 * PAGE_BYTES) == 4
    pages.close()
    refused = counters["page_faults_refused"]
    assert not mmu.write(ONE, va, b"x")
    assert counters["page_faults_refused"] == refused + 1
    assert not mmu.write(ONE, 0, b"x")
    assert not mmu.read(ONE, (1 << 64) - 8, bytearray(16))
    table.close()


def test_a_buffer_table_is_read_by_runs_and_seldom_beyond_the_tlb() -> None:
    """Misses, hits and faults are those of single pages; the table is asked once a fault."""
    space, counters = SimAddressSpace(), Counters()
    pages = 3 * 512
    va = space.map(bytearray(pages * PAGE_BYTES)).va
    table = SpaceTable(space)
    assert table.walk(va + 5, pages) == (READ | WRITE, pages)
    assert table.walk(va - PAGE_BYTES, pages) == (0, 1)
    asked: list[tuple[int, int]] = []
    mmu = Mmu(counters, Tlb(9, 1))
    mmu.attach(ONE, table)
    walk = table.walk

    def count(at: int, most: int) -> tuple[int, int]:
        asked.append((at, most))
        return walk(at, most)

    table.walk = count  # type: ignore[assignment,method-assign]
    assert mmu.translate(ONE, va, pages * PAGE_BYTES, True)
    assert asked == [(va + at * PAGE_BYTES, 512) for at in (0, 512, 1024)]
    names = ("tlb_misses", "tlb_hits", "page_faults", "tlb_evictions")
    assert [counters[name] for name in names] == [3, pages - 3, 3, pages - 512]


def test_a_handler_that_forgets_what_it_filled_is_not_believed() -> None:
    host = Host()

    def handle(fault: Fault) -> bool:
        done = host.mmu.handle(fault)
        host.mmu.invalidate(ONE, host.va + PAGE_BYTES, PAGE_BYTES)
        return done

    host.mmu.handler = handle
    assert host.mmu.translate(ONE, host.va, 2 * PAGE_BYTES, True) is False
    assert host.count("page_faults", "page_faults_refused") == [2, 1]


@pytest.mark.skipif(use.ENGINE is None, reason="the engine is not in use")
def test_a_range_beyond_the_tlbs_reach_costs_python_one_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages are looked up and entered by the engine, also where each of them drives another out."""
    host = Host(Tlb(3, 1))
    assert host.mmu.translate(ONE, host.va + 8 * PAGE_BYTES, 8 * PAGE_BYTES, True)
    asked: list[int] = []
    plain = Tlb._find

    def find(tlb: Tlb, number: int, page: int) -> tuple[int, int, int]:
        asked.append(page)
        return plain(tlb, number, page)

    monkeypatch.setattr(Tlb, "_find", find)
    assert host.mmu.translate(ONE, host.va, 8 * PAGE_BYTES, True)
    assert host.count("tlb_misses", "tlb_evictions", "tlb_hits") == [2, 8, 14]
    assert set(asked) == {host.va // PAGE_BYTES}
