"""The pages on faults: the pytest examples under pytest, and every rule and event in the tables of the grammar."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.link import fault_script
from rnic.link.fault_events import EVENTS, usage
from rnic.link.fault_script import parse_script
from rnic.link.verbs_faults import parse_verbs_rules
from rnic.spec.verbs_faults import FAULTY_VERBS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "fault.md").read_text(encoding="utf-8")
GRAMMAR = (DOCS / "fault-grammar.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_pytest_examples_pass(tmp_path: Path) -> None:
    found = re.findall(r"<!-- example: run by pytest -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == 2
    for number, example in enumerate(found):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout


def test_every_event_stands_in_the_table_with_its_values() -> None:
    said = set(re.findall(r"`([a-z-]+(?: \[?[A-Z]+\]?)*)`", GRAMMAR))
    assert {f"{name} {usage(name)}".rstrip() for name in EVENTS} <= said


def test_the_scripts_are_some() -> None:
    scripts = [parse_script(json.loads(script)) for script in re.findall(r"```json\n(.*?)```", GRAMMAR, re.DOTALL)]
    assert [(len(rules), len(timed)) for rules, timed in scripts] == [(3, 0), (0, 1), (1, 2)]
    verbs = [parse_verbs_rules(json.loads(script)) for script in re.findall(r"```json\n(.*?)```", GRAMMAR, re.DOTALL)]
    assert [len(rules) for rules in verbs] == [0, 6, 0]


def test_every_key_and_action_of_rules_stands_in_a_table() -> None:
    section = GRAMMAR.partition("## Rules for packets")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    defaults = {key for keys in fault_script.ACTIONS.values() for key in keys}
    assert {*fault_script.MATCH_KEYS, *fault_script.ACTIONS, *defaults} <= named
    assert {*fault_script.RULE_KEYS} - {"match", "action"} <= named


def test_every_verb_stands_in_a_table_with_its_keys() -> None:
    section = GRAMMAR.partition("## Rules for verbs")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    for name, verb in FAULTY_VERBS.items():
        row = next(row for row in rows if f"`{name}`" in row)
        assert {*verb.match} <= set(re.findall(r"`(\w+)`", row)), name
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"fail", "status", "late", "limit", "errno", "delay", "entries"} <= named
