"""AETH, the acknowledge extended transport header (IBA vol. 1, 9.3)."""

from __future__ import annotations

import struct
from typing import Self

from rnic.spec.layout import Layout, bits
from rnic.wire.header import Buffer, Header

AETH = Layout(
    "AETH",
    4,
    "big",
    "IBA vol. 1, 9.3",
    (
        bits("syndrome", 0, 31, 24, "ACK with credits, RNR NAK with timer, or NAK code"),
        bits("msn", 0, 23, 0, "message sequence number: messages completed by the responder"),
    ),
)


class Aeth(Header):
    """Acknowledge extended transport header, 4 bytes."""

    __slots__ = ("syndrome", "msn")

    layout = AETH
    FORMAT = "I"
    syndrome: int
    msn: int

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """See :meth:`Header.parse`."""
        header = cls.__new__(cls)
        (word,) = _STRUCT.unpack_from(buf, offset)
        header.syndrome = word >> 24
        header.msn = word & 0xFFFFFF
        return header

    def pack(self) -> bytes:
        """See :meth:`Header.pack`."""
        self.check()
        return _STRUCT.pack(self.syndrome << 24 | self.msn)


_STRUCT = struct.Struct(f">{Aeth.FORMAT}")
