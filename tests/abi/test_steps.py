"""Who sleeps when: programs that wait for events, and the library's thread while a program does the work itself."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnic.testing import own_network
from tests.abi.test_kills import LONGEST, served
from tests.attempts import best_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # the first test of a worker also compiles

ASLEEP = 200
"""Times that the programs of the first test wait for a message each."""

MOST_WAKES = 3000
"""A second, of a thread that looks again 2 ms later where somebody is at work: 500 to 1,300 measured. Of one that took
a long round of its program's for a pause, 4,000 to 8,000."""


def numbers(steps: Path, env: dict[str, str], mode: str, count: int) -> list[float]:
    done = subprocess.run(
        [str(steps), mode, str(count)], env=env, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stderr
    return [float(number) for number in re.findall(r"\d+", done.stdout)]


@pytest.fixture
def bypass(env: dict[str, str]) -> Iterator[dict[str, str]]:
    """Environment of programs that ask for slots of a NIC process of their own."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: none of the two programs would ever wait for the other awake")
    with served(env, f"{own_network()}.71"):
        yield {**env, "RNIC_BYPASS": "1", "RNIC_SHM": "0"}


def test_who_waits_for_events_that_come_quickly_does_not_sleep(steps: Path, bypass: dict[str, str]) -> None:
    """With a second to look on every wait is short; the first eight may sleep, and what begins and ends the run."""
    (slept,) = numbers(steps, {**bypass, "RNIC_LOOK_US": "1000000"}, "events", ASLEEP)
    assert slept < ASLEEP / 4


def test_who_is_not_to_look_on_sleeps_for_each(steps: Path, bypass: dict[str, str]) -> None:
    (slept,) = numbers(steps, {**bypass, "RNIC_LOOK_US": "0"}, "events", ASLEEP)
    assert slept > ASLEEP / 2


def test_the_thread_knows_that_a_long_round_is_no_pause(steps: Path, bypass: dict[str, str]) -> None:
    why = "beside others the program does stand still in its rounds"
    assert best_of(10, lambda: numbers(steps, bypass, "bulk", 300)[0], below=MOST_WAKES, why=why) < MOST_WAKES
