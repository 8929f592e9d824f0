"""Options and settings of the whole suite."""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from rnic.testing.processes import RUN_VARIABLE, left_behind
from rnic.trace.guard import Guard
from tests.attempts import VOID, spent_in_vain

# The same examples in every run, so that a red run can be repeated; --full looks further, at random.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("full", deadline=None, max_examples=2000, print_blob=True)


VOID_LIMIT = 5
"""Tests of a session that may find no valid attempt (tests/attempts.py)."""

QUICK_CPU_S = 0.25
"""Processor time that a test not marked slow may take; time on the wall would tell how loaded the machine is."""
MANY = 1_000
"""Tests of a session in which that holds: the first of a few pays for all that is loaded when it is used first."""
TRACED = 3
"""So many times as much under coverage."""
MILLION_S = 0.012
"""A core on which counting to a million takes longer is slower, or shared, and a test may take as much longer on it."""
QUICK_ATTEMPTS = 4
"""Times that a test is measured at most, since a core may be slower for a moment, beside others: the least counts."""
SPENT = pytest.StashKey[float]()
"""Processor time of a test's call, in seconds."""
QUICK_PLACES = ("unit", "property", "scripts")
NOT_QUICK = ("slow", "full", "live")

FULL_TIMEOUT_S = 600
"""At least: two thousand examples take longer than fifty, and what takes a minute by itself shares its machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also the tests that take minutes")
    parser.addoption(
        "--slow-only", action="append", default=[], metavar="PLACE", help="only the slow ones of the tests below it"
    )
    parser.addoption("--live", action="store_true", help="also the tests that need the Soft-RoCE guest")
    parser.addoption(
        "--void-limit",
        type=int,
        metavar="N",
        help=f"fail when more tests found no valid attempt (default {VOID_LIMIT}, with --full 0)",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "default")
    if not hasattr(config, "workerinput"):  # a worker's reports are its controller's
        limit = config.getoption("--void-limit")
        config.pluginmanager.register(
            VoidCount((0 if config.getoption("--full") else VOID_LIMIT) if limit is None else limit)
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out_quick(config, items)
    if config.getoption("--full"):
        for item in items:
            said = item.get_closest_marker("timeout")
            if said is None or (said.args and said.args[0] < FULL_TIMEOUT_S):
                item.add_marker(pytest.mark.timeout(FULL_TIMEOUT_S), append=False)
    for marker in ("full", "live"):
        if config.getoption(f"--{marker}"):
            continue
        skip = pytest.mark.skip(reason=f"runs only with --{marker}")
        for item in items:
            if marker in item.keywords:
                item.add_marker(skip)


def leave_out_quick(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What ``--slow-only`` asks for."""
    places = [config.rootpath / name for name in config.getoption("--slow-only")]
    quick = [
        item
        for item in items
        if item.get_closest_marker("slow") is None and any(item.path.is_relative_to(place) for place in places)
    ]
    if quick:
        left_out = set(quick)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=quick)


class VoidCount:
    """Counts the tests that found no valid attempt; too many fail the session."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.found: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple) and VOID in report.longrepr[2]:
            self.found.append((report.nodeid, report.longrepr[2].removeprefix("Skipped: ")))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if len(self.found) > self.limit and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.found:
            return
        much = len(self.found) > self.limit
        terminalreporter.section("tests without a valid attempt", red=much, yellow=not much)
        for name, reason in self.found:
            terminalreporter.line(f"{name}: {reason}")
        terminalreporter.line(f"{len(self.found)} of at most {self.limit}{': FAILED' if much else ''}")


_own_errors: list[tuple[str, Exception]] = []
"""Mistakes of our own that a last guard caught in this process while a test ran, with their places."""
_caught = Guard.caught


def _note(guard: Guard, place: str, error: Exception, concerned: str = "") -> None:
    _own_errors.append((place, error))
    _caught(guard, place, error, concerned)


Guard.caught = _note  # type: ignore[assignment, method-assign]


_collecting = [0.0, 0.0]
"""Processor time of whole garbage collections, which depends on what other tests left; when the last one began."""


def _note_collection(phase: str, what: dict[str, int]) -> None:
    if what["generation"] == 2:
        now = time.thread_time()
        if phase == "stop":
            _collecting[0] += now - _collecting[1]
        _collecting[1] = now


gc.callbacks.append(_note_collection)


@pytest.fixture
def short_collections() -> Generator[None, None, None]:
    """For tests that collect garbage after each of many steps: what is there already is not looked at.

    Not for longer: hypothesis asks the collector who refers to its random source.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The product goes on after a mistake of its own; a test in which one was made fails."""
    _own_errors.clear()
    before = processor_time()
    result = yield
    item.stash[SPENT] = processor_time() - before
    if _own_errors and "own_errors" not in item.fixturenames:  # type: ignore[attr-defined]
        place, error = _own_errors[0]
        raise AssertionError(f"a last guard caught a mistake of our own at a {place}") from error
    return result


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Make a test that has to be quick and was not again: of a cost the least of several measurements counts."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    limit = QUICK_CPU_S * (TRACED if "coverage" in sys.modules else 1) if is_quick(item) else math.inf
    for left in reversed(range(QUICK_ATTEMPTS)):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        spent = item.stash.get(SPENT, 0.0)
        if spent <= limit or not all(report.passed for report in reports) or spent <= (may := limit * slowness()):
            break
        if not left:
            call = next(report for report in reports if report.when == "call")
            call.outcome = "failed"
            call.longrepr = f"{spent:.2f} s of processor time: mark it slow, or have it take {may:.2f} s at most"
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def processor_time() -> float:
    """What this process has spent but on garbage and on attempts that were void."""
    return time.process_time() - _collecting[0] - spent_in_vain[0]


def slowness() -> float:
    """How much slower than asked this core is now; 1 for one that is not."""
    before = time.thread_time()
    for _ in range(1_000_000):
        pass
    return max(1.0, (time.thread_time() - before) / MILLION_S)


def is_quick(item: pytest.Item) -> bool:
    """Return whether a test has to take next to no time, in this session."""
    if len(item.session.items) < MANY or "RNIC_UNTIMED" in os.environ:  # a mutant may be slow, beside other suites
        return False
    places = (item.config.rootpath / "tests" / name for name in QUICK_PLACES)
    marked = any(item.get_closest_marker(name) for name in NOT_QUICK)
    return not marked and any(item.path.is_relative_to(place) for place in places)


@pytest.fixture
def own_errors() -> list[tuple[str, Exception]]:
    """For tests that plant mistakes: what the last guards caught, with their places."""
    return _own_errors


LEFT_S = 60.0
"""A NIC process that was begun for a program ends a second after it; on a loaded machine that takes its time."""


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No test leaves a process or a zombie."""
    if not Path("/proc/self/environ").exists():
        yield
        return
    run = f"{os.getpid()}-{time.monotonic_ns()}"
    os.environ[RUN_VARIABLE] = run
    yield
    end = time.monotonic() + LEFT_S
    while (found := left_behind(run)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not found, "tests left processes behind: " + "; ".join(found)
