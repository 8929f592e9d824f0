"""Options and settings of the whole suite."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, so that a red run can be repeated; --full looks further, at random.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("full", deadline=None, max_examples=2000, print_blob=True)


FULL_TIMEOUT_S = 600
"""Two thousand examples take longer than fifty."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also the tests that take minutes")
    parser.addoption("--live", action="store_true", help="also the tests that need the Soft-RoCE guest")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        for item in items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(FULL_TIMEOUT_S))
    for marker in ("full", "live"):
        if config.getoption(f"--{marker}"):
            continue
        skip = pytest.mark.skip(reason=f"runs only with --{marker}")
        for item in items:
            if marker in item.keywords:
                item.add_marker(skip)
