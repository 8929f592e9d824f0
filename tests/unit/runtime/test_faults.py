"""Device events on command: what programs see of each, and that all works again once it is healed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from errno import EBUSY, EINVAL, EIO

import pytest

from rnic import enums as e
from rnic.link.fault_events import EVENTS
from rnic.runtime import faults
from rnic.runtime.faults import _EVENTS
from rnic.spec.errors import VerbsError
from rnic.testing import QpPair
from rnic.testing.pair import Side
from rnic.verbs import (
    CQ,
    GID,
    MR,
    MW,
    PD,
    QP,
    BindInfo,
    CompChannel,
    Context,
    QPAttr,
    QPCap,
    QPInitAttr,
    SrqAttr,
    SrqInitAttr,
)
from rnic.verbs.srq import SRQ

QUICK = {"timeout": 8, "retry_cnt": 3}
"""A lost peer is noticed after a few milliseconds."""
PAIRS = pytest.mark.rnic_pair(attributes=QUICK)
MS = 1_000_000


def events(ctx: Context) -> list[str]:
    found: list[str] = []
    while True:
        try:
            event = ctx.get_async_event(block=False)
        except VerbsError:
            return found
        found.append(e.EVENT_NAMES[event.event_type].removeprefix("IBV_EVENT_"))


def statuses(side: Side, count: int) -> list[str]:
    return [e.WC_STATUS_NAMES[wc.status].removeprefix("IBV_WC_") for wc in side.wait(count)]


def state(side: Side) -> int:
    return side.qp.query(e.IBV_QP_STATE)[0].qp_state


def write(side: Side, length: int = 5000) -> str:
    """The status of one WRITE; one that succeeds has written."""
    side.buf[:length] = bytes(range(250)) * (length // 250)
    side.peer.buf[:length] = bytes(length)
    side.post_send(e.IBV_WR_RDMA_WRITE, length)
    (status,) = statuses(side, 1)
    assert (status == "SUCCESS") <= (side.peer.buf[:length] == side.buf[:length])
    return status


def connect_anew(pair: QpPair) -> None:
    """As a program does after an error: both queue pairs through RESET."""
    for side in (pair.a, pair.b):
        attr = QPAttr()
        attr.qp_state = e.IBV_QPS_RESET
        side.qp.modify(attr, e.IBV_QP_STATE)
        side.poll()
    pair.connect(**QUICK)


# ---------------------------------------------------------------------------------------- port and paths


@PAIRS
def test_a_short_flap_is_a_pause_in_the_transfer(rnic_pair: QpPair) -> None:
    rnic_pair.b.flap(3, down="200us", up="300us")
    assert write(rnic_pair.a, 1_000_000) == "SUCCESS"
    rnic_pair.run()
    assert events(rnic_pair.b.ctx) == ["PORT_ERR", "PORT_ACTIVE"] * 3
    assert events(rnic_pair.a.ctx) == []
    assert rnic_pair.b.counters["fault_port_down"] > 0


@pytest.mark.parametrize(("event", "counter"), [("port_down", "fault_port_down"), ("lose_path", "fault_path_loss")])
def test_of_what_arrives_each_packet_is_counted(rnic_pair: QpPair, event: str, counter: str) -> None:
    """However many share a burst."""
    a, b = rnic_pair.a, rnic_pair.b
    a.post_send(e.IBV_WR_RDMA_WRITE, 5_000)
    getattr(b, event)(*[a.ctx.address] * (event == "lose_path"), "1us")
    b.ctx.runtime.link.receive(64)
    assert b.counters[counter] == 5


@PAIRS
@pytest.mark.parametrize("whose", ["a", "b"])
def test_a_long_one_ends_the_connection_and_a_new_one_works(rnic_pair: QpPair, whose: str) -> None:
    a, hit = rnic_pair.a, getattr(rnic_pair, whose)
    hit.port_down("50ms")
    assert hit.ctx.query_port().state == e.IBV_PORT_DOWN
    for offset in range(3):
        a.post_send(e.IBV_WR_RDMA_WRITE, 100, offset)
    assert statuses(a, 3) == ["RETRY_EXC_ERR", "WR_FLUSH_ERR", "WR_FLUSH_ERR"]
    assert state(a) == e.IBV_QPS_ERR
    rnic_pair.run()
    assert hit.ctx.query_port().state == e.IBV_PORT_ACTIVE
    assert events(hit.ctx) == ["PORT_ERR", "PORT_ACTIVE"], "a completion tells of the queue pair's error, no event"
    connect_anew(rnic_pair)
    assert write(a) == "SUCCESS"


@PAIRS
def test_port_up_and_heal_end_what_lasts(rnic_pair: QpPair) -> None:
    a = rnic_pair.a
    a.port_down()
    a.flap(5)
    a.port_up()
    assert a.ctx.query_port().state == e.IBV_PORT_ACTIVE
    assert write(a) == "SUCCESS"
    a.port_down()
    a.port_down("1s")
    a.heal()
    assert a.ctx.query_port().state == e.IBV_PORT_ACTIVE
    assert a.ctx.runtime.faults().state() == {
        "device": "sim0",
        "port": "active",
        "dead": False,
        "lasting": [],
        "pending": [],
        "failing": {},
    }
    assert events(a.ctx) == ["PORT_ERR", "PORT_ACTIVE"] * 2


@PAIRS
def test_the_path_to_one_peer_is_lost(rnic_pair: QpPair) -> None:
    rnic_pair.a.lose_path("10.0.0.77")
    assert write(rnic_pair.a) == "SUCCESS"
    rnic_pair.a.lose_path("10.0.0.2", "20ms")
    assert write(rnic_pair.a) == "RETRY_EXC_ERR"
    assert rnic_pair.a.counters["fault_path_loss"] > 0
    assert events(rnic_pair.a.ctx) == []
    rnic_pair.run()
    connect_anew(rnic_pair)
    assert write(rnic_pair.a) == "SUCCESS"


def test_slow_dma_makes_all_late_and_loses_nothing(rnic_pair: QpPair) -> None:
    assert write(rnic_pair.a, 100_000) == "SUCCESS"
    before = rnic_pair.clock.now_ns
    rnic_pair.b.slow_dma("300us", "20ms")
    assert write(rnic_pair.a, 100_000) == "SUCCESS"
    assert rnic_pair.clock.now_ns - before > 600_000, "data and ACK wait for the NIC's memory"
    assert rnic_pair.b.counters["fault_slow_dma"] > 0
    rnic_pair.run()
    before = rnic_pair.clock.now_ns
    assert write(rnic_pair.a, 100_000) == "SUCCESS"
    assert rnic_pair.clock.now_ns - before < 600_000


# ------------------------------------------------------------------------------------------------ tables


def test_a_gid_goes_and_comes(rnic_pair: QpPair) -> None:
    a = rnic_pair.a
    own = a.ctx.query_gid(1, 0)
    a.change_gid(0, "none", "5ms")
    a.change_gid(3, "10.0.0.1")
    assert events(a.ctx) == ["GID_CHANGE"] * 2
    assert a.ctx.query_gid(1, 0) == GID("::")
    assert a.ctx.query_gid(1, 3) == own
    assert a.ctx.query_port().gid_tbl_len == 4
    assert write(a) == "SUCCESS", "a connection that is there goes on"
    with pytest.raises(VerbsError, match="refused") as refused:
        connect_anew(rnic_pair)
    assert refused.value.errno == EINVAL
    rnic_pair.run()
    assert a.ctx.query_gid(1, 0) == own
    assert events(a.ctx) == ["GID_CHANGE"]
    connect_anew(rnic_pair)
    assert write(a) == "SUCCESS"


@PAIRS
def test_a_pkey_changes_and_comes_back(rnic_pair: QpPair) -> None:
    rnic_pair.b.change_pkey(0, 0x8001)
    assert rnic_pair.b.ctx.query_pkey() == 0x8001
    assert write(rnic_pair.a) == "RETRY_EXC_ERR"
    assert rnic_pair.b.counters["drop_bad_pkey"] > 0
    rnic_pair.b.heal()
    assert rnic_pair.b.ctx.query_pkey() == 0xFFFF
    assert events(rnic_pair.b.ctx) == ["PKEY_CHANGE"] * 2
    connect_anew(rnic_pair)
    assert write(rnic_pair.a) == "SUCCESS"


# ------------------------------------------------------------------------------------------------ queues


@PAIRS
def test_a_queue_pair_goes_to_error(rnic_pair: QpPair) -> None:
    a, b = rnic_pair.a, rnic_pair.b
    b.post_recv(100)
    a.post_send(e.IBV_WR_SEND, 100)
    b.qp_error()
    assert statuses(b, 1) == ["WR_FLUSH_ERR"]
    assert events(b.ctx) == ["QP_FATAL"]
    assert statuses(a, 1) == ["RETRY_EXC_ERR"]
    connect_anew(rnic_pair)
    assert write(a) == "SUCCESS"


@PAIRS
@pytest.mark.parametrize("status", ["RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "REM_ACCESS_ERR", "LOC_PROT_ERR"])
def test_a_send_completes_with_the_status_that_was_asked_for(rnic_pair: QpPair, status: str) -> None:
    a = rnic_pair.a
    a.completion_error(status)
    assert events(a.ctx) == []
    assert state(a) == e.IBV_QPS_RTS
    for offset in range(2):
        a.post_send(e.IBV_WR_RDMA_WRITE, 100, offset, flags=0)
    assert statuses(a, 2) == [status, "WR_FLUSH_ERR"]
    assert (state(a), events(a.ctx)) == (e.IBV_QPS_ERR, [])
    connect_anew(rnic_pair)
    assert write(a) == "SUCCESS"


@pytest.mark.rnic_pair(service="UD")
def test_a_datagram_cannot_be_told_to_fail(rnic_pair: QpPair) -> None:
    with pytest.raises(VerbsError, match="is not RC"):
        rnic_pair.a.completion_error("RETRY_EXC_ERR")


@pytest.mark.rnic_pair(srq=True, attributes=QUICK)
def test_a_shared_receive_queue_fails_with_its_queue_pairs(rnic_pair: QpPair) -> None:
    a, b = rnic_pair.a, rnic_pair.b
    b.srq_error()
    assert events(b.ctx) == ["SRQ_ERR", "QP_FATAL", "QP_LAST_WQE_REACHED"]
    a.post_send(e.IBV_WR_SEND, 100)
    assert statuses(a, 1) == ["RETRY_EXC_ERR"]
    assert b.srq is not None
    with pytest.raises(VerbsError, match="refused"):
        connect_anew(rnic_pair)
    with SRQ(b.pd, SrqInitAttr(SrqAttr(16, 1))) as srq:
        init = QPInitAttr(e.IBV_QPT_RC, None, QPCap(4, 4), b.cq, b.cq, srq)
        with QP(b.pd, init) as fresh:
            fresh.to_init(_init_attr())


def _init_attr() -> QPAttr:
    attr = QPAttr()
    attr.port_num = 1
    return attr


@PAIRS
def test_a_cq_overflows_with_its_queue_pairs(rnic_pair: QpPair) -> None:
    a = rnic_pair.a
    a.cq_overflow()
    rnic_pair.run()
    assert events(a.ctx) == ["CQ_ERR", "QP_FATAL"]
    assert state(a) == e.IBV_QPS_ERR
    assert a.poll() == [], "what is flushed finds no place"
    with CQ(a.ctx, 8) as cq, QP(a.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(4, 4), cq, cq, None)) as fresh:
        fresh.to_init(_init_attr())
    assert a.ctx.query_port().state == e.IBV_PORT_ACTIVE


# ------------------------------------------------------------------------------------------------ memory


@PAIRS
def test_a_region_is_gone_for_peers_and_for_its_owner(rnic_pair: QpPair) -> None:
    a, b = rnic_pair.a, rnic_pair.b
    b.lose_region()
    assert write(a) == "REM_ACCESS_ERR"
    assert events(b.ctx) == ["QP_ACCESS_ERR"]
    b.heal()
    connect_anew(rnic_pair)
    assert write(a) == "SUCCESS"
    a.lose_region(duration="1ms")
    assert write(a) == "LOC_PROT_ERR"
    rnic_pair.run()
    connect_anew(rnic_pair)
    assert write(a) == "SUCCESS"


def test_a_lost_region_can_be_deregistered_and_stays_so(rnic_pair: QpPair) -> None:
    b = rnic_pair.b
    b.lose_region()
    b.mr.close()
    b.heal()
    assert write(rnic_pair.a) == "REM_ACCESS_ERR"


# -------------------------------------------------------------------------------------------- interrupts


def said(channel: CompChannel) -> bool:
    try:
        channel.get_cq_event(block=False)
    except VerbsError:
        return False
    return True


@pytest.fixture
def notified(rnic_pair: QpPair) -> Iterator[tuple[QpPair, CompChannel]]:
    """Side b's completions have a channel."""
    b = rnic_pair.b
    with contextlib.closing(CompChannel(b.ctx)) as channel, CQ(b.ctx, 64, channel=channel) as cq:
        old, b.cq = (b.qp, b.cq), cq
        b.qp = QP(b.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(64, 64, 4, 4, 256), cq, cq, None))
        attr = QPAttr()
        attr.qp_state = e.IBV_QPS_RESET
        rnic_pair.a.qp.modify(attr, e.IBV_QP_STATE)
        rnic_pair.connect()
        yield rnic_pair, channel
        b.qp.close()
        b.qp, b.cq = old


def test_a_lost_interrupt_is_made_up_for_by_the_next(notified: tuple[QpPair, CompChannel]) -> None:
    pair, channel = notified
    a, b = pair.a, pair.b
    b.lose_interrupts()
    for offset in range(2):
        b.cq.req_notify()
        b.post_recv(100, 100 * offset)
        a.post_send(e.IBV_WR_SEND, 100)
        pair.run()
        assert said(channel) is bool(offset)
    assert b.counters["fault_interrupt_lost"] == 1
    assert len(b.wait(2)) == 2


def test_a_late_interrupt_comes(notified: tuple[QpPair, CompChannel]) -> None:
    pair, channel = notified
    a, b = pair.a, pair.b
    b.delay_interrupts("2ms")
    b.cq.req_notify()
    b.post_recv(100)
    a.post_send(e.IBV_WR_SEND, 100)
    began = pair.clock.now_ns
    a.wait()
    assert not said(channel)
    pair.run()
    assert said(channel)
    assert pair.clock.now_ns - began >= 2 * MS


# ------------------------------------------------------------------------------------------------ device


@PAIRS
def test_a_device_fails_and_comes_back(rnic_pair: QpPair) -> None:
    a, b = rnic_pair.a, rnic_pair.b
    runtime = b.ctx.runtime
    b.device_fatal("30ms")
    assert events(b.ctx) == ["DEVICE_FATAL"]
    with pytest.raises(VerbsError) as gone:
        b.ctx.query_port()
    assert gone.value.errno == EIO
    with pytest.raises(VerbsError):
        Context(runtime=runtime)
    assert write(a) == "RETRY_EXC_ERR"
    assert b.poll() == [], "a dead device completes nothing"
    rnic_pair.run()
    with pytest.raises(VerbsError):
        PD(b.ctx)
    again = Context(runtime=runtime, space=b.ctx.driver.space)
    b.ctx.close()
    node = b.node
    node.ctx = again
    with QpPair(net=rnic_pair.net, attributes=QUICK) as fresh:
        assert write(fresh.a) == write(fresh.b) == "SUCCESS"


def test_a_device_in_its_program_cannot_be_killed(rnic_pair: QpPair) -> None:
    with pytest.raises(VerbsError, match="there is none to kill"):
        rnic_pair.a.fault("kill")


# ------------------------------------------------------------------------------------------ by the script


@pytest.mark.rnic_pair(attributes=QUICK)
@pytest.mark.rnic_faults([{"match": {"opcode": "RC_WRITE*"}, "nth": 3, "action": "port-down", "for": "300us"}])
def test_by_count(rnic_pair: QpPair) -> None:
    assert write(rnic_pair.a, 1000) == "SUCCESS"
    assert events(rnic_pair.a.ctx) == []
    assert write(rnic_pair.a, 20_000) == "SUCCESS"
    assert events(rnic_pair.a.ctx) == ["PORT_ERR", "PORT_ACTIVE"]
    assert write(rnic_pair.a, 20_000) == "SUCCESS"
    assert events(rnic_pair.a.ctx) == []


@pytest.mark.rnic_faults(
    [
        {"at": "1ms", "every": "2ms", "times": 3, "action": "port-down", "for": "100us"},
        {"at": "8ms", "action": "qp-error", "qp": "all"},
        {"at": "9ms", "action": "qp-error", "qp": 5},
    ]
)
def test_by_the_clock(rnic_pair: QpPair) -> None:
    net, a = rnic_pair.net, rnic_pair.a
    net.run(lambda: rnic_pair.clock.now_ns >= 7 * MS)
    assert events(a.ctx) == ["PORT_ERR", "PORT_ACTIVE"] * 3
    net.run()
    assert rnic_pair.clock.now_ns >= 9 * MS
    assert events(a.ctx) == ["QP_FATAL"]
    assert a.counters["fault_event_missed"] == 1, "there is no queue pair 5"


# --------------------------------------------------------------------------------------------- the table


def test_every_event_is_done_by_somebody() -> None:
    assert set(_EVENTS) == set(EVENTS)


# ------------------------------------------------------------------------------- one on top of another


@PAIRS
def test_the_end_of_one_slow_memory_leaves_the_other(rnic_pair: QpPair) -> None:
    b, clock = rnic_pair.b, rnic_pair.clock
    b.slow_dma("100us", "1ms")
    b.slow_dma("500us", "40ms")
    rnic_pair.net.run(lambda: clock.now_ns >= 1 * MS)
    began = clock.now_ns
    assert write(rnic_pair.a) == "SUCCESS"
    assert clock.now_ns - began >= 1 * MS, "in and out, each 500 us late"
    rnic_pair.run()
    began = clock.now_ns
    assert write(rnic_pair.a) == "SUCCESS"
    assert clock.now_ns - began < 500_000


@pytest.mark.parametrize("first_ends", ["first", "last"])
def test_a_table_entry_that_changes_twice_comes_back(rnic_pair: QpPair, first_ends: str) -> None:
    a, clock = rnic_pair.a, rnic_pair.clock
    own = a.ctx.query_gid(1, 0)
    lasts = ("2ms", "6ms") if first_ends == "first" else ("6ms", "2ms")
    a.change_gid(0, "10.0.0.77", lasts[0])
    a.change_gid(0, "10.0.0.78", lasts[1])
    a.change_pkey(0, 0x8001, lasts[0])
    a.change_pkey(0, 0x8002, lasts[1])
    assert (a.ctx.query_gid(1, 0), a.ctx.query_pkey()) == (GID("::ffff:10.0.0.78"), 0x8002)
    rnic_pair.net.run(lambda: clock.now_ns >= 4 * MS)
    left = "78" if first_ends == "first" else "77"
    assert a.ctx.query_gid(1, 0) == GID(f"::ffff:10.0.0.{left}")
    assert a.ctx.query_pkey() == (0x8002 if first_ends == "first" else 0x8001)
    rnic_pair.run()
    assert (a.ctx.query_gid(1, 0), a.ctx.query_pkey()) == (own, 0xFFFF)


@PAIRS
def test_regions_that_are_lost_again_come_back(rnic_pair: QpPair) -> None:
    b = rnic_pair.b
    b.lose_region()
    b.lose_region("all", "1ms")
    rnic_pair.run()
    b.heal()
    assert write(rnic_pair.a) == "SUCCESS"


@PAIRS
def test_no_region_is_lost_where_one_of_all_has_windows(rnic_pair: QpPair) -> None:
    b = rnic_pair.b
    rights = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND
    with MR(b.pd, bytearray(4096), rights) as under, MW(b.pd, e.IBV_MW_TYPE_1) as window:
        window.bind(b.qp, BindInfo(under, under.buf, 100, 0), wr_id=1)
        assert statuses(b, 1) == ["SUCCESS"]
        with pytest.raises(VerbsError) as busy:
            b.lose_region("all")
        assert busy.value.errno == EBUSY
        with pytest.raises(VerbsError, match="region of key"):
            b.lose_region(window.rkey)
        assert write(rnic_pair.a) == "SUCCESS"


def test_a_heal_brings_late_interrupts_at_once(notified: tuple[QpPair, CompChannel]) -> None:
    pair, channel = notified
    a, b = pair.a, pair.b
    b.delay_interrupts("10s")
    b.cq.req_notify()
    b.post_recv(100)
    a.post_send(e.IBV_WR_SEND, 100)
    a.wait()
    pair.net.run(lambda: bool(b.counters["fault_interrupt_late"]))
    assert not said(channel)
    b.heal()
    pair.run()
    assert said(channel)


def test_events_that_wait_do_not_stop_interrupts(
    notified: tuple[QpPair, CompChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, channel = notified
    a, b = pair.a, pair.b
    b.delay_interrupts("10s")
    monkeypatch.setattr(faults, "MAX_PENDING", 0)
    b.cq.req_notify()
    b.post_recv(100)
    a.post_send(e.IBV_WR_SEND, 100)
    pair.run()
    assert said(channel), "there is no room to have it come late"


def test_a_flap_without_pause_leaves_time_for_others(rnic_pair: QpPair) -> None:
    rnic_pair.a.flap(100_000, down=0, up=0)
    device = rnic_pair.a.ctx.runtime.faults()
    device.receive(1)
    assert rnic_pair.a.counters["fault_event_flap"] == 1
    assert len(events(rnic_pair.a.ctx)) < 1_000, "one turn does a part of it"
    assert device.next_deadline_ns() == rnic_pair.clock.now_ns
    rnic_pair.a.heal()


def test_a_completion_error_goes_with_its_queue_pair(rnic_pair: QpPair) -> None:
    a = rnic_pair.a
    device = a.ctx.runtime.faults()
    a.completion_error("RETRY_EXC_ERR")
    a.qp.close()
    rnic_pair.run()
    assert device.state()["failing"] == {}


def test_what_is_kept_late_is_bounded(rnic_pair: QpPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MAX_HELD", 3)
    a = rnic_pair.a
    a.slow_dma("1s", "2s")
    a.post_send(e.IBV_WR_RDMA_WRITE, 50_000)
    rnic_pair.net.run(lambda: a.counters["fault_slow_dma_full"] > 0)
    assert a.counters["fault_slow_dma"] <= 3 * 64


def test_what_lasts_is_bounded(rnic_pair: QpPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MAX_LASTING", 2)
    for _ in range(2):
        rnic_pair.a.port_down()
    with pytest.raises(VerbsError, match="2 events last already: heal first"):
        rnic_pair.a.port_down()
    rnic_pair.a.heal()
    assert rnic_pair.a.ctx.query_port().state == e.IBV_PORT_ACTIVE


def test_all_sends_to_fail_are_those_of_reliable_connections(rnic_pair: QpPair) -> None:
    a = rnic_pair.a
    with QP(a.pd, QPInitAttr(e.IBV_QPT_UD, None, QPCap(4, 4), a.cq, a.cq, None)):
        a.completion_error("RETRY_EXC_ERR", "all")
    assert list(a.ctx.runtime.faults().state()["failing"]) == [str(a.qp.qp_num)]
