"""How long the NIC process's loop looks on: so many empty rounds, fewer where somebody wants its core."""

from __future__ import annotations

import os
import time

import pytest

from rnic.nic_process.idle_backoff import IdleBackoff

LONG_NS = 1_000_000


def rounds(pace: IdleBackoff) -> int:
    """Empty rounds until it is time to sleep."""
    pace.idle, count = 0, 1
    while pace.keep_polling():
        count += 1
    return count


@pytest.fixture
def yields(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the next yields take, in ns."""
    lasting: list[int] = []
    now = [0]
    monkeypatch.setattr(os, "sched_yield", lambda: now.append(now[-1] + lasting.pop(0)))
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[-1])
    return lasting


def test_who_is_alone_looks_on_for_all_rounds() -> None:
    assert [rounds(IdleBackoff(30)) for _ in range(2)] == [30, 30]


def test_a_thread_that_had_to_yield_sleeps_at_once_with_backoff(yields: list[int]) -> None:
    pace = IdleBackoff(5)
    yields += [1_000, LONG_NS]
    assert [pace.yield_core(), pace.yield_core()] == [False, True]
    assert [rounds(pace) for _ in range(7)] == [1, 1, 2, 3, 4, 5, 5]
