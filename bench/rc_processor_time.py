"""Processor time of a WRITE; :mod:`bench_rc` imports this in processes that run different trees."""

from __future__ import annotations

import time

from rnic.testing import QpPair
from rnic.verbs import enums as e

LONG = 1 << 20


def processor_time(rounds: int) -> dict[str, float]:
    """Measure the processor time in us of an 8-byte and a 1 MiB WRITE for both ends, in virtual time; best round."""
    best = {"short": 1e9, "long": 1e9}
    with QpPair(size=LONG, depth=64) as pair:
        a = pair.a
        for _ in range(rounds):
            start = time.process_time()
            for _ in range(20):
                for _ in range(25):
                    a.post_send(e.IBV_WR_RDMA_WRITE, 8)
                a.wait(25)
            best["short"] = min(best["short"], (time.process_time() - start) / 500 * 1e6)
            start = time.process_time()
            for _ in range(8):
                a.post_send(e.IBV_WR_RDMA_WRITE, LONG)
                a.wait(1)
            best["long"] = min(best["long"], (time.process_time() - start) / 8 * 1e6)
    return best
