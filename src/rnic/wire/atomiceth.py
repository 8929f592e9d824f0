"""AtomicETH and AtomicAckETH: operands and result of an atomic (IBA vol. 1, 9.3)."""

from __future__ import annotations

from rnic.spec.layout import Layout, wide, word
from rnic.wire.header import Header

ATOMICETH = Layout(
    "AtomicETH",
    28,
    "big",
    "IBA vol. 1, 9.3",
    (
        wide("va", 0, "virtual address at the responder, a multiple of 8"),
        word("rkey", 8, "remote key"),
        wide("swap_add", 12, "value to swap in, or to add"),
        wide("compare", 20, "value to compare with"),
    ),
)
ATOMICACKETH = Layout(
    "AtomicAckETH", 8, "big", "IBA vol. 1, 9.3", (wide("orig", 0, "memory contents before the operation"),)
)


class AtomicEth(Header):
    """Atomic extended transport header, 28 bytes."""

    __slots__ = ("va", "rkey", "swap_add", "compare")

    layout = ATOMICETH
    FORMAT = "QIQQ"
    va: int
    rkey: int
    swap_add: int
    compare: int


class AtomicAckEth(Header):
    """Atomic acknowledge extended transport header, 8 bytes."""

    __slots__ = ("orig",)

    layout = ATOMICACKETH
    FORMAT = "Q"
    orig: int
