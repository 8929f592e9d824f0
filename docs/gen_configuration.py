"""Writes the tables of the configuration page from the fields of the settings classes and their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path

from rnic.cc.settings import CongestionSettings
from rnic.device.config import NicConfig
from rnic.device.parameters import UNIVISTA

PAGE = Path(__file__).resolve().parent / "layouts" / "configuration-table.md"
ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


def shown(each: dataclasses.Field[object]) -> str:
    """Return the default of a field as the page shows it; empty without one."""
    if each.default is not dataclasses.MISSING:
        return repr(each.default)
    return f"{getattr(each.default_factory, '__name__', '')}()" if callable(each.default_factory) else ""


def fields(kind: type) -> list[tuple[str, str, str, str]]:
    """Name, type, default and meaning of each field that a caller may set."""
    defaults = {each.name: shown(each) for each in dataclasses.fields(kind) if each.init}
    tree = ast.parse(inspect.getsource(kind))
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    found = []
    for part, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
            continue
        if part.target.id not in defaults:
            continue
        default = defaults[part.target.id]
        said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        meaning = ROLE.sub(r"`\1`", " ".join(str(said).split())).replace("``", "`")
        found.append((part.target.id, ast.unparse(part.annotation), default, meaning))
    return found


def tables() -> str:
    """Return the tables, in MyST."""
    lines: list[str] = []
    for title, kind in (("Settings of a NIC", NicConfig), ("Settings of congestion control", CongestionSettings)):
        lines += [f"## {title}", "", "| field | type | default | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | `{of}` | {f'`{default}`' if default else ''} | {meaning} |"
            for name, of, default, meaning in fields(kind)
        ]
        lines.append("")
    lines += ["## Parameters of the profile `univista`", ""]
    lines += ["| parameter | values | default | field | meaning |", "|---|---|---|---|---|"]
    for each in UNIVISTA:
        values = " or ".join(map(str, each.choices)) or f"{each.low} to {each.high}"
        values = f"powers of two, {values}" if each.power else values
        effect = f"`{each.effect}`" if each.effect else ""
        lines.append(f"| `{each.name}` | {values} | {each.default} | {effect} | {each.doc} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(tables(), encoding="utf-8")
