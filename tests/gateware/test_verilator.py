"""The exported Verilog under Verilator, between cocotb's bus models. The tests themselves are in ``cocotb_benches``."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
from pathlib import Path
from typing import Any

import pytest
from cocotb_run import reason_to_skip as modules_missing
from cocotb_run import run_testcase

from rnic.gateware.params import EngineParams
from rnic.gateware.tools import find_tool, verilator_environment

PUBLIC = """`verilator_config
public_flat_rw -module "{top}" -var "*"
"""
"""Only what the benches touch can be reached from outside; the rest is Verilator's to optimize away."""
BUILD_ARGS = (
    "--no-public-flat-rw",  # takes back what cocotb asks for
    *("-O3", "--output-split", "0", "--x-assign", "fast", "--x-initial", "fast", "-Wno-fatal", "-Wno-lint"),
)
MAKEFLAGS = "OPT_FAST=-O1"
"""The benches' time goes into Python; a quick compilation is worth more than a quick simulator."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def reason_to_skip() -> str | None:
    """Why this cannot run here; ``None`` if it can."""
    reason = modules_missing("cocotb", "cocotbext.axi", "cocotbext.eth")
    if reason:
        return reason
    if find_tool("yosys") is None:
        return "no yosys: pip install rnic[gateware]"
    found = verilator_environment()
    return found if isinstance(found, str) else None


class Simulators:
    """Builds one simulator for each set of parameters, once a session."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.built: dict[EngineParams, tuple[Any, Path]] = {}

    def get(self, params: EngineParams) -> tuple[Any, Path]:
        """(runner, build directory)"""
        if params not in self.built:
            from cocotb_tools.runner import get_runner

            from rnic.gateware.verilog import TOP_NAME, write_engine

            place = self.place / f"w{params.bus_width}-{len(self.built)}"
            source, _record = write_engine(params, place)
            runner = get_runner("verilator")
            faulthandler.cancel_dump_traceback_later()  # a compilation may take longer than a test
            public = place / "public.vlt"
            public.write_text(PUBLIC.format(top=TOP_NAME))
            runner.build(
                sources=[public, source],
                hdl_toplevel=TOP_NAME,
                build_dir=place / "build",
                build_args=BUILD_ARGS,
                timescale=("1ns", "1ps"),
                log_file=place / "build.log",
            )
            self.built[params] = runner, place
        return self.built[params]


@pytest.fixture(scope="session")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Simulators:
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)
    environment = verilator_environment()
    assert not isinstance(environment, str)
    os.environ.update(environment | {"MAKEFLAGS": MAKEFLAGS})
    kept = os.environ.get("RNIC_VERILATOR_DIR")
    return Simulators(Path(kept) if kept else tmp_path_factory.mktemp("verilator"))


def simulate(simulators: Simulators, params: EngineParams, testcase: str, **options: Any) -> None:
    """Run one of the benches' tests; its failure is ours, with the end of cocotb's log."""
    from rnic.gateware.verilog import TOP_NAME

    runner, place = simulators.get(params)
    options["params"] = dataclasses.asdict(params)
    run_testcase(runner, place, TOP_NAME, "engine_bench", testcase, options)


SERIAL_32 = EngineParams()
TESTS = (
    "documents_own_test",
    "registers",
    "every_size_and_alignment",
    "long_sizes",
    "stalls_on_every_channel",
    "bad_descriptors_and_bus_errors",
    "packets_on_the_mac",
    "a_lost_fragment_harms_nothing_else",
    "soft_reset_at_any_time",
)


@pytest.mark.parametrize("testcase", TESTS)
def test_serial_engine_of_32_bits(simulators: Simulators, testcase: str) -> None:
    simulate(simulators, SERIAL_32, testcase)


@pytest.mark.parametrize("width", [32, 128, 512])
@pytest.mark.parametrize("testcase", TESTS)
@pytest.mark.full
def test_overlapped_engine(simulators: Simulators, width: int, testcase: str) -> None:
    simulate(simulators, EngineParams(bus_width=width, serial=False), testcase)


@pytest.mark.parametrize("testcase", ["documents_own_test", "every_size_and_alignment", "soft_reset_at_any_time"])
def test_overlapped_engine_of_512_bits(simulators: Simulators, testcase: str) -> None:
    simulate(simulators, EngineParams(bus_width=512, serial=False), testcase, small=80)
