"""Finding the IPv4 identification that a UDP socket does not show, from the ICRC that covers it.

A CRC is linear: the difference between the received ICRC and the one for ident 0 is what the header word
[identification | flags and fragment offset] changed, carried over the bytes that follow it. Running the CRC
register backwards over as many zero bytes gives the word itself (``software.md`` section 5). It is believable
only if it says "not a fragment": 2^17 of 2^32 words do, so damage passes with probability 2^-15, and with 2^-26 where
the sender's habit is known (:class:`IdentTracker`), 2^-29 where the link knows three bits of the ident as well.
"""

from __future__ import annotations

import functools
from enum import Enum

from rnic.spec.limits import ICRC_BYTES
from rnic.wire.bursts import NOTHING_KNOWN, RxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import Flow, residue

DF = 1 << 16
"""Above an ident: the "don't fragment" flag."""

_POLY = 0xEDB88320
_NOT_COVERED_AT = 4
"""The byte of the BTH that the ICRC does not cover: FECN and BECN."""
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


def solve_word(packet: bytes | bytearray | memoryview, flow: Flow) -> int | None:
    """The IPv4 ident for which a UDP payload's ICRC is right, with :data:`DF` where "don't fragment" is set.

    Args:
        packet: a whole UDP payload, BTH to ICRC, at least 16 bytes.
        flow: the IPv4 path on which it came.

    Returns:
        The ident and the flag, or ``None`` where the header would have to be a fragment: the packet is corrupt.
    """
    length = len(packet)
    change = crc32(packet, flow.seed(length, 0, 0)) ^ residue(length, packet[4])
    register = _run_back(change, length + _WORD_TO_PAYLOAD)
    # the register's lowest byte is the first on the wire: ident high, ident low, flags, offset
    if register >> 16 & 0xFFBF:
        return None
    return (register & 0xFF) << 8 | register >> 8 & 0xFF | (DF if register >> 16 else 0)


def solve(packet: bytes | bytearray | memoryview, flow: Flow) -> int | None:
    """The ident of :func:`solve_word` alone."""
    word = solve_word(packet, flow)
    return None if word is None else word & 0xFFFF


class Count:
    """A count of IPv4 idents: the foremost one, and when a packet was taken last."""

    __slots__ = ("last", "mixed", "now_ns", "shared", "told")

    BEHIND = 16
    AHEAD = 47
    SLACK = 16
    """Packets that may be missing between two ones, one before a pause and one behind it."""
    TICK_NS = 1_000_000
    """The shortest tick by which Linux counts pauses."""
    WIDEST = 0xFFFF - BEHIND
    """Idents ahead that are believed after a long pause: with those behind and the foremost, all."""

    def __init__(self) -> None:
        self.last = -1
        """-1 before the first packet."""
        self.now_ns = 0
        self.shared = True
        """Of a pair of addresses: all paths between them are believed to share it, as those of Linux do."""
        self.mixed = False
        """Packets had other idents than the link knew of them: what it knows counts no more."""
        self.told = False
        """The device was told that the sender counts, so that its link can show bits of these idents."""

    def ahead(self, now_ns: int) -> int:
        """How far ahead of the foremost ident a packet is believed."""
        return max(self.AHEAD, min(self.SLACK + (now_ns - self.now_ns) // self.TICK_NS, self.WIDEST))

    def fits(self, ident: int, now_ns: int) -> bool:
        """Whether an ident is believed."""
        return self.last < 0 or (ident - self.last + self.BEHIND & 0xFFFF) <= self.BEHIND + self.ahead(now_ns)

    def follow(self, ident: int, now_ns: int) -> None:
        """Note the ident of a packet that was taken; one that was overtaken leaves the foremost as it is."""
        self.now_ns = now_ns
        if self.last < 0 or (self.last - ident & 0xFFFF) > self.BEHIND:
            self.last = ident


class HeldPacket:
    """A packet whose ident its sender was not expected to use, in memory of its own."""

    __slots__ = ("burst", "contradicts", "count", "other", "packet", "taken", "word")

    def __init__(self, word: int, burst: RxBurst, taken: int, other: bool, contradicts: bool, now_ns: int) -> None:
        self.word = word
        self.count = Count()
        self.count.follow(word & 0xFFFF, now_ns)
        self.burst = burst
        """The packet as a burst of one, its ident and flags those that were solved for."""
        self.packet = burst.buf
        self.taken = taken
        """Packets of the sender that had been taken before."""
        self.other = other
        """It is what the count that is not believed now would have next."""
        self.contradicts = contradicts
        """Its ident is not what the link knows of it."""

    def forget(self) -> None:
        """Free its memory: others came since."""
        self.packet = self.packet[:0]
        self.burst.buf = self.packet


class Ident(Enum):
    """What becomes of a packet whose ident was solved for."""

    TAKE = "take"
    HOLD = "hold"
    DROP = "drop"


class IdentTracker:
    """One path's habit: which idents its packets have, to tell damage from an unusual ident.

    A sender leaves ident 0 or counts the segments of a burst (its idents are small), or counts up: ConnectX per QP or
    per NIC, Linux per address pair, leaping after a pause by less than the clock ticks that it took. The first packet
    shows which. From then on 64 idents are believed, with the flag that the sender sets: those below 64, or those
    from 16 behind to 47 ahead of the foremost, and as many further ahead as a pause allows. The foremost is that of all
    paths between the two addresses, or of this path alone: which, the packets of several paths show.

    A packet with another ident is held. Another packet that is not accepted either confirms it

    - if the two idents are near each other, for the time between them, and not the same; or if both are small;
    - if both fit the count that is not believed now, which is believed from then on;
    - if it repeats the bytes and has another ident. A damaged packet that comes twice has the same one.

    The link may know bits of the ident (:mod:`rnic.link.ident_sockets`). A packet that contradicts them is held, too,
    and only one that does so as well confirms it: then somebody on the way joins packets, and the bits are believed no
    more.

    What is not confirmed before 64 further packets were taken is dropped, and so is the oldest of more than 4.
    """

    __slots__ = ("_contradicts", "_count", "_flag", "_other", "_taken", "dropped", "held", "pair", "small")

    SMALL = 64
    HELD = 4
    FRESH = 64

    def __init__(self) -> None:
        self.small = False
        """Whether idents below 64 are expected: then the next is guessed, and what has another shows it."""
        self.held: list[HeldPacket] = []
        self.dropped = 0
        """Packets that were held and will not be taken, or that repeat one, since somebody counted them."""
        self.pair: Count | None = None
        """The count of all paths between the two addresses, for a sender that counts up."""
        self._count = Count()
        self._flag = DF
        self._other = False
        """The packet that was not accepted fits the count that is not believed."""
        self._contradicts = False
        """The packet that was not accepted has another ident than the link knows."""
        self._taken = 0

    @property
    def settled(self) -> bool:
        """Whether packets with small idents teach nothing: they are the habit, and nothing waits for others."""
        return self.small and not self.held

    @property
    def counts(self) -> bool:
        """Whether the sender counts up, as many packets have shown."""
        return not self.small and self._taken > self.FRESH

    @property
    def next(self) -> int:
        """The ident and flag that a sender which counts up uses next."""
        return self._counts()[0].last + 1 & 0xFFFF | self._flag

    def expect(self, count: int) -> None:
        """Note ``count`` packets that were right with the ident that was guessed: 0, or their place in a burst."""
        if self._count.last < 0:
            self.small = True
            self._count.last = 0
        self._taken += count
        if self.held:
            self._drop_stale()

    def accept(self, word: int, now_ns: int, known: tuple[int, int] = NOTHING_KNOWN) -> bool:
        """Whether an ident and flag are what the sender uses, and the link knows; they are noted then."""
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
            self.small = not ident and not self._count.last  # nobody who counts up uses 0 twice in a row
        pair = self.pair
        # the first packet of a path is believed whatever its ident, and moves no count that has another
        if pair is not None and not self.small and (self._count.last >= 0 or pair.fits(ident, now_ns)):
            pair.follow(ident, now_ns)
        self._count.follow(ident, now_ns)
        self._taken += 1
        return True

    def confirm(self, word: int, packet: memoryview, now_ns: int) -> tuple[Ident, list[HeldPacket]]:
        """What becomes of a packet whose ident is not accepted, and the held ones that it confirms, to take before it.

        The caller adds one that is to be held by :meth:`hold`.
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
        """Hold a packet that was just refused, which ``burst`` is in memory of its own; the oldest makes room."""
        if len(self.held) == self.HELD:
            del self.held[0]
            self.dropped += 1
        held = HeldPacket(word, burst, self._taken, self._other, self._contradicts, now_ns)
        self.held.append(held)
        return held

    def take_dropped(self) -> int:
        """``dropped``, which begins anew."""
        dropped, self.dropped = self.dropped, 0
        return dropped

    @property
    def _common(self) -> Count:
        """The count that has what holds for all paths between the two addresses."""
        return self._count if self.pair is None else self.pair

    def _counts(self) -> tuple[Count, Count]:
        """The count that is believed, and the other one."""
        pair = self.pair
        if pair is None or pair.last < 0:
            return self._count, self._count
        return (pair, self._count) if pair.shared else (self._count, pair)

    def _near(self, held: HeldPacket, ident: int, now_ns: int) -> bool:
        """Whether an ident may be that of a packet which was sent shortly before or after one that is held."""
        last = held.count.last
        if last < self.SMALL and ident < self.SMALL:
            return True
        return ident != last and (held.count.fits(ident, now_ns) or (last - ident & 0xFFFF) <= Count.AHEAD)

    def _turn(self, held: HeldPacket, word: int, other: int, now_ns: int) -> None:
        """Follow the sender to two idents, which confirmed ``held``."""
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
    """Whether two packets have the same bytes, but for those that the ICRC does not cover, and itself."""
    return (
        len(packet) == len(other)
        and packet[:_NOT_COVERED_AT] == other[:_NOT_COVERED_AT]
        and packet[_NOT_COVERED_AT + 1 : -ICRC_BYTES] == other[_NOT_COVERED_AT + 1 : -ICRC_BYTES]
    )


def learn(flow: Flow, count: int) -> int:
    """Note ``count`` packets of an IPv4 path that were right with the ident that was guessed for them.

    Returns:
        How many held ones will not be taken any more, since so many others were.
    """
    tracker = flow.idents
    if tracker is None:
        tracker = flow.idents = IdentTracker()
    tracker.expect(count)
    flow.settled = tracker.settled
    return tracker.take_dropped()
