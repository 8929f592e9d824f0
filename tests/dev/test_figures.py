"""The figures of the README and of the page on others are those of docs/figures.json, and come from nowhere else."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("bench_figures")


def test_the_pages_say_what_was_measured(figures: ModuleType) -> None:
    document = json.loads(figures.FIGURES.read_text(encoding="utf-8"))
    for page in (figures.README, figures.COMPARISON):
        text = page.read_text(encoding="utf-8")
        assert text == figures.page_with(text, document), f"{page.name}: ./dev bench figures --write"


def test_every_row_is_measured_by_bench_rc(figures: ModuleType) -> None:
    rc = importlib.import_module("bench_rc")
    known = rc.harness.figures_for(rc.ROWS)
    assert {name for row in figures.ROWS for name in (row.figure, row.raw, row.ucx) if name} <= known


def test_a_page_without_marks_is_an_error(figures: ModuleType) -> None:
    with pytest.raises(ValueError, match="no <!-- figures"):
        figures.page_with("no table", {"measured": {}})


def test_what_was_not_measured_is_said(figures: ModuleType) -> None:
    table = figures.full_table({"engine": {"write 4096": 2.345, "write latency": 12.6, "sends": 0.123}, "plain": {}})
    first = re.split(r" *\| *", table.splitlines()[2])[1:-1]
    assert first == ["WRITE of 1 MiB", "2.3 GB/s", "not measured", "not measured", ""]
    assert "| 13 us |" in table
    assert "0.12 M/s" in table


@pytest.mark.parametrize(
    ("value", "text"), [(0.00431, "0.0043"), (0.5, "0.5"), (0.987, "0.99"), (1.26, "1.3"), (9.97, "10.0"), (12.6, "13")]
)
def test_small_figures_keep_two_digits(figures: ModuleType, value: float, text: str) -> None:
    assert figures.shown({"sends": value}, "sends", "M/s") == f"{text} M/s"
