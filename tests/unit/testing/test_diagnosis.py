"""The usual mistakes of a test are named, within a second: of this process's time, for others run beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import rnic
from rnic import enums as e
from rnic.testing import QpPair, diagnose


@pytest.fixture(autouse=True)
def within_a_second() -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < 1


def test_a_forgotten_receive_is_named() -> None:
    with QpPair() as pair:
        pair.a.post_send(e.IBV_WR_SEND, 10)
        with pytest.raises(TimeoutError, match=r"3\d\d RNR NAKs: the peer has no receive posted"):
            pair.a.wait()


def test_a_receive_that_came_late_is_no_mistake() -> None:
    with QpPair() as pair:
        pair.a.post_send(e.IBV_WR_SEND, 10)
        for _ in range(40):
            pair.net.turn()
        pair.b.post_recv(10)
        assert pair.a.expect()[0].status == e.IBV_WC_SUCCESS


def test_a_wrong_rkey_is_named() -> None:
    with QpPair() as pair:
        wr = pair.a.send_wr(e.IBV_WR_RDMA_WRITE, 10)
        wr.rkey ^= 1
        pair.a.qp.post_send(wr)
        with pytest.raises(rnic.WorkCompletionError, match=r"REM_ACCESS_ERR.*R_Key 0x\w+ is not a key of") as error:
            pair.a.expect()
        assert error.value.status == e.IBV_WC_REM_ACCESS_ERR


@pytest.mark.parametrize("state", [e.IBV_QPS_RESET, e.IBV_QPS_INIT])
def test_a_queue_pair_that_never_got_ready_is_named(state: int) -> None:
    with QpPair() as pair:
        pair.b.qp.modify(rnic.QPAttr(e.IBV_QPS_RESET), e.IBV_QP_STATE)
        if state == e.IBV_QPS_INIT:
            pair.b.qp.to_init(rnic.QPAttr())
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10)
        name = e.QP_STATE_NAMES[state]
        with pytest.raises(rnic.WorkCompletionError, match=f"RETRY_EXC_ERR.*the peer's queue pair .* is in {name}"):
            pair.a.expect()


def test_nothing_wrong_is_nothing_said() -> None:
    with QpPair() as pair:
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10)
        pair.a.expect()
        assert diagnose(pair.a) == []


@pytest.mark.parametrize(
    ("service", "says"),
    [
        ("RC", r"0 of 1 completions came; 30\d RNR NAKs: this side has no receive posted"),
        ("UC", "0 of 1 completions came, and nothing more will; 1 messages dropped: this side has no receive posted"),
        ("UD", "0 of 1 completions came, and nothing more will; 1 messages dropped: this side has no receive posted"),
    ],
)
def test_a_receive_that_the_waiting_side_forgot_is_named(service: str, says: str) -> None:
    with QpPair(service) as pair:
        pair.a.post_send(e.IBV_WR_SEND, 10)
        start = time.process_time()  # time of its own: beside other suites it may wait for a core
        with pytest.raises(TimeoutError, match=f"^{says}$"):
            pair.b.wait()
        assert time.process_time() - start < 1


def test_a_refusal_is_named_to_who_waits_at_the_end_that_refused() -> None:
    with QpPair() as pair:
        wr = pair.a.send_wr(e.IBV_WR_RDMA_WRITE, 10)
        wr.rkey ^= 0x55
        pair.a.qp.post_send(wr)
        with pytest.raises(TimeoutError, match="nothing more will; this side refused the peer's access: WRITE of 10"):
            pair.b.wait()
        assert pair.a.wait()[0].status == e.IBV_WC_REM_ACCESS_ERR, "its own completion is still there"


def test_who_waits_for_what_nobody_posted_hears_so() -> None:
    with QpPair() as pair:
        pair.b.post_recv(10)
        with pytest.raises(TimeoutError, match="nothing more will; no packet came to this side: nobody posted what it"):
            pair.b.wait()


def test_an_expected_error_is_no_failure() -> None:
    with QpPair() as pair:
        wr = pair.a.send_wr(e.IBV_WR_RDMA_WRITE, 10)
        wr.rkey ^= 1
        pair.a.qp.post_send(wr)
        (wc,) = pair.a.expect(e.IBV_WC_REM_ACCESS_ERR)
        assert wc.status == e.IBV_WC_REM_ACCESS_ERR


def test_a_success_where_an_error_was_expected_is_one() -> None:
    with QpPair() as pair:
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10)
        with pytest.raises(rnic.WorkCompletionError, match=f"expected status {e.IBV_WC_REM_ACCESS_ERR}"):
            pair.a.expect(e.IBV_WC_REM_ACCESS_ERR)


def test_packets_that_the_script_dropped_are_named() -> None:
    with QpPair(faults=[{"match": {"direction": "rx"}, "action": "drop"}]) as pair:
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10)
        with pytest.raises(
            rnic.WorkCompletionError, match=r"RETRY_EXC_ERR.*the faults of its link dropped \d+ packets"
        ):
            pair.a.expect()
