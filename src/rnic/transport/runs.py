"""Runs of packets with a BTH only: the MIDDLE packets of long messages, framed and placed in one loop.

Both loops treat the first eight bytes of such a BTH as one integer, since within a run only the PSN word
changes. CRCs start from per-length seeds that include the masked IP and UDP headers.
"""

from __future__ import annotations

import struct

from rnic.wire.bursts import Buffer
from rnic.wire.crc import crc32

_BTH = struct.Struct(">QI")
_ICRC = struct.Struct("<I")
_ACK_REQ = 1 << 31
_PSN_MASK = (1 << 24) - 1


def segment_run(
    head: int,
    psn: int,
    count: int,
    payload: memoryview,
    mtu: int,
    seeds: tuple[int, ...],
    first: int,
    delta: int,
    ack_every: int,
    buffers: list[Buffer],
) -> None:
    """Append ``count`` packets of ``mtu`` payload bytes to ``buffers``.

    Args:
        head: first eight bytes of the BTH as an integer; the byte of FECN and BECN is 0.
        psn: PSN of the first packet.
        payload: at least ``count * mtu`` bytes.
        seeds: CRC states by IP ID; ``first`` is the first packet's IP ID.
        delta: change of the CRC due to the masked BTH byte, for a packet of this length.
        ack_every: request an ACK if the PSN is a multiple of this, so that a retransmitted packet asks again;
            0 for never.

    One buffer holds the end of a packet and the start of the next, which saves an iov entry per packet.
    """
    pack = _BTH.pack
    seal = _ICRC.pack
    append = buffers.append
    tail = b""
    at = 0
    for ident in range(first, first + count):
        header = pack(head, psn | _ACK_REQ if ack_every and psn % ack_every == 0 else psn)
        chunk = payload[at : at + mtu]
        append(tail + header)
        append(chunk)
        tail = seal(crc32(chunk, crc32(header, seeds[ident])) ^ delta)
        at += mtu
        psn = psn + 1 & _PSN_MASK
    append(tail)


def place_run(
    buf: memoryview,
    start: int,
    segment: int,
    count: int,
    head: int,
    psn: int,
    seeds: tuple[int, ...],
    first: int,
    residue: int,
    dest: memoryview,
) -> tuple[int, bool]:
    """Check up to ``count`` packets from ``buf[start:]`` on and store their payloads in ``dest``.

    Stop at the first packet that does not continue the run, or whose ICRC is wrong: the slow path handles
    it.

    Returns:
        Packets taken, and whether one of them had AckReq.
    """
    unpack = _BTH.unpack_from
    size = segment - 16
    ack = 0
    at = start
    to = 0
    for taken in range(count):
        got_head, word = unpack(buf, at)
        if got_head != head or word & _PSN_MASK != psn:
            return taken, ack != 0
        if crc32(buf[at : at + segment], seeds[first + taken]) != residue:
            return taken, ack != 0
        dest[to : to + size] = buf[at + 12 : at + 12 + size]
        ack |= word & _ACK_REQ
        at += segment
        to += size
        psn = psn + 1 & _PSN_MASK
    return count, ack != 0
