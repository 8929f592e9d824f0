"""Taking bursts apart into single packets whose ICRCs still hold.

Segment ``i`` of a burst is sealed for IPv4 ident ``i``. A packet that travels alone leaves with ident 0, so
its ICRC is moved over. CRCs are linear: the change depends on length and idents, not on the content, and a
packet that was wrong stays wrong by the same bits.
"""

from __future__ import annotations

import struct

from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow

_ICRC = struct.Struct("<I")
MIN_PACKET = 16
"""BTH and ICRC: nothing shorter has an ICRC."""


def joined(burst: TxBurst) -> bytes:
    """The payloads of a burst back to back, in memory of their own."""
    return b"".join(burst.buffers)


def ident_shift(flow: Flow, length: int, ident: int) -> int:
    """XOR this into the ICRC of a packet made for ``ident`` to get the one for ident 0.

    Args:
        length: bytes of the UDP payload with its ICRC, at least 16.
    """
    body = bytes(length - 4)
    return crc32(body, flow.seed(length, ident)) ^ crc32(body, flow.seed(length))


def single_packets(burst: TxBurst) -> list[TxBurst]:
    """The packets of a burst to send, each alone and sealed for ident 0, in memory of their own."""
    data = bytearray(joined(burst))
    flow = burst.flow
    view = memoryview(data)
    packets = []
    ipv4 = len(flow.src) == 4
    for ident, start in enumerate(range(0, len(data), burst.segment)):
        end = min(start + burst.segment, len(data))
        size = end - start
        if ident and ipv4 and size >= MIN_PACKET:
            (icrc,) = _ICRC.unpack_from(data, end - 4)
            _ICRC.pack_into(data, end - 4, icrc ^ ident_shift(flow, size, ident))
        packets.append(TxBurst(flow, [view[start:end]], size, 1, size))
    return packets


def received_packets(burst: RxBurst) -> list[RxBurst]:
    """The packets of a received burst, each alone, aliasing its ``buf``.

    Where the link did not see idents, a packet's place in its burst is the first guess at its ident. That
    place ends here, so the guess is settled while it is known.
    """
    if burst.length <= burst.segment:
        return [burst]
    flow = burst.flow
    unseen = burst.ident is None and len(flow.src) == 4
    packets = []
    for index, start in enumerate(range(0, burst.length, burst.segment)):
        buf = burst.buf[start : min(start + burst.segment, burst.length)]
        ident = None if burst.ident is None else burst.ident + index & 0xFFFF
        if unseen and index and len(buf) >= MIN_PACKET and flow.check(buf, index):
            ident = index
        size = len(buf)
        packets.append(RxBurst(flow, buf, size, size, ident, burst.frag, burst.tclass, burst.hop_limit))
    return packets


def kept(burst: RxBurst, data: bytearray | None = None) -> RxBurst:
    """The same burst over memory of its own, which may be other ``data`` of the same length."""
    buf = memoryview(bytes(burst.buf) if data is None else data)
    return RxBurst(burst.flow, buf, burst.segment, burst.length, burst.ident, burst.frag, burst.tclass, burst.hop_limit)
