"""What both executors count of packets: one table, from which the engine's header has its numbers.

Python counts by name, wherever it happens. The engine counts by the number ``COUNT_<NAME>``, the place in this table.
NAKs that a queue pair survives are counted by their kind.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.syndromes import AETH_NAK, AETH_RNR_NAK

COUNTER_FILES: Final = {
    "acks_received": "",
    "acks_coalesced": "ack_deferred",
    "retransmitted_packets": "",
    "retransmitted_requests": "",  # of READs and atomics
    "drop_psn_gap": "",
    "drop_naked": "",
    "drop_duplicate": "duplicate_request",
    "drop_stale_response": "",
    "drop_ghost_response": "",
    "sequence_naks_sent": "out_of_seq_request out_of_sequence",
    "rnr_naks_sent": "send_rnr_err",
    "sequence_naks_received": "rcvd_seq_err packet_seq_err",
    "rnr_naks_received": "rcvd_rnr_err rnr_nak_retry_err",
    "rewinds": "completer_retry_err",
    "ack_timeouts": "local_ack_timeout_err",
    "probes": "",
    "drop_duplicate_unmatched": "",
    "duplicate_reads": "duplicate_request",
    "duplicate_atomics": "duplicate_request",
    "implied_naks": "",
    "drop_bad_sequence": "",
    "ecn_marked_packets": "np_ecn_marked_roce_packets",
    "cnps_merged": "",
    "cnps_sent": "np_cnp_sent",
    "cnps_received": "rp_cnp_handled",
    "cnp_rate_cuts": "",
    "event_congestion": "",
}
"""Names of Soft-RoCE's and mlx5's ``hw_counters`` that add up each counter."""
PACKET_COUNTERS: Final = tuple(COUNTER_FILES)
"""Names by number. At most 32: the engine keeps a bit for each."""
NAKS_SENT: Final = {AETH_RNR_NAK: "rnr_naks_sent", AETH_NAK: "sequence_naks_sent"}
"""Counters of the NAKs after which the peer sends again, by the type of the AETH."""
