"""The ring through which a program that runs its own data path passes packets to the recorder in the NIC process.

The program is the producer: as a burst passes its socket or a ring to another program, it stores a
:data:`CAPTURE_RECORD`, the burst, and then the new position. Records begin at multiples of their size and never wrap;
one of kind :data:`PADDING` fills the end. The NIC process copies a record before it parses it.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

_SOURCE: Final = "docs/programs.md, Captures"
BYTES: Final = 1 << 23
"""Bytes of the records of one ring."""
AT: Final = 4096
"""Offset of the records in the ring's memory."""
ALL: Final = AT + BYTES
WAIT_NS: Final = 1_000_000_000
"""Longest wait on a full ring for the NIC process; then packets are dropped until it takes some."""
PADDING, SENT, RECEIVED = range(3)
"""Kinds of records."""

CAPTURE_RING: Final = record(
    "capture_ring",
    _SOURCE,
    (
        ("head", "program", "position behind the last record"),
        ("dropped", "program", "packets that were left out since the ring was full"),
        *((f"reserved_{at}", "nobody", "the rest of the cache line") for at in range(6)),
        ("tail", "Recorder", "position of the oldest record that is not taken"),
        ("records", "Recorder", "1: packets are wanted"),
        ("waits", "Recorder", "1: a full ring is waited for"),
        ("snap", "Recorder", "bytes of a packet that are wanted at most, from the BTH on"),
    ),
)
CAPTURE_RECORD: Final = record(
    "capture_record",
    _SOURCE,
    (
        ("bytes", "program", "bytes of packets that follow"),
        ("kind", "program", "PADDING, SENT, RECEIVED"),
        ("time_ns", "program", "nanoseconds since 1970"),
        ("length", "program", "bytes of the burst"),
        ("segment", "program", "bytes of each packet but the last"),
        ("flow_label", "program", "of IPv6"),
        ("tclass", "program", "traffic class, ECN bits included"),
        ("hop_limit", "program", "of the IP header"),
        ("name_bytes", "program", "bytes of the peer's socket address"),
        ("source_port", "program", "of SENT: UDP port that it leaves from"),
        *((f"name_{at}", "program", "the peer's raw socket address") for at in range(4)),
    ),
    16,
)

__all__ = [
    "ALL",
    "AT",
    "BYTES",
    "CAPTURE_RECORD",
    "CAPTURE_RING",
    "PADDING",
    "RECEIVED",
    "SENT",
    "WAIT_NS",
]
