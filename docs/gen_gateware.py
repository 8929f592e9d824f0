"""Writes the tables of the gateware page: the map from the documents to code and tests, and what the engine costs.

    python docs/gen_gateware.py [DIRECTORY]

The files go to ``docs/layouts`` unless a directory is named; the page includes them.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAP = HERE.parent / "tests" / "gateware" / "map"
FIGURES = HERE / "gateware-figures.json"
LONG_BYTES = 16384
MHZ = 250


def map_table() -> str:
    """One row for each module, state, register, field and rule."""
    lines = ["| document | what | code | test | mutant that the test kills |", "|---|---|---|---|---|"]
    for path in sorted(MAP.glob("*.toml")):
        for row in tomllib.loads(path.read_text())["row"]:
            code, test = Path(row["file"]).name, row["test"].rpartition("/")[2]
            cells = (row["source"], row["item"], f"`{code}`", f"`{test}`", f"{_code(row['old'])} → {_code(row['new'])}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Source text in one table cell."""
    return "`" + " ".join(text.split()).replace("|", "\\|") + "`"


def resource_table() -> str:
    """Cells by family and bus width, and the frequency on an ECP5."""
    found = json.loads(FIGURES.read_text())
    rows = list(next(iter(found["cells"].values())))
    lines = [f"| engine | {' | '.join(rows)} |", "|---|" + "---:|" * len(rows)]
    for name, cells in found["cells"].items():
        family, width, order = name.split()
        lines.append(f"| {family}, {width} bit, {order} | " + " | ".join(f"{cells[row]:,}" for row in rows) + " |")
    mhz = found["ecp5_mhz"]
    lines += [
        "",
        f"Maximum frequency of the serial engine at 32 bit on an ECP5-85 of speed grade 8, as nextpnr reports it: "
        f"{mhz} MHz.",
    ]
    return "\n".join(lines) + "\n"


def speed_table() -> str:
    """Cycles of a long and of a short WRITE, then the short one by state of the controller."""
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
    """Cycles of each WRITE, and Gb/s of payload and on the line, by what is sent and how late memory answers."""
    lines = ["| WRITEs | memory latency, cycles | cycles each | Gb/s | on the line |", "|---|---:|---:|---:|---:|"]
    for row in json.loads(FIGURES.read_text())["latency"]:
        rate = row["bytes"] * 8 * MHZ / row["cycles"] / 1000
        line = row.get("line_gbps", "")
        lines.append(f"| {row['what']} | {row['latency']} | {row['cycles']} | {rate:.1f} | {line} |")
    return "\n".join(lines) + "\n"


def ctxmgt_table() -> str:
    """CtxMgt's cycles for each request, by how late memory answers."""
    rows = json.loads(FIGURES.read_text())["ctxmgt"]
    latencies = sorted({row["latency"] for row in rows})
    found = {(row["what"], row["latency"]): row["cycles"] for row in rows}
    heads = [f"cycles, memory latency {latency} | million a second" for latency in latencies]
    lines = [f"| request | {' | '.join(heads)} |", "|---|" + "---:|---:|" * len(latencies)]
    for what in dict.fromkeys(row["what"] for row in rows):
        cells = [f"{found[what, latency]} | {MHZ / found[what, latency]:.1f}" for latency in latencies]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write all tables."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "layouts"
    target.mkdir(parents=True, exist_ok=True)
    (target / "gateware-map-table.md").write_text(map_table())
    (target / "gateware-resource-table.md").write_text(resource_table())
    (target / "gateware-speed-table.md").write_text(speed_table())
    (target / "gateware-latency-table.md").write_text(latency_table())
    (target / "gateware-ctxmgt-table.md").write_text(ctxmgt_table())


if __name__ == "__main__":
    main()
