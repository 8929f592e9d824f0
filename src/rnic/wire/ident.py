"""Finding the IPv4 identification that a UDP socket does not show, from the ICRC that covers it.

A CRC is linear: the difference between the received ICRC and the one for ident 0 is what the header word
[identification | flags and fragment offset] changed, carried over the bytes that follow it. Running the CRC
register backwards over as many zero bytes gives the word itself (``software.md`` section 5). It is believable
only if it says "not a fragment": 2^17 of 2^32 words do, so a corrupt packet passes with probability 2^-15, and
less where the peer's habit is known.
"""

from __future__ import annotations

from rnic.wire.crc import crc32
from rnic.wire.flow import Flow, residue

_POLY = 0xEDB88320
_WORD_TO_PAYLOAD = 4 + 12 + 8
"""Bytes from the start of the word to the UDP payload: itself, the rest of the IPv4 header, the UDP header."""


def _unstep_table() -> tuple[int, ...]:
    """For each top byte of a register, the register eight steps before, XORed into the shifted rest."""
    table = []
    for top in range(256):
        register = top << 24
        for _ in range(8):
            register = (register ^ _POLY) << 1 | 1 if register & 0x8000_0000 else register << 1
        table.append(register & 0xFFFF_FFFF)
    return tuple(table)


_UNSTEP = _unstep_table()


def _run_back(register: int, count: int) -> int:
    """The CRC register before ``count`` zero bytes were run through it."""
    for _ in range(count):
        register = register << 8 & 0xFFFF_FFFF ^ _UNSTEP[register >> 24]
    return register


_columns: dict[int, tuple[tuple[int, ...], ...]] = {}


def _back_tables(length: int) -> tuple[tuple[int, ...], ...]:
    """Running back is linear: four tables of 256, one for each byte of the register, for a payload length."""
    tables = _columns.get(length)
    if tables is None:
        count = length + _WORD_TO_PAYLOAD
        tables = tuple(tuple(_basis(count, shift)) for shift in (0, 8, 16, 24))
        if len(_columns) >= 1_024:
            _columns.clear()
        _columns[length] = tables
    return tables


def _basis(count: int, shift: int) -> list[int]:
    bits = [_run_back(1 << shift + bit, count) for bit in range(8)]
    out = [0] * 256
    for value in range(1, 256):
        low = value & -value
        out[value] = out[value ^ low] ^ bits[low.bit_length() - 1]
    return out


def solve(packet: bytes | bytearray | memoryview, flow: Flow) -> int | None:
    """The IPv4 ident for which a UDP payload's ICRC is right.

    Args:
        packet: a whole UDP payload, BTH to ICRC, at least 16 bytes.
        flow: the IPv4 path on which it came.

    Returns:
        The ident, or ``None`` where the header would have to be a fragment: the packet is corrupt.
    """
    length = len(packet)
    low, second, third, top = _back_tables(length)
    change = crc32(packet, flow.seed(length, 0, 0)) ^ residue(length, packet[4])
    register = (
        low[change & 0xFF] ^ second[change >> 8 & 0xFF] ^ third[change >> 16 & 0xFF] ^ top[change >> 24]
    )
    # the register's lowest byte is the first on the wire: ident high, ident low, flags, offset
    if register >> 16 & 0xFFBF:
        return None
    return (register & 0xFF) << 8 | register >> 8 & 0xFF


class IdentTracker:
    """One peer's habit: which idents its packets have, to tell corruption from an unusual ident.

    A sender leaves ident 0, counts segments of a burst, or counts up. Once a few packets agree with one of
    these, an ident far from the last one is refused, which takes the false-accept rate from 2^-15 to about
    2^-23 (a window of 256 in 65,536).
    """

    __slots__ = ("_last", "_trusted")

    WINDOW = 256
    _TRUST_AFTER = 8

    def __init__(self) -> None:
        self._last = 0
        self._trusted = 0

    def accept(self, ident: int) -> bool:
        """Whether a solved ident fits; a refused one lowers the trust, so that a peer may change its habit."""
        near = (ident - self._last & 0xFFFF) <= self.WINDOW or ident == 0
        if near:
            self._last = ident or self._last
            if self._trusted < self._TRUST_AFTER:
                self._trusted += 1
            return True
        if self._trusted >= self._TRUST_AFTER:
            self._trusted -= 2
            return False
        self._last = ident
        return True
