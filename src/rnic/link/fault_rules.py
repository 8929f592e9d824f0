"""Rules of a fault script: match and count packets, and choose those to fault.

The engine has the same in C (``engine/io/fault_rules.c``), using the table of :func:`pack_rules`, and counts in the
same memory. So either of the two can judge a packet.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rnic.link.fault_events import FaultEvent
from rnic.spec.limits import BTH_BYTES
from rnic.spec.psn import PSN_MASK
from rnic.state import fault_table as table
from rnic.state.fault_table import COUNT_BYTES, COUNT_PROBES, COUNTS, FAULT_COUNT, FAULT_RULE
from rnic.state.record import WORD_BYTES
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES

DIRECTIONS = ("tx", "rx")
"""Directions, in the order of their numbers."""
UNCOVERED_BYTE = 4
"""FECN, BECN and reserved bits of a BTH: the ICRC does not cover them."""
_BTH = struct.Struct(">BxxxII")
_QPN_MASK = (1 << 24) - 1
_ACK_REQ = 1 << 31
_WORD_MASK = (1 << 64) - 1
_COUNT_WORDS = FAULT_COUNT.size // WORD_BYTES
_SPOT = 0xC0
"""Constant mixed into a draw to select the bit to flip."""


def check_list(script: object) -> None:
    """Check that a fault script is a list.

    Raises:
        ValueError: one line that names the type given.
    """
    if isinstance(script, Mapping | str | bytes) or not isinstance(script, Sequence):
        alone = "; put [ ] around this one" if hasattr(script, "keys") else ""
        raise ValueError(f"a fault script is a list of rules, not {type(script).__name__}{alone}")


class PacketFacts:
    """Fields of a packet that rules match. A field beyond the end of a short packet is -1.

    ``comes_back`` is true if the device sends it to itself and judges it again on arrival.
    """

    __slots__ = ("_hash", "ackreq", "comes_back", "direction", "dqpn", "flow", "length", "opcode", "psn", "syndrome")

    def __init__(
        self, data: bytes | bytearray | memoryview, direction: str, flow: Flow, comes_back: bool = False
    ) -> None:
        self._hash: int | None = None
        self.direction = direction
        self.flow = flow
        self.comes_back = comes_back
        self.length = len(data)
        self.opcode = self.dqpn = self.psn = self.syndrome = -1
        self.ackreq = False
        if len(data) < BTH_BYTES:
            return
        self.opcode, dqpn, psn = _BTH.unpack_from(data)
        self.dqpn = dqpn & _QPN_MASK
        self.psn = psn & PSN_MASK
        self.ackreq = psn & _ACK_REQ != 0
        row = OPCODES[self.opcode]
        if row is not None and row.aeth and len(data) > BTH_BYTES:
            self.syndrome = data[BTH_BYTES]

    @property
    def flow_hash(self) -> int:
        """Return a 64-bit hash of the direction and the queue pair: its number and both addresses."""
        if self._hash is None:
            state = mix(mix(0, DIRECTIONS.index(self.direction)), self.dqpn & _WORD_MASK)
            for address in (self.flow.src, self.flow.dst):
                state = mix(state, int.from_bytes(address[:8], "big"))
                state = mix(state, int.from_bytes(address[8:], "big"))
            self._hash = state
        return self._hash

    @property
    def name(self) -> str:
        """Name of the opcode, its number if it has no name, ``"short"`` if the packet has no opcode."""
        if self.opcode < 0:
            return "short"
        row = OPCODES[self.opcode]
        return row.name if row is not None else f"{self.opcode:#04x}"


def mix(state: int, word: int) -> int:
    """Mix two words into 64 bits (the finalizer of SplitMix64)."""
    state = ((state ^ word) + 0x9E3779B97F4A7C15) & _WORD_MASK
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _WORD_MASK
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _WORD_MASK
    return state ^ state >> 31


@dataclass(frozen=True, slots=True)
class Match:
    """Conditions on a packet; ``None`` for a condition that is not set."""

    direction: str | None = None
    opcodes: frozenset[int] | None = None
    psn: tuple[int, int] | None = None
    """The first PSN, and the number of PSNs after it."""
    dqpn: tuple[int, int] | None = None
    length: tuple[int, int] | None = None
    ackreq: bool | None = None
    syndromes: frozenset[int] | None = None
    src: bytes | None = None
    dst: bytes | None = None

    def holds(self, facts: PacketFacts) -> bool:
        """Return whether a packet matches."""
        return (
            (self.direction is None or self.direction == facts.direction)
            and (self.opcodes is None or facts.opcode in self.opcodes)
            and (self.psn is None or (facts.psn >= 0 and facts.psn - self.psn[0] & PSN_MASK <= self.psn[1]))
            and (self.dqpn is None or self.dqpn[0] <= facts.dqpn <= self.dqpn[1])
            and (self.length is None or self.length[0] <= facts.length <= self.length[1])
            and (self.ackreq is None or self.ackreq == facts.ackreq)
            and (self.syndromes is None or facts.syndrome in self.syndromes)
            and (self.src is None or self.src == facts.flow.src)
            and (self.dst is None or self.dst == facts.flow.dst)
        )


class Counts:
    """Counters of rules, separate for each direction and queue pair: records of :data:`FAULT_COUNT`.

    The engine counts in the same way (``engine/io/fault_rules.c``), in the same memory if it has a slot's.

    Args:
        memory: :data:`COUNT_BYTES` bytes to count in, initially zero; its own memory by default.
    """

    def __init__(self, memory: memoryview | None = None) -> None:
        self.words = memoryview(bytearray(COUNT_BYTES) if memory is None else memory).cast("B").cast("Q")

    def place(self, key: int) -> int:
        """Return the index of a count's words: draw key, packets seen, packets faulted."""
        key = key or 1
        words = self.words
        for probe in range(COUNT_PROBES):
            at = (key + probe) % COUNTS * _COUNT_WORDS
            if words[at] == key:
                return at
            if not words[at]:
                break
        else:
            at = key % COUNTS * _COUNT_WORDS
        words[at], words[at + 1], words[at + 2] = key, 0, 0
        return at


class Rule:
    """One rule of a script, and its counts of matching packets.

    ``action`` is one of :data:`ACTIONS` and ``told`` its values by key; or ``event`` is an event of the device.
    """

    __slots__ = (
        *("_drawn", "action", "counts", "event", "every", "match", "nth", "number", "probability", "seed"),
        *("times", "told"),
    )

    def __init__(
        self,
        number: int,
        match: Match,
        nth: int | None,
        every: int | None,
        times: int | None,
        action: str,
        told: dict[str, int | None],
        event: FaultEvent | None = None,
        probability: float | None = None,
        seed: int = 0,
        counts: Counts | None = None,
    ) -> None:
        self.number = number
        """Its index in the script, from 0."""
        self.match = match
        self.nth = nth
        self.every = every
        self.times = times
        self.probability = probability
        self.seed = seed
        self.counts = Counts() if counts is None else counts
        self.action = action
        self.told = told
        self.event = event
        self._drawn = 0
        """Start value of the draws for the last matching packet."""

    @property
    def below(self) -> int:
        """The rule applies if a 64-bit draw is below this."""
        return min(math.ceil((self.probability or 0) * (1 << 64)), _WORD_MASK)

    def strikes(self, facts: PacketFacts) -> bool:
        """Count the packet if it matches, and return whether the rule applies to it."""
        if (facts.comes_back and self.match.direction is None) or not self.match.holds(facts):
            return False
        # an event concerns the device, so its packets are counted together
        draw = mix(self.seed, facts.flow_hash if self.event is None else 0)
        words, at = self.counts.words, self.counts.place(mix(draw, self.number))
        seen = words[at + 1] = words[at + 1] + 1
        self._drawn = mix(draw, seen)
        if words[at + 2] == self.times or not self._chosen(seen):
            return False
        words[at + 2] += 1
        return True

    def _chosen(self, seen: int) -> bool:
        if self.probability is not None:
            return self._drawn < self.below
        if self.every is None:
            return self.nth is None or seen == self.nth
        first = self.nth if self.nth is not None else self.every
        return seen >= first and (seen - first) % self.every == 0

    def struck(self, length: int) -> Mapping[str, int | None]:
        """Return the parameters of the action for a packet of ``length`` bytes to which the rule applies."""
        if self.action != "corrupt" or self.told["byte"] is not None:
            return self.told
        spot = mix(self._drawn, _SPOT)
        at = spot % max(1, length - 1)
        return {"byte": at + (at >= UNCOVERED_BYTE), "xor": 1 << (spot >> 61)}


def _bits(prefix: str, chosen: frozenset[int]) -> dict[str, int]:
    """Return a 256-bit mask as words ``PREFIX_0``, ``PREFIX_1``, and so on."""
    mask = sum(1 << number for number in chosen)
    return {f"{prefix}_{at}": mask >> 64 * at & _WORD_MASK for at in range(4)}


def _address(prefix: str, address: bytes | None) -> dict[str, int]:
    given = address or b""
    return {
        f"{prefix}_bytes": len(given),
        f"{prefix}_0": int.from_bytes(given[:8], "big"),
        f"{prefix}_1": int.from_bytes(given[8:], "big"),
    }


def _pack_rule(rule: Rule) -> bytes:
    match, told = rule.match, {key: value for key, value in rule.told.items() if value is not None}
    both = (1 << table.TX) | (1 << table.RX)
    every = frozenset(range(256))
    flags = {
        table.NAMES_DIRECTION: match.direction is not None,
        table.HAS_PSN: match.psn is not None,
        table.HAS_ACKREQ: match.ackreq is not None,
        table.ACKREQ: bool(match.ackreq),
        table.HAS_SYNDROME: match.syndromes is not None,
        table.HAS_PROBABILITY: rule.probability is not None,
        table.HAS_BYTE: "byte" in told,
    }
    words = {
        "flags": sum(bit for bit, holds in flags.items() if holds),
        "directions": both if match.direction is None else 1 << DIRECTIONS.index(match.direction),
        **_bits("opcodes", every if match.opcodes is None else match.opcodes),
        **_bits("syndromes", every if match.syndromes is None else match.syndromes),
        "opcode_any": int(match.opcodes is None),
        "psn_low": match.psn[0] if match.psn else 0,
        "psn_span": match.psn[1] if match.psn else PSN_MASK,
        "dqpn_low": match.dqpn[0] if match.dqpn else 0,
        "dqpn_high": match.dqpn[1] if match.dqpn else _WORD_MASK,
        "length_low": match.length[0] if match.length else 0,
        "length_high": match.length[1] if match.length else _WORD_MASK,
        **_address("src", match.src),
        **_address("dst", match.dst),
        "nth": rule.nth or 0,
        "every": rule.every or 0,
        "times": rule.times or 0,
        "below": rule.below,
        "seed": rule.seed,
        "action": table.ACTION_NAMES.index(rule.action),
        "byte": told.get("byte", 0) & _WORD_MASK,
        **{key: told.get(key, 0) for key in ("xor", "delay_ns", "behind", "hold_ns", "bytes")},
    }
    return FAULT_RULE.pack(words)


def pack_rules(rules: Sequence[Rule]) -> bytes:
    """Return the engine's table of rules (:mod:`rnic.state.fault_table`).

    Raises:
        ValueError: rules with events of the device, or more than :data:`~rnic.state.fault_table.RULES`.
    """
    if any(rule.event is not None for rule in rules):
        raise ValueError("its fault script has events of the device, which the NIC process counts packets for")
    if len(rules) > table.RULES:
        raise ValueError(f"its fault script has {len(rules)} rules, and programs judge by {table.RULES} at most")
    head = table.FAULT_TABLE.pack({"rules": len(rules)})
    return head + b"".join(map(_pack_rule, rules))


__all__ = ["DIRECTIONS", "UNCOVERED_BYTE", "Counts", "Match", "PacketFacts", "Rule", "mix", "pack_rules"]
