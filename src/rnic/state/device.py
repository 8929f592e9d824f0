"""The first record of a device's arena, with the offsets of all others: C needs only the arena's base address."""

from __future__ import annotations

from typing import Final

from rnic.state.arena import Arena
from rnic.state.record import WORD_BYTES, record

DEVICE: Final = record(
    "device",
    "design.md, Contexts are real, and state is bytes",
    (
        ("keys", "Nic", "offset of the memory table"),
        ("max_keys", "Nic", "records in it"),
        ("log_qps", "Nic", "log2 of the slots for queue pairs and CQs; the low bits of a number are its slot"),
        ("log_eqs", "Nic", "log2 of the slots for EQs"),
        ("qp_contexts", "Nic", "offset of the cached QPCs"),
        ("cqs", "Nic", "offset of the CQ records"),
        ("eqs", "Nic", "offset of the EQ records"),
        (
            "directory",
            "Nic",
            "offset of the directory: for each slot, the offset of its queue pair's record, 0 for none",
        ),
        ("timers", "Nic", "offset of the timer record"),
        ("scheduler", "Nic", "offset of the scheduler record"),
        ("inflight", "Nic", "offset of the in-flight record"),
    ),
    32,
)


class Directory:
    """Offsets of queue pair records by queue pair number: one word each, 0 for none.

    Args:
        arena: arena that holds the directory.
        log: log2 of the number of words; the low bits of a queue pair number are the index.

    Raises:
        MemoryError: the arena is full.
    """

    __slots__ = ("_cells", "_first", "_mask", "place")

    def __init__(self, arena: Arena, log: int) -> None:
        self.place = place = arena.take(WORD_BYTES << log, f"a directory of {1 << log} queue pairs")
        self._cells = arena.cells
        self._first = place // WORD_BYTES
        self._mask = (1 << log) - 1

    def __getitem__(self, number: int) -> int:
        return self._cells[self._first + (number & self._mask)]

    def __setitem__(self, number: int, record: int) -> None:
        self._cells[self._first + (number & self._mask)] = record
