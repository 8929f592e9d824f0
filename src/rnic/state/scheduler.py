"""Records of the order of service: deadlines, and the queue pairs that wait for their turns.

Queue pairs are named by the offsets of their records, and linked by words there (owners ``Timers`` and ``Scheduler``).
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

_SOURCE: Final = "design.md, Contexts are real, and state is bytes; Many at once"
SIGNED: Final = "signed, as two's complement"

TIMERS: Final = record(
    "timers",
    _SOURCE,
    (
        ("heap", "Timers", "offset of a binary heap of queue pair records by armed_ns; its first word is not used"),
        ("capacity", "Timers", "queue pairs that it has room for"),
        ("count", "Timers", "queue pairs in it"),
    ),
)

SCHEDULER: Final = record(
    "scheduler",
    _SOURCE,
    (
        ("first", "Scheduler", "the program whose turn it is: offset of its record, 0 for none"),
        ("last", "Scheduler", "the last of the rotation"),
        ("count", "Scheduler", "queue pairs that wait"),
        ("quantum", "Scheduler", "bytes that a program may send before the next has its turn"),
        ("turn", "Scheduler", "the program whose queue pair has its turn just now, 0 for none"),
        ("newest", "Scheduler", "the last of those at the begin of the rotation that are newcomers, 0 for none"),
        ("credit", "Scheduler", f"bytes that newcomers may still send before others, {SIGNED}"),
        ("over", "Scheduler", "a new program was served ahead of queue pairs that wait: transmit before the next turn"),
    ),
)

PROGRAM: Final = record(
    "program",
    _SOURCE,
    (
        ("next", "Scheduler", "the next program of the rotation, 0 for none"),
        ("previous", "Scheduler", "the one before"),
        ("first", "Scheduler", "its queue pair that has the next turn, 0 for none"),
        ("last", "Scheduler", "the last that waits"),
        ("deficit", "Scheduler", f"bytes that it may still send, {SIGNED}"),
        ("listed", "Scheduler", "1: it is in the rotation; 2: as a newcomer"),
        ("users", "Scheduler", "its queue pairs"),
        ("number", "Scheduler", "tells programs apart"),
    ),
)
