"""Names that a reader of the Verilog, and of its waveforms, can follow.

Amaranth names a port that carries part of a signal ``port$746$0``, another signal of one name ``job$13``, and a module
``rnic_engine.data_mover``. Here a module becomes ``rnic_engine_data_mover``, a number is joined by an underscore, and
such a port is called after the signal whose part it is, with the part's place in it: a signal of its own module where
there is one, else of the parent.
"""

from __future__ import annotations

import re

MODULE = re.compile(r"^module \\(\S+)$")
CELL = re.compile(r"^  cell \\(\S+) ")
CONNECT = re.compile(r"^    connect \\(\S+) (.*)$")
ALIAS = re.compile(r"^connect \\(\S+) \{ (.*) \}$")
PART = re.compile(r"(\d+)'[01xz-]+|\S+ \[(\d+)(?::(\d+))?\]")
SIGNAL = re.compile(r"\\(\S+)(?: \[(\d+)(?::(\d+))?\])?")
NAME = re.compile(r"\\(\S+)")
NAMELESS = re.compile(r"port\$\d+\$\d+")
NUMBERED = re.compile(r"\$(\d+)")

Names = dict[str, str]


def readable(rtlil: str) -> str:
    """RTLIL text with such names. The design is the same, net for net."""
    modules = _modules(rtlil)
    parents = {cell.group(1): name for name, lines in modules.items() for cell in map(CELL.match, lines) if cell}
    new: dict[str, Names] = {}

    def settle(name: str) -> None:
        """The names of a module; its parent's come first."""
        if name not in new:
            parent = parents.get(name)
            if parent is not None:
                settle(parent)
            new[name] = _new_names(name, modules, parent, new)

    for name in modules:
        settle(name)
    lines = [line for name in modules for line in _renamed(modules[name], new[name], new)]
    return "\n".join(lines) + "\n"


def _modules(rtlil: str) -> dict[str, list[str]]:
    """Lines of each module, what stands before it among them."""
    out: dict[str, list[str]] = {}
    pending: list[str] = []
    name = ""
    for line in rtlil.splitlines():
        pending.append(line)
        found = MODULE.match(line)
        if found:
            name = found.group(1)
        if line == "end":
            out[name], pending = pending, []
    return out


def _new_names(name: str, modules: dict[str, list[str]], parent: str | None, new: dict[str, Names]) -> Names:
    """What the signals of a module are to be called, where that is another name."""
    lines = modules[name]
    taken = {found for line in lines if not CONNECT.match(line) for found in NAME.findall(line)}
    out: Names = {}

    def call(old: str, wanted: str) -> None:
        while wanted in taken:
            wanted += "_"
        taken.add(wanted)
        out[old] = wanted

    for old in sorted(taken):
        if ("$" in old or "." in old) and not NAMELESS.fullmatch(old) and old not in modules:
            call(old, NUMBERED.sub(r"_\1", old).replace("$", "").replace(".", "_"))
    for line in lines:
        alias = ALIAS.match(line)
        if alias and not NAMELESS.fullmatch(alias.group(1)):
            for port, place in _parts(alias.group(2)):
                if port not in out:
                    call(port, f"{out.get(alias.group(1), alias.group(1))}_{place}")
    for line in _cell_of(name, modules[parent]) if parent is not None else ():
        connect = CONNECT.match(line)
        if connect and NAMELESS.fullmatch(connect.group(1)) and connect.group(1) not in out:
            call(connect.group(1), _called(connect.group(2), new[parent or ""]))
    return out


def _cell_of(child: str, lines: list[str]) -> list[str]:
    """The lines of the parent that connect ``child``."""
    out, inside = [], False
    for line in lines:
        cell = CELL.match(line)
        if cell or line == "  end":
            inside = bool(cell and cell.group(1) == child)
        elif inside:
            out.append(line)
    return out


def _parts(concatenation: str) -> list[tuple[str, str]]:
    """Nameless ports in a concatenation, each with its place in it: ``7`` or ``31_24``."""
    out = []
    low = 0
    for part in reversed(list(PART.finditer(concatenation))):
        constant, last, first = part.groups()
        count = int(constant) if constant else int(last) - int(first or last) + 1
        name = part.group().split(" ")[0][1:]
        if NAMELESS.fullmatch(name):
            out.append((name, f"{low + count - 1}_{low}" if count > 1 else str(low)))
        low += count
    return out


def _called(value: str, names: Names) -> str:
    """A name for what a parent connects; the result of an expression has none."""
    found = SIGNAL.fullmatch(value)
    if found is None:
        return "expression"
    name, high, low = found.groups()
    return "_".join([names.get(name, name), *(part for part in (high, low) if part is not None)])


def _renamed(lines: list[str], names: Names, new: dict[str, Names]) -> list[str]:
    """A module with the names of all signals, and those of modules, replaced."""

    def here(found: re.Match[str]) -> str:
        return "\\" + names.get(found.group(1), found.group(1))

    out, ports = [], Names()
    for line in lines:
        module, cell, connect = MODULE.match(line), CELL.match(line), CONNECT.match(line)
        if module:
            line = f"module \\{module.group(1).replace('.', '_')}"
        elif cell:
            ports = new.get(cell.group(1), {})
            rest = NAME.sub(here, line[cell.end() :])
            line = f"  cell \\{cell.group(1).replace('.', '_')} {rest}"
        elif connect:
            line = f"    connect \\{ports.get(connect.group(1), connect.group(1))} {NAME.sub(here, connect.group(2))}"
        elif "attribute" not in line and not line.startswith("    parameter"):
            line = NAME.sub(here, line)
        if line.startswith("  cell $"):
            ports = {}
        out.append(line)
    return out
