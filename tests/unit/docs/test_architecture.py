"""The architecture page says which files a new thing changes: held against a thing of each kind that there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import rnic
from rnic.engine import header

PACKAGE = Path(rnic.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
WRITTEN = [
    path
    for path in PACKAGE.rglob("*")
    if path.suffix in (".py", ".c", ".h", ".pyx", ".pxi") and path != header.PATH and "testing" not in path.parts
]
"""What people write: not the header that is made from tables, and not the tools for tests."""
EXAMPLES = {
    "a field of the QP context": r"\b(QPC_)?rnr_nak_timer\b|\bQPC_RNR_NAK_TIMER\b",
    "an opcode": r"\b(RNIC_)?WR_SEND_INV\b|\bSEND_ONLY_INV\b|\bIBV_WR_SEND_WITH_INV\b",
    "a register of a queue block": r"\b(REG_)?RQ_STRIDE\b",
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_files_that_a_new_thing_changes(kind: str) -> None:
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {kind} |"))
    _, _, files, count, _ = row.split("|")
    named = set(re.findall(r"`([a-z_/]+\.(?:py|c|h))`", files))
    found = {str(path.relative_to(PACKAGE)) for path in WRITTEN if re.search(EXAMPLES[kind], path.read_text())}
    assert named == found
    assert int(re.findall(r"\d+", count)[0]) == len(found)


def test_rooms_are_all_there_in_the_order_that_is_checked() -> None:
    config = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text())
    layers = config["tool"]["importlinter"]["contracts"][0]["layers"]
    table = PAGE.read_text().partition("| room | holds |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [name.strip("()") for name in reversed(layers)]


def test_functions_that_the_walk_names_are_there() -> None:
    text = PAGE.read_text()
    walk = text[text.index("### One WRITE, twice") : text.index("## What changes where")]
    for line in walk.splitlines():
        if line.count("|") < 5 or line.startswith("|---"):
            continue
        engine = line.split("|")[3]
        files = [PACKAGE / "engine" / name for name in re.findall(r"`([\w/]+\.c)`", engine)]
        source = "".join(path.read_text() for path in files)
        for name in re.findall(r"`(\w+)`", engine):
            assert re.search(rf"\b{name}\(", source), f"{name} in {files}"
