"""Record that a program and the NIC process share in addition to a slot's arena: ownership of the slot, and counters.

A slot is one program's part of a device (design.md, "One state, two executors"), with its own arena, QPN range and
socket. The program owns the arena while ``taken`` is set, the NIC process while ``wanted`` is. Each sets its own word,
then checks the other's; on a tie, the NIC process yields.
"""

from __future__ import annotations

from typing import Final

from rnic.state.counters import PACKET_COUNTERS
from rnic.state.fault_table import ACTION_NAMES
from rnic.state.record import record

PUNT_REASONS: Final = (
    ("short", "truncated packet"),
    ("state", "state of the queue pair"),
    ("header", "opcode, P_Key, queue pair, version, lengths"),
    ("icrc", "wrong ICRC, or an unexpected IP ID"),
    ("psn", "unexpected PSN"),
    ("sequence", "packet does not continue the open message"),
    ("length", "message length"),
    ("key", "no valid key for the access"),
    ("memory", "memory not accessible"),
    ("reply", "no room for a reply"),
    ("ack", "NAK that requests no retransmission, or retries exhausted"),
    ("cq", "CQ not accessible, or full"),
    ("request", "work request of a kind that the engine lacks"),
    ("path", "unknown destination"),
    ("wait", "wait that only the reference handles: rate limit or congestion"),
)
"""Reasons for punts to the reference, by number: ``PUNT_<NAME>`` of ``enum engine_end``."""
BUFFERS_AT: Final = 4096
"""Offset of the receive buffers in the memory of the record."""
DROPS: Final = ("tx_too_long", "tx_unreachable", "tx_blocked", "tx_error")
SHM_COUNTERS: Final = (
    ("packets", "packets sent over rings to programs of the same device"),
    ("bytes", "bytes of messages that the receiver read from the sender's memory"),
    ("wire", "bursts sent over the network because a ring was full or its receiver did not read it"),
    ("lost", "by-reference packets lost because a ring had no room"),
    ("refused", "by-reference packets that the receiver asked for with their bytes"),
)
"""Counters of a program's rings."""
FAULT_COUNTERS: Final = (
    *(f"{way}_{action}" for way in ("tx", "rx") for action in ACTION_NAMES),
    *("tx_full", "rx_full", "port_down"),
)
"""Counters of packets that fault rules hit, that were lost because too many were held back, or because the port was
down."""

SLOT: Final = record(
    "slot",
    "design.md, One state, two executors",
    (
        ("layout", "Slots", "layout hash of the NIC process"),
        ("taken", "program", "1 while one of its threads works on the arena or has lent it along with a message"),
        ("wanted", "Slots", "1 while the NIC process works on the arena on its own initiative"),
        ("reference", "Slots", "1: the NIC process handles all packets and doorbells, the program none"),
        ("changes", "Slots", "incremented when queues, rings or paths may have moved"),
        ("ack_every", "Slots", "request an ACK at least once in this many packets"),
        ("probe", "Slots", "1: tail-loss probes are on"),
        ("rq_almost_full", "Slots", "receive entries to keep back"),
        ("rounds", "program", "counts its rounds"),
        ("rx_packets", "program", "packets taken"),
        ("tx_packets", "program", "packets made"),
        ("rx_bytes", "program", "bytes received"),
        ("tx_bytes", "program", "bytes sent"),
        ("rx_socket_error", "program", "receives that failed"),
        ("gso_refused", "program", "bursts for which the kernel refused UDP_SEGMENT"),
        *((f"drop_{name}", "program", "packets that could not be sent") for name in DROPS),
        *((f"event_{number}", "program", f"counter {name}") for number, name in enumerate(PACKET_COUNTERS)),
        *((f"punt_{name}", "program", f"left to the reference: {doc}") for name, doc in PUNT_REASONS),
        ("punt_unknown", "program", "packets of senders that the reference has not validated yet"),
        ("punt_notify", "program", "completion events"),
        ("punt_doorbell", "program", "doorbells of queue pairs that the engine does not handle"),
        ("punt_timer", "program", "timers of queue pairs that the engine does not handle"),
        *((f"shm_{name}", "program", doc) for name, doc in SHM_COUNTERS),
        *((f"fault_{name}", "program", "packets hit by fault rules") for name in FAULT_COUNTERS),
    ),
    128,
)
