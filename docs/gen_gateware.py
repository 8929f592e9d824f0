"""Writes the tables of the gateware page: the map from the documents to code and tests, and what the engine costs.

    python docs/gen_gateware.py [DIRECTORY]
    python docs/gen_gateware.py --plot

The files go to ``docs/layouts`` unless a directory is named; the page includes them. ``--plot`` draws the figures over
memory latency instead, into a file that is kept beside the page; the benchmark does so when it has measured them, and a
test holds the file equal to the figures.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from drawing import SMALL, Drawing

HERE = Path(__file__).resolve().parent
MAP = HERE.parent / "tests" / "gateware" / "map"
FIGURES = HERE / "gateware-figures.json"
LATENCY_PLOT = HERE / "gateware-latency.svg"
LONG_BYTES = 16384
MHZ = 250


def map_table() -> str:
    """Return one row for each module, state, register, field and rule."""
    lines = ["| document | what | code | test | mutant that the test kills |", "|---|---|---|---|---|"]
    for path in sorted(MAP.glob("*.toml")):
        for row in tomllib.loads(path.read_text())["row"]:
            code, test = Path(row["file"]).name, row["test"].rpartition("/")[2]
            cells = (row["source"], row["item"], f"`{code}`", f"`{test}`", f"{_code(row['old'])} → {_code(row['new'])}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Return source text for a table cell."""
    return "`" + " ".join(text.split()).replace("|", "\\|") + "`"


def resource_table() -> str:
    """Return cells by family and bus width."""
    found = json.loads(FIGURES.read_text())
    rows = list(next(iter(found["cells"].values())))
    lines = [f"| engine | {' | '.join(rows)} |", "|---|" + "---:|" * len(rows)]
    for name, cells in found["cells"].items():
        family, width, order = name.split()
        lines.append(f"| {family}, {width} bit, {order} | " + " | ".join(f"{cells[row]:,}" for row in rows) + " |")
    return "\n".join(lines) + "\n"


def placed_table() -> str:
    """Return the table of what was placed and routed: cells, and the median of the seeds."""
    found = json.loads(FIGURES.read_text())["placed"]
    kinds = list(found[0]["cells"])
    lines = [f"| placed on an ECP5-85 | {' | '.join(kinds)} | MHz | seeds | floor | tools |"]
    lines.append("|---|" + "---:|" * len(kinds) + "---:|---:|---:|---|")
    for row in found:
        cells = [f"{row['cells'][kind]:,}" for kind in kinds]
        middle = round(median(row["mhz"].values()), 1)
        floor = f"{row['floor']}, missed" if middle < row["floor"] else row["floor"] or ""
        ends = (middle, len(row["mhz"]), floor, row["tools"])
        lines.append("| " + " | ".join([row["what"], *cells, *map(str, ends)]) + " |")
    return "\n".join(lines) + "\n"


def speed_table() -> str:
    """Return cycles of a long and of a short WRITE, then those of the short one by state of the controller."""
    cycles = json.loads(FIGURES.read_text())["cycles"]
    lines = [
        f"| engine | 16 KiB WRITE, bytes per cycle | of the bus | at {MHZ} MHz | 64-byte WRITE, cycles |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, found in cycles.items():
        rate = LONG_BYTES / found["16 KiB"]
        bus_bytes = int(name.split()[0]) // 8
        lines.append(
            f"| {name} | {rate:.2f} | {rate / bus_bytes:.0%} | {rate * 8 * MHZ / 1000:.1f} Gb/s "
            f"| {sum(found['64 bytes'].values())} |"
        )
    lines += ["", f"| state of the controller | {' | '.join(cycles)} |", "|---|" + "---:|" * len(cycles)]
    for state in next(iter(cycles.values()))["64 bytes"]:
        lines.append(f"| {state} | " + " | ".join(str(found["64 bytes"][state]) for found in cycles.values()) + " |")
    return "\n".join(lines) + "\n"


def latency_table() -> str:
    """Return cycles of each WRITE, and Gb/s of payload and on the line, by traffic and memory latency."""
    lines = [
        "| WRITEs | memory latency, cycles | cycles each | Gb/s | on the line | floor |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in json.loads(FIGURES.read_text())["latency"]:
        line, floor = row.get("line_gbps", ""), row.get("floor", "")
        unit = floor and ("Gb/s" if row["bytes"] == LONG_BYTES else "cycles")
        cells = (row["what"], row["latency"], row["cycles"], f"{_gbps(row):.1f}", line, f"{floor} {unit}".strip())
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def latency_plot() -> str:
    """Draw the same: Gb/s of long WRITEs, and cycles of short ones, over memory latency; floors as crosses."""
    rows: list[dict[str, Any]] = json.loads(FIGURES.read_text())["latency"]
    picture = Drawing("Throughput over memory latency")
    long = [row | {"y": _gbps(row)} for row in rows if row["bytes"] == LONG_BYTES]
    short = [row | {"y": row["cycles"]} for row in rows if row["bytes"] != LONG_BYTES]
    _axes(picture, 44, f"Gb/s of payload at {MHZ} MHz", 20, long)
    _axes(picture, 372, "cycles for each WRITE", 10, short)
    return picture.svg()


def _gbps(row: dict[str, Any]) -> float:
    """Return the payload of the row's WRITEs, one after the other."""
    return float(row["bytes"] * 8 * MHZ / row["cycles"] / 1000)


def _axes(picture: Drawing, left: float, title: str, grid: int, rows: Sequence[dict[str, Any]]) -> None:
    """Draw ``y`` of the rows over memory latency in cycles, on a grid with a line for every ``grid``."""
    width, height, top = 252.0, 170.0, 26.0
    latest = max(row["latency"] for row in rows)
    highest = grid * (int(max(max(row["y"], row.get("floor", 0)) for row in rows) / grid) + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        return round(left + width * x / latest, 1), round(top + height * (1 - y / highest), 1)

    picture.text(left - 30, 14, title, "start", SMALL + 1)
    for value in range(0, highest + 1, grid):
        (x0, y), (x1, _) = place(0, value), place(latest, value)
        picture.parts.append(f'<path class="life" d="M{x0:g} {y:g} H{x1:g}"/>')
        picture.text(left - 5, y + 4, str(value), "end", SMALL)
    for latency in sorted({row["latency"] for row in rows}):
        picture.text(place(latency, 0)[0], top + height + 15, str(latency), size=SMALL)
    picture.text(left + width / 2, top + height + 32, "memory latency, cycles", size=SMALL)
    for number, name in enumerate(dict.fromkeys(row["what"] for row in rows)):
        dash = " dash" if number % 2 else ""
        points = [place(row["latency"], row["y"]) for row in rows if row["what"] == name]
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        picture.parts.append(f'<path class="line{dash}" d="{path}"/>')
        picture.parts += [f'<circle class="tip" cx="{x:g}" cy="{y:g}" r="2.6"/>' for x, y in points]
        y = top + height + 52 + number * 16
        picture.parts.append(f'<path class="line{dash}" d="M{left - 28:g} {y - 4:g} h26"/>')
        picture.text(left + 4, y, name, "start", SMALL)
    for row in rows:
        if "floor" in row:
            x, y = place(row["latency"], row["floor"])
            picture.parts.append(f'<path class="line" d="M{x - 4:g} {y - 4:g} l8 8 m0 -8 l-8 8"/>')


def ctxmgt_table() -> str:
    """Return CtxMgt's cycles for each request, by memory latency."""
    rows = json.loads(FIGURES.read_text())["ctxmgt"]
    latencies = sorted({row["latency"] for row in rows})
    found = {(row["what"], row["latency"]): row["cycles"] for row in rows}
    heads = [f"cycles, memory latency {latency} | million a second" for latency in latencies]
    lines = [f"| request | {' | '.join(heads)} |", "|---|" + "---:|---:|" * len(latencies)]
    for what in dict.fromkeys(row["what"] for row in rows):
        cells = [f"{found[what, latency]} | {MHZ / found[what, latency]:.1f}" for latency in latencies]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def responder_table() -> str:
    """Return the RoCEv2 responder's cycles as a table."""
    rows = json.loads(FIGURES.read_text())["responder"]
    lines = ["| what | cycles | us at 250 MHz |", "|---|---:|---:|"]
    lines += [f"| {row['what']} | {row['cycles']} | {row['cycles'] / MHZ:.3f} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write all tables, or the picture."""
    if sys.argv[1:] == ["--plot"]:
        LATENCY_PLOT.write_text(latency_plot())
        return
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "layouts"
    target.mkdir(parents=True, exist_ok=True)
    (target / "gateware-map-table.md").write_text(map_table())
    (target / "gateware-resource-table.md").write_text(resource_table())
    (target / "gateware-placed-table.md").write_text(placed_table())
    (target / "gateware-speed-table.md").write_text(speed_table())
    (target / "gateware-latency-table.md").write_text(latency_table())
    (target / "gateware-ctxmgt-table.md").write_text(ctxmgt_table())
    (target / "gateware-responder-table.md").write_text(responder_table())


if __name__ == "__main__":
    main()
