"""Everything here needs Amaranth; without it the whole folder is left out, and says so."""

from __future__ import annotations

import gc
import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test_map reads the rows as mutate does
HAVE_AMARANTH = importlib.util.find_spec("amaranth") is not None
collect_ignore_glob = [] if HAVE_AMARANTH else ["test_*.py"]
LONGEST_FIRST = (
    "verilator-32-serial", "scenarios", "verilator-512-several", "channels", "ctxmgt", "icarus-32-several",
    "icarus-32-serial", "paxi_cocotb",
)  # fmt: skip
"""Groups of tests that one worker runs. Single tests fill up what the workers have left at the end."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group(name): tests of one name go to one worker")  # without xdist too
    gc.set_threshold(100_000, 20, 100)  # Amaranth makes a million small objects for each engine, and few cycles


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        marker = item.get_closest_marker("xdist_group")
        name = marker.args[0] if marker else ""
        return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST) + (not name)

    items.sort(key=place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not HAVE_AMARANTH:
        terminalreporter.write_line("tests/gateware left out: no amaranth; pip install '.[gateware]'")
