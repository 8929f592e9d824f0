"""The bench of calls: a short run counts on each carrier."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.verbs.test_nic_process import needs_engine

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("bench_calls")


@needs_engine
@pytest.mark.slow
def test_a_run_counts_on_each_carrier(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    if not bench.module_of(bench.ROOT).exists():
        pytest.skip("the engine's module was not compiled in this folder")
    assert bench.main(["--rounds", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["left_out"] == {}
    for carrier in bench.CARRIERS:
        # the requester and the responder take part, and each WRITE is acknowledged before the next
        assert said["figures"][f"{carrier}: {bench.HERE}"][0] > 100
        assert said["figures"][f"{carrier}: {bench.POLLS}"][0] >= 2
