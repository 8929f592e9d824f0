"""Coroutines in virtual time: an application as a workload.

A coroutine that the fabric runs may only await a :class:`Signal`, which the fabric returns for a WRITE, a
sleep or an arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from rnic.spec.errors import RnicError

T = TypeVar("T")

Program = Coroutine["Signal[Any]", Any, Any]


class ProgramError(RnicError):
    """A coroutine awaited something other than a signal."""


class Signal(Generic[T]):
    """An event that happens once, with a value. Awaiting it afterward returns at once."""

    __slots__ = ("_happened", "_value", "_waiting")

    def __init__(self) -> None:
        self._happened = False
        self._value: T | None = None
        self._waiting: list[Callable[[T], None]] = []

    def set(self, value: T) -> None:
        """Set the value now; waiting tasks resume before this returns."""
        self._happened, self._value = True, value
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call(value)

    def then(self, call: Callable[[T], None]) -> None:
        """Call ``call`` with the value when it is set, or now if it is."""
        if self._happened:
            call(self._value)  # type: ignore[arg-type]  # it has been set
        else:
            self._waiting.append(call)

    def __await__(self) -> Generator[Signal[T], T, T]:
        if self._happened:
            return self._value  # type: ignore[return-value]  # it has been set
        value = yield self
        return value


class Tasks:
    """Running coroutines; ``running`` counts those that the run waits for."""

    def __init__(self) -> None:
        self.running = 0
        self._open: dict[int, Program] = {}

    def start(self, program: Program, *, waited_for: bool = True) -> Signal[Any]:
        """Run a coroutine up to its first wait. Return a signal for its end, whose value is its result."""
        ended: Signal[Any] = Signal()
        self._open[id(program)] = program
        if waited_for:
            self.running += 1
            ended.then(self._ended)
        self._step(program, None, ended)
        return ended

    def _ended(self, _: Any) -> None:
        self.running -= 1

    def close(self) -> None:
        """Close coroutines that still run."""
        for program in self._open.values():
            program.close()
        self._open.clear()

    def _step(self, program: Program, value: Any, ended: Signal[Any]) -> None:
        try:
            signal = program.send(value)
        except StopIteration as stop:
            del self._open[id(program)]
            ended.set(stop.value)
            return
        awaited: object = signal  # may be any object
        if not isinstance(awaited, Signal):
            program.close()
            raise ProgramError(f"a program awaited {awaited!r}: await what the fabric's methods return")
        signal.then(lambda answer: self._step(program, answer, ended))
