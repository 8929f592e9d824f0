from __future__ import annotations

from rnic.trace import Counters


def test_a_name_never_bumped_reads_zero_and_takes_no_space() -> None:
    counters = Counters()
    assert counters["drop_bad_icrc"] == 0
    assert dict(counters) == {}


def test_bump() -> None:
    counters = Counters()
    counters.bump("acks")
    counters.bump("acks", 3)
    counters.bump("nothing", 0)
    assert counters == {"acks": 4, "nothing": 0}


def test_snapshot_is_an_ordered_copy() -> None:
    counters = Counters()
    counters.bump("b")
    counters.bump("a", 2)
    snapshot = counters.snapshot()
    counters.bump("a")
    assert list(snapshot.items()) == [("a", 2), ("b", 1)]
    assert type(snapshot) is dict
