"""XRCETH, the XRC extended transport header: the shared receive queue of a request (IBA vol. 1, annex A14)."""

from __future__ import annotations

from rnic.spec.layout import Layout, bits
from rnic.wire.header import Header

XRCETH = Layout(
    "XRCETH",
    4,
    "big",
    "IBA vol. 1, annex A14",
    (bits("srqn", 0, 23, 0, "number of the shared receive queue"),),
)


class Xrceth(Header):
    """XRC extended transport header, 4 bytes, in every XRC request but in no response."""

    __slots__ = ("srqn",)

    layout = XRCETH
    FORMAT = "I"
    srqn: int
