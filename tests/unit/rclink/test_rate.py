"""Rate windows: the worked example of the RC Link description, and windows that pass unseen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.rclink.numbers import CC_WINDOW_NS
from rnic.rclink.rate import RateWindow

W = 4_096


def window(threshold: int) -> RateWindow:
    rate = RateWindow(W)
    rate.length_thr = threshold
    return rate


def test_the_documents_example() -> None:
    """Bytes of 30h a window: 10h pass, 30h more fill it, the next window begins with 10h, and 20h fill it."""
    rate = window(0x30)
    rate.charge(0x10, 0)
    assert (rate.acc_cnt, rate.blocked(0)) == (0x10, False)
    rate.charge(0x30, 1)
    assert (rate.acc_cnt, rate.blocked(W - 1)) == (0x40, True)
    assert rate.unblock_ns(W - 1) == W
    assert not rate.blocked(W)
    assert rate.acc_cnt == 0x10
    rate.charge(0x20, W + 5)
    assert (rate.acc_cnt, rate.blocked(W + 5)) == (0x30, True)


def test_window_lengths() -> None:
    assert CC_WINDOW_NS == (4_096, 8_192, 16_384, 32_768, 65_536)


def test_a_threshold_of_zero_blocks_for_ever() -> None:
    rate = window(0)
    assert rate.blocked(0)
    assert rate.unblock_ns(0) is None
    assert rate.blocked(10**12)


def test_debt_is_paid_over_windows() -> None:
    rate = window(100)
    rate.charge(1_050, 0)
    assert rate.unblock_ns(0) == 10 * W
    assert rate.blocked(10 * W - 1)
    assert not rate.blocked(10 * W)
    assert rate.acc_cnt == 50


def test_a_cnp_halves_and_its_time_ends() -> None:
    rate = window(100)
    rate.halve(3 * W)
    assert rate.threshold(3 * W - 1) == 50
    rate.charge(60, 0)
    assert rate.blocked(0)
    assert rate.threshold(3 * W) == 100
    assert not rate.blocked(W)
    assert rate.acc_cnt == 10


def test_another_window_length_begins_anew() -> None:
    rate = window(10)
    rate.charge(25, 0)
    rate.set_window(2 * W, W)
    assert rate.acc_cnt == 15
    assert rate.blocked(2 * W - 1)
    assert not rate.blocked(2 * W)


class Model:
    """Every window's end, one by one."""

    def __init__(self, threshold: int) -> None:
        self.threshold, self.acc, self.now, self.until = threshold, 0, 0, 0

    def at(self, now: int) -> int:
        return self.threshold // 2 if now < self.until else self.threshold

    def move(self, now: int) -> None:
        for end in range(self.now // W + 1, now // W + 1):
            self.acc = max(0, self.acc - self.at(end * W))
        self.now = now


steps = st.lists(
    st.tuples(st.integers(0, 3 * W), st.one_of(st.none(), st.integers(1, 3_000)), st.booleans()), max_size=40
)


@given(st.integers(0, 2_000), steps)
def test_unseen_windows_count_as_if_seen(threshold: int, moves: list[tuple[int, int | None, bool]]) -> None:
    rate, model, now = window(threshold), Model(threshold), 0
    for passed, size, cnp in moves:
        now += passed
        model.move(now)
        assert rate.blocked(now) == (model.acc >= model.at(now))
        assert rate.acc_cnt == model.acc
        if size is not None:
            rate.charge(size, now)
            model.acc += size
        if cnp:
            rate.halve(now + 2 * W)
            model.until = -(-now // W) * W + 2 * W


@given(st.integers(1, 2_000), st.integers(1, 20_000), st.integers(0, 5 * W), st.integers(0, 9 * W))
def test_unblock_time_is_the_first_at_which_it_is_unblocked(threshold: int, size: int, now: int, halved: int) -> None:
    rate = window(threshold)
    rate.halve(halved)
    rate.charge(size, now)
    for _ in range(30_000):  # waits: for the window to end
        if not rate.blocked(now):
            return
        when = rate.unblock_ns(now)
        assert when is not None
        assert when > now
        # nobody need ask before
        assert rate.blocked(when - 1)
        now = when
    raise AssertionError("blocked for ever")


@pytest.mark.parametrize("halved", [0, 3 * W])
def test_one_question_is_enough_at_a_constant_rate(halved: int) -> None:
    rate = window(64)
    rate.charge(10_000, halved)
    when = rate.unblock_ns(halved)
    assert when == halved + 10_000 // 64 * W
    assert rate.blocked(when - 1)
    assert not rate.blocked(when)
