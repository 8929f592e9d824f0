"""The TLB in flat memory: the compiled look-up finds and moves what Python does."""

from __future__ import annotations

import random

import pytest

from rnic.engine import use
from rnic.mem.tlb import EVICTIONS, HITS, MISSES, PAGE_BYTES, READ, WRITE, Tlb, needed
from rnic.spec import access

NUMBER = 0x203
compiled = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")


def in_python(tlb: Tlb, va: int, length: int, need: int) -> int:
    """What :func:`use_tlb` does, by single look-ups."""
    pages = range(va // PAGE_BYTES, (va + length - 1) // PAGE_BYTES + 1)
    copy = Tlb(tlb.sets.bit_length() - 1, tlb.ways)
    copy.words[:] = tlb.words
    known = next((at for at, page in enumerate(pages) if not (copy.lookup(NUMBER, page) or 0) & need), len(pages))
    for page in pages[:known]:
        tlb.lookup(NUMBER, page)
    return known


@compiled
@pytest.mark.parametrize(("order", "ways"), [(0, 1), (0, 3), (2, 2), (4, 4)])
def test_a_range_is_found_and_moved_as_page_by_page(order: int, ways: int) -> None:
    assert use.COMPILED is not None
    rng = random.Random(order * 8 + ways)
    one, two = Tlb(order, ways), Tlb(order, ways)
    found = 0
    for _ in range(600):
        page = rng.randrange(ways << order)
        if rng.random() < 0.3:
            rights = rng.choice((READ, READ | WRITE))
            number = rng.choice((NUMBER, NUMBER, NUMBER + 1))
            assert one.insert(number, page, rights) == two.insert(number, page, rights)
        elif rng.random() < 0.1:
            assert one.invalidate(NUMBER, page, 2) == two.invalidate(NUMBER, page, 2)
        va, length = page * PAGE_BYTES + rng.randrange(PAGE_BYTES), rng.choice((1, 100, PAGE_BYTES, 2 * PAGE_BYTES))
        need = rng.choice((READ, WRITE))
        pages = use.COMPILED.use_tlb(one, NUMBER, va, length, need)
        assert pages == in_python(two, va, length, need)
        assert one.words == two.words
        assert len(one) == len(two)
        found += pages > 0
    assert found > 20


@compiled
@pytest.mark.parametrize(("va", "length"), [(0, 0), ((1 << 64) - 8, 16), ((1 << 64) - 1, 2)])
def test_no_bytes_and_ranges_that_wrap_are_not_found(va: int, length: int) -> None:
    assert use.COMPILED is not None
    tlb = Tlb()
    tlb.insert(NUMBER, 0, READ)
    tlb.insert(NUMBER, (1 << 52) - 1, READ)
    assert use.COMPILED.use_tlb(tlb, NUMBER, va, length, READ) == 0
    assert use.COMPILED.use_tlb(tlb, NUMBER, (1 << 64) - 8, 8, READ) == 1


def test_counts_of_the_engine_are_taken_once() -> None:
    """A page that was missed is not a hit."""
    tlb = Tlb()
    tlb.words[HITS] = 5
    assert (tlb.take_counts(), tlb.take_counts()) == ((5, 0, 0), (0, 0, 0))
    tlb.words[HITS] += 4
    tlb.words[MISSES] += 1
    tlb.words[EVICTIONS] += 3
    assert tlb.take_counts() == (3, 1, 3)


def test_what_an_access_needs() -> None:
    assert needed(0) == needed(access.REMOTE_READ) == READ
    assert needed(access.LOCAL_WRITE) == needed(access.REMOTE_WRITE) == needed(access.REMOTE_ATOMIC) == WRITE


def test_a_run_is_entered_as_its_pages_are_from_the_last_to_the_first() -> None:
    rng = random.Random(9)
    one, other = Tlb(2, 2), Tlb(2, 2)
    for _ in range(200):
        number, first, pages, rights = rng.randrange(3), rng.randrange(12), rng.randrange(1, 9), rng.randrange(1, 4)
        gone = one.insert_run(number, first, pages, rights)
        assert gone == sum(other.insert(number, page, rights) for page in reversed(range(first, first + pages)))
        assert (one.words, len(one)) == (other.words, len(other))
        place = rng.randrange(12)
        assert one.invalidate(number, place, 2) == other.invalidate(number, place, 2)


@compiled
@pytest.mark.parametrize(("order", "ways"), [(0, 1), (0, 3), (2, 2), (3, 4)])
def test_the_engine_enters_a_run_as_python_does(order: int, ways: int) -> None:
    assert use.COMPILED is not None
    rng = random.Random(order * 8 + ways)
    one, other = Tlb(order, ways), Tlb(order, ways)
    evicted = 0
    for _ in range(300):
        number, first, pages, rights = rng.randrange(3), rng.randrange(12), rng.randrange(9), rng.randrange(1, 4)
        gone = use.COMPILED.insert_tlb(one, number, first, pages, rights)
        assert gone == other.insert_run(number, first, pages, rights)
        place, length = rng.randrange(12), rng.choice((1, 2, 100))
        if rng.random() < 0.3:
            assert one.invalidate(number, place, length) == other.invalidate(number, place, length)
        assert (one.words, len(one)) == (other.words, len(other))
        evicted += gone
    assert evicted > 20
