"""What all benches are made of: options, rounds in turn, ratios and verdicts, the table, other trees."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHES = sorted(path.stem for path in (ROOT / "bench").glob("bench_*.py"))


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("harness")


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_has_help_and_refuses_other_options_in_one_line(
    harness: ModuleType, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "bench_gateware":
        pytest.importorskip("amaranth", reason="Amaranth is not installed")
    main = importlib.import_module(name).main
    short = name.removeprefix("bench_")
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert said.startswith(f"usage: ./dev bench {short} [-h]")
    assert "``" not in said
    with pytest.raises(SystemExit) as ended:
        main(["--no-such-option"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error == (
        f"bench {short}: unrecognized arguments: --no-such-option; ./dev bench {short} --help has the options\n"
    )


@pytest.mark.slow
def test_dev_lists_the_benches_in_a_line_each() -> None:
    said = subprocess.run(
        [sys.executable, ROOT / "dev", "bench", "--help"], capture_output=True, text=True, check=True
    ).stdout
    rows = said.splitlines()[2:]
    assert [row.split()[0] for row in rows] == [name.removeprefix("bench_") for name in BENCHES]
    assert all(len(row.split()) > 5 for row in rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", "0"], "argument --rounds: 0 is not a whole number of 1 or more"),
        (["--rounds", "x"], "argument --rounds: x is not a whole number of 1 or more"),
        (["--only", "z"], "--only z: no row's name contains this; the rows are: read; write"),
    ],
)
def test_a_wrong_option_is_one_line(
    harness: ModuleType, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = harness.Parser("some", "Text.", rounds=3, rows=["read", "write"])
    with pytest.raises(SystemExit) as ended:
        parser.read(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"bench some: {said}; ./dev bench some --help has the options\n"


def test_a_short_run_has_one_round_unless_told_otherwise(harness: ModuleType) -> None:
    parser = harness.Parser("some", "Text.", rounds=3, short="few")
    said = [parser.read(words).rounds for words in ([], ["--short"], ["--short", "--rounds", "2"], ["--rounds", "5"])]
    assert said == [3, 1, 2, 5]


def test_figures_are_taken_in_turn_and_every_other_round_goes_backwards(harness: ModuleType) -> None:
    taken: list[str] = []

    def take(name: str) -> float:
        taken.append(name)
        return float(len(taken))

    takes = [(name, lambda name=name: take(name)) for name in "abc"]
    found, missing = harness.in_turn(takes, 3)
    assert "".join(taken) == "abccbaabc"
    assert found == {"a": [1.0, 6.0, 7.0], "b": [2.0, 5.0, 8.0], "c": [3.0, 4.0, 9.0]}
    assert missing == {}


def test_what_is_left_out_once_is_not_taken_again(harness: ModuleType) -> None:
    asked: list[str] = []

    def absent() -> float:
        asked.append("absent")
        raise harness.LeftOutError("not installed")

    found, missing = harness.in_turn([("absent", absent), ("both", lambda: {"one": 1.0, "two": 2.0})], 2)
    assert asked == ["absent"]
    assert missing == {"absent": "not installed"}
    assert found == {"one": [1.0, 1.0], "two": [2.0, 2.0]}


@pytest.mark.parametrize(
    ("value", "floor", "aim", "less", "verdict"),
    [
        (5.0, None, 1.0, False, ""),
        (1.0, 1.0, None, False, "met"),
        (0.9, 1.0, None, False, "MISSED"),
        (1.1, 1.0, None, True, "MISSED"),
        (2.0, 1.0, 2.0, False, "aim met"),
        (1.9, 1.0, 2.0, False, "floor met"),
        (0.9, 1.0, 2.0, False, "MISSED"),
        (0.5, 1.0, 0.5, True, "aim met"),
        (0.6, 1.0, 0.5, True, "floor met"),
        (0.0, 2.0, 0.0, True, "aim met"),
    ],
)
def test_verdicts(
    harness: ModuleType, value: float, floor: float | None, aim: float | None, less: bool, verdict: str
) -> None:
    assert harness.verdict(value, floor, aim, less) == verdict


def test_the_verdict_is_of_the_best_or_of_the_medians(harness: ModuleType) -> None:
    found = {"a": [1.0, 3.0, 1.0]}
    assert harness.line(harness.Row("a", "a", "", 2.0), found, {})["verdict"] == "met"
    assert harness.line(harness.Row("a", "a", "", 2.0, middle=True), found, {})["verdict"] == "MISSED"


@pytest.mark.parametrize(
    ("found", "missing", "reason"),
    [
        ({"b": [1.0]}, {}, "not asked for"),
        ({"b": [1.0]}, {"a": "not installed"}, "not installed"),
        ({"a": [1.0]}, {"b": "no such program"}, "no such program"),
        ({"a": [1.0], "b": [0.0]}, {}, "nothing to compare with"),
        ({"a": [1.0], "b": [float("inf")]}, {}, "nothing to compare with"),
    ],
)
def test_a_row_without_its_figures_says_why(
    harness: ModuleType, found: dict[str, list[float]], missing: dict[str, str], reason: str
) -> None:
    row = harness.Row("a, to b", "a", "us", 1.0, against=("b",), less=True)
    assert harness.line(row, found, missing)["verdict"] == f"left out: {reason}"


def test_the_table_counts_what_it_missed_and_says_what_was_wrong(
    harness: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [harness.Row(name, name, "M/s", 3.0, 4.0) for name in ("slow", "fast", "broken", "apart")]
    found = {"slow": [1.0, 2.0], "fast": [3.0], "broken": [9.0]}
    given = harness.Parser("some", "Text.", rounds=1, rows=["slow", "fast", "broken", "apart"], json=True).read([])
    assert harness.report(given, rows, found, notes={"fast": "of 7"}, wrong={"broken": "data differs"}) == 1
    head, slow, fast, broken, apart, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["best", "median", "ratio", "median", "floor", "aim"]
    assert slow.split() == ["slow", "2.00", "1.50", "M/s", "≥", "3.00", "4.00", "MISSED"]
    assert fast.endswith("floor met  of 7")
    assert broken.endswith("MISSED  data differs")
    assert apart.endswith("left out: not asked for")
    assert last == "2 of 3 floors missed"


def test_json_is_printed_or_written(harness: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = harness.Parser("some", "Text.", json=True)
    rows = [harness.Row("a", "a", "us", less=True), harness.Row("b", "b", "us", less=True)]
    found = {"a": [2.0, 1.0], "b": [3.0]}
    assert harness.report(parser.read(["--json"]), rows, found, engine=True) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["engine"], printed["figures"]) == (True, found)
    assert [row["best"] for row in printed["rows"]] == [1.0, 3.0]
    harness.report(parser.read(["--json", str(tmp_path / "figures.json")]), rows, found, engine=True)
    assert json.loads((tmp_path / "figures.json").read_text()) == printed
    assert "median" in capsys.readouterr().out


def test_a_row_is_put_beside_the_same_of_another_tree(harness: ModuleType) -> None:
    (row,) = harness.beside([harness.Row("rate", "rate", "M/s", 1.0, 2.0)])
    line = harness.line(row, {"rate": [3.0], "before: rate": [2.0]}, {})
    assert (line["what"], line["ratio_best"], line["verdict"]) == ("rate, to before", 1.5, "")


def test_a_tree_is_taken_as_it_is_and_nothing_without_one(harness: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "old" / "src" / "rnic").mkdir(parents=True)
    with harness.tree_of(str(tmp_path / "old")) as tree:
        assert tree == tmp_path / "old"
    assert (tmp_path / "old").is_dir()
    with harness.tree_of(None) as tree:
        assert tree is None
    with pytest.raises(SystemExit, match="--before no-such-commit"), harness.tree_of("no-such-commit"):
        pass


@pytest.mark.slow
def test_a_function_is_called_in_another_tree(harness: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "src" / "rnic"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "told.py").write_text("import os\ndef told(word): return [word, os.environ['RNIC_TOLD']]\n")
    assert harness.call_in(tmp_path, "rnic.told.told", "it", env={"RNIC_TOLD": "so"}) == ["it", "so"]
    with pytest.raises(harness.LeftOutError, match="does not run: KeyError: 'RNIC_TOLD'"):
        harness.call_in(tmp_path, "rnic.told.told", "it")


@pytest.mark.slow
def test_a_bench_ends_in_one_line(harness: ModuleType) -> None:
    code = "import harness, sys\nsys.argv[0] = 'bench_some.py'\ndef main(words):\n    {}\nharness.run(main)\n"

    def ended(body: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", code.format(body)], env={**os.environ, "PYTHONPATH": str(ROOT / "bench")},
            stdout=write, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stderr

    read, write = os.pipe()
    os.close(read)
    try:
        assert ended("raise harness.LeftOutError('no guest')") == (77, "bench some: LEFT OUT: no guest\n")
        assert ended("print('to nobody')") == (1, "")
        assert ended("raise KeyboardInterrupt") == (130, "")
        assert ended("return None") == (0, "")
    finally:
        os.close(write)
