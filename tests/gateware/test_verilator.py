"""The exported Verilog under Verilator and Icarus, between bus models. The tests themselves are in ``cocotb_benches``.

Verilator knows two states of a wire, Icarus four: what depends on a wire that nobody has driven yet shows there only.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cocotb_run import BENCHES, prepare_verilator, run_testcase
from cocotb_run import reason_to_skip as modules_missing

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
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def simulator_name(params: EngineParams, tool: str) -> str:
    """Of the simulator of an engine, each of which the benches run in one build alone."""
    kind = "serial" if params.serial else "several" if params.in_flight > 1 else "overlapped"
    return f"{tool}-{params.bus_width}-{kind}{f'-{params.address_bits}' if params.wide else ''}"


def group(params: EngineParams, tool: str = "verilator") -> pytest.MarkDecorator:
    """One worker builds a simulator, once, and runs all that is for it."""
    return pytest.mark.xdist_group(simulator_name(params, tool))


def engine(params: EngineParams, name: str, tool: str = "verilator", full: bool = False) -> Any:
    """An engine as a parameter."""
    return pytest.param(params, id=name, marks=[group(params, tool), *([pytest.mark.full] if full else [])])


def reason_to_skip() -> str | None:
    """Why this cannot run here; ``None`` if it can."""
    reason = modules_missing("cocotb", "cocotbext.axi", "cocotbext.eth")
    if reason:
        return reason
    if find_tool("yosys") is None:
        return "no yosys: pip install '.[gateware]'"
    found = verilator_environment()
    return found if isinstance(found, str) else None


class Simulators:
    """Builds one simulator for each tool and set of parameters, once a session."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.built: dict[tuple[str, EngineParams], tuple[Any, Path]] = {}

    def get(self, params: EngineParams, tool: str) -> tuple[Any, Path]:
        """(runner, build directory)"""
        if (tool, params) not in self.built:
            from cocotb_tools.runner import get_runner

            from rnic.gateware.verilog import TOP_NAME, write_engine

            place = self.place / simulator_name(params, tool)
            source, _record = write_engine(params, place)
            runner = get_runner(tool)
            faulthandler.cancel_dump_traceback_later()  # a compilation may take longer than a test
            public = place / "public.vlt"
            public.write_text(PUBLIC.format(top=TOP_NAME))
            runner.build(
                sources=[public, source] if tool == "verilator" else [source],
                hdl_toplevel=TOP_NAME,
                build_dir=place / "build",
                build_args=BUILD_ARGS if tool == "verilator" else (),
                timescale=("1ns", "1ps"),
                log_file=place / "build.log",
            )
            self.built[tool, params] = runner, place
        return self.built[tool, params]


@pytest.fixture(scope="session")
def simulators(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Simulators:
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)
    prepare_verilator(tmp_path_factory, pytestconfig.getoption("full"))
    kept = os.environ.get("RNIC_VERILATOR_DIR")
    return Simulators(Path(kept) if kept else tmp_path_factory.mktemp("verilator"))


def simulate(
    simulators: Simulators,
    params: EngineParams,
    testcase: str,
    tool: str = "verilator",
    bench: str = "engine_bench",
    **options: Any,
) -> None:
    """Run one of a bench's tests; its failure is ours, with the end of cocotb's log."""
    from rnic.gateware.verilog import TOP_NAME

    runner, place = simulators.get(params, tool)
    options["params"] = dataclasses.asdict(params)
    run_testcase(runner, place, TOP_NAME, bench, testcase, options, (BENCHES, BENCHES.parent))


SERIAL_32 = EngineParams()
NOT_IN_SHORT = ("every_size_and_alignment", "long_sizes", "stalls_on_every_channel", "soft_reset_at_any_time")
"""What the engine of 512 bits does in the short run, or the blocks' and the engine's own simulation does."""
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


@group(SERIAL_32)
@pytest.mark.parametrize(
    "testcase",
    [pytest.param(name, marks=pytest.mark.full if name in NOT_IN_SHORT else ()) for name in TESTS],
)
def test_serial_engine_of_32_bits(simulators: Simulators, testcase: str) -> None:
    simulate(simulators, SERIAL_32, testcase)


OVERLAPPED = {width: EngineParams(bus_width=width, serial=False) for width in (32, 128, 512)}


@pytest.mark.parametrize("params", [engine(params, str(width), full=True) for width, params in OVERLAPPED.items()])
@pytest.mark.parametrize("testcase", TESTS)
def test_overlapped_engine(simulators: Simulators, params: EngineParams, testcase: str) -> None:
    simulate(simulators, params, testcase)


SEVERAL_32, SEVERAL_512 = (
    EngineParams(bus_width=width, serial=False, in_flight=8, outstanding=32) for width in (32, 512)
)
IN_SHORT = ("every_size_and_alignment", "long_sizes", "packets_on_the_mac", "soft_reset_at_any_time")


@pytest.mark.parametrize("params", [engine(SEVERAL_32, "32", full=True), engine(SEVERAL_512, "512", full=True)])
@pytest.mark.parametrize("testcase", TESTS)
def test_engine_with_several_writes_in_flight(simulators: Simulators, params: EngineParams, testcase: str) -> None:
    simulate(simulators, params, testcase)


@group(SEVERAL_512)
@pytest.mark.parametrize("testcase", IN_SHORT)
def test_engine_with_several_writes_in_flight_in_short(simulators: Simulators, testcase: str) -> None:
    simulate(simulators, SEVERAL_512, testcase, small=80)


WIDE_SERIAL = EngineParams(address_bits=64)
WIDE_SEVERAL = EngineParams(address_bits=64, bus_width=128, serial=False, in_flight=4)


@pytest.mark.full
@pytest.mark.parametrize("params", [engine(WIDE_SERIAL, "serial"), engine(WIDE_SEVERAL, "several")])
def test_memory_above_4_gib(simulators: Simulators, params: EngineParams) -> None:
    for testcase in ("documents_own_test", "packets_on_the_mac"):
        simulate(simulators, params, testcase)
    timing = {"order": "data_first", "latency": 3, "mix_ids": True}
    simulate(simulators, params, "every_order_of_address_and_data", bench="axi_bench", timing=timing, stalls=0.1)


# ---------------------------------------------------------------- rnic's own slave, in every order


@pytest.fixture(scope="session")
def icarus(simulators: Simulators) -> Simulators:
    if shutil.which("iverilog") is None:
        pytest.skip("no iverilog on PATH: apt install iverilog")
    return simulators


TIMINGS: tuple[dict[str, Any], ...] = (
    {"order": "data_first"},
    {"order": "together", "latency": 7},
    {"order": "address_first", "latency": 40, "mix_ids": True},
    {"order": "any", "mix_ids": True},
)


ENGINES = [
    engine(SERIAL_32, "32-serial"),
    engine(OVERLAPPED[512], "512-overlapped", full=True),
    engine(SEVERAL_32, "32-several", full=True),
    engine(SEVERAL_512, "512-several"),
]


@pytest.mark.parametrize(
    "timing",
    [
        pytest.param(
            timing,
            id="-".join(map(str, timing.values())),
            marks=() if timing["order"] in ("data_first", "any") else pytest.mark.full,
        )
        for timing in TIMINGS
    ],
)
@pytest.mark.parametrize("params", ENGINES)
def test_every_order_of_address_and_data(simulators: Simulators, params: EngineParams, timing: dict[str, Any]) -> None:
    simulate(simulators, params, "every_order_of_address_and_data", bench="axi_bench", timing=timing, stalls=0.2)


@pytest.mark.parametrize("params", ENGINES)
def test_a_soft_reset_keeps_the_bus_in_order(simulators: Simulators, params: EngineParams) -> None:
    timing = {"order": "data_first", "latency": 5}
    simulate(simulators, params, "a_soft_reset_keeps_the_bus_in_order", bench="axi_bench", timing=timing, stalls=0.1)


# serially, at 32 bits, it takes minutes
@pytest.mark.parametrize("params", [engine(SERIAL_32, "32-serial", full=True), *ENGINES[1:]])
def test_memory_fails_and_falls_silent_anywhere(simulators: Simulators, params: EngineParams) -> None:
    timing = {"order": "any", "latency": 9, "mix_ids": True}
    simulate(simulators, params, "memory_fails_and_falls_silent_anywhere", bench="axi_bench", timing=timing, rounds=12)


UNDER_ICARUS = [
    engine(SERIAL_32, "32", "icarus"),
    engine(OVERLAPPED[512], "512", "icarus", full=True),
    engine(SEVERAL_32, "32-several", "icarus"),
    engine(SEVERAL_512, "512-several", "icarus", full=True),
]


@pytest.mark.parametrize("params", UNDER_ICARUS)
def test_every_order_under_icarus(icarus: Simulators, params: EngineParams) -> None:
    timing = {"order": "data_first", "latency": 3, "mix_ids": True}
    simulate(icarus, params, "every_order_of_address_and_data", "icarus", "axi_bench", timing=timing, stalls=0.1)


@pytest.mark.parametrize(
    "params", [engine(WIDE_SERIAL, "serial", "icarus"), engine(WIDE_SEVERAL, "several", "icarus", full=True)]
)
def test_memory_above_4_gib_under_icarus(icarus: Simulators, params: EngineParams) -> None:
    timing = {"order": "data_first", "latency": 3, "mix_ids": True}
    simulate(icarus, params, "every_order_of_address_and_data", "icarus", "axi_bench", timing=timing, stalls=0.1)
    simulate(icarus, params, "packets_on_the_mac", "icarus")


@pytest.mark.full
@pytest.mark.parametrize("params", UNDER_ICARUS)
def test_memory_fails_and_falls_silent_anywhere_under_icarus(icarus: Simulators, params: EngineParams) -> None:
    timing = {"order": "together", "latency": 9, "mix_ids": True}
    testcase = "memory_fails_and_falls_silent_anywhere"
    simulate(icarus, params, testcase, "icarus", "axi_bench", timing=timing, rounds=12)


@pytest.mark.full
@pytest.mark.parametrize("params", UNDER_ICARUS)
def test_models_of_others_under_icarus(icarus: Simulators, params: EngineParams) -> None:
    for testcase in ("documents_own_test", "packets_on_the_mac"):
        simulate(icarus, params, testcase, "icarus")
