"""Injectable events of a device: names, parameters and their command-line words.

One table is used for ``rnic fault DEVICE EVENT [VALUE]...`` (values in the table's order), fault scripts (values by
name, see :mod:`rnic.link.fault_script`) and Python (either). Durations are whole nanoseconds, or text such as ``"2s"``,
``"150ms"``, ``"50us"``. Where a number names an object, ``"all"`` names all of its kind.

An event with ``for`` heals by itself after that time; otherwise it lasts until ``heal``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from rnic.spec import events
from rnic.spec.gids import gid_from_address
from rnic.spec.ports import PORT_ACTIVE, PORT_ARMED, PORT_DOWN, PORT_GUID, PORT_INIT, PORT_PKEY
from rnic.spec.status import SYNDROME_NAMES, WR_FLUSH_ERR

ALL = "all"
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s)")
LONGEST_NS = 1 << 62
"""Longest duration: about 146 years."""
STATUSES = {name: code for code, name in SYNDROME_NAMES.items() if code not in (0, WR_FLUSH_ERR)}
"""Completion statuses that a fault can set: all except success and the flush error, which follows another error."""
PORT_STATES = {"DOWN": PORT_DOWN, "INIT": PORT_INIT, "ARMED": PORT_ARMED}
"""States of a port that carries no packets."""


class AsyncKind(NamedTuple):
    """Event that the device reports, and its subject: ``qp``, ``cq``, ``srq``, ``port`` or ``device``."""

    event_type: int
    element: str
    subtype: int = 0


ASYNC_EVENTS = {
    "COMM_EST": AsyncKind(events.COMM_EST, "qp"),
    "SQ_DRAINED": AsyncKind(events.SQ_DRAINED, "qp"),
    "QP_FATAL": AsyncKind(events.WQ_CATAS_ERROR, "qp"),
    "QP_REQ_ERR": AsyncKind(events.WQ_INVAL_REQ_ERROR, "qp"),
    "QP_ACCESS_ERR": AsyncKind(events.WQ_ACCESS_ERROR, "qp"),
    "QP_LAST_WQE_REACHED": AsyncKind(events.SRQ_LAST_WQE, "qp"),
    "CQ_ERR": AsyncKind(events.CQ_ERROR, "cq"),
    "SRQ_ERR": AsyncKind(events.SRQ_CATAS_ERROR, "srq"),
    "SRQ_LIMIT_REACHED": AsyncKind(events.SRQ_LIMIT, "srq"),
    "PORT_ACTIVE": AsyncKind(events.PORT_CHANGE, "port", PORT_ACTIVE),
    "PORT_ERR": AsyncKind(events.PORT_CHANGE, "port", PORT_DOWN),
    "GID_CHANGE": AsyncKind(events.PORT_CHANGE, "port", PORT_GUID),
    "PKEY_CHANGE": AsyncKind(events.PORT_CHANGE, "port", PORT_PKEY),
    "DEVICE_FATAL": AsyncKind(events.LOCAL_CATAS_ERROR, "device"),
}
"""``IBV_EVENT_*`` that a fault can raise."""
_REQUIRED = object()
_Real = TypeVar("_Real", int, float)


def duration_ns(value: object) -> int:
    """Return a duration in nanoseconds: ``"2s"``, ``"150ms"``, ``"50us"``, ``"20ns"`` or a whole number of nanoseconds.

    Raises:
        ValueError: not a duration; the message is one line.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return _bounded(value, value)
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{value!r} is not a duration: give a number and ns, us, ms or s, such as 150ms")
    return round(_bounded(float(found[1]) * _UNITS_NS[found[2]], value))


def _bounded(duration: _Real, value: object) -> _Real:
    if duration > LONGEST_NS:
        raise ValueError(f"{str(value)[:40]} is too long for a duration: give at most {LONGEST_NS // 10**9}s")
    return duration


def _number(low: int, high: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        try:
            number = int(value, 0) if isinstance(value, str) else value
        except ValueError:
            number = None
        if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
            raise ValueError(f"{value!r} is not a whole number from {low} to {high}")
        return number

    return read


def _object(value: object) -> int | str:
    return ALL if value == ALL else _number(0, 0xFFFF_FFFF)(value)


def _address(value: object) -> bytes:
    try:
        return ipaddress.ip_address(str(value)).packed
    except ValueError:
        raise ValueError(f"{value!r} is not an IP address") from None


def _gid(value: object) -> bytes:
    return bytes(16) if value == "none" else gid_from_address(_address(value))


def _status(value: object) -> int:
    code = STATUSES.get(value.removeprefix("IBV_WC_")) if isinstance(value, str) else None
    if code is None:
        raise ValueError(f"{value!r} is not a status: give one of {', '.join(STATUSES)}")
    return code


def _port_state(value: object) -> int:
    state = PORT_STATES.get(value.removeprefix("PORT_")) if isinstance(value, str) else None
    if state is None:
        raise ValueError(f"{value!r} is not a state: give one of {', '.join(PORT_STATES)}")
    return state


def _async_event(value: object) -> AsyncKind:
    kind = ASYNC_EVENTS.get(value.removeprefix("IBV_EVENT_")) if isinstance(value, str) else None
    if kind is None:
        raise ValueError(f"{value!r} is not an event: give one of {', '.join(ASYNC_EVENTS)}")
    return kind


class Parameter(NamedTuple):
    """One value of an event: its parser, default and meaning."""

    name: str
    read: Callable[[object], Any]
    meaning: str
    default: object = _REQUIRED


_FOR = Parameter("for", duration_ns, "duration; without it, until heal", None)
_DELAY = Parameter("delay", duration_ns, "delay")
_QP = Parameter("qp", _object, "queue pair number, or all")


class EventKind(NamedTuple):
    """A row of :data:`EVENTS`."""

    meaning: str
    parameters: tuple[Parameter, ...] = ()

    def takes(self, name: str) -> bool:
        """Return whether the event has a parameter of this name."""
        return any(parameter.name == name for parameter in self.parameters)


EVENTS: dict[str, EventKind] = {
    "port-down": EventKind("the port goes down and drops all packets", (_FOR,)),
    "port-state": EventKind(
        "as port-down, but the port reports STATE",
        (Parameter("state", _port_state, f"one of {', '.join(PORT_STATES)}"), _FOR),
    ),
    "port-up": EventKind("the port comes up again"),
    "flap": EventKind(
        "the port goes down and up again",
        (
            Parameter("times", _number(1, 1_000_000), "number of flaps", 1),
            Parameter("down", duration_ns, "duration of each outage", 100_000_000),
            Parameter("up", duration_ns, "time between two outages", 100_000_000),
        ),
    ),
    "gid": EventKind(
        "an entry of the GID table changes",
        (
            Parameter("index", _number(0, 7), "place in the table"),
            Parameter("value", _gid, "an IP address, or none for an empty entry"),
            _FOR,
        ),
    ),
    "pkey": EventKind(
        "an entry of the P_Key table changes",
        (
            Parameter("index", _number(0, 15), "place in the table"),
            Parameter("value", _number(0, 0xFFFF), "P_Key; 0 for an empty entry"),
            _FOR,
        ),
    ),
    "qp-error": EventKind("a queue pair goes to the error state", (_QP,)),
    "srq-error": EventKind("a shared receive queue fails", (Parameter("srq", _object, "its number, or all"),)),
    "cq-overflow": EventKind("a completion queue overflows", (Parameter("cq", _object, "its number, or all"),)),
    "completion-error": EventKind(
        "the next send of a reliable connection completes in error",
        (_QP, Parameter("status", _status, f"one of {', '.join(STATUSES)}")),
    ),
    "path-loss": EventKind(
        "packets to and from one peer are lost", (Parameter("peer", _address, "the peer's IP address"), _FOR)
    ),
    "slow-dma": EventKind("DMA is delayed, for packets in both directions", (_DELAY, _FOR)),
    "region-gone": EventKind(
        "a memory region becomes invalid: accesses with its key fail",
        (Parameter("key", _object, "L_Key or R_Key, or all"), _FOR),
    ),
    "interrupt-lost": EventKind(
        "interrupts are lost", (Parameter("times", _number(1, 1_000_000), "number of interrupts", 1),)
    ),
    "interrupt-late": EventKind("interrupts are late", (_DELAY, _FOR)),
    "async-event": EventKind(
        "a spurious asynchronous event is raised",
        (
            Parameter("event", _async_event, f"one of {', '.join(ASYNC_EVENTS)}"),
            Parameter("number", _object, "number of the queue pair, CQ or SRQ, or all", ALL),
        ),
    ),
    "fatal": EventKind("the device fails and disappears; with FOR it returns after that time", (_FOR,)),
    "kill": EventKind("the NIC process is killed"),
    "heal": EventKind("end all active and pending faults"),
}
"""Every event by name."""


PORT_EVENTS = ("port-down", "port-up", "port-state", "flap")
"""Events that programs with their own data path apply, from the device's page of fault rules."""


class FaultEvent(NamedTuple):
    """One event to inject; ``told`` holds its values by parameter name."""

    name: str
    told: dict[str, Any]

    @property
    def for_ns(self) -> int | None:
        """Nanoseconds after which it heals, or ``None``."""
        duration: int | None = self.told.get("for")
        return duration


def make_event(name: object, *values: object, **by_name: object) -> FaultEvent:
    """Return an event, with values in the table's order, or by name.

    Raises:
        ValueError: no such event or parameter, or a value is missing or out of range; one line that names it.
    """
    kind = EVENTS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"{name!r} is not an event: give one of {', '.join(EVENTS)}")
    if len(values) > len(kind.parameters):
        raise ValueError(f"{name}: {len(values)} values are too many; it takes {usage(str(name)) or 'none'}")
    given = {parameter.name: value for parameter, value in zip(kind.parameters, values, strict=False)}
    given |= {key.rstrip("_"): value for key, value in by_name.items()}
    told: dict[str, Any] = {}
    for parameter in kind.parameters:
        value = given.pop(parameter.name, None)
        if value is None:
            if parameter.default is _REQUIRED:
                raise ValueError(f"{name}: {parameter.name} is missing ({parameter.meaning})")
            told[parameter.name] = parameter.default
            continue
        try:
            told[parameter.name] = parameter.read(value)
        except ValueError as error:
            raise ValueError(f"{name}: {parameter.name}: {error}") from None
    if given:
        raise ValueError(f"{name}: unknown value {next(iter(given))!r}; it takes {usage(str(name)) or 'none'}")
    return FaultEvent(str(name), told)


def usage(name: str) -> str:
    """Return the values of an event as a line: ``DELAY [FOR]``."""
    words = [(p.name.upper(), p.default is _REQUIRED) for p in EVENTS[name].parameters]
    return " ".join(word if required else f"[{word}]" for word, required in words)


class TimedEvent(NamedTuple):
    """A timed event of a script: first at ``at_ns``, then every ``every_ns``, ``times`` in total."""

    event: FaultEvent
    at_ns: int
    every_ns: int | None
    times: int | None


def timed_event(rule: Mapping[str, object]) -> TimedEvent:
    """Return a script rule with ``at`` as a timed event, with ``every`` and ``times`` if it repeats.

    Raises:
        ValueError: as :func:`make_event`, or a bad ``at``, ``every`` or ``times``.
    """
    rest: dict[str, Any] = dict(rule)
    at_ns = duration_ns(rest.pop("at"))
    every = rest.pop("every", None)
    kind = EVENTS.get(str(rest.get("action")))
    times = rest.pop("times", None) if kind is None or not kind.takes("times") else None
    every_ns = None if every is None else duration_ns(every)
    if every_ns == 0:
        raise ValueError("every: 0 would never end: give a duration such as 500ms")
    if times is not None and every_ns is None:
        raise ValueError("times: only what has every (a duration) happens again")
    count = None if times is None else _number(1, 1_000_000)(times)
    return TimedEvent(make_event(rest.pop("action", None), **rest), at_ns, every_ns, count)


def from_words(words: Sequence[str]) -> FaultEvent:
    """Return the event given by the words of a command line."""
    if not words:
        raise ValueError(f"no event: give one of {', '.join(EVENTS)}")
    return make_event(*words)


__all__ = [
    "ALL",
    "ASYNC_EVENTS",
    "EVENTS",
    "PORT_EVENTS",
    "PORT_STATES",
    "STATUSES",
    "EventKind",
    "FaultEvent",
    "Parameter",
    "TimedEvent",
    "duration_ns",
    "from_words",
    "make_event",
    "timed_event",
    "usage",
]
