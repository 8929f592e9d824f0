"""The page on hacking says which files a new thing changes: held against one that exists of each kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rnic
from rnic.engine import header

PACKAGE = Path(rnic.__file__).parent
PAGE = (Path(__file__).parents[3] / "docs" / "hacking.md").read_text(encoding="utf-8")
SECTIONS = {section.split("\n", 1)[0]: section for section in PAGE.split("\n## ")[1:]}
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h")
WRITTEN = [
    path
    for path in PACKAGE.rglob("*")
    if path.suffix in SUFFIXES and path != header.PATH and "testing" not in path.parts
]
"""What people write: not the header that is made from tables, and not the tools for tests."""
EXAMPLES = {
    "A new opcode": (r"SEND_(\w+_)?INV|\w_WITH_INV", 7),
    "A new attribute of a queue pair": ("rnr_nak_timer|RNR_NAK_TIMER", 7),
    "A new register": (r"\b(REG_)?RQ_STRIDE", 2),
    "A new counter": ("ACKS_COALESCED|acks_coalesced", 3),
    "A new command": ("ARM_SRQ", 6),
}
"""Identifiers of the example, and how many files hold one of them. A smaller number is welcome."""


def files_of(section: str) -> list[str]:
    return re.findall(r"^\| `([\w/.]+)` \|", SECTIONS[section], re.MULTILINE)


def holding(pattern: str) -> set[str]:
    """Return the files that hold a word that ends in the pattern."""
    word_end = re.compile(rf"({pattern})\b")
    return {str(path.relative_to(PACKAGE)) for path in WRITTEN if word_end.search(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_files_of_an_example_are_those_of_its_section(kind: str) -> None:
    pattern, count = EXAMPLES[kind]
    found = holding(pattern)
    assert set(files_of(kind)) == found
    assert len(found) == count


def test_a_counter_of_naks_stands_in_its_table_alone() -> None:
    assert holding("rnr_naks_sent|COUNT_RNR_NAKS_SENT") == {"state/counters.py"}


@pytest.mark.parametrize("kind", SECTIONS)
def test_each_section_names_files_and_tests_that_exist(kind: str) -> None:
    files = files_of(kind)
    assert len(set(files)) == len(files) >= 2
    assert [name for name in files if not (PACKAGE / name).exists()] == []
    tests = re.findall(r"`(tests/[\w/.]+)`", SECTIONS[kind])
    assert tests or "Tests: the scripts" in SECTIONS[kind]
    assert [name for name in tests if not (PACKAGE.parents[1] / name).exists()] == []
