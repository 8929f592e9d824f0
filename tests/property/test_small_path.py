"""The lean path for one-packet messages does exactly what requester, responder and completer do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnic.burst import SMALL
from rnic.device import receiving, sending
from rnic.engine import use
from rnic.link.faults import FaultRates
from rnic.testing import QpPair
from rnic.verbs import enums as e

SIZE = 8192


@pytest.fixture(scope="module", autouse=True)
def _reference_alone() -> Iterator[None]:
    """The lean path is of the reference, which runs where there is no engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(use, "ENGINE", None)
        yield


@dataclass(frozen=True)
class Step:
    """One work request, and how many of those posted before it are left unawaited."""

    opcode: int
    length: int
    offset: int
    flags: int
    waits: bool


STEPS = st.lists(
    st.builds(
        Step,
        opcode=st.sampled_from([e.IBV_WR_RDMA_WRITE, e.IBV_WR_SEND, e.IBV_WR_RDMA_READ]),
        length=st.sampled_from([0, 1, 3, 8, 64, 255, 256, 1000, 1024, 1025, 3000]),
        offset=st.integers(0, SIZE // 2 - 3000),
        flags=st.sets(st.sampled_from([e.IBV_SEND_SOLICITED, e.IBV_SEND_FENCE])).map(
            lambda more: e.IBV_SEND_SIGNALED | sum(more)
        ),
        waits=st.booleans(),
    ),
    min_size=1,
    max_size=24,
)
LOSS = st.sampled_from([0.0, 0.0, 0.05, 0.3])


def run(steps: list[Step], loss: float, seed: int) -> dict[str, Any]:
    """What a run leaves behind: memory, completions, counters, sequence numbers."""
    rates = FaultRates(drop=loss, duplicate=loss / 2)
    with QpPair(size=SIZE, depth=32, seed=seed, tx=rates) as pair:
        pair.a.buf[:] = bytes(index * 7 & 0xFF for index in range(SIZE))
        completions = []
        outstanding = 0
        for number, step in enumerate(steps):
            if step.opcode == e.IBV_WR_SEND:
                pair.b.post_recv(3000, SIZE // 2)
            pair.a.post_send(step.opcode, step.length, step.offset, remote=step.offset, wr_id=number, flags=step.flags)
            outstanding += 1
            if step.waits:
                completions += pair.a.wait(outstanding)
                outstanding = 0
        if outstanding:
            completions += pair.a.wait(outstanding)
        pair.net.run()
        qps = [next(iter(side.ctx.nic.qps.values())) for side in (pair.a, pair.b)]
        return {
            "memory": [bytes(side.buf) for side in (pair.a, pair.b)],
            "completions": [(wc.wr_id, wc.status, wc.opcode, wc.byte_len) for wc in completions + pair.b.poll()],
            "counters": [dict(side.counters) for side in (pair.a, pair.b)],
            "psn": [(qp.ctx.next_send_psn, qp.ctx.last_acked_psn, qp.ctx.expected_psn, qp.ctx.rmsn) for qp in qps],
            "ssn": [qp.requester.ssn for qp in qps],
            "head": [qp.requester.sq_head for qp in qps],
        }


@pytest.mark.slow
@given(STEPS, LOSS, st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_small_path_equals_the_full_path(steps: list[Step], loss: float, seed: int) -> None:
    taken = []

    def counted(*args: Any) -> int:
        count = SMALL.send_small(*args)
        taken.append(count)
        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "send_small", counted)
        lean = run(steps, loss, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "send_small", lambda *args: 0)
        patch.setattr(sending, "send_ack", lambda *args: 0)
        patch.setattr(receiving, "receive_small", lambda *args: False)
        full = run(steps, loss, seed)
    assert lean == full
    if steps[0].opcode != e.IBV_WR_RDMA_READ and 0 < steps[0].length <= 1024:
        assert sum(taken), "the lean path was never taken"


@pytest.mark.parametrize("reading", [False, True])
def test_a_fence_is_lean_unless_a_read_is_outstanding(reading: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def counted(*args: Any) -> int:
        taken.append(SMALL.send_small(*args))
        return taken[-1]

    monkeypatch.setattr(sending, "send_small", counted)
    fenced = e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE
    with QpPair(size=SIZE, depth=32) as pair:
        if reading:
            pair.a.post_send(e.IBV_WR_RDMA_READ, 8)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8, flags=fenced)
        pair.a.wait(1 + reading)
        assert sum(taken) == (not reading)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8, flags=fenced)
        pair.a.wait()
        assert sum(taken) == 1 + (not reading)
