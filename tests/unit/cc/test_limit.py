"""The outstanding limit: halved by a notification, held down by further ones, whole again after the timer."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.cc.settings import CongestionSettings
from rnic.spec.errors import VerbsError
from rnic.spec.limits import NEVER
from tests.unit.cc.flows import Words, controlled

TIMER_NS = 10 * 1_024


def flow(most: int = 16, windows: int = 10) -> Any:
    return controlled(CongestionSettings("limit", windows), most=most)


@pytest.mark.parametrize(("most", "half"), [(16, 8), (15, 7), (2, 1), (1, 1), (256, 128)])
def test_a_notification_halves_the_limit(most: int, half: int) -> None:
    made, words = flow(most)
    assert made.notified(5_000) == (most > 1)
    assert (words.widest, words.window) == (half, half)
    assert words.control_ns == 5_000 + TIMER_NS


def test_a_second_notification_halves_no_more_and_restarts_the_timer() -> None:
    made, words = flow()
    made.notified(0)
    assert not made.notified(9_000)
    assert words.widest == 8
    assert words.control_ns == 9_000 + TIMER_NS


def test_relief_makes_it_whole() -> None:
    made, words = flow()
    made.notified(0)
    assert not made.catch_up(TIMER_NS - 1)
    assert made.catch_up(TIMER_NS)
    assert words.widest == 16
    assert words.control_ns == NEVER


def test_a_window_that_losses_shrank_stays_and_grows_again() -> None:
    made, words = flow(64)
    words.window = 20
    made.notified(0)
    assert (words.window, words.widest) == (20, 32)
    made.catch_up(TIMER_NS)
    assert (words.window, words.widest) == (20, 64)


def test_none_changes_nothing() -> None:
    made, words = controlled(CongestionSettings())
    assert not made.notified(0)
    assert (words.widest, words.control_ns, words.paced) == (16, NEVER, 0)


def test_a_timer_of_zero_windows_is_one() -> None:
    made, words = flow(windows=0)
    made.notified(0)
    assert words.control_ns == 1_024


def test_without_its_control_a_flow_may_have_all() -> None:
    made, words = flow()
    made.notified(0)
    made.stop()
    assert (words.widest, words.window, words.control_ns) == (16, 16, NEVER)
    assert isinstance(words, Words)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [({"mode": "fast"}, "mode|congestion='fast'"), ({"timer_windows": 65_536}, "65536"), ({"merge_windows": -1}, "-1")],
)
def test_settings_that_cannot_be(wrong: dict[str, object], word: str) -> None:
    with pytest.raises(VerbsError, match=word):
        CongestionSettings(**wrong)  # type: ignore[arg-type]
