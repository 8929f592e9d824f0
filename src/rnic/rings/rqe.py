"""RQ and SRQ entries: 16-byte scatter entries in a fixed stride (``design.md``).

An entry has no header: the stride (a power of two, at least 16) gives the most scatter entries, and one with both
length and key 0 ends the list early. Software drops zero-length entries when it posts. An entry is identified by its
ring index; the driver keeps its work request identifier.

SRQ entries complete out of order, since several queue pairs take them. So they are slots, for which the driver keeps a
free list. After the last slot comes the order ring, with one 32-bit little-endian slot number for each slot. Head and
tail are indices in the order ring; the index in a completion is the slot number.
"""

from __future__ import annotations

import struct

from rnic.rings.sqe import SGE, SGE_BYTES, SGE_STRUCT
from rnic.spec.layout import Layout

RQ_ENTRY: Layout = SGE
"""Layout of one scatter entry of an RQ or SRQ entry, 16 bytes."""
RQE_MIN_STRIDE = SGE_BYTES
SRQ_ORDER_BYTES = 4
"""Size of a slot number in the order ring of an SRQ."""
SRQ_ORDER_STRUCT = struct.Struct("<I")

__all__ = [
    "RQE_MIN_STRIDE",
    "RQ_ENTRY",
    "SGE_BYTES",
    "SGE_STRUCT",
    "SRQ_ORDER_BYTES",
    "SRQ_ORDER_STRUCT",
    "rqe_stride",
    "srq_bytes",
]


def rqe_stride(max_sge: int) -> int:
    """Return the stride of entries with ``max_sge`` scatter entries: their size rounded up to a power of two."""
    return 1 << (SGE_BYTES * max(1, max_sge) - 1).bit_length()


def srq_bytes(entries: int, stride: int) -> int:
    """Return the size of an SRQ in bytes: its slots and the order ring."""
    return entries * (stride + SRQ_ORDER_BYTES)
