"""Writes the manual's tables of reasons: each line that ``rnic exec --explain`` may show, its causes and remedies."""

from __future__ import annotations

from pathlib import Path

from rnic.spec.reasons import REASONS, VALUE

PAGE = Path(__file__).resolve().parent / "layouts" / "reasons-table.md"


def tables() -> str:
    """Return the tables, in MyST."""
    lines: list[str] = []
    section = ""
    for reason in REASONS.values():
        if reason.section != section:
            section = reason.section
            lines += ["", f"## {section}", "", "| line | cause | remedy |", "|---|---|---|"]
        shown = VALUE.sub(lambda found: f"<{found[1]}>", reason.text).replace("|", "\\|")
        lines.append(f"| `{shown}` | {reason.cause} | {reason.remedy} |")
    return "\n".join(lines[1:]) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(tables(), encoding="utf-8")
