"""Records of packets in flight: the NIC's account, the account of each peer, and the lines of waiting queue pairs.

A peer has one line for each program. Lines are served round robin, and the queue pairs of a line in order. Links are
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
        ("promised", "Inflight", "packets granted to turns and not sent yet"),
        ("first_peer", "Inflight", "first of the peers with waiting queue pairs"),
        ("last_peer", "Inflight", "last of these peers"),
        ("waited_for", "Inflight", "number of these peers"),
        ("overtaken", "Inflight", "packets that overtook waiting queue pairs since one of these got a turn"),
        ("spare_line", "Inflight", "first of the unused lines, linked by next; 0 for none"),
    ),
)

PEER: Final = record(
    "peer",
    _SOURCE,
    (
        ("inflight", "Inflight", "packets in flight to it"),
        ("promised", "Inflight", "packets granted to turns and not sent yet"),
        ("most", "Inflight", "upper bound of the limit"),
        ("limit_16", "Peer", "packets that may be in flight to it, in 65,536ths"),
        ("srtt", "Peer", "mean round trip in nanoseconds, 0 before the first"),
        ("rttvar", "Peer", "mean deviation from it"),
        ("lossy", "Peer", "a packet was lost on the way"),
        ("cut_ns", "Peer", "time of the last cut of the limit"),
        ("low", "Peer", "shortest round trip in the current interval, 0 for none"),
        ("low_before", "Peer", "shortest round trip in the previous interval"),
        ("low_since", "Peer", "start of the current interval"),
        ("queue_ns", "Peer", "queuing delay of the last packet"),
        ("least", "Peer", "shortest of the consecutive long round trips"),
        ("samples", "Peer", "number of consecutive long round trips"),
        ("users", "Inflight", "queue pairs whose path leads to it"),
        ("first_line", "Inflight", "the line that has the next turn"),
        ("last_line", "Inflight", "the last line"),
        ("waiting", "Inflight", "queue pairs in its lines"),
        ("next_peer", "Inflight", "next peer with waiting queue pairs"),
        ("previous_peer", "Inflight", "previous peer with waiting queue pairs"),
        ("entry", "Inflight", "its entry in the device's budget page, 0 for none"),
    ),
)

LINE: Final = record(
    "line",
    _SOURCE,
    (
        ("next", "Inflight", "the peer's next line"),
        ("previous", "Inflight", "the peer's previous line"),
        ("first", "Inflight", "first waiting queue pair"),
        ("last", "Inflight", "last waiting queue pair"),
        ("program", "Inflight", "number of the program that owns the queue pairs"),
    ),
)
