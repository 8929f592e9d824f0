"""The tracer protocol: a device reports events by stage, and a tracer decides which to keep."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Tracer(Protocol):
    """Receives events as they happen, in the order of the device's time."""

    enabled: bool
    """If false, callers need not build the arguments."""

    def event(self, now_ns: int, stage: str, qpn: int, **fields: int | str) -> None:
        """Receive one event.

        Args:
            now_ns: the time that was passed to the device, in nanoseconds.
            stage: the stage of an operation: ``"doorbell"``, ``"wqe"``, ``"completion"``, ...
            qpn: queue pair number, 0 if no queue pair is concerned.
            fields: details under the standard's names: ``psn``, ``opcode``, ``syndrome``, ...
        """


class NullTracer:
    """Discards all events."""

    __slots__ = ("enabled",)

    def __init__(self) -> None:
        self.enabled = False

    def event(self, now_ns: int, stage: str, qpn: int, **fields: int | str) -> None:
        """Discard the event."""


class TraceEvent(NamedTuple):
    """One event recorded by :class:`ListTracer`."""

    now_ns: int
    stage: str
    qpn: int
    fields: dict[str, int | str]


class ListTracer:
    """Keeps every event in ``events``, for tests and short runs: the list grows without bound."""

    __slots__ = ("enabled", "events")

    def __init__(self) -> None:
        self.enabled = True
        self.events: list[TraceEvent] = []

    def event(self, now_ns: int, stage: str, qpn: int, **fields: int | str) -> None:
        """Append the event."""
        self.events.append(TraceEvent(now_ns, stage, qpn, fields))

    def of(self, stage: str) -> list[TraceEvent]:
        """Return the events of one stage."""
        return [event for event in self.events if event.stage == stage]
