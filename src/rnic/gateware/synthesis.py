"""Cost of a component in an FPGA: Yosys for Xilinx 7-series and ECP5, nextpnr for the ECP5's maximum frequency."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import unreset
from rnic.gateware.tools import ToolError, native_yosys, run_tool, run_yosys
from rnic.gateware.verilog import to_rtlil

FAMILIES = {
    "xilinx": (
        "synth_xilinx -family xc7 -flatten -noiopad -noclkbuf -top dut",
        {"LUT": r"LUT[1-6]$", "carry": r"CARRY4$", "FF": r"FD[RSCP]E?$", "block RAM": r"RAMB(18|36)E1$",
         "LUT RAM": r"RAM\d+[MXD]"},
    ),
    "ecp5": (
        "synth_ecp5 -noabc9 -top dut",
        {"LUT": r"LUT4$", "carry": r"CCU2C$", "FF": r"TRELLIS_FF$", "block RAM": r"DP16KD$",
         "LUT RAM": r"TRELLIS_DPR16X4$"},
    ),
}  # fmt: skip
"""Yosys's command, and the cells counted in each row of the table."""

COSTED = ("xilinx 32 serial", "xilinx 32 overlapped", "xilinx 512 overlapped", "ecp5 32 serial", "ecp5 32 overlapped")
"""Family, bus width in bits and order of the engines whose cost the documentation lists."""

DEVICE = ("--85k", "--package", "CABGA381", "--speed", "8")


@dataclass(frozen=True, slots=True)
class Resources:
    """Cells of one component in one family."""

    family: str
    cells: dict[str, int]


def synthesize(design: wiring.Component | str, family: str) -> Resources:
    """Synthesize a component, or RTLIL text with a module ``dut``; ``check -assert`` runs before and after.

    Raises:
        ToolError: no Yosys, or it found a fault: a loop, an undriven wire, two drivers.
    """
    with tempfile.TemporaryDirectory() as scratch:
        return _synthesize(design, family, Path(scratch))


def _synthesize(design: wiring.Component | str, family: str, place: Path) -> Resources:
    command, rows = FAMILIES[family]
    (place / "in.il").write_text(design if isinstance(design, str) else to_rtlil(design, "dut"))
    script = (
        "read_rtlil in.il; hierarchy -top dut; proc; opt_clean; check -assert; "
        f"{command}; check -assert; tee -q -o stat.json stat -json; write_json out.json"
    )
    run_yosys(script, place)
    counted = json.loads((place / "stat.json").read_text())["design"]["num_cells_by_type"]
    cells = {
        row: sum(_count(count) for cell, count in counted.items() if re.match(pattern, cell))
        for row, pattern in rows.items()
    }
    return Resources(family, cells)


def _count(value: object) -> int:
    return int(value["count"]) if isinstance(value, dict) else int(str(value))


class PinSaver(wiring.Component):
    """Wraps a component behind two pins with all ports registered, so that it fits and no timing path ends at a pin."""

    def __init__(self, inner: wiring.Component) -> None:
        super().__init__({"shift_in": In(1), "parity": Out(1)})
        self.inner = inner

    def elaborate(self, platform: object) -> Module:
        """Feed all inputs from a chain of registers; the outputs, registered twice, end in one parity bit."""
        m = Module()
        m.submodules.dut = self.inner
        before, outputs = Value.cast(self.shift_in), []
        for _path, member, value in self.inner.signature.flatten(self.inner):
            if member.flow == In:
                chain, given = Signal.like(value, reset_less=True), Signal.like(value, reset_less=True)
                m.d.sync += [chain.eq(Cat(before, chain)), given.eq(chain)]
                m.d.comb += value.eq(given)
                before = chain[-1]
            else:
                held = Signal.like(value, reset_less=True)
                m.d.sync += held.eq(value)
                outputs.append(held)
        words = Cat(*outputs)
        parities = unreset(-(-len(words) // 16))
        m.d.sync += parities.eq(Cat(*(words[at : at + 16].xor() for at in range(0, len(words), 16))))
        m.d.sync += self.parity.eq(parities.xor())
        return m


@dataclass(frozen=True, slots=True)
class Netlist:
    """A component mapped to an ECP5, in :class:`PinSaver`, whose registers are included."""

    cells: dict[str, int]
    json: str
    """Netlist that nextpnr reads."""


def rtlil_to_place(component: wiring.Component) -> str:
    """Return the component in :class:`PinSaver` as RTLIL, the same text for the same logic."""
    text = to_rtlil(PinSaver(component), "dut")
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("attribute \\src "))


def map_to_ecp5(rtlil: str) -> Netlist:
    """Synthesize the result of :func:`rtlil_to_place`.

    Raises:
        ToolError: no Yosys, or it found a fault.
    """
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        cells = _synthesize(rtlil, "ecp5", place).cells
        return Netlist(cells, (place / "out.json").read_text())


def place_and_route(
    netlist: Netlist, seed: int = 1, target_mhz: float = 125.0, options: tuple[str, ...] = ()
) -> tuple[float, str]:
    """Place and route with one seed and further ``options`` of nextpnr; return the clock's MHz, and the longest path's
    endpoints.

    Uses router1: router2 did not converge for a 32-bit engine in 64 iterations.

    Raises:
        ToolError: nextpnr is absent, the design does not fit, or no frequency is reported.
    """
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "out.json").write_text(netlist.json)
        run_tool(
            "nextpnr-ecp5", *DEVICE, "--json", "out.json", "--report", "report.json", "--freq", str(target_mhz),
            "--seed", str(seed), "--router", "router1", "--timing-allow-fail", "--lpf-allow-unconstrained", "--quiet",
            *options, cwd=place,
        )  # fmt: skip
        report = json.loads((place / "report.json").read_text())
    if not report["fmax"]:
        raise ToolError("nextpnr-ecp5 reported no clock")
    longest: list[dict[str, dict[str, str]]] = next(
        (path["path"] for path in report["critical_paths"] if path["from"] == path["to"]), []
    )
    ends = f"{longest[0]['from']['cell']} to {longest[-1]['to']['cell']}" if longest else ""
    return min(float(clock["achieved"]) for clock in report["fmax"].values()), ends


def tool_versions() -> str:
    """Return the versions of Yosys and nextpnr, such as ``Yosys 0.70, nextpnr-0.11.1``.

    Raises:
        ToolError: one is absent.
    """
    here, native = Path.cwd(), native_yosys()
    shown = f"Yosys {native}" if native else run_tool("yosys", "-V", cwd=here)
    shown += run_tool("nextpnr-ecp5", "--version", cwd=here)
    return ", ".join(re.findall(r"Yosys [\d.]+|nextpnr-[\d.]+\d", shown))
