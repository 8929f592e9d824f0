"""DETH, the datagram extended transport header (IBA vol. 1, 9.3)."""

from __future__ import annotations

import struct
from typing import Self

from rnic.spec.layout import Layout, bits, word
from rnic.wire.header import Buffer, Header

DETH = Layout(
    "DETH",
    8,
    "big",
    "IBA vol. 1, 9.3",
    (
        word("qkey", 0, "Q_Key, which the receiver compares with its own"),
        bits("reserved8", 4, 31, 24, "reserved"),
        bits("sqpn", 4, 23, 0, "source QP number"),
    ),
)


class Deth(Header):
    """Datagram extended transport header, 8 bytes."""

    __slots__ = ("qkey", "reserved8", "sqpn")

    layout = DETH
    FORMAT = "II"
    qkey: int
    reserved8: int
    sqpn: int

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """See :meth:`Header.parse`."""
        header = cls.__new__(cls)
        header.qkey, sqpn = _STRUCT.unpack_from(buf, offset)
        header.reserved8 = sqpn >> 24
        header.sqpn = sqpn & 0xFFFFFF
        return header

    def pack(self) -> bytes:
        """See :meth:`Header.pack`."""
        self.check()
        return _STRUCT.pack(self.qkey, self.reserved8 << 24 | self.sqpn)


_STRUCT = struct.Struct(f">{Deth.FORMAT}")
