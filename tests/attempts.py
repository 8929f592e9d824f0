"""Attempts of tests that need their cores in time, and costs of which the least counts.

Behaviour has to hold in every valid attempt: :func:`every_valid`. An attempt is void only where a wait for a core was
measured that is long enough to explain whatever happened. A cost may be measured several times: :func:`best_of`.
``tests/README.md`` lists the tests that use either, with the reasons given here as ``why``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

LONGEST_S = 30.0
"""How long to look for a valid attempt."""
SAMPLE_S = 0.005
STANDS_STILL_MS = 15
"""A program that does nothing between two looks of the NIC process, 20 ms apart, has its packets taken by that."""
VOID = "no valid attempt"
"""How the reason of such a skip begins; the session counts them (tests/conftest.py)."""
_PROC = Path("/proc")
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10.0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended, or this system does not say
        return ""


def _family(pid: int, but: set[int]) -> Iterator[int]:
    """A process and all that descend from it, but for some."""
    waiting = [pid]
    while waiting:
        pid = waiting.pop()
        if pid in but:
            continue
        yield pid
        for task in _PROC.glob(f"{pid}/task/*/children"):
            waiting += map(int, _read(task).split())


def timeslices_of_sleepers() -> dict[str, str]:
    """How often each other thread of this process has had a core; empty where one of them does not sleep."""
    found = {}
    for task in _PROC.glob("self/task/[0-9]*"):
        if int(task.name) == threading.get_native_id():
            continue
        if _read(task / "stat").rpartition(")")[2].split()[:1] != ["S"]:
            return {}
        found[task.name] = _read(task / "schedstat").rpartition(" ")[2]
    return found


class Witness:
    """Measure the longest time that a thread waited for a core, and that the machine itself stood still.

    The kernel counts how long each thread was ready to run and did not (schedstat's run delay). It is read every
    ``SAMPLE_S``, so that what one reading adds is one wait, or several short ones right behind each other.

    Args:
        but: processes, with their descendants, whose waits do not count.
    """

    def __init__(self, but: Iterable[int] = ()) -> None:
        self.longest_ms = 0.0
        self.reason = ""
        self._but = {*but}
        self._own = 0
        self._began = False
        self._waited: dict[tuple[int, str], int] = {}
        self._stolen = self._steal()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness")

    def __enter__(self) -> Witness:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        self._own = threading.get_native_id()
        while not self._over.wait(SAMPLE_S):
            self._look()

    def _steal(self) -> int:
        words = _read(_PROC / "stat").partition("\n")[0].split()
        return int(words[8]) if len(words) > 8 else 0

    def _look(self) -> None:
        for pid in _family(os.getpid(), self._but):
            for task in _PROC.glob(f"{pid}/task/[0-9]*"):
                words = _read(task / "schedstat").split()
                if len(words) != 3 or task.name == str(self._own):
                    continue
                key, waited = (pid, task.name), int(words[1])
                before = self._waited.get(key, 0 if self._began else waited)
                self._note((waited - before) / 1e6, f"thread {task.name} of process {pid}")
                self._waited[key] = waited
        self._began = True
        stolen = self._steal()
        # the counter of each core is rounded to a tick
        self._note((stolen - self._stolen - (os.cpu_count() or 1)) * _TICK_MS, "the machine, by its host,")
        self._stolen = stolen

    def _note(self, waited_ms: float, who: str) -> None:
        if waited_ms > self.longest_ms:
            self.longest_ms, self.reason = waited_ms, f"{who} waited {waited_ms:.1f} ms for a core"


spent_in_vain = [0.0]
"""Processor time of void attempts, in seconds."""


class Void(Exception):  # noqa: N818 - no error
    """What an attempt raises that has itself measured why it says nothing."""


def every_valid(
    attempt: Callable[[], object], *, why: str, limit_ms: float | None = None, but: Iterable[int] = ()
) -> None:
    """Make an attempt that has to hold, again while it is void; skip the test where none was valid in ``LONGEST_S``.

    Args:
        attempt: raises :class:`AssertionError` where what is tested does not hold, and :class:`Void` where it measured
            why that cannot be said. It makes what it needs anew.
        why: what a thread without a core changes; stands in tests/README.md.
        limit_ms: a wait for a core of so many ms or more makes the attempt void, whether it held or not. None for those
            that measure themselves.
        but: processes, with their descendants, that may wait for a core as long as they like.
    """
    end = time.monotonic() + LONGEST_S
    made = 0
    while True:
        failure: AssertionError | None = None
        reason, before = "", time.process_time()
        with nullcontext() if limit_ms is None else Witness(but) as witness:
            try:
                attempt()
            except Void as void:
                reason = str(void)
            except AssertionError as error:
                failure = error
        if witness is not None and limit_ms is not None and witness.longest_ms >= limit_ms:
            reason = f"{witness.reason} (limit {limit_ms} ms)"
        if not reason:
            if failure is not None:
                raise failure
            return
        made += 1
        spent_in_vain[0] += time.process_time() - before
        if time.monotonic() >= end:
            pytest.skip(f"{VOID} of {made} in {LONGEST_S:.0f} s: {reason}: {why}")


def best_of(times: int, measure: Callable[[], float], *, below: float, why: str) -> float:
    """Measure a cost until it is below what is asked, so many times at most; return the least.

    Only for costs: whatever else runs makes them higher, and nothing makes them lower.

    Args:
        times: measurements, at most.
        measure: returns what it cost.
        below: what the test asks.
        why: what else the measurement may count; stands in tests/README.md.
    """
    assert why
    least = measure()
    for _ in range(times - 1):
        if least < below:
            break
        least = min(least, measure())
    return least
