"""The architecture page names the rooms in their order, and functions that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import rnic

PACKAGE = Path(rnic.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"


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
