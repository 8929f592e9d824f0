"""Drive any number of runtimes deterministically, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timed(Protocol):
    """An object with a deadline."""

    def next_deadline_ns(self) -> int | None:
        """Return the time of its next deadline, or ``None``."""


class Driven(Protocol):
    """Object that a loop drives: a NIC on a link, such as a :class:`~rnic.runtime.loop.Runtime`."""

    @property
    def nic(self) -> Timed:
        """The device."""

    @property
    def link(self) -> Timed:
        """Link that carries its packets."""

    def progress(self) -> bool:
        """Run one round. Return whether anything happened."""


class VirtualClock:
    """A clock that moves only when advanced. Calling it returns the time in nanoseconds."""

    def __init__(self, start_ns: int = 0) -> None:
        self.now_ns = start_ns

    def __call__(self) -> int:
        """Return the time in nanoseconds."""
        return self.now_ns

    def advance(self, delta_ns: int) -> None:
        """Advance by ``delta_ns``, at least 0."""
        if delta_ns < 0:
            raise ValueError(f"delta_ns={delta_ns} would turn time back; give 0 or more")
        self.now_ns += delta_ns


class SimLoop:
    """Drives runtimes in the order in which they were added, so that every run with one seed is the same.

    Args:
        clock: virtual time; the runtimes and their faulty links read the same one.
        round_ns: duration of one round of all NICs in virtual time.
    """

    def __init__(self, clock: VirtualClock | None = None, round_ns: int = 1_000) -> None:
        self.clock = clock or VirtualClock()
        self.round_ns = round_ns
        self.runtimes: list[Driven] = []

    def add(self, runtime: Driven) -> None:
        """Add a NIC with its link, made with this loop's clock."""
        self.runtimes.append(runtime)

    def step(self) -> bool:
        """Run one round of every NIC. Return whether anything happened; if so, time advances by one round."""
        moved = False
        for runtime in self.runtimes:
            # a link may release packets for a NIC that had its turn already
            due_ns = runtime.link.next_deadline_ns()
            if runtime.progress() or (due_ns is not None and due_ns <= self.clock.now_ns):
                moved = True
        if moved:
            self.clock.advance(self.round_ns)
        return moved

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline, or ``None``."""
        times = [
            time
            for runtime in self.runtimes
            for time in (runtime.nic.next_deadline_ns(), runtime.link.next_deadline_ns())
            if time is not None
        ]
        return min(times, default=None)

    def run(self, until: Callable[[], bool] | None = None, limit_ns: int = 60_000_000_000) -> bool:
        """Run until ``until()`` is true, or nothing is left to do.

        Args:
            until: checked after every round; without it, run until everything is idle.
            limit_ns: virtual nanoseconds after which to give up.

        Returns:
            Whether ``until`` became true (without it: true once everything is idle).

        Raises:
            TimeoutError: the limit was reached.
        """
        end = self.clock.now_ns + limit_ns
        while True:
            if until is not None and until():
                return True
            if self.step():
                continue
            deadline = self.next_deadline_ns()
            if deadline is None:
                return until is None
            if deadline > end:
                raise TimeoutError(f"nothing came of it in {limit_ns / 1e9:g} s of virtual time; raise limit_ns")
            self.clock.now_ns = max(self.clock.now_ns, deadline)
