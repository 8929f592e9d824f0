"""CM messages as records for display, from the tables of :mod:`rnic.wire.cm`, and names of reject reasons."""

from __future__ import annotations

from typing import Self

from rnic.wire.cm import MESSAGES
from rnic.wire.header import Buffer, Header
from rnic.wire.mad import CM_NAMES

REJECT_REASONS = {
    1: "no QP", 2: "no EEC", 3: "no resources", 4: "timeout", 5: "unsupported request",
    6: "invalid communication ID", 7: "invalid communication instance", 8: "invalid service ID",
    9: "invalid transport service type", 10: "stale connection", 11: "RDC does not exist",
    12: "primary remote port GID rejected", 13: "primary remote port LID rejected", 14: "invalid primary SL",
    15: "invalid primary traffic class", 16: "invalid primary hop limit", 17: "invalid primary packet rate",
    18: "alternate remote port GID rejected", 19: "alternate remote port LID rejected", 20: "invalid alternate SL",
    21: "invalid alternate traffic class", 22: "invalid alternate hop limit", 23: "invalid alternate packet rate",
    24: "port and CM redirection", 25: "port redirection", 26: "invalid path MTU",
    27: "insufficient responder resources", 28: "consumer reject", 29: "RNR retry count reject",
    30: "duplicate local communication ID", 31: "unsupported class version", 32: "invalid flow label",
    33: "invalid alternate flow label",
}  # fmt: skip
"""Reasons of a ConnectReject (IBA vol. 1, 12.6.7.2)."""


class CmMessage(Header):
    """A message of connection management; each attribute of :data:`CM_MESSAGES` has its own fields."""

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """See :meth:`Header.parse`."""
        return cls(**cls.layout.unpack(buf, offset))

    def pack(self) -> bytes:
        """See :meth:`Header.pack`."""
        return self.layout.pack(self.values())


CM_MESSAGES: dict[int, type[CmMessage]] = {
    attribute: type(CM_NAMES[attribute], (CmMessage,), {"layout": layout}) for attribute, layout in MESSAGES.items()
}
"""Record classes of messages by attribute ID, private data included."""
