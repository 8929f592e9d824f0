"""The report: every form says of every test what came out."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from rnic.conform import report
from rnic.conform.runner import DEVIATION, FAIL, NOT_APPLICABLE, PASS, Result
from rnic.conform.script import scripts

CHOSEN = [script for script in scripts() if script.name in ("icrc", "gap", "marked", "send-only")]
VERDICTS = (PASS, FAIL, DEVIATION, NOT_APPLICABLE)
RESULTS = [
    Result(script, verdict, "" if verdict == PASS else f"<{verdict}> because", ["1 ms > X"])
    for script, verdict in zip(sorted(CHOSEN, key=lambda s: s.name), VERDICTS, strict=True)
]


def test_text_goes_by_clause() -> None:
    text = report.as_text(RESULTS)
    clauses = [line for line in text.splitlines() if not line.startswith((" ", "deviation", "1 "))]
    assert clauses == ["A17, 17.9.3", "IBA 9.4.1", "IBA 9.7.5.2"]
    assert "  FAIL     icrc" in text
    assert "1 ms > X" in text
    assert text.splitlines()[-1] == "1 pass, 1 fail, 1 deviation, 1 not applicable"
    assert "deviation: <deviation> because (marked)" in text


def test_json() -> None:
    made = json.loads(report.as_json(RESULTS, "title", "a card", "maker", 1024, "2026-11-30T10:00:00+00:00"))
    assert made["peer"] == {"name": "a card", "maker": "maker", "mtu": 1024}
    assert made["counts"] == {PASS: 1, FAIL: 1, DEVIATION: 1, NOT_APPLICABLE: 1}
    assert made["results"][1]["clause"] == "A17, 17.9.3"
    assert made["results"][1]["script"][0].startswith("> WRITE_ONLY")


def test_junit() -> None:
    suite = ElementTree.fromstring(report.as_junit(RESULTS, "title"))
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "4", "failures": "1", "skipped": "1",
    }  # fmt: skip
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "<fail> because"
    assert "1 ms > X" in (failure.text or "")


def test_html_escapes() -> None:
    page = report.as_html(RESULTS, "a & b")
    assert "<h1>a &amp; b</h1>" in page
    assert "&lt;fail&gt; because" in page
    assert page.count("<details>") == 8
