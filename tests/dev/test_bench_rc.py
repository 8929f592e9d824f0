"""The speed table: its rows and their verdicts, and the yardstick that it builds."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("bench_rc")


def test_every_figure_of_a_row_is_taken(bench: ModuleType) -> None:
    taken = {name for name, _ in bench.figures_of_a_round(Path(), None, True)}
    taken |= {f"{kind} {number}" for kind in ("busy", "alone") for number in (256, 1024)}
    assert taken == bench.harness.figures_for(bench.ROWS)


@pytest.mark.parametrize(
    ("figure", "against", "verdict"),
    [
        ("write latency", ("raw latency", 1.0, 1.6), "aim met"),
        ("write latency", ("raw latency", 1.0, 1.7), "floor met"),
        ("write latency", ("raw latency", 1.0, 2.3), "MISSED"),
        ("write 4096", ("raw 4096", 10.0, 7.3), "aim met"),
        ("write 4096", ("raw 4096", 10.0, 7.1), "floor met"),
        ("write 4096", ("raw 4096", 10.0, 5.9), "MISSED"),
        ("reference short", ("before short", 50.0, 60.0), "aim met"),
        ("reference short", ("before short", 50.0, 90.0), "floor met"),
        ("reference short", ("before short", 50.0, 110.0), "MISSED"),
        ("busy 256", ("alone 256", 1.0, 1.21), "MISSED"),
        ("busy 256", ("alone 256", 1.0, 1.1), "floor met"),
    ],
)
def test_a_ratio_is_judged_by_the_best_of_the_rounds(
    bench: ModuleType, figure: str, against: tuple[str, float, float], verdict: str
) -> None:
    other, theirs, ours = against
    row = next(row for row in bench.ROWS if row.figure == figure and other in row.against)
    worse = 3 if row.less else 1 / 3
    found = {figure: [ours * worse, ours, ours * worse], other: [theirs * worse, theirs * worse, theirs]}
    line = bench.harness.line(row, found, {})
    assert line["verdict"] == verdict
    assert line["best"] == ours
    assert line["median"] == pytest.approx(ours * worse)


def test_a_figure_alone_is_judged_by_itself(bench: ModuleType) -> None:
    row = next(row for row in bench.ROWS if row.figure == "batch")
    assert [bench.harness.line(row, {"batch": [value]}, {})["verdict"] for value in (2.9, 3.0, 10.0)] == [
        "MISSED",
        "floor met",
        "aim met",
    ]


def test_the_best_of_the_others_counts(bench: ModuleType) -> None:
    row = next(row for row in bench.ROWS if row.figure == "write 64K")
    found = {"write 64K": [2.0], "ucx 64K": [2.5], "libfabric 64K": [1.0]}
    line = bench.harness.line(row, found, {"zeromq 64K": "pyzmq is not installed"})
    assert (line["ratio_best"], line["verdict"]) == (pytest.approx(0.8), "MISSED")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_the_yardstick_is_built_and_runs(bench: ModuleType, tmp_path: Path) -> None:
    peers = importlib.import_module("peers")
    assert peers.c_program(tmp_path, "raw_udp", "lat", "100") > 0
    assert peers.c_program(tmp_path, "raw_udp", "bw", "4112", "0.5") > 0
    with pytest.raises(peers.LeftOutError, match="usage"):
        peers.c_program(tmp_path, "raw_udp", "nothing")


def test_twins_are_seen_in_a_tree(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "src" / "rnic" / "mem").mkdir(parents=True)
    assert not bench.has_twins(tmp_path)
    (tmp_path / "src/rnic/mem/_order.some-abi.so").touch()
    assert bench.has_twins(tmp_path)
