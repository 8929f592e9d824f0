"""The engine in a LiteX system, whose Verilog is made here and carries data under Verilator and Icarus."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cocotb_run import reason_to_skip, run_testcase

from rnic.gateware.tools import find_tool, verilator_environment
from rnic.spec.source import install_hint

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "litex_soc.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def _needs_tools() -> None:
    if importlib.util.find_spec("litex") is None:
        pytest.skip(f"no LiteX: {install_hint('litex')}")
    if find_tool("yosys") is None:
        pytest.skip("no yosys: pip install '.[gateware]'")
    reason = reason_to_skip("cocotb", "cocotbext.axi")
    if reason:
        pytest.skip(reason)
    found = verilator_environment()  # LiteX's own simulator too
    if isinstance(found, str):
        pytest.skip(found)
    os.environ.update(found)


@pytest.mark.filterwarnings("ignore:.*invalid escape sequence")  # LiteX's own, where nothing of it was compiled before
@pytest.mark.usefixtures("_needs_tools")
def test_an_engine_whose_addresses_the_bus_has_not_got(tmp_path: Path) -> None:
    from rnic.gateware.litex_core import add_engine
    from rnic.gateware.params import EngineParams

    soc = SimpleNamespace(bus=SimpleNamespace(address_width=32))
    with pytest.raises(ValueError, match="address_bits=40 on a bus with 32"):
        add_engine(soc, EngineParams(address_bits=40), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("tool", "width", "bus"),
    [("verilator", 32, 32), ("verilator", 64, 32), ("icarus", 32, 32)],
    ids=["as-wide", "wider", "icarus"],
)
@pytest.mark.usefixtures("_needs_tools")
def test_data_move_through_litexs_bus(tool: str, width: int, bus: int, tmp_path: Path) -> None:
    if tool == "icarus" and shutil.which("iverilog") is None:
        pytest.skip("no iverilog: apt install iverilog")
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--width", str(width), "--bus", str(bus)]
    faulthandler.cancel_dump_traceback_later()  # a compilation may take longer than a test
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    from cocotb_tools.runner import get_runner

    runner = get_runner(tool)
    fast = ["-Wno-fatal", "-Wno-lint", "-O3", "--output-split", "0", "--x-assign", "fast"]
    runner.build(
        sources=[tmp_path / "soc.v", tmp_path / "rnic_engine.v"],
        hdl_toplevel="soc",
        build_dir=tmp_path / "build",
        build_args=fast if tool == "verilator" else [],
        timescale=("1ns", "1ps"),
        log_file=tmp_path / "build.log",
    )
    run_testcase(runner, tmp_path, "soc", "litex_bench", "writes_through_the_bus_of_litex", {})
