"""Everything here needs cocotb; without it the whole folder is left out, and says so."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rnic.spec.source import install_hint

sys.path.insert(0, str(Path(__file__).parents[1] / "gateware"))  # cocotb_run, which both folders run benches by
HAVE_COCOTB = importlib.util.find_spec("cocotb") is not None
collect_ignore_glob = [] if HAVE_COCOTB else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not HAVE_COCOTB:
        terminalreporter.write_line(f"tests/cocotb left out: no cocotb; {install_hint('cocotb')}")
