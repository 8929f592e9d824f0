"""Taking bursts apart into packets, or shorter bursts, whose ICRCs still hold.

Segment ``i`` of a burst is sealed for IPv4 ident ``i``. A packet that travels alone leaves with ident 0, and one
further on in a part with its place there, so its ICRC is moved over. CRCs are linear: the change depends on length
and idents, not on the content, and a packet that was wrong stays wrong by the same bits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import CE, Flow

_ICRC = struct.Struct("<I")
MIN_PACKET = 16
"""BTH and ICRC: nothing shorter has an ICRC."""


def joined(burst: TxBurst) -> bytes:
    """The payloads of a burst back to back, in memory of their own."""
    return b"".join(burst.buffers)


def ident_shift(flow: Flow, length: int, ident: int, to: int = 0) -> int:
    """XOR this into the ICRC of a packet made for ``ident`` to get the one for ident ``to``.

    Args:
        length: bytes of the UDP payload with its ICRC, at least 16.
    """
    body = bytes(length - 4)
    return crc32(body, flow.seed(length, ident)) ^ crc32(body, flow.seed(length, to))


def single_packets(burst: TxBurst) -> list[TxBurst]:
    """The packets of a burst to send, each alone and sealed for ident 0, in memory of their own."""
    return cut_to_send(burst, range(burst.count))


def cut_to_send(burst: TxBurst, firsts: Sequence[int]) -> list[TxBurst]:
    """A burst to send in parts, each sealed for the idents from 0 on that it leaves with, in memory of their own.

    Args:
        firsts: the packets that begin a part, rising from 0.
    """
    data = bytearray(joined(burst))
    flow = burst.flow
    segment = burst.segment
    view = memoryview(data)
    ipv4 = len(flow.src) == 4
    parts = []
    for first, behind in zip(firsts, [*firsts[1:], burst.count], strict=True):
        low, high = first * segment, min(behind * segment, len(data))
        for start in range(low, high, segment) if first and ipv4 else ():
            end = min(start + segment, high)
            if end - start >= MIN_PACKET:
                ident = start // segment
                (icrc,) = _ICRC.unpack_from(data, end - 4)
                _ICRC.pack_into(data, end - 4, icrc ^ ident_shift(flow, end - start, ident, ident - first))
        parts.append(TxBurst(flow, [view[low:high]], min(segment, high - low), behind - first, high - low))
    return parts


def received_packets(burst: RxBurst) -> list[RxBurst]:
    """The packets of a received burst, each alone, aliasing its ``buf``."""
    return cut_received(burst, range(-(-burst.length // burst.segment)))


def cut_received(burst: RxBurst, firsts: Sequence[int]) -> list[RxBurst]:
    """A received burst in parts, which alias its ``buf``.

    Where the link did not see idents, a packet's place in its burst is the first guess at its ident. Behind the
    first part that place is lost, so there every packet goes alone, and the guess is settled while it is known.

    Args:
        firsts: the packets that begin a part, rising from 0.
    """
    count = -(-burst.length // burst.segment)
    if count <= 1:
        return [burst]
    flow = burst.flow
    unseen = burst.ident is None and len(flow.src) == 4
    if unseen and len(firsts) > 1:
        firsts = [0, *range(firsts[1], count)]
    parts = []
    for first, behind in zip(firsts, [*firsts[1:], count], strict=True):
        buf = burst.buf[first * burst.segment : min(behind * burst.segment, burst.length)]
        ident = None if burst.ident is None else burst.ident + first & 0xFFFF
        if unseen and first and len(buf) >= MIN_PACKET and flow.check(buf, first):
            ident = first
        size = len(buf)
        segment = min(burst.segment, size)
        parts.append(RxBurst(flow, buf, segment, size, ident, *_how(burst)))
    return parts


def kept(burst: RxBurst, data: bytearray | None = None) -> RxBurst:
    """The same burst over memory of its own, which may be other ``data`` of the same length."""
    buf = memoryview(bytes(burst.buf) if data is None else data)
    return RxBurst(burst.flow, buf, burst.segment, burst.length, burst.ident, *_how(burst))


def _how(burst: RxBurst) -> tuple[int, int, int, int, tuple[int, int]]:
    """What the IP header said besides addresses and ident, and what is known of the ident."""
    return burst.frag, burst.tclass, burst.hop_limit, burst.flow_label, burst.known


def marked_to_send(burst: TxBurst) -> TxBurst:
    """The same packets with ECN 11, over the same memory."""
    return TxBurst(burst.flow.marked(), burst.buffers, burst.segment, burst.count, burst.length)


def marked_received(burst: RxBurst) -> RxBurst:
    """The same packets as if a switch on their way had marked them, over the same memory."""
    frag, tclass, hop_limit, label, known = _how(burst)
    how = frag, tclass | CE, hop_limit, label, known
    return RxBurst(burst.flow, burst.buf, burst.segment, burst.length, burst.ident, *how)
