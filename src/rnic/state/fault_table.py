"""The table of a device's fault rules, which programs with slots map read-only, and the counts of a slot.

The NIC process compiles a fault script (:mod:`rnic.link.fault_script`) into rules of fixed size, so that the engine of
a program judges its own packets. What each rule has counted for a direction and queue pair lies in the slot's shared
memory: engine and reference count there in turn, whichever of them has the arena.
"""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

_SOURCE: Final = "docs/fault-grammar.md, Rules for packets"

RULES: Final = 128
"""Most rules of a table."""
COUNTS: Final = 4_096
"""Counts of a slot, a power of two. If all probed entries are used, one of another direction and QP is reused."""
COUNT_PROBES: Final = 16
"""Consecutive entries to probe for a count."""
MAX_HELD: Final = 1 << 14
"""Most packets held back in each direction; further ones are lost."""
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
        ("rules", "FaultTable", "rules that follow"),
        ("port_down", "FaultTable", "1 while the port is held down: nothing leaves, nothing arrives"),
    ),
    8,
)
FAULT_RULE: Final = record(
    "fault_rule",
    _SOURCE,
    (
        ("flags", "FaultTable", "what it matches by, and what else holds: bits"),
        ("directions", "FaultTable", "a bit for each direction that it judges, 1 tx, 2 rx"),
        *((f"opcodes_{at}", "FaultTable", "a bit for each opcode that matches") for at in range(4)),
        *((f"syndromes_{at}", "FaultTable", "a bit for each AETH syndrome that matches") for at in range(4)),
        ("opcode_any", "FaultTable", "1: any opcode matches, and packets too short for one"),
        ("psn_low", "FaultTable", "first PSN that matches"),
        ("psn_span", "FaultTable", "PSNs behind it that match"),
        ("dqpn_low", "FaultTable", "lowest destination queue pair"),
        ("dqpn_high", "FaultTable", "highest; all ones: any, and packets too short for one"),
        ("length_low", "FaultTable", "fewest bytes of UDP payload"),
        ("length_high", "FaultTable", "most"),
        ("src_bytes", "FaultTable", "bytes of the source address, 0: any"),
        ("src_0", "FaultTable", "the address as it is on the wire"),
        ("src_1", "FaultTable", "the rest of it"),
        ("dst_bytes", "FaultTable", "bytes of the destination address, 0: any"),
        ("dst_0", "FaultTable", "the address as it is on the wire"),
        ("dst_1", "FaultTable", "the rest of it"),
        ("nth", "FaultTable", "the packet that it strikes, 0: none named"),
        ("every", "FaultTable", "it strikes once in this many packets; 0: not named"),
        ("times", "FaultTable", "how often it strikes at most, 0: any number"),
        ("below", "FaultTable", "it strikes where the draw is below"),
        ("seed", "FaultTable", "what draws and counts start from"),
        ("action", "FaultTable", "number of the action"),
        ("byte", "FaultTable", "of corrupt: which byte, negative from the end"),
        ("xor", "FaultTable", "of corrupt: what it is XORed with"),
        ("delay_ns", "FaultTable", "of delay and duplicate: how late"),
        ("behind", "FaultTable", "of reorder: packets that overtake it"),
        ("hold_ns", "FaultTable", "of reorder: how long it waits for them"),
        ("bytes", "FaultTable", "of truncate: bytes of UDP payload that are left, at least 1"),
    ),
)
FAULT_COUNT: Final = record(
    "fault_count",
    _SOURCE,
    (
        ("draw", "both executors", "of the rule, direction and queue pair; 0: the place is free"),
        ("seen", "both executors", "packets that matched"),
        ("acted", "both executors", "of these, those that the rule struck"),
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
