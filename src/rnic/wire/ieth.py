"""IETH, the invalidate extended transport header (IBA vol. 1, 9.3)."""

from __future__ import annotations

import struct
from typing import Self

from rnic.spec.layout import Layout, word
from rnic.wire.header import Buffer, Header

IETH = Layout(
    "IETH", 4, "big", "IBA vol. 1, 9.3", (word("inv_rkey", 0, "remote key that the receiver shall invalidate"),)
)


class Ieth(Header):
    """Invalidate extended transport header, 4 bytes."""

    __slots__ = ("inv_rkey",)

    layout = IETH
    FORMAT = "I"
    inv_rkey: int

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """See :meth:`Header.parse`."""
        header = cls.__new__(cls)
        (header.inv_rkey,) = _STRUCT.unpack_from(buf, offset)
        return header

    def pack(self) -> bytes:
        """See :meth:`Header.pack`."""
        self.check()
        return _STRUCT.pack(self.inv_rkey)


_STRUCT = struct.Struct(f">{Ieth.FORMAT}")
