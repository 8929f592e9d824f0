"""The 128-byte register block of each QP, CQ, SRQ and EQ (``design.md`` "Fixed numbers").

001's queue registers are at 001's offsets; the receive queue replaces 001's debug registers. Base, size and stride of a
queue created through its context are read-only mirrors.
"""

from __future__ import annotations

from rnic.spec.layout import Layout, word

BLOCK_BYTES = 128
BLOCK_SHIFT = 7

QUEUE_NUMBER = 0x00
QUEUE_STATE = 0x04

SQ_BASE_LO, SQ_BASE_HI, SQ_SIZE, SQ_HEAD, SQ_TAIL, SQ_DOORBELL, SQ_FLAGS, SQ_STRIDE = range(0x20, 0x40, 4)
CQ_BASE_LO, CQ_BASE_HI, CQ_SIZE, CQ_HEAD, CQ_TAIL, CQ_DOORBELL, CQ_FLAGS = range(0x40, 0x5C, 4)
RQ_BASE_LO, RQ_BASE_HI, RQ_SIZE, RQ_HEAD, RQ_TAIL, RQ_STRIDE = range(0x60, 0x78, 4)
SRQ_LIMIT = 0x78

ARM_NEXT = 1
ARM_SOLICITED = 2
"""Values of CQ_DOORBELL."""

_COMMON = (
    word("QUEUE_NUMBER", QUEUE_NUMBER, "number of the queue", "RO"),
    word("QUEUE_STATE", QUEUE_STATE, "state of the queue", "RO"),
)
_RQ = (
    word("RQ_BASE_LO", RQ_BASE_LO, "receive ring base, low half", "RO"),
    word("RQ_BASE_HI", RQ_BASE_HI, "receive ring base, high half", "RO"),
    word("RQ_SIZE", RQ_SIZE, "entries of the receive ring", "RO"),
    word("RQ_HEAD", RQ_HEAD, "next entry that the NIC takes", "RO"),
    word("RQ_TAIL", RQ_TAIL, "next entry that software fills; a write rings the doorbell", "RW"),
    word("RQ_STRIDE", RQ_STRIDE, "bytes from one entry to the next", "RO"),
)

QP_BLOCK = Layout(
    "QP queue block",
    BLOCK_BYTES,
    "little",
    "001 3.2; design.md",
    (
        *_COMMON,
        word("SQ_BASE_LO", SQ_BASE_LO, "send ring base, low half", "RO"),
        word("SQ_BASE_HI", SQ_BASE_HI, "send ring base, high half", "RO"),
        word("SQ_SIZE", SQ_SIZE, "entries of the send ring", "RO"),
        word("SQ_HEAD", SQ_HEAD, "next entry that the NIC takes", "RO"),
        word("SQ_TAIL", SQ_TAIL, "next entry that software fills; a write rings the doorbell", "RW"),
        word("SQ_DOORBELL", SQ_DOORBELL, "any write rings the doorbell and keeps the tail", "RW"),
        word("SQ_FLAGS", SQ_FLAGS, "stored, no effect", "RW"),
        word("SQ_STRIDE", SQ_STRIDE, "bytes of one slab slot", "RO"),
        *_RQ,
    ),
)
CQ_BLOCK = Layout(
    "CQ and EQ queue block",
    BLOCK_BYTES,
    "little",
    "001 3.2; design.md",
    (
        *_COMMON,
        word("CQ_BASE_LO", CQ_BASE_LO, "ring base, low half", "RO"),
        word("CQ_BASE_HI", CQ_BASE_HI, "ring base, high half", "RO"),
        word("CQ_SIZE", CQ_SIZE, "entries of the ring", "RO"),
        word("CQ_HEAD", CQ_HEAD, "next entry that software takes", "RW"),
        word("CQ_TAIL", CQ_TAIL, "next entry that the NIC fills: the producer record", "RO"),
        word("CQ_DOORBELL", CQ_DOORBELL, "arm, bits: 1 next entry, 2 next solicited entry", "RW"),
        word("CQ_FLAGS", CQ_FLAGS, "stored, no effect", "RW"),
    ),
)
SRQ_BLOCK = Layout(
    "SRQ queue block",
    BLOCK_BYTES,
    "little",
    "001 3.2; design.md",
    (*_COMMON, *_RQ, word("LIMIT", SRQ_LIMIT, "raise an event when fewer entries are left; 0 is off", "RW")),
)
