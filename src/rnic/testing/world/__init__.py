"""Deterministic worlds: NICs run a random plan under faults of every kind, checked against shadow memory.

The same seed gives the same run, byte for byte. ``python -m rnic.testing.world`` runs seeds.
"""

from rnic.testing.world.plan import Plan, Step, make_plan
from rnic.testing.world.run import Figures, World, run_both, run_plan

__all__ = ["Figures", "Plan", "Step", "World", "make_plan", "run_both", "run_plan"]
