"""Options and settings of the whole suite."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rnic.testing.processes import RUN_VARIABLE, left_behind
from rnic.trace.guard import Guard

# The same examples in every run, so that a red run can be repeated; --full looks further, at random.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("full", deadline=None, max_examples=2000, print_blob=True)


FULL_TIMEOUT_S = 600
"""At least: two thousand examples take longer than fifty, and what takes a minute by itself shares its machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also the tests that take minutes")
    parser.addoption(
        "--slow-only", action="append", default=[], metavar="PLACE", help="only the slow ones of the tests below it"
    )
    parser.addoption("--live", action="store_true", help="also the tests that need the Soft-RoCE guest")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "default")


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


_own_errors: list[tuple[str, Exception]] = []
"""Mistakes of our own that a last guard caught in this process while a test ran, with their places."""
_caught = Guard.caught


def _note(guard: Guard, place: str, error: Exception, concerned: str = "") -> None:
    _own_errors.append((place, error))
    _caught(guard, place, error, concerned)


Guard.caught = _note  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The product goes on after a mistake of its own; a test in which one was made fails."""
    _own_errors.clear()
    result = yield
    if _own_errors and "own_errors" not in item.fixturenames:  # type: ignore[attr-defined]
        place, error = _own_errors[0]
        raise AssertionError(f"a last guard caught a mistake of our own at a {place}") from error
    return result


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
