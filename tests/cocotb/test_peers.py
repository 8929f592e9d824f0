"""The RoCEv2 peer for RTL benches, in simulators: the tests themselves are in ``benches``."""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cocotb_run import run_testcase

from rnic.gateware.tools import verilator_environment

HERE = Path(__file__).parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BUGS = {1: ("ack-unsent",), 2: ("msn",), 3: ("icrc",), 4: ("ack-gap",), 5: ("headers",), 6: ("syndrome",)}
"""The rules that each mistake of ``ack_responder.v`` may be caught by first."""


def run(place: Path, tool: str, top: str, parameters: dict[str, int], bench: str, case: str, **options: Any) -> str:
    """Build a design and run one test of a bench on it; its log."""
    if tool == "icarus":
        if shutil.which("iverilog") is None or shutil.which("vvp") is None:
            pytest.skip("no Icarus Verilog (iverilog) on PATH")
        environment: dict[str, str] = {}
    else:
        found = verilator_environment()
        if isinstance(found, str):
            pytest.skip(found)
        environment = found
    from cocotb_tools.runner import get_runner

    os.environ.update(environment)
    faulthandler.cancel_dump_traceback_later()  # a compilation may take longer than a test
    runner = get_runner(tool)
    runner.build(
        sources=[HERE / "rtl" / "axis_fifo.v", HERE / "rtl" / f"{top}.v"],
        hdl_toplevel=top,
        parameters=parameters,
        build_dir=place / "build",
        build_args=["-Wno-fatal", "-Wno-lint"] if tool == "verilator" else [],
        timescale=("1ns", "1ps"),
        log_file=place / "build.log",
    )
    return run_testcase(runner, place, top, bench, case, options, (HERE / "benches", place))


@pytest.mark.parametrize(
    ("tool", "width", "ethernet", "case"),
    [
        ("icarus", 64, True, "every_operation"),
        ("icarus", 512, False, "every_operation"),
        ("icarus", 128, True, "losses_and_reorderings"),
        # a compilation of a minute, for what Icarus has shown
        pytest.param("verilator", 256, False, "losses_and_reorderings", marks=pytest.mark.full),
    ],
)
def test_two_peers_back_to_back(tmp_path: Path, tool: str, width: int, ethernet: bool, case: str) -> None:
    options = {"ethernet": ethernet, "mtu": 1024}
    run(tmp_path, tool, "back_to_back", {"BYTES": width // 8}, "pair_bench", case, **options)


def test_a_right_responder_passes(tmp_path: Path) -> None:
    run(tmp_path, "icarus", "ack_responder", {"BUG": 0}, "responder_bench", "a_right_one_passes")


@pytest.mark.parametrize("bug", BUGS)
def test_a_broken_responder_is_caught(tmp_path: Path, bug: int) -> None:
    """By the right rule, with clause and time."""
    log = run(
        tmp_path, "icarus", "ack_responder", {"BUG": bug}, "responder_bench", "a_broken_one_is_caught", rules=BUGS[bug]
    )
    assert " ns: frame " in log


def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = (HERE.parents[1] / "docs" / "rtl-peer.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    (tmp_path / "page_bench.py").write_text(found[1])
    run(tmp_path, "icarus", "ack_responder", {"BUG": 0}, "page_bench", "messages_are_acknowledged")
