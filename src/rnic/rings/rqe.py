"""RQ and SRQ entries: 16-byte scatter entries in a fixed stride (``design.md``).

An entry has no header: the stride (a power of two, at least 16) says how many scatter entries fit, and an
entry whose length and key are both 0 ends the list early. Software drops zero-length entries when it posts.
An entry's index is its index in the ring, and its work request identifier stays with the driver.

The entries of an SRQ complete out of order, since several queue pairs take them. So its entries are slots, for which
the driver keeps a free list, and after the last slot lies the order: a ring of as many 32-bit little-endian slot
numbers. Head and tail are indices in the order; the index in a completion is the slot.
"""

from __future__ import annotations

import struct

from rnic.rings.sqe import SGE, SGE_BYTES, SGE_STRUCT
from rnic.spec.layout import Layout

RQ_ENTRY: Layout = SGE
"""Layout of each 16 bytes of an RQ or SRQ entry."""
RQE_MIN_STRIDE = SGE_BYTES
SRQ_ORDER_BYTES = 4
"""Bytes of one slot number in the order of an SRQ."""
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
    """Return the number of bytes from one entry to the next for ``max_sge`` scatter entries: the next power of two."""
    return 1 << (SGE_BYTES * max(1, max_sge) - 1).bit_length()


def srq_bytes(entries: int, stride: int) -> int:
    """Return the number of bytes of an SRQ: its slots, and their order."""
    return entries * (stride + SRQ_ORDER_BYTES)
