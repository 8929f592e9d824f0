"""ImmDt, the immediate data extended transport header (IBA vol. 1, 9.3)."""

from __future__ import annotations

from rnic.spec.layout import Layout, word
from rnic.wire.header import Header

IMMDT = Layout("ImmDt", 4, "big", "IBA vol. 1, 9.3", (word("imm", 0, "value that the receiver's completion carries"),))


class ImmDt(Header):
    """Immediate data, 4 bytes."""

    __slots__ = ("imm",)

    layout = IMMDT
    FORMAT = "I"
    imm: int
