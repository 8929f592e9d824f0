"""Undo changes to packets in captures, if the ICRC proves them: rewritten source ports, segmentation offload.

A CRC is linear: the effect of a changed source port on a packet's CRC depends only on the packet's length. Running the
CRC register back from the end to the port gives the only port that can make the ICRC right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from rnic.spec.limits import BTH_BYTES, ICRC_BYTES, MAX_PATH_MTU, MTU_CODES
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow, residue
from rnic.wire.header import Buffer
from rnic.wire.ident import run_back
from rnic.wire.infiniband import IbFlow
from rnic.wire.opcode import OPCODES, OpcodeRow

_UDP_BYTES = 8
_LEAST = BTH_BYTES + ICRC_BYTES
MAX_SEGMENTS = 128
"""Most segments of one send in Linux (``UDP_MAX_SEGMENTS``), and most packets that GRO merges."""
MAX_GUESSES = 64
"""Most sizes to try if no header gives the size; only sizes after which a BTH can follow are tried."""
_PKEY_AT = 2
_MTUS = sorted(MTU_CODES, reverse=True)
_RETH_LENGTH_AT = BTH_BYTES + 12


def solve_port(packet: Buffer, flow: Flow, ident: int, frag: int) -> int | None:
    """Return the UDP source port for which a packet's ICRC is right.

    Args:
        packet: a whole UDP payload, BTH to ICRC, at least 16 bytes.
        flow: the path on which it was captured.
        ident: IPv4 identification.
        frag: IPv4 flags and fragment offset.

    Returns:
        The port, or ``None`` if there is none. A random error matches a port with a probability of 2^-16.
    """
    length = len(packet)
    change = crc32(packet, flow.seed(length, ident, frag)) ^ residue(length, packet[4])
    register = run_back(change, length + _UDP_BYTES)
    # the register's lowest byte is the first on the wire: source port, then destination port
    if register >> 16:
        return None
    return flow.sport ^ ((register & 0xFF) << 8 | register >> 8)


def split(payload: bytes, flow: Flow | IbFlow, ident: int, frag: int) -> list[tuple[int, bytes]]:
    """Return the packets in a frame that was captured before segmentation or after GRO.

    All packets have the same size except the last, which may be shorter. The frame does not contain the size: each size
    that the first opcode allows is tried, and accepted if every ICRC is right.

    Args:
        payload: the UDP payload of the whole frame.
        flow: the path on which it was captured.
        ident: IP ID of the frame; the IP IDs of its packets count up from it or are all equal to it.
        frag: IPv4 flags and fragment offset.

    Returns:
        IP ID and UDP payload of each packet, at least two; empty if the payload is not such a frame.
    """
    total = len(payload)
    row = OPCODES[payload[0]]
    if row is None or total < 2 * _LEAST or total % 4:
        return []
    for size in _sizes(row, payload, total - _LEAST):
        if not (_divides(size, total) and _right(payload[:size], flow, ident, frag)):
            continue
        parts = [payload[at : at + size] for at in range(0, total, size)]
        for step in (1, 0):
            idents = [ident + step * index & 0xFFFF for index in range(len(parts))]
            if all(_right(part, flow, each, frag) for part, each in zip(parts[1:], idents[1:], strict=True)):
                return list(zip(idents, parts, strict=True))
    return []


def may_be_several(row: OpcodeRow, payload: bytes, size: int, mtu: int) -> bool:
    """Return whether a truncated frame is longer than one packet of its first opcode can be.

    Args:
        row: the opcode.
        payload: the captured part of the UDP payload.
        size: bytes between headers and padding if it were one packet.
        mtu: path MTU in bytes, 0 for unknown.
    """
    if not row.payload:
        return size > 0
    if not row.end:
        return size > 0 and size not in MTU_CODES
    announced = payload[_RETH_LENGTH_AT : _RETH_LENGTH_AT + 4]
    if row.reth and len(announced) == 4:
        return size > int.from_bytes(announced, "big")
    return size > (mtu or MAX_PATH_MTU)


def _right(packet: bytes, flow: Flow | IbFlow, ident: int, frag: int) -> bool:
    length = len(packet)
    return crc32(packet, flow.seed(length, ident, frag)) == residue(length, packet[4])


def _sizes(row: OpcodeRow, payload: bytes, most: int) -> Iterator[int]:
    """Yield sizes that the first packet may have, likely ones first."""
    fixed = row.header_bytes + ICRC_BYTES
    if not row.payload:
        sizes: Iterable[int] = [fixed]
    elif not row.end:
        sizes = [fixed + mtu for mtu in _MTUS]
    elif row.reth:
        length = int.from_bytes(payload[_RETH_LENGTH_AT : _RETH_LENGTH_AT + 4], "big")
        sizes = [fixed + length + -length % 4]
    else:
        # no header has a SEND's length
        others = _guesses(payload, fixed, min(fixed + MAX_PATH_MTU, most + 1))
        sizes = chain((fixed + mtu for mtu in _MTUS), islice(others, MAX_GUESSES))
    return (size for size in sizes if size <= most)


def _divides(size: int, total: int) -> bool:
    """Return whether a frame of ``total`` bytes may hold packets of ``size`` bytes."""
    return -(-total // size) <= MAX_SEGMENTS and not 0 < total % size < _LEAST


def _guesses(payload: bytes, first: int, end: int) -> Iterator[int]:
    """Yield sizes from ``first`` to before ``end`` after which another packet can start.

    Merged packets belong to one flow, and so to one partition: the P_Key must repeat.
    """
    pkey = payload[_PKEY_AT : _PKEY_AT + 2]
    at = first + _PKEY_AT
    stop = end + _PKEY_AT + 1
    while (at := payload.find(pkey, at, stop)) >= 0:
        size = at - _PKEY_AT
        right = not payload[size + 1] & 0x0F and OPCODES[payload[size]] is not None
        if right and not (size - first) % 4 and _divides(size, len(payload)):
            yield size
        at += 1
