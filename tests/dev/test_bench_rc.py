"""The speed table: verdicts from figures, and the yardstick that it builds."""

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


def verdicts(bench: ModuleType, found: dict[str, list[float]], missing: dict[str, str]) -> dict[str, object]:
    return {row.what: bench.line(row, found, missing)["verdict"] for row in bench.ROWS}


def test_every_figure_of_a_row_is_taken(bench: ModuleType) -> None:
    taken = {name for name, _ in bench.figures_of_a_round(None, None, True)}
    taken |= {f"{kind} {number}" for kind in ("busy", "alone") for number in (256, 1024)}
    assert taken == bench.names_for(None)
    assert all(len(row.what) <= 52 for row in bench.ROWS)


@pytest.mark.parametrize(
    ("figure", "against", "verdict"),
    [
        ("write latency", ("raw latency", 1.0, 1.6), "aim reached"),
        ("write latency", ("raw latency", 1.0, 1.7), "ok"),
        ("write latency", ("raw latency", 1.0, 2.3), "MISSED"),
        ("write 4096", ("raw 4096", 10.0, 7.3), "aim reached"),
        ("write 4096", ("raw 4096", 10.0, 7.1), "ok"),
        ("write 4096", ("raw 4096", 10.0, 5.9), "MISSED"),
        ("reference short", ("before short", 50.0, 60.0), "aim reached"),
        ("reference short", ("before short", 50.0, 90.0), "ok"),
        ("reference short", ("before short", 50.0, 110.0), "MISSED"),
        ("busy 256", ("alone 256", 1.0, 1.21), "MISSED"),
        ("busy 256", ("alone 256", 1.0, 1.1), "ok"),
    ],
)
def test_a_ratio_is_judged_by_the_best_of_the_rounds(
    bench: ModuleType, figure: str, against: tuple[str, float, float], verdict: str
) -> None:
    other, theirs, ours = against
    row = next(row for row in bench.ROWS if row.figure == figure and other in row.against)
    worse = 3 if row.less else 1 / 3
    found = {figure: [ours * worse, ours, ours * worse], other: [theirs * worse, theirs * worse, theirs]}
    line = bench.line(row, found, {})
    assert line["verdict"] == verdict
    assert line["best"] == ours
    assert line["median"] == pytest.approx(ours * worse)


def test_a_figure_alone_is_judged_by_itself(bench: ModuleType) -> None:
    row = next(row for row in bench.ROWS if row.figure == "batch")
    assert [bench.line(row, {"batch": [value]}, {})["verdict"] for value in (2.9, 3.0, 10.0)] == [
        "MISSED",
        "ok",
        "aim reached",
    ]


def test_the_best_of_the_others_counts(bench: ModuleType) -> None:
    row = next(row for row in bench.ROWS if row.figure == "write 64K")
    found = {"write 64K": [2.0], "ucx 64K": [2.5], "libfabric 64K": [1.0]}
    line = bench.line(row, found, {"zeromq 64K": "pyzmq is not installed"})
    assert (line["ratio_best"], line["verdict"]) == (pytest.approx(0.8), "MISSED")


def test_what_is_missing_is_left_out_with_the_reason(bench: ModuleType) -> None:
    said = verdicts(bench, {"write latency": [5.0]}, {"ucx latency": "ucx_perftest is not installed"})
    assert said["8-byte WRITE, half round trip, to UCX tcp tag"] == "left out: ucx_perftest is not installed"
    assert said["UCX tcp tag, half round trip of 8 bytes"] == "left out: ucx_perftest is not installed"
    assert said["in-memory loopback, 1 MiB, with ICRC"] == "left out: not asked for"


def test_the_table_counts_what_it_missed(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = {"batch": [1.0, 2.0], "memory": [9.0], "raw 4096": [3.0]}
    bench.show([bench.line(row, found, {}) for row in bench.ROWS if row.figure in found])
    out = capsys.readouterr().out
    assert "1 of 2 floors missed" in out
    assert "MISSED" in out.splitlines()[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_the_yardstick_is_built_and_runs(bench: ModuleType, tmp_path: Path) -> None:
    raw = bench.RawUdp(tmp_path)
    assert raw.missing == ""
    assert raw.run("lat", "100") > 0
    assert raw.run("bw", "4112", "0.5") > 0
    with pytest.raises(bench.LeftOutError, match="usage"):
        raw.run("nothing")


def test_a_tree_is_taken_as_it_is_and_nothing_without_one(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "old" / "src" / "rnic" / "mem").mkdir(parents=True)
    with bench.tree_of(str(tmp_path / "old"), tmp_path) as tree:
        assert tree == tmp_path / "old"
        assert not bench.has_twins(tree)
        (tree / "src/rnic/mem/_order.some-abi.so").touch()
        assert bench.has_twins(tree)
    assert (tmp_path / "old").is_dir()
    with bench.tree_of(None, tmp_path) as tree:
        assert tree is None
    with pytest.raises(SystemExit, match="--before no-such-commit"), bench.tree_of("no-such-commit", tmp_path):
        pass
