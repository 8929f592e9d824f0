"""Search for the smallest part of a plan that still fails: delta debugging of its steps (ddmin, Zeller 2002)."""

from __future__ import annotations

from collections.abc import Callable

from rnic.testing.world.plan import Plan, Step

MOST_TRIES = 2_000


def shrink(plan: Plan, fails: Callable[[Plan], bool], most: int = MOST_TRIES) -> Plan:
    """Return a 1-minimal plan that fails in the same way: without any one of its steps it would not.

    Args:
        plan: a failing plan.
        fails: returns whether a plan fails.
        most: most plans to try; the smallest one so far is returned then.
    """
    steps = list(plan.steps)
    parts = 2
    while len(steps) > 1 and most > 0:
        size = -(-len(steps) // parts)
        for start in _starts(steps, size):
            rest = steps[:start] + steps[start + size :]
            most -= 1
            if most < 0 or not rest:
                break
            if fails(plan.having(rest)):
                steps = rest
                parts = max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(steps))
    return plan.having(steps)


def _starts(steps: list[Step], size: int) -> range:
    """Return the starts of the parts of this size, last one first: late steps are needed least."""
    last = (len(steps) - 1) // size * size
    return range(last, -1, -size)


__all__ = ["MOST_TRIES", "shrink"]
