"""Plans of worlds as data: NICs, connections, verbs, faults and exits of programs, made from a seed.

A step names its connection by number and holds all its operands, with a seed for random bytes. So any subset of the
steps is a plan, as the search for the smallest failing plan requires.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rnic.link.fault_events import ASYNC_EVENTS, PORT_STATES
from rnic.spec.json_text import json_value

AREA = 1 << 16
"""Bytes of each source, target and result region of a connection's direction; the longest message."""
LARGE_AREA = 1 << 20
"""The same in worlds with large messages, which exceed a window of packets."""
_LARGE_MTU = 3
"""Smallest MTU code there, 1,024 bytes, so that the judge still remembers the neighbors of a late packet."""
SLOT = 1 << 13
"""Bytes of a receive entry; the longest SEND."""
SLOTS = 16
"""Most receive entries of a queue."""
INLINE = 64
NO_RATES = {"drop": 0.0, "corrupt": 0.0, "duplicate": 0.0, "delay": 0.0, "reorder": 0.0, "mark": 0.0}
SENDS = ("SEND", "SEND_IMM", "SEND_INV")
WRITES = ("WRITE", "WRITE_IMM")
ATOMICS = ("CMP_SWAP", "FETCH_ADD")
OPERANDS = ("ATOMIC_WRITE", "FLUSH")
"""Verbs without bytes of their own. Drawn in the place of some atomics, so that the rest of a seed's plan stays."""
_READERS = ("READ", *ATOMICS)
VERBS = {
    "RC": (*SENDS, *WRITES, *WRITES, "READ", "READ", *ATOMICS),
    "XRC": ("SEND", "SEND", "SEND_IMM", *WRITES, *WRITES, "READ", "READ", *ATOMICS),
    "UC": ("SEND", "SEND_IMM", *WRITES),
    "UD": ("SEND", "SEND_IMM"),
}
RELIABLE = ("RC", "XRC")
"""Services whose messages arrive once and in order."""
QUEUES = 3
"""XRC SRQs of a program, in one domain."""
_SERVICES = ("RC", "RC", "RC", "RC", "RC", "UC", "UD")
_PORT_MTU = 5
"""MTU code that connection management negotiates: the port's path MTU of 4096 bytes."""
_TIMES = ("50us", "1ms", "20ms", "80ms")
_CONGESTION = ("none", "dcqcn", "limit", "timely", "swift")
_CUTS = (1, 11, 12, 16, 20, 28, 40, 100)
"""Bytes that are left of a truncated packet's UDP payload."""
_XRC_WORLDS = 0.2
"""Share of the worlds with XRC, which the reference serves alone and more slowly."""
_MOMENTS = ("1us", "5us", "20us", "100us")
MOST_NICS = 64
XRC_FAULTS = ("queue", "domain", "pd")
"""Wrong operands of XRC requests: the number of no XRC SRQ, an SRQ of another domain, memory of another SRQ's PD."""

Step = dict[str, Any]
"""``do`` is the kind of step, ``of`` its connection; the rest are operands."""


class _Rule(NamedTuple):
    """Rule for an operand: an integer in a range, one of ``among``, or a text that matches ``pattern``."""

    low: int = 0
    high: int = 0
    among: tuple[str | bool, ...] = ()
    pattern: str = ""
    needed: bool = True

    def refuse(self, value: object) -> str:
        """Return a hint for an invalid value; empty if it is valid."""
        if self.among:
            right = any(type(value) is type(one) and value == one for one in self.among)
            return "" if right else f"give one of {', '.join(json.dumps(one) for one in self.among)}"
        if self.pattern:
            right = isinstance(value, str) and re.fullmatch(self.pattern, value) is not None
            return "" if right else f"give a text that matches {self.pattern}"
        if type(value) is not int:
            return "give a whole number"
        return "" if self.low <= value <= self.high else f"give {self.low} to {self.high}"


_BOOL = _Rule(among=(False, True))
_CONNECTION = _Rule(0, 1 << 20)
_NIC = _Rule(0, 1 << 20)
_WAY = _Rule(0, 1)
_TIME = _Rule(pattern=r"\d{1,6}(ns|us|ms|s)")
_WORD32 = _Rule(0, (1 << 32) - 1)
_END = {"of": _CONNECTION, "way": _WAY}
_QUEUE = _Rule(0, QUEUES - 1, needed=False)
_XRC = {"queue": _QUEUE, "receiver": _BOOL._replace(needed=False)}
"""Operands of XRC: the SRQ, and whether the queue pair that receives is meant."""
_OPERANDS: dict[str, dict[str, _Rule]] = {
    "connect": {
        "of": _CONNECTION, "service": _Rule(among=tuple(VERBS)), "a": _NIC, "b": _NIC, "mtu": _Rule(1, 5),
        "srq": _BOOL, "selective": _BOOL, "timeout": _Rule(1, 31), "psn": _Rule(0, (1 << 24) - 1),
        "cm": _BOOL._replace(needed=False), "window": _Rule(1, 2, needed=False), "data": _WORD32,
    },
    "post": {
        **_END, "verb": _Rule(among=(*dict.fromkeys(VERBS["RC"]), *OPERANDS)), "length": _Rule(0, LARGE_AREA),
        "at": _Rule(0, LARGE_AREA), "to": _Rule(0, LARGE_AREA), "how": _Rule(among=("", "list", "inline")),
        "signaled": _BOOL, "fence": _BOOL, "value": _WORD32, "times": _Rule(1, 1_000, needed=False),
        "key": _Rule(among=("wrong", "window", *XRC_FAULTS), needed=False), "queue": _QUEUE,
    },
    "recv": {**_END, "count": _Rule(1, SLOTS), "queue": _QUEUE},
    "lose": {
        **_END, "opcode": _Rule(pattern=r"[A-Z_*?]{1,40}"), "nth": _Rule(1, 1_000), "times": _Rule(1, 1_000),
        "left": _Rule(1, 1 << 12, needed=False),
    },
    "run": {"turns": _Rule(0, 1_000_000)},
    "bind": _END, "rekey": _END, "completion": _END,
    "stop": {**_END, "receiver": _XRC["receiver"]}, "qp-error": {**_END, "receiver": _XRC["receiver"]},
    "garbage": {**_END, "what": _Rule(among=("sends", "receives", "registers")), "data": _WORD32},
    "region-gone": {**_END, "for": _TIME},
    "async-event": {"nic": _NIC, "kind": _Rule(among=tuple(ASYNC_EVENTS))},
    "fault port-down": {"nic": _NIC, "for": _TIME},
    "fault port-state": {"nic": _NIC, "state": _Rule(among=tuple(PORT_STATES)), "for": _TIME},
    "fault interrupt-lost": {"nic": _NIC, "times": _Rule(1, 100)},
    "fault interrupt-late": {"nic": _NIC, "delay": _TIME, "for": _TIME},
    "fault path-loss": {"nic": _NIC, "peer": _NIC, "for": _TIME},
    "fault slow-dma": {"nic": _NIC, "delay": _TIME, "for": _TIME},
    "fault flap": {"nic": _NIC, "times": _Rule(1, 100)},
    "fault pkey": {"nic": _NIC, "index": _Rule(0, 0), "value": _Rule(0, 0xFFFF), "for": _TIME},
    "fault gid": {"nic": _NIC, "index": _Rule(0, 0), "value": _Rule(among=("none",)), "for": _TIME},
    "end": {"nic": _NIC}, "fatal": {"nic": _NIC}, "srq-error": {"nic": _NIC, "queue": _QUEUE},
    "cq-overflow": {"nic": _NIC}, "settle": {}, "fault-rates": {},
}  # fmt: skip
"""Operands of each kind of step; those of a fault by its event."""
_HEAD = {"seed": _Rule(0, (1 << 64) - 1), "nics": _Rule(1, MOST_NICS)}
_SETTINGS = {
    "recovery": _Rule(among=("selective-repeat", "go-back-n"), needed=False),
    "ack_every": _Rule(1, 1 << 16, needed=False),
    "window_packets": _Rule(1, 1 << 16, needed=False),
    "congestion": _Rule(among=_CONGESTION, needed=False),
    "ipv6": _BOOL._replace(needed=False),
    "reorder": _BOOL._replace(needed=False),
    "area": _Rule(AREA, LARGE_AREA, needed=False),
}
BY = ("engine", "reference", "both")


def _check(where: str, rules: Mapping[str, _Rule], found: Mapping[str, object]) -> None:
    """Raise unless all operands are present and valid, without unknown ones."""
    for name, rule in rules.items():
        if name not in found:
            if rule.needed:
                raise ValueError(f"{where}{name} is missing: give it")
        elif remedy := rule.refuse(found[name]):
            raise ValueError(f"{where}{name} is {found[name]!r}: {remedy}")
    for name in found:
        if name not in rules:
            raise ValueError(f"{where}{name} is unknown: leave it out")


def _check_step(number: int, step: object, area: int) -> None:
    """Raise unless a step, counted from 0, is valid in a world with regions of ``area`` bytes."""
    where = f"step {number}: "
    if not isinstance(step, dict):
        raise ValueError(f"{where}it is {step!r}: give an object")
    kind = step.get("do")
    operands = {name: value for name, value in step.items() if name != "do"}
    if kind == "fault":
        kind = f"fault {operands.pop('event', None)}"
    if not isinstance(kind, str) or kind not in _OPERANDS:
        raise ValueError(f"{where}do is {kind!r}: give one of {', '.join(_OPERANDS)}")
    if kind == "fault-rates":
        rates = operands.pop("rates", None)
        if not isinstance(rates, dict) or any(
            name not in NO_RATES or type(rate) not in (int, float) or not 0 <= rate <= 1 for name, rate in rates.items()
        ):
            raise ValueError(f"{where}rates is {rates!r}: give 0 to 1 for any of {', '.join(NO_RATES)}")
    _check(where, _OPERANDS[kind], operands)
    if kind == "post":
        for name in ("at", "to"):
            if operands[name] + operands["length"] > area:
                raise ValueError(f"{where}{name} is {operands[name]}: give at most {area} less the length")


@dataclass(frozen=True)
class Plan:
    """A complete world.

    ``settings`` has fields of :class:`~rnic.device.config.NicConfig`, with the congestion control mode by name,
    ``ipv6`` for IPv6 addresses, ``reorder`` for the reorder buffer of the engine's polls, and ``area`` for the bytes of
    each region, by default :data:`AREA`.
    """

    seed: int
    nics: int
    settings: dict[str, Any] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    by: str = ""
    """Executor with which it failed, one of :data:`BY`; empty if unknown."""

    def having(self, steps: Sequence[Step]) -> Plan:
        """Return a copy with other steps."""
        return replace(self, steps=tuple(steps))

    def text(self) -> str:
        """Return the plan as JSON, one line for each step."""
        values = {"seed": self.seed, "nics": self.nics, "settings": self.settings}
        head = json.dumps(values | ({"by": self.by} if self.by else {}))
        lines = ",\n  ".join(json.dumps(step) for step in self.steps)
        return f'{head[:-1]}, "steps": [\n  {lines}\n]}}\n'

    @staticmethod
    def read(text: str) -> Plan:
        """Parse a plan from JSON.

        Raises:
            ValueError: the text is not a plan.
        """
        hint = "this is not a plan of a world ({}): give a file written by --script"
        try:
            found = json_value(text)
        except ValueError as error:
            raise ValueError(hint.format(error)) from None
        if not isinstance(found, dict):
            raise ValueError(hint.format("it is not an object"))
        head = dict(found)
        settings, steps = head.pop("settings", None), head.pop("steps", None)
        _check("", _HEAD | {"by": _Rule(among=BY, needed=False)}, head)
        if not isinstance(settings, dict):
            raise ValueError(hint.format("settings is not an object"))
        _check("settings: ", _SETTINGS, settings)
        if not isinstance(steps, list):
            raise ValueError(hint.format("steps is not a list"))
        for number, step in enumerate(steps):
            _check_step(number, step, settings.get("area", AREA))
        return Plan(head["seed"], head["nics"], settings, tuple(steps), head.get("by", ""))


_TROUBLES: tuple[tuple[int, Step], ...] = (
    (10, {"do": "fault", "event": "port-down"}),
    (10, {"do": "fault", "event": "path-loss"}),
    (8, {"do": "fault", "event": "slow-dma", "delay": "30us"}),
    (4, {"do": "fault", "event": "flap", "times": 3}),
    (4, {"do": "fault", "event": "pkey", "index": 0}),
    (2, {"do": "fault", "event": "gid", "index": 0, "value": "none"}),
    (6, {"do": "rekey"}),
    (4, {"do": "stop"}),
    (4, {"do": "qp-error"}),
    (3, {"do": "completion"}),
    (4, {"do": "garbage"}),
    (3, {"do": "end"}),
    (3, {"do": "fatal"}),
    (3, {"do": "srq-error"}),
    (3, {"do": "cq-overflow"}),
)
"""Troubles beside packets: their frequency, and the operands that are always the same."""
_RARE: tuple[tuple[int, Step], ...] = (
    (4, {"do": "fault", "event": "port-state"}),
    (2, {"do": "fault", "event": "interrupt-lost"}),
    (2, {"do": "fault", "event": "interrupt-late", "delay": "30us"}),
    (4, {"do": "async-event"}),
    (8, {"do": "region-gone"}),
    (8, {"do": "lose", "opcode": "*"}),
)
"""Further troubles, drawn apart: without them a seed has the same plan."""
_DRAWN: dict[str, Callable[[_Maker, random.Random], int | str]] = {
    "of": lambda maker, rng: rng.randrange(len(maker.connects)),
    "way": lambda _, rng: rng.randrange(2),
    "nic": lambda maker, rng: rng.randrange(maker.nics),
    "peer": lambda maker, rng: rng.randrange(maker.nics),
    "for": lambda _, rng: rng.choice(_TIMES),
    "value": lambda _, rng: rng.choice((0x8001, 0x7FFF, 0)),
    "what": lambda _, rng: rng.choice(("sends", "receives", "registers")),
    "data": lambda _, rng: rng.getrandbits(32),
    "state": lambda _, rng: rng.choice(tuple(PORT_STATES)),
    "kind": lambda _, rng: rng.choice(tuple(ASYNC_EVENTS)),
    "times": lambda _, rng: rng.randint(1, 8),
    "nth": lambda _, rng: rng.randint(1, 8),
    "left": lambda _, rng: rng.choice(_CUTS),
}
"""Random generators of the other operands, by name; a P_Key is drawn as ``value``."""


class _Maker:
    """Draw the steps of one plan."""

    rng: random.Random
    connects: list[Step]
    nics: int

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rare = random.Random(f"rare {seed}")
        """Draws what was added later."""
        xrc = random.Random(f"xrc {seed}")
        self.xrc = xrc if xrc.random() < _XRC_WORLDS else None
        """Draws what XRC needs, in worlds that have it."""
        rng = self.rng
        self.nics = rng.randint(2, 6)
        self.connects = []
        self.steps: list[Step] = []
        self.long = rng.random() < 0.75
        """True if most messages are long, with more packets for each verb."""
        self.mtu = rng.choice((1, 1, 2, 3, 5))
        large = self.long and random.Random(f"area {seed}").random() < 1 / 3
        self.area = LARGE_AREA if large else AREA
        if large:
            self.mtu = max(self.mtu, _LARGE_MTU)
        self.selective = rng.random() < 0.25
        self.settings: dict[str, Any] = {
            "recovery": "selective-repeat" if self.selective else "go-back-n",
            "ack_every": rng.choice((1, 4, 16, 64)),
            "window_packets": rng.choice((16, 64, 256)),
            "congestion": rng.choice(("none", "none", "none", "dcqcn")),
            "ipv6": rng.random() < 0.15,
            "reorder": not self.selective and rng.random() < 0.3,
        }
        if large:
            self.settings["area"] = self.area
        if self.settings["congestion"] == "none" and self.rare.random() < 0.4:
            self.settings["congestion"] = self.rare.choice(_CONGESTION[2:])

    def connect(self) -> None:
        rng = self.rng
        service = rng.choice(_SERVICES)
        by_cm = service == "RC" and rng.random() < 0.3
        if self.xrc is not None and service == "RC" and not by_cm and self.xrc.random() < 0.6:
            service = "XRC"
        self.steps.append(
            {
                "do": "connect", "of": len(self.connects), "service": service,
                "a": rng.randrange(self.nics), "b": rng.randrange(self.nics),
                "mtu": _PORT_MTU if by_cm else rng.choice((self.mtu, rng.randint(1, 5))), "srq": rng.random() < 0.3,
                "selective": self.selective or rng.random() < (0.8 if self.settings["reorder"] else 0.2),
                "timeout": rng.choice((10, 12, 14)),
                "psn": rng.choice((0, 0xFFFF00, rng.getrandbits(24))), "cm": by_cm, "window": rng.choice((1, 2, 2)),
                "data": rng.getrandbits(32),
            }
        )  # fmt: skip
        self.connects.append(self.steps[-1])

    def length(self, most: int) -> int:
        rng = self.rng
        mtu = 128 << self.mtu
        if self.long and rng.random() < 0.7:
            return rng.randint(most // 2, most)
        return min(most, rng.choice((0, 1, 7, 8, INLINE, mtu - 1, mtu, mtu + 1, 3 * mtu, rng.randrange(most + 1))))

    def post(self, of: int, verbs: Sequence[str] = ()) -> Step:
        rng = self.rng
        service = self.connects[of]["service"]
        verb = rng.choice(verbs or VERBS[service])
        length = 8 if verb in ATOMICS else self.length(SLOT if verb in SENDS else self.area)
        if service == "UD":
            length = min(length, 200)
        step: Step = {
            "do": "post", "of": of, "way": rng.randrange(2), "verb": verb, "length": length,
            "at": rng.randrange(self.area - length + 1), "to": rng.randrange(self.area - length + 1),
            "how": rng.choice(("", "", "list", "inline")), "signaled": rng.random() < 0.8,
            "fence": rng.random() < 0.15, "value": rng.getrandbits(32),
            "times": rng.choice((1, 2, 8)) if self.long else 1,
        }  # fmt: skip
        if rng.random() < 0.004 and service == "RC" and verb in (*WRITES, "READ", *ATOMICS):
            step["key"], step["times"] = "wrong", 1
        elif rng.random() < 0.4:
            step["key"] = "window"
        elif verb in ATOMICS:
            step["verb"] = {1: OPERANDS[0], 2: OPERANDS[1]}.get(step["value"] >> 1 & 3, verb)
        if self.xrc is not None and service == "XRC":
            step["queue"] = self.xrc.randrange(QUEUES)
            if self.xrc.random() < 0.01:
                step["key"], step["times"] = self.xrc.choice(XRC_FAULTS), 1
        return step

    def recv(self, of: int, way: int, count: int) -> None:
        """Add a step that posts receives; with XRC to one of the SRQs."""
        step: Step = {"do": "recv", "of": of, "way": way, "count": count}
        if self.xrc is not None and self.connects[of]["service"] == "XRC":
            step["queue"] = self.xrc.randrange(QUEUES)
        self.steps.append(step)

    def trouble(self, troubles: Sequence[tuple[int, Step]], rng: random.Random) -> Step:
        """Draw something that goes wrong."""
        fixed = rng.choices([step for _, step in troubles], [often for often, _ in troubles])[0]
        kind = f"fault {fixed['event']}" if fixed["do"] == "fault" else fixed["do"]
        names = [name for name in _OPERANDS[kind] if name not in fixed]
        step = fixed | {name: _DRAWN[name](self, rng) for name in names if name not in _XRC}
        if self.xrc is not None and self.xrc.random() < 0.5:
            values = {"queue": self.xrc.randrange(QUEUES), "receiver": True}
            step |= {name: value for name, value in values.items() if name in names}
        return step

    def medley(self, of: int) -> None:
        """Add short messages of several kinds to one end, all in flight together, some of which may be lost.

        Either the path fails between two of them, so that an earlier one may be executed and its response lost; or the
        last response of a READ is lost, with all requests after it.
        """
        rng, way, connect = self.rng, self.rng.randrange(2), self.connects[of]
        mtu = 128 << connect["mtu"]
        kinds: list[Sequence[str]] = [()] * rng.randint(3, 8)
        lengths = [rng.choice((8, mtu, 2 * mtu, 4 * mtu)) for _ in kinds]
        fails = rng.randrange(1, 2 * len(kinds))
        self.recv(of, 1 - way, SLOTS)
        if connect["service"] in RELIABLE and rng.random() < 0.5:
            fails, lengths[0], kinds[:3] = 0, rng.randint(mtu + 1, 3 * mtu), [("READ",), (*SENDS, *WRITES), _READERS]
            self.steps.append({"do": "run", "turns": 200})  # complete earlier requests
            self.lose(of, 1 - way, f"{connect['service']}_READ_RESPONSE_LAST", 1, 1)
            self.lose(of, way, "*", 2, rng.randint(2, 8))
        for number, (verbs, length) in enumerate(zip(kinds, lengths, strict=True)):
            if number and number == fails:
                self.steps.append({"do": "run", "turns": rng.choice((0, 0, 1, 2))})
                self.outage(*(connect[side] for side in ("ab", "ba")[way]))
            step = self.post(of, verbs)
            exact = fails == 0 and number == 0
            self.steps.append(
                step | {"way": way, "length": length if exact else min(step["length"], length), "times": 1, "at": 0}
            )
            if exact:
                self.steps[-1]["to"] = 0
        self.steps.append({"do": "run", "turns": rng.choice((1, 2, 3, 30))})
        if fails >= len(kinds):
            self.outage(rng.randrange(self.nics), rng.randrange(self.nics))

    def lose(self, of: int, way: int, opcode: str, nth: int, times: int) -> None:
        """Drop ``times`` consecutive packets of an end, starting at the ``nth`` of a kind from now on."""
        step = {"do": "lose", "of": of, "way": way, "opcode": opcode, "nth": nth, "times": times}
        self.steps.append(step)

    def outage(self, nic: int, peer: int) -> None:
        """Drop a few consecutive packets in both directions, as a full buffer does: only timeouts detect that."""
        step = {"do": "fault", "nic": nic, "event": "path-loss", "peer": peer, "for": self.rng.choice(_MOMENTS)}
        self.steps.append(step)

    def fault_rates(self) -> Step:
        """Draw new fault rates for the network."""
        rng = self.rng
        rates = dict(NO_RATES)
        worst = rng.choice((0.0, 0.0, 0.001, 0.01, 0.05, 0.2))
        if worst:
            for name in rng.sample(sorted(rates), rng.randint(1, 4)):
                rates[name] = worst
        return {"do": "fault-rates", "rates": rates}

    def epoch(self) -> None:
        """Add one epoch: posts, faults and turns, then a settle."""
        rng = self.rng
        self.steps.append(self.fault_rates())
        for _ in range(rng.randint(10, 60)):
            of = rng.randrange(len(self.connects))
            draw = rng.random()
            if draw < 0.02:
                self.steps.append(self.trouble(_TROUBLES, rng))
            elif draw < 0.05:
                self.steps.append(self.fault_rates())
            elif draw < 0.09:
                self.outage(rng.randrange(self.nics), rng.randrange(self.nics))
                self.steps.append({"do": "run", "turns": rng.choice((1, 2, 5))})
            elif draw < 0.12:
                self.medley(of)
            elif draw < 0.16:
                self.steps.append({"do": "bind", "of": of, "way": rng.randrange(2)})
            elif draw < 0.3:
                self.recv(of, rng.randrange(2), rng.randint(1, SLOTS))
            elif draw < 0.45:
                self.steps.append({"do": "run", "turns": rng.choice((1, 5, 30, 200))})
            else:
                self.steps.append(self.post(of))
            if self.rare.random() < 0.02:
                self.steps.append(self.trouble(_RARE, self.rare))
        self.steps.append({"do": "settle"})


def make_plan(seed: int, steps: int = 300) -> Plan:
    """Return the plan of a seed.

    Args:
        seed: the same one gives the same plan.
        steps: approximate number of steps.
    """
    maker = _Maker(seed)
    for _ in range(maker.rng.randint(2, 8)):
        maker.connect()
    while len(maker.steps) < steps:
        maker.epoch()
    return Plan(seed, maker.nics, maker.settings, tuple(maker.steps))


__all__ = [
    "AREA",
    "ATOMICS",
    "BY",
    "INLINE",
    "NO_RATES",
    "OPERANDS",
    "QUEUES",
    "RELIABLE",
    "SENDS",
    "SLOT",
    "SLOTS",
    "VERBS",
    "WRITES",
    "XRC_FAULTS",
    "Plan",
    "Step",
    "make_plan",
]
