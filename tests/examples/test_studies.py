"""The studies of examples/studies.py in their short form, within the tolerances that docs/studies.md names."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
STUDIES = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "studies.py"))["STUDIES"]


def rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = STUDIES[name][0](True)[0]
    return found


def test_dcqcn_is_fair_and_fills_the_link() -> None:
    two, eight, joined = rows("fairness")
    for row in (two, eight):
        assert row["jain"] > 0.97
        assert row["link_used"] > 0.7
        assert row["retransmitted"] == 0
    assert joined["equal_after_ms"] <= 12


def test_dcqcn_keeps_an_incasts_queue_short() -> None:
    none, dcqcn = rows("incast")
    assert dcqcn["queue_p50_kb"] < none["queue_p50_kb"] / 10
    assert dcqcn["queue_p90_kb"] < none["queue_p90_kb"] / 4
    assert dcqcn["link_used"] > 0.7
    assert none["dropped"] == dcqcn["dropped"] == 0


def test_go_back_n_collapses_where_selective_repeat_does_not() -> None:
    found = {(row["recovery"], row["loss"]): row for row in rows("loss")}
    clean, lossy = found["go-back-n", 0.0]["goodput_gbps"], found["go-back-n", 0.01]["goodput_gbps"]
    assert lossy < 0.6 * clean
    assert found["selective-repeat", 0.0]["goodput_gbps"] == clean
    assert found["selective-repeat", 0.01]["goodput_gbps"] > 0.75 * clean
    for recovery, least, most in (("go-back-n", 0.2, 2.0), ("selective-repeat", 0.01, 0.04)):
        assert least < found[recovery, 0.01]["sent_again"] < most


def test_a_victim_of_pauses_is_freed_by_dcqcn() -> None:
    alone, paused, freed = rows("victim")
    assert alone["of_the_link"] > 0.95
    assert paused["of_the_link"] < 0.4
    assert paused["cable_paused"] > 0.5
    assert freed["of_the_link"] > 2 * paused["of_the_link"]
    assert freed["cable_paused"] < paused["cable_paused"] / 3
    assert all(row["dropped"] == 0 for row in (alone, paused, freed))
