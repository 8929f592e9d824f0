"""Check that ``rnic conform`` finds faults: plant each fault in rnic, and list the tests that fail.

With ``--short`` only the test for that fault runs. Exit status 1 if a fault is not found.
"""

from __future__ import annotations

import time

import harness

from rnic.conform.bench import simulated
from rnic.conform.mutants import MUTANTS, found_by
from rnic.conform.runner import PASS, run_all
from rnic.conform.script import scripts


def main(argv: list[str]) -> int:
    """Print a row for each fault."""
    short = harness.Parser("conform", __doc__, short="run only the test for each fault").read(argv).short
    begun = time.monotonic()
    passed = sum(result.verdict == PASS for result in run_all(simulated(), scripts()))
    print(f"rnic as it is: {passed} of {len(scripts())} tests pass")
    missed = 0
    for mutant in MUTANTS:
        found = found_by(mutant, mutant.finds if short else None)
        seen = mutant.finds in found
        missed += not seen
        others = f" and {len(found) - 1} more" if len(found) > 1 else ""
        print(f"{mutant.name:52} {'found by ' + mutant.finds + others if seen else 'MISSED'}", flush=True)
    print(f"{len(MUTANTS) - missed} of {len(MUTANTS)} faults found, {time.monotonic() - begun:.0f} s")
    return int(missed > 0 or passed != len(scripts()))


if __name__ == "__main__":
    harness.run(main)
