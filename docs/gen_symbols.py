"""Writes the table of all functions that rdma-core's libraries export: done, or refused and why."""

from __future__ import annotations

from pathlib import Path

from rnic.abi import exports

PAGE = Path(__file__).resolve().parent / "layouts" / "symbols-table.md"
LIBRARIES = (
    ("libibverbs.so.1", "IBVERBS", exports.VERBS),
    ("librdmacm.so.1", "RDMACM", exports.RDMACM),
    ("libibumad.so.3", "IBUMAD", exports.UMAD),
)


def tables() -> str:
    """Return the tables, in MyST."""
    lines: list[str] = []
    for library, prefix, versions in LIBRARIES:
        lines += ["", f"## {library}", "", "| function | version | |", "|---|---|---|"]
        for version, names in versions.items():
            for name in sorted(names):
                why = exports.REFUSED.get(name)
                lines.append(f"| `{name}` | {prefix}_{version} | {'done' if why is None else f'refused: {why}'} |")
    return "\n".join(lines[1:]) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(tables(), encoding="utf-8")
