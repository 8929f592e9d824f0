"""What is kept for paths on which no packet was right yet: next to nothing, however many lengths and ports come."""

from __future__ import annotations

import tracemalloc

import pytest

from rnic.wire.flow import Flow
from rnic.wire.packet import build, seal

BYTES_OF_A_PATH = 3_000


@pytest.mark.slow
def test_strangers_cost_little_memory() -> None:
    paths = 50
    frames = [bytes(length) for length in range(16, 4132, 4)]
    flows = [Flow(b"\x0a\0\0\1", b"\x0a\0\0\2", 1000 + port).doubt() for port in range(paths)]
    for frame in frames:  # what all paths share
        flows[0].check(frame)
    tracemalloc.start()
    for flow in flows[1:]:
        for frame in frames[:: 1 + flow.sport % 7]:
            assert not flow.check(frame)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < paths * BYTES_OF_A_PATH


def test_a_path_that_was_right_keeps_what_it_needs() -> None:
    flow = Flow(b"\x0a\0\0\1", b"\x0a\0\0\2", 1000).doubt()
    for _ in range(2):
        for size in range(0, 400, 4):
            assert flow.check(seal(build(0x04, dqpn=1, psn=1, payload=bytes(size)), flow))
        assert (len(flow._seeds) <= 4) is (flow.kept <= 4)
        flow.prove()
    assert len(flow._seeds) == 100
