"""Who works: the engine wherever it is compiled, the reference where it is not or the environment says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rnic.engine import use
from rnic.spec import twins

ASK = (
    "from rnic.engine import use; from rnic.spec.twins import in_use;"
    "print(use.ENGINE is not None, in_use['rnic.engine'])"
)


@pytest.mark.slow
@pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled, or not to be used here")
@pytest.mark.parametrize(
    ("said", "takes"),
    [({}, True), ({"RNIC_ENGINE": "1"}, True), ({"RNIC_ENGINE": "0"}, False), ({"RNIC_PLAIN": "1"}, False)],
    ids=["nothing", "engine", "no engine", "plain"],
)
def test_the_environment_decides(said: dict[str, str], takes: bool) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("RNIC_ENGINE", "RNIC_PLAIN")}
    done = subprocess.run([sys.executable, "-c", ASK], env=env | said, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(takes)] * 2


@pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled, or not to be used here")
@pytest.mark.parametrize("name", ["rnic.engine._engine", "rnic.sim.native._fabric"])
def test_a_module_that_was_compiled_from_other_tables_is_not_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "in_use", twins.in_use.copy())
    monkeypatch.setattr(use, "in_use", twins.in_use)
    assert use.compiled("a twin", name) is not None
    assert twins.in_use["a twin"] is True
    monkeypatch.setattr(use, "LAYOUT", use.LAYOUT ^ 1)
    assert use.compiled("a twin", name) is None
    assert twins.in_use["a twin"] is False
