"""Runs one of the benches' tests in a simulator that is built already."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rnic.gateware.tools import verilator_environment

BENCHES = Path(__file__).parent / "cocotb_benches"
MAKEFLAGS = {False: "OPT_FAST=-O0", True: "OPT_FAST=-O1"}
"""For short runs and full ones. A bench spends its time in Python: the compilation matters more than the simulator."""


def run_testcase(
    runner: Any,
    place: Path,
    top: str,
    module: str,
    testcase: str,
    options: dict[str, Any],
    folders: Sequence[Path] = (BENCHES,),
) -> str:
    """Run ``testcase`` of a bench with ``options`` in ``RNIC_BENCH``; its log. A failure is ours, with the log's end.

    Args:
        place: the simulator is in its ``build``; logs and results go here.
        folders: where the bench's modules lie.
    """
    log, results = place / f"{testcase}.log", place / f"{testcase}.xml"
    sys.path[:0] = [str(folder) for folder in folders]  # cocotb's runner hands this Python's path on
    try:
        runner.test(
            hdl_toplevel=top,
            test_module=module,
            testcase=testcase,
            build_dir=place / "build",
            test_dir=place,
            results_xml=str(results),
            extra_env={"RNIC_BENCH": json.dumps(options)},
            log_file=log,
        )
    except SystemExit:
        end = "\n".join(log.read_text().splitlines()[-60:])
        pytest.fail(f"{testcase} failed in the simulator; the end of {log}:\n{end}", pytrace=False)
    finally:
        del sys.path[: len(folders)]
    cases = list(ET.parse(results).iter("testcase"))
    assert [case.get("name") for case in cases] == [testcase]
    assert not list(cases[0].iter("failure")), f"{testcase} failed, see {log}\n{log.read_text()[-3000:]}"
    return log.read_text()


def prepare_verilator(factory: pytest.TempPathFactory, full: bool) -> None:
    """Set this process's environment so that builds are quick, and all share one compilation of Verilator's runtime."""
    environment = verilator_environment()
    assert not isinstance(environment, str), environment
    base = factory.getbasetemp()
    runtime = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "runtime"
    runtime.mkdir(exist_ok=True)
    cache = shlex.join([sys.executable, str(Path(__file__).with_name("objcache.py")), str(runtime)])
    os.environ.update(environment | {"MAKEFLAGS": MAKEFLAGS[full], "OBJCACHE": cache})


def reason_to_skip(*modules: str) -> str | None:
    """Why the benches cannot run here, where one of their modules is not installed."""
    for module in modules:
        try:
            absent = importlib.util.find_spec(module) is None
        except ModuleNotFoundError:
            absent = True
        if absent:
            return f"{module} is not installed: pip install '.[gateware-test]'"
    return None
