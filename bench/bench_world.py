"""Virtual time that a deterministic world (python -m rnic.testing.world) covers in an hour of processor time.

Ten seeds, with the engine if it is compiled, every packet checked. After faults NICs wait for their timers, which costs
nothing, so packets per second of processor time are printed, too. Neither has a floor, since plans change.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import harness
from harness import Row

from rnic.testing.world import make_plan, run_plan

SEEDS = range(500, 510)
ROWS = [
    Row("virtual hours per hour", "virtual", "h/h"),
    Row("packets", "packets", "packets/s"),
    Row("faults", "faults", "faults/s"),
]


def worlds() -> Mapping[str, float]:
    """Run all seeds; none may have a finding."""
    sums = dict.fromkeys(("virtual", "packets", "faults"), 0.0)
    plans = [make_plan(seed) for seed in SEEDS]
    began = time.process_time()
    for plan in plans:
        found = run_plan(plan)
        assert not found.finding, f"seed {found.seed}: {found.finding}"
        sums["virtual"] += found.virtual_ns / 1e9
        sums["packets"] += found.packets
        sums["faults"] += found.faults
    took = time.process_time() - began
    return {name: value / took for name, value in sums.items()}


def main(argv: list[str]) -> None:
    """Print a row for each figure."""
    given = harness.Parser("world", __doc__, rounds=3, short="one round", json=True).read(argv)
    harness.report(given, ROWS, *harness.in_turn([("worlds", worlds)], given.rounds))


if __name__ == "__main__":
    harness.run(main)
