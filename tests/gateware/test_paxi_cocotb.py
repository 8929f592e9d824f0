"""cocotbext-axi's master on another process's memory: the tests are in ``cocotb_benches/paxi_bench.py``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from cocotb_run import BENCHES, prepare_verilator, reason_to_skip, run_testcase

from rnic.gateware.tools import verilator_environment
from rnic.testing import own_network

ADDR = f"{own_network()}.74"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("paxi_cocotb")]
WIDTHS = (64, 8, 1024)
"""Bits of the bus; all of those between are tried with ``--full``."""
MORE_WIDTHS = (16, 32, 128, 256, 512)
WAITS = ("a_dead_target_is_slverr",)
TESTS = (
    "traffic",
    "traffic_with_stalls_on_every_channel",
    "wrapping_and_fixed_bursts",
    "exclusive_accesses",
    "error_answers",
    "a_dead_target_is_slverr",
)


def simulator() -> str:
    """Icarus where it is installed, else Verilator; skips with the reason where neither can run."""
    reason = reason_to_skip("cocotb", "cocotbext.axi")
    if reason:
        pytest.skip(reason)
    if shutil.which("iverilog") and shutil.which("vvp"):
        return "icarus"
    found = verilator_environment()
    if isinstance(found, str):
        pytest.skip(f"no Icarus Verilog, and {found}")
    return "verilator"


@pytest.fixture(
    scope="module", params=[*WIDTHS, *(pytest.param(width, marks=pytest.mark.full) for width in MORE_WIDTHS)]
)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, int]:
    """(runner, build directory, width)"""
    name = simulator()
    if name == "verilator":
        prepare_verilator(tmp_path_factory, request.config.getoption("full"))
    from cocotb_tools.runner import get_runner

    width = request.param
    place = tmp_path_factory.mktemp(f"paxi{width}")
    runner = get_runner(name)
    runner.build(
        sources=[BENCHES / "axi_wires.v"],
        hdl_toplevel="axi_wires",
        parameters={"DATA": width},
        build_dir=place / "build",
        timescale=("1ns", "1ps"),
        log_file=place / "build.log",
    )
    return runner, place, width


@pytest.mark.parametrize("testcase", TESTS)
def test_axi_master_on_a_window(request: pytest.FixtureRequest, built: tuple[Any, Path, int], testcase: str) -> None:
    runner, place, width = built
    if width != WIDTHS[0] and testcase in WAITS and not request.config.getoption("--full"):
        pytest.skip("waits for seconds, which the other width has done: runs only with --full")
    options = {"addr": ADDR, "width": width, "python": sys.executable, "bursts": 15}
    run_testcase(runner, place, "axi_wires", "paxi_bench", testcase, options)
