"""The rings between two programs of one device (``rnic exec --shm``): a file that both and the NIC process map.

A file has one ring for each direction, or one alone for a program with itself. Of each ring the head comes first: what
the sender stores, what the taker stores, and what the NIC process stores, each in a cache line of its own; then a word
for each group of the sender's queue pairs. The bytes follow. Records of whole cache lines lie one behind the other and
never wrap; positions count on and on.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

LOG_RING_BYTES: Final = 20
RING_BYTES: Final = 1 << LOG_RING_BYTES
"""Bytes of the records of one ring."""
BYTES_AT: Final = 4096
"""Offset in a ring of its records."""
RING_ALL: Final = BYTES_AT + RING_BYTES
"""Bytes of a ring: its head and its records."""
EPOCHS_AT: Final = 192
"""Offset in a ring of the epochs, words of the NIC process: one is counted up when a queue pair of its group stops,
whose memory is the program's own from then on."""
EPOCHS: Final = 64
"""Groups of queue pairs, by the low bits of their numbers."""
RECORD_BYTES: Final = 64
CACHE_LINE: Final = 8
"""Words of a cache line."""
COOKIE_BYTES: Final = 16
"""Bytes of the cookie that tells a program from a later one with the same process ID."""

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
        ("head", "taker", "position of the oldest record that is not taken"),
        ("attached", "taker", "1 while it takes records"),
        ("pulls", "taker", "1: it may read the sender's memory"),
        ("asleep", "both", "1: the receiver sleeps, and the thread that clears this wakes it"),
    ),
    CACHE_LINE,
)
RING_CONTROL: Final = record(
    "ring_control",
    "design.md, One state, two executors",
    (
        ("held", "Slots", "1 while the NIC process serves the taker's slot: packets go by the wire"),
        ("dead", "Slots", "1: one of the two programs has ended"),
        ("keys", "Slots", "counted up when a key of the sender's ends, whose memory is the program's own from then on"),
    ),
    CACHE_LINE,
)
CONSUMER_AT: Final = RING_PRODUCER.size
CONTROL_AT: Final = CONSUMER_AT + RING_CONSUMER.size
