"""The outstanding limit: halved by a notification, held down by further ones, whole again after the timer."""

from __future__ import annotations

import pytest

from rnic.cc.limit import notified, relieve
from rnic.cc.settings import CongestionSettings
from rnic.spec.errors import VerbsError
from rnic.spec.limits import NEVER

TIMER_NS = 10 * 1_024


class Flight:
    def __init__(self, most: int = 16) -> None:
        self.most = self.now = most
        self.relief_ns = NEVER

    def limit(self, packets: int) -> None:
        self.now = packets


@pytest.mark.parametrize(("most", "half"), [(16, 8), (15, 7), (2, 1), (1, 1), (256, 128)])
def test_a_notification_halves_the_limit(most: int, half: int) -> None:
    flight = Flight(most)
    assert notified(flight, CongestionSettings("limit", 10), 5_000)
    assert flight.now == half
    assert flight.relief_ns == 5_000 + TIMER_NS


def test_a_second_notification_halves_no_more_and_restarts_the_timer() -> None:
    flight = Flight()
    settings = CongestionSettings("limit", 10)
    notified(flight, settings, 0)
    assert not notified(flight, settings, 9_000)
    assert flight.now == 8
    assert flight.relief_ns == 9_000 + TIMER_NS


def test_relief_makes_it_whole() -> None:
    flight = Flight()
    notified(flight, CongestionSettings("limit", 10), 0)
    relieve(flight)
    assert flight.now == 16
    assert flight.relief_ns == NEVER


def test_none_changes_nothing() -> None:
    flight = Flight()
    assert not notified(flight, CongestionSettings(), 0)
    assert flight.now == 16
    assert flight.relief_ns == NEVER


def test_a_timer_of_zero_windows_is_one() -> None:
    flight = Flight()
    notified(flight, CongestionSettings("limit", 0), 0)
    assert flight.relief_ns == 1_024


@pytest.mark.parametrize(
    ("wrong", "word"),
    [({"mode": "fast"}, "mode|congestion='fast'"), ({"timer_windows": 65_536}, "65536"), ({"merge_windows": -1}, "-1")],
)
def test_settings_that_cannot_be(wrong: dict[str, object], word: str) -> None:
    with pytest.raises(VerbsError, match=word):
        CongestionSettings(**wrong)  # type: ignore[arg-type]
