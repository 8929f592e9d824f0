"""The bucket of a rate: what it lets through in any span of time, and when it says that the next packet may leave."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.cc.pacing import MOST_RATE, Pace, rate_word
from rnic.device.congestion import BURST_WINDOWS
from rnic.spec.congestion_regs import WINDOW_NS
from tests.unit.cc.flows import Words


def bucket(rate: int, size: int) -> Pace:
    """A full bucket at a rate in bytes per window, as software sets it."""
    pace = Pace(Words().cells)
    pace.pace_rate, pace.pace_most = rate << 10, max(size, rate * BURST_WINDOWS) << 20
    pace.fill(0)
    return pace


@given(
    rate=st.integers(1, 1 << 20),
    size=st.integers(16, 4_160),
    steps=st.lists(st.integers(0, 2_000_000), min_size=1, max_size=40),
)
def test_never_more_than_rate_and_bucket(rate: int, size: int, steps: list[int]) -> None:
    pace = bucket(rate, size)
    now = sent = 0
    for step in steps:
        now += step
        packets = pace.allowance(now, size)
        pace.spend(packets * size)
        sent += packets * size
        assert sent <= max(size, rate * BURST_WINDOWS) + now * rate // WINDOW_NS
        # and it holds nothing back that is due
        assert pace.allowance(now, size) == 0


@given(rate=st.integers(1, 1 << 20), size=st.integers(16, 4_160))
def test_ready_is_the_first_moment(rate: int, size: int) -> None:
    pace = bucket(rate, size)
    pace.spend(pace.allowance(0, size) * size)
    ready = pace.ready_ns(size)
    assert ready > 0
    assert pace.allowance(ready - 1, size) == 0
    assert pace.allowance(ready, size) >= 1


def test_a_packet_larger_than_what_the_windows_bring_still_leaves() -> None:
    assert bucket(1, 4_096).allowance(0, 4_096) == 1


def test_a_probe_beyond_the_bucket_is_owed_and_not_more() -> None:
    """Probes leave whatever the bucket holds. Less than nothing in it is nothing, until that has been paid back."""
    pace = bucket(64, 4_096)
    pace.spend(pace.allowance(0, 4_096) * 4_096 + 8_192)
    assert pace.allowance(0, 4_096) == 0
    ready = pace.ready_ns(4_096)
    assert ready == 3 * 4_096 * WINDOW_NS // 64
    assert (pace.allowance(ready - 1, 4_096), pace.allowance(ready, 4_096)) == (0, 1)


@pytest.mark.parametrize(
    ("bits_s", "word"),
    [(inf, 0), (8e9 / 1_024, 1 << 10), (1e11, 12_800 * 1_024), (0.0, 1), (1e30, MOST_RATE), (8e9 / (1 << 20), 1)],
)
def test_the_word_of_a_rate(bits_s: float, word: int) -> None:
    assert rate_word(bits_s) == word
