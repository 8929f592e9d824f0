"""Packet scripts in readable form, one line per step.

    test write-only | IBA 9.7.5.1 | A WRITE of one packet is stored and acknowledged
    with mtu=256
    > WRITE_ONLY psn=0 ackreq at=M len=64 [64 a]
    < ACK psn=0 msn=1
    ? bytes M [64 a]

``>`` is a packet to the peer, ``<`` one that must come from it, ``<?`` one that may, ``< nothing`` silence; ``!`` is
an action of the peer's software, ``?`` what the software must see; ``~ 5ms`` lets time pass.

Opcodes are those of the opcode table, without the service. ``ACK``, ``NAK sequence`` (``invalid``, ``access``,
``operation``; ``invalid|access`` is either) and ``RNR`` are an ACKNOWLEDGE with that syndrome; ``credits=3`` is the
code of an ACK that promises three receive entries, or the next smaller number that has one. PSNs are
relative to the connection's first PSN: that of the sender for requests, that of the requester for responses.
``at=M+8`` is address and key of byte 8 of the peer's region ``M`` (all rights; ``R`` only reads, ``L`` is local, ``F``
is of another protection domain); ``va=``, ``rkey=`` are numbers. ``[64 a]`` is 64 bytes of pattern ``a``,
``[64 a@256]`` those from its byte 256 on. The peer's memory holds pattern ``m`` at first. In numbers,
``mtu`` is the path MTU. An XRC request names an SRQ of the peer: ``srqn=near``, of the domain of ``M`` (the default),
``srqn=far``, of that of ``F``, ``srqn=outside``, of another XRC domain, or a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from rnic.spec.errors import RnicError
from rnic.spec.limits import MTU_CODES

SUITES = ("responder", "requester", "unreliable")
REGIONS = ("M", "R", "L", "F")
OPTIONS = {
    "service": "RC", "start": "100", "mtu": "1024", "access": "rwa", "rd": "16", "rnr_timer": "12", "timeout": "14",
    "retry": "7", "rnr_retry": "7", "credits": "0",
}  # fmt: skip
"""Parameters that ``with`` may set, and their defaults: the queue pair's service, first PSN of both sides, path MTU in
bytes, rights (read, write, atomic, flush, and ``A`` if the script needs ATOMIC WRITE), READs and atomics at a time, the
codes of its timers and counts, and whether it is asked to send end-to-end credits. Of an XRC pair ``XRC`` is the queue
pair that receives, ``XRC_INI`` the one that sends."""
LOOKS = ("bytes", "state")
"""Names of ``?`` that only inspect: without an agent they are skipped, and only packets are checked."""
NAKS = {"sequence": 0x60, "invalid": 0x61, "access": 0x62, "operation": 0x63}
_SERVICES = ("RC", "UC", "UD", "XRC", "XRC_INI")
QUEUES = ("near", "far", "outside")
"""SRQs of an XRC peer, by their names in scripts."""
_LIMIT = 1 << 64
_SPAN = re.compile(r"\[(.+?)(?: ([a-z])(?:@(.+))?)?\]$")
_STEP = re.compile(r"(<\?|[<>!?~])\s+(.+)")


class ScriptError(RnicError):
    """A script cannot be read; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes of a pattern; ``pattern`` is empty if only the size is given."""

    size: str
    pattern: str = ""
    start: str = "0"


@dataclass(frozen=True, slots=True)
class Step:
    """One line. ``words`` are the bare words after ``name``, ``values`` those with ``=``, as written."""

    kind: str
    """``>``, ``<``, ``<?``, ``!``, ``?`` or ``~``."""
    name: str
    words: tuple[str, ...]
    values: dict[str, str]
    payload: Payload | None
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Script:
    """One test."""

    suite: str
    name: str
    clause: str
    says: str
    options: dict[str, str]
    """Values of all :data:`OPTIONS`."""
    set_options: frozenset[str]
    """Names of the options that the script itself sets."""
    every_mtu: bool
    steps: tuple[Step, ...]

    @property
    def mtu(self) -> int:
        """Path MTU in bytes."""
        return int(self.options["mtu"])

    @property
    def text(self) -> str:
        """The steps, as written."""
        return "\n".join(step.text for step in self.steps)

    @property
    def fatal(self) -> bool:
        """True if the script leaves the queue pair in error, or waiting for a lost packet."""
        refused = any(s.name == "NAK" and s.words[0] != "sequence" for s in self.steps)
        return refused or "ERR" in self.text or [step.name for step in self.steps[-1:]] == ["NAK"]

    @property
    def needs_agent(self) -> bool:
        """True if the peer's software must act, or needs a special setup."""
        return (
            any(step.kind == "!" or (step.kind == "?" and step.name not in LOOKS) for step in self.steps)
            or bool(self.set_options)
            or any(step.values.get("at", "M")[:1] != "M" for step in self.steps)
        )

    def at_mtu(self, mtu: int) -> Script:
        """Return the same script with another path MTU."""
        return Script(
            self.suite, f"{self.name}@{mtu}", self.clause, self.says, {**self.options, "mtu": str(mtu)},
            self.set_options | {"mtu"}, False, self.steps,
        )  # fmt: skip


@dataclass
class _Open:
    """A script that is being read."""

    name: str
    clause: str
    says: str
    options: dict[str, str] = field(default_factory=dict)
    every_mtu: bool = False
    steps: list[Step] = field(default_factory=list)


def evaluate(text: str, names: dict[str, int]) -> int:
    """Return a whole number: products and sums of numbers and names, without parentheses.

    Raises:
        ScriptError: the text is not a number, or has more than 64 bits.
    """
    total = 0
    for sign, term in re.findall(r"([+-]?)([^+-]+)", text):
        product = 1
        for factor in term.split("*"):
            product *= names[factor] if factor in names else _number(factor, names)
        total += -product if sign == "-" else product
    if not -_LIMIT < total < _LIMIT:
        raise ScriptError(f"{text!r} has more than 64 bits")
    return total


def _number(text: str, names: dict[str, int]) -> int:
    try:
        return int(text, 0)
    except ValueError:
        known = f", and none of {', '.join(names)}" if names else ""
        raise ScriptError(f"{text[:40]!r} is not a number{known}") from None


def parse(text: str, suite: str) -> Iterator[Script]:
    """Yield the scripts of a text, in order.

    Raises:
        ScriptError: a line is not valid in a script.
    """
    now: _Open | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("test "):
            if now is not None:
                yield _closed(now, suite)
            parts = [part.strip() for part in line[5:].split("|")]
            if len(parts) != 3:
                raise ScriptError(f"{suite}, line {number}: a test is NAME | CLAUSE | SENTENCE, not {line!r}")
            now = _Open(parts[0], parts[1], parts[2])
        elif now is None:
            raise ScriptError(f"{suite}, line {number}: {line!r} stands in no test")
        elif line.startswith("with "):
            _set(now, line[5:], f"{suite}, line {number}")
        else:
            now.steps.append(_step(line, number, suite))
    if now is not None:
        yield _closed(now, suite)


def _set(now: _Open, text: str, place: str) -> None:
    for word in text.split():
        name, _, value = word.partition("=")
        if word == "mtu=every":
            now.every_mtu = True
        elif name in OPTIONS and value:
            now.options[name] = value
        else:
            raise ScriptError(f"{place}: {word!r} sets nothing; there are {', '.join(OPTIONS)}")


def _step(line: str, number: int, suite: str) -> Step:
    match = _STEP.fullmatch(line)
    if match is None:
        raise ScriptError(f"{suite}, line {number}: {line!r} begins with none of > < <? ! ? ~")
    rest = match[2]
    payload = None
    span = _SPAN.search(rest)
    if span is not None:
        payload = Payload(span[1], span[2] or "", span[3] or "0")
        rest = rest[: span.start()]
    name, *others = rest.split() or [""]
    if not name:
        raise ScriptError(f"{suite}, line {number}: {line!r} names nothing")
    if name == "NAK" and not (others and set(others[0].split("|")) <= set(NAKS)):
        raise ScriptError(f"{suite}, line {number}: {line!r}: a NAK is of kind {', '.join(NAKS)}")
    values = dict(word.split("=", 1) for word in others if "=" in word)
    words = tuple(word for word in others if "=" not in word)
    return Step(match[1], name, words, values, payload, number, line)


def _closed(now: _Open, suite: str) -> Script:
    options = {**OPTIONS, **now.options}
    if options["service"] not in _SERVICES or options["mtu"] not in map(str, MTU_CODES):
        raise ScriptError(
            f"{suite}: test {now.name!r}: service={options['service']} mtu={options['mtu']}: a service is one of"
            f" {', '.join(_SERVICES)}, a path MTU one of {', '.join(map(str, MTU_CODES))}"
        )
    for name in set(OPTIONS) - {"service", "access"}:
        try:
            _number(options[name], {})
        except ScriptError as error:
            raise ScriptError(f"{suite}: test {now.name!r}: {name}={options[name]}: {error}") from None
    return Script(
        suite, now.name, now.clause, now.says, options, frozenset(now.options), now.every_mtu, tuple(now.steps)
    )


@cache
def scripts() -> tuple[Script, ...]:
    """Return all scripts of the three suites; one for each path MTU where a script asks for all."""
    found: list[Script] = []
    for suite in SUITES:
        text = files("rnic.conform").joinpath("scripts", f"{suite}.txt").read_text(encoding="utf-8")
        for script in parse(text, suite):
            found += [script.at_mtu(mtu) for mtu in MTU_CODES] if script.every_mtu else [script]
    names = [script.name for script in found]
    if len(set(names)) != len(names):
        raise ScriptError("two scripts have the same name")
    return tuple(found)


def pattern(letter: str, start: int, size: int) -> bytes:
    """Return ``size`` bytes of a pattern from its byte ``start`` on: byte i is ``31 i + 17 (i >> 8) + letter``."""
    code = ord(letter)
    return bytes([(31 * i + 17 * (i >> 8) + code) & 0xFF for i in range(start, start + size)])
