"""Records of timers and of the scheduler: deadlines, and the queue pairs that wait for a turn.

Queue pairs are referred to by the offsets of their records and linked by words there (owners ``Timers`` and
``Scheduler``).
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
        ("heap", "Timers", "offset of a binary heap of queue pair records by armed_ns; its first word is unused"),
        ("capacity", "Timers", "capacity in queue pairs"),
        ("count", "Timers", "queue pairs in it"),
    ),
)

SCHEDULER: Final = record(
    "scheduler",
    _SOURCE,
    (
        ("first", "Scheduler", "head of the rotation: offset of a program's record, 0 for none"),
        ("last", "Scheduler", "tail of the rotation"),
        ("count", "Scheduler", "queue pairs that wait"),
        ("quantum", "Scheduler", "bytes that a program may send per turn"),
        ("turn", "Scheduler", "program of the queue pair in service, 0 for none"),
        ("newest", "Scheduler", "last of the newcomers at the head of the rotation, 0 for none"),
        ("credit", "Scheduler", f"bytes that newcomers may still send ahead of others, {SIGNED}"),
        ("over", "Scheduler", "1: a newcomer was served ahead of waiting queue pairs: transmit before the next turn"),
    ),
)

PROGRAM: Final = record(
    "program",
    _SOURCE,
    (
        ("next", "Scheduler", "next program of the rotation, 0 for none"),
        ("previous", "Scheduler", "previous program of the rotation, 0 for none"),
        ("first", "Scheduler", "its first ready queue pair, 0 for none"),
        ("last", "Scheduler", "its last ready queue pair"),
        ("deficit", "Scheduler", f"deficit counter: bytes that it may still send, {SIGNED}"),
        ("listed", "Scheduler", "1: it is in the rotation; 2: as a newcomer"),
        ("users", "Scheduler", "number of its queue pairs"),
        ("number", "Scheduler", "number of the program"),
    ),
)
