"""Runs one of the benches' tests in a simulator that is built already."""

from __future__ import annotations

import importlib.util
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

BENCHES = Path(__file__).parent / "cocotb_benches"


def run_testcase(runner: Any, place: Path, top: str, module: str, testcase: str, options: dict[str, Any]) -> None:
    """Run ``testcase`` of a bench with ``options`` in ``RNIC_BENCH``; a failure is ours, with the end of its log.

    Args:
        place: the simulator is in its ``build``; logs and results go here.
    """
    log, results = place / f"{testcase}.log", place / f"{testcase}.xml"
    places = [str(BENCHES), str(BENCHES.parent)]
    sys.path[:0] = places  # cocotb's runner hands this Python's path on
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
        for folder in places:
            sys.path.remove(folder)
    cases = list(ET.parse(results).iter("testcase"))
    assert [case.get("name") for case in cases] == [testcase]
    assert not list(cases[0].iter("failure")), f"{testcase} failed, see {log}"


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
