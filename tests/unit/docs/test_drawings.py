"""The drawings: each layout's bits are in place, nothing is cut off, and the kept files are what the tables say."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType

import pytest

from rnic.spec.layout import Layout, bits, half, octet, wide, word

DOCS = Path(__file__).parents[3] / "docs"
FIELDS = (
    half("first", 0, ""),
    octet("second", 2, ""),
    bits("flag", 4, 31, 31, ""),
    bits("middle", 4, 15, 8, ""),
    wide("address", 8, ""),
    word("last", 20, ""),
)


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    import drawing as module

    return module


@pytest.fixture(scope="module")
def gateware(drawing: ModuleType) -> ModuleType:
    import gen_gateware as module

    return module


@pytest.fixture(scope="module")
def diagrams(drawing: ModuleType) -> ModuleType:
    import gen_diagrams as module

    return module


def cells(drawing: ModuleType, layout: Layout) -> list[tuple[int, int, int, str]]:
    """Row, first column, columns and text of each field's cell."""
    parts = drawing.layout_picture(layout).parts
    rects = [re.search(r'x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', part) for part in parts]
    tops = sorted({float(found[2]) for found in rects if found})
    out = []
    for number, found in enumerate(rects):
        if found and 'class="hw"' in parts[number]:
            text = re.search(r">([^<]*)</text>", parts[number + 1])
            assert text is not None
            column = (float(found[1]) - drawing.LEFT) / drawing.BIT
            out.append((tops.index(float(found[2])), int(column), int(float(found[3]) / drawing.BIT), text[1]))
    return out


@pytest.mark.parametrize(
    ("endian", "expected"),
    [
        ("big", [(0, 0, 16, "first"), (0, 16, 8, "second"), (2, 0, 32, "address[63:32]"), (3, 0, 32, "address[31:0]")]),
        (
            "little",
            [(0, 8, 8, "second"), (0, 16, 16, "first"), (2, 0, 32, "address[31:0]"), (3, 0, 32, "address[63:32]")],
        ),
    ],
)
def test_bits_are_where_they_belong(
    drawing: ModuleType, endian: str, expected: list[tuple[int, int, int, str]]
) -> None:
    found = cells(drawing, Layout("thing", 24, endian, "nowhere", FIELDS))  # type: ignore[arg-type]
    flag_and_middle = [(1, 0, 1, "a"), (1, 16, 8, "middle")]
    assert found == [*expected[:2], *flag_and_middle, *expected[2:], (4, 0, 32, "last")]


def test_a_name_too_long_for_its_cell_is_explained_below(drawing: ModuleType) -> None:
    text = drawing.layout_picture(Layout("thing", 24, "big", "nowhere", FIELDS)).svg()
    assert ">a: flag<" in text


def test_byte_strings_are_drawn_as_bytes(drawing: ModuleType) -> None:
    layout = Layout("thing", 16, "big", "nowhere", (wide("gid", 0, "", 16),))
    assert [text for *_, text in cells(drawing, layout)] == [
        f"gid, bytes {first} to {first + 3}" for first in (0, 4, 8, 12)
    ]


def test_what_does_not_fit_is_an_error(drawing: ModuleType) -> None:
    picture = drawing.Drawing("small", 100)
    wrongs: tuple[Callable[[], object], ...] = (
        lambda: picture.box(0, 0, 60, 40, "incomprehensibilities"),
        lambda: picture.box(0, 0, 60, 18, "many words on few lines"),
        lambda: picture.text(90, 20, "beyond the edge"),
        lambda: picture.arrow([(0, 10), (120, 10)]),
        lambda: drawing.Drawing("for no phone", 700),
    )
    for wrong in wrongs:
        with pytest.raises(drawing.DrawingError):
            wrong()


def test_a_machine_has_each_state_and_each_reason(drawing: ModuleType) -> None:
    states = [("A", "first"), ("B", "second"), ("C", "third")]
    edges = [("A", "go", "B"), ("B", "go on", "C"), ("C", "back", "A"), ("A", "skip", "C"), ("B", "stay", "B")]
    text = drawing.machine("three", states, edges).svg()
    assert {"A", "B", "C"} <= set(re.findall(r">([^<>\n]+)</text>", text))
    for word_ in ("first", "go", "go on", "back", "skip", "stay"):
        assert f">{word_}<" in text
    assert text.count("<polygon") == len(edges)


def test_kept_pictures_are_what_the_tables_say(diagrams: ModuleType) -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "documents").glob("*.svg")}
    assert kept == diagrams.pictures(), "run python docs/gen_diagrams.py"


def test_the_plot_over_memory_latency_is_of_the_figures_and_on_its_page(gateware: ModuleType) -> None:
    assert gateware.LATENCY_PLOT.read_text() == gateware.latency_plot(), "run python docs/gen_gateware.py --plot"
    assert f"({gateware.LATENCY_PLOT.name})" in (DOCS / "gateware.md").read_text()
    rows = json.loads(gateware.FIGURES.read_text())["latency"]
    assert gateware.latency_plot().count("<circle") == len(rows)
    # every kind of WRITE over the whole axis, and each floor is reached
    latencies = sorted({row["latency"] for row in rows})
    assert latencies == [0, 30, 60, 120, 250]
    for what in {row["what"] for row in rows}:
        own = [row for row in rows if row["what"] == what]
        assert [row["latency"] for row in own] == latencies
        (bound,) = [row for row in own if "floor" in row]
        gbps = bound["bytes"] * 8 * gateware.MHZ / bound["cycles"] / 1000
        assert gbps >= bound["floor"] if bound["bytes"] == gateware.LONG_BYTES else bound["cycles"] <= bound["floor"]


def test_the_table_says_where_a_frequency_is_below_its_floor(gateware: ModuleType) -> None:
    for row in json.loads(gateware.FIGURES.read_text())["placed"]:
        (line,) = [line for line in gateware.placed_table().splitlines() if line.startswith(f"| {row['what']} ")]
        middle = round(median(row["mhz"].values()), 1)
        floor = f"{row['floor']}, missed" if middle < row["floor"] else f"{row['floor'] or ''}"
        assert line.endswith(f"| {middle} | {len(row['mhz'])} | {floor} | {row['tools']} |")


def test_every_picture_is_on_a_page(diagrams: ModuleType) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
    assert [name for name in diagrams.pictures() if name not in pages] == []
