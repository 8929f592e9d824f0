"""Reports that anybody may send in: what the reader takes, and that hostile ones are one line."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rnic.conform import report
from rnic.conform.report_file import (
    FIELDS,
    MAX_BYTES,
    MAX_RESULTS,
    PEER_FIELDS,
    RESULT_FIELDS,
    ReportError,
    Verdict,
    read_report,
    report_of,
)
from rnic.conform.runner import DEVIATION, PASS, Result
from rnic.conform.script import scripts

PAGE = Path(__file__).resolve().parents[3] / "docs" / "conform.md"
CHOSEN = [script for script in scripts() if script.name in ("gap", "marked")]
RESULTS = [Result(CHOSEN[0], PASS, seconds=0.5), Result(CHOSEN[1], DEVIATION, "it sends no CNPs", ["1 ms > X"])]


def made() -> dict[str, Any]:
    text = report.as_json(RESULTS, "title", "card, firmware 7", "maker", 4096, "2026-11-30T10:00:00+00:00")
    value: dict[str, Any] = json.loads(text)
    return value


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(made() | {"later": 1}))
    found = read_report(path)
    assert (found.name, found.maker) == ("card, firmware 7", "maker")
    script = CHOSEN[1]
    assert found.results[1] == Verdict(
        script.name, script.suite, script.clause, script.says, DEVIATION, "it sends no CNPs"
    )


def test_what_is_written_is_never_too_long_to_be_read() -> None:
    long = Result(CHOSEN[0], PASS, "d" * 5_000)
    value = json.loads(report.as_json([long], "t" * 5_000, "n" * 5_000, "m" * 5_000, 4096, "2026-11-30T10:00:00"))
    found = report_of(value)
    assert (found.name, found.maker, found.results[0].detail) == ("n" * 1_000, "m" * 1_000, "d" * 1_000)


def test_what_is_written_has_every_field_and_no_other() -> None:
    value = made()
    assert value.keys() == FIELDS.keys()
    assert value["peer"].keys() == PEER_FIELDS.keys()
    assert {name for result in value["results"] for name in result} == RESULT_FIELDS.keys()


def test_the_page_describes_every_field() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    described = [f"peer.{name}" for name in PEER_FIELDS] + [f"results.{name}" for name in RESULT_FIELDS]
    assert [name for name, _, _ in rows] == [*FIELDS, *described]
    entries = [*FIELDS.values(), *PEER_FIELDS.values(), *RESULT_FIELDS.values()]
    assert [needed == "yes" for _, needed, _ in rows] == [entry.needed for entry in entries]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda value: value.pop("peer"), "peer is missing: the peer"),
        (lambda value: value.update(format="x"), "format is 'x': give rnic conform report"),
        (lambda value: value.update(version=2), "version is 2: give 1"),
        (lambda value: value.update(version=True), "version is True: give a whole number"),
        (lambda value: value.update(results=[]), "results has 0 entries: 1 to 10000 are right"),
        (lambda value: value.update(results={}), "results is an object: give a list"),
        (lambda value: value.update(results=[7]), r"results\[0\] is 7: give an object"),
        (lambda value: value["results"][1].update(verdict="maybe"), r"results\[1\].verdict is 'maybe': give pass or"),
        (lambda value: value["results"][1].update(suite=None), r"results\[1\].suite is None: give a text"),
        (lambda value: value["results"].append(value["results"][0]), r"results\[2\].test is 'gap' for the second time"),
        (lambda value: value["peer"].update(name="x" * 1001), "peer.name has 1001 characters: at most 1000"),
        (lambda value: value.update(results=value["results"] * MAX_RESULTS), "results has 20000 entries"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(spoil: Callable[[dict[str, Any]], object], words: str) -> None:
    value = made()
    spoil(value)
    with pytest.raises(ValueError, match=words) as caught:
        report_of(value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"version": ' + b"9" * 10_000 + b"}",
        b'{"version": NaN}',
        b"[]",
        b'"\\ud800"',
        b" " * (MAX_BYTES + 1),
    ],
    ids=["empty", "no text", "deep", "long number", "NaN", "list", "half a character", "large"],
)
def test_hostile_files_are_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(data)
    with pytest.raises(ReportError, match="is not a report: ") as caught:
        read_report(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be read: No such file"):
        read_report(tmp_path / "none.json")


def shown(value: object) -> list[str]:
    """What is said of a value: why it is refused, or the texts of its report."""
    try:
        found = report_of(value)
    except ValueError as error:
        return ["refused", str(error)]
    texts = [text for result in found.results for text in (result.test, result.says, result.detail)]
    return [found.name, found.maker, found.made, found.rnic, *texts]


def test_any_value_in_any_place_is_taken_or_refused() -> None:
    """Control characters never come through: a terminal or a page shows what is read."""
    rng = random.Random(1)
    values = [None, True, -1, 1.5, "", "x\x1b[2J\n", "\u202e", [], {}, [None], {"test": 1}, "\ud800"]
    refused = 0
    text = json.dumps(made())
    for _ in range(250):
        value = json.loads(text)
        place: Any = rng.choice([value, value["peer"], *value["results"]])
        place[rng.choice([*FIELDS, *PEER_FIELDS, *RESULT_FIELDS])] = rng.choice(values)
        said = shown(value)
        refused += said[0] == "refused"
        assert all(text.isprintable() for text in said)
    assert 75 < refused < 225
