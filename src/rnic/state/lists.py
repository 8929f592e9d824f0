"""Doubly linked lists of records, by offsets in an arena: insertion and removal take constant time.

A list's ends are two words in its owner's record, first and last; a member's links are two words in its record, next
and previous. 0 is no member. ``ends`` and ``link`` are the indices of these pairs: ``ends`` in the arena's words,
``link`` in the words of the member's record.
"""

from __future__ import annotations

from rnic.state.record import WORD_SHIFT


def append(cells: memoryview, ends: int, link: int, item: int) -> None:
    """Append ``item``, which is not linked by these words."""
    last = cells[ends + 1]
    at = (item >> WORD_SHIFT) + link
    cells[at] = 0
    cells[at + 1] = last
    if last:
        cells[(last >> WORD_SHIFT) + link] = item
    else:
        cells[ends] = item
    cells[ends + 1] = item


def insert(cells: memoryview, ends: int, link: int, item: int, before: int) -> None:
    """Insert ``item``, which is not linked by these words, after ``before``, or first if that is 0."""
    at = (item >> WORD_SHIFT) + link
    after = cells[(before >> WORD_SHIFT) + link] if before else cells[ends]
    cells[at] = after
    cells[at + 1] = before
    if before:
        cells[(before >> WORD_SHIFT) + link] = item
    else:
        cells[ends] = item
    if after:
        cells[(after >> WORD_SHIFT) + link + 1] = item
    else:
        cells[ends + 1] = item


def unlink(cells: memoryview, ends: int, link: int, item: int) -> None:
    """Remove ``item`` from its list."""
    at = (item >> WORD_SHIFT) + link
    after, before = cells[at], cells[at + 1]
    if before:
        cells[(before >> WORD_SHIFT) + link] = after
    else:
        cells[ends] = after
    if after:
        cells[(after >> WORD_SHIFT) + link + 1] = before
    else:
        cells[ends + 1] = before
    cells[at] = cells[at + 1] = 0
