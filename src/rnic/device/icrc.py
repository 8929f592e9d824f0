"""Check a received packet's ICRC, even if the link does not report the IP ID that it covers.

Links that see IP headers report the IP ID. On a UDP socket the IP ID is first predicted: 0, the segment's index in a
burst, as Linux numbers them, or the next value of a sender that counts up. If that fails, it is computed from the ICRC
and compared with the sender's pattern (``software.md`` section 5), which :class:`~rnic.wire.flow.Flow` learns from
accepted packets. A packet that does not fit the pattern is held until another confirms it
(:class:`~rnic.wire.ident.IdentTracker`). IPv6 has no IP ID, so its check is always complete.
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
"""Most packets that a NIC holds, of all senders; the oldest are dropped first."""


class IcrcCheck:
    """Checks packets, learns each sender's numbering, and counts wrong and held packets.

    ``confirmed`` has the held packets that the last accepted one confirmed, to be processed before it. The caller
    clears it.

    Args:
        counters: counters of these packets.
        counts: called once with the IPv4 address of each sender that is known to count its IP IDs.
    """

    __slots__ = ("_all_held", "_counters", "_counts", "confirmed", "pairs", "solved")

    def __init__(self, counters: Counters, counts: Callable[[bytes], None] | None = None) -> None:
        self._counters = counters
        self._counts = counts
        self.pairs: dict[bytes, Count] = {}
        """Sender counters by source and destination address; devices at one address share them."""
        self._all_held: deque[HeldPacket] = deque()
        self.confirmed: list[HeldPacket] = []
        self.solved = 0
        """Packets whose IP ID had to be computed from the ICRC."""

    def accepts(self, packet: memoryview, burst: RxBurst, index: int, now_ns: int) -> bool:
        """Return whether the ICRC of ``packet``, at least 16 bytes, segment ``index`` of ``burst``, is right.

        Packets with a wrong ICRC are counted here.
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
        """Record ``count`` packets of an IPv4 path whose predicted IP ID was right."""
        if dropped := learn(burst.flow, count):
            self._counters.bump(DropReason.IDENT.value, dropped)

    def _solves(self, packet: memoryview, burst: RxBurst, now_ns: int) -> bool:
        """Return whether the ICRC is right for an IP ID that fits the sender's pattern or that another packet
        confirms."""
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
        """Report once that a sender counts its IP IDs."""
        pair = tracker.pair
        if pair is not None and not pair.told and tracker.counts and self._counts is not None:
            pair.told = True
            self._counts(flow.src)

    def _pair(self, flow: Flow) -> Count:
        """Return the counter for all paths between the addresses of ``flow``, if they share one."""
        key = flow.src + flow.dst
        count = self.pairs.get(key)
        if count is None:
            if len(self.pairs) >= MAX_PAIRS:
                self.pairs.clear()
            count = self.pairs[key] = Count()
        return count

    def _hold(self, tracker: IdentTracker, word: int, packet: memoryview, burst: RxBurst, now_ns: int) -> None:
        """Hold a copy of a packet, since the link reuses its memory, until another packet confirms it."""
        size = len(packet)
        how = burst.tclass, burst.hop_limit, burst.flow_label
        frag = DONT_FRAGMENT if word & DF else 0
        copy = RxBurst(burst.flow, memoryview(bytes(packet)), size, size, word & 0xFFFF, frag, *how)
        self._all_held.append(tracker.hold(word, copy, now_ns))
        if len(self._all_held) > MAX_HELD:
            self._all_held.popleft().forget()
        self._counters.bump("held_ident")
