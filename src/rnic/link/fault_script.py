"""Exact faults as data: which packets, which of those that match, and what happens to them.

A script is a list of rules, plain dictionaries such as a JSON file holds::

    {"match": {"opcode": "RC_READ_RESPONSE*", "direction": "tx"}, "nth": 3, "action": "drop"}
    {"match": {"opcode": "RC_ACKNOWLEDGE", "syndrome": "ACK"}, "every": 7, "action": "corrupt"}
    {"match": {"psn": 0x1000}, "nth": 1, "action": "delay", "delay_ns": 3_000_000}
    {"match": {"opcode": "RC_WRITE*", "direction": "rx"}, "every": 10, "action": "mark"}
    {"match": {"direction": "rx"}, "probability": 0.01, "action": "drop"}

``match`` (all given keys must hold; none given matches every packet):

- ``direction``: ``"tx"`` or ``"rx"``, as the NIC above sees it
- ``opcode``: a pattern of opcode names (``*`` and ``?``), or a BTH opcode number
- ``psn``, ``dqpn``, ``length`` (UDP payload bytes, ICRC included): a number, or ``[low, high]``, both included;
  a PSN range may wrap
- ``ackreq``: true or false
- ``syndrome``: an AETH syndrome, or ``"ACK"``, ``"RNR_NAK"``, ``"NAK"``
- ``src``, ``dst``: addresses as text

A rule counts the packets that match from 1, those of each direction and queue pair apart: how programs take turns
changes nothing. The queue pair is the one that a packet is for: its number and both addresses. ``nth`` takes that one
alone, ``every`` each multiple, both together the ``nth`` and each ``every``-th after it, neither takes all;
``probability`` (above 0, at most 1) takes each at random instead, by the rule's ``seed`` or else the link's.
``times`` bounds how often a rule acts on a direction and queue pair. A packet that a device sends to itself is judged
once by a rule that names no direction: when it arrives.

``action``: ``"drop"``; ``"corrupt"`` (one random bit that the ICRC covers, or the byte number ``byte``, negative
from the end, XORed with ``xor``, 255 unless given); ``"duplicate"`` (the copy ``delay_ns`` later, else at once);
``"delay"`` by ``delay_ns``; ``"reorder"`` behind the next ``behind`` packets (1 unless given) of its direction,
or after ``hold_ns`` (1 ms unless given) where none follow; ``"mark"`` sets ECN 11 (congestion experienced) in the
packet's IP header, as a switch does whose queue is long, whether or not the sender declared ECT.

An ``action`` may also be an event of :mod:`rnic.link.fault_events`, with its values by name: then it happens to the
device, when a packet strikes, counted over the whole device, or by the clock, ``at`` a time since the device started
and then ``every`` so often::

    {"match": {"opcode": "RC_WRITE*"}, "nth": 1000, "action": "port-down", "for": "200ms"}
    {"at": "1s", "every": "500ms", "times": 10, "action": "flap", "down": "20ms"}
    {"at": "3s", "action": "fatal", "for": "1s"}
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, NoReturn

from rnic.link.base import LinkError, parse_address
from rnic.link.fault_events import EVENTS, LONGEST_NS, FaultEvent, TimedEvent, make_event, timed_event
from rnic.spec.limits import BTH_BYTES
from rnic.spec.psn import PSN_MASK
from rnic.spec.syndromes import AETH_ACK, AETH_NAK, AETH_RNR_NAK, AETH_TYPE_MASK
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES

DIRECTIONS = ("tx", "rx")
HOLD_NS = 1_000_000
"""How long a reordered packet waits for others to overtake it."""

_BTH = struct.Struct(">BxxxII")
_QPN_MASK = (1 << 24) - 1
_ACK_REQ = 1 << 31
_WORD_MASK = (1 << 64) - 1

ACTIONS: dict[str, dict[str, int | None]] = {
    "drop": {},
    "corrupt": {"byte": None, "xor": 0xFF},
    "duplicate": {"delay_ns": 0},
    "delay": {"delay_ns": None},
    "reorder": {"behind": 1, "hold_ns": HOLD_NS},
    "mark": {},
}
"""What each action may be told, and what holds where it is not."""

MAX_COUNTS = 1 << 16
"""Directions and queue pairs that a rule counts at a time; the one seen first is forgotten for another."""

RULE_KEYS = ("match", "nth", "every", "probability", "seed", "times", "action")
_EVENT_RULE_KEYS = ("match", "nth", "every", "probability", "seed", "action")
"""An event's own ``times``, where it has one, is its value."""
MATCH_KEYS = ("direction", "opcode", "psn", "dqpn", "length", "ackreq", "syndrome", "src", "dst")
_SYNDROME_TYPES = {"ACK": AETH_ACK, "RNR_NAK": AETH_RNR_NAK, "NAK": AETH_NAK}

Predicate = Callable[["PacketFacts"], bool]


class PacketFacts:
    """What rules ask about one packet. Numbers that it is too short to hold are -1.

    ``comes_back``: the device sends it to itself, and judges it once more when it arrives.
    """

    __slots__ = ("ackreq", "comes_back", "direction", "dqpn", "flow", "length", "opcode", "psn", "syndrome")

    def __init__(
        self, data: bytes | bytearray | memoryview, direction: str, flow: Flow, comes_back: bool = False
    ) -> None:
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
    def name(self) -> str:
        """Name of the opcode, its number where it has none, ``"short"`` where there is none."""
        if self.opcode < 0:
            return "short"
        row = OPCODES[self.opcode]
        return row.name if row is not None else f"{self.opcode:#04x}"


def mix(state: int, word: int) -> int:
    """Return 64 bits that depend on all bits of both (the finalizer of SplitMix64)."""
    state = ((state ^ word) + 0x9E3779B97F4A7C15) & _WORD_MASK
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _WORD_MASK
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _WORD_MASK
    return state ^ state >> 31


class _Count:
    """What a rule knows of one direction and queue pair."""

    __slots__ = ("acted", "draw", "seen")

    def __init__(self, draw: int) -> None:
        self.seen = 0
        """Packets that matched."""
        self.acted = 0
        """Of these, those that the rule acted on."""
        self.draw = draw
        """What the draw for each packet starts from."""


class Rule:
    """One rule of a script, with its counts of packets that matched.

    ``action`` is one of :data:`ACTIONS` and ``told`` its values by key; or ``event`` is what happens to the device.
    """

    __slots__ = (
        *("_counts", "_either_way", "_every", "_nth", "_predicates", "_probability", "_seed", "_times"),
        *("action", "event", "told"),
    )

    def __init__(
        self,
        predicates: list[Predicate],
        nth: int | None,
        every: int | None,
        times: int | None,
        action: str,
        told: dict[str, int | None],
        event: FaultEvent | None = None,
        probability: float | None = None,
        seed: int = 0,
        either_way: bool = True,
    ) -> None:
        self._predicates = predicates
        self._nth = nth
        self._every = every
        self._times = times
        self._probability = probability
        self._seed = seed
        self._either_way = either_way
        """It names no direction."""
        self._counts: dict[tuple[str, int, bytes, bytes] | None, _Count] = {}
        self.action = action
        self.told = told
        self.event = event

    def strikes(self, facts: PacketFacts) -> bool:
        """Count the packet if it matches, and return whether the rule acts on it."""
        if facts.comes_back and self._either_way:
            return False
        for predicate in self._predicates:
            if not predicate(facts):
                return False
        count = self._count_of(facts)
        count.seen += 1
        if count.acted == self._times or not self._chosen(count):
            return False
        count.acted += 1
        return True

    def _count_of(self, facts: PacketFacts) -> _Count:
        """Return the count of the packet's direction and queue pair; an event has one of the whole device."""
        flow = facts.flow
        key = None if self.event is not None else (facts.direction, facts.dqpn, flow.src, flow.dst)
        count = self._counts.get(key)
        if count is None:
            if len(self._counts) == MAX_COUNTS:
                del self._counts[next(iter(self._counts))]
            draw = self._seed
            if key is not None:
                draw = mix(mix(draw, DIRECTIONS.index(facts.direction)), facts.dqpn & _WORD_MASK)
                for address in (flow.src, flow.dst):
                    for half in (address[:8], address[8:]):
                        draw = mix(draw, int.from_bytes(half, "big"))
            count = self._counts[key] = _Count(draw)
        return count

    def _chosen(self, count: _Count) -> bool:
        if self._probability is not None:
            return mix(count.draw, count.seen) < self._probability * (1 << 64)
        if self._every is None:
            return self._nth is None or count.seen == self._nth
        first = self._nth if self._nth is not None else self._every
        return count.seen >= first and (count.seen - first) % self._every == 0


class Script(NamedTuple):
    """A script taken apart: what packets strike, and what comes by the clock."""

    rules: list[Rule]
    timed: list[TimedEvent]


def parse_script(script: Sequence[Mapping[str, object]], seed: int = 0) -> Script:
    """Rules of a script, each with fresh counts, and its events by the clock.

    Args:
        script: the rules.
        seed: 64 bits, for rules with a ``probability`` and no seed of their own.

    Raises:
        ValueError: one line naming the rule by its number from 1, the value, and what is allowed.
    """
    if isinstance(script, Mapping | str | bytes) or not isinstance(script, Sequence):
        alone = "; put [ ] around this one" if hasattr(script, "keys") else ""
        raise ValueError(f"a fault script is a list of rules, not {type(script).__name__}{alone}")
    parsed = Script([], [])
    for number, rule in enumerate(script, 1):
        where = f"fault rule {number}"
        if _by_the_clock(rule):
            with _named(where):
                parsed.timed.append(timed_event(rule))
        else:
            parsed.rules.append(_parse_rule(where, rule, mix(seed, number)))
    return parsed


def _by_the_clock(rule: object) -> bool:
    return isinstance(rule, Mapping) and "at" in rule


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _parse_rule(where: str, rule: Mapping[str, object], seed: int) -> Rule:
    if not isinstance(rule, Mapping):
        _refuse(where, rule, 'a dictionary such as {"match": {"opcode": "RC_*"}, "nth": 1, "action": "drop"}')
    action = rule.get("action")
    if not isinstance(action, str) or (action not in ACTIONS and action not in EVENTS):
        _refuse(f"{where}: action", action, _one_of((*ACTIONS, *EVENTS)))
    event = None
    defaults: dict[str, int | None] = {}
    if action in EVENTS:
        with _named(where):
            skipped = _EVENT_RULE_KEYS if EVENTS[action].takes("times") else RULE_KEYS
            event = make_event(action, **{key: value for key, value in rule.items() if key not in skipped})
    else:
        defaults = ACTIONS[action]
        _check_keys(where, rule, (*RULE_KEYS, *defaults))
    match = rule.get("match", {})
    if not isinstance(match, Mapping):
        _refuse(f"{where}: match", match, f"a dictionary with keys of {', '.join(MATCH_KEYS)}")
    _check_keys(f"{where}: match", match, MATCH_KEYS)
    predicates = [_predicate(f"{where}: {key}", key, value) for key, value in match.items()]
    nth, every = (_positive(where, rule, key) for key in ("nth", "every"))
    times = _positive(where, rule, "times") if event is None or not EVENTS[action].takes("times") else None
    probability = rule.get("probability")
    if probability is not None:
        if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 < probability <= 1:
            _refuse(f"{where}: probability", probability, "a number above 0 and at most 1")
        if nth is not None or every is not None:
            raise ValueError(f"{where}: probability goes with neither nth nor every")
    if rule.get("seed") is not None:
        if probability is None:
            raise ValueError(f"{where}: seed goes with probability alone")
        seed = _integer(f"{where}: seed", rule["seed"], 0, _WORD_MASK)
    told = _told(where, action, defaults, rule)
    either_way = match.get("direction") is None
    return Rule(predicates, nth, every, times, action, told, event, probability, seed, either_way)


def _told(
    where: str, action: str, defaults: Mapping[str, int | None], rule: Mapping[str, object]
) -> dict[str, int | None]:
    told = dict(defaults)
    for key in defaults:
        value = rule.get(key)
        if value is None:
            continue
        low, high = {"byte": (-(1 << 16), 1 << 16), "xor": (1, 255), "behind": (1, 1 << 16)}.get(key, (0, LONGEST_NS))
        told[key] = _integer(f"{where}: {key}", value, low, high)
    if action == "delay" and told["delay_ns"] is None:
        _refuse(f"{where}: delay_ns", None, "nanoseconds, such as 3_000_000")
    return told


def _predicate(where: str, key: str, value: object) -> Predicate:
    if key == "direction":
        if value not in DIRECTIONS:
            _refuse(where, value, _one_of(DIRECTIONS))
        return lambda facts: facts.direction == value
    if key == "opcode":
        opcodes = _opcodes(where, value)
        return lambda facts: facts.opcode in opcodes
    if key == "ackreq":
        if not isinstance(value, bool):
            _refuse(where, value, "true or false")
        return lambda facts: facts.ackreq == value
    if key == "syndrome":
        return _syndrome(where, value)
    if key in ("src", "dst"):
        address = _address(where, value)
        return lambda facts: getattr(facts.flow, key) == address
    limit = {"psn": PSN_MASK, "dqpn": _QPN_MASK}.get(key, 0xFFFF)
    low, high = _range(where, value, limit)
    if key == "psn":
        span = high - low & PSN_MASK
        return lambda facts: facts.psn >= 0 and facts.psn - low & PSN_MASK <= span
    if low > high:
        _refuse(where, value, "[low, high] with low <= high")
    return lambda facts: low <= getattr(facts, key) <= high


def _opcodes(where: str, value: object) -> frozenset[int]:
    if isinstance(value, str):
        found = frozenset(row.opcode for row in OPCODES if row is not None and fnmatchcase(row.name, value))
        if not found:
            _refuse(where, value, "a pattern of opcode names, such as RC_SEND_ONLY, RC_WRITE_* or *_ACKNOWLEDGE")
        return found
    return frozenset((_integer(where, value, 0, 255),))


def _syndrome(where: str, value: object) -> Predicate:
    if isinstance(value, str):
        kind = _SYNDROME_TYPES.get(value)
        if kind is None:
            _refuse(where, value, f"0 to 255, {_one_of(tuple(_SYNDROME_TYPES))}")
        return lambda facts: facts.syndrome >= 0 and facts.syndrome & AETH_TYPE_MASK == kind
    number = _integer(where, value, 0, 255)
    return lambda facts: facts.syndrome == number


def _address(where: str, value: object) -> bytes:
    try:
        return parse_address(str(value))
    except LinkError as error:
        raise ValueError(f"{where}: {error}") from None


def _range(where: str, value: object, limit: int) -> tuple[int, int]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) != 2:
            _refuse(where, value, "a number or [low, high]")
        return _integer(where, value[0], 0, limit), _integer(where, value[1], 0, limit)
    number = _integer(where, value, 0, limit)
    return number, number


def _positive(where: str, rule: Mapping[str, object], key: str) -> int | None:
    value = rule.get(key)
    return None if value is None else _integer(f"{where}: {key}", value, 1, 1 << 62)


def _integer(where: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        _refuse(where, value, f"a whole number from {low} to {high:#x}" if high > 1 << 20 else f"{low} to {high}")
    return value


def _check_keys(where: str, given: Mapping[str, object], allowed: Sequence[str]) -> None:
    for key in given:
        if key not in allowed:
            raise ValueError(f"{where}: unknown key {key!r}; allowed: {', '.join(allowed)}")


def _one_of(words: Sequence[str]) -> str:
    return "one of " + ", ".join(words)


def _refuse(where: str, value: object, allowed: str) -> NoReturn:
    raise ValueError(f"{where} is {value!r}; allowed: {allowed}")
