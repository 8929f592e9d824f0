"""Rings between two programs of one device (``rnic exec --shm``): a file that both programs and the NIC process map.

A file has one ring per direction, or a single ring for a program that sends to itself. A ring starts with a header: the
words of the sender, of the receiver and of the NIC process, each in its own cache line, and an epoch for each group of
the sender's queue pairs. Then come the records: consecutive, made of whole cache lines, never wrapping. Positions are
free-running.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

LOG_RING_BYTES: Final = 20
RING_BYTES: Final = 1 << LOG_RING_BYTES
"""Size of the record area of one ring."""
BYTES_AT: Final = 4096
"""Offset of the records in a ring."""
RING_ALL: Final = BYTES_AT + RING_BYTES
"""Size of a ring: header and records."""
EPOCHS_AT: Final = 192
"""Offset of the epochs in a ring. The NIC process increments a group's epoch when one of its queue pairs stops, since
the program may reuse its memory from then on."""
EPOCHS: Final = 64
"""Groups of queue pairs, by the low bits of their numbers."""
RECORD_BYTES: Final = 64
CACHE_LINE: Final = 8
"""Words of a cache line."""
COOKIE_BYTES: Final = 16
"""Size of the cookie that distinguishes a program from a later one with the same process ID."""

RING_PRODUCER: Final = record(
    "ring_producer",
    "design.md, One state, two executors",
    (("tail", "sender", "position behind the last record"),),
    CACHE_LINE,
)
RING_CONSUMER: Final = record(
    "ring_consumer",
    "design.md, One state, two executors",
    (
        ("head", "taker", "position of the oldest unread record"),
        ("attached", "taker", "1 while the receiver reads records"),
        ("pulls", "taker", "1: the receiver may read the sender's memory"),
        ("asleep", "both", "1: the receiver sleeps; the thread that clears this must wake it"),
    ),
    CACHE_LINE,
)
RING_CONTROL: Final = record(
    "ring_control",
    "design.md, One state, two executors",
    (
        ("held", "Slots", "1 while the NIC process serves the receiver's slot: packets go over the network"),
        ("dead", "Slots", "1: one of the two programs has ended"),
        (
            "keys",
            "Slots",
            "incremented when a key of the sender becomes invalid, since the program may reuse its memory",
        ),
    ),
    CACHE_LINE,
)
CONSUMER_AT: Final = RING_PRODUCER.size
CONTROL_AT: Final = CONSUMER_AT + RING_CONSUMER.size
