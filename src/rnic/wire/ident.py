"""Finding the IPv4 identification that a UDP socket does not show, from the ICRC that covers it.

A CRC is linear: the difference between the received ICRC and the one for ident 0 is what the header word
[identification | flags and fragment offset] changed, carried over the bytes that follow it. Running the CRC
register backwards over as many zero bytes gives the word itself (``software.md`` section 5). It is believable
only if it says "not a fragment": 2^17 of 2^32 words do, so a corrupt packet passes with probability 2^-15, and
less where the peer's habit is known.
"""

from __future__ import annotations

import functools

from rnic.wire.crc import crc32
from rnic.wire.flow import Flow, residue

_POLY = 0xEDB88320
_WORD_TO_PAYLOAD = 4 + 12 + 8
"""Bytes from the start of the word to the UDP payload: itself, the rest of the IPv4 header, the UDP header."""


_Operator = tuple[tuple[int, ...], ...]
"""A linear function of a 32-bit register: a table of 256 for each of its bytes, lowest first; their XOR is it."""


def _apply(operator: _Operator, register: int) -> int:
    low, second, third, top = operator
    return low[register & 0xFF] ^ second[register >> 8 & 0xFF] ^ third[register >> 16 & 0xFF] ^ top[register >> 24]


def _operator(columns: list[int]) -> _Operator:
    """The linear function that takes bit ``i`` to ``columns[i]``."""
    tables = []
    for first in (0, 8, 16, 24):
        table = [0] * 256
        for value in range(1, 256):
            lowest = value & -value
            table[value] = table[value ^ lowest] ^ columns[first + lowest.bit_length() - 1]
        tables.append(tuple(table))
    return tuple(tables)


def _back_one_byte(register: int) -> int:
    """The CRC register before a zero byte was run through it."""
    for _ in range(8):
        register = (register ^ _POLY) << 1 | 1 if register & 0x8000_0000 else register << 1
    return register


@functools.cache
def _back(power: int) -> _Operator:
    """Running back over ``1 << power`` zero bytes: half of it, twice."""
    if power == 0:
        return _operator([_back_one_byte(1 << bit) for bit in range(32)])
    half = _back(power - 1)
    return _operator([_apply(half, _apply(half, 1 << bit)) for bit in range(32)])


def _run_back(register: int, count: int) -> int:
    """The CRC register before ``count`` zero bytes, at most 65,535, were run through it."""
    power = 0
    while count:
        if count & 1:
            register = _apply(_back(power), register)
        count >>= 1
        power += 1
    return register


def solve(packet: bytes | bytearray | memoryview, flow: Flow) -> int | None:
    """The IPv4 ident for which a UDP payload's ICRC is right.

    Args:
        packet: a whole UDP payload, BTH to ICRC, at least 16 bytes.
        flow: the IPv4 path on which it came.

    Returns:
        The ident, or ``None`` where the header would have to be a fragment: the packet is corrupt.
    """
    length = len(packet)
    change = crc32(packet, flow.seed(length, 0, 0)) ^ residue(length, packet[4])
    register = _run_back(change, length + _WORD_TO_PAYLOAD)
    # the register's lowest byte is the first on the wire: ident high, ident low, flags, offset
    if register >> 16 & 0xFFBF:
        return None
    return (register & 0xFF) << 8 | register >> 8 & 0xFF


class IdentTracker:
    """One path's habit: which idents its packets have, to tell corruption from an unusual ident.

    A sender leaves ident 0, counts the segments of a burst, or counts up (ConnectX per QP or per NIC, Linux per
    address pair, leaping after a pause). Every packet that is taken counts. Once a few agree, an ident that neither
    is small nor follows a recent one within the window is refused, which takes false accepts from 2^-15 to about
    2^-17. Once more small ones came in a row than a counter that goes round has, only small ones are believed:
    2^-25. A second ident in a row that follows a refused one is a new habit, so a change costs one packet.
    """

    __slots__ = ("_last", "_refused", "_small", "_small_run", "_trust", "accepted", "refused")

    SMALL = 64
    WINDOW = 8_192
    TRUST_AFTER = 8
    ALONE_AFTER = 2 * SMALL

    def __init__(self) -> None:
        self.accepted = 0
        """Idents that fitted."""
        self.refused = 0
        """Idents that did not: most likely corrupt packets."""
        self._last = 0
        self._small = 0
        """The last small ident since; a counter may be on its way round past 65,535."""
        self._small_run = 0
        """Small idents since the last other one."""
        self._refused = -1
        self._trust = 0

    @property
    def settled(self) -> bool:
        """Whether only small idents are believed."""
        return self._small_run >= self.ALONE_AFTER

    @property
    def small(self) -> bool:
        """Whether the last ident was a small one: then the next is guessed, and what has another shows it."""
        return self._small_run > 0

    def expect(self, count: int) -> None:
        """``count`` packets were right with the ident that was guessed: 0, or their place in a burst."""
        self._small = 0
        self._small_run += count
        self._refused = -1
        self._trust += count
        self.accepted += count

    def accept(self, ident: int) -> bool:
        """Whether a solved ident (0 to 65,535) is believable."""
        if ident < self.SMALL:
            self._small = ident
            self._small_run += 1
        else:
            step = min(ident - self._last & 0xFFFF, ident - self._small & 0xFFFF)
            if step > self.WINDOW or self.settled:
                follows = self._refused >= 0 and ident - self._refused & 0xFFFF <= self.WINDOW
                if self._trust >= self.TRUST_AFTER and not follows:
                    self._refused = ident
                    self.refused += 1
                    return False
                self._trust = 0
            self._last = self._small = ident
            self._small_run = 0
        self._refused = -1
        self._trust += 1
        self.accepted += 1
        return True


def learn(flow: Flow, count: int) -> None:
    """``count`` packets of an IPv4 path were right with the ident that was guessed for them."""
    tracker = flow.idents
    if tracker is None:
        tracker = flow.idents = IdentTracker()
    tracker.expect(count)
    flow.settled = tracker.settled
