"""Queue pair states as verbs show them; the whole table is tested in tests/unit/context."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rnic import enums as e
from rnic.spec import commands as cmd
from rnic.spec.errors import VerbsError
from rnic.testing import QpPair
from rnic.verbs import AH, QP, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR

NewPair = Callable[..., QpPair]
STATES = [
    e.IBV_QPS_RESET,
    e.IBV_QPS_INIT,
    e.IBV_QPS_RTR,
    e.IBV_QPS_RTS,
    e.IBV_QPS_SQD,
    e.IBV_QPS_SQE,
    e.IBV_QPS_ERR,
]
LISTED = {(e.IBV_QPS_RTS, e.IBV_QPS_SQD), (e.IBV_QPS_RTS, e.IBV_QPS_RTS)}


def bare(state: int) -> QPAttr:
    return QPAttr(state)


@pytest.mark.parametrize("target", STATES)
def test_from_rts_with_the_state_alone(new_pair: NewPair, target: int) -> None:
    with new_pair() as pair:
        always = target in (e.IBV_QPS_RESET, e.IBV_QPS_ERR)
        if always or (e.IBV_QPS_RTS, target) in LISTED:
            pair.a.qp.modify(bare(target), e.IBV_QP_STATE)
            assert pair.a.qp.qp_state == target
            return
        with pytest.raises(VerbsError, match="cannot go from RTS") as error:
            pair.a.qp.modify(bare(target), e.IBV_QP_STATE)
        assert error.value.errno == 22
        assert pair.a.qp.qp_state == e.IBV_QPS_RTS
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10)
        assert pair.a.wait()[0].status == e.IBV_WC_SUCCESS


def test_missing_and_extra_attributes_change_nothing(new_pair: NewPair) -> None:
    with new_pair(connect=False) as pair:
        qp = pair.a.qp
        attr = bare(e.IBV_QPS_INIT)
        for mask in (e.IBV_QP_STATE, e.IBV_QP_STATE | e.IBV_QP_PORT | e.IBV_QP_PKEY_INDEX):
            with pytest.raises(VerbsError, match="RESET to INIT"):
                qp.modify(attr, mask)
        full = e.IBV_QP_STATE | e.IBV_QP_PORT | e.IBV_QP_PKEY_INDEX | e.IBV_QP_ACCESS_FLAGS
        with pytest.raises(VerbsError):
            qp.modify(attr, full | e.IBV_QP_RQ_PSN)
        assert qp.qp_state == e.IBV_QPS_RESET
        qp.modify(attr, full)
        assert qp.qp_state == e.IBV_QPS_INIT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port_num", 2),
        ("pkey_index", 1),
        ("qp_access_flags", 0x400),
        ("path_mtu", 0),
        ("path_mtu", 6),
        ("dest_qp_num", 1 << 24),
        ("rq_psn", -1),
        ("max_dest_rd_atomic", 129),
        ("min_rnr_timer", -1),
        ("timeout", 32),
        ("retry_cnt", 8),
        ("rnr_retry", 8),
        ("sq_psn", 1 << 24),
        ("max_rd_atomic", 129),
    ],
)
def test_a_value_out_of_range_is_refused(new_pair: NewPair, name: str, value: int) -> None:
    with new_pair(connect=False) as pair:
        attr = QPAttr()
        setattr(attr, name, value)
        attr.ah_attr.gr.dgid = pair.b.ctx.query_gid()
        if name != "dest_qp_num":
            attr.dest_qp_num = 17
        with pytest.raises(VerbsError):
            pair.a.qp.to_rts(attr)
        assert pair.a.qp.qp_state != e.IBV_QPS_RTS


def test_an_rnr_timer_is_taken_by_its_five_bits(new_pair: NewPair) -> None:
    with new_pair(attributes={"min_rnr_timer": 0x2C}) as pair:
        assert pair.a.qp.query()[0].min_rnr_timer == 0xC


def test_query_tells_what_was_set(new_pair: NewPair) -> None:
    with new_pair(attributes={"timeout": 10, "retry_cnt": 3, "rnr_retry": 2, "sq_psn": 100, "rq_psn": 100}) as pair:
        attr, init = pair.a.qp.query()
        assert (attr.qp_state, attr.timeout, attr.retry_cnt, attr.rnr_retry) == (e.IBV_QPS_RTS, 10, 3, 2)
        assert attr.dest_qp_num == pair.b.qp.qp_num
        assert attr.path_mtu == e.IBV_MTU_1024
        assert attr.ah_attr.gr.dgid == pair.b.ctx.query_gid()
        assert attr.sq_psn == 100
        assert init.qp_type == e.IBV_QPT_RC
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 3000)
        pair.a.wait()
        assert pair.a.qp.query()[0].sq_psn == 103
        assert pair.b.qp.query()[0].rq_psn == 103


def test_a_queue_pair_can_be_reset_and_connected_again(new_pair: NewPair) -> None:
    with new_pair() as pair:
        for round_number in range(3):
            pair.b.post_recv(10, wr_id=round_number)
            pair.a.post_send(e.IBV_WR_SEND, 10)
            assert pair.b.wait()[0].wr_id == round_number
            for side in (pair.a, pair.b):
                side.qp.modify(bare(e.IBV_QPS_RESET), e.IBV_QP_STATE)
                assert side.qp.qp_state == e.IBV_QPS_RESET
                side.poll()
            pair.connect()


def test_posting_too_early(new_pair: NewPair) -> None:
    with new_pair(connect=False) as pair:
        qp = pair.a.qp
        with pytest.raises(VerbsError, match="is not in RTS yet"):
            qp.post_send(SendWR(sg=[pair.a.sge(1)]))
        with pytest.raises(VerbsError, match="is in RESET"):
            qp.post_recv(RecvWR(0, 1, [pair.a.sge(1)]))
        qp.to_init(QPAttr())
        qp.post_recv(RecvWR(0, 1, [pair.a.sge(1)]))
        with pytest.raises(VerbsError, match="is not in RTS yet"):
            qp.post_send(SendWR(sg=[pair.a.sge(1)]))


def test_sqd_holds_new_work_back(new_pair: NewPair) -> None:
    with new_pair() as pair:
        pair.a.qp.modify(bare(e.IBV_QPS_SQD), e.IBV_QP_STATE)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10, wr_id=6)
        pair.run()
        assert pair.a.poll() == []
        pair.a.qp.modify(bare(e.IBV_QPS_RTS), e.IBV_QP_STATE)
        assert pair.a.wait()[0].wr_id == 6


@pytest.mark.parametrize("service", ["UC", "UD"])
def test_a_send_error_leads_to_sqe_and_back(new_pair: NewPair, service: str) -> None:
    with new_pair(service) as pair:
        wr = pair.a.send_wr(e.IBV_WR_SEND, 10)
        wr.sg[0].lkey ^= 0xFF00_0000
        pair.a.qp.post_send(wr)
        assert pair.a.wait()[0].status == e.IBV_WC_LOC_PROT_ERR
        assert pair.a.qp.qp_state == e.IBV_QPS_SQE
        pair.a.post_send(e.IBV_WR_SEND, 10)
        assert pair.a.wait()[0].status == e.IBV_WC_WR_FLUSH_ERR
        pair.a.qp.modify(bare(e.IBV_QPS_RTS), e.IBV_QP_STATE)
        pair.b.post_recv(100)
        pair.a.post_send(e.IBV_WR_SEND, 10)
        assert pair.a.wait()[0].status == e.IBV_WC_SUCCESS
        assert pair.b.wait()[0].status == e.IBV_WC_SUCCESS


def test_one_queue_pairs_error_disturbs_no_other() -> None:
    with QpPair() as pair, QpPair(net=pair.net) as other:
        other.net.close = lambda: None  # type: ignore[method-assign]  # the first pair's to close
        pair.a.qp.modify(bare(e.IBV_QPS_ERR), e.IBV_QP_STATE)
        other.a.post_send(e.IBV_WR_RDMA_WRITE, 5000)
        assert other.a.wait()[0].status == e.IBV_WC_SUCCESS


def reach(pair: QpPair, state: int) -> None:
    """Bring side a's queue pair from RESET to a state."""
    qp = pair.a.qp
    attr = QPAttr()
    attr.dest_qp_num = pair.b.qp.qp_num
    attr.ah_attr.gr.dgid = pair.b.ctx.query_gid()
    step = {
        e.IBV_QPS_RESET: lambda _: None,
        e.IBV_QPS_INIT: qp.to_init,
        e.IBV_QPS_ERR: qp.to_init,
        e.IBV_QPS_RTR: qp.to_rtr,
    }.get(state, qp.to_rts)
    step(attr)
    if state in (e.IBV_QPS_SQD, e.IBV_QPS_ERR):
        qp.modify(bare(state), e.IBV_QP_STATE)
    elif state == e.IBV_QPS_SQE:
        wr = SendWR(sg=[pair.a.sge(10)])
        wr.sg[0].lkey ^= 0xFF00_0000
        wr.set_wr_ud(AH(pair.a.pd, attr.ah_attr), pair.b.qp.qp_num, 1)
        qp.post_send(wr)
        pair.a.wait()


# Where the state alone leads; every other way asks for attributes, or is none.
ALONE = {(state, e.IBV_QPS_RESET) for state in STATES} | {
    *((state, e.IBV_QPS_ERR) for state in STATES if state != e.IBV_QPS_RESET),
    (e.IBV_QPS_INIT, e.IBV_QPS_INIT),
    (e.IBV_QPS_RTS, e.IBV_QPS_RTS),
    (e.IBV_QPS_RTS, e.IBV_QPS_SQD),
    (e.IBV_QPS_SQD, e.IBV_QPS_RTS),
    (e.IBV_QPS_SQD, e.IBV_QPS_SQD),
    (e.IBV_QPS_SQE, e.IBV_QPS_RTS),
}


# a reliable queue pair that fails goes to ERR
REACHED = [(s, state) for s in ("RC", "UC", "UD") for state in STATES if (s, state) != ("RC", e.IBV_QPS_SQE)]


@pytest.mark.parametrize(("service", "state"), REACHED)
def test_every_state_towards_every_other(new_pair: NewPair, service: str, state: int) -> None:
    """What is not listed is EINVAL, and nothing changed."""
    alone = ALONE | ({(e.IBV_QPS_INIT, e.IBV_QPS_RTR)} if service == "UD" else set())
    for target in STATES:
        with new_pair(service, connect=False) as pair:
            reach(pair, state)
            qp = pair.a.qp
            assert qp.qp_state == state
            before = pair.a.ctx.command(cmd.QUERY_QP, qp.qp_num)
            if (state, target) in alone:
                qp.modify(bare(target), e.IBV_QP_STATE)
                assert qp.qp_state == target
                continue
            with pytest.raises(VerbsError) as error:
                qp.modify(bare(target), e.IBV_QP_STATE)
            assert error.value.errno == 22
            assert pair.a.ctx.command(cmd.QUERY_QP, qp.qp_num) == before


def test_a_reset_takes_a_queue_pairs_completions_with_it() -> None:
    with QpPair(connect=False) as pair, QpPair(net=pair.net, connect=False) as other:
        other.net.close = lambda: None  # type: ignore[method-assign]  # the first pair's to close
        a = pair.a
        second = QP(a.pd, QPInitAttr(cap=QPCap(8, 8), scq=a.cq, rcq=a.cq))
        other.a.qp, other.a.mr, other.a.cq = second, a.mr, a.cq
        pair.connect()
        other.connect()
        for number in range(6):
            a.post_send(e.IBV_WR_RDMA_WRITE, 10, wr_id=number)
            other.a.post_send(e.IBV_WR_RDMA_WRITE, 10, wr_id=10 + number)
        pair.run()
        first = a.cq.poll(3)[1]
        a.qp.modify(bare(e.IBV_QPS_RESET), e.IBV_QP_STATE)
        assert a.cq.ready()
        kept = a.cq.poll(2)[1] + a.cq.poll(64)[1]
        assert [wc.wr_id for wc in kept] == sorted({*range(10, 16)} - {wc.wr_id for wc in first})
        assert not a.cq.ready()
        second.close()
        pair.b.qp.modify(bare(e.IBV_QPS_RESET), e.IBV_QP_STATE)
        pair.connect()
        for number in range(64):
            a.post_send(e.IBV_WR_RDMA_WRITE, 1, wr_id=number)
        assert [wc.wr_id for wc in a.wait(64)] == list(range(64))
