"""Fault scripts: select packets by match and count, and apply an action to them.

A script is a list of rules, plain dictionaries as in a JSON file::

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

A rule counts matching packets from 1, separately for each direction and queue pair, so the order in which programs run
does not matter. The queue pair is the destination: its number and both addresses. ``nth`` selects only that packet,
``every`` each multiple, both together the ``nth`` and each ``every``-th after it, neither selects all; ``probability``
(above 0, at most 1) selects each at random instead, by the rule's ``seed`` or else the link's. ``times`` bounds how
often a rule applies to a direction and queue pair. A rule without a direction judges a packet that a device sends to
itself once, on arrival.

``action``: ``"drop"``; ``"corrupt"`` (one random bit that the ICRC covers, or the byte number ``byte``, negative
from the end, XORed with ``xor``, 255 unless given); ``"duplicate"`` (the copy ``delay_ns`` later, else at once);
``"delay"`` by ``delay_ns``; ``"reorder"`` behind the next ``behind`` packets (1 unless given) of its direction,
or after ``hold_ns`` (1 ms unless given) if none follow; ``"mark"`` sets ECN CE (congestion experienced) in the
packet's IP header, as a congested switch does, whether or not the sender declared ECT; ``"truncate"`` leaves
the first ``bytes`` of the UDP payload (the BTH unless given), without an ICRC.

An ``action`` may also be an event of :mod:`rnic.link.fault_events`, with its values by name. The device gets the event
when a packet matches, counted over the whole device, or at a time: ``at`` this time after the device started, and then
at intervals of ``every``::

    {"match": {"opcode": "RC_WRITE*"}, "nth": 1000, "action": "port-down", "for": "200ms"}
    {"at": "1s", "every": "500ms", "times": 10, "action": "flap", "down": "20ms"}
    {"at": "3s", "action": "fatal", "for": "1s"}
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, NoReturn

from rnic.link.base import LinkError, parse_address
from rnic.link.fault_events import EVENTS, LONGEST_NS, TimedEvent, make_event, timed_event
from rnic.link.fault_rules import DIRECTIONS, Counts, Match, Rule, check_list, mix
from rnic.spec.limits import BTH_BYTES
from rnic.spec.psn import PSN_MASK
from rnic.spec.syndromes import AETH_ACK, AETH_NAK, AETH_RNR_NAK, AETH_TYPE_MASK
from rnic.wire.opcode import OPCODES

HOLD_NS = 1_000_000
"""Default time in nanoseconds that a reordered packet waits for others to overtake it."""

_QPN_MASK = (1 << 24) - 1
_WORD_MASK = (1 << 64) - 1

ACTIONS: dict[str, dict[str, int | None]] = {
    "drop": {},
    "corrupt": {"byte": None, "xor": 0xFF},
    "duplicate": {"delay_ns": 0},
    "delay": {"delay_ns": None},
    "reorder": {"behind": 1, "hold_ns": HOLD_NS},
    "mark": {},
    "truncate": {"bytes": BTH_BYTES},
}
"""Parameters of each action, and their defaults."""
_BOUNDS = {"byte": (-(1 << 16), 1 << 16), "xor": (1, 255), "behind": (1, 1 << 16), "bytes": (1, 1 << 16)}
"""Least and largest value of each parameter that is not a time."""


RULE_KEYS = ("match", "nth", "every", "probability", "seed", "times", "action")
_EVENT_RULE_KEYS = ("match", "nth", "every", "probability", "seed", "action")
"""Keys of a rule with an event. If the event itself has a parameter ``times``, that key is its value."""
MATCH_KEYS = ("direction", "opcode", "psn", "dqpn", "length", "ackreq", "syndrome", "src", "dst")
_FIELDS = {"opcode": "opcodes", "syndrome": "syndromes"}
"""Keys of a match that are named differently in :class:`Match`."""
_SYNDROME_TYPES = {"ACK": AETH_ACK, "RNR_NAK": AETH_RNR_NAK, "NAK": AETH_NAK}


class Script(NamedTuple):
    """A parsed script: its rules for packets, and its timed events."""

    rules: list[Rule]
    timed: list[TimedEvent]


def parse_script(script: Sequence[Mapping[str, object]], seed: int = 0, counts: Counts | None = None) -> Script:
    """Return the rules of a script, and its timed events.

    Args:
        script: the rules.
        seed: 64 bits, for rules with a ``probability`` and no seed of their own.
        counts: counters of the rules; new ones by default.

    Raises:
        ValueError: one line naming the rule by its number from 1, the value, and the allowed values.
    """
    check_list(script)
    parsed = Script([], [])
    counts = Counts() if counts is None else counts
    for number, rule in enumerate(script, 1):
        where = f"fault rule {number}"
        if _is_for_verbs(rule):
            continue
        if _by_the_clock(rule):
            with _named(where):
                parsed.timed.append(timed_event(rule))
        else:
            parsed.rules.append(_parse_rule(where, len(parsed.rules), rule, mix(seed, number), counts))
    return parsed


def _is_for_verbs(rule: object) -> bool:
    """Return whether a rule is :mod:`rnic.link.verbs_faults`'s."""
    return isinstance(rule, Mapping) and "verb" in rule


def _by_the_clock(rule: object) -> bool:
    return isinstance(rule, Mapping) and "at" in rule


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _parse_rule(where: str, number: int, rule: Mapping[str, object], seed: int, counts: Counts) -> Rule:
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
    fields = {_FIELDS.get(key, str(key)): _wanted(f"{where}: {key}", key, value) for key, value in match.items()}
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
    return Rule(number, Match(**fields), nth, every, times, action, told, event, probability, seed, counts)


def _told(
    where: str, action: str, defaults: Mapping[str, int | None], rule: Mapping[str, object]
) -> dict[str, int | None]:
    told = dict(defaults)
    for key in defaults:
        value = rule.get(key)
        if value is None:
            continue
        low, high = _BOUNDS.get(key, (0, LONGEST_NS))
        told[key] = _integer(f"{where}: {key}", value, low, high)
    if action == "delay" and told["delay_ns"] is None:
        _refuse(f"{where}: delay_ns", None, "nanoseconds, such as 3_000_000")
    return told


def _wanted(where: str, key: str, value: object) -> Any:
    """Return the value for a key's field of :class:`Match`."""
    if key == "direction":
        if value not in DIRECTIONS:
            _refuse(where, value, _one_of(DIRECTIONS))
        return value
    if key == "opcode":
        return _opcodes(where, value)
    if key == "ackreq":
        if not isinstance(value, bool):
            _refuse(where, value, "true or false")
        return value
    if key == "syndrome":
        return _syndromes(where, value)
    if key in ("src", "dst"):
        return _address(where, value)
    limit = {"psn": PSN_MASK, "dqpn": _QPN_MASK}.get(key, 0xFFFF)
    low, high = _range(where, value, limit)
    if key == "psn":
        return low, high - low & PSN_MASK
    if low > high:
        _refuse(where, value, "[low, high] with low <= high")
    return low, high


def _opcodes(where: str, value: object) -> frozenset[int]:
    if isinstance(value, str):
        found = frozenset(row.opcode for row in OPCODES if row is not None and fnmatchcase(row.name, value))
        if not found:
            _refuse(where, value, "a pattern of opcode names, such as RC_SEND_ONLY, RC_WRITE_* or *_ACKNOWLEDGE")
        return found
    return frozenset((_integer(where, value, 0, 255),))


def _syndromes(where: str, value: object) -> frozenset[int]:
    if isinstance(value, str):
        kind = _SYNDROME_TYPES.get(value)
        if kind is None:
            _refuse(where, value, f"0 to 255, {_one_of(tuple(_SYNDROME_TYPES))}")
        return frozenset(each for each in range(256) if each & AETH_TYPE_MASK == kind)
    return frozenset((_integer(where, value, 0, 255),))


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
