"""The rows of 002 and 003 name tests that exist; and it is said where they do not."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rnic.context import messages as m
from rnic.context.machines import MACHINES

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


@pytest.fixture
def gen(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    for name in ("rules", "ctxmgt_rows", "gen_conformance"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("gen_ctxmgt", DOCS / "gen_ctxmgt.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_has_a_test_that_exists(gen: ModuleType) -> None:
    assert gen.faults() == []
    rows = [row for _, part in gen.PARTS for row in part]
    assert len(rows) > 300
    assert all(row.tests and row.text for row in rows)


def test_no_section_is_missing(gen: ModuleType) -> None:
    """Every section of chapters 2 to 5 of 002 that has a table, an interface or a machine."""
    sections = {part for _, rows in gen.PARTS for row in rows for part in row.section.split(", ")}
    chapters = "2.1 2.2 3.1 3.2 3.3 4.1 4.2.1 4.2.2 4.2.3 4.3 4.4 5.1.1 5.1.2 5.1.3 5.1.4 5.2.1 5.2.2 5.3.1 5.3.2 5.3.3"
    chapters += " 5.3.3.1 5.3.3.2 5.3.3.3 5.3.4 5.4.1 5.4.2 5.4.3 5.4.4 5.5.2 5.5.3 5.6.2 5.6.3 003"
    assert sections == set(chapters.split())
    text = " ".join(row.text for _, rows in gen.PARTS for row in rows)
    assert all(f"`{row.name}`" in text for row in m.REQUESTS)
    assert sum(map(len, MACHINES.values())) == sum(
        len(rows) for title, rows in gen.PARTS if title.startswith("State machines")
    )


def test_what_is_missing_is_named(gen: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = gen.Row("5.1.2", "x", "context/nowhere.py", ("tests/unit/context/test_messages.py::test_nothing",))
    monkeypatch.setattr(gen, "PARTS", (("t", (wrong,)),))
    monkeypatch.setattr(gen, "MESSAGES", gen.MESSAGES[1:])
    assert gen.faults() == [
        "tests/unit/context/test_messages.py::test_nothing is named by a row and does not exist",
        "src/rnic/context/nowhere.py does not exist",
        "CEU request header is in no row",
    ]


@pytest.mark.slow
def test_the_named_cases_are_collected(gen: ModuleType) -> None:
    """With their parameters, as pytest names them."""
    named = {test for _, rows in gen.PARTS for row in rows for test in row.tests}
    files = sorted({test.split("::")[0] for test in named})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    collected = set(shown.splitlines()) | {re.sub(r"\[.*", "", line) for line in shown.splitlines()}
    assert named - collected == set()


def test_the_page(gen: ModuleType, tmp_path: Path) -> None:
    gen.write(tmp_path / "rows.md")
    lines = (tmp_path / "rows.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|") and not line.startswith("|---")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in table)
    assert sum(line.startswith("### ") for line in lines) == len(gen.PARTS)
