"""Typical mistakes in Python: the exception, or ``QP.why`` of the end that refuses, says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from errno import EBUSY, EINVAL, ENOMEM

import pytest

import rnic
from rnic import enums as e
from rnic.runtime.driver import LocalDriver
from rnic.spec.reasons import MOST_LINES
from rnic.testing import QpPair
from rnic.testing.pair import QKEY
from rnic.verbs.attrs import SGE, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.verbs.cq import CQ
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP
from rnic.verbs.qp_states import INIT_MASK

WRITE = e.IBV_WR_RDMA_WRITE


def fresh(pair: QpPair) -> QP:
    """A queue pair in RESET."""
    return QP(pair.a.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(), pair.a.cq, pair.a.cq))


def lacks_an_attribute(pair: QpPair) -> None:
    attr = QPAttr(e.IBV_QPS_INIT)
    fresh(pair).modify(attr, INIT_MASK[e.IBV_QPT_RC] & ~e.IBV_QP_ACCESS_FLAGS)


def has_one_too_many(pair: QpPair) -> None:
    fresh(pair).modify(QPAttr(e.IBV_QPS_INIT), INIT_MASK[e.IBV_QPT_RC] | e.IBV_QP_TIMEOUT)


def skips_a_state(pair: QpPair) -> None:
    fresh(pair).modify(QPAttr(e.IBV_QPS_RTS), e.IBV_QP_STATE)


def names_no_gid(pair: QpPair) -> None:
    attr = QPAttr()
    attr.dest_qp_num = 1
    attr.ah_attr.gr.sgid_index = 7
    fresh(pair).to_rtr(attr)


def asks_for_a_larger_mtu(pair: QpPair) -> None:
    attr = QPAttr()
    attr.dest_qp_num = 1
    attr.path_mtu = 6
    fresh(pair).to_rtr(attr)


def posts_too_early(pair: QpPair) -> None:
    fresh(pair).post_send(SendWR(0, WRITE))


def fills_the_queue(pair: QpPair) -> None:
    for _ in range(100):
        pair.a.post_send(WRITE, 8)


def sends_too_much_inline(pair: QpPair) -> None:
    pair.a.post_send(WRITE, 300, flags=e.IBV_SEND_INLINE)


def destroys_what_is_in_use(pair: QpPair) -> None:
    with PD(pair.a.ctx) as pd:
        mr = MR(pd, 64, e.IBV_ACCESS_LOCAL_WRITE)
        pair.a.ctx.free(2, pd.handle)
        mr.close()


REFUSED: tuple[tuple[Callable[[QpPair], None], int, str], ...] = (
    (lacks_an_attribute, EINVAL, r"INIT lacks IBV_QP_ACCESS_FLAGS \(mask 0x31\)"),
    (has_one_too_many, EINVAL, r"INIT does not take IBV_QP_TIMEOUT \(mask 0x239\)"),
    (skips_a_state, EINVAL, "queue pair 0x[0-9a-f]+ cannot go from RESET to RTS"),
    (names_no_gid, EINVAL, "GID index 7: this port has 0 to 0"),
    (asks_for_a_larger_mtu, EINVAL, "path_mtu=6: use 0 to 5"),
    (posts_too_early, EINVAL, "queue pair 0x[0-9a-f]+ is not in RTS yet: sends cannot be posted"),
    (fills_the_queue, ENOMEM, "send queue of 64 is full: poll completions first"),
    (sends_too_much_inline, EINVAL, "300 bytes inline are more than max_inline_data=256"),
    (destroys_what_is_in_use, EBUSY, "protection domain 0x[0-9a-f]+ is in use"),
)


@pytest.mark.parametrize(("mistake", "errno", "says"), REFUSED, ids=[each[0].__name__ for each in REFUSED])
def test_an_exception_says_why(mistake: Callable[[QpPair], None], errno: int, says: str) -> None:
    with QpPair() as pair:
        with pytest.raises(rnic.VerbsError, match=says) as error:
            mistake(pair)
        assert error.value.errno == errno


def write(pair: QpPair, rkey: int | None = None, at: int = 0, opcode: int = WRITE, lkey: int = 0) -> None:
    """Post a request of 64 bytes to offset ``at`` of the peer's memory."""
    wr = pair.a.send_wr(opcode, 64, remote=at)
    wr.rkey = pair.b.mr.rkey if rkey is None else rkey
    wr.sg = [SGE(pair.a.mr.buf, 64, lkey or pair.a.mr.lkey)]
    pair.a.qp.post_send(wr)


def names_no_key(pair: QpPair) -> None:
    write(pair, pair.b.mr.rkey ^ 0x30000)


def goes_too_far(pair: QpPair) -> None:
    write(pair, at=(1 << 20) - 48)


def lacks_a_right(pair: QpPair) -> None:
    mr = MR(pair.b.pd, pair.b.buf, e.IBV_ACCESS_LOCAL_WRITE)
    write(pair, mr.rkey, mr.buf - pair.b.mr.buf)


def is_of_another_domain(pair: QpPair) -> None:
    mr = MR(PD(pair.b.ctx), pair.b.buf, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
    write(pair, mr.rkey, mr.buf - pair.b.mr.buf)


def is_deregistered(pair: QpPair) -> None:
    key = pair.b.mr.rkey
    pair.b.mr.close()
    write(pair, key)


def finds_a_short_receive(pair: QpPair) -> None:
    pair.b.post_recv(8)
    pair.a.post_send(e.IBV_WR_SEND, 64)


def has_a_wrong_lkey(pair: QpPair) -> None:
    write(pair, lkey=pair.a.mr.lkey ^ 0x30000)


ABOUT = "WRITE of 64 bytes to 0x[0-9a-f]+: "
FAILS: tuple[tuple[Callable[[QpPair], None], str, str], ...] = (
    (names_no_key, "b", f"{ABOUT}R_Key 0x[0-9a-f]+ is not a key of this NIC"),
    (goes_too_far, "b", f"{ABOUT}beyond its region by 16 bytes"),
    (lacks_a_right, "b", f"{ABOUT}R_Key 0x[0-9a-f]+ is of a region that lacks REMOTE_WRITE"),
    (is_of_another_domain, "b", f"{ABOUT}R_Key 0x[0-9a-f]+ is of another protection domain"),
    (is_deregistered, "b", f"{ABOUT}R_Key 0x[0-9a-f]+ is of memory that was deregistered"),
    (finds_a_short_receive, "b", "SEND: the message is longer than its receive of 8 bytes"),
    (has_a_wrong_lkey, "a", f"{ABOUT}L_Key 0x[0-9a-f]+ is not a key of this NIC"),
)


@pytest.mark.parametrize(("mistake", "end", "says"), FAILS, ids=[each[0].__name__ for each in FAILS])
def test_the_end_that_refuses_says_why(mistake: Callable[[QpPair], None], end: str, says: str) -> None:
    with QpPair() as pair:
        assert pair.a.qp.why == pair.b.qp.why == ""
        mistake(pair)
        assert pair.a.wait()[0].status != e.IBV_WC_SUCCESS
        sides = {"a": pair.a, "b": pair.b}
        assert re.fullmatch(says, sides[end].qp.why)
        if end == "b":
            assert "the peer's end gives the reason" in pair.a.qp.why
        sides[end].qp.modify(QPAttr(e.IBV_QPS_RESET), e.IBV_QP_STATE)
        assert sides[end].qp.why == ""


def test_both_ends_path_mtu() -> None:
    with QpPair(connect=False) as pair:
        for side, mtu in ((pair.a, e.IBV_MTU_1024), (pair.b, e.IBV_MTU_512)):
            gid = rnic.GID(side.peer.node.nic.config.address)
            side.to_rts(gid, 5, {"path_mtu": mtu})
        pair.a.post_send(WRITE, 1024)
        assert pair.a.wait()[0].status == e.IBV_WC_REM_INV_REQ_ERR
        assert pair.b.qp.why.endswith("a packet of 1024 bytes, where this end's path_mtu is 512")


def test_who_gets_no_answer_says_whom_it_asked() -> None:
    with QpPair(attributes={"timeout": 8, "retry_cnt": 1}) as pair:
        pair.b.qp.modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)
        pair.a.post_send(WRITE, 64)
        assert pair.a.wait()[0].status == e.IBV_WC_RETRY_EXC_ERR
        asked = rf"queue pair {pair.b.qp.qp_num:#x} of \S+ did not answer 2 sendings: is it in RTR, "
        assert re.search(asked, pair.a.qp.why)


def test_a_peer_whose_program_wrote_a_state_that_does_not_exist() -> None:
    with QpPair(attributes={"timeout": 8, "retry_cnt": 1}) as pair:
        peer = pair.b.ctx.nic.qps[pair.b.qp.qp_num]
        pair.a.ctx.nic.find_peer = lambda address, port, qpn: (True, peer)
        before, peer.ctx.state = peer.ctx.state, 9
        pair.a.post_send(WRITE, 64)
        pair.a.post_send(WRITE, 64)
        assert [wc.status for wc in pair.a.wait(2)] == [e.IBV_WC_RETRY_EXC_ERR, e.IBV_WC_WR_FLUSH_ERR]
        assert "it is in state 9" in pair.a.qp.why
        peer.ctx.state = before


def test_a_queue_pair_that_begins_anew_says_why_again() -> None:
    with QpPair() as pair:
        qp = pair.a.ctx.nic.qps[pair.a.qp.qp_num]
        qp.explains = 0
        pair.a.qp.modify(QPAttr(e.IBV_QPS_RESET), e.IBV_QP_STATE)
        assert (qp.explains, pair.a.qp.why) == (1, "")


def test_psns_that_do_not_match() -> None:
    with QpPair(attributes={"timeout": 8, "retry_cnt": 1, "sq_psn": 0x123456}) as pair:
        pair.a.post_send(WRITE, 64)
        assert pair.a.wait()[0].status == e.IBV_WC_RETRY_EXC_ERR
        assert pair.b.qp.why == "PSN 0x123456 is not the expected 0x0, and nothing came before it"


def test_a_datagram_that_is_dropped() -> None:
    with QpPair("UD") as pair:
        wr = pair.a.send_wr(e.IBV_WR_SEND, 64)
        wr.rqkey = QKEY + 1
        pair.a.qp.post_send(wr)
        pair.a.expect()
        pair.run()
        number = pair.a.qp.qp_num
        assert pair.b.qp.why == (
            f"a datagram of queue pair {number:#x} was dropped: its Q_Key {QKEY + 1:#x} is not this end's {QKEY:#x}"
        )
        pair.a.post_send(e.IBV_WR_SEND, 64)
        pair.a.expect()
        pair.run()
        assert pair.b.qp.why == "datagram of 64 bytes: no receive is posted: it is dropped"


def test_a_cq_that_is_full() -> None:
    with QpPair() as pair:
        ctx, pd = pair.b.ctx, pair.b.pd
        small = CQ(ctx, 1)
        qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(8, 8), small, small))
        attr = QPAttr()
        attr.dest_qp_num = qp.qp_num
        attr.ah_attr = rnic.AHAttr(rnic.GlobalRoute(ctx.query_gid(1, 0)), udp_dport=ctx.udp_port)
        qp.to_rts(attr)
        for _ in range(4):
            qp.post_recv(RecvWR(0, 1, [pair.b.sge(8)]))
            qp.post_send(SendWR(0, e.IBV_WR_SEND, sg=[pair.b.sge(8)], send_flags=e.IBV_SEND_SIGNALED))
        pair.run()
        assert re.fullmatch(r"CQ 0x\w+ is full: its \d+ entries wait to be polled", qp.why)


def test_an_operation_that_the_service_lacks() -> None:
    with QpPair("UC") as pair:
        pair.a.post_send(e.IBV_WR_RDMA_READ, 64)
        assert pair.a.wait()[0].status == e.IBV_WC_LOC_QP_OP_ERR
        assert pair.a.qp.why.endswith(": READ is not of service UC")


def test_a_peer_that_posts_no_receive() -> None:
    with QpPair(attributes={"rnr_retry": 2}) as pair:
        pair.a.post_send(e.IBV_WR_SEND, 64)
        assert pair.a.wait()[0].status == e.IBV_WC_RNR_RETRY_EXC_ERR
        assert pair.a.qp.why == "SEND of 64 bytes: the peer had no receive posted, 3 times (rnr_retry)"
        assert pair.b.qp.why == "SEND: no receive is posted: an RNR NAK lets the peer wait"


def test_an_atomic_that_is_not_aligned() -> None:
    with QpPair() as pair:
        pair.a.post_send(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, remote=4)
        assert pair.a.wait()[0].status == e.IBV_WC_REM_INV_REQ_ERR
        va = pair.b.mr.buf + 4
        assert pair.b.qp.why == f"atomic at {va:#x}: atomics need an address of 8 bytes' alignment, {va:#x} is none"


def test_the_engine_leaves_ten_missed_messages_to_who_says_why() -> None:
    with QpPair(connect=False) as pair:
        told: list[str] = []
        driver = pair.b.ctx.driver
        assert isinstance(driver, LocalDriver)
        driver.uar.tell = lambda reason, line: told.append(line)
        pair.connect()
        pair.a.post_send(e.IBV_WR_SEND, 64)
        while pair.b.counters.get("rnr_naks_sent", 0) < 3 * MOST_LINES:
            pair.net.turn()
        line = f"queue pair {pair.b.qp.qp_num:#x}: SEND: no receive is posted: an RNR NAK lets the peer wait"
        assert set(told) == {line}
        compiled = pair.b.ctx.nic.engine_device is not None
        assert len(told) == (MOST_LINES if compiled else pair.b.counters["rnr_naks_sent"])
        pair.b.post_recv(64)
        pair.a.expect()
