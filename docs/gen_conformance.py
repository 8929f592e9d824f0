"""Writes the table of transport rules and their tests, read from the names of the packet scripts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "tests" / "scripts"
_CLAUSE = re.compile(r"test_(?:iba_((?:\d+_)+))?(.*)")


def rows() -> list[tuple[str, str, str]]:
    """Clause (empty where the rule is the design's own), rule and test of every packet script, in file order."""
    found = []
    for path in sorted(SCRIPTS.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                match = _CLAUSE.fullmatch(node.name)
                assert match is not None
                clause = (match[1] or "").strip("_").replace("_", ".")
                rule = (ast.get_docstring(node) or match[2].replace("_", " ")).splitlines()[0].rstrip(".")
                found.append((clause, rule, f"{path.relative_to(ROOT).as_posix()}::{node.name}"))
    return found


def write(target: Path) -> None:
    """Write the table as MyST."""
    lines = ["| IBA vol. 1 | rule | test |", "|---|---|---|"]
    lines += [f"| {clause} | {rule} | `{test}` |" for clause, rule, test in rows()]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).resolve().parent / "layouts" / "conformance-table.md")
