"""What post_send and post_recv refuse, and what is posted nevertheless."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rnic import enums as e
from rnic.spec.errors import VerbsError
from rnic.testing import QpPair
from rnic.verbs import QP, QPCap, QPInitAttr, RecvWR

NewPair = Callable[..., QpPair]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"opcode": 99}, "opcode=99"),
        ({"send_flags": 1 << 10}, "send_flags=0x400"),
        ({"sg": "five"}, "num_sge=5 is more than max_send_sge=4"),
        (
            {"send_flags": e.IBV_SEND_INLINE, "sg": "long"},
            "257 bytes inline are more than max_inline_data=256",
        ),
    ],
)
def test_a_bad_work_request_is_named_and_those_before_it_are_posted(
    new_pair: NewPair, change: dict[str, Any], says: str
) -> None:
    with new_pair() as pair:
        a = pair.a
        lists = {"five": [a.sge(1)] * 5, "long": [a.sge(257)]}
        good = a.send_wr(e.IBV_WR_RDMA_WRITE, 10, wr_id=1)
        bad = a.send_wr(e.IBV_WR_RDMA_WRITE, 10, wr_id=2)
        never = a.send_wr(e.IBV_WR_RDMA_WRITE, 10, wr_id=3)
        for name, value in change.items():
            setattr(bad, name, lists.get(value, value) if isinstance(value, str) else value)
        with pytest.raises(VerbsError, match=says) as error:
            a.qp.post_send([good, bad, never])
        assert error.value.bad_wr is bad
        assert [wc.wr_id for wc in a.wait()] == [1]
        pair.run()
        assert a.poll() == []
        a.post_send(e.IBV_WR_RDMA_WRITE, 10, wr_id=4)
        assert a.wait()[0].wr_id == 4


def test_a_full_send_queue(new_pair: NewPair) -> None:
    with new_pair(depth=4) as pair:
        for number in range(4):
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10, wr_id=number)
        with pytest.raises(VerbsError, match="send queue of 4 is full") as error:
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10)
        assert error.value.errno == 12
        assert [wc.wr_id for wc in pair.a.wait(4)] == [0, 1, 2, 3]
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10, wr_id=4)
        assert pair.a.wait()[0].wr_id == 4


def test_a_full_receive_queue(new_pair: NewPair) -> None:
    with new_pair(depth=4) as pair:
        b = pair.b
        requests = [RecvWR(number, 1, [b.sge(10, 10 * number)]) for number in range(6)]
        with pytest.raises(VerbsError, match="receive queue of 4 is full") as error:
            b.qp.post_recv(requests)
        assert error.value.bad_wr is requests[4]
        for _ in range(4):
            pair.a.post_send(e.IBV_WR_SEND, 10)
        assert [wc.wr_id for wc in b.wait(4)] == [0, 1, 2, 3]
        b.qp.post_recv(requests[4])
        with pytest.raises(VerbsError, match="num_sge=5"):
            b.qp.post_recv(RecvWR(0, 5, [b.sge(1)] * 5))


@pytest.mark.parametrize(
    ("opcode", "service"),
    [
        (e.IBV_WR_RDMA_READ, "UC"),
        (e.IBV_WR_ATOMIC_FETCH_AND_ADD, "UC"),
        (e.IBV_WR_RDMA_WRITE, "UD"),
        (e.IBV_WR_RDMA_READ, "UD"),
    ],
)
def test_an_operation_that_the_service_lacks_completes_in_error(new_pair: NewPair, opcode: int, service: str) -> None:
    with new_pair(service) as pair:
        pair.a.post_send(opcode, 8)
        assert pair.a.wait()[0].status == e.IBV_WC_LOC_QP_OP_ERR
        assert not any(pair.b.buf[:8])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_send_wr", -1),
        ("max_send_wr", 1 << 16),
        ("max_recv_wr", 1 << 16),
        ("max_send_sge", 33),
        ("max_recv_sge", 33),
        ("max_inline_data", 513),
    ],
)
def test_capacities_are_bounded(new_pair: NewPair, name: str, value: int) -> None:
    with new_pair() as pair:
        cap = QPCap()
        setattr(cap, name, value)
        with pytest.raises(VerbsError, match=f"{name}={value}"):
            QP(pair.a.pd, QPInitAttr(cap=cap, scq=pair.a.cq, rcq=pair.a.cq))


def test_a_queue_pair_needs_its_queues(new_pair: NewPair) -> None:
    with new_pair() as pair:
        with pytest.raises(VerbsError, match="qp_type=8"):
            QP(pair.a.pd, QPInitAttr(8, scq=pair.a.cq, rcq=pair.a.cq))
        with pytest.raises(VerbsError, match="rcq is missing"):
            QP(pair.a.pd, QPInitAttr(scq=pair.a.cq))


def test_all_signaled(new_pair: NewPair) -> None:
    with new_pair(connect=False) as pair:
        a = pair.a
        a.qp.close()
        a.qp = QP(a.pd, QPInitAttr(cap=QPCap(8, 8), scq=a.cq, rcq=a.cq, sq_sig_all=1))
        pair.connect()
        a.post_send(e.IBV_WR_RDMA_WRITE, 10, wr_id=8, flags=0)
        assert a.wait()[0].wr_id == 8


def test_32_scatter_entries(new_pair: NewPair) -> None:
    with new_pair(cap=QPCap(8, 8, 32, 32, 0)) as pair:
        a, b = pair.a, pair.b
        a.buf[:3200] = bytes(range(200)) * 16
        wr = a.send_wr(e.IBV_WR_SEND, 0)
        wr.sg = [a.sge(100, 100 * (31 - index)) for index in range(32)]
        b.qp.post_recv(RecvWR(0, 32, [b.sge(100, 100 * (31 - index)) for index in range(32)]))
        a.qp.post_send(wr)
        assert b.wait()[0].byte_len == 3200
        assert b.buf[:3200] == a.buf[:3200]
