"""The page on faults: its pytest example under pytest, and every event in its table."""

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

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "fault.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_pytest_example_passes(tmp_path: Path) -> None:
    found = re.search(r"<!-- example: run by pytest -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    (tmp_path / "test_example.py").write_text(found[1])
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
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


def test_every_event_stands_in_the_table_with_its_values() -> None:
    said = set(re.findall(r"`([a-z-]+(?: \[?[A-Z]+\]?)*)`", PAGE))
    assert {f"{name} {usage(name)}".rstrip() for name in EVENTS} <= said


def test_the_scripts_are_some() -> None:
    scripts = [parse_script(json.loads(script)) for script in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    assert [(len(rules), len(timed)) for rules, timed in scripts] == [(3, 0), (1, 2)]


def test_every_key_and_action_of_rules_stands_in_a_table() -> None:
    section = PAGE.partition("## Rules for packets")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    defaults = {key for keys in fault_script.ACTIONS.values() for key in keys}
    assert {*fault_script.MATCH_KEYS, *fault_script.ACTIONS, *defaults} <= named
    assert {*fault_script.RULE_KEYS} - {"match", "action"} <= named
