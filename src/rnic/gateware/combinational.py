"""Find combinational paths through a design: AXI forbids them between an interface's inputs and outputs.

The check walks the flattened netlist (IHI 0022 A3.1.1), bit by bit for bitwise cells.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from amaranth.lib import wiring

from rnic.gateware.tools import ToolError, run_yosys
from rnic.gateware.verilog import to_rtlil

BITWISE: Final = ("$not", "$pos", "$and", "$or", "$xor", "$xnor", "$mux", "$pmux", "$bwmux")
"""Cells in which an output bit depends on the same bit of the data inputs and on all select inputs."""
REGISTERS: Final = ("$dff", "$dffe", "$sdff", "$sdffe", "$sdffce", "$adff", "$adffe", "$aldff", "$aldffe", "$ff")
STATELESS: Final = ("$print", "$check", "$scopeinfo", "$assert", "$assume", "$cover")
"""Cells that end a path."""
CLOCKS_AND_RESETS: Final = ("clk", "rst")
"""Suffixes of ports that do not belong to an interface."""

CONSTANTS: Final = ("0", "1", "x", "z")

Netlist = Mapping[str, Any]
Bit = int | str


def combinational_paths(design: wiring.Component | str) -> list[tuple[str, str]]:
    """Return the sorted pairs of input and output ports with no register between them.

    Args:
        design: a component, or RTLIL text with a module ``dut``.

    Raises:
        ToolError: Yosys is missing, or the netlist has an unknown kind of cell.
    """
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "in.il").write_text(design if isinstance(design, str) else to_rtlil(design, "dut"))
        script = (
            "read_rtlil in.il; hierarchy -top dut; proc -norom; flatten; opt_expr; opt_clean; memory_collect; "
            "opt_clean; write_json out.json"
        )
        run_yosys(script, place)
        netlist: Netlist = json.loads((place / "out.json").read_text())["modules"]["dut"]
    return _paths(netlist)


def _paths(netlist: Netlist) -> list[tuple[str, str]]:
    followers: dict[Bit, list[Bit]] = defaultdict(list)
    for name, cell in netlist["cells"].items():
        for source, target in _edges(name, cell):
            followers[source].append(target)
    ports = {name: port for name, port in netlist["ports"].items() if not name.endswith(CLOCKS_AND_RESETS)}
    outputs: dict[Bit, list[str]] = defaultdict(list)
    for name, port in ports.items():
        if port["direction"] == "output":
            for bit in port["bits"]:
                outputs[bit].append(name)
    found = set()
    for name, port in ports.items():
        if port["direction"] == "input":
            reached = _reached(port["bits"], followers)
            found |= {(name, output) for bit in reached & outputs.keys() for output in outputs[bit]}
    return sorted(found)


def _reached(bits: Iterable[Bit], followers: Mapping[Bit, list[Bit]]) -> set[Bit]:
    reached = {bit for bit in bits if bit not in CONSTANTS}
    waiting = list(reached)
    while waiting:
        for bit in followers.get(waiting.pop(), ()):
            if bit not in reached:
                reached.add(bit)
                waiting.append(bit)
    return reached


def _edges(name: str, cell: Mapping[str, Any]) -> Iterator[tuple[Bit, Bit]]:
    """Yield each input bit of a cell with each output bit that depends on it combinationally."""
    kind, wires = cell["type"], cell["connections"]
    if kind in REGISTERS or kind in STATELESS:
        return
    if kind == "$mem_v2":
        yield from _read_ports(cell)
        return
    outputs = [port for port, direction in cell.get("port_directions", {}).items() if direction == "output"]
    if outputs != ["Y"]:
        raise ToolError(f"cell {name} is of kind {kind}: the check of combinational paths does not know it; add it")
    out = wires["Y"]
    for port, bits in wires.items():
        if port == "Y":
            continue
        by_bit = kind in BITWISE and (port != "S" or kind == "$bwmux")
        signed = cell["parameters"].get(f"{port}_SIGNED", "0").endswith("1")
        if not by_bit:
            yield from ((source, target) for source in bits for target in out)
            continue
        for at, source in enumerate(bits):  # $pmux has one word of B for each bit of S
            yield source, out[at % len(out)]
        if signed:
            yield from ((bits[-1], target) for target in out[len(bits) :])


def _read_ports(cell: Mapping[str, Any]) -> Iterator[tuple[Bit, Bit]]:
    """Yield the combinational paths of a memory: the addresses of its asynchronous read ports."""
    parameters, wires = cell["parameters"], cell["connections"]
    ports, width, address_bits = (int(parameters[name], 2) for name in ("RD_PORTS", "WIDTH", "ABITS"))
    clocked = int(parameters["RD_CLK_ENABLE"], 2)
    for port in range(ports):
        if not clocked >> port & 1:
            address = wires["RD_ADDR"][port * address_bits : (port + 1) * address_bits]
            shown = wires["RD_DATA"][port * width : (port + 1) * width]
            yield from ((source, target) for source in address for target in shown)
