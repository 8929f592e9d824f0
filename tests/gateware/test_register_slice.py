"""``register_slice``: every beat comes out once and in order, in each cycle one where both sides are ready."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from rnic.gateware.register_slice import RegisterSlice

FEW_AND_MANY = (32, 128)


def carry(
    words: list[int], offered: float, taken: float, width: int, deaf: int = 0, clear_at: int = -1
) -> tuple[list[int], int]:
    """What comes out of a slice where each side is ready in so many of the cycles, and cycles until nothing is left."""
    block, rng = RegisterSlice(width), random.Random(7)
    simulator = Simulator(block)
    simulator.add_clock(1e-9)
    out: list[int] = []
    cycles = 0

    async def script(ctx: Any) -> None:
        nonlocal cycles
        left, shown = list(words), False
        while left or shown or not ctx.get(block.empty):
            if not shown and left and rng.random() < offered:
                shown = True
                ctx.set(block.s_axis.tdata, left[0])
            ctx.set(block.s_axis.tvalid, shown)
            ctx.set(block.m_axis.tready, cycles >= deaf and rng.random() < taken)
            ctx.set(block.clear, cycles == clear_at)
            if ctx.get(block.m_axis.tvalid & block.m_axis.tready):
                out.append(ctx.get(block.m_axis.tdata))
            if ctx.get(block.s_axis.tvalid & block.s_axis.tready):
                left.pop(0)
                shown = False
            await ctx.tick()
            cycles += 1

    simulator.add_testbench(script)
    simulator.run()
    return out, cycles


@pytest.mark.parametrize("taken", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("offered", [1.0, 0.4])
@pytest.mark.parametrize("width", FEW_AND_MANY)
def test_every_beat_comes_out_once_and_in_order(width: int, offered: float, taken: float) -> None:
    words = list(range(100, 160))
    assert carry(words, offered, taken, width)[0] == words


@pytest.mark.parametrize("width", FEW_AND_MANY)
def test_a_beat_in_each_cycle(width: int) -> None:
    assert carry(list(range(40)), 1.0, 1.0, width)[1] == 41  # one more than beats: each is a cycle in the register


@pytest.mark.parametrize("width", FEW_AND_MANY)
def test_clear_forgets_what_is_held(width: int) -> None:
    """In the first cycles nothing is taken; two beats are held, and the third waits outside, when it is cleared."""
    words = list(range(20))
    assert carry(words, 1.0, 1.0, width, deaf=6, clear_at=4)[0] == words[2:]
