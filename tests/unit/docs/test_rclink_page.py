"""``docs/rclink.md``: every test that it names exists, what is refused is there, and its figures are the bench's."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from rnic.rclink import RcLinkConfig
from rnic.rclink import registers as r
from rnic.rclink.numbers import REFUSED, TYPE1_UDP_PORT, TYPE2_UDP_PORT
from rnic.spec.syndromes import RNR_TIMER_US

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "rclink.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("bench_rclink")


@pytest.mark.parametrize(("path", "function"), NAMED, ids=lambda one: one.rpartition("/")[2])
def test_named_tests_exist(path: str, function: str) -> None:
    file = ROOT / path if path.startswith("tests/") else ROOT / "tests" / "rclink" / path
    assert re.search(rf"^def {function}\(", file.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_row_of_rules_names_its_test() -> None:
    rules = TEXT.partition("## What it does")[2].partition("## Choices")[0]
    rows = [line for line in rules.splitlines() if line.startswith("| ") and not line.startswith(("| rule", "| what"))]
    assert len(rows) == len(NAMED) == 29


def test_refusals_and_numbers_are_told() -> None:
    refused = TEXT.partition("## What is refused")[2].partition("## Choices")[0]
    for what in REFUSED:
        assert what in refused or what.lower() in refused
    choices = TEXT.partition("## Choices")[2]
    assert f"{TYPE1_UDP_PORT}, where" in choices
    assert f"{TYPE2_UDP_PORT} is TYPE2's" in choices
    config = RcLinkConfig()
    assert config.ack_merge_ns == 4_096
    assert 0.99e6 < config.retry_timer_ns < 1.01e6
    assert f"receive buffer full ({config.rx_packets} packets)" in choices
    assert RNR_TIMER_US[config.rnr_timer] == 10
    ours = [f"{row.offset:X}h" for row in r.REGISTERS if row.source == r.CHOICE]
    assert ours[0] in choices
    assert {"330h", "2050h", "2090h"} <= set(ours)
    assert "300h to 330h, 2050h, 2090h and up" in choices


@pytest.mark.slow
def test_the_table_is_what_the_bench_prints(bench: ModuleType) -> None:
    rows = bench.table()
    assert "\n".join(bench.lines(rows)) in TEXT
    by_loss = {(row.transport, row.loss): row for row in rows}
    assert {row.header_bytes for row in rows} == {54, 58}
    for transport in ("RC Link", "RoCEv2 RC"):
        clean, some, much = (by_loss[transport, loss].goodput for loss in bench.LOSSES)
        assert 0.9 < clean <= 1
        assert clean > some > much


def test_bench_prints_json(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "LOSSES", (0.0,))
    bench.main(["--messages", "3", "--json"])
    assert '"transport": "RC Link"' in capsys.readouterr().out
