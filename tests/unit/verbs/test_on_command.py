"""Verbs that fail on command, as a Python program sees them."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from rnic import enums as e
from rnic.link.verbs_faults import VerbsFaults, parse_verbs_rules
from rnic.spec.errors import VerbsError
from rnic.testing import QpPair
from rnic.verbs.attrs import QPAttr, QPCap, QPInitAttr
from rnic.verbs.batch import completion_dtype
from rnic.verbs.cq import CQ
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP


def one_more_qp(pair: QpPair) -> QP:
    side = pair.a
    return QP(side.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(4, 4, 1, 1, 0), side.cq, side.cq))


@pytest.mark.rnic_faults([{"verb": "create_qp", "nth": 2, "action": "fail", "errno": "ENOMEM"}])
def test_the_second_queue_pair_is_refused(rnic_pair: QpPair) -> None:
    with pytest.raises(VerbsError, match=r"fails with ENOMEM on command \(fault rule 1\)") as raised:
        one_more_qp(rnic_pair)
    assert raised.value.errno == errno.ENOMEM
    one_more_qp(rnic_pair).close()


@pytest.mark.rnic_faults(
    [
        {"verb": "reg_mr", "match": {"length": [2 << 20, None]}, "action": "fail", "errno": "ENOMEM"},
        {"verb": "alloc_pd", "nth": 2, "action": "fail", "errno": "EACCES"},
        {"verb": "create_cq", "nth": 2, "action": "fail", "errno": "EAGAIN"},
        {"verb": "query_device", "nth": 1, "action": "fail", "errno": "ENOSYS"},
    ]
)
def test_objects_that_cannot_be_made(rnic_pair: QpPair) -> None:
    side = rnic_pair.a
    MR(side.pd, bytearray(4096), e.IBV_ACCESS_LOCAL_WRITE).close()
    makers: list[tuple[Any, int]] = [
        (lambda: MR(side.pd, bytearray(2 << 20), e.IBV_ACCESS_LOCAL_WRITE), errno.ENOMEM),
        (lambda: PD(side.ctx), errno.EACCES),
        (lambda: CQ(side.ctx, 10), errno.EAGAIN),
        (side.ctx.query_device, errno.ENOSYS),
    ]
    for make, code in makers:
        with pytest.raises(VerbsError) as raised:
            make()
        assert raised.value.errno == code
    PD(side.ctx).close()
    CQ(side.ctx, 10).close()
    assert side.ctx.query_device().max_qp


@pytest.mark.rnic_pair(connect=False)
@pytest.mark.rnic_faults([{"verb": "modify_qp", "match": {"state": "RTR"}, "times": 1, "action": "fail"}])
def test_a_connection_that_fails_half_way(rnic_pair: QpPair) -> None:
    with pytest.raises(VerbsError, match="INIT to RTR refused: fails with ENOMEM on command"):
        rnic_pair.connect()
    assert rnic_pair.a.qp.qp_state == e.IBV_QPS_INIT


@pytest.mark.rnic_faults([{"verb": "post_send", "nth": 2, "action": "fail", "errno": "EAGAIN"}])
def test_a_post_that_fails_posts_nothing(rnic_pair: QpPair) -> None:
    side = rnic_pair.a
    wr = side.send_wr(e.IBV_WR_RDMA_WRITE, 8)
    side.qp.post_send(wr)
    with pytest.raises(VerbsError) as raised:
        side.qp.post_send(wr)
    assert (raised.value.errno, raised.value.bad_wr) == (errno.EAGAIN, wr)
    side.qp.post_send(wr)
    assert [wc.status for wc in side.wait(2)] == [e.IBV_WC_SUCCESS] * 2
    rnic_pair.run()
    assert side.poll() == []


@pytest.mark.rnic_faults([{"verb": "post_recv", "nth": 1, "action": "fail", "errno": "ENOMEM"}])
@pytest.mark.parametrize("srq", [False, True])
def test_a_receive_that_cannot_be_posted(rnic_clock: Any, rnic_faults: Any, srq: bool) -> None:
    with QpPair(clock=rnic_clock, faults=rnic_faults, srq=srq) as pair:
        with pytest.raises(VerbsError):
            pair.a.post_recv(64)
        pair.a.post_recv(64)
        pair.b.post_send(e.IBV_WR_SEND, 8)
        assert pair.a.wait()[0].opcode == e.IBV_WC_RECV


STATUS = [{"verb": "poll_cq", "nth": 2, "action": "status", "status": "RETRY_EXC_ERR"}]


@pytest.mark.rnic_faults(STATUS)
def test_a_completion_with_a_chosen_status(rnic_pair: QpPair) -> None:
    side = rnic_pair.a
    for wr_id in range(2):
        side.post_send(e.IBV_WR_RDMA_WRITE, 8, wr_id=wr_id)
    found = side.wait(2)
    assert [(wc.wr_id, wc.status) for wc in found] == [(0, e.IBV_WC_SUCCESS), (1, e.IBV_WC_RETRY_EXC_ERR)]
    assert side.qp.qp_state == e.IBV_QPS_ERR, "as after any error completion"
    side.post_send(e.IBV_WR_RDMA_WRITE, 8)
    assert side.wait()[0].status == e.IBV_WC_WR_FLUSH_ERR


@pytest.mark.rnic_faults([{"verb": "poll_cq", "nth": 1, "action": "late", "delay": "5ms"}])
def test_a_completion_comes_late_and_those_behind_it(rnic_pair: QpPair) -> None:
    side = rnic_pair.a
    for wr_id in range(2):
        side.post_send(e.IBV_WR_RDMA_WRITE, 8, wr_id=wr_id)
    began = rnic_pair.clock.now_ns
    assert [wc.wr_id for wc in side.wait(2)] == [0, 1]
    assert 5_000_000 <= rnic_pair.clock.now_ns - began < 6_000_000


@pytest.mark.rnic_faults([{"verb": "poll_cq", "nth": 1, "action": "late", "delay": "5ms"}])
@pytest.mark.parametrize("end", ["reset", "destroyed"])
def test_a_late_completion_goes_with_its_queue_pair(rnic_pair: QpPair, end: str) -> None:
    side = rnic_pair.a
    side.post_send(e.IBV_WR_RDMA_WRITE, 8)
    rnic_pair.run()
    assert side.cq.poll(4) == (0, []), "it is held back"
    if end == "reset":
        attr = QPAttr()
        attr.qp_state = e.IBV_QPS_RESET
        side.qp.modify(attr, e.IBV_QP_STATE)
    else:
        side.qp.close()
    rnic_pair.clock.now_ns += 10_000_000
    assert side.cq.poll(4) == (0, [])


@pytest.mark.rnic_faults([{"verb": "poll_cq", "nth": 1, "action": "late", "delay": "5ms"}])
def test_a_late_completion_stays_when_another_queue_pair_goes(rnic_pair: QpPair) -> None:
    side = rnic_pair.a
    other = one_more_qp(rnic_pair)
    side.post_send(e.IBV_WR_RDMA_WRITE, 8, wr_id=7)
    rnic_pair.run()
    assert side.cq.poll(4) == (0, [])
    other.close()
    assert [wc.wr_id for wc in side.wait()] == [7]


@pytest.mark.rnic_faults([{"verb": "poll_cq", "action": "limit", "entries": 1}])
def test_completions_come_one_at_a_time(rnic_pair: QpPair) -> None:
    side = rnic_pair.a
    for wr_id in range(3):
        side.post_send(e.IBV_WR_RDMA_WRITE, 8, wr_id=wr_id)
    rnic_pair.run()
    assert [side.cq.poll(16)[0] for _ in range(4)] == [1, 1, 1, 0]


@pytest.fixture
def numpy() -> Any:
    return pytest.importorskip("numpy", reason="NumPy makes the arrays")


@pytest.mark.rnic_faults(STATUS)
def test_arrays_of_completions_too(rnic_pair: QpPair, numpy: Any) -> None:
    side = rnic_pair.a
    for _ in range(2):
        side.post_send(e.IBV_WR_RDMA_WRITE, 8)
    rnic_pair.run()
    array = numpy.zeros(4, completion_dtype())
    assert side.cq.poll_batch(array) == 2
    assert array["status"][:2].tolist() == [0, 0x15]


def test_without_rules_queues_keep_their_methods(rnic_pair: QpPair) -> None:
    side = rnic_pair.a
    assert side.ctx.faults is None
    assert "poll" not in vars(side.cq)
    assert "post_send" not in vars(side.qp)


@pytest.mark.rnic_faults([{"verb": "create_qp", "nth": 2, "action": "async-event", "event": "PORT_ERR"}])
def test_a_verb_may_set_off_an_event(rnic_pair: QpPair) -> None:
    one_more_qp(rnic_pair)
    rnic_pair.run()
    assert rnic_pair.a.ctx.get_async_event(block=False).event_type == e.IBV_EVENT_PORT_ERR


def test_a_rule_may_come_later(rnic_pair: QpPair) -> None:
    side = rnic_pair.a
    side.fail_verb("poll_cq", "status", status="GENERAL_ERR")
    side.fail_verb("create_qp", errno="EPERM")
    side.post_send(e.IBV_WR_RDMA_WRITE, 8)
    assert side.wait()[0].status == e.IBV_WC_GENERAL_ERR
    with pytest.raises(VerbsError) as raised:
        one_more_qp(rnic_pair)
    assert raised.value.errno == errno.EPERM


def test_what_heals_is_forgotten() -> None:
    faults = VerbsFaults(parse_verbs_rules([{"verb": "alloc_pd", "action": "fail"}]))
    faults.clear()
    with QpPair() as pair:
        pair.a.ctx.runtime.fail_verbs(faults)
        PD(pair.a.ctx).close()


def test_a_device_is_closed_all_the_same() -> None:
    with QpPair() as pair:
        side = pair.a
        side.fail_verb("dereg_mr", errno="EBUSY")
        with pytest.raises(VerbsError):
            side.ctx.close()
        assert side.ctx.closed
        assert side.ctx.driver.closed
