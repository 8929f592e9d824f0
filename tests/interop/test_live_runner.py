"""The live runs' own logic, without a guest: the table of runs, verdicts, arguments."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

INTEROP = Path(__file__).resolve().parents[2] / "interop"


@pytest.fixture(scope="module")
def live() -> Iterator[ModuleType]:
    """The program as a module; it finds its neighbours through ``sys.path``, as when it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(INTEROP))
        spec = importlib.util.spec_from_file_location("interop_run", INTEROP / "run.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "interop_run", module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        yield module


def test_table_holds_what_the_live_proof_promises(live: ModuleType) -> None:
    runs = list(live.cases())
    assert {run.role for run in runs} == {"client", "server"}
    assert {run.family for run in runs} == {4, 6}
    by_cm = {
        "rping",
        "rping-netem",
        "ucmatose",
        "ucmatose-hundred",
        "udaddy",
        "mckey",
        "cmtime",
        "rstream",
        "riostream",
    }
    by_cm |= {"ib_write_bw", "ib_read_bw", "ib_send_bw"}
    assert {run.tool.name for run in runs} == {"rc", "uc", "ud", "srq", "late", "conform", "nvmeof", "reorder"} | by_cm
    managed = [run for run in runs if run.tool.connects is not None]
    assert {run.tool.name for run in managed} == by_cm
    assert {(run.role, run.family) for run in managed} == {("client", 4), ("server", 4), ("client", 6), ("server", 6)}
    assert all(run.quick == (run.tool.name != "riostream") and run.name.endswith("-cm") for run in managed)
    runs = [run for run in runs if run not in managed]
    assert {run.mtu for run in runs if run.tool.name != "ud"} == {1024, 4096}
    assert len({run.size for run in runs}) >= 4
    assert {run.events for run in runs} == {True, False}
    names = [run.name for run in runs]
    assert len(set(names)) == len(names)
    assert all("-c" in run.options() for run in runs), "data is checked in every run"


def test_quick_runs_cover_tools_roles_and_families(live: ModuleType) -> None:
    quick = live.parse([]).cases
    assert {(run.tool.name, run.role, run.family) for run in quick} == {
        (run.tool.name, run.role, run.family) for run in live.cases() if run.tool.name not in ("riostream", "reorder")
    }
    rc = [run for run in quick if run.tool.name == "rc"]
    assert {run.mtu for run in rc} == {1024, 4096}
    assert {run.events for run in rc} == {True, False}
    assert len(quick) < len(live.parse(["--all"]).cases)
    assert [run.name for run in live.parse(["-k", "ud-server-ipv6-size4096"]).cases] == ["ud-server-ipv6-size4096"]


@pytest.mark.parametrize(
    ("status", "output", "problem"),
    [
        (0, "IBA\n150 pass, 0 fail, 11 deviation", ""),
        (1, "1 pass, 1 fail", "rnic conform exited with 1: 1 pass, 1 fail"),
        (0, "", "rnic conform exited with 0: "),
        (None, "", "the scripts did not end within 300 s"),
    ],
)
def test_verdict_of_the_scripts(live: ModuleType, status: int | None, output: str, problem: str) -> None:
    assert live.conform_verdict(status, output) == problem


GOOD = "500 iters in 0.1 seconds = 200 usec/iter\n"


@pytest.mark.parametrize(
    ("client", "server", "problem"),
    [
        ((0, GOOD), (0, GOOD), ""),
        ((0, GOOD), (0, GOOD + "invalid data in page 0\n"), "guest saw wrong data"),
        ((1, "boom"), (-15, ""), "rnic exited with 1"),
        ((0, ""), (0, GOOD), "rnic did not print '500 iters in'"),
        ((0, GOOD), (None, ""), "guest did not end within 60 s"),
    ],
)
def test_verdict(
    live: ModuleType, client: tuple[int | None, str], server: tuple[int | None, str], problem: str
) -> None:
    case = live.Case(live.TOOLS[0], "client", 4, 1024, 1024, events=False)
    assert live.verdict(case, [("rnic", *client), ("guest", *server)]) == problem


@pytest.mark.parametrize(
    ("linux", "rnic", "problem"),
    [
        ("200 iters in 2.00 seconds", "200 iters in 2.40 seconds", ""),
        (
            "200 iters in 2.00 seconds",
            "200 iters in 2.41 seconds",
            "rnic took 4.8 s, more than 1.2 times the 4.0 s of Linux",
        ),
        ("200 iters in 2.00 seconds", "invalid data in page 0\n200 iters in 1 seconds", "rnic saw wrong data"),
        ("Failed status", "200 iters in 2.40 seconds", "Linux did not print '200 iters in'"),
    ],
)
def test_verdict_of_the_reordered(live: ModuleType, linux: str, rnic: str, problem: str) -> None:
    assert live.reorder_run.verdict({"Linux": [linux] * 2, "rnic": [rnic] * 2}) == problem


def test_report_fails_when_one_run_did(live: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(live.cases())
    good = live.Result(case, 1.0, "", "")
    bad = live.Result(case, 1.0, "rnic exited with 1", "--- rnic\nboom\n")
    assert live.report([good], as_json=False) == 0
    assert live.report([good, bad], as_json=False) == 1
    captured = capsys.readouterr()
    assert "1 passed, 1 failed" in captured.out
    assert "boom" in captured.err


@pytest.mark.slow
def test_unknown_run_is_one_line_and_status_2() -> None:
    done = subprocess.run(
        [sys.executable, str(INTEROP / "run.py"), "-k", "no such run"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "'no such run'; --list shows them" in done.stderr
