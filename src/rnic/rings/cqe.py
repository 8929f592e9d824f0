"""The 32-byte CQ entry (001 section 3.2 with ``design.md``'s extension), little-endian.

Word 3 is stored last: its phase bit marks the whole entry as valid.
"""

from __future__ import annotations

import struct

from rnic.spec.layout import Layout, bits, word

CQE_BYTES = 32
CQE_SHIFT = 5

CQE_RECEIVE = 1 << 8
CQE_IMM = 1 << 9
CQE_INV = 1 << 10
CQE_GRH = 1 << 11
CQE_SOLICITED = 1 << 12
CQE_SRQ = 1 << 13
CQE_PHASE = 1 << 31
"""Bits of word 3."""

CQ_ENTRY = Layout(
    "CQ entry",
    CQE_BYTES,
    "little",
    "001 3.2; design.md",
    (
        word("index", 0, "index of the SQ, RQ or SRQ entry"),
        bits("status", 4, 7, 0, "syndrome; 0 is success"),
        bits("vendor_err", 4, 15, 8, "vendor error: the NAK code or check that failed"),
        word("bytes", 8, "bytes transferred; with GRH, including the 40 bytes of header space"),
        bits("opcode", 12, 7, 0, "work-request opcode of the request that completed or arrived"),
        bits("receive", 12, 8, 8, "a receive completed"),
        bits("imm_valid", 12, 9, 9, "word 7 is immediate data"),
        bits("invalidated", 12, 10, 10, "word 7 is a key that the peer invalidated"),
        bits("grh", 12, 11, 11, "the buffer begins with 40 bytes of header space"),
        bits("solicited", 12, 12, 12, "the sender requested a solicited event"),
        bits("srq", 12, 13, 13, "word 4 is the number of the SRQ whose entry completed (XRC)"),
        bits("phase", 12, 31, 31, "toggles with each pass over the ring"),
        word("wqe_id", 16, "WQE ID of the descriptor, or source QPN of a UD receive, or SRQ"),
        word("requested", 20, "requested length, or 0"),
        bits("qpn", 24, 23, 0, "queue pair number"),
        word("imm", 28, "immediate data or invalidated key"),
    ),
)

DOCUMENTED_CQ_ENTRY = Layout(
    "CQ entry of 000",
    CQE_BYTES,
    "little",
    "000 5.6.1",
    (
        bits("index", 0, 7, 0, "index of the SQ entry, its low eight bits"),
        bits("status", 4, 7, 0, "0 is success"),
        word("bytes", 8, "bytes transferred"),
        bits("index_again", 12, 7, 0, "copy of the index"),
        word("wqe_id", 16, "WQE ID of the descriptor"),
        word("requested", 20, "requested length"),
    ),
)
"""CQ entry of the documented engine: without opcode, vendor error and phase."""

STAMP = Layout(
    "CQ entry with a time",
    CQE_BYTES,
    "little",
    "design.md",
    (
        bits("high", 4, 31, 16, "bits 47:32 of the NIC's time in nanoseconds"),
        word("low", 20, "bits 31:0, in place of the requested length"),
    ),
)
"""Words that differ from :data:`CQ_ENTRY` in a queue with time stamps (``CQ_STAMPED`` in its context)."""

STAMP_BITS = 48
"""Width of a time stamp in nanoseconds, which wraps after three days."""

CQE_STRUCT = struct.Struct("<8I")
"""All eight words of an entry. Write words 0-2 and 4-7 first, then word 3."""
