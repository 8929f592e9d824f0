"""``beat_joiner``: a beat is its own lanes and those of the beat before, in turn, whenever the bus takes it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from rnic.gateware.beat_joiner import BeatJoiner

WIDTH = 128
LANES = WIDTH // 8
Beat = tuple[bytes, int, int, bool]
"""Bytes, lanes that are valid, the lane from which they are this beat's, and whether it is stored."""


def join(commands: list[list[Beat]], taken: float, forget_from: int = -1) -> list[tuple[list[int | None], bool]]:
    """What leaves: for each beat its bytes, None where no strobe is, and whether it is the last of its command."""
    block, rng = BeatJoiner(WIDTH), random.Random(3)
    simulator = Simulator(block)
    simulator.add_clock(1e-9)
    out: list[tuple[list[int | None], bool]] = []

    async def step(ctx: Any) -> bool:
        ready = rng.random() < taken
        ctx.set(block.m_axis.tready, ready)
        ctx.set(block.forget, 0 <= forget_from <= len(out))
        if ready and ctx.get(block.m_axis.tvalid):
            data, keep = ctx.get(block.m_axis.tdata).to_bytes(LANES, "little"), ctx.get(block.m_axis.tkeep)
            out.append(([byte if keep >> lane & 1 else None for lane, byte in enumerate(data)],
                        bool(ctx.get(block.m_axis.tlast))))  # fmt: skip
        made = bool(ctx.get(block.make & block.ready))
        await ctx.tick()
        return made

    async def script(ctx: Any) -> None:
        for command in commands:
            ctx.set(block.make, 0)
            ctx.set(block.begins, 1)
            await step(ctx)
            ctx.set(block.begins, 0)
            for at, (data, valid, first, stored) in enumerate(command):
                ctx.set(block.turned, int.from_bytes(data, "little"))
                ctx.set(block.turned_mask, valid)
                ctx.set(block.from_now, (1 << LANES) - (1 << first))
                ctx.set(block.stored, stored)
                ctx.set(block.last, at == len(command) - 1)
                ctx.set(block.make, 1)
                while not await step(ctx):
                    pass
        ctx.set(block.make, 0)
        while not ctx.get(block.empty):
            await step(ctx)

    simulator.add_testbench(script)
    simulator.run()
    return out


def commands_of(rng: random.Random) -> list[list[Beat]]:
    """Commands of a few beats; each has one offset."""
    out = []
    for _ in range(12):
        first = rng.randrange(LANES)
        out.append([
            (rng.randbytes(LANES), rng.getrandbits(LANES), first, rng.random() < 0.8) for _ in range(rng.randint(1, 4))
        ])  # fmt: skip
    return out


@pytest.mark.parametrize("taken", [1.0, 0.5, 0.1])
def test_lanes_come_from_this_beat_or_its_predecessor_of_one_command(taken: float) -> None:
    commands = commands_of(random.Random(9))
    want = []
    for command in commands:
        before: list[int | None] = [None] * LANES
        for at, (data, valid, first, stored) in enumerate(command):
            own = [byte if stored and valid >> lane & 1 else None for lane, byte in enumerate(data)]
            want.append((before[:first] + own[first:], at == len(command) - 1))
            before = own
    assert join(commands, taken) == want


def test_what_is_forgotten_leaves_and_is_not_written() -> None:
    """An abort owes the bus its beats."""
    beat = (bytes(range(LANES)), (1 << LANES) - 1, 0, True)
    out = join([[beat] * 3], 1.0, forget_from=1)
    assert [lanes != [None] * LANES for lanes, _last in out] == [True, False, False]
    assert [last for _lanes, last in out] == [False, False, True]
