"""Tests that repeat what they do until it goes well: tests/README.md names them; a loop that would hide one fails."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

TESTS = Path(__file__).resolve().parents[1]
README = TESTS / "README.md"
HELPERS = {"every_valid": "every valid attempt holds", "best_of": "a cost: the least of several"}
SIMULATED = ("gateware", "cocotb")
"""Nothing there has to come in time: they count cycles of a simulated clock."""
WAITS = re.compile(r"# waits: \S")
"""Behind the first line of a loop that waits for a state that stays, and does not repeat what is tested."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> Iterator[tuple[Path, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        where = path.relative_to(TESTS)
        if where.parts[0] not in SIMULATED and where.name not in ("attempts.py", "test_attempts.py", "test_retries.py"):
            yield where, path.read_text(encoding="utf-8")


def inside(loop: ast.For | ast.While, within_loops: bool) -> Iterator[ast.AST]:
    """What a loop's turn does itself; not what functions do that it makes, nor, if so asked, loops in it."""
    waiting: list[ast.AST] = list(loop.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Function | ast.Lambda) or (not within_loops and isinstance(node, ast.For | ast.While)):
            continue
        waiting += ast.iter_child_nodes(node)


def names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def counts(node: ast.AST) -> bool:
    """Whether something goes over ``range``."""
    return isinstance(node, ast.Call) and "range" in names(node)


def repeats(node: ast.AST) -> TypeGuard[ast.For | ast.While]:
    """Whether a loop does the same until it goes well: it ends before its time, or takes a failure for no failure."""
    if isinstance(node, ast.Call):
        first = node.args[0] if node.args else None
        return (
            isinstance(node.func, ast.Name)
            and node.func.id == "any"
            and isinstance(first, ast.GeneratorExp | ast.ListComp)
            and any(counts(each.iter) and not names(each.target) & names(first.elt) for each in first.generators)
        )
    if not isinstance(node, ast.For | ast.While):
        return False
    for each in inside(node, True):
        if isinstance(each, ast.ExceptHandler) and (each.type is None or "AssertionError" in ast.unparse(each.type)):
            return True
    if isinstance(node, ast.While):
        return (
            isinstance(node.test, ast.BoolOp) and re.search(r"\blen\(\w+\) < \d+", ast.unparse(node.test)) is not None
        )
    same = not any(names(node.target) & names(line) for line in node.body)
    ends = any(isinstance(each, ast.Return) for each in inside(node, True)) or any(
        isinstance(each, ast.Break) for each in inside(node, False)
    )
    return counts(node.iter) and same and ends


def hidden(where: Path, text: str) -> list[str]:
    """Lines of loops that repeat what is tested, and say nothing of it."""
    lines = text.splitlines()
    return [
        f"{where}:{node.lineno}: {lines[node.lineno - 1].strip()}"
        for node in ast.walk(ast.parse(text))
        if repeats(node) and not WAITS.search(lines[node.lineno - 1])
    ]


def reason(call: ast.Call, function: Function) -> str:
    """The ``why`` of a helper's call, which is a text or the name of one."""
    (why,) = [each.value for each in call.keywords if each.arg == "why"]
    if isinstance(why, ast.Name):
        (why,) = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and names(each.targets[0]) == {why.id}
        ]
    assert isinstance(why, ast.Constant)
    return str(why.value)


def users_of(name: str, functions: list[ast.stmt]) -> list[str]:
    """The tests that are, or that use, a function or a fixture."""
    if name.startswith("test_"):
        return [name]
    return [
        each.name
        for each in functions
        if isinstance(each, Function) and each.name.startswith("test_")
        if name in names(each) | {argument.arg for argument in each.args.args}
    ]


def rows(where: Path, text: str) -> list[str]:
    """Lines of the README's table."""
    found = []
    functions = ast.parse(text).body
    for function in functions:
        for call in ast.walk(function):
            name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
            if name in HELPERS:
                assert isinstance(call, ast.Call)
                assert isinstance(function, Function), f"{where}:{call.lineno}: not in a function"
                tests = ", ".join(f"`{each}`" for each in users_of(function.name, functions))
                found.append(f"| `{where}` | {tests} | {HELPERS[name]} | {reason(call, function)} |")
    return found


def test_no_loop_hides_that_a_test_is_repeated_until_it_passes() -> None:
    """Use tests/attempts.py; behind a loop that only waits say ``# waits: for what``."""
    assert [line for where, text in sources() for line in hidden(where, text)] == []


def test_the_readme_names_all_tests_that_repeat() -> None:
    table = "\n".join(line for where, text in sources() for line in rows(where, text))
    assert table in README.read_text(encoding="utf-8"), f"the table of tests/README.md is to be\n{table}"


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        ("for _ in range(5):\n    if act():\n        return", True),
        ("for _ in range(5):\n    if act():\n        break", True),
        ("for _ in reversed(range(N)):\n    try:\n        act()\n    except AssertionError:\n        pass", True),
        ("while True:\n    try:\n        act()\n    except (OSError, AssertionError):\n        pass", True),
        ("assert any(act() for _ in range(9))", True),
        ("while min(seen) > 3 and len(seen) < 5:\n    seen.append(act())", True),
        ("for _ in range(5):  # waits: for the peer\n    if act():\n        return", False),
        ("for number in range(5):\n    if act(number):\n        break", False),
        ("for _ in range(5):\n    act()", False),
        ("for _ in range(5):\n    for each in act():\n        if each:\n            break", False),
        ("assert any(act(number) for number in range(9))", False),
        ("while len(found) < 5 and time.monotonic() < end:\n    act()", True),
        ("while time.monotonic() < end:\n    act()", False),
    ],
)
def test_loops_that_repeat_are_known(loop: str, found: bool) -> None:
    function = "def helper():\n" + textwrap.indent(loop, "    ")
    assert bool(hidden(Path("file.py"), function)) is found
