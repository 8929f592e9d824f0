"""The catalogue of reasons: complete, short, and the same in C and in the manual."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from rnic.abi.header import reasons_header
from rnic.spec.reasons import MOST_LINES, REASONS, Reason

DOCS = Path(__file__).parents[3] / "docs"
SAMPLES = {"": "text", "d": 7, "#x": 0xBEEF}


def line(reason: Reason) -> str:
    """Its line with sample values."""
    return reason(**{name: SAMPLES[form] for name, form in reason.values})


@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
def test_each_has_a_line_with_its_values_a_cause_and_a_remedy(reason: Reason) -> None:
    text = line(reason)
    assert "{" not in text
    assert re.fullmatch(r"[A-Z_]+", reason.name)
    assert all(form in ("", "d", "#x") for _, form in reason.values)
    assert len(dict(reason.values)) == len(reason.values), "a value has one form"
    for words in (text, reason.cause, reason.remedy):
        assert 0 < len(words.split()) < 30
        assert "\n" not in words
        assert not words.endswith(".")


def test_numbers_tell_kinds_apart() -> None:
    assert [reason.number for reason in REASONS.values()] == list(range(1, len(REASONS) + 1))
    assert [reason.name for reason in REASONS.values()] == list(REASONS)


def test_c_says_the_same() -> None:
    header = reasons_header()
    assert f"#define WHY_LINES {MOST_LINES}u" in header
    for reason in REASONS.values():
        found = re.search(rf'why_{reason.name.lower()}\(.*\n.*\n.*\n.*explain\({reason.number}, verb, "(.*?)"', header)
        assert found, reason.name
        words = [part for part in re.split(r"%(?:s|lld|#llx)", found[1]) if part]
        text = line(reason)
        assert all(part in text for part in words)
        assert len(re.findall("%", found[1])) == reason.text.count("{")


def test_the_manual_lists_each() -> None:
    tables = runpy.run_path(str(DOCS / "gen_errors.py"))["tables"]()
    for reason in REASONS.values():
        assert f"| {reason.cause} | {reason.remedy} |" in tables
    assert "{include} layouts/reasons-table.md" in (DOCS / "errors.md").read_text(encoding="utf-8")
