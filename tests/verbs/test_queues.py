"""Shared receive queues, memory windows, completion queues and channels, events, multicast."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable

import pytest

import rnic
from rnic import enums as e
from rnic.spec.errors import VerbsError
from rnic.spec.limits import MAX_CQE, MTU_CODES
from rnic.spec.psn import PSN_WINDOW
from rnic.testing import QpPair, SimNet
from rnic.testing.pair import QKEY, SERVICES
from rnic.verbs import (
    AH,
    CQ,
    GID,
    MR,
    MW,
    PD,
    QP,
    SGE,
    SRQ,
    AHAttr,
    BindInfo,
    CompChannel,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
    next_key,
)
from rnic.verbs.batch import completion_dtype
from rnic.verbs.event_queues import AsyncEvent
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from tests.forks import child_says

NewPair = Callable[..., QpPair]
SECONDS = 20.0
"""How long an event may take from another process."""
SOLICITED = e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED


def no_event(pair: QpPair) -> bool:
    for side in (pair.a, pair.b):
        with pytest.raises(VerbsError, match="no event waits"):
            side.ctx.get_async_event(block=False)
    return True


# --------------------------------------------------------------------------- shared receive queues


@pytest.mark.parametrize("service", ["RC", "UC", "UD"])
def test_an_srq_serves_its_queue_pairs(new_pair: NewPair, service: str) -> None:
    with new_pair(service, srq=True) as pair:
        pair.a.buf[:100] = bytes(range(100))
        for number in range(10):
            pair.b.post_recv(200, 200 * number, wr_id=number)
        for _ in range(10):
            pair.a.post_send(e.IBV_WR_SEND, 100)
        got = pair.b.wait(10)
        assert [wc.wr_id for wc in got] == list(range(10))
        assert {wc.qp_num for wc in got} == {pair.b.qp.qp_num}
        start = 1800 + pair.recv_offset
        assert pair.b.buf[start : start + 100] == bytes(range(100))


def test_the_limit_event_comes_once(new_pair: NewPair) -> None:
    with new_pair(srq=True) as pair:
        srq = pair.b.srq
        assert srq is not None
        for number in range(8):
            pair.b.post_recv(10, wr_id=number)
        srq.modify(SrqAttr(srq_limit=6), e.IBV_SRQ_LIMIT)
        assert srq.query().srq_limit == 6
        for _ in range(2):
            pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.b.wait(2)
        assert no_event(pair)
        pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.b.wait()
        event = pair.b.ctx.get_async_event()
        assert (event.event_type, event.element) == (e.IBV_EVENT_SRQ_LIMIT_REACHED, srq)
        assert srq.query().srq_limit == 0
        pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.b.wait()
        assert no_event(pair)


def test_a_queue_pair_that_stalls_keeps_its_entry_alone(new_pair: NewPair) -> None:
    """One message lies in a CQ that nobody polls; hundreds go by beside it through the other 15 entries."""
    with new_pair(srq=True, depth=16) as pair:
        unread = CQ(pair.b.ctx, 16)
        init = QPInitAttr(e.IBV_QPT_RC, None, QPCap(16, 16, 4, 4, 256), pair.b.cq, unread, pair.b.srq)
        slow = QP(pair.b.pd, init)
        init = QPInitAttr(e.IBV_QPT_RC, None, QPCap(16, 16, 4, 4, 256), pair.a.cq, pair.a.cq)
        towards = QP(pair.a.pd, init)
        for qp, side, peer in ((slow, pair.b, towards), (towards, pair.a, slow)):
            attr, _ = side.qp.query()
            attr.dest_qp_num, attr.rq_psn, attr.sq_psn = peer.qp_num, 0, 0
            qp.to_rts(attr)
        for number in range(16):
            pair.b.post_recv(8, 8 * number, wr_id=number)
        wr = pair.a.send_wr(e.IBV_WR_SEND, 8)
        towards.post_send(wr)
        assert [wc.status for wc in pair.a.wait()] == [e.IBV_WC_SUCCESS]
        for number in range(1, 400):
            pair.a.buf[:8] = number.to_bytes(8, "little")
            pair.a.post_send(e.IBV_WR_SEND, 8)
            (wc,) = pair.b.wait()
            assert (wc.status, wc.wr_id, wc.qp_num) == (e.IBV_WC_SUCCESS, (number - 1) % 15 + 1, pair.b.qp.qp_num)
            at = 8 * wc.wr_id
            assert pair.b.buf[at : at + 8] == number.to_bytes(8, "little")
            pair.b.post_recv(8, at, wr_id=wc.wr_id)
            pair.a.wait()
        with pytest.raises(VerbsError, match="of 16 is full"):
            pair.b.post_recv(8)
        assert [wc.wr_id for wc in unread.poll(4)[1]] == [0]
        pair.b.post_recv(8, 0, wr_id=0)


def test_what_a_reset_queue_pair_had_received_frees_its_entries(new_pair: NewPair) -> None:
    with new_pair(srq=True, depth=4) as pair:
        for number in range(4):
            pair.b.post_recv(8, wr_id=number)
        for _ in range(4):
            pair.a.post_send(e.IBV_WR_SEND, 8)
        pair.a.wait(4)
        pair.b.qp.modify(QPAttr(e.IBV_QPS_RESET), e.IBV_QP_STATE)
        assert pair.b.cq.poll(4) == (0, [])
        for number in range(4):
            pair.b.post_recv(8, wr_id=number)


def test_an_srq_refuses(new_pair: NewPair) -> None:
    with new_pair(srq=True, depth=4) as pair:
        srq = pair.b.srq
        assert srq is not None
        for number in range(4):
            pair.b.post_recv(10, wr_id=number)
        with pytest.raises(VerbsError, match="of 4 is full"):
            pair.b.post_recv(10)
        with pytest.raises(VerbsError, match="shared queue: post there"):
            pair.b.qp.post_recv(RecvWR(0))
        with pytest.raises(VerbsError, match="srq_limit=5"):
            srq.modify(SrqAttr(srq_limit=5), e.IBV_SRQ_LIMIT)
        with pytest.raises(VerbsError, match="a mask beyond IBV_SRQ_LIMIT is not supported"):
            srq.modify(SrqAttr(), e.IBV_SRQ_MAX_WR)
        with pytest.raises(VerbsError, match="max_wr=0"):
            SRQ(pair.b.pd, SrqInitAttr(SrqAttr(0)))
        with pytest.raises(VerbsError, match="max_sge=33"):
            SRQ(pair.b.pd, SrqInitAttr(SrqAttr(1, 33)))


# --------------------------------------------------------------------------------- memory windows


def written(pair: QpPair, rkey: int, offset: int, size: int = 4) -> int:
    """Status of a WRITE to b's region under another key."""
    wr = pair.a.send_wr(e.IBV_WR_RDMA_WRITE, size, remote=offset)
    wr.rkey = rkey
    pair.a.qp.post_send(wr)
    return pair.a.wait()[0].status


def test_a_type_1_window_opens_part_of_a_region(new_pair: NewPair) -> None:
    with new_pair(access=e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND) as pair:
        b = pair.b
        window = MW(b.pd, e.IBV_MW_TYPE_1)
        before = window.rkey
        window.bind(b.qp, BindInfo(b.mr, b.mr.buf + 100, 50, e.IBV_ACCESS_REMOTE_WRITE), wr_id=3)
        wc = b.wait()[0]
        assert (wc.wr_id, wc.status, wc.opcode) == (3, e.IBV_WC_SUCCESS, e.IBV_WC_BIND_MW)
        assert window.rkey != before
        pair.a.buf[:4] = b"data"
        assert written(pair, window.rkey, 146) == e.IBV_WC_SUCCESS
        assert b.buf[146:150] == b"data"
        with pytest.raises(VerbsError):
            b.mr.close()
        assert written(pair, window.rkey, 147) == e.IBV_WC_REM_ACCESS_ERR


def test_a_type_2_window_is_bound_and_invalidated_by_work_requests(new_pair: NewPair) -> None:
    with new_pair(access=e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND) as pair:
        b = pair.b
        window = MW(b.pd, e.IBV_MW_TYPE_2)
        bind = SendWR(1, e.IBV_WR_BIND_MW)
        bind.set_bind_wr(window, next_key(window.rkey), BindInfo(b.mr, b.mr.buf, 64, e.IBV_ACCESS_REMOTE_WRITE))
        b.qp.post_send(bind)
        assert b.wait()[0].status == e.IBV_WC_SUCCESS
        assert written(pair, window.rkey, 0) == e.IBV_WC_SUCCESS
        gone = SendWR(2, e.IBV_WR_LOCAL_INV)
        gone.invalidate_rkey = window.rkey
        b.qp.post_send(gone)
        wc = b.wait()[0]
        assert (wc.status, wc.opcode) == (e.IBV_WC_SUCCESS, e.IBV_WC_LOCAL_INV)
        assert written(pair, window.rkey, 0) == e.IBV_WC_REM_ACCESS_ERR


def test_a_peer_invalidates_a_type_2_window(new_pair: NewPair) -> None:
    with new_pair(access=e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND) as pair:
        b = pair.b
        window = MW(b.pd, e.IBV_MW_TYPE_2)
        bind = SendWR(1, e.IBV_WR_BIND_MW)
        bind.set_bind_wr(window, next_key(window.rkey), BindInfo(b.mr, b.mr.buf, 64, e.IBV_ACCESS_REMOTE_WRITE))
        b.qp.post_send(bind)
        b.wait()
        b.post_recv(10, 500)
        wr = pair.a.send_wr(e.IBV_WR_SEND_WITH_INV, 10)
        wr.invalidate_rkey = window.rkey
        pair.a.qp.post_send(wr)
        got = b.wait()[0]
        assert got.wc_flags & e.IBV_WC_WITH_INV
        assert got.imm_data == window.rkey
        pair.a.wait()
        assert written(pair, window.rkey, 0) == e.IBV_WC_REM_ACCESS_ERR


def test_windows_refuse(new_pair: NewPair) -> None:
    with new_pair() as pair:
        b = pair.b
        with pytest.raises(VerbsError, match="mw_type=3"):
            MW(b.pd, 3)
        info = BindInfo(b.mr, b.mr.buf, 8, e.IBV_ACCESS_REMOTE_READ)
        with pytest.raises(VerbsError, match="post IBV_WR_BIND_MW"):
            MW(b.pd, e.IBV_MW_TYPE_2).bind(b.qp, info)
        outside = BindInfo(b.mr, b.mr.buf + len(b.buf) - 4, 8, e.IBV_ACCESS_REMOTE_READ)
        MW(b.pd).bind(b.qp, outside)
        assert b.wait()[0].status == e.IBV_WC_MW_BIND_ERR


@pytest.mark.parametrize("kind", [e.IBV_MW_TYPE_1, e.IBV_MW_TYPE_2])
def test_a_bind_that_came_to_nothing_changes_nothing(new_pair: NewPair, kind: int) -> None:
    """The window stays usable on any queue pair, is freed by its handle, and its region deregisters."""
    with new_pair(access=e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND) as pair:
        b = pair.b
        window = MW(b.pd, kind)

        def bind(qp: QP, offset: int) -> int:
            what = BindInfo(b.mr, b.mr.buf + offset, 8, e.IBV_ACCESS_REMOTE_WRITE)
            if kind == e.IBV_MW_TYPE_1:
                window.bind(qp, what)
            else:
                wr = SendWR(1, e.IBV_WR_BIND_MW)
                wr.set_bind_wr(window, next_key(window.rkey), what)
                qp.post_send(wr)
            return b.wait()[0].status

        assert bind(b.qp, len(b.buf) - 4) == e.IBV_WC_MW_BIND_ERR
        assert bind(b.qp, 0) == e.IBV_WC_WR_FLUSH_ERR
        healthy = QP(b.pd, QPInitAttr(cap=QPCap(8, 8, 1, 1), scq=b.cq, rcq=b.cq))
        attr, _ = b.qp.query()
        healthy.to_rts(attr)
        assert bind(healthy, 0) == e.IBV_WC_SUCCESS
        assert healthy.qp_state == e.IBV_QPS_RTS
        with pytest.raises(VerbsError):
            b.mr.close()
        window.close()
        b.mr.close()


def test_a_deregistered_region_fails_at_once(new_pair: NewPair) -> None:
    with new_pair() as pair:
        rkey = pair.b.mr.rkey
        assert written(pair, rkey, 0) == e.IBV_WC_SUCCESS
        pair.b.mr.close()
        pair.b.mr.close()
        assert written(pair, rkey, 0) == e.IBV_WC_REM_ACCESS_ERR


def test_a_zero_based_region_counts_from_0(new_pair: NewPair) -> None:
    with new_pair() as pair:
        memory = bytearray(100)
        rights = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_ZERO_BASED
        mr = MR(pair.b.pd, memory, rights)
        pair.a.buf[:4] = b"zero"
        wr = pair.a.send_wr(e.IBV_WR_RDMA_WRITE, 4)
        wr.set_wr_rdma(mr.rkey, 10)
        pair.a.qp.post_send(wr)
        assert pair.a.wait()[0].status == e.IBV_WC_SUCCESS
        assert memory[10:14] == b"zero"


# ---------------------------------------------------------------------------- completion queues


def armed(pair: QpPair, solicited_only: bool = False) -> tuple[CompChannel, CQ, QP]:
    """b's side over again, with a channel; a is connected to it."""
    b = pair.b
    channel = CompChannel(b.ctx)
    cq = CQ(b.ctx, 16, channel=channel)
    b.qp.close()
    b.qp = QP(b.pd, QPInitAttr(SERVICES[pair.service], None, QPCap(16, 16, 1, 1), cq, cq))
    pair.connect()
    cq.req_notify(solicited_only)
    return channel, cq, b.qp


def readable(channel: CompChannel, seconds: float = 0.0) -> bool:
    return bool(select.select([channel], [], [], seconds)[0])


def test_an_armed_cq_raises_one_event(new_pair: NewPair) -> None:
    with new_pair(connect=False) as pair:
        channel, cq, _ = armed(pair)
        for number in range(3):
            pair.b.post_recv(10, wr_id=number)
            pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.a.wait(3)
        assert readable(channel, SECONDS)
        assert channel.get_cq_event(cq) is cq
        assert not readable(channel)
        with pytest.raises(VerbsError, match="no event waits"):
            channel.get_cq_event(block=False)
        assert cq.poll(10)[0] == 3
        cq.req_notify()
        pair.b.post_recv(10)
        pair.a.post_send(e.IBV_WR_SEND, 10)
        assert channel.get_cq_event() is cq  # waits, and so drives the NICs


def test_a_cq_armed_for_solicited_entries_waits_for_one(new_pair: NewPair) -> None:
    with new_pair(connect=False) as pair:
        channel, cq, _ = armed(pair, solicited_only=True)
        for number in range(2):
            pair.b.post_recv(10, wr_id=number)
        pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.a.wait()
        assert not readable(channel)
        pair.a.post_send(e.IBV_WR_SEND, 10, flags=SOLICITED)
        pair.a.wait()
        assert readable(channel, SECONDS)
        assert cq.poll(10)[0] == 2


def test_arming_for_any_entry_outlasts_arming_for_solicited_ones(new_pair: NewPair) -> None:
    """IBA C11-32; the next event takes both."""
    with new_pair(connect=False) as pair:
        channel, cq, _ = armed(pair, solicited_only=False)
        cq.req_notify(solicited_only=True)
        for number in range(2):
            pair.b.post_recv(10, wr_id=number)
        pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.a.wait()
        assert readable(channel, SECONDS)
        assert channel.get_cq_event() is cq
        pair.a.post_send(e.IBV_WR_SEND, 10, flags=SOLICITED)
        pair.a.wait()
        assert not readable(channel)
        assert cq.poll(10)[0] == 2


def test_an_error_counts_as_solicited(new_pair: NewPair) -> None:
    with new_pair(connect=False) as pair:
        channel, cq, qp = armed(pair, solicited_only=True)
        pair.b.post_recv(10)
        attr = QPAttr(e.IBV_QPS_ERR)
        qp.modify(attr, e.IBV_QP_STATE)
        assert readable(channel, SECONDS)
        assert cq.poll()[1][0].status == e.IBV_WC_WR_FLUSH_ERR


def test_resizing_keeps_what_is_in_the_queue(new_pair: NewPair) -> None:
    with new_pair() as pair:
        cq = pair.b.cq
        for number in range(40):
            pair.b.post_recv(10, wr_id=number)
        for _ in range(40):
            pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.a.wait(40)
        assert [wc.wr_id for wc in cq.poll(10)[1]] == list(range(10))
        with pytest.raises(VerbsError, match="cqe=15 is too small"):
            cq.resize(15)
        cq.resize(1000)
        assert cq.cqe >= 1000
        cq.resize(30)
        assert [wc.wr_id for wc in cq.poll(64)[1]] == list(range(10, 40))
        pair.b.post_recv(10, wr_id=99)
        pair.a.post_send(e.IBV_WR_SEND, 10)
        assert pair.b.wait()[0].wr_id == 99


def test_an_overrun_cq_fails_with_its_queue_pairs(new_pair: NewPair) -> None:
    with new_pair(connect=False) as pair:
        b = pair.b
        small = CQ(b.ctx, 3)
        qp = QP(b.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(8, 8), b.cq, small))
        b.qp.close()
        b.qp = qp
        pair.connect()
        for number in range(6):
            b.post_recv(10, wr_id=number)
            pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.run()
        types = [b.ctx.get_async_event().event_type for _ in range(2)]
        assert sorted(types) == [e.IBV_EVENT_CQ_ERR, e.IBV_EVENT_QP_FATAL]
        assert qp.qp_state == e.IBV_QPS_ERR


@pytest.mark.parametrize("cqe", [0, -1, MAX_CQE + 1])
def test_sizes_of_a_cq(cqe: int) -> None:
    with SimNet(1) as net, pytest.raises(VerbsError, match=f"cqe={cqe}"):
        CQ(net.nodes[0].ctx, cqe)


def test_the_words_on_a_cqs_size_are_those_of_the_table() -> None:
    assert CQ.__doc__ is not None
    assert f"must hold, 1 to {MAX_CQE:,} (``MAX_CQE``" in CQ.__doc__


# ---------------------------------------------------------------------------- events and closing


def test_the_async_descriptor_polls_readable(new_pair: NewPair) -> None:
    with new_pair(attributes={"retry_cnt": 0}) as pair:
        descriptor = pair.a.ctx.async_fd
        assert not select.select([descriptor], [], [], 0)[0]
        attr = QPAttr(e.IBV_QPS_SQD)
        attr.en_sqd_async_notify = 1
        pair.a.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
        assert select.select([descriptor], [], [], SECONDS)[0]
        event = pair.a.ctx.get_async_event()
        assert isinstance(event, AsyncEvent)
        assert (event.event_type, event.element) == (e.IBV_EVENT_SQ_DRAINED, pair.a.qp)
        event.ack()
        assert "SQ_DRAINED" in repr(event)


@pytest.mark.parametrize("notify", [0, 1])
def test_the_drained_event_comes_where_it_is_asked_for(new_pair: NewPair, notify: int) -> None:
    """The attribute's value counts, not that it is given; and going from SQD to SQD drains nothing again."""
    with new_pair() as pair:
        attr = QPAttr(e.IBV_QPS_SQD)
        attr.en_sqd_async_notify = notify
        pair.a.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
        if notify:
            assert pair.a.ctx.get_async_event().event_type == e.IBV_EVENT_SQ_DRAINED
        attr.min_rnr_timer = 5
        pair.a.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_MIN_RNR_TIMER)
        assert pair.a.qp.query()[0].min_rnr_timer == 5
        assert no_event(pair)


def drain(pair: QpPair) -> None:
    """Have a queue pair tell that it is drained, and leave that unread."""
    attr = QPAttr(e.IBV_QPS_SQD)
    attr.en_sqd_async_notify = 1
    pair.a.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
    assert select.select([pair.a.ctx.async_fd], [], [], SECONDS)[0]


def test_events_of_a_queue_pair_go_with_it(new_pair: NewPair) -> None:
    """Each of them would keep it, with its rings, and a peer can cause them."""
    with new_pair() as pair:
        drain(pair)
        pair.a.qp.close()
        assert not select.select([pair.a.ctx.async_fd], [], [], 0)[0]
        assert no_event(pair)


def test_events_of_others_stay_when_a_queue_pair_is_closed(new_pair: NewPair) -> None:
    with new_pair() as pair:
        other = QP(pair.a.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(8, 8), pair.a.cq, pair.a.cq))
        drain(pair)
        other.close()
        assert pair.a.ctx.get_async_event().element is pair.a.qp


def test_an_event_that_comes_once_its_queue_pair_is_closed_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    with QpPair() as pair:
        monkeypatch.delitem(pair.a.ctx._qps, pair.a.qp.qp_num)
        attr = QPAttr(e.IBV_QPS_SQD)
        attr.en_sqd_async_notify = 1
        pair.a.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_EN_SQD_ASYNC_NOTIFY)
        pair.run()
        assert pair.a.counters["event_sq_drained"] == 1
        assert no_event(pair)


def test_events_of_a_shared_receive_queue_go_with_it(new_pair: NewPair) -> None:
    with new_pair(srq=True) as pair:
        srq = pair.b.srq
        assert srq is not None
        for number in range(4):
            pair.b.post_recv(10, wr_id=number)
        srq.modify(SrqAttr(srq_limit=4), e.IBV_SRQ_LIMIT)
        pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.b.wait()
        assert select.select([pair.b.ctx.async_fd], [], [], SECONDS)[0]
        pair.b.qp.close()
        assert select.select([pair.b.ctx.async_fd], [], [], 0)[0]
        srq.close()
        assert no_event(pair)


def test_events_of_a_completion_queue_go_with_it(new_pair: NewPair) -> None:
    with new_pair(connect=False) as pair:
        channel, cq, qp = armed(pair)
        pair.b.post_recv(10)
        pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.a.wait()
        assert readable(channel, SECONDS)
        qp.close()
        cq.close()
        assert not readable(channel)
        with pytest.raises(VerbsError, match="no event waits"):
            channel.get_cq_event(block=False)


def test_every_path_mtu_carries_the_longest_message(new_pair: NewPair) -> None:
    with new_pair() as pair:
        longest = pair.a.ctx.query_port().max_msg_sz
        assert longest == 1 << 30
        assert all(-(-longest // mtu) <= PSN_WINDOW for mtu in MTU_CODES)


def test_a_udp_link_says_that_it_brings_nothing_but_rdma() -> None:
    with rnic.Context(addr="127.0.0.1", port=0) as ctx:
        with pytest.raises(VerbsError, match="is on a UDP socket, which gets no non-RDMA packets") as error:
            ctx.read_non_rdma()
        assert error.value.errno == errno.EOPNOTSUPP


def test_a_profile_of_a_device_in_this_process() -> None:
    with rnic.Context(addr="127.0.0.1", port=0, profile="univista", parameters={"QP_NUM": 256, "MAC_DW": 512}) as ctx:
        config = ctx.nic.config
        assert (config.profile, config.log_max_qps, config.rq_almost_full) == ("univista", 8, 1)
        assert config.parameters["MAC_DW"] == 512
        assert ctx.query_device().max_qp == 256
        with rnic.Context(addr="127.0.0.1", port=ctx.udp_port) as other:
            assert other.nic is ctx.nic
        with pytest.raises(VerbsError, match="runs already without this profile"):
            rnic.Context(addr="127.0.0.1", port=ctx.udp_port, profile="univista")
        with pytest.raises(VerbsError, match="the device exists already"):
            rnic.Context(runtime=ctx.runtime, profile="univista")
    with pytest.raises(VerbsError, match="profile='x' does not exist: use univista"):
        rnic.Context(addr="127.0.0.1", port=0, profile="x")
    with pytest.raises(VerbsError, match="parameters require a profile"):
        rnic.Context(addr="127.0.0.1", port=0, parameters={"QP_NUM": 256})


def test_a_completion_that_tells_of_an_error_raises_no_event() -> None:
    with QpPair(attributes={"retry_cnt": 0}, faults=[{"match": {"direction": "tx"}, "action": "drop"}]) as pair:
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10)
        assert pair.a.wait()[0].status == e.IBV_WC_RETRY_EXC_ERR
        assert no_event(pair)


def test_closing_a_context_closes_all_that_was_made_in_it() -> None:
    pair = QpPair()
    a = pair.a
    nic = a.node.nic
    a.ctx.close()
    a.ctx.close()
    assert a.qp.closed
    assert a.cq.closed
    assert a.mr.closed
    assert a.pd.closed
    assert not nic.qps
    assert not nic.resources.keys
    pair.close()


def test_closing_in_any_order(new_pair: NewPair) -> None:
    with new_pair() as pair:
        a = pair.a
        with pytest.raises(VerbsError):
            a.cq.close()  # its queue pair still completes there
        a.pd.close()
        assert a.qp.closed
        assert a.mr.closed
        a.cq.close()
        a.cq.close()


# --------------------------------------------------------------------------------- UD destinations


def test_a_cable_that_is_pulled_is_told_to_everybody() -> None:
    with QpPair() as pair:
        a = pair.a
        cable = a.node.link.inner
        for up, kind, state in ((False, e.IBV_EVENT_PORT_ERR, 1), (True, e.IBV_EVENT_PORT_ACTIVE, 4)):
            cable.up = up  # type: ignore[misc]
            a.post_send(e.IBV_WR_RDMA_WRITE, 10)
            a.wait()
            event = a.ctx.get_async_event(block=False)
            assert (event.event_type, event.element) == (kind, None)
            assert a.ctx.query_port().state == state
        a.post_send(e.IBV_WR_RDMA_WRITE, 10)
        a.wait()
        assert no_event(pair)


def test_what_is_not_rdma_comes_out_of_its_own_channel() -> None:
    with QpPair() as pair:
        there = pair.b.node.nic.config.address
        frame = ip_packet(Flow(pair.a.node.nic.config.address, there, 5, 53), b"q" * 9000)
        assert pair.b.ctx.read_non_rdma() is None
        for _ in range(300):
            pair.net.fabric.carry(there, frame)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 100)
        assert pair.a.wait()[0].status == e.IBV_WC_SUCCESS
        pair.run()
        held = (1 << 20) // len(frame)
        assert pair.b.counters["non_rdma_frames"] == held
        assert pair.b.counters["drop_non_rdma_full"] == 300 - held
        assert [pair.b.ctx.read_non_rdma() for _ in range(held)] == [frame] * held
        assert pair.b.ctx.read_non_rdma() is None
        assert pair.a.ctx.read_non_rdma() is None


def test_what_is_not_rdma_goes_out_by_its_own_channel() -> None:
    with QpPair() as pair:
        here, there = pair.a.node.nic.config.address, pair.b.node.nic.config.address
        question, answer = ip_packet(Flow(here, there, 5, 53), b"q" * 4000), ip_packet(Flow(there, here, 53, 5), b"a")
        pair.a.ctx.write_non_rdma(question)
        pair.run()
        assert pair.b.ctx.read_non_rdma() == question
        pair.b.ctx.write_non_rdma(bytearray(answer))
        pair.run()
        assert pair.a.ctx.read_non_rdma() == answer
        assert pair.a.counters["non_rdma_frames_sent"] == 1
        assert pair.a.counters["non_rdma_bytes_sent"] == len(question)
        pair.a.ctx.write_non_rdma(ip_packet(Flow(here, bytes(4), 5, 53), b"nobody"))
        assert pair.a.counters["drop_non_rdma_tx"] == 1
        rdma = ip_packet(Flow(here, there, 5, pair.b.node.nic.config.port), b"r" * 20)
        for bad in (b"", question[:-1], rdma, b"\x60" + bytes(39)):
            with pytest.raises(VerbsError, match=r"not a whole IP packet of the device's IP version, or RDMA") as error:
                pair.a.ctx.write_non_rdma(bad)
            assert error.value.errno == errno.EINVAL
        with pytest.raises(VerbsError, match="a frame of 4097 bytes: the channel sends at most 4096"):
            pair.a.ctx.write_non_rdma(bytes(4097))


def test_an_address_handle_is_of_the_nics_ip_version(new_pair: NewPair) -> None:
    with new_pair("UD") as pair, pytest.raises(VerbsError, match="is not of this port's IP version"):
        AH(pair.a.pd, AHAttr(GlobalRoute(GID("fe80::1"))))


def test_a_datagram_needs_an_address_handle(new_pair: NewPair) -> None:
    with new_pair("UD") as pair:
        wr = SendWR(sg=[pair.a.sge(10)])
        with pytest.raises(VerbsError, match="needs an address handle"):
            pair.a.qp.post_send(wr)
        pair.b.post_recv(100)
        pair.a.post_send(e.IBV_WR_SEND, 10)
        assert pair.b.wait()[0].byte_len == 50


@pytest.mark.parametrize("name", ["239.1.2.3", "ff0e::ffff:239.1.2.3", "ff0e::1234"], ids=["ipv4", "mapped", "ipv6"])
def test_multicast_reaches_all_members(name: str) -> None:
    """By either spelling of an IPv4 group: one end has it as it is named, the other as an address."""
    group = GID(name)
    with SimNet(3, ipv6=name == "ff0e::1234") as net:
        members = []
        for node in net.nodes:
            pd, cq = PD(node.ctx), CQ(node.ctx, 16)
            qp = QP(pd, QPInitAttr(e.IBV_QPT_UD, None, QPCap(8, 8), cq, cq))
            attr = QPAttr()
            attr.qkey = QKEY
            qp.to_rts(attr)
            mr = MR(pd, bytearray(200))
            members.append((pd, cq, qp, mr))
        for _, _, qp, mr in members[1:]:
            qp.attach_mcast(group)
            qp.post_recv(RecvWR(1, 1, [SGE(mr.buf, 200, mr.lkey)]))
        net.run()
        pd, _, qp, mr = members[0]
        mr.write(b"to all", 6)
        wr = SendWR(sg=[SGE(mr.buf, 6, mr.lkey)])
        target = group if name == "ff0e::1234" else GID("239.1.2.3")
        wr.set_wr_ud(AH(pd, AHAttr(GlobalRoute(target))), 0xFFFFFF, QKEY)
        qp.post_send(wr)
        net.run()
        for _, cq, _, mr in members[1:]:
            assert cq.poll()[1][0].status == e.IBV_WC_SUCCESS
            assert mr.read(6, 40) == b"to all"
        members[1][2].detach_mcast(group)
        with pytest.raises(VerbsError, match="this queue pair has not joined"):
            members[1][2].detach_mcast(group)
        with pytest.raises(VerbsError):
            qp.attach_mcast("10.0.0.1")


def test_no_message_is_acknowledged_whose_completion_is_lost(new_pair: NewPair) -> None:
    """A CQ of 3 and eight SENDs: as many succeed as there are completions on the other side."""
    with new_pair(depth=8) as pair:
        pair.b.cq.resize(3)
        for _ in range(8):
            pair.b.post_recv(100)
        for number in range(8):
            pair.a.post_send(e.IBV_WR_SEND, 10, wr_id=number)
        pair.run()
        sent = [wc.status for wc in pair.a.poll()]
        received = [wc.status for wc in pair.b.poll()]
        assert received == [e.IBV_WC_SUCCESS] * 3
        assert sent == [e.IBV_WC_SUCCESS] * 3 + [e.IBV_WC_REM_OP_ERR] + [e.IBV_WC_WR_FLUSH_ERR] * 4


@pytest.mark.parametrize("way", ["poll", "poll_batch"])
def test_completions_come_to_the_queue_that_the_context_names(way: str) -> None:
    """002 5.4.2, row ``qp_cqn_send``: more than the send queue holds, and none is lost; closing forgets both queues."""
    with QpPair(depth=16) as pair:
        a = pair.a
        other = CQ(a.ctx, 64)
        key = a.node.nic.contexts.key.qps[a.qp.qp_num]
        for number in range(100):
            if number == 4:
                key.cqn_snd = other.cqn
            a.post_send(e.IBV_WR_RDMA_WRITE, 8, wr_id=number)
            pair.run()
            cq = a.cq if number < 4 else other
            if way == "poll":
                assert [(wc.wr_id, wc.qp_num) for wc in cq.poll(4)[1]] == [(number, a.qp.qp_num)]
            else:
                np = pytest.importorskip("numpy")
                assert cq.poll_batch(np.zeros(4, completion_dtype())) == 1
        assert a.cq.poll(4)[0] == 0
        a.post_send(e.IBV_WR_RDMA_WRITE, 8)
        pair.run()
        a.qp.close()
        assert other.poll(4)[0] == a.cq.poll(4)[0] == 0
        other.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("service", ["RC", "UC", "UD"])
def test_a_forked_child_closes_a_queue_pair_whose_completions_nobody_polled(new_pair: NewPair, service: str) -> None:
    """They are the parent's, and stay."""
    with new_pair(service) as pair:
        pair.b.post_recv(200, 0, wr_id=7)
        pair.a.post_send(e.IBV_WR_SEND, 100, wr_id=9)
        pair.run()

        def closes() -> bool:
            for side in (pair.a, pair.b):
                side.qp.close()
                side.cq.close()
            return True

        assert child_says(closes)
        assert [wc.wr_id for side in (pair.a, pair.b) for wc in side.wait(1)] == [9, 7]
