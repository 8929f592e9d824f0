"""A device's table of fault rules, which programs with slots map read-only, and the counts of a slot.

The NIC process compiles a fault script (:mod:`rnic.link.fault_script`) into rules of fixed size, which a program's
engine applies to its own packets. The counts of each rule, by direction and queue pair, are in the slot's shared
memory, where whichever of engine and reference owns the arena updates them.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

_SOURCE: Final = "docs/fault-grammar.md, Rules for packets"

RULES: Final = 128
"""Most rules of a table."""
COUNTS: Final = 4_096
"""Counts of a slot, a power of two. If all probed entries are in use, one of another direction and QP is reused."""
COUNT_PROBES: Final = 16
"""Consecutive entries to probe for a count."""
MAX_HELD: Final = 1 << 14
"""Most packets held back in each direction; further ones are dropped."""
DROP, CORRUPT, DUPLICATE, DELAY, REORDER, MARK, TRUNCATE = range(7)
"""Numbers of the actions."""
ACTIONS: Final = 7
ACTION_NAMES: Final = ("drop", "corrupt", "duplicate", "delay", "reorder", "mark", "truncate")
"""Names of the actions in a script, in the order of their numbers."""
NAMES_DIRECTION, HAS_PSN, HAS_ACKREQ, ACKREQ, HAS_SYNDROME, HAS_PROBABILITY, HAS_BYTE = (1 << bit for bit in range(7))
"""Bits of a rule's ``flags``."""
TX, RX = 0, 1
"""Numbers of the directions."""

FAULT_TABLE: Final = record(
    "fault_table",
    _SOURCE,
    (
        ("rules", "FaultTable", "number of rules that follow"),
        ("port_down", "FaultTable", "1 while the port is held down: all packets are dropped"),
    ),
    8,
)
FAULT_RULE: Final = record(
    "fault_rule",
    _SOURCE,
    (
        ("flags", "FaultTable", "flags: what it matches by, and others"),
        ("directions", "FaultTable", "mask of directions to match, 1 tx, 2 rx"),
        *((f"opcodes_{at}", "FaultTable", "mask of opcodes to match") for at in range(4)),
        *((f"syndromes_{at}", "FaultTable", "mask of AETH syndromes to match") for at in range(4)),
        ("opcode_any", "FaultTable", "1: match any opcode, and packets too short for one"),
        ("psn_low", "FaultTable", "first PSN that matches"),
        ("psn_span", "FaultTable", "number of further PSNs that match"),
        ("dqpn_low", "FaultTable", "lowest destination queue pair"),
        (
            "dqpn_high",
            "FaultTable",
            "highest destination queue pair; all ones: match any, and packets too short for one",
        ),
        ("length_low", "FaultTable", "fewest bytes of UDP payload"),
        ("length_high", "FaultTable", "most"),
        ("src_bytes", "FaultTable", "bytes of the source address, 0: any"),
        ("src_0", "FaultTable", "source address, in wire order"),
        ("src_1", "FaultTable", "source address, bytes 8 to 15"),
        ("dst_bytes", "FaultTable", "bytes of the destination address, 0: any"),
        ("dst_0", "FaultTable", "destination address, in wire order"),
        ("dst_1", "FaultTable", "destination address, bytes 8 to 15"),
        ("nth", "FaultTable", "number of the first matching packet that it applies to, 0: not set"),
        ("every", "FaultTable", "it applies to one matching packet in this many; 0: not set"),
        ("times", "FaultTable", "most times that it applies, 0: no limit"),
        ("below", "FaultTable", "it applies if the random draw is below"),
        ("seed", "FaultTable", "seed of draws and counts"),
        ("action", "FaultTable", "number of the action"),
        ("byte", "FaultTable", "of corrupt: byte index, negative from the end"),
        ("xor", "FaultTable", "of corrupt: value to XOR into it"),
        ("delay_ns", "FaultTable", "of delay and duplicate: delay"),
        ("behind", "FaultTable", "of reorder: packets that overtake it"),
        ("hold_ns", "FaultTable", "of reorder: longest wait for them"),
        ("bytes", "FaultTable", "of truncate: remaining bytes of UDP payload, at least 1"),
    ),
)
FAULT_COUNT: Final = record(
    "fault_count",
    _SOURCE,
    (
        ("draw", "both executors", "generator state, keyed by rule, direction and queue pair; 0: free entry"),
        ("seen", "both executors", "packets that matched"),
        ("acted", "both executors", "matching packets that it applied to"),
    ),
)
RULES_AT: Final = FAULT_TABLE.size
TABLE_BYTES: Final = RULES_AT + RULES * FAULT_RULE.size
COUNT_BYTES: Final = COUNTS * FAULT_COUNT.size

__all__ = [
    "ACKREQ",
    "ACTIONS",
    "ACTION_NAMES",
    "CORRUPT",
    "COUNTS",
    "COUNT_BYTES",
    "COUNT_PROBES",
    "DELAY",
    "DROP",
    "DUPLICATE",
    "FAULT_COUNT",
    "FAULT_RULE",
    "FAULT_TABLE",
    "HAS_ACKREQ",
    "HAS_BYTE",
    "HAS_PROBABILITY",
    "HAS_PSN",
    "HAS_SYNDROME",
    "MARK",
    "MAX_HELD",
    "NAMES_DIRECTION",
    "REORDER",
    "RULES",
    "RULES_AT",
    "RX",
    "TABLE_BYTES",
    "TRUNCATE",
    "TX",
]
