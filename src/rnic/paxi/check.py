"""Compare random bursts through a window with a model of the memory (``rnic paxi check``)."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

from rnic.paxi.axi import AxiError
from rnic.paxi.window import Window
from rnic.spec.axi import BOUNDARY_BYTES, MAX_BEATS, Burst, Resp

IDS = 16
_MAX_WRONG = 20


@dataclass
class Outcome:
    """Result of a check."""

    reads: int = 0
    writes: int = 0
    refusals: int = 0
    """Illegal bursts that were answered with the expected error."""
    bytes: int = 0
    wrong: list[str] = field(default_factory=list)
    """The first violations, one line each."""
    sha256: str = ""
    """SHA-256 of the memory after the check, for comparison with the target's."""


def check(window: Window, rng: random.Random, bursts: int) -> Outcome:
    """Read and write the whole window with random bursts (narrow, unaligned, sparse strobes), and compare every byte.

    No other program may write to the memory during the check. One burst in ten is illegal and must be refused.

    Raises:
        AxiError: the target was lost.
    """
    outcome = Outcome()
    model = bytearray(window[:])
    for _ in range(bursts):
        if rng.random() < 0.1:
            _refused(window, rng, outcome)
        else:
            _burst(window, rng, model, outcome)
        if len(outcome.wrong) >= _MAX_WRONG:
            break
    found = window[:]
    if found != model:
        at = next(at for at in range(len(model)) if found[at] != model[at])
        outcome.wrong.append(f"the memory differs from its model, first at {window.base + at:#x}")
    outcome.sha256 = hashlib.sha256(found).hexdigest()
    return outcome


def _burst(window: Window, rng: random.Random, model: bytearray, outcome: Outcome) -> None:
    lanes = window.port.bridge.lanes
    size = 1 << rng.randrange(lanes.bit_length())
    at = rng.randrange(len(window))
    addr = window.base + at
    page = BOUNDARY_BYTES - addr % BOUNDARY_BYTES
    room = min(page, MAX_BEATS * size - addr % size, len(window) - at)
    count = rng.randint(1, rng.choice((1, min(room, size), room)))
    if rng.random() < 0.5:
        data = rng.randbytes(count)
        holes = rng.choice((0.0, 0.0, 0.1, 0.5))
        mask = [int(rng.random() >= holes) for _ in range(count)] if holes else None
        window.write(addr, data, size, mask=mask, id=rng.randrange(IDS))
        for place, byte in enumerate(data):
            if mask is None or mask[place]:
                model[at + place] = byte
        outcome.writes += 1
    else:
        beats = -(-(addr % size + count) // size)
        data = window.read(addr, size, beats, id=rng.randrange(IDS))
        expected = bytes(model[at : at + len(data)]).ljust(len(data), b"\0")
        if data != expected:
            outcome.wrong.append(f"read of {beats} beats of {size} bytes at {addr:#x}: bytes differ")
        outcome.reads += 1
    outcome.bytes += count


def _refused(window: Window, rng: random.Random, outcome: Outcome) -> None:
    end = window.base + len(window)
    addr, burst, resp = rng.choice(
        (
            (window.base, 3, Resp.SLVERR),  # reserved burst type
            (window.base, Burst.WRAP, Resp.SLVERR),  # WRAP of one beat
            (end - end % -BOUNDARY_BYTES, Burst.INCR, Resp.DECERR),
        )
    )
    what = f"burst {int(burst)} at {addr:#x}"
    try:
        if rng.random() < 0.5:
            window.read(addr, 1, 1, burst=burst)
        else:
            window.write(addr, b"?", 1, burst=burst)
    except AxiError as error:
        if error.resp == resp:
            outcome.refusals += 1
            return
        outcome.wrong.append(f"{what}: {error.resp.name}, not {resp.name}")
    else:
        outcome.wrong.append(f"{what}: OKAY, not {resp.name}")
