"""Records of what is in flight at once: the NIC's account, one for each peer, and who waits in line for room.

A peer's lines are one for each program, which take turns; a line's queue pairs follow each other. All are linked by
offsets (:mod:`rnic.state.links`); 0 is nobody.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

_SOURCE: Final = "design.md, Many at once"
FRACTION_BITS: Final = 16

FLIGHTS: Final = record(
    "flights",
    _SOURCE,
    (
        ("limit", "Flights", "packets in flight from this NIC, READ responses to it included"),
        ("inflight", "Flights", "packets in flight"),
        ("promised", "Flights", "packets for which turns were given that have not been sent"),
        ("first_peer", "Flights", "the first of the peers that somebody waits for, in turn"),
        ("last_peer", "Flights", "the last of them"),
        ("waited_for", "Flights", "how many they are"),
        ("slipped", "Flights", "packets that went past those who wait since one of these was given a turn"),
        ("spare_line", "Flights", "the first of the lines that nobody waits in, linked by their next; 0 for none"),
    ),
)

PEER: Final = record(
    "peer",
    _SOURCE,
    (
        ("inflight", "Flights", "packets in flight to it"),
        ("promised", "Flights", "packets for which turns were given that have not been sent"),
        ("most", "Flights", "what the limit grows to"),
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
        ("users", "Flights", "queue pairs whose path leads to it"),
        ("first_line", "Flights", "the line that has the next turn"),
        ("last_line", "Flights", "the last line"),
        ("waiting", "Flights", "queue pairs in its lines"),
        ("next_peer", "Flights", "the next peer that somebody waits for"),
        ("previous_peer", "Flights", "the one before"),
        ("entry", "Flights", "its entry in the page of the whole device's budget, 0 for none"),
    ),
)

LINE: Final = record(
    "line",
    _SOURCE,
    (
        ("next", "Flights", "the peer's next line"),
        ("previous", "Flights", "the one before"),
        ("first", "Flights", "the queue pair that is next"),
        ("last", "Flights", "the last that waits"),
        ("program", "Flights", "whose queue pairs they are"),
    ),
)
