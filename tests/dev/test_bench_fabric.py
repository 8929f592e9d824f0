"""The fabric's bench: a short run has each figure."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("bench_fabric")


@pytest.mark.slow
def test_a_short_run_has_every_figure(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    status = bench.main(["--hosts", "3", "--bytes", "4096", "--long", "65536", "--many", "80", "--json"])
    said = json.loads(capsys.readouterr().out)
    rows = said["rows"]
    memory, packets, dcqcn, at_work, pfc, short, swift, *many = rows
    assert status == any(row["verdict"] == "MISSED" for row in rows)
    assert said["more"][memory["what"]]["nic_bytes"] > 0
    assert packets["best"] > 0
    assert said["more"][packets["what"]]["events_s"] > packets["best"]
    assert len(said["figures"]["dcqcn"]) == 5
    assert dcqcn["ratio_best"] > 0
    assert said["more"][at_work["what"]]["cnps"] > 0
    assert [row["unit"] for row in many] == ["GB", "s", "ms", "bytes", "packets/s"]
    assert all(row["best"] > 0 for row in many)
    assert pfc["best"] == 0
    assert 1 < short["best"] <= 2
    assert said["more"][pfc["what"]]["pauses"] > 0
    assert said["more"][swift["what"]]["acks"] > 0
