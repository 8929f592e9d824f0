"""EQC: the event queue context, 002 section 4.2.3, big-endian."""

from __future__ import annotations

from rnic.spec.layout import Layout, bits, wide, word

EQC_BYTES = 64

EQ_ARMED = 1 << 8
EQ_TR = 1 << 18
EQ_OWNER_HW = 1 << 24
"""Bits of ``flags`` (``hardware.md`` 2a)."""


def merged_mask(mask: int, types: int, disable: bool) -> int:
    """Return the event mask of an EQ after WR_EQ_FUNC adds or removes ``types`` (002 table 3.1)."""
    return mask & ~types if disable else mask | types


EQC = Layout(
    "EQC",
    EQC_BYTES,
    "big",
    "002 4.2.3",
    (
        word("flags", 0x00, "EQ flags: bit 8 armed, bit 18 TR, bit 24 owned by the NIC", "WR"),
        wide("start", 0x04, "virtual address of the ring", 8, "WR"),
        bits("logsize", 0x0C, 31, 24, "log2 of the number of entries", "WR"),
        bits("usrpage", 0x0C, 23, 0, "UAR page; here the number of the queue block", "WR"),
        word("event_mask", 0x10, "event types mapped to this EQ (WR_EQ_FUNC)", "RO"),
        bits("msix_vector", 0x14, 15, 0, "interrupt vector", "WR"),
        word("pd", 0x18, "protection domain", "WR"),
        word("lkey", 0x1C, "key of the ring", "WR"),
        word("consumer_index", 0x28, "next entry that software takes", "WR"),
        word("producer_index", 0x2C, "next entry that the NIC fills", "RO"),
    ),
)
