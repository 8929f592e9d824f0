"""FETH, the flush extended transport header: placement type and selectivity level of a FLUSH (IBA vol. 1, annex
A19)."""

from __future__ import annotations

from rnic.spec.layout import Layout, bits
from rnic.wire.header import Header

FETH = Layout(
    "FETH",
    4,
    "big",
    "IBA vol. 1, annex A19",
    (
        bits("level", 0, 5, 4, "selectivity level: 0 the range of the RETH, 1 the whole region"),
        bits("placement", 0, 3, 0, "placement type: bit 0 global visibility, bit 1 persistence"),
    ),
)


class Feth(Header):
    """Flush extended transport header, 4 bytes."""

    __slots__ = ("level", "placement")

    layout = FETH
    FORMAT = "I"
    level: int
    placement: int
