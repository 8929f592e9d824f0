"""ImmDt, the immediate data extended transport header (IBA vol. 1, 9.3)."""

from __future__ import annotations

import struct
from typing import Self

from rnic.spec.layout import Layout, word
from rnic.wire.header import Buffer, Header

IMMDT = Layout("ImmDt", 4, "big", "IBA vol. 1, 9.3", (word("imm", 0, "value that the receiver's completion carries"),))


class ImmDt(Header):
    """Immediate data, 4 bytes."""

    __slots__ = ("imm",)

    layout = IMMDT
    FORMAT = "I"
    imm: int

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """See :meth:`Header.parse`."""
        header = cls.__new__(cls)
        (header.imm,) = _STRUCT.unpack_from(buf, offset)
        return header

    def pack(self) -> bytes:
        """See :meth:`Header.pack`."""
        self.check()
        return _STRUCT.pack(self.imm)


_STRUCT = struct.Struct(f">{ImmDt.FORMAT}")
