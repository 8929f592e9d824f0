"""Flows as records in an arena, for code that refers to a flow by its offset."""

from __future__ import annotations

from typing import Final

from rnic.state.arena import Arena
from rnic.state.paths import FLOW, HEADER_WORDS
from rnic.state.record import WORD_BYTES, place
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow, masked_headers

_USERS: Final = place(FLOW, "users")
_ADDRESS_BYTES: Final = 16


def _words(data: bytes, size: int) -> list[int]:
    """Return the bytes as 64-bit words with the same memory layout."""
    return list(memoryview(data.ljust(size, b"\0")).cast("Q"))


def use(cells: memoryview, old: int, new: int) -> None:
    """Move a queue pair's path from the flow at offset ``old`` to that at ``new`` by updating the use counts; 0 is
    none."""
    if old:
        cells[old // WORD_BYTES + _USERS] -= 1
    if new:
        cells[new // WORD_BYTES + _USERS] += 1


class FlowRecords:
    """The records of one device's flows.

    Args:
        arena: arena that holds the records.
    """

    __slots__ = ("_arena", "_flows")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._flows: dict[int, Flow] = {}

    def add(self, flow: Flow) -> None:
        """Allocate a record for a flow; :attr:`Flow.place` is its offset.

        Raises:
            MemoryError: the arena is full.
        """
        at = self._arena.take(FLOW.size, "a flow")
        header = masked_headers(flow)
        words = (
            4 if len(flow.src) == 4 else 6,
            *_words(flow.src, _ADDRESS_BYTES),
            *_words(flow.dst, _ADDRESS_BYTES),
            flow.sport,
            flow.dport,
            flow.tclass,
            flow.hop_limit,
            flow.flow_label,
            flow.sl,
            flow.smac,
            flow.dmac,
            0,
            crc32(header),
            len(header),
            *_words(header, HEADER_WORDS * WORD_BYTES),
        )
        record = self._arena.words(at, FLOW.size)
        for index, word in enumerate(words):
            record[index] = word
        flow.place = at
        self._flows[at] = flow

    def __getitem__(self, at: int) -> Flow:
        """Return the flow whose record is at offset ``at``."""
        return self._flows[at]

    def users(self, flow: Flow) -> int:
        """Return the number of queue pairs that use this flow as their path."""
        return self._arena.cells[flow.place // WORD_BYTES + _USERS]

    def drop(self, flow: Flow) -> None:
        """Remove the unused record of a flow."""
        del self._flows[flow.place]
        self._arena.free(flow.place, FLOW.size)
        flow.place = 0
