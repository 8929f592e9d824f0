"""``docs/device.md``: every register and every section of 004 has a row, and every test that a row names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rnic.rings.queue_block import CQ_BLOCK, QP_BLOCK

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "device.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| row", "| register |"))
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_row(row: list[str]) -> None:
    name, where, test = row
    assert name
    assert (ROOT / "src" / "rnic" / where.strip("`")).exists()
    path, _, function = test.strip("`").partition("::")
    source = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^def {function or 'test_'}", source, re.MULTILINE)


def test_nothing_is_missing() -> None:
    names = [row[0] for row in ROWS]
    for section in ("7.2", "7.3", "7.4", "7.5", "7.6", "7.7"):
        assert any(name.startswith(section) for name in names)
    documented = {"CONTROL", "HW_STATUS", "IRQ_ENABLE", "IRQ_STATUS"}
    documented |= {
        field.name for block in (QP_BLOCK, CQ_BLOCK) for field in block.fields if field.name[:3] in ("SQ_", "CQ_")
    }
    assert documented <= set(names)
