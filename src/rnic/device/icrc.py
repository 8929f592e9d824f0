"""Whether a received packet's ICRC is right, also where the link does not show the IPv4 ident that it covers.

Links that see IP headers give the ident. On a UDP socket the ident is guessed first: 0, or the segment's index
in a burst, as Linux numbers them. Where that fails, it is solved for and held against the peer's habit
(``software.md`` section 5), which every packet that is taken teaches: :class:`~rnic.wire.flow.Flow` keeps it. IPv6
has no ident, so there the check is always in full.
"""

from __future__ import annotations

from rnic.wire.bursts import RxBurst
from rnic.wire.crc import crc32
from rnic.wire.flow import MAX_IDENTS, residue
from rnic.wire.ident import IdentTracker, learn, solve


class IcrcCheck:
    """Checks packets, and learns how each sender numbers them."""

    __slots__ = ("solved",)

    def __init__(self) -> None:
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
                flow.prove()
                if not flow.settled:
                    learn(flow, 1)
                return True
            return len(flow.src) == 4 and self._solves(packet, burst)
        ident = ident + index & 0xFFFF
        return crc32(packet, flow.seed(length, ident, burst.frag)) == expected

    def _solves(self, packet: memoryview, burst: RxBurst) -> bool:
        ident = solve(packet, burst.flow)
        if ident is None:
            return False
        flow = burst.flow
        tracker = flow.idents
        if tracker is None:
            tracker = flow.idents = IdentTracker()
        believed = tracker.accept(ident)
        # what was refused is forgotten with the next packet that is right, which has to say so
        flow.settled = believed and tracker.settled
        self.solved += believed
        if believed:
            flow.prove()
        return believed
