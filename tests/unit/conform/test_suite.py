"""The suite on rnic: all pass as it is; with a fault planted, the test that is meant for it fails."""

from __future__ import annotations

import pytest

from rnic.conform.bench import simulated
from rnic.conform.mutants import MUTANTS, Mutant, found_by, planted
from rnic.conform.runner import PASS, run, run_all
from rnic.conform.script import scripts


@pytest.mark.slow
def test_rnic_itself_passes() -> None:
    results = run_all(simulated(), scripts())
    assert [(r.script.name, r.detail) for r in results if r.verdict != PASS] == []
    assert len(results) == len(scripts())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant, capsys: pytest.CaptureFixture[str]) -> None:
    assert found_by(mutant, mutant.finds) == [mutant.finds]
    assert "a mistake in rnic" not in capsys.readouterr().err, "the fault is broken itself"


@pytest.mark.slow
def test_no_fault_is_found_where_none_is() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30
    harmless = Mutant("none", "")
    tried = {mutant.finds for mutant in MUTANTS}
    with planted(harmless) as bench:
        found = [(script.name, run(bench, script).verdict) for script in scripts() if script.name in tried]
    assert set(found) == {(name, PASS) for name in tried}


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_fails_few_others(mutant: Mutant) -> None:
    found = found_by(mutant)
    assert mutant.finds in found
    assert len(found) < len(scripts())
