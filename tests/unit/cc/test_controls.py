"""Swift, TIMELY and HPCC against their algorithms, step by step; how a control's answers reach the record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rnic.cc.control import CONTROL_OTHER, Ack, Control, Flow, Hop
from rnic.cc.controlled import Arrival, Controlled
from rnic.cc.find import find, in_python, names
from rnic.cc.hpcc import Hpcc
from rnic.cc.settings import CongestionSettings
from rnic.cc.swift import Swift
from rnic.cc.timely import Timely
from rnic.spec.errors import VerbsError
from tests.unit.cc.flows import LINE_RATE, PACKET, Words, ack, controlled

HERE = "tests.unit.cc.test_controls"


class Fraction(Control):
    """Half a packet."""

    allowance = 0.5

    def on_ack(self, flow: Flow, ack: Ack) -> None:
        """Keep to it."""


class Slow(Control):
    """1 Gb/s, in bursts of one packet; counts what is sent."""

    rate, burst_bytes, sent = 1e9, PACKET, 0

    def on_sent(self, flow: Flow, size: int) -> None:
        self.sent += size


class NoControl:
    """Not a control."""


def made(name: str, most: int = 256, **more: Any) -> tuple[Controlled, Words, Any]:
    flow, words = controlled(CongestionSettings(name, parameters=more), most=most)
    return flow, words, flow.control


def test_swift_rises_by_a_packet_a_round_trip_below_its_target() -> None:
    flow, words, swift = made("swift")
    assert isinstance(swift, Swift)
    assert words.control == CONTROL_OTHER
    for at in range(16):
        swift.on_ack(flow, ack(at, 10_000))
    assert swift.allowance == pytest.approx(17, rel=0.01)


def test_swift_falls_by_the_excess_once_a_round_trip_and_by_half_at_most() -> None:
    flow, _, swift = made("swift", range_us=0)
    swift.on_ack(flow, ack(100_000, 50_000))
    assert swift.allowance == pytest.approx(16 * (1 - 0.8 * 25 / 50))
    swift.on_ack(flow, ack(120_000, 50_000))
    assert swift.allowance == pytest.approx(16 * 0.6)
    swift.on_ack(flow, ack(1_000_000, 900_000))
    assert swift.allowance == pytest.approx(16 * 0.6 * 0.5)
    swift.on_loss(flow, 3_000_000)
    assert swift.allowance == pytest.approx(16 * 0.6 * 0.25)


def test_swift_takes_no_account_of_the_remote_host() -> None:
    flow, _, swift = made("swift", range_us=0)
    swift.on_ack(flow, ack(100_000, 50_000, remote_ns=30_000, hops=1))
    assert swift.allowance > 16


def test_swifts_target_rises_with_hops_and_small_windows() -> None:
    _, _, swift = made("swift")
    swift.allowance = 100.0
    assert (swift.target_ns(1), swift.target_ns(3)) == (25_000, 27_000)
    swift.allowance = 0.1
    assert swift.target_ns(1) == pytest.approx(75_000)


def test_timely_follows_its_four_cases() -> None:
    flow, words, timely = made("timely")
    assert isinstance(timely, Timely)
    assert words.paced == 1
    timely.rate = 10e9
    full = {"packets": 16}
    timely.on_ack(flow, ack(0, 40_000, **full))  # below T_low
    assert timely.rate == pytest.approx(10.01e9)
    timely.on_ack(flow, ack(1, 1_000_000, **full))  # above T_high
    assert timely.rate == pytest.approx(10.01e9 * (1 - 0.8 * 0.5))
    timely.difference, timely.rtt_ns, timely.rate = 0.0, 100_000, 10e9
    timely.on_ack(flow, ack(2, 110_000, **full))  # it rises
    assert timely.rate == pytest.approx(10e9 * (1 - 0.8 * 0.875 * 10 / 20))
    timely.difference, timely.rate = -1.0, 10e9
    for at in range(5):
        timely.on_ack(flow, ack(3 + at, 110_000 - at, **full))
    assert timely.rate == pytest.approx(10e9 + 4 * 10e6 + 5 * 10e6)


def test_timely_steps_once_a_segment() -> None:
    flow, _, timely = made("timely")
    timely.rate = 1e9
    for at in range(15):
        timely.on_ack(flow, ack(at, 40_000))
    assert timely.rate == 1e9
    timely.on_ack(flow, ack(16, 40_000))
    assert timely.rate == pytest.approx(1.01e9)


def test_hpcc_takes_the_window_for_the_busiest_link() -> None:
    flow, _, hpcc = made("hpcc", base_rtt_us=10)
    assert isinstance(hpcc, Hpcc)
    bdp = LINE_RATE * 10e-6 / 8
    assert hpcc.allowance == pytest.approx(bdp / PACKET)
    # a second link twice as busy as it can be: line rate, and one more bandwidth-delay product that waits
    first = (Hop(0, 0, 0, LINE_RATE), Hop(0, int(bdp), 0, LINE_RATE))  # type: ignore[arg-type]
    then = (Hop(10_000, 0, 1_000, LINE_RATE), Hop(10_000, int(bdp), int(bdp), LINE_RATE))  # type: ignore[arg-type]
    hpcc.on_ack(flow, ack(0, 20_000, telemetry=first))
    hpcc.on_ack(flow, ack(10_000, 20_000, psn=2, telemetry=then))
    assert hpcc.used == pytest.approx(2)
    assert hpcc.allowance * PACKET == pytest.approx(bdp * 0.95 / 2 + bdp * 0.05 / 100)
    assert hpcc.rate == pytest.approx(hpcc.allowance * PACKET * 8e9 / 10_000)


def test_a_window_below_one_packet_paces() -> None:
    flow, words, _ = made(f"{HERE}:Fraction")
    assert (words.widest, words.window, words.paced) == (1, 1, 1)
    flow.arrival = Arrival(20_000, 1_000, 2, ecn=True, telemetry=())
    flow.acknowledged(1, 0, 50_000)
    assert words.pace_rate == pytest.approx(PACKET / 2 / 20_000 * (1 << 20), rel=0.01)
    assert flow.arrival is None


def test_a_rate_paces_in_its_bursts_and_hears_what_left() -> None:
    flow, words, slow = made(f"{HERE}:Slow")
    assert (words.paced, words.widest) == (1, 256)
    assert words.pace_rate == int(1e9 / 8e9 * (1 << 20))
    assert flow.pace.allowance(10_000_000, PACKET) == 1
    flow.sent(PACKET)
    assert slow.sent == PACKET
    assert flow.pace.allowance(10_000_001, PACKET) == 0


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("reno", "use none, limit, dcqcn"),
        ("no_such_module:Swift", "No module named"),
        (f"{HERE}:Reno", "has no attribute"),
        (f"{HERE}:NoControl", "derive NoControl from rnic.cc.control.Control"),
    ],
)
def test_names_that_are_no_control(name: str, word: str) -> None:
    with pytest.raises(VerbsError, match=word):
        CongestionSettings(name)


def test_settings_that_a_control_does_not_have() -> None:
    with pytest.raises(VerbsError, match="unexpected keyword argument 'taget_us'"):
        made("swift", taget_us=5)


def test_a_package_brings_a_control_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.cc.find.points", lambda: {"half": f"{HERE}:Fraction"})
    find.cache_clear()
    assert find("half") is Fraction
    assert names()[-1] == "half"
    find.cache_clear()


def test_a_module_lies_in_the_folder_that_goes_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "own_of_mine.py").write_text(
        "from rnic.cc.control import Control\n\n\nclass Mine(Control):\n    pass\n"
    )
    assert find(f"{tmp_path}/own_of_mine:Mine").__name__ == "Mine"
    assert in_python(f"{tmp_path}/own_of_mine:Mine")
    assert [in_python(name) for name in ("none", "limit", "dcqcn", "swift")] == [False, False, False, True]
