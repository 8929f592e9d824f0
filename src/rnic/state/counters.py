"""Packet counters of both executors: one table, from which the engine's header is generated.

Python counts by name. The engine counts by the number ``COUNT_<NAME>``, the index in this table.
NAKs that a queue pair survives are counted by type.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.drops import DropReason
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
    "cnp_limits": "",
    "event_congestion": "",
}
"""Names of the ``hw_counters`` of Soft-RoCE and mlx5 that each counter adds to."""
PACKET_COUNTERS: Final = tuple(COUNTER_FILES)
"""Names by number, at most 32: the engine has a bit for each."""
NAKS_SENT: Final = {AETH_RNR_NAK: "rnr_naks_sent", AETH_NAK: "sequence_naks_sent"}
"""Counters of NAKs after which the peer retransmits, by AETH type."""

_RX_ERRORS = tuple(
    reason.value
    for reason in (
        DropReason.TOO_SHORT,
        DropReason.TOO_LONG,
        DropReason.BAD_ICRC,
        DropReason.IDENT,
        DropReason.BAD_IP,
        DropReason.NOT_ROCE,
        DropReason.BAD_TVER,
        DropReason.BAD_OPCODE,
        DropReason.BAD_PAD,
        DropReason.BAD_LENGTH,
    )
)
_TX_DROPS = ("drop_tx_error", "drop_tx_blocked", "drop_tx_unreachable", "drop_tx_queue_full", "drop_tx_bad_address")

PORT_COUNTERS: Final[dict[str, tuple[str, ...]]] = {
    "port_xmit_packets": ("tx_packets",),
    "port_rcv_packets": ("rx_packets",),
    "unicast_xmit_packets": ("tx_packets",),
    "unicast_rcv_packets": ("rx_packets",),
    "port_rcv_errors": _RX_ERRORS,
    "port_xmit_discards": _TX_DROPS,
    "port_rcv_constraint_errors": (DropReason.BAD_PKEY.value,),
    "multicast_xmit_packets": (),
    "multicast_rcv_packets": (),
    "port_xmit_constraint_errors": (),
    "port_xmit_wait": (),
    "port_rcv_remote_physical_errors": (),
    "port_rcv_switch_relay_errors": (),
    "excessive_buffer_overrun_errors": (),
    "link_downed": (),
    "link_error_recovery": (),
    "local_link_integrity_errors": (),
    "symbol_error": (),
    "VL15_dropped": (),
}
"""Files of ``ports/1/counters`` in sysfs (most are in IBA 16.1.3.5), and the counters whose sum each one shows; none if
it is always 0."""

PORT_DATA: Final[dict[str, tuple[str, ...]]] = {"port_xmit_data": ("tx_bytes",), "port_rcv_data": ("rx_bytes",)}
"""Files of ``ports/1/counters`` that count words of :data:`PORT_WORD_BYTES`."""
PORT_WORD_BYTES: Final = 4
