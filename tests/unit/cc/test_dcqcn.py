"""The reaction point against the formulas of the DCQCN paper (SIGCOMM 2015, algorithm 1 and equations 1 to 4)."""

from __future__ import annotations

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.cc.control import BURST_PACKETS
from rnic.cc.controlled import Controlled
from rnic.cc.dcqcn import ALPHA_ONE, Dcqcn, DcqcnSettings
from rnic.cc.settings import CongestionSettings
from rnic.spec.congestion_regs import WINDOW_NS
from tests.unit.cc.flows import controlled

US = 1_000
G = 1 / 256
LINE = 5_120
"""40 Gb/s, as in the paper."""
PAPER = DcqcnSettings(line_rate=LINE)
CNP_NS = 50 * US
KMIN, KMAX, PMAX = 5_000, 200_000, 0.01


class ReactionPoint:
    """The reaction point of a flow alone."""

    def __init__(self, settings: DcqcnSettings, now_ns: int) -> None:
        made, _ = controlled(CongestionSettings("dcqcn", dcqcn=settings))
        assert isinstance(made.control, Dcqcn)
        self.flow: Controlled = made
        self.control = made.control

    def notified(self, now_ns: int) -> None:
        self.control.on_cnp(self.flow, now_ns)

    def advance(self, now_ns: int) -> None:
        self.control.on_timer(self.flow, now_ns)

    def sent(self, size: int) -> None:
        self.control.on_sent(self.flow, size)

    @property
    def alpha(self) -> int:
        return self.control.dcqcn_alpha

    @property
    def state(self) -> tuple[int, int, int]:
        return self.control.dcqcn_rate, self.control.dcqcn_target, self.control.dcqcn_alpha


def rate(point: ReactionPoint) -> float:
    """In bytes a window."""
    return point.control.dcqcn_rate / (1 << 16)


def target(point: ReactionPoint) -> float:
    return point.control.dcqcn_target / (1 << 16)


def test_the_first_notification_halves_the_rate() -> None:
    point = ReactionPoint(PAPER, 0)
    assert rate(point) == LINE
    point.notified(0)
    assert (rate(point), target(point)) == (LINE / 2, LINE)


def test_a_notification_lowers_by_half_of_alpha_and_raises_alpha() -> None:
    """Equation 1, with an alpha that has fallen by equation 2 for as long as ten timers."""
    point = ReactionPoint(PAPER, 0)
    point.advance(10 * 55 * US)
    alpha = (1 - G) ** 10
    assert point.alpha / ALPHA_ONE == pytest.approx(alpha, rel=1e-4)
    point.notified(10 * 55 * US)
    assert rate(point) == pytest.approx(LINE * (1 - alpha / 2), rel=1e-4)
    assert point.alpha / ALPHA_ONE == pytest.approx((1 - G) * alpha + G, rel=1e-4)


def test_fast_recovery_goes_half_way_each_round_then_the_target_rises() -> None:
    """Equation 3 for four rounds (max(T, BC) < F = 5), from the fifth on equation 4: R_AI = 40 Mb/s a round."""
    point = ReactionPoint(PAPER, 0)
    point.advance(100 * 55 * US)  # so that the cut is small, and the target has room
    for _ in range(4):
        point.notified(0)
    began, goal = rate(point), target(point)
    expected = began
    for number in range(1, 12):
        if number >= 5:
            goal += 5
        expected = (expected + goal) / 2
        point.advance(number * 55 * US)
        assert rate(point) == pytest.approx(expected, rel=1e-5)
        assert target(point) == pytest.approx(goal, rel=1e-5)


def test_the_byte_counter_counts_rounds_too_and_both_together_hurry() -> None:
    point = ReactionPoint(PAPER, 0)
    for _ in range(8):
        point.notified(0)
    for _ in range(5):
        point.sent(10_000_000)
    raised = target(point)
    point.sent(9_999_999)
    assert target(point) == raised
    point.sent(1)
    assert target(point) == raised + 5
    point.advance(5 * 55 * US)
    slow = target(point)
    assert slow == raised + 5 + 5 * 5
    point.advance(6 * 55 * US)  # min(T, BC) is 6 now, above F
    assert target(point) == slow + 50


def test_bounds() -> None:
    point = ReactionPoint(PAPER, 0)
    for _ in range(100):
        point.notified(0)
    assert rate(point) == PAPER.least_rate
    assert point.alpha <= ALPHA_ONE
    point.advance(10_000_000 * US)
    assert point.control.recovered
    assert rate(point) <= LINE
    assert point.alpha >= 0


@given(
    cuts=st.lists(st.integers(0, 400), min_size=1, max_size=8),
    looks=st.lists(st.integers(0, 3_000), max_size=20),
)
def test_it_does_not_matter_how_often_one_looks(cuts: list[int], looks: list[int]) -> None:
    seldom, often = ReactionPoint(PAPER, 0), ReactionPoint(PAPER, 0)
    now = 0
    for cut in cuts:
        now += cut * US
        for look in sorted(looks):
            if now - cut * US + look * US < now:
                often.advance(now - cut * US + look * US)
        seldom.notified(now)
        often.notified(now)
        assert seldom.state == often.state


@pytest.mark.parametrize("flows", [2, 4, 8, pytest.param(16, marks=pytest.mark.slow)])
def test_flows_converge_to_fair_shares(flows: int) -> None:
    """The paper's section 5: flows that start apart at one link of 40 Gb/s that marks by its table 14 share it.

    The link is a queue of bytes, looked at each 50 us, which is also how often a flow is notified at most.
    """
    rng = random.Random(1)
    points = [ReactionPoint(PAPER, 0) for _ in range(flows)]
    for number, point in enumerate(points):
        for _ in range(4 * (number % 2)):
            point.notified(0)
    assert jain(points) < 0.75
    queue = 0.0
    fair, used, queued = [], [], []
    windows = CNP_NS / WINDOW_NS
    for step in range(2_000):
        for point in points:
            point.advance(step * CNP_NS)
            point.sent(int(rate(point) * windows))
        queue = max(0.0, queue + (sum(map(rate, points)) - LINE) * windows)
        marked = 1.0 if queue >= KMAX else max(0.0, PMAX * (queue - KMIN) / (KMAX - KMIN))
        for point in points:
            if rng.random() < 1 - (1 - marked) ** (rate(point) * windows / 1_024):
                point.notified(step * CNP_NS)
        if step >= 500:
            fair.append(jain(points))
            used.append(sum(map(rate, points)) / LINE)
            queued.append(queue)
    assert mean(fair) > 0.95
    assert 0.93 < mean(used) <= 1.01
    assert mean(queued) < KMAX


def jain(points: list[ReactionPoint]) -> float:
    """Jain's index of fairness: 1 where all are alike."""
    rates = list(map(rate, points))
    return sum(rates) ** 2 / (len(rates) * sum(each**2 for each in rates))


@given(cnps=st.integers(1, 6), size=st.integers(64, 4_160), steps=st.lists(st.integers(0, 50_000), max_size=30))
def test_a_flow_keeps_to_the_rate(cnps: int, size: int, steps: list[int]) -> None:
    flow, words = controlled(CongestionSettings("dcqcn", dcqcn=PAPER), packet=size)
    for _ in range(cnps):
        flow.notified(0)
    now = sent = 0
    brought = 0.0
    for step in steps:
        now += step
        flow.catch_up(now)
        if not words.paced:
            return
        packets = flow.pace.allowance(now, size)
        brought += step * words.pace_rate / (1 << 20)  # rates only rise here
        flow.sent(packets * size)
        sent += packets * size
        assert sent <= BURST_PACKETS * size + brought + 1


def test_a_flow_that_has_recovered_is_paced_no_more() -> None:
    flow, words = controlled(CongestionSettings("dcqcn", dcqcn=PAPER), packet=1_000)
    flow.notified(0)
    assert words.paced == 1
    assert flow.pace.allowance(0, 1_000) == BURST_PACKETS
    flow.sent(BURST_PACKETS * 1_000)
    assert flow.pace.allowance(1, 1_000) == 0
    assert 1 < flow.pace.ready_ns(1_000) < 2_000
    flow.catch_up(1_000_000_000)
    assert words.paced == 0


def test_words_that_a_program_wrote_cost_no_time() -> None:
    """A program that runs the engine itself may write anything there."""
    flow, words = controlled(CongestionSettings("dcqcn", dcqcn=PAPER))
    most = (1 << 64) - 1
    words.dcqcn_rate = words.dcqcn_target = words.dcqcn_alpha = most
    words.dcqcn_counted = most - 4_096
    flow.notified(1 << 60)
    flow.sent(4_000)
    flow.catch_up(1 << 61)
    assert words.dcqcn_rate <= LINE << 16
    assert words.dcqcn_alpha <= ALPHA_ONE


@pytest.mark.parametrize("change", [{"timer_ns": 0}, {"line_rate": 1, "least_rate": 2}])
def test_settings_that_cannot_be(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="dcqcn"):
        DcqcnSettings(**change)
