"""Everything here needs Amaranth; without it the whole folder is left out, and says so."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test_map reads the rows as mutate does
HAVE_AMARANTH = importlib.util.find_spec("amaranth") is not None
collect_ignore_glob = [] if HAVE_AMARANTH else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group(name): tests of one name go to one worker")  # without xdist too


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not HAVE_AMARANTH:
        terminalreporter.write_line("tests/gateware left out: no amaranth; pip install '.[gateware]'")
