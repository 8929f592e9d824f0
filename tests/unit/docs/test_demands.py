"""What the documents demand: no clause without a row, no row without a test, no citation of a clause without a row."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "documents" / "demands.toml").read_text(encoding="utf-8")
GOOD = """
["000"]
"5.1.1" = [["says", "unit/rings/test_ring.py::test_next_index_wraps"]]
["001"]
["002"]
["003"]
["004"]
[nothing]
"000 5.1" = "a heading"
"""
PAGES = {"000 5.1", "000 5.1.1"}


@pytest.fixture
def gen(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(DOCS))
    import gen_demands as module

    return SimpleNamespace(**vars(module))


@pytest.mark.slow
def test_no_clause_is_without_a_row_and_no_row_without_its_tests(gen: SimpleNamespace) -> None:
    demands, nothing = gen.read(TEXT)
    assert gen.faults(demands, nothing, gen.clauses(), gen.cited()) == []
    assert len(gen.clauses()) >= 57 + 7 + 46 + 6 + 8


@pytest.mark.parametrize(
    ("old", "new", "citations", "fault"),
    [
        ("5.1.1", "5.1.2", (), "000 5.1.1 has no row"),
        ("next_index_wraps", "nothing", (), "test_nothing is named and does not exist"),
        (', "unit/rings/test_ring.py::test_next_index_wraps"', "", (), "has a row without a test"),
        ("_wraps", "_wraps[no_such_case]", (), "no_such_case is nothing in its file"),
        ('"000 5.1" ', '"000 5.1.1" ', (), "000 5.1.1 has rows and is said to demand nothing"),
        ("", "", ("000 5.2",), "test_x.py cites 000 5.2, which has no row"),
    ],
)
def test_each_fault_is_found(gen: SimpleNamespace, old: str, new: str, citations: tuple[str, ...], fault: str) -> None:
    demands, nothing = gen.read(GOOD.replace(old, new, 1) if old else GOOD)
    found = gen.faults(demands, nothing, PAGES, {(clause, "test_x.py") for clause in citations})
    assert any(fault in line for line in found), found


def test_a_good_file_has_none_and_its_headings_may_be_cited(gen: SimpleNamespace) -> None:
    demands, nothing = gen.read(GOOD)
    assert gen.faults(demands, nothing, PAGES, {("000 5.1", "test_x.py"), ("000 5.1.1", "test_y.py")}) == []


def test_the_table_has_every_demand_with_its_clause_and_tests(gen: SimpleNamespace) -> None:
    demands, _ = gen.read(TEXT)
    lines = gen.table(demands).splitlines()
    assert sum(line.startswith("| ") for line in lines) == len(demands) + 5
    assert "| [5.1.1](000.md#d000-5-1-1) | Software writes 64-byte descriptors" in gen.table(demands)
    index = (DOCS / "documents" / "index.md").read_text(encoding="utf-8")
    assert "{include} ../layouts/demands-table.md" in index
