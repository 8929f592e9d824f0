"""The table of rules names tests that exist, and every packet script; and says so where it does not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def gen(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "rules", raising=False)
    spec = importlib.util.spec_from_file_location("gen_conformance", DOCS / "gen_conformance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_script_holds_a_rule_and_every_rule_has_a_test(gen: ModuleType) -> None:
    assert gen.faults() == []
    assert all(rule.tests for rule in gen.RULES)


def test_the_engines_checks_are_all_there(gen: ModuleType) -> None:
    """The rows of 004's table RC_CHK."""
    sources = " ".join(rule.source for rule in gen.RULES)
    for check in ["OPCODE", "Length", "PKEY", "DestQP", "RQ almost full", "WRITE MRT", "CQ", "RX Push Bresp", "PSN"]:
        assert f"004 7.3 {check}" in sources


@pytest.mark.slow
def test_what_is_missing_is_named(gen: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *rest = gen.RULES
    wrong = first._replace(tests=("tests/scripts/test_requester.py::test_nothing", "tests/nowhere.py::test_x"))
    monkeypatch.setattr(gen, "RULES", (wrong, *rest))
    found = gen.faults()
    assert "tests/nowhere.py::test_x holds a rule and does not exist" in found
    assert "tests/scripts/test_requester.py::test_nothing holds a rule and does not exist" in found
    assert "tests/scripts/test_requester.py::test_segmentation holds no rule: name it in docs/rules.py" in found


def test_the_page(gen: ModuleType, tmp_path: Path) -> None:
    gen.write(tmp_path / "table.md")
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert len(lines) == 2 + len(gen.RULES)
    assert all(line.count(" | ") == 2 for line in lines if line[2] != "-")
