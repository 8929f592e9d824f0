"""Give the exported Verilog, and its waveforms, readable names.

Amaranth names a port that carries part of a signal ``port$746$0``, a second signal of the same name ``job$13``, and a
module ``rnic_engine.data_mover``. Here a module becomes ``rnic_engine_data_mover``, and a number is joined by an
underscore. A port is named after the signal that it carries a part of, in its own module or else in the parent, with
the bit range. A port that carries the result of an operation is named after its first input and the operation:
``state_sum``.
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
OPERATION = re.compile(r"^  cell \$(\S+) ")
ASSIGN = re.compile(r"^connect \\(\S+) (.*)$")
RESULT = re.compile(r"(\$\d+)(?: \[(\d+)(?::(\d+))?\])?")
CALLED = {"add": "sum", "sub": "difference", "mux": "choice", "pmux": "choice", "eq": "is", "ne": "is_not"}
"""Operations whose results are named differently from the operation."""
INPUTS = "ABS"

Names = dict[str, str]


def readable(rtlil: str) -> str:
    """Return RTLIL text with such names; the design is unchanged, net for net."""
    modules = _modules(rtlil)
    parents = {cell.group(1): name for name, lines in modules.items() for cell in map(CELL.match, lines) if cell}
    new: dict[str, Names] = {}

    def settle(name: str) -> None:
        """Determine the names of a module, after its parent's."""
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
    """Yield the lines of each module, including those before it."""
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
    """Return the changed names of a module's signals."""
    lines = modules[name]
    taken = {found for line in lines if not CONNECT.match(line) for found in NAME.findall(line)}
    out: Names = {}

    def call(old: str, wanted: str) -> None:
        name, number = wanted, 1
        while name in taken:
            number += 1
            name = f"{wanted}_{number}"
        taken.add(name)
        out[old] = name

    for old in sorted(taken):
        if ("$" in old or "." in old) and not NAMELESS.fullmatch(old) and old not in modules:
            call(old, NUMBERED.sub(r"_\1", old).replace("$", "").replace(".", "_"))
    for line in lines:
        alias = ALIAS.match(line)
        if alias and not NAMELESS.fullmatch(alias.group(1)):
            for port, place in _parts(alias.group(2)):
                if port not in out:
                    call(port, f"{out.get(alias.group(1), alias.group(1))}_{place}")
    operations = _operations(lines)
    for line in lines:
        assign = ASSIGN.match(line)
        if assign and NAMELESS.fullmatch(assign.group(1)) and assign.group(1) not in out:
            call(assign.group(1), _called(assign.group(2), out, operations))
    if parent is not None:
        operations = _operations(modules[parent])
        for line in _cell_of(name, modules[parent]):
            connect = CONNECT.match(line)
            if connect and NAMELESS.fullmatch(connect.group(1)) and connect.group(1) not in out:
                call(connect.group(1), _called(connect.group(2), new[parent], operations))
    return out


def _operations(lines: list[str]) -> dict[str, tuple[str, list[str]]]:
    """Return kind and inputs of the driver of each unnamed wire: an operation, or a submodule."""
    out: dict[str, tuple[str, list[str]]] = {}
    kind, inputs = "", list[str]()
    for line in lines:
        cell, connect = OPERATION.match(line) or CELL.match(line), CONNECT.match(line)
        if cell:
            kind, inputs = cell.group(1), []
        elif connect:
            port, value = connect.groups()
            if port in INPUTS:
                inputs.append(value)
            found = RESULT.fullmatch(value)
            if found and port not in INPUTS:  # for a submodule: its name and its port's name
                port = "" if port == "Y" else "value" if NAMELESS.fullmatch(port) else port
                out.setdefault(found.group(1), (f"{kind.rsplit('.', 1)[-1]}_{port}" if port else kind, inputs))
    return out


def _cell_of(child: str, lines: list[str]) -> list[str]:
    """Return the parent's lines that connect ``child``."""
    out, inside = [], False
    for line in lines:
        cell = CELL.match(line)
        if cell or line == "  end":
            inside = bool(cell and cell.group(1) == child)
        elif inside:
            out.append(line)
    return out


def _parts(concatenation: str) -> list[tuple[str, str]]:
    """Name ports in a concatenation by their position: ``7`` or ``31_24``."""
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


def _called(value: str, names: Names, operations: dict[str, tuple[str, list[str]]], depth: int = 4) -> str:
    """Return a name for a connected value: a signal with its bit range, or an operation's result."""
    found = SIGNAL.fullmatch(value)
    if found is not None:
        name, high, low = found.groups()
        known = names.get(name, name).strip("$").replace("$", "_")
        return "_".join([known, *(part for part in (high, low) if part is not None)])
    result = RESULT.fullmatch(value)
    if result is None:
        first = SIGNAL.search(value)
        return "parts" if first is None else f"{_called(first.group(0), names, operations)}_parts"
    net, high, low = result.groups()
    kind, inputs = operations.get(net, ("value", []))
    named = [each for each in map(SIGNAL.search, inputs) if each]
    if named:
        base = named[0].group(1)
        base = names.get(base, base).strip("$").replace("$", "_")
    else:
        deeper = [each for each in inputs if RESULT.fullmatch(each)]
        base = _called(deeper[0], names, operations, depth - 1) if deeper and depth else ""
    place = [] if low == "0" else [part for part in (high, low) if part is not None]
    parts = [base, CALLED.get(kind, kind), *place]
    return "_".join(part for part in parts if part)


def _renamed(lines: list[str], names: Names, new: dict[str, Names]) -> list[str]:
    """Return a module with all signal and module names replaced."""

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
