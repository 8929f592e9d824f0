"""Translation of addresses that a queue pair's peer uses under R_Key 0 (003, "Shared Virtual Memory").

A shell translates such addresses. Here they map to regions of the memory table, which both executors look up by
address. A message may start if one region contains it and all its pages are in the TLB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rnic.mem.tlb import Tlb, needed

if TYPE_CHECKING:
    from rnic.mem.table import MemoryEntry

WRITES: Final = 0
"""Word that counts messages written by the peer."""
READS: Final = 1
"""Word that counts messages read by the peer."""
COUNT: Final = 2
"""Word with the number of regions; their keys follow."""
FIRST_KEY: Final = 3


class Translation:
    """Translation of one queue pair.

    Args:
        number: number of its process in the TLB.
        tlb: the TLB.
        translate: called with address, length and a WRITE flag before the reference starts a message. It
            inserts missing pages into the TLB and returns whether the process has mapped all of them.
        refused: called for accesses outside all regions.

    :attr:`engine_handles` tells whether the engine may insert missing pages of open regions itself; it is read again
    after changes of the device. :attr:`words` is flat memory that the engine reads and in which both executors count;
    :attr:`moved` is called after it is reallocated.
    """

    __slots__ = ("_entries", "_taken", "engine_handles", "moved", "number", "refused", "tlb", "translate", "words")

    def __init__(
        self, number: int, tlb: Tlb, translate: Callable[[int, int, bool], bool], refused: Callable[[], None]
    ) -> None:
        self.number = number
        self.tlb = tlb
        self.translate = translate
        self.refused = refused
        self.moved: Callable[[], None] = lambda: None
        self.engine_handles: Callable[[], bool] = lambda: False
        self._entries: list[MemoryEntry] = []  # other threads may search it, so each change makes a new one
        self._taken = 0, 0
        self.words = self._room(4)

    @staticmethod
    def _room(keys: int) -> memoryview:
        return memoryview(bytearray(8 * (FIRST_KEY + keys))).cast("Q")

    def add(self, entry: MemoryEntry) -> None:
        """Make an enabled region accessible."""
        self._entries = [*self._entries, entry]
        if FIRST_KEY + len(self._entries) > len(self.words):
            before, self.words = self.words, self._room(2 * len(self._entries))
            self.words[:COUNT] = before[:COUNT]
            self._enter()
            self.moved()
        else:
            self._enter()

    def remove(self, entry: MemoryEntry) -> None:
        """Remove a region."""
        self._entries = [each for each in self._entries if each is not entry]
        self._enter()

    def _enter(self) -> None:
        for place, entry in enumerate(self._entries):
            self.words[FIRST_KEY + place] = entry.key
        self.words[COUNT] = len(self._entries)

    def find(self, va: int, length: int, rights: int) -> MemoryEntry | None:
        """Return the first region that contains the whole range and grants these rights."""
        for entry in self._entries:
            record = entry.record
            if record.valid and record.access & rights == rights and record.start <= va and va + length <= record.end:
                return entry
        return None

    def begin(self, va: int, length: int, rights: int) -> bool:
        """Return whether a message may start: all its pages are in the TLB or can be inserted."""
        return self.translate(va, length, needed(rights) > 1)

    def take_counts(self) -> tuple[int, int]:
        """Return the number of messages written and read by the peer since the last call."""
        before, self._taken = self._taken, (self.words[WRITES], self.words[READS])
        return self._taken[0] - before[0], self._taken[1] - before[1]

    def written(self) -> None:
        """Count a message written by the peer."""
        self.words[WRITES] += 1

    def answered(self) -> None:
        """Count a message read by the peer."""
        self.words[READS] += 1
