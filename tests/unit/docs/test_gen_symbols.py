"""The table of the libraries' functions: every one that only refuses has a reason, and no other."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from rnic.abi import exports
from rnic.abi.build import SOURCES, implemented

DOCS = Path(__file__).parents[3] / "docs"
ANSWERED = {"ibv_query_ece", "ibv_set_ece"}
"""Functions that are written and refuse always."""
OF_THE_SYSTEM = {"umad_get_issm_path", "umad_open_smi_port"}
"""Functions of the system's libibumad whose files are not there."""


@pytest.fixture
def gen(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    import gen_symbols as module

    return module


def test_what_only_refuses_has_a_reason() -> None:
    names = {name for versions in (exports.VERBS, exports.RDMACM) for listed in versions.values() for name in listed}
    assert set(exports.REFUSED) == names - implemented(sorted(SOURCES.glob("*.c"))) | ANSWERED | OF_THE_SYSTEM


def test_each_function_has_a_row(gen: ModuleType) -> None:
    table = gen.tables()
    assert "| `ibv_open_device` | IBVERBS_1.1 | done |" in table
    assert "| `ibv_set_ece` | IBVERBS_1.10 | refused: there are no enhanced connection options" in table
    count = sum(len(names) for _, _, versions in gen.LIBRARIES for names in versions.values())
    assert sum(line.startswith("| `") for line in table.splitlines()) == count
