"""Whether a received packet's ICRC is right, also where the link does not show the IPv4 ident that it covers.

Links that see IP headers give the ident. On a UDP socket the ident is guessed first: 0, or the segment's index
in a burst, as Linux numbers them. Where that fails, it is solved for and held against the peer's habit
(``software.md`` section 5). IPv6 has no ident, so there the check is always in full.
"""

from __future__ import annotations

from rnic.wire.bursts import RxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import MAX_IDENTS, residue
from rnic.wire.ident import IdentTracker, solve

_MAX_PEERS = 4_096


class IcrcCheck:
    """Checks packets and remembers how each sender, by address and UDP port, numbers them."""

    __slots__ = ("_trackers", "solved")

    def __init__(self) -> None:
        self._trackers: dict[tuple[bytes, int], IdentTracker] = {}
        self.solved = 0
        """Packets whose ident had to be solved for."""

    def accepts(self, packet: memoryview, burst: RxBurst, index: int) -> bool:
        """Whether the ICRC of ``packet``, at least 16 bytes, segment ``index`` of ``burst``, is right."""
        flow = burst.flow
        length = len(packet)
        expected = residue(length, packet[4])
        ident = burst.ident
        if ident is None:
            guess = index if index < MAX_IDENTS else 0
            if crc32(packet, flow.seed(length, guess)) == expected:
                return True
            return len(flow.src) == 4 and self._solves(packet, burst)
        ident = ident + index & 0xFFFF
        return crc32(packet, flow.seed(length, ident, burst.frag)) == expected

    def _solves(self, packet: memoryview, burst: RxBurst) -> bool:
        ident = solve(packet, burst.flow)
        if ident is None:
            return False
        peer = burst.flow.src, burst.flow.sport
        tracker = self._trackers.get(peer)
        if tracker is None:
            if len(self._trackers) >= _MAX_PEERS:
                self._trackers.clear()
            tracker = self._trackers[peer] = IdentTracker()
        if not tracker.accept(ident):
            return False
        self.solved += 1
        return True
