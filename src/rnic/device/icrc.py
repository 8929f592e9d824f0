"""Whether a received packet's ICRC is right, also where the link does not show the IPv4 ident that it covers.

Links that see IP headers give the ident. On a UDP socket the ident is guessed first: 0, or the segment's index
in a burst, as Linux numbers them, or the next of a sender that counts up. Where that fails, it is solved for and held
against the sender's habit (``software.md`` section 5), which every packet that is taken teaches:
:class:`~rnic.wire.flow.Flow` keeps it. A packet that the habit does not explain is held until another confirms it
(:class:`~rnic.wire.ident.IdentTracker`). IPv6 has no ident, so there the check is always in full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rnic.spec.drops import DropReason
from rnic.trace.counters import Counters
from rnic.wire.bursts import DONT_FRAGMENT, RxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import MAX_IDENTS, Flow, residue
from rnic.wire.ident import DF, Count, HeldPacket, Ident, IdentTracker, learn, solve_word

MAX_PAIRS = 4_096
MAX_HELD = 1_024
"""Packets that one NIC holds, of all senders; the oldest make room."""


class IcrcCheck:
    """Checks packets, learns how each sender numbers them, and counts those that are wrong or held.

    ``confirmed`` has the packets that the last right one confirmed, to be taken before it. The caller clears it.

    Args:
        counters: where they are counted.
        counts: is told an IPv4 address whose sender counts its idents, once that is sure.
    """

    __slots__ = ("_all_held", "_counters", "_counts", "confirmed", "pairs", "solved")

    def __init__(self, counters: Counters, counts: Callable[[bytes], None] | None = None) -> None:
        self._counters = counters
        self._counts = counts
        self.pairs: dict[bytes, Count] = {}
        """What senders count, by the two addresses; devices at one address share it."""
        self._all_held: deque[HeldPacket] = deque()
        self.confirmed: list[HeldPacket] = []
        self.solved = 0
        """Packets whose ident had to be solved for."""

    def accepts(self, packet: memoryview, burst: RxBurst, index: int, now_ns: int) -> bool:
        """Whether the ICRC of ``packet``, at least 16 bytes, segment ``index`` of ``burst``, is right.

        What is not is counted here.
        """
        flow = burst.flow
        length = len(packet)
        expected = residue(length, packet[4])
        ident = burst.ident
        if ident is not None:
            if crc32(packet, flow.seed(length, ident + index & 0xFFFF, burst.frag)) == expected:
                return True
        elif (tracker := flow.idents) is None or tracker.small:
            guess = index if index < MAX_IDENTS else 0
            mask, bits = burst.known
            if not (guess ^ bits) & mask and crc32(packet, flow.seed(length, guess)) == expected:
                flow.prove()
                if not flow.settled:
                    self.learn(burst, 1)
                return True
            if len(flow.src) == 4:
                return self._solves(packet, burst, now_ns)
        else:
            word = tracker.next
            right = crc32(packet, flow.seed(length, word & 0xFFFF, DONT_FRAGMENT if word & DF else 0)) == expected
            if right and tracker.accept(word, now_ns, burst.known):
                self._tell(tracker, flow)
                return True
            return self._solves(packet, burst, now_ns)
        self._counters.bump(DropReason.BAD_ICRC.value)
        return False

    def learn(self, burst: RxBurst, count: int) -> None:
        """Note ``count`` packets of an IPv4 path that were right with the ident that was guessed for them."""
        if dropped := learn(burst.flow, count):
            self._counters.bump(DropReason.IDENT.value, dropped)

    def _solves(self, packet: memoryview, burst: RxBurst, now_ns: int) -> bool:
        """Whether the ICRC is right for an ident that the sender's habit explains, or another packet confirms."""
        word = solve_word(packet, burst.flow)
        if word is None:
            self._counters.bump(DropReason.BAD_ICRC.value)
            return False
        flow = burst.flow
        tracker = flow.idents
        if tracker is None:
            tracker = flow.idents = IdentTracker()
        if tracker.pair is None:
            tracker.pair = self._pair(flow)
        verdict = Ident.TAKE
        if not tracker.accept(word, now_ns, burst.known):
            verdict, self.confirmed = tracker.confirm(word, packet, now_ns)
            if verdict is Ident.HOLD:
                self._hold(tracker, word, packet, burst, now_ns)
        flow.settled = tracker.settled
        if dropped := tracker.take_dropped():
            self._counters.bump(DropReason.IDENT.value, dropped)
        if verdict is not Ident.TAKE:
            return False
        self.solved += 1
        flow.prove()
        self._tell(tracker, flow)
        return True

    def _tell(self, tracker: IdentTracker, flow: Flow) -> None:
        """Say once that a sender counts."""
        pair = tracker.pair
        if pair is not None and not pair.told and tracker.counts and self._counts is not None:
            pair.told = True
            self._counts(flow.src)

    def _pair(self, flow: Flow) -> Count:
        """What all paths between the addresses of ``flow`` count together, where they do."""
        key = flow.src + flow.dst
        count = self.pairs.get(key)
        if count is None:
            if len(self.pairs) >= MAX_PAIRS:
                self.pairs.clear()
            count = self.pairs[key] = Count()
        return count

    def _hold(self, tracker: IdentTracker, word: int, packet: memoryview, burst: RxBurst, now_ns: int) -> None:
        """Keep a copy of a packet, whose link reuses its memory, until another confirms it."""
        size = len(packet)
        how = burst.tclass, burst.hop_limit, burst.flow_label
        frag = DONT_FRAGMENT if word & DF else 0
        copy = RxBurst(burst.flow, memoryview(bytes(packet)), size, size, word & 0xFFFF, frag, *how)
        self._all_held.append(tracker.hold(word, copy, now_ns))
        if len(self._all_held) > MAX_HELD:
            self._all_held.popleft().forget()
        self._counters.bump("held_ident")
