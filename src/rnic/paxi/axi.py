"""What travels on the five channels of AXI4, and where its bytes lie (IHI 0022 A3.4).

Addresses are byte addresses; ``size`` and ``len`` are AxSIZE and AxLEN as on the bus: bytes of a beat as a power of
two, and beats less one. Byte 0 of a beat's data is lane 0.
"""

from __future__ import annotations

from typing import NamedTuple

from rnic.spec.axi import BOUNDARY_BYTES, MAX_DATA_BITS, MAX_LEN, MIN_DATA_BITS, Burst, Resp
from rnic.spec.errors import RnicError

BUS_BITS = tuple(1 << log for log in range(MIN_DATA_BITS.bit_length() - 1, MAX_DATA_BITS.bit_length()))
"""Data widths of a bus: 8 to 512."""


class AxiError(RnicError):
    """A transaction was answered with an error; ``resp`` is :class:`~rnic.spec.axi.Resp`."""

    def __init__(self, resp: int, message: str) -> None:
        super().__init__(message)
        self.resp = Resp(resp)


class Address(NamedTuple):
    """One beat of AR or AW."""

    id: int
    addr: int
    len: int
    """Beats less one, 0 to 255."""
    size: int
    """Bytes of a beat, as a power of two."""
    burst: int = Burst.INCR.value


class WriteBeat(NamedTuple):
    """One beat of W: ``data`` as wide as the bus, a strobe bit for each byte."""

    data: bytes
    strobe: int
    last: bool


class ReadBeat(NamedTuple):
    """One beat of R. Lanes that the transfer does not use are zero."""

    id: int
    data: bytes
    resp: int
    last: bool


class WriteResponse(NamedTuple):
    """One beat of B."""

    id: int
    resp: int


def span(address: Address) -> tuple[int, int]:
    """First byte of an INCR burst and the byte behind its last: an unaligned start shortens the first beat only."""
    unit = 1 << address.size
    return address.addr, (address.addr & -unit) + (address.len + 1) * unit


def beat_bytes(address: Address, beat: int) -> tuple[int, int]:
    """First byte of beat number ``beat`` of an INCR burst and the byte behind its last."""
    unit = 1 << address.size
    base = (address.addr & -unit) + beat * unit
    return (address.addr if beat == 0 else base), base + unit


def fault(address: Address, bus_bytes: int) -> str:
    """What makes a burst one that PAXI refuses with SLVERR; empty where nothing does.

    FIXED and WRAP are refused by choice, the rest are bursts that AXI4 forbids.
    """
    if address.burst != Burst.INCR:
        return "FIXED" if address.burst == Burst.FIXED else "WRAP" if address.burst == Burst.WRAP else "burst type"
    if not 0 <= address.len <= MAX_LEN:
        return "length"
    if not address.size >= 0 or 1 << address.size > bus_bytes:
        return "size"
    first, end = span(address)
    if first // BOUNDARY_BYTES != (end - 1) // BOUNDARY_BYTES:
        return "4 KB boundary"
    return ""


def runs(strobe: int) -> list[tuple[int, int]]:
    """(first lane, lane behind the last) of each run of ones."""
    out = []
    while strobe:
        low = (strobe & -strobe).bit_length() - 1
        ones = ~(strobe >> low)
        high = low + (ones & -ones).bit_length() - 1
        out.append((low, high))
        strobe &= -1 << high
    return out
