"""Yosys takes the engine for Xilinx and ECP5, ``check -assert`` clean; nextpnr says how fast the ECP5 is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.ip_decapsulator import IpDecapsulator
from rnic.gateware.params import EngineParams
from rnic.gateware.synthesis import FAMILIES, max_frequency_mhz, synthesize
from rnic.gateware.tools import ToolError, find_tool
from rnic.gateware.top import Top

RESOURCES = Path(__file__).parents[2] / "docs" / "gateware-resources.json"
SLACK = 0.15
"""How far a count may be from the documented one: other versions of Yosys map otherwise."""
FLOOR_MHZ = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _needs_yosys() -> None:
    if find_tool("yosys") is None:
        pytest.skip("no yosys: pip install rnic[gateware]")


def documented() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(RESOURCES.read_text())["cells"]
    return found


@pytest.mark.parametrize(
    ("family", "width"),
    [
        ("ecp5", 32),
        pytest.param("xilinx", 32, marks=pytest.mark.full),
        pytest.param("xilinx", 512, marks=pytest.mark.full),
    ],
)
def test_engine_synthesizes_and_costs_what_the_docs_say(family: str, width: int) -> None:
    cells = synthesize(Top(EngineParams(bus_width=width)), family).cells
    said = documented()[f"{family} {width}"]
    assert cells.keys() == said.keys()
    for row, count in cells.items():
        assert abs(count - said[row]) <= max(SLACK * said[row], 4), f"{row}: {count}, docs say {said[row]}"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_block_of_the_network_half_fits_both_families(family: str) -> None:
    assert synthesize(IpDecapsulator(EngineParams()), family).cells["FF"] > 500


def test_a_fault_is_found() -> None:
    """That the check can fail: two gates in a ring."""

    class Ring(wiring.Component):
        def __init__(self) -> None:
            super().__init__({"a": In(1), "b": Out(1)})

        def elaborate(self, platform: object) -> Module:
            m = Module()
            loop = Signal()
            m.d.comb += [loop.eq(loop ^ self.a), self.b.eq(loop)]
            return m

    with pytest.raises(ToolError, match="yosys failed with status 1: ERROR: Found 1 problems in 'check -assert'"):
        synthesize(Ring(), "ecp5")


@pytest.mark.full
def test_ecp5_frequency() -> None:
    if find_tool("nextpnr-ecp5") is None:
        pytest.skip("no nextpnr-ecp5: pip install rnic[gateware-test]")
    assert max_frequency_mhz(Top(EngineParams())) >= FLOOR_MHZ
