"""AETH, the acknowledge extended transport header (IBA vol. 1, 9.3)."""

from __future__ import annotations

from rnic.spec.layout import Layout, bits
from rnic.wire.header import Header

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
