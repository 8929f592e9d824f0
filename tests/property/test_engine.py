"""Two NICs, a run with the engine and the same run with the reference: every byte of the state is equal throughout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnic.engine import use
from rnic.link.faults import FaultRates
from rnic.testing import QpPair
from rnic.testing.executors import executed_by, steps_alone
from rnic.verbs import enums as e

pytestmark = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")
SIZE = 16_384
HALF = SIZE // 2


@dataclass(frozen=True)
class Step:
    """One work request, how many of those posted before it are left unawaited, and whether the CQ is armed."""

    opcode: int
    length: int
    offset: int
    flags: int
    waits: bool
    arms: bool


WORK = (
    e.IBV_WR_RDMA_WRITE,
    e.IBV_WR_RDMA_WRITE_WITH_IMM,
    e.IBV_WR_SEND,
    e.IBV_WR_SEND_WITH_IMM,
    e.IBV_WR_RDMA_READ,
    e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    e.IBV_WR_ATOMIC_CMP_AND_SWP,
)
ATOMICS = frozenset((e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP))
TAKES_RECEIVE = frozenset((e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM))
STEPS = st.lists(
    st.builds(
        Step,
        opcode=st.sampled_from(WORK),
        length=st.sampled_from([0, 1, 3, 8, 255, 1024, 1025, 2048, 3000, 5000]),
        offset=st.integers(0, HALF - 5000),
        flags=st.sampled_from([e.IBV_SEND_SIGNALED, e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED, e.IBV_SEND_FENCE]),
        waits=st.booleans(),
        arms=st.booleans(),
    ),
    min_size=1,
    max_size=16,
)
LOSS = st.sampled_from([0.0, 0.0, 0.05, 0.3])


def images(pair: Any) -> list[Any]:
    """What both NICs hold now."""
    found: list[Any] = []
    for side in (pair.a, pair.b):
        nic = side.ctx.nic
        qp = next(iter(nic.qps.values()))
        found += [
            qp.memory.image(),
            bytes(qp.ctx),
            [bytes(cq.key) for cq in nic.resources.cqs.values()],
            [bytes(eq.key) for eq in nic.resources.eqs.values()],
            [cq.unread_entries() for cq in nic.resources.cqs.values()],
            bytes(side.buf),
            dict(side.counters),
            (nic.inflight.packets, nic.inflight.promised, qp.requester.peer.limit, qp.requester.peer.inflight),
        ]
    return found


def run(steps: list[Step], loss: float, seed: int, segments: int) -> list[Any]:
    """What a run leaves behind, work request by work request."""
    rates = FaultRates(drop=loss, duplicate=loss / 2, reorder=loss / 2)
    seen = []
    with QpPair(size=SIZE, depth=32, seed=seed, tx=rates, max_segments=segments) as pair:
        pair.a.buf[:] = bytes(index * 7 & 0xFF for index in range(SIZE))
        for number, step in enumerate(steps):
            if step.arms:
                pair.a.cq.req_notify()
                pair.b.cq.req_notify(solicited_only=True)
            if step.opcode in TAKES_RECEIVE:
                pair.b.post_recv(5000, HALF)
            length, at = (8, step.offset & ~7) if step.opcode in ATOMICS else (step.length, step.offset)
            more = {"compare_add": step.length, "swap": 7} if step.opcode in ATOMICS else {}
            pair.a.post_send(step.opcode, length, at, remote=at, wr_id=number, flags=step.flags, **more)
            if step.waits:
                pair.net.run()
                seen.append(images(pair))
        pair.net.run()
        seen.append([(wc.wr_id, wc.status, wc.opcode, wc.byte_len) for side in (pair.a, pair.b) for wc in side.poll()])
        seen.append(images(pair))
    return seen


@pytest.mark.slow
@given(STEPS, LOSS, st.integers(0, 1000), st.sampled_from([1, 15]))
@settings(max_examples=40, deadline=None)
def test_a_run_by_the_engine_leaves_what_the_reference_leaves(
    steps: list[Step], loss: float, seed: int, segments: int
) -> None:
    with steps_alone():
        with executed_by(engine=True):
            by_engine = run(steps, loss, seed, segments)
        with executed_by(engine=False):
            by_reference = run(steps, loss, seed, segments)
    assert by_engine == by_reference
