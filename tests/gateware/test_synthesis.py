"""Yosys takes the engine for Xilinx and ECP5, ``check -assert`` clean; nextpnr says how fast the ECP5 is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rnic.gateware.ip_decapsulator import IpDecapsulator
from rnic.gateware.net_registers import NetRegisters
from rnic.gateware.params import EngineParams
from rnic.gateware.synthesis import (
    COSTED,
    FAMILIES,
    map_to_ecp5,
    place_and_route,
    rtlil_to_place,
    synthesize,
    tool_versions,
)
from rnic.gateware.tools import ToolError, find_tool, native_yosys
from rnic.gateware.top import Top
from rnic.spec.engine_net_regs import ENCAP_REGISTERS

FIGURES = Path(__file__).parents[2] / "docs" / "gateware-figures.json"
SLACK = 0.15
"""How far a count may be from the documented one: other versions of Yosys map otherwise."""
FLOOR_MHZ = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _needs_yosys() -> None:
    if find_tool("yosys") is None:
        pytest.skip("no yosys: pip install '.[gateware]'")


def documented() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(FIGURES.read_text())["cells"]
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    "engine",
    [pytest.param(engine, id=engine.replace(" ", "-")) for engine in COSTED],
)
def test_engine_synthesizes_and_costs_what_the_docs_say(engine: str) -> None:
    family, width, order = engine.split()
    cells = synthesize(Top(EngineParams(bus_width=int(width), serial=order == "serial")), family).cells
    said = documented()[engine]
    assert cells.keys() == said.keys()
    for row, count in cells.items():
        assert abs(count - said[row]) <= max(SLACK * said[row], 4), f"{row}: {count}, docs say {said[row]}"


@pytest.mark.parametrize("family", [pytest.param("xilinx", marks=pytest.mark.full), "ecp5"])
def test_every_block_of_the_network_half_fits_both_families(family: str) -> None:
    assert synthesize(IpDecapsulator(EngineParams()), family).cells["FF"] > 500


RING = r"""
module \dut
  wire input 1 \a
  wire output 2 \b
  wire \ring
  cell $xor \gate
    parameter \A_SIGNED 0
    parameter \B_SIGNED 0
    parameter \A_WIDTH 1
    parameter \B_WIDTH 1
    parameter \Y_WIDTH 1
    connect \A \ring
    connect \B \a
    connect \Y \ring
  end
  connect \b \ring
end
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fault_is_found(family: str) -> None:
    """That the check can fail: a gate that feeds itself. Amaranth would not let it through, so in Yosys's words."""
    with pytest.raises(ToolError, match="yosys failed with status 1: ERROR: Found 1 problems in 'check -assert'"):
        synthesize(RING, family)


@pytest.mark.full
def test_ecp5_frequency() -> None:
    if find_tool("nextpnr-ecp5") is None:
        pytest.skip("no nextpnr-ecp5: pip install '.[gateware-test]'")
    mhz, longest = place_and_route(map_to_ecp5(rtlil_to_place(Top(EngineParams()))))
    assert mhz >= FLOOR_MHZ
    assert " to " in longest
    assert re.fullmatch(r"Yosys [\d.]+, nextpnr-[\d.]+", tool_versions())


def test_what_is_placed_is_known_again() -> None:
    """The bench keeps the seeds of a netlist that it has seen: the same logic gives the same text, other logic not."""
    text = rtlil_to_place(IpDecapsulator(EngineParams()))
    assert text == rtlil_to_place(IpDecapsulator(EngineParams()))
    assert "attribute \\src " not in text
    assert text != rtlil_to_place(IpDecapsulator(EngineParams(check_address=False)))


def test_yosys_as_machine_code_and_as_web_assembly_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    if native_yosys() is None:
        pytest.skip("no pyosys: pip install '.[gateware-test]'")
    native = synthesize(NetRegisters(ENCAP_REGISTERS), "ecp5").cells
    monkeypatch.setattr("rnic.gateware.tools.native_yosys", lambda: None)
    there = synthesize(NetRegisters(ENCAP_REGISTERS), "ecp5").cells
    for row, count in native.items():
        assert abs(count - there[row]) <= max(SLACK * there[row], 4)
