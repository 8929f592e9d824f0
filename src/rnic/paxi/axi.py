"""Transfers on the five channels of AXI4, and the addresses of their bytes (IHI 0022 A3.4).

Addresses are byte addresses. ``size`` and ``len`` are AxSIZE and AxLEN as on the bus: log2 of the bytes per beat, and
the number of beats minus 1. Byte 0 of a beat's data is lane 0.
"""

from __future__ import annotations

from typing import NamedTuple

from rnic.spec.axi import (
    BOUNDARY_BYTES,
    MAX_DATA_BITS,
    MAX_FIXED_BEATS,
    MAX_LEN,
    MIN_DATA_BITS,
    WRAP_BEATS,
    Burst,
    Resp,
)
from rnic.spec.errors import RnicError

BUS_BITS = tuple(1 << log for log in range(MIN_DATA_BITS.bit_length() - 1, MAX_DATA_BITS.bit_length()))
"""Data widths of a bus in bits: 8 to 1024."""
_BURSTS = tuple(Burst)


class AxiError(RnicError):
    """Error response to a transaction; ``resp`` is :class:`~rnic.spec.axi.Resp`."""

    def __init__(self, resp: int, message: str) -> None:
        super().__init__(message)
        self.resp = Resp(resp)


class Address(NamedTuple):
    """One beat of AR or AW."""

    id: int
    addr: int
    len: int
    """Number of beats minus 1, 0 to 255."""
    size: int
    """Log2 of the bytes per beat."""
    burst: int = Burst.INCR.value


class WriteBeat(NamedTuple):
    """One beat of W: ``data`` of the bus width, and a strobe bit for each byte."""

    data: bytes
    strobe: int
    last: bool


class ReadBeat(NamedTuple):
    """One beat of R; unused lanes are zero."""

    id: int
    data: bytes
    resp: int
    last: bool


class WriteResponse(NamedTuple):
    """One beat of B."""

    id: int
    resp: int


def span(address: Address) -> tuple[int, int]:
    """Return the first byte of a burst and the byte after its last (A3.4.1).

    An unaligned start shortens the first beat only. A WRAP burst fills its container, which is aligned to its own size.
    All beats of a FIXED burst access the same bytes.
    """
    unit = 1 << address.size
    if address.burst == Burst.FIXED:
        return address.addr, (address.addr & -unit) + unit
    total = (address.len + 1) * unit
    if address.burst == Burst.WRAP:
        first = address.addr - address.addr % total
        return first, first + total
    return address.addr, (address.addr & -unit) + total


def beat_bytes(address: Address, beat: int) -> tuple[int, int]:
    """Return the first byte of beat number ``beat`` of a burst and the byte after its last."""
    unit = 1 << address.size
    if address.burst == Burst.FIXED:
        return span(address)
    base = (address.addr & -unit) + beat * unit
    if address.burst == Burst.WRAP:
        first, end = span(address)
        base = first + (base - first) % (end - first)
        return base, base + unit
    return (address.addr if beat == 0 else base), base + unit


def fault(address: Address, bus_bytes: int) -> str:
    """Return why a burst is illegal in AXI4 (PAXI answers SLVERR); empty if it is legal."""
    burst = address.burst
    if burst not in _BURSTS:
        return "burst type"
    if not address.size >= 0 or 1 << address.size > bus_bytes:
        return "size"
    most = MAX_FIXED_BEATS - 1 if burst == Burst.FIXED else MAX_LEN
    if not 0 <= address.len <= most or (burst == Burst.WRAP and address.len + 1 not in WRAP_BEATS):
        return "length"
    if burst == Burst.WRAP and address.addr % (1 << address.size):
        return "alignment"
    first, end = span(address)
    if first // BOUNDARY_BYTES != (end - 1) // BOUNDARY_BYTES:
        return "4 KB boundary"
    return ""


def runs(strobe: int) -> list[tuple[int, int]]:
    """Return (first lane, lane after the last) of each run of set strobes."""
    out = []
    while strobe:
        low = (strobe & -strobe).bit_length() - 1
        ones = ~(strobe >> low)
        high = low + (ones & -ones).bit_length() - 1
        out.append((low, high))
        strobe &= -1 << high
    return out
