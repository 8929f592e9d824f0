"""How long a loop that finds nothing to do goes on looking."""

from __future__ import annotations

import os
import time

SPIN_ROUNDS = 30
"""Empty rounds before the NIC process sleeps; fewer where it sees that somebody wants its core."""
_YIELD_IS_LONG_NS = 20_000


class Pace:
    """How busy the loop has been lately.

    Args:
        spins: empty rounds before it sleeps.
    """

    def __init__(self, spins: int) -> None:
        self.spins = spins
        self.spin = spins
        self.idle = 0

    def another(self) -> bool:
        """After an empty round: whether to have another; if not, it is time to sleep."""
        self.idle += 1
        if self.idle < self.spin:
            return True
        self.spin = min(self.spin + 1, self.spins)
        return False

    def make_way(self) -> bool:
        """Yield the core; whether somebody wanted it, perhaps the very program that is waited for."""
        began = time.monotonic_ns()
        os.sched_yield()
        if time.monotonic_ns() - began <= _YIELD_IS_LONG_NS:
            return False
        self.spin = 0
        return True


__all__ = ["SPIN_ROUNDS", "Pace"]
