"""The fabric's bench: verdicts from figures, and that a short run has each of them."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("bench_fabric")


@pytest.mark.parametrize(
    ("value", "verdict"), [(1_000_000, "aim reached"), (999_999, "ok"), (150_000, "ok"), (149_999, "MISSED")]
)
def test_a_rate_has_its_verdict(bench: ModuleType, value: int, verdict: str) -> None:
    assert bench._row("", value, bench.PACKETS_FLOOR, bench.PACKETS_AIM, "")["verdict"] == verdict


@pytest.mark.slow
def test_a_short_run_has_every_figure(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_fabric", "--hosts", "3", "--bytes", "4096", "--long", "65536", "--json"])
    status = bench.main()
    rows = json.loads(capsys.readouterr().out)["rows"]
    memory, packets, dcqcn, at_work = rows
    assert status == any(row["verdict"] == "MISSED" for row in rows)
    assert memory["nic_bytes"] > 0
    assert packets["value"] > 0
    assert packets["events_s"] > packets["value"]
    assert dcqcn["value"] > 0
    assert at_work["cnps"] > 0
