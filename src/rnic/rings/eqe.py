"""The 32-byte EQ entry (``design.md``; types of ``hardware.md`` 2a), little-endian. Word 3 is stored last."""

from __future__ import annotations

import struct

from rnic.spec.layout import Layout, bits, word

EQE_BYTES = 32
EQE_SHIFT = 5
EQE_PHASE = 1 << 31

EQ_ENTRY = Layout(
    "EQ entry",
    EQE_BYTES,
    "little",
    "design.md",
    (
        bits("type", 0, 7, 0, "event type"),
        bits("subtype", 0, 15, 8, "event subtype"),
        bits("number", 4, 23, 0, "number of the CQ, QP, SRQ or port, or the command's token"),
        bits("status", 8, 7, 0, "command status, or syndrome behind the event"),
        bits("phase", 12, 31, 31, "toggles with each pass over the ring"),
        word("out_hi", 16, "command events: output parameter, high half"),
        word("out_lo", 20, "command events: output parameter, low half"),
    ),
)

EQE_STRUCT = struct.Struct("<8I")
