"""Programs that stop polling and spin on their memory: the progress thread takes what comes for them."""

from __future__ import annotations

import json
import random
import struct
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import rnic
from rnic import enums as e
from rnic.verbs import SGE, SendWR
from tests.attempts import every_valid
from tests.verbs.test_bypass import NET, Side, hears, nic, program
from tests.verbs.test_nic_process import needs_engine

__all__ = ["nic"]
pytestmark = [pytest.mark.slow, needs_engine]
TURNS = 41

SPINNER = """
    import json, struct, sys, time
    from pathlib import Path
    import rnic
    from tests.verbs.test_bypass import Side, tell
    with rnic.open(sys.argv[2], port=4000, directory=Path(sys.argv[1]), bypass=True) as ctx:
        assert ctx.bypass
        side = Side(ctx)
        tell(side.describe() | {"rkey": side.mr.rkey, "buf": side.mr.buf})
        side.connect(json.loads(sys.stdin.readline()))
        memory = memoryview(side.mr.buffer)[:8].cast("Q")
        tell({"up": True})
        for line in sys.stdin:
            polls = time.monotonic() + json.loads(line)
            while time.monotonic() < polls:
                side.cq.poll(1)
            before = memory[0]
            tell({"spins": True})
            while memory[0] == before:
                pass
            tell({"delay_us": (time.monotonic_ns() - memory[0]) / 1e3})
"""
"""Polls for as long as each line says, and then waits for the next time to be written into its memory."""


class Writer:
    """Writes the time into the memory of a spinner."""

    def __init__(self, side: Side, child: Any, there: dict[str, Any]) -> None:
        self.side, self.child = side, child
        self.wr = SendWR(1, e.IBV_WR_RDMA_WRITE, sg=[SGE(side.mr.buf, 8, side.mr.lkey)])
        self.wr.set_wr_rdma(there["rkey"], there["buf"])

    def write(self) -> None:
        """Write the time; return once that is acknowledged."""
        self.side.mr.buffer[:8] = struct.pack("=Q", time.monotonic_ns())
        self.side.qp.post_send(self.wr)
        self.side.sent()

    def delay_us(self, polls_s: float, spins_s: float) -> float:
        """Have the other program poll while WRITEs come, then spin; return how long one takes then until it sees it."""
        self.child.stdin.write(json.dumps(polls_s) + "\n")
        self.child.stdin.flush()
        end = time.monotonic() + 0.8 * polls_s
        while time.monotonic() < end:
            self.write()
        assert hears(self.child)["spins"]
        time.sleep(spins_s)
        self.write()
        return float(hears(self.child)["delay_us"])


@pytest.mark.parametrize("rings", [True, False], ids=["rings", "wire"])
def test_what_comes_for_a_spinner_is_taken_in_time(nic: Path, rings: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rings the sender wakes its thread; over the wire the thread looks by its timer, every 2 ms at most."""
    monkeypatch.setenv("RNIC_SHM", str(int(rings)))
    address, rng = f"{NET}.81", random.Random(40)
    with (
        program(SPINNER, str(nic), address) as child,
        rnic.open(address, port=4000, directory=nic, bypass=True) as ctx,
    ):
        there = hears(child)
        side = Side(ctx)
        assert child.stdin is not None
        child.stdin.write(json.dumps(side.describe()) + "\n")
        child.stdin.flush()
        side.connect(there)
        assert hears(child)["up"]
        writer = Writer(side, child, there)
        for _ in range(3):
            writer.delay_us(0.001, 0)

        def attempt() -> None:
            # it has polled for long, so that the thread looks as seldom as it ever does
            delays = [writer.delay_us(rng.uniform(0.008, 0.014), 0.0002) for _ in range(TURNS)]
            print(f"after 8 to 14 ms of polls: median {median(delays):.0f} us, worst {max(delays):.0f} us")
            assert median(delays) < (250 if rings else 2_500), delays
            assert max(delays) < 5_000, delays
            # one that calls nothing for a second has a thread that waits for packets
            delays = [writer.delay_us(0.001, 1.0), *(writer.delay_us(0, 0) for _ in range(TURNS))]
            print(f"without polls: first {delays[0]:.0f} us, median {median(delays):.0f} us")
            assert delays[0] < 5_000, delays
            assert median(delays) < 500, delays

        why = "what comes for a spinner waits until its progress thread has a core"
        every_valid(attempt, limit_ms=2, why=why)
