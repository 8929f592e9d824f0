"""How much one READ request asks for."""

from __future__ import annotations

import pytest

from rnic.transport.encap import frames_of
from rnic.transport.inflight import QUANTUM
from rnic.transport.requester import read_chunk


@pytest.mark.parametrize(
    ("widest", "burst", "chunk"),
    [
        (512, 15, 2 + 8 * 15),  # path MTU 4096
        (512, 62, 2 + 2 * 62),  # 1024
        (512, 1, QUANTUM),
        (37, 15, 17),  # what Linux grants where nobody raised net.core.rmem_max
        (8, 15, 4),
        (2, 15, 1),
        (1, 1, 1),
    ],
)
def test_what_lies_between_first_and_last_fills_whole_bursts(widest: int, burst: int, chunk: int) -> None:
    assert read_chunk(widest, burst) == chunk


def test_a_burst_has_an_end_in_packets_and_in_bytes() -> None:
    assert [frames_of(64, 4112), frames_of(64, 1040), frames_of(5, 272), frames_of(1, 4112)] == [15, 62, 5, 1]
    assert frames_of(64, 100_000) == 1
