"""Records of what is in flight at once: the NIC's account, one for each peer, and the line of waiting queue pairs.

A peer's lines are one for each program, which take turns; a line's queue pairs follow each other. All are linked by
offsets (:mod:`rnic.state.lists`); 0 is no member.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

_SOURCE: Final = "design.md, Many at once"
FRACTION_BITS: Final = 16

INFLIGHT: Final = record(
    "inflight",
    _SOURCE,
    (
        ("limit", "Inflight", "packets in flight from this NIC, READ responses to it included"),
        ("packets", "Inflight", "packets in flight"),
        ("promised", "Inflight", "packets for which turns were given that have not been sent"),
        ("first_peer", "Inflight", "the first of the peers with waiting queue pairs, in turn"),
        ("last_peer", "Inflight", "the last of them"),
        ("waited_for", "Inflight", "how many they are"),
        ("overtaken", "Inflight", "packets that passed waiting queue pairs since one of these was given a turn"),
        ("spare_line", "Inflight", "the first of the unused lines, linked by their next; 0 for none"),
    ),
)

PEER: Final = record(
    "peer",
    _SOURCE,
    (
        ("inflight", "Inflight", "packets in flight to it"),
        ("promised", "Inflight", "packets for which turns were given that have not been sent"),
        ("most", "Inflight", "what the limit grows to"),
        ("limit_16", "Peer", "packets that may be in flight to it, in 65,536ths"),
        ("srtt", "Peer", "mean round trip in nanoseconds, 0 before the first"),
        ("rttvar", "Peer", "mean deviation from it"),
        ("lossy", "Peer", "a packet was lost on the way"),
        ("cut_ns", "Peer", "when the limit became smaller last"),
        ("low", "Peer", "the shortest round trip of late, 0 for none"),
        ("low_before", "Peer", "the shortest of the time before"),
        ("low_since", "Peer", "when this time began"),
        ("queue_ns", "Peer", "how long the last packet queued"),
        ("least", "Peer", "the shortest of the round trips in a row"),
        ("samples", "Peer", "how many these are"),
        ("users", "Inflight", "queue pairs whose path leads to it"),
        ("first_line", "Inflight", "the line that has the next turn"),
        ("last_line", "Inflight", "the last line"),
        ("waiting", "Inflight", "queue pairs in its lines"),
        ("next_peer", "Inflight", "the next peer with waiting queue pairs"),
        ("previous_peer", "Inflight", "the one before"),
        ("entry", "Inflight", "its entry in the page of the whole device's budget, 0 for none"),
    ),
)

LINE: Final = record(
    "line",
    _SOURCE,
    (
        ("next", "Inflight", "the peer's next line"),
        ("previous", "Inflight", "the one before"),
        ("first", "Inflight", "the queue pair that is next"),
        ("last", "Inflight", "the last that waits"),
        ("program", "Inflight", "whose queue pairs they are"),
    ),
)
