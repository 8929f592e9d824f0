"""IETH, the invalidate extended transport header (IBA vol. 1, 9.3)."""

from __future__ import annotations

from rnic.spec.layout import Layout, word
from rnic.wire.header import Header

IETH = Layout(
    "IETH", 4, "big", "IBA vol. 1, 9.3", (word("inv_rkey", 0, "remote key that the receiver shall invalidate"),)
)


class Ieth(Header):
    """Invalidate extended transport header, 4 bytes."""

    __slots__ = ("inv_rkey",)

    layout = IETH
    FORMAT = "I"
    inv_rkey: int
