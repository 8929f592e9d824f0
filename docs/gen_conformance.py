"""Writes the table of transport rules and their tests; refuses a test that is not there, and a script without rule."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from rules import RULES, SCRIPTS

ROOT = Path(__file__).resolve().parents[1]


def tests_in(path: Path) -> set[str]:
    """Return ``file::test`` of every test of a file."""
    name = path.relative_to(ROOT).as_posix()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {f"{name}::{node.name}" for node in body if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_"}


def faults() -> list[str]:
    """Return what is wrong with the table of rules, a line each."""
    named = {test for rule in RULES for test in rule.tests}
    existing = {
        test for path in {ROOT / test.split("::")[0] for test in named} if path.exists() for test in tests_in(path)
    }
    scripts = {test for path in sorted((ROOT / SCRIPTS).glob("test_*.py")) for test in tests_in(path)}
    return [f"{test} holds a rule and does not exist" for test in sorted(named - existing)] + [
        f"{test} holds no rule: name it in docs/rules.py" for test in sorted(scripts - named)
    ]


def write(target: Path) -> None:
    """Write the table as MyST."""
    lines = ["| source | rule | tests |", "|---|---|---|"]
    for rule in RULES:
        tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in rule.tests)
        lines.append(f"| {rule.source} | {rule.rule} | {tests} |")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Exit status 1 with a line for each fault."""
    found = faults()
    for fault in found:
        print(f"conformance: {fault}", file=sys.stderr)
    write(Path(__file__).resolve().parent / "layouts" / "conformance-table.md")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
