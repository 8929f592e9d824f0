"""DETH, the datagram extended transport header (IBA vol. 1, 9.3)."""

from __future__ import annotations

from rnic.spec.layout import Layout, bits, word
from rnic.wire.header import Header

DETH = Layout(
    "DETH",
    8,
    "big",
    "IBA vol. 1, 9.3",
    (
        word("qkey", 0, "Q_Key, which the receiver compares with its own"),
        bits("reserved8", 4, 31, 24, "reserved"),
        bits("sqpn", 4, 23, 0, "source QP number"),
    ),
)


class Deth(Header):
    """Datagram extended transport header, 8 bytes."""

    __slots__ = ("qkey", "reserved8", "sqpn")

    layout = DETH
    FORMAT = "II"
    qkey: int
    reserved8: int
    sqpn: int
