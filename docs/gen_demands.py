"""Writes what the five documents demand, each demand with its tests, from ``documents/demands.toml``.

Refuses a clause of the documents' pages without a row, a row whose test is not there, and a citation in a test whose
clause has no row.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gen_conformance import ROOT, tests_in

PAGES = Path(__file__).resolve().parent / "documents"
CLAUSE = re.compile(r"(?<![\w.,-])(00[0-4])(?:'s)?,? (?:§ ?|section |\()?(\d(?:\.\d+)+)")
DOCUMENTS = ("000", "001", "002", "003", "004")


class Demand(NamedTuple):
    """One demand: document, clause, what it says in our words, and its tests (``file::test`` below ``tests``)."""

    document: str
    clause: str
    says: str
    tests: tuple[str, ...]


def read(text: str) -> tuple[list[Demand], dict[str, str]]:
    """Return the demands in the order of the file, and the reasons of the clauses that demand nothing."""
    tables = tomllib.loads(text)
    demands = [
        Demand(document, clause, row[0], tuple(row[1:]))
        for document in DOCUMENTS
        for clause, rows in tables[document].items()
        for row in rows
    ]
    return demands, tables["nothing"]


def clauses() -> set[str]:
    """Return each clause of the pages: numbered ones by label, those of 003, which has no numbers, by their words."""
    found = set()
    for document in DOCUMENTS:
        text = (PAGES / f"{document}.md").read_text(encoding="utf-8")
        labels = re.findall(rf"^\(d{document}-([\d-]+)\)=$", text, re.MULTILINE)
        words = re.findall(r"^(?:## |\*\*)([^.*\n]+)", text, re.MULTILINE) if document == "003" else []
        found |= {f"{document} {label.replace('-', '.')}" for label in labels} | {f"003 {name}" for name in words}
    return found


def cited() -> set[tuple[str, str]]:
    """Yield each clause that a test cites, and the file of the test."""
    return {
        (f"{document} {clause}", path.relative_to(ROOT).as_posix())
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.parent.name != "docs"
        for document, clause in CLAUSE.findall(path.read_text(encoding="utf-8"))
    }


def faults(
    demands: Iterable[Demand], nothing: dict[str, str], pages: set[str], citations: set[tuple[str, str]]
) -> list[str]:
    """Return what is wrong with the demands, a line each."""
    demands = list(demands)
    rows = {f"{demand.document} {demand.clause}" for demand in demands}
    named = {f"tests/{test}" for demand in demands for test in demand.tests}
    files = {ROOT / test.split("::")[0] for test in named}
    existing = {test for path in files if path.exists() for test in tests_in(path)}
    found = [f"{clause} has no row" for clause in sorted(pages - rows - set(nothing))]
    found += [f"{clause} has rows and is said to demand nothing" for clause in sorted(rows & set(nothing))]
    found += [f"{clause} is no clause of the pages" for clause in sorted(rows - pages)]
    found += [f"{demand.document} {demand.clause} has a row without a test" for demand in demands if not demand.tests]
    found += [f"{test} is named and does not exist" for test in sorted(named) if test.split("[")[0] not in existing]
    found += [
        f"{test} is named, and {case} is nothing in its file"
        for test in sorted(named)
        for case in re.findall(r"\[(\w+)\]", test)
        if test.split("[")[0] in existing and case not in (ROOT / test.split("::")[0]).read_text(encoding="utf-8")
    ]
    parts = {clause[:end] for clause in rows for end in (match.start() for match in re.finditer(r"\.", clause))}
    found += [
        f"{file} cites {clause}, which has no row"
        for clause, file in sorted(citations)
        if clause not in rows and clause not in parts
    ]
    return found


def table(demands: Iterable[Demand]) -> str:
    """Return the demands as MyST, a part for each document."""
    lines: list[str] = []
    last = ""
    for demand in demands:
        if demand.document != last:
            last = demand.document
            lines += ["", f"### {last}", "", "| clause | demand | tests |", "|---|---|---|"]
        tests = "<br>".join(f"`{test}`" for test in demand.tests)
        label = f"d{last}-{demand.clause.replace('.', '-')}"
        clause = f"[{demand.clause}]({last}.md#{label})" if demand.clause[0].isdigit() else demand.clause
        lines.append(f"| {clause} | {demand.says} | {tests} |")
    return "\n".join(lines[1:]) + "\n"


def main() -> int:
    """Exit status 1 with a line for each fault."""
    demands, nothing = read((PAGES / "demands.toml").read_text(encoding="utf-8"))
    found = faults(demands, nothing, clauses(), cited())
    for fault in found:
        print(f"demands: {fault}", file=sys.stderr)
    (PAGES.parent / "layouts" / "demands-table.md").write_text(table(demands), encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
