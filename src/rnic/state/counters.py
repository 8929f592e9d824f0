"""What both executors count of packets: one table, from which the engine's header has its numbers.

Python counts by name, wherever it happens. The engine counts by the number ``COUNT_<NAME>``, the place in this table.
"""

from __future__ import annotations

from typing import Final

PACKET_COUNTERS: Final = (
    "acks_received",
    "acks_coalesced",
    "retransmitted_packets",
    "retransmitted_requests",  # of READs and atomics
    "drop_psn_gap",
    "drop_naked",
    "drop_duplicate",
    "drop_stale_response",
    "drop_ghost_response",
    "sequence_naks_sent",
    "rnr_naks_sent",
    "sequence_naks_received",
    "rnr_naks_received",
    "rewinds",
    "ack_timeouts",
    "probes",
    "drop_duplicate_unmatched",
    "duplicate_reads",
    "duplicate_atomics",
    "implied_naks",
    "drop_bad_sequence",
    "ecn_marked_packets",
    "cnps_merged",
    "cnps_sent",
    "cnps_received",
    "cnp_rate_cuts",
    "event_congestion",
)
"""Names by number. At most 32: the engine keeps a bit for each."""
