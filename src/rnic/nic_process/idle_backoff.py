"""Idle backoff: the empty rounds of a polling loop before it sleeps."""

from __future__ import annotations

import os
import time

SPIN_ROUNDS = 30
"""Empty rounds before the NIC process sleeps; fewer while another thread wants its core."""
_CONTENDED_YIELD_NS = 20_000


class IdleBackoff:
    """Counts the empty rounds of a polling loop.

    Args:
        max_spins: empty rounds before it sleeps.
    """

    def __init__(self, max_spins: int) -> None:
        self.max_spins = max_spins
        self.spins = max_spins
        """The current limit."""
        self.idle = 0
        """Empty rounds since the last round that did something."""

    def keep_polling(self) -> bool:
        """Count an empty round; return false once it is time to sleep."""
        self.idle += 1
        if self.idle < self.spins:
            return True
        self.spins = min(self.spins + 1, self.max_spins)
        return False

    def yield_core(self) -> bool:
        """Yield the core, and return whether another thread took it: perhaps the program that is being polled for."""
        began = time.monotonic_ns()
        os.sched_yield()
        if time.monotonic_ns() - began <= _CONTENDED_YIELD_NS:
            return False
        self.spins = 0
        return True


__all__ = ["SPIN_ROUNDS", "IdleBackoff"]
