"""Ring that passes packets from a program with its own data path to the recorder in the NIC process.

The program is the producer: for each burst on its socket or on a ring to another program, it stores a
:data:`CAPTURE_RECORD`, the burst, and then the new position. Records begin at multiples of their size and never wrap;
a record of kind :data:`PADDING` fills the end. The NIC process copies a record before it parses it.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

_SOURCE: Final = "docs/programs.md, Captures"
BYTES: Final = 1 << 23
"""Size of the record area of one ring."""
AT: Final = 4096
"""Offset of the records in the ring's memory."""
ALL: Final = AT + BYTES
WAIT_NS: Final = 1_000_000_000
"""Longest wait for the NIC process if the ring is full; after that, packets are dropped until there is room."""
PADDING, SENT, RECEIVED = range(3)
"""Kinds of records."""

CAPTURE_RING: Final = record(
    "capture_ring",
    _SOURCE,
    (
        ("head", "program", "position behind the last record"),
        ("dropped", "program", "packets not recorded because the ring was full"),
        *((f"reserved_{at}", "nobody", "padding of the cache line") for at in range(6)),
        ("tail", "Recorder", "position of the oldest unread record"),
        ("records", "Recorder", "1: record packets"),
        ("waits", "Recorder", "1: wait if the ring is full"),
        ("snap", "Recorder", "snap length: most bytes of a packet to record, from the BTH on"),
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
        ("segment", "program", "bytes of each packet except the last"),
        ("flow_label", "program", "of IPv6"),
        ("tclass", "program", "traffic class, ECN bits included"),
        ("hop_limit", "program", "of the IP header"),
        ("name_bytes", "program", "bytes of the peer's socket address"),
        ("source_port", "program", "of SENT: UDP source port"),
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
