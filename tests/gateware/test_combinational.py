"""No path without a register from an input of an exported interface to an output (IHI 0022 A3.1.1)."""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from rnic.gateware.axi_arbiter import AxiArbiter
from rnic.gateware.combinational import combinational_paths
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.top import CtxMgt
from rnic.gateware.params import BUS_WIDTHS, EngineParams
from rnic.gateware.register_slice import ANSWERS, AxiSlice
from rnic.gateware.simulate import MEASURED, TOLERANT
from rnic.gateware.tools import ToolError, find_tool
from rnic.gateware.top import Top

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SEVERAL: dict[str, Any] = {"serial": False, "in_flight": 4}
ENGINES = {
    **MEASURED,
    "tolerant": TOLERANT,
    **{f"{width} bit, several": EngineParams(bus_width=width, **SEVERAL) for width in BUS_WIDTHS},
    "128 bit": EngineParams(bus_width=128, serial=False),
    "two more clocks": EngineParams(mac_clock_mhz=125, bus_clock_mhz=150),
    "64 address bits": EngineParams(address_bits=64, network=False),
    "documented": EngineParams(documented_cqe=True, documented_debug=True),
}
"""Every kind of engine that a test has; all but one with --full, since each takes Amaranth and Yosys a while."""


@pytest.fixture(autouse=True)
def _needs_yosys() -> None:
    if find_tool("yosys") is None:
        pytest.skip("no yosys: pip install '.[gateware]'")


class Mixed(wiring.Component):
    """Three outputs that an input reaches, and three that a register keeps from it."""

    def __init__(self) -> None:
        super().__init__(
            {
                "a": In(4),
                "b": In(4),
                "wire": Out(1),
                "sum": Out(5),
                "read": Out(4),
                "held": Out(4),
                "other_bit": Out(1),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """A FIFO's word is read by an address of registers alone; of a concatenation only its own bits count."""
        m = Module()
        m.submodules.fifo = fifo = SyncFIFO(width=4, depth=4)
        word = Signal(8)
        held = Signal(4)
        m.d.sync += held.eq(self.a + self.b)
        m.d.comb += [
            word.eq(Cat(self.a, held) & 0xF1),
            self.wire.eq(word[0]),
            self.other_bit.eq(word[5]),
            self.sum.eq(self.a + held),
            self.held.eq(held),
            fifo.w_data.eq(self.a),
            fifo.w_en.eq(self.b[0]),
            self.empty.eq(~fifo.r_rdy),
            self.read.eq(fifo.r_data & self.b),
        ]
        return m


def test_a_path_is_found_and_a_register_ends_it() -> None:
    assert combinational_paths(Mixed()) == [("a", "sum"), ("a", "wire"), ("b", "read")]


UNKNOWN = r"""
module \dut
  wire input 1 \a
  wire output 2 \b
  cell \black_box \box
    connect \A \a
    connect \B \b
  end
end
"""


def test_a_cell_that_is_not_known_is_an_error() -> None:
    with pytest.raises(ToolError, match="black_box"):
        combinational_paths(UNKNOWN)


@pytest.mark.parametrize("width", [32, 512])
def test_the_slice_ends_the_arbiters_path(width: int) -> None:
    """That there is one, or the slice would be for nothing."""
    params = EngineParams(bus_width=width)
    before = combinational_paths(AxiArbiter(params))
    assert ("bus_rvalid", "bus_rready") in before
    assert ("bus_bid", "bus_bready") in before
    answers = tuple(f"bus_{channel}" for channel in ANSWERS)
    assert not [pair for pair in combinational_paths(AxiSlice(params)) if pair[0].startswith(answers)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name, marks=() if name == "32 bit, serial" else pytest.mark.full) for name in ENGINES],
)
def test_no_interface_of_an_engine_has_one(name: str) -> None:
    assert combinational_paths(Top(ENGINES[name])) == []


@pytest.mark.parametrize("log_qps", [5, pytest.param(12, marks=pytest.mark.full)])
def test_no_interface_of_ctxmgt_has_one(log_qps: int) -> None:
    assert combinational_paths(CtxMgt(CtxMgtParams(log_qps=log_qps))) == []
