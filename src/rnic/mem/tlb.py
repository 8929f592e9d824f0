"""A TLB in flat memory, shared with the engine (003, "Shared Virtual Memory")."""

from __future__ import annotations

from typing import Final

from rnic.spec.access import NEED_LOCAL_WRITE

PAGE_SHIFT: Final = 12
PAGE_BYTES: Final = 1 << PAGE_SHIFT
READ: Final = 1
WRITE: Final = 2
HITS: Final = 0
"""Word that counts the engine's hits."""
KNOWN: Final = 1
"""Word that counts the entries."""
MISSES: Final = 2
"""Word that counts page faults handled by the engine; these also count as hits."""
EVICTIONS: Final = 3
"""Word that counts entries evicted by these page faults."""
FIRST_SET: Final = 4
"""First word of the sets. Each way has a tag and rights, 0 if empty; ways are in order of last use."""
TAG_SHIFT: Final = 64 - PAGE_SHIFT
"""Bit position of the process number in a tag, above the page number."""
SPREAD: Final = 0x9E37
"""Hash multiplier that spreads pages of different processes over the sets."""


def needed(rights: int) -> int:
    """Return the rights that a page must grant for an access with ``IBV_ACCESS_*`` rights, including local ones."""
    return WRITE if rights & (NEED_LOCAL_WRITE | 1) else READ


class Tlb:
    """Rights by process and page: set-associative, with LRU replacement.

    Args:
        order: log2 of the number of sets.
        ways: entries in one set.

    :attr:`words` holds all state. The engine looks up and inserts pages there, and moves them to the front of a set.
    """

    def __init__(self, order: int = 9, ways: int = 4) -> None:
        self.ways = ways
        self.sets = 1 << order
        self.words = memoryview(bytearray(8 * (FIRST_SET + 2 * ways * self.sets))).cast("Q")
        self._taken = (0, 0, 0)

    def __len__(self) -> int:
        return self.words[KNOWN]

    def _find(self, number: int, page: int) -> tuple[int, int, int]:
        """Return the index of the first word of a page's set, its tag, and the index of its entry's word, or of the
        word after the set."""
        words, tag = self.words, number << TAG_SHIFT | page
        start = FIRST_SET + 2 * self.ways * ((page ^ number * SPREAD) & self.sets - 1)
        end = start + 2 * self.ways
        at = start
        while at < end and not (words[at] == tag and words[at + 1]):
            at += 2
        return start, tag, at

    def _to_front(self, start: int, at: int, tag: int, rights: int) -> None:
        words = self.words
        words[start + 2 : at + 2] = words[start:at]
        words[start], words[start + 1] = tag, rights

    def lookup(self, number: int, page: int) -> int | None:
        """Return the rights of a page, and mark it most recently used; ``None`` for a miss."""
        start, tag, at = self._find(number, page)
        if at == start + 2 * self.ways:
            return None
        rights = self.words[at + 1]
        if at != start:
            self._to_front(start, at, tag, rights)
        return rights

    def insert(self, number: int, page: int, rights: int) -> bool:
        """Insert a page; return whether another one was evicted."""
        start, tag, at = self._find(number, page)
        end = start + 2 * self.ways
        gone = False
        if at == end:
            at = next((place for place in range(start, end, 2) if not self.words[place + 1]), end - 2)
            gone = self.words[at + 1] != 0
            self.words[KNOWN] += not gone
        self._to_front(start, at, tag, rights)
        return gone

    def insert_run(self, number: int, first: int, pages: int, rights: int) -> int:
        """Insert consecutive pages, last one first; return the number of evictions."""
        words, step, mask, spread = self.words, 2 * self.ways, self.sets - 1, number * SPREAD
        base, gone = number << TAG_SHIFT, 0
        for page in range(first + pages - 1, first - 1, -1):
            start, tag = FIRST_SET + step * ((page ^ spread) & mask), base | page
            if not words[start + 1]:  # the set is empty
                words[KNOWN] += 1
            elif words[start] != tag:
                gone += self.insert(number, page, rights)
                continue
            words[start], words[start + 1] = tag, rights
        return gone

    def _drop(self, start: int, at: int) -> None:
        words, end = self.words, start + 2 * self.ways
        words[at : end - 2] = words[at + 2 : end]
        words[end - 2] = words[end - 1] = 0
        words[KNOWN] -= 1

    def invalidate(self, number: int, first: int, pages: int) -> int:
        """Remove a process's pages of a range; return the number of entries removed."""
        words = self.words
        before = words[KNOWN]
        if pages <= self.sets * self.ways:
            for page in range(first, first + pages):
                start, _, at = self._find(number, page)
                if at != start + 2 * self.ways:
                    self._drop(start, at)
            return before - words[KNOWN]
        low, high = number << TAG_SHIFT | first, number << TAG_SHIFT | min(first + pages, 1 << TAG_SHIFT) - 1
        for start in range(FIRST_SET, len(words), 2 * self.ways):
            at = start
            while at < start + 2 * self.ways and words[at + 1]:
                if low <= words[at] <= high:
                    self._drop(start, at)
                else:
                    at += 2
        return before - words[KNOWN]

    def take_counts(self) -> tuple[int, int, int]:
        """Return the engine's hits, misses and evictions since the last call."""
        before, words = self._taken, self.words
        self._taken = now = words[HITS] - words[MISSES], words[MISSES], words[EVICTIONS]
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]
