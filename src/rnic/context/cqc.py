"""CQC and SRQC: completion and shared receive queue contexts, big-endian (002 section 4.2.2; SRQC is rnic's own)."""

from __future__ import annotations

from rnic.spec.layout import Layout, bits, wide, word

CQC_BYTES = 64
SRQC_BYTES = 64

CQ_ARMED = 1 << 8
CQ_TR = 1 << 18
"""Bits of ``flags`` (``hardware.md`` 2a)."""

CQ_STAMPED = 1 << 19
"""Bit of ``flags``, rnic's own: CQEs carry timestamps (:data:`~rnic.rings.cqe.STAMP`)."""

CQC = Layout(
    "CQC",
    CQC_BYTES,
    "big",
    "002 4.2.2",
    (
        word("flags", 0x00, "CQ flags: bit 8 armed, bit 18 TR, bit 19 stamped", "WR"),
        wide("start", 0x04, "virtual address of the ring", 8, "WR"),
        bits("logsize", 0x0C, 31, 24, "log2 of the number of entries", "WR"),
        bits("usrpage", 0x0C, 23, 0, "UAR page; here the number of the queue block", "WR"),
        word("comp_eqn", 0x10, "EQ of completion events", "WR"),
        word("pd", 0x14, "protection domain", "WR"),
        word("lkey", 0x18, "key of the ring", "WR"),
        word("last_notified_index", 0x1C, "producer index at the last event", "RO"),
        word("solicit_producer_index", 0x20, "producer index after the last solicited entry", "RO"),
        word("consumer_index", 0x24, "next entry that software takes", "WR"),
        word("producer_index", 0x28, "next entry that the NIC fills", "RO"),
        word("cqn", 0x2C, "this CQ's number", "WR"),
        word("ci_db", 0x30, "consumer index record", "WR"),
        word("state_db", 0x34, "arm state record", "WR"),
    ),
)

SRQC = Layout(
    "SRQC",
    SRQC_BYTES,
    "big",
    "design.md",
    (
        bits("state", 0x00, 31, 28, "0 software owns it, 1 valid, 15 error", "WR"),
        bits("logsize", 0x00, 27, 24, "log2 of the number of entries", "WR"),
        bits("srqn", 0x00, 23, 0, "this SRQ's number", "WR"),
        wide("start", 0x04, "virtual address of the ring", 8, "WR"),
        bits("logstride", 0x0C, 31, 24, "log2 of an entry in bytes", "WR"),
        bits("usrpage", 0x0C, 23, 0, "number of the queue block", "WR"),
        word("pd", 0x10, "protection domain", "WR"),
        word("lkey", 0x14, "key of the ring", "WR"),
        bits("limit", 0x18, 31, 16, "limit; an event is raised below this number of entries", "WR"),
        bits("wqe_counter", 0x18, 15, 0, "entries taken", "RO"),
        bits("xrcd", 0x1C, 15, 0, "XRC domain; 0: an SRQ of RC queue pairs", "WR"),
        word("cqn", 0x20, "CQ of its receives if it is in an XRC domain", "WR"),
    ),
)
