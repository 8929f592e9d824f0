"""Every layout table against ``tests/vectors/layouts.txt``, which was typed by hand from the documents."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from rnic.spec.layout import Field, Layout

VECTORS = Path(__file__).parents[1] / "vectors"
ROOMS = ("mem", "rings", "context", "device")
ALONE = ("rnic.spec.attach", "rnic.spec.verbs_faults", "rnic.rclink.header")
"""Modules outside those rooms; registers and engine tables are typed in their own tests."""
OWN = "rnic.state"
"""Its records no document has but the memory key: words one after the other, that ``engine/state.h`` is held to."""

Row = tuple[int, int, int, int, str]
"""Byte, most and least significant bit, unit, access."""


class Golden:
    def __init__(self, heading: str) -> None:
        name, size, endian, self.access, self.source = (part.strip() for part in heading.split("|"))
        self.name = name
        self.size = int(size)
        self.endian = endian
        self.rows: dict[str, Row] = {}

    def add(self, line: str) -> None:
        name, place, span, unit, *access = line.split()
        msb, lsb = span.split(":")
        rest = int(msb), int(lsb), int(unit), access[0] if access else self.access
        byte, _, step = place.partition("+")
        name, _, numbers = name.partition("<")
        first, last = numbers.rstrip(">").split("..") if numbers else ("", "")
        for index in range(int(first), int(last) + 1) if numbers else [0]:
            self.rows[name + (str(index) if numbers else "")] = (int(byte, 16) + index * int(step or "0", 16), *rest)


def read_golden() -> dict[str, Golden]:
    out: dict[str, Golden] = {}
    for line in (VECTORS / "layouts.txt").read_text().splitlines():
        if line.startswith("="):
            golden = Golden(line[1:])
            out[golden.name] = golden
        elif line and not line.startswith("#"):
            golden.add(line)
    return out


def find_layouts() -> dict[str, Layout]:
    out: dict[str, Layout] = {}
    modules = list(ALONE)
    for room in ROOMS:
        package = importlib.import_module(f"rnic.{room}")
        modules += [module.name for module in pkgutil.iter_modules(package.__path__, f"rnic.{room}.")]
    state = importlib.import_module(OWN)
    own = {
        id(value)
        for module in pkgutil.iter_modules(state.__path__, f"{OWN}.")
        if module.name != f"{OWN}.memory"
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, Layout)
    }
    for name in modules:
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, Layout) and id(value) not in own:
                assert out.setdefault(value.name, value) is value, f"two layouts are called {value.name!r}"
    return out


GOLDEN = read_golden()
LAYOUTS = find_layouts()
FIELDS = [(layout, field) for layout in LAYOUTS.values() for field in layout.fields]


def test_every_layout_is_typed_and_every_typed_layout_exists() -> None:
    assert set(LAYOUTS) == set(GOLDEN)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layout(layout: Layout) -> None:
    golden = GOLDEN[layout.name]
    assert (layout.size, layout.endian) == (golden.size, golden.endian)
    assert {field.name for field in layout.fields} == set(golden.rows)


@pytest.mark.parametrize(
    ("layout", "field"), FIELDS, ids=[re.sub(r"\W+", "_", layout.name) + "." + field.name for layout, field in FIELDS]
)
def test_field(layout: Layout, field: Field) -> None:
    assert field.name in GOLDEN[layout.name].rows, f"{layout.name}.{field.name} is not in layouts.txt"
    row = (field.byte, field.msb, field.lsb, field.unit, field.access)
    assert row == GOLDEN[layout.name].rows[field.name]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_documentation_is_one_short_line(layout: Layout) -> None:
    assert layout.source
    for field in layout.fields:
        assert field.doc, f"{layout.name}.{field.name} has no text"
        assert "\n" not in field.doc
        assert not field.doc.endswith(".")
