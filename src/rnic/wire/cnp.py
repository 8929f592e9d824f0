"""CNP, the congestion notification packet: a BTH with BECN set and 16 reserved bytes (Annex A17, 17.9.3)."""

from __future__ import annotations

from typing import Self

from rnic.spec.layout import Layout, wide
from rnic.wire.header import Buffer, Header

CNP_PAYLOAD = Layout("CNP payload", 16, "big", "Annex A17, 17.9.3", (wide("reserved128", 0, "reserved, zero", 16),))


class Cnp(Header):
    """What follows the BTH of a CNP, 16 bytes."""

    __slots__ = ("reserved128",)

    layout = CNP_PAYLOAD
    FORMAT = "16s"
    reserved128: int

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """The record at ``buf[offset:]``. ``ValueError`` if the buffer is too short."""
        return cls(**CNP_PAYLOAD.unpack(buf, offset))

    def pack(self) -> bytes:
        """See :meth:`Header.pack`."""
        self.check()
        return self.reserved128.to_bytes(16, "big")
