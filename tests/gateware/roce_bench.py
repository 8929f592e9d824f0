"""Drives streams of the RoCEv2 blocks on Amaranth's simulator: what goes in, with gaps, and what came out."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.lib import wiring
from amaranth.sim import Simulator

Beat = dict[str, int]
LIMIT = 20_000


def beats_of(packet: bytes, width: int) -> list[Beat]:
    """A packet as beats; what the last one does not need is not zero."""
    lanes = width // 8
    out = []
    for at in range(0, len(packet), lanes):
        part = packet[at : at + lanes]
        data = int.from_bytes(part.ljust(lanes, b"\xa5"), "little")
        out.append({"data": data, "count": len(part), "last": int(at + lanes >= len(packet))})
    return out


def packets_of(beats: Sequence[Beat], width: int) -> list[bytes]:
    """The packets in a stream of beats; all beats but the last of each are full."""
    out, packet = [], b""
    for beat in beats:
        assert 0 < beat["count"] <= width // 8
        assert beat["last"] or beat["count"] == width // 8
        packet += beat["data"].to_bytes(width // 8, "little")[: beat["count"]]
        if beat["last"]:
            out.append(packet)
            packet = b""
    assert not packet, "a packet has no end"
    return out


def fields(layout: Any, value: int) -> Beat:
    """The fields of a payload's bits."""
    out = {}
    for name, field in layout:
        out[name] = value >> field.offset & (1 << field.width) - 1
    return out


def carry(
    block: wiring.Component,
    given: Mapping[str, Sequence[Beat]],
    wanted: Mapping[str, int],
    gaps: float = 0.0,
    stalls: float = 0.0,
    seed: int = 1,
    after: Mapping[str, Sequence[Beat]] | None = None,
) -> tuple[dict[str, list[Any]], int]:
    """Put payloads into streams of a block until so many have come out of others, and then for some cycles more.

    Args:
        given: payloads by stream, as fields.
        wanted: for each stream that comes out, how many.
        gaps, stalls: share of cycles in which a source offers nothing, a sink takes nothing.
        after: as ``given``, but not before all of that is taken.

    Returns:
        What came, as fields or as numbers, and the cycle in which the last of them did.
    """
    rng = random.Random(seed)
    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    out: dict[str, list[Any]] = {name: [] for name in wanted}
    cycles = last = 0

    async def script(ctx: Any) -> None:
        nonlocal cycles, last
        later = dict(after or {})
        left = {name: list(beats) for name, beats in given.items()} | {name: [] for name in later}
        shown = dict.fromkeys(left, False)
        before: dict[str, int] = {}
        quiet = 0
        while quiet < 12:
            if later and not any(left.values()):
                left |= {name: list(beats) for name, beats in later.items()}
                later = {}
            for name in left:
                port = getattr(block, name)
                if not shown[name] and left[name] and rng.random() >= gaps:
                    shown[name] = True
                    ctx.set(port.payload, left[name][0])
                ctx.set(port.valid, shown[name])
            for name in wanted:
                ctx.set(getattr(block, name).ready, rng.random() >= stalls)
            for name in wanted:
                port = getattr(block, name)
                if not ctx.get(port.valid):
                    assert name not in before, f"{name}: a beat was taken back"
                    continue
                value = ctx.get(port.payload.as_value() if hasattr(port.payload, "as_value") else port.payload)
                assert before.get(name, value) == value, f"{name}: a beat was changed"
                before[name] = value
                if ctx.get(port.ready):
                    del before[name]
                    shape = getattr(port.payload, "shape", lambda: None)()
                    out[name].append(fields(shape, value) if hasattr(shape, "members") else value)
                    last = cycles
            for name in left:
                port = getattr(block, name)
                if shown[name] and ctx.get(port.ready):
                    left[name].pop(0)
                    shown[name] = False
            await ctx.tick()
            cycles += 1
            done = (
                not any(left.values()) and not later and all(len(out[name]) >= count for name, count in wanted.items())
            )
            quiet = quiet + 1 if done else 0
            assert cycles < LIMIT, f"{ {name: len(each) for name, each in out.items()} } of {wanted} came"

    simulator.add_testbench(script)
    simulator.run()
    assert {name: len(each) for name, each in out.items()} == dict(wanted)
    return out, last
