"""RETH, the RDMA extended transport header: remote address, key and length (IBA vol. 1, 9.3.3)."""

from __future__ import annotations

from rnic.spec.layout import Layout, wide, word
from rnic.wire.header import Header

RETH = Layout(
    "RETH",
    16,
    "big",
    "IBA vol. 1, 9.3.3",
    (
        wide("va", 0, "virtual address at the responder"),
        word("rkey", 8, "remote key"),
        word("dma_length", 12, "length of the whole operation in bytes"),
    ),
)


class Reth(Header):
    """RDMA extended transport header, 16 bytes."""

    __slots__ = ("va", "rkey", "dma_length")

    layout = RETH
    FORMAT = "QII"
    va: int
    rkey: int
    dma_length: int
