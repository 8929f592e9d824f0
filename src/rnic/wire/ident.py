"""Compute the IP ID of a packet, which a UDP socket does not report, from the ICRC that covers it.

A CRC is linear: the difference between the received ICRC and the one for IP ID 0 is the effect of the header word
[identification | flags and fragment offset], carried over the bytes that follow it. Running the CRC register backward
over that many zero bytes gives the word itself (``software.md`` section 5). The word must say "not a fragment", as 2^17
of 2^32 words do. So a corrupt packet passes with probability 2^-15; with 2^-26 if the sender's pattern is known
(:class:`IdentTracker`); and with 2^-29 if the link also knows three bits of the IP ID.
"""

from __future__ import annotations

import functools
from enum import Enum

from rnic.spec.limits import ICRC_BYTES
from rnic.wire.bursts import NOTHING_KNOWN, RxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow, residue

DF = 1 << 16
"""The "don't fragment" flag, stored in the bit above the IP ID."""

_POLY = 0xEDB88320
_NOT_COVERED_AT = 4
"""Index of the BTH byte that the ICRC does not cover: FECN, BECN and reserved bits."""
_WORD_TO_PAYLOAD = 4 + 12 + 8
"""Bytes from the start of the word to the UDP payload: the word, the rest of the IPv4 header, the UDP header."""


_Operator = tuple[tuple[int, ...], ...]
"""A linear function of a 32-bit register: the XOR of one 256-entry table lookup for each byte, lowest byte first."""


def _apply(operator: _Operator, register: int) -> int:
    low, second, third, top = operator
    return low[register & 0xFF] ^ second[register >> 8 & 0xFF] ^ third[register >> 16 & 0xFF] ^ top[register >> 24]


def _operator(columns: list[int]) -> _Operator:
    """Return the linear function that maps bit ``i`` to ``columns[i]``."""
    tables = []
    for first in (0, 8, 16, 24):
        table = [0] * 256
        for value in range(1, 256):
            lowest = value & -value
            table[value] = table[value ^ lowest] ^ columns[first + lowest.bit_length() - 1]
        tables.append(tuple(table))
    return tuple(tables)


def _back_one_byte(register: int) -> int:
    """Return the CRC register before a zero byte was run through it."""
    for _ in range(8):
        register = (register ^ _POLY) << 1 | 1 if register & 0x8000_0000 else register << 1
    return register


@functools.cache
def _back(power: int) -> _Operator:
    """Return the operator that runs back over ``1 << power`` zero bytes, by applying half of it twice."""
    if power == 0:
        return _operator([_back_one_byte(1 << bit) for bit in range(32)])
    half = _back(power - 1)
    return _operator([_apply(half, _apply(half, 1 << bit)) for bit in range(32)])


def run_back(register: int, count: int) -> int:
    """Return the CRC register before ``count`` zero bytes, at most 65,535, were run through it."""
    power = 0
    while count:
        if count & 1:
            register = _apply(_back(power), register)
        count >>= 1
        power += 1
    return register


def solve_word(packet: bytes | bytearray | memoryview, flow: Flow) -> int | None:
    """Return the IP ID for which a UDP payload's ICRC is right, with :data:`DF` if "don't fragment" is set.

    Args:
        packet: a whole UDP payload, BTH to ICRC, at least 16 bytes.
        flow: the IPv4 path on which it arrived.

    Returns:
        The IP ID and the flag, or ``None`` if the packet is corrupt: only a fragment's header would match.
    """
    length = len(packet)
    change = crc32(packet, flow.seed(length, 0, 0)) ^ residue(length, packet[4])
    register = run_back(change, length + _WORD_TO_PAYLOAD)
    # the register's lowest byte is the first on the wire: IP ID high, IP ID low, flags, offset
    if register >> 16 & 0xFFBF:
        return None
    return (register & 0xFF) << 8 | register >> 8 & 0xFF | (DF if register >> 16 else 0)


def solve(packet: bytes | bytearray | memoryview, flow: Flow) -> int | None:
    """Return the IP ID from :func:`solve_word` without the flag."""
    word = solve_word(packet, flow)
    return None if word is None else word & 0xFFFF


class Count:
    """A sender's IP ID counter: the highest IP ID seen, and the time of the last accepted packet."""

    __slots__ = ("last", "mixed", "now_ns", "shared", "told")

    BEHIND = 16
    AHEAD = 47
    SLACK = 16
    """Packets that may be missing between the last one before a pause and the first one after it."""
    TICK_NS = 1_000_000
    """Shortest clock tick of Linux, the unit of a pause."""
    WIDEST = 0xFFFF - BEHIND
    """Most IP IDs ahead that are accepted after a long pause. With those behind and the highest, these are all IP
    IDs."""

    def __init__(self) -> None:
        self.last = -1
        """Highest IP ID; -1 before the first packet."""
        self.now_ns = 0
        self.shared = True
        """For an address pair: true if all its paths are believed to share the counter, as on Linux."""
        self.mixed = False
        """True if packets contradicted the IP ID bits that the link knew: these bits are no longer trusted."""
        self.told = False
        """True if the device knows that the sender counts, so that its link can report bits of these IP IDs."""

    def ahead(self, now_ns: int) -> int:
        """Return the largest accepted distance ahead of the highest IP ID."""
        return max(self.AHEAD, min(self.SLACK + (now_ns - self.now_ns) // self.TICK_NS, self.WIDEST))

    def fits(self, ident: int, now_ns: int) -> bool:
        """Return whether an IP ID is accepted."""
        return self.last < 0 or (ident - self.last + self.BEHIND & 0xFFFF) <= self.BEHIND + self.ahead(now_ns)

    def follow(self, ident: int, now_ns: int) -> None:
        """Record the IP ID of an accepted packet; a reordered one does not change the highest."""
        self.now_ns = now_ns
        if self.last < 0 or (self.last - ident & 0xFFFF) > self.BEHIND:
            self.last = ident


class HeldPacket:
    """A packet with an unexpected IP ID, copied to its own memory."""

    __slots__ = ("burst", "contradicts", "count", "other", "packet", "taken", "word")

    def __init__(self, word: int, burst: RxBurst, taken: int, other: bool, contradicts: bool, now_ns: int) -> None:
        self.word = word
        self.count = Count()
        self.count.follow(word & 0xFFFF, now_ns)
        self.burst = burst
        """The packet as a burst of one, with the computed IP ID and flags."""
        self.packet = burst.buf
        self.taken = taken
        """Number of the sender's packets accepted before it."""
        self.other = other
        """True if it fits the counter that is not trusted now."""
        self.contradicts = contradicts
        """True if its IP ID contradicts the bits that the link knows."""

    def forget(self) -> None:
        """Free its memory, since newer packets are held."""
        self.packet = self.packet[:0]
        self.burst.buf = self.packet


class Ident(Enum):
    """Action for a packet whose IP ID was computed."""

    TAKE = "take"
    HOLD = "hold"
    DROP = "drop"


class IdentTracker:
    """Pattern of a path's IP IDs, to tell a corrupt packet from an unusual IP ID.

    A sender either leaves the IP ID 0 or numbers the segments of a burst (small IP IDs), or it counts up. ConnectX
    counts per QP or per NIC, Linux per address pair; after a pause, Linux skips fewer IP IDs than clock ticks passed.
    The first packet shows the pattern. From then on 64 IP IDs are accepted, with the flag that the sender sets: those
    below 64, or those from 16 behind to 47 ahead of the highest, plus as many ahead as a pause allows. The highest is
    taken over all paths between the two addresses or over this path alone; packets of several paths show which is
    right.

    A packet with another IP ID is held. A second unexpected packet confirms it

    - if the two IP IDs are near each other, for the time between them, and not the same; or if both are small;
    - if both fit the counter that is not trusted now, which is trusted from then on;
    - if it repeats the bytes with another IP ID. A corrupt packet that arrives twice has the same IP ID.

    The link may know bits of the IP ID (:mod:`rnic.link.ident_sockets`). A packet that contradicts them is held, too,
    and only another such packet confirms it. In that case a device on the path merges packets, and the bits are no
    longer trusted.

    A held packet is dropped if it is not confirmed before 64 further packets are accepted, or if it is the oldest of
    more than 4.
    """

    __slots__ = ("_contradicts", "_count", "_flag", "_other", "_taken", "dropped", "held", "pair", "small")

    SMALL = 64
    HELD = 4
    FRESH = 64

    def __init__(self) -> None:
        self.small = False
        """True if IP IDs below 64 are expected: the next one is predicted, and the ICRC shows if that is wrong."""
        self.held: list[HeldPacket] = []
        self.dropped = 0
        """Held packets and their duplicates that were dropped since the last :meth:`take_dropped`."""
        self.pair: Count | None = None
        """The counter of all paths between the two addresses, for a sender that counts up."""
        self._count = Count()
        self._flag = DF
        self._other = False
        """True if the last refused packet fits the counter that is not trusted."""
        self._contradicts = False
        """True if the last refused packet contradicts the IP ID bits that the link knows."""
        self._taken = 0

    @property
    def settled(self) -> bool:
        """True if small IP IDs are the pattern and no packet is held, so expected packets change nothing."""
        return self.small and not self.held

    @property
    def counts(self) -> bool:
        """True if many packets have shown that the sender counts up."""
        return not self.small and self._taken > self.FRESH

    @property
    def next(self) -> int:
        """The next IP ID and flag of a sender that counts up."""
        return self._counts()[0].last + 1 & 0xFFFF | self._flag

    def expect(self, count: int) -> None:
        """Record ``count`` packets whose predicted IP ID was right: 0, or their index in a burst."""
        if self._count.last < 0:
            self.small = True
            self._count.last = 0
        self._taken += count
        if self.held:
            self._drop_stale()

    def accept(self, word: int, now_ns: int, known: tuple[int, int] = NOTHING_KNOWN) -> bool:
        """Return whether an IP ID and flag fit the sender's pattern and the link's bits; if so, record them."""
        ident = word & 0xFFFF
        self._other = False
        self._contradicts = ((word ^ known[1]) & known[0]) != 0 and not self._common.mixed
        if self._contradicts:
            return False
        if self._count.last < 0:
            self.small = ident < self.SMALL
            self._flag = word & DF
        elif word & DF != self._flag:
            return False
        elif self.small:
            if ident >= self.SMALL:
                return False
        else:
            believed, other = self._counts()
            if not believed.fits(ident, now_ns):
                self._other = other.fits(ident, now_ns)
                return False
            self.small = not ident and not self._count.last  # a sender that counts up never uses 0 twice in a row
        pair = self.pair
        # accept any IP ID in a path's first packet, but do not let it move a counter that it does not fit
        if pair is not None and not self.small and (self._count.last >= 0 or pair.fits(ident, now_ns)):
            pair.follow(ident, now_ns)
        self._count.follow(ident, now_ns)
        self._taken += 1
        return True

    def confirm(self, word: int, packet: memoryview, now_ns: int) -> tuple[Ident, list[HeldPacket]]:
        """Return the action for a packet whose IP ID is not accepted, and the held packets that it confirms, which come
        first.

        If the packet is to be held, the caller calls :meth:`hold`.
        """
        self._drop_stale()
        for held in self.held:
            if _same(held.packet, packet):
                if held.word == word:
                    self.dropped += 1
                    return Ident.DROP, []
                self.held.remove(held)
                self._turn(held, word, word, now_ns)
                return Ident.TAKE, []
        confirmed = [
            held
            for held in self.held
            if not (held.word ^ word) & DF
            and held.contradicts is self._contradicts
            and (self._near(held, word & 0xFFFF, now_ns) or (held.other and self._other))
        ]
        if not confirmed:
            return Ident.HOLD, []
        self.held = [held for held in self.held if held not in confirmed]
        self._common.mixed |= self._contradicts
        self._turn(confirmed[-1], confirmed[-1].word, word, now_ns)
        self._taken += len(confirmed)
        return Ident.TAKE, confirmed

    def hold(self, word: int, burst: RxBurst, now_ns: int) -> HeldPacket:
        """Hold a refused packet, copied to ``burst``; drop the oldest held packet if there is no room."""
        if len(self.held) == self.HELD:
            del self.held[0]
            self.dropped += 1
        held = HeldPacket(word, burst, self._taken, self._other, self._contradicts, now_ns)
        self.held.append(held)
        return held

    def take_dropped(self) -> int:
        """Return ``dropped`` and reset it."""
        dropped, self.dropped = self.dropped, 0
        return dropped

    @property
    def _common(self) -> Count:
        """The counter with the state shared by all paths between the two addresses."""
        return self._count if self.pair is None else self.pair

    def _counts(self) -> tuple[Count, Count]:
        """Return the trusted counter and the other one."""
        pair = self.pair
        if pair is None or pair.last < 0:
            return self._count, self._count
        return (pair, self._count) if pair.shared else (self._count, pair)

    def _near(self, held: HeldPacket, ident: int, now_ns: int) -> bool:
        """Return whether an IP ID may be that of a packet sent shortly before or after a held one."""
        last = held.count.last
        if last < self.SMALL and ident < self.SMALL:
            return True
        return ident != last and (held.count.fits(ident, now_ns) or (last - ident & 0xFFFF) <= Count.AHEAD)

    def _turn(self, held: HeldPacket, word: int, other: int, now_ns: int) -> None:
        """Move the pattern to the two IP IDs that confirmed ``held``."""
        if self.pair is not None and held.other and self._other:
            self.pair.shared = not self.pair.shared
        ident, another = word & 0xFFFF, other & 0xFFFF
        self.small = ident < self.SMALL and another < self.SMALL
        self._flag = other & DF
        for each in sorted((ident, another), key=lambda each: each - another + 0x8000 & 0xFFFF):
            self._count.follow(each, now_ns)
            if self.pair is not None and not self.small:
                self.pair.follow(each, now_ns)
        self._taken += 1

    def _drop_stale(self) -> None:
        fresh = [held for held in self.held if held.packet and self._taken - held.taken <= self.FRESH]
        self.dropped += len(self.held) - len(fresh)
        self.held = fresh


def _same(packet: memoryview, other: memoryview) -> bool:
    """Return whether two packets have the same bytes, apart from the ICRC and the bytes that it does not cover."""
    return (
        len(packet) == len(other)
        and packet[:_NOT_COVERED_AT] == other[:_NOT_COVERED_AT]
        and packet[_NOT_COVERED_AT + 1 : -ICRC_BYTES] == other[_NOT_COVERED_AT + 1 : -ICRC_BYTES]
    )


def learn(flow: Flow, count: int) -> int:
    """Record ``count`` packets of an IPv4 path whose predicted IP ID was right.

    Returns:
        Number of held packets dropped because too many others were accepted in the meantime.
    """
    tracker = flow.idents
    if tracker is None:
        tracker = flow.idents = IdentTracker()
    tracker.expect(count)
    flow.settled = tracker.settled
    return tracker.take_dropped()
