"""Split bursts into packets, or shorter bursts, whose ICRCs still match.

The ICRC of segment ``i`` of a burst is for IP ID ``i``. A single packet is sent with IP ID 0, and one in a shorter
burst with its index there, so its ICRC is adjusted. CRCs are linear: the change depends on length and IP IDs, not on
the content, and a wrong ICRC stays wrong by the same bits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import CE, Flow

_ICRC = struct.Struct("<I")
MIN_PACKET = 16
"""Size of BTH and ICRC, the shortest packet with an ICRC."""


def joined(burst: TxBurst) -> bytes:
    """Return a copy of the payloads of a burst, back to back."""
    return b"".join(burst.buffers)


def ident_shift(flow: Flow, length: int, ident: int, to: int = 0) -> int:
    """Return the value to XOR into the ICRC of a packet made for IP ID ``ident`` to get that for IP ID ``to``.

    Args:
        length: bytes of the UDP payload with its ICRC, at least 16.
    """
    body = bytes(length - 4)
    return crc32(body, flow.seed(length, ident)) ^ crc32(body, flow.seed(length, to))


def single_packets(burst: TxBurst) -> list[TxBurst]:
    """Return copies of the packets of a burst to send, each with the ICRC for IP ID 0."""
    return cut_to_send(burst, range(burst.count))


def cut_to_send(burst: TxBurst, firsts: Sequence[int]) -> list[TxBurst]:
    """Return a burst to send as copied parts, each with ICRCs for IP IDs from 0 on.

    Args:
        firsts: indices of the first packets of the parts, ascending from 0.
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
    """Return the single packets of a received burst, aliasing its ``buf``."""
    return cut_received(burst, range(-(-burst.length // burst.segment)))


def cut_received(burst: RxBurst, firsts: Sequence[int]) -> list[RxBurst]:
    """Return a received burst in parts, which alias its ``buf``.

    If the link did not see IP IDs, a packet's index in its burst is the first guess at its IP ID. Later parts do not
    have this index, so they are single packets that carry the guess.

    Args:
        firsts: indices of the first packets of the parts, ascending from 0.
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
    """Return a copy of a burst, or the same packet with other ``data``, which is not longer."""
    if data is not None:
        size = len(data)
        return RxBurst(burst.flow, memoryview(data), size, size, burst.ident, *_how(burst))
    buf = memoryview(bytes(burst.buf))
    return RxBurst(burst.flow, buf, burst.segment, burst.length, burst.ident, *_how(burst))


def _how(burst: RxBurst) -> tuple[int, int, int, int, tuple[int, int]]:
    """Return the fields of the IP header besides addresses and IP ID, and the known bits of the IP ID."""
    return burst.frag, burst.tclass, burst.hop_limit, burst.flow_label, burst.known


def marked_to_send(burst: TxBurst) -> TxBurst:
    """Return the same packets with ECN CE, in the same memory."""
    return TxBurst(burst.flow.marked(), burst.buffers, burst.segment, burst.count, burst.length)


def marked_received(burst: RxBurst) -> RxBurst:
    """Return the same packets with ECN CE, as marked by a switch, in the same memory."""
    frag, tclass, hop_limit, label, known = _how(burst)
    how = frag, tclass | CE, hop_limit, label, known
    return RxBurst(burst.flow, burst.buf, burst.segment, burst.length, burst.ident, *how)
