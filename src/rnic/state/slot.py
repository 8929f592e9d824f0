"""The record that a program and the NIC process share beside the arena of a slot: which of them runs it, and counters.

A slot is one program's part of a device (design.md, "One state, two executors"): its own arena, its own numbers of
queue pairs, its own socket. The arena is the program's to work on while ``taken`` is set, the NIC process's while
``wanted`` is; both set theirs, look at the other's, and the NIC process gives way.
"""

from __future__ import annotations

from typing import Final

from rnic.state.counters import PACKET_COUNTERS
from rnic.state.fault_table import ACTION_NAMES
from rnic.state.record import record

PUNT_REASONS: Final = (
    ("short", "not a whole packet"),
    ("state", "of the queue pair"),
    ("header", "opcode, P_Key, queue pair, version, lengths"),
    ("icrc", "wrong, or its ident is not what segments have"),
    ("psn", "not what is expected"),
    ("sequence", "a packet that does not continue what is open"),
    ("length", "of a message"),
    ("key", "no key that opens the memory"),
    ("memory", "not in reach"),
    ("reply", "no room for it"),
    ("ack", "a NAK that does not ask for a packet again, or the retries are used up"),
    ("cq", "not in reach, or full"),
    ("request", "a work request that is not a plain one"),
    ("path", "a destination that is not known"),
    ("wait", "for what only the reference knows: the rate, or the end of congestion"),
)
"""Reasons for which the engine leaves something to the reference, by number: ``PUNT_<NAME>`` of ``enum engine_end``."""
BUFFERS_AT: Final = 4096
"""Offset of the receive buffers in the memory of the record."""
DROPS: Final = ("tx_too_long", "tx_unreachable", "tx_blocked", "tx_error")
SHM_COUNTERS: Final = (
    ("packets", "packets that went by rings to programs of the same device"),
    ("bytes", "bytes of messages that the taker read from the sender's memory"),
    ("wire", "bursts that went by the wire, since a ring was full, or the peer took nothing from it"),
    ("lost", "packets without bytes that no ring took"),
    ("refused", "packets without bytes that the taker wanted with them"),
)
"""Counters of a program's rings."""
FAULT_COUNTERS: Final = (
    *(f"{way}_{action}" for way in ("tx", "rx") for action in ACTION_NAMES),
    *("tx_full", "rx_full", "port_down"),
)
"""Counters of packets that fault rules struck, of those lost since too many were held back, and since the port was
down."""

SLOT: Final = record(
    "slot",
    "design.md, One state, two executors",
    (
        ("layout", "Slots", "hash of the tables that the NIC process works with"),
        ("taken", "program", "1 while one of its threads works on the arena, or has lent it with a message"),
        ("wanted", "Slots", "1 while the NIC process works on the arena without having been asked"),
        ("reference", "Slots", "1: the NIC process takes packets and doorbells itself, the program nothing"),
        ("changes", "Slots", "counts what may have moved queues, rings or paths"),
        ("ack_every", "Slots", "ask for an ACK at least once in this many packets"),
        ("probe", "Slots", "tail-loss probes are on"),
        ("rq_almost_full", "Slots", "receive entries that are kept back"),
        ("rounds", "program", "counts its rounds"),
        ("rx_packets", "program", "packets taken"),
        ("tx_packets", "program", "packets made"),
        ("rx_bytes", "program", "bytes received"),
        ("tx_bytes", "program", "bytes sent"),
        ("rx_socket_error", "program", "receives that failed"),
        ("gso_refused", "program", "bursts that the system would not cut"),
        *((f"drop_{name}", "program", "packets that could not be sent") for name in DROPS),
        *((f"event_{number}", "program", f"counter {name}") for number, name in enumerate(PACKET_COUNTERS)),
        *((f"punt_{name}", "program", f"left to the reference: {doc}") for name, doc in PUNT_REASONS),
        ("punt_unknown", "program", "packets of senders that the reference is to know first"),
        ("punt_notify", "program", "completion events"),
        ("punt_doorbell", "program", "doorbells of queue pairs that the engine does not know"),
        ("punt_timer", "program", "deadlines of such queue pairs"),
        *((f"shm_{name}", "program", doc) for name, doc in SHM_COUNTERS),
        *((f"fault_{name}", "program", "packets struck by fault rules") for name in FAULT_COUNTERS),
    ),
    128,
)
