"""Fault injection for verbs: rules of a fault script with the key ``verb``, in addition to those for packets.

::

    {"verb": "create_qp", "nth": 3, "action": "fail", "errno": "ENOMEM"}
    {"verb": "reg_mr", "match": {"length": [1073741825, null]}, "action": "fail", "errno": "ENOMEM"}
    {"verb": "poll_cq", "match": {"opcode": "RDMA_*"}, "nth": 5, "action": "status", "status": "RETRY_EXC_ERR"}
    {"verb": "poll_cq", "every": 10, "action": "late", "delay": "2ms"}
    {"verb": "poll_cq", "action": "limit", "entries": 1}
    {"verb": "create_qp", "nth": 2, "action": "async-event", "event": "DEVICE_FATAL"}

``verb`` is a function's name, with or without ``ibv_`` (:data:`rnic.spec.verbs_faults.FAULTY_VERBS`). A rule counts
matching calls from 1, separately for each program, or for each queue pair with ``post_send``, ``post_recv`` (posts) and
``poll_cq`` (completions). ``nth``, ``every``, ``times``, ``probability`` and ``seed`` are as in
:mod:`rnic.link.fault_script`. If several rules apply to a call, the first one acts.

``action``: ``"fail"`` with ``errno``; for ``poll_cq`` ``"status"``, ``"late"`` by ``delay``, ``"limit"`` to
``entries``; or, for verbs that are device commands, an event of :mod:`rnic.link.fault_events`, and the verb itself
continues.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, NoReturn

from rnic.context.modify import TRANSITIONS
from rnic.device.commands import CommandResult
from rnic.device.uar import Uar
from rnic.link.fault_events import EVENTS, FaultEvent, duration_ns, make_event
from rnic.link.fault_rules import check_list, mix
from rnic.mem.mpt import MPT_ENTRY
from rnic.spec import commands as cmd
from rnic.spec import reasons
from rnic.spec import verbs_faults as spec
from rnic.spec.states import STATE_NAMES
from rnic.spec.verbs_faults import FAULT_EVENT, FAULT_FAIL, FAULT_LATE, FAULT_LIMIT, FAULT_STATUS, FAULTY_VERBS

KEY = "verb"
"""Key that marks a rule for verbs."""
_WORD = (1 << 64) - 1
MAX_COUNTS = 1 << 16
"""Most programs and queue pairs that rules count at a time; a new one replaces the oldest."""
_RULE_KEYS = (KEY, "match", "nth", "every", "probability", "seed", "times", "action")
_POLL_ACTIONS = ("status", "late", "limit")
_QP_MASK = (1 << 15) - 1
"""Bits of a queue pair number within its program; the others identify the program."""
SHARED_QUEUES = 1 << 15
"""Key for posts to all shared receive queues together."""

STATUSES = {
    name: number
    for number, name in enumerate(
        (
            *("SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR"),
            *("MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR"),
            *("RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR"),
            *("INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR"),
        )
    )
    if name != "SUCCESS"
}
"""``IBV_WC_*`` statuses that a rule can give a completion."""
_LARGEST_ERRNO = cmd.ST_ERRNO - 1


class VerbsRule(NamedTuple):
    """One rule as numbers: the fields of :data:`rnic.spec.verbs_faults.VERBS_RULE`, and conditions that only the NIC
    checks."""

    verb: int
    action: int
    rule: int
    opcodes: int = 0
    qp: int = 0
    value: int = 0
    nth: int = 0
    every: int = 0
    times: int = 0
    threshold: int = 0
    seed: int = 0
    lengths: tuple[int, int] = (0, _WORD)
    state: int = -1
    """Target state of modify_qp to match; -1 for all."""
    event: FaultEvent | None = None

    @property
    def library(self) -> bool:
        """True if the library applies the rule."""
        return self.verb in _LIBRARY

    def pack(self) -> bytes:
        """Return its record."""
        names = [field.name for field in spec.VERBS_RULE.fields]
        return spec.VERBS_RULE.pack({name: getattr(self, name) for name in names})

    def strikes(self, count: _Count) -> bool:
        """Count a matching call; return whether the rule applies to it."""
        count.seen += 1
        if (self.times and count.acted == self.times) or not self._chosen(count):
            return False
        count.acted += 1
        return True

    def _chosen(self, count: _Count) -> bool:
        if self.threshold:
            return mix(mix(self.seed, count.key), count.seen) < self.threshold
        if not self.every:
            return not self.nth or count.seen == self.nth
        first = self.nth or self.every
        return count.seen >= first and (count.seen - first) % self.every == 0


_LIBRARY = frozenset(verb.number for verb in FAULTY_VERBS.values() if verb.library)


class _Count:
    """Counts of a rule for one program, or for one queue pair."""

    __slots__ = ("acted", "key", "seen")

    def __init__(self, key: int) -> None:
        self.key = key
        """Input of its draws in addition to the seed."""
        self.seen = self.acted = 0


class Counts:
    """Counts of each rule, separate for each key.

    Args:
        rules: the rules to apply.
    """

    def __init__(self, rules: Sequence[VerbsRule]) -> None:
        self.rules = list(rules)
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, object], _Count] = {}

    def judge(
        self, verb: int, key: object, matches: Callable[[VerbsRule], bool] = lambda rule: True, draw: int = 0
    ) -> VerbsRule | None:
        """Count one call, and return the rule that applies to it.

        Args:
            verb: ``VERB_*``.
            key: program or queue pair whose calls are counted together.
            matches: function that tells whether a rule for the verb matches the call.
            draw: input of the key's random draws.
        """
        struck = None
        with self._lock:
            for rule in self.rules:
                if rule.verb != verb or rule.action == FAULT_LIMIT or not matches(rule):
                    continue
                strikes = rule.strikes(self._count_of(rule, key, draw))
                if strikes and struck is None:
                    struck = rule
        return struck

    def forget(self, key: object) -> None:
        """Restart the counts of a key, such as a queue pair number that was reused."""
        with self._lock:
            for rule in self.rules:
                self._counts.pop((rule.rule, key), None)

    def _count_of(self, rule: VerbsRule, key: object, draw: int) -> _Count:
        count = self._counts.get((rule.rule, key))
        if count is None:
            if len(self._counts) == MAX_COUNTS:
                del self._counts[next(iter(self._counts))]
            count = self._counts[rule.rule, key] = _Count(draw)
        return count


class VerbsFaults:
    """The rules of one device: judges commands, and provides the records for libraries.

    Args:
        rules: rules of its script.
    """

    def __init__(self, rules: Sequence[VerbsRule]) -> None:
        self.rules = list(rules)
        self._counts = Counts([rule for rule in rules if not rule.library])
        self.struck: Callable[[FaultEvent], None] = lambda event: None
        """Called with each event triggered by a verb."""

    def library_rules(self) -> list[VerbsRule]:
        """Return the rules that a library applies."""
        return [rule for rule in self.rules if rule.library]

    def records(self) -> bytes:
        """Return the library's rules as records."""
        return b"".join(rule.pack() for rule in self.library_rules())

    def add(self, rules: Sequence[VerbsRule]) -> list[VerbsRule]:
        """Add rules; return them, numbered after the existing ones.

        Raises:
            ValueError: there would be more than :data:`~rnic.spec.verbs_faults.MAX_VERBS_RULES`.
        """
        if len(self.rules) + len(rules) > spec.MAX_VERBS_RULES:
            raise ValueError(f"a device has at most {spec.MAX_VERBS_RULES} rules for verbs: heal first")
        taken = [rule._replace(rule=number) for number, rule in enumerate(rules, len(self.rules) + 1)]
        self.rules += taken
        self._counts.rules += [rule for rule in taken if not rule.library]
        return taken

    def clear(self) -> None:
        """Remove all rules; programs that have opened the device keep the rules in their library."""
        self.rules.clear()
        self._counts.rules.clear()

    def open_device(self, program: object) -> VerbsRule | None:
        """Judge ``ibv_open_device``; return the rule that fails it."""
        return self._failing(self._counts.judge(spec.VERB_OPEN_DEVICE, program))

    def _failing(self, rule: VerbsRule | None) -> VerbsRule | None:
        """Return the rule if it fails the verb; report an event instead of returning its rule."""
        if rule is not None and rule.event is not None:
            self.struck(rule.event)
            return None
        return rule

    def judge_command(
        self, uar: Uar, op: int, in_modifier: int, op_modifier: int, inbox: bytes
    ) -> CommandResult | None:
        """Judge a command; return its result if a rule fails it."""
        verb = _verb_of(op, in_modifier, op_modifier)
        if not verb:
            return None
        length, state = 0, -1
        if verb == spec.VERB_REG_MR:
            length = MPT_ENTRY.get(inbox, "length") if len(inbox) == MPT_ENTRY.size else 0
        elif verb == spec.VERB_MODIFY_QP:
            state = TRANSITIONS[op].target

        def matches(rule: VerbsRule) -> bool:
            return rule.lengths[0] <= length <= rule.lengths[1] and rule.state in (-1, state)

        rule = self._failing(self._counts.judge(verb, uar.program, matches))
        if rule is None:
            return None
        why = reasons.ON_COMMAND(code=errno.errorcode.get(rule.value, str(rule.value)), rule=rule.rule)
        return CommandResult(cmd.ST_ERRNO | rule.value, kind=reasons.ON_COMMAND.number, text=why)


_COMMANDS = {
    cmd.QUERY_ADAPTER: spec.VERB_QUERY_DEVICE,
    cmd.SW2HW_MPT: spec.VERB_REG_MR,
    cmd.HW2SW_MPT: spec.VERB_DEREG_MR,
    cmd.ALLOC_MW: spec.VERB_ALLOC_MW,
    cmd.SW2HW_CQ: spec.VERB_CREATE_CQ,
    cmd.RESIZE_CQ: spec.VERB_RESIZE_CQ,
    cmd.HW2SW_CQ: spec.VERB_DESTROY_CQ,
    cmd.SW2HW_SRQ: spec.VERB_CREATE_SRQ,
    cmd.HW2SW_SRQ: spec.VERB_DESTROY_SRQ,
    cmd.WRITE_MGM: spec.VERB_ATTACH_MCAST,
}
_ALLOCATIONS = {cmd.RES_PD: spec.VERB_ALLOC_PD, cmd.RES_QP: spec.VERB_CREATE_QP}


def _verb_of(op: int, in_modifier: int, op_modifier: int) -> int:
    """Return the ``VERB_*`` that a command belongs to; 0 for none.

    ERR2RST is also sent to destroy a queue pair, and a TOERR with :data:`~rnic.spec.commands.TOERR_ON_COMMAND` follows
    an injected completion error: neither is a verb of the program.
    """
    if op == cmd.ALLOC_RES:
        return _ALLOCATIONS.get(in_modifier, 0)
    if op in TRANSITIONS:
        ours = op == cmd.TOERR and op_modifier == cmd.TOERR_ON_COMMAND
        return 0 if ours or op == cmd.ERR2RST else spec.VERB_MODIFY_QP
    return _COMMANDS.get(op, 0)


class LibraryFaults:
    """The rules that a library applies for one opened device.

    Args:
        rules: its rules.
    """

    def __init__(self, rules: Sequence[VerbsRule]) -> None:
        self._counts = Counts(rules)

    def add(self, rules: Sequence[VerbsRule]) -> None:
        """Add rules."""
        self._counts.rules += rules

    @property
    def limit(self) -> int:
        """Most completions that a poll may return; 0 for no limit."""
        return next((rule.value for rule in self._counts.rules if rule.action == FAULT_LIMIT), 0)

    def post(self, verb: int, qpn: int, opcode: int = 0) -> VerbsRule | None:
        """Judge a post; return the rule that fails it.

        Args:
            verb: ``VERB_POST_SEND`` or ``VERB_POST_RECV``.
            qpn: queue pair number, :data:`SHARED_QUEUES` for shared receive queues.
            opcode: ``WR_*`` of the first request.
        """
        return self._judge(verb, qpn, 1 << _PLACES.get(opcode, spec.RECEIVED))

    def completion(self, qpn: int, opcode: int | None) -> VerbsRule | None:
        """Judge a completion; return the rule that changes or delays it.

        Args:
            qpn: queue pair number.
            opcode: ``WR_*`` of the request, ``None`` for a receive.
        """
        bit = spec.RECEIVED if opcode is None else _PLACES.get(opcode, 0)
        return self._judge(spec.VERB_POLL_CQ, qpn, 1 << bit)

    def _judge(self, verb: int, qpn: int, bit: int) -> VerbsRule | None:
        def matches(rule: VerbsRule) -> bool:
            return rule.qp in (0, qpn) and (not rule.opcodes or rule.opcodes & bit != 0)

        key = qpn if qpn == SHARED_QUEUES else qpn & _QP_MASK
        return self._counts.judge(verb, key, matches, key)

    def forget(self, qpn: int) -> None:
        """Restart the counts of a queue pair number."""
        self._counts.forget(qpn & _QP_MASK)


_PLACES = {row.opcode: place for place, row in enumerate(spec.REQUESTS)}


def from_records(records: bytes) -> list[VerbsRule]:
    """Return the rules in records from the NIC process."""
    size = spec.VERBS_RULE.size
    found = [spec.VERBS_RULE.unpack(records[at : at + size]) for at in range(0, len(records) - size + 1, size)]
    return [VerbsRule(*(fields[field.name] for field in spec.VERBS_RULE.fields)) for fields in found]  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ grammar


def parse_verbs_rules(script: Sequence[Mapping[str, object]], seed: int = 0) -> list[VerbsRule]:
    """Return the rules for verbs of a whole fault script, whose other rules are left to :mod:`rnic.link.fault_script`.

    Args:
        script: the rules.
        seed: 64 bits, for rules with a ``probability`` and no seed of their own.

    Raises:
        ValueError: not a list, or a bad rule; one line with the rule's number from 1, the value, and the allowed
            values.
    """
    check_list(script)
    found = [
        _parse_rule(f"fault rule {number}", number, rule, mix(seed, number))
        for number, rule in enumerate(script, 1)
        if is_verbs_rule(rule)
    ]
    if len(found) > spec.MAX_VERBS_RULES:
        raise ValueError(f"a fault script has at most {spec.MAX_VERBS_RULES} rules for verbs, not {len(found)}")
    return found


def is_verbs_rule(rule: object) -> bool:
    """Return whether a rule of a script is for verbs."""
    return isinstance(rule, Mapping) and KEY in rule


def for_packets(script: Sequence[Mapping[str, object]]) -> bool:
    """Return whether a script may have rules for packets; an empty one may get them later."""
    return not script or not all(is_verbs_rule(rule) for rule in script)


def _parse_rule(where: str, number: int, rule: Mapping[str, object], seed: int) -> VerbsRule:
    given = rule[KEY]
    name = given.removeprefix("ibv_") if isinstance(given, str) else ""
    verb = FAULTY_VERBS.get(name)
    if verb is None:
        _refuse(f"{where}: verb", given, "one of " + ", ".join(FAULTY_VERBS))
    action = rule.get("action")
    actions = _POLL_ACTIONS if name == "poll_cq" else ("fail",)
    if not verb.library:
        actions = (*actions, *EVENTS)
    if not isinstance(action, str) or action not in actions:
        _refuse(f"{where}: action", action, f"for {name} one of " + ", ".join(actions))
    values = _action_values(where, rule, action)
    values |= _match(where, str(name), rule.get("match", {}))
    values |= _chosen(where, rule, action, seed)
    return VerbsRule(verb=verb.number, rule=number, **values)


def _action_values(where: str, rule: Mapping[str, object], action: str) -> dict[str, Any]:
    """Return the fields of a rule's action; keys that are not rule keys are its values."""
    rest = {key: value for key, value in rule.items() if key not in _RULE_KEYS}
    if action in EVENTS:
        if EVENTS[action].takes("times") and "times" in rule:
            rest["times"] = rule["times"]
        try:
            return {"action": FAULT_EVENT, "event": make_event(action, **rest)}
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    key, number, default = _ACTIONS[action]
    for other in rest.keys() - {key}:
        allowed = ", ".join((*_RULE_KEYS, key))
        raise ValueError(f"{where}: unknown key {other!r}; allowed: {allowed}")
    return {"action": number, "value": _VALUES[key](f"{where}: {key}", rest.get(key, default))}


def _errno(where: str, value: object) -> int:
    number = getattr(errno, value, None) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number <= _LARGEST_ERRNO:
        _refuse(where, value, f"a name such as ENOMEM, or a number from 1 to {_LARGEST_ERRNO}")
    return number


def _status(where: str, value: object) -> int:
    number = STATUSES.get(value.removeprefix("IBV_WC_")) if isinstance(value, str) else None
    if number is None:
        _refuse(where, value, "one of " + ", ".join(STATUSES))
    return number


def _delay(where: str, value: object) -> int:
    try:
        return duration_ns(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _entries(where: str, value: object) -> int:
    return _integer(where, value, 1, 1 << 20)


_ACTIONS: dict[str, tuple[str, int, object]] = {
    "fail": ("errno", FAULT_FAIL, "ENOMEM"),
    "status": ("status", FAULT_STATUS, None),
    "late": ("delay", FAULT_LATE, None),
    "limit": ("entries", FAULT_LIMIT, 1),
}
"""For each action the key of its value, its number, and its default."""
_VALUES: dict[str, Callable[[str, object], int]] = {
    "errno": _errno,
    "status": _status,
    "delay": _delay,
    "entries": _entries,
}


def _match(where: str, name: str, match: object) -> dict[str, Any]:
    keys = FAULTY_VERBS[name].match
    if not isinstance(match, Mapping):
        _refuse(f"{where}: match", match, "a dictionary" + (f" with keys of {', '.join(keys)}" if keys else ""))
    found: dict[str, Any] = {}
    for key, value in match.items():
        at = f"{where}: match: {key}"
        if key not in keys:
            allowed = f"{name} matches by {', '.join(keys)}" if keys else f"{name} matches by nothing"
            raise ValueError(f"{where}: match: unknown key {key!r}; {allowed}")
        if key == "length":
            found["lengths"] = _range(at, value)
        elif key == "qp":
            found["qp"] = _integer(at, value, 1, (1 << 24) - 1)
        elif key == "state":
            found["state"] = next((number for number, word in STATE_NAMES.items() if word == value), -1)
            if found["state"] < 0 or value == "RESET":
                _refuse(at, value, "one of INIT, RTR, RTS, SQD, ERR")
        else:
            found["opcodes"] = _opcodes(at, name, value)
    return found


def _opcodes(where: str, name: str, value: object) -> int:
    """Return the mask of requests that match a name pattern: ``IBV_WR_*`` for posts, ``IBV_WC_*`` for completions."""
    polls = name == "poll_cq"
    bits = 0
    if isinstance(value, str):
        for place, row in enumerate(spec.REQUESTS):
            bits |= fnmatchcase(row.ibv_wc if polls else row.ibv_wr, value) << place
        if polls and any(fnmatchcase(word, value) for word in ("RECV", "RECV_RDMA_WITH_IMM")):
            bits |= 1 << spec.RECEIVED
    if not bits:
        _refuse(where, value, "a pattern of names such as SEND, RDMA_*" + (" or RECV*" if polls else ""))
    return bits


def _range(where: str, value: object) -> tuple[int, int]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) != 2:
            _refuse(where, value, "a number or [low, high], null for no bound")
        low = 0 if value[0] is None else _integer(where, value[0], 0, _WORD)
        return low, _WORD if value[1] is None else _integer(where, value[1], low, _WORD)
    number = _integer(where, value, 0, _WORD)
    return number, number


def _chosen(where: str, rule: Mapping[str, object], action: str, seed: int) -> dict[str, int]:
    """Return the fields that select which matching calls a rule applies to."""
    found = {}
    given = [key for key in ("nth", "every", "times", "probability", "seed") if rule.get(key) is not None]
    if action == "limit" and given:
        raise ValueError(f"{where}: limit holds for every poll: leave {given[0]} out")
    for key in ("nth", "every", "times"):
        if rule.get(key) is not None and not (key == "times" and action in EVENTS and EVENTS[action].takes("times")):
            found[key] = _integer(f"{where}: {key}", rule[key], 1, 1 << 62)
    probability = rule.get("probability")
    if probability is not None:
        if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 < probability <= 1:
            _refuse(f"{where}: probability", probability, "a number above 0 and at most 1")
        if "nth" in found or "every" in found:
            raise ValueError(f"{where}: probability goes with neither nth nor every")
        found["threshold"] = min(_WORD, max(1, int(probability * (1 << 64))))
        found["seed"] = seed
    if rule.get("seed") is not None:
        if probability is None:
            raise ValueError(f"{where}: seed goes with probability alone")
        found["seed"] = _integer(f"{where}: seed", rule["seed"], 0, _WORD)
    return found


def _integer(where: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        _refuse(where, value, f"a whole number from {low} to {high:#x}" if high > 1 << 20 else f"{low} to {high}")
    return value


def _refuse(where: str, value: object, allowed: str) -> NoReturn:
    raise ValueError(f"{where} is {value!r}; allowed: {allowed}")


__all__ = [
    "SHARED_QUEUES",
    "STATUSES",
    "Counts",
    "LibraryFaults",
    "VerbsFaults",
    "VerbsRule",
    "for_packets",
    "from_records",
    "is_verbs_rule",
    "parse_verbs_rules",
]
