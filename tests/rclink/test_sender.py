"""The sending half by scripts: each transition of a slot, Go-Back-N, limits and recovery."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.rclink import Path, RcLinkError, Recovery, set_up
from rnic.rclink import registers as r
from rnic.rclink.driver import Step
from rnic.rclink.endpoint import IRQ_RETRY_OUT
from rnic.rclink.numbers import OP_ACK

PEER = b"\x0a\0\0\x02"
ACK, RNR = 0x1F, 0x21
TIMEOUT = 244 * 4_096
"""The retry timer's reset value."""
W = 4_096
"""The smallest rate window, and the time that ACKs wait to be merged."""


# ------------------------------------------------------------------------------------------------ slots


def test_slot_from_empty_to_empty(lone: Any) -> None:
    one = lone()
    free = one.endpoint.free_slots
    one.send(2, tag="t")
    assert (one.states(), one.endpoint.free_slots) == ("GG", free - 2)
    assert one.out(budget=1) == [("SEND", 100)]
    assert one.states() == "AG"
    assert one.out() == [("SEND", 101)]
    one.ack(100)
    assert one.states() == "A"
    one.ack(101)
    assert (one.states(), one.endpoint.free_slots) == ("", free)
    for _ in range(2):
        sent = one.endpoint.next_sent()
        assert sent is not None
        assert (sent.qpid, sent.tag, sent.ok) == (5, "t", True)
    assert one.endpoint.next_sent() is None
    assert one.endpoint.next_deadline_ns() is None


def test_one_ack_covers_all_before_it(lone: Any) -> None:
    one = lone()
    one.send(10)
    one.out()
    one.ack(106)
    assert one.states() == "AAA"
    assert one.read(r.EXPECT_RESP, "expect_resp_psn") == 107


def test_rate_control_blocks_and_unblocks(lone: Any) -> None:
    one = lone()
    one.endpoint.write(r.TX_SPEED, 150)
    one.send(4)
    assert one.out(0) == [("SEND", 100), ("SEND", 101)]
    assert one.states() == "AACG"
    assert one.endpoint.counters["rate_blocked"] == 1
    assert one.endpoint.next_deadline_ns() == W
    assert one.out(W - 1) == []
    # 200 - 150 bytes are left, and a packet of 100 fills the window
    assert one.out(W) == [("SEND", 102)]
    assert one.states() == "AAAC"
    assert one.out(2 * W) == [("SEND", 103)]


def test_a_blocked_qp_lets_others_pass(lone: Any) -> None:
    one = lone()
    set_up(one.endpoint, 6, one.path)
    one.endpoint.write(r.QP_ID_SET, 5)
    one.endpoint.write(r.TX_SPEED, 1)
    one.send(3)
    one.endpoint.send(6, b"x")
    assert one.out(0) == [("SEND", 100), ("SEND", 100)]
    assert one.states() == "ACG"


def test_taking_the_rate_away_blocks_and_giving_it_back_unblocks(lone: Any) -> None:
    one = lone()
    one.endpoint.write(r.TX_SPEED, 0)
    one.send()
    assert one.out(0) == []
    assert one.states() == "C"
    assert one.endpoint.next_deadline_ns() is None
    one.endpoint.write(r.TX_SPEED, 1)
    assert one.states() == "G"
    assert one.out() == [("SEND", 100)]


def test_fifo_over_all_qps(lone: Any) -> None:
    one = lone()
    set_up(one.endpoint, 6, one.path)
    for qpid in (5, 5, 6, 5, 6):
        one.endpoint.send(qpid, bytes([qpid]))
    assert [payload[0] for _, payload in one.raw()] == [5, 5, 6, 5, 6]


def test_banks_in_turn(lone: Any) -> None:
    """With ``bank_rr`` no bank sends twice while another waits; alone it does."""
    one = lone(qpid=1, bank_rr=True)
    for qpid in (5, 2):
        set_up(one.endpoint, qpid, Path(PEER, 8 + qpid % 4, pkey=7))
    for qpid in (1, 1, 1, 5, 2, 2):
        one.endpoint.send(qpid, bytes([qpid]))
    sent = [b"".join(burst.buffers)[8] for burst in one.endpoint.produce(0)]
    assert sent == [1, 2, 1, 2, 1, 5]


def test_banks_must_agree(lone: Any) -> None:
    one = lone(qpid=1, bank_rr=True)
    with pytest.raises(
        RcLinkError, match="QP 2 cannot be enabled: with banks its peer's number 9 must end in the same"
    ):
        set_up(one.endpoint, 2, one.path)


# ------------------------------------------------------------------------------------------- Go-Back-N


def test_nak_goes_back_and_acknowledges_what_was_before(lone: Any) -> None:
    one = lone()
    one.send(5)
    one.out()
    one.nak(102)
    assert one.states() == "GGG"
    assert one.read(r.TX_LAST_PSN, "tx_last_psn") == 101
    assert one.read(r.TX_MAX_FW, "max_forward_psn") == 104
    assert one.out() == [("SEND", 102), ("SEND", 103), ("SEND", 104)]
    assert one.read(r.RETRY_CNT, "retry_counter") == 0, "the NAK brought progress"
    assert one.endpoint.counters["retransmitted_packets"] == 3


def test_what_went_back_leaves_before_what_is_new(lone: Any) -> None:
    one = lone()
    one.send(2)
    one.out()
    one.send(1)
    one.nak(100)
    assert one.out() == [("SEND", 100), ("SEND", 101), ("SEND", 102)]


def test_a_second_nak_before_it_went_again_changes_nothing(lone: Any) -> None:
    one = lone()
    one.send(3)
    one.out()
    one.nak(100)
    one.nak(100)
    assert one.read(r.RETRY_CNT, "retry_counter") == 1
    assert len(one.out()) == 3
    assert one.endpoint.counters["rewinds"] == 1


def test_an_ack_that_comes_after_going_back_frees_what_waits(lone: Any) -> None:
    """WAIT_GRANT and WAIT_CRD to EMPTY: the sender need not send again what has arrived."""
    one = lone()
    one.send(4)
    one.out()
    one.nak(100)
    one.endpoint.write(r.TX_SPEED, 0)
    assert one.out() == []
    assert one.states() == "CGGG"
    one.ack(102)
    assert one.states() == "G"
    one.endpoint.write(r.TX_SPEED, 1_000)
    assert one.out() == [("SEND", 103)]


def test_going_back_unblocks_the_slot_that_is_no_longer_first(lone: Any) -> None:
    one = lone()
    one.endpoint.write(r.TX_SPEED, 150)
    one.send(3)
    one.out(0)
    assert one.states() == "AAC"
    one.nak(100)
    assert one.states() == "GGG"
    assert one.out(0) == []
    assert one.states() == "CGG"
    assert one.out(W) == [("SEND", 100)]


def test_timeout_goes_back(lone: Any) -> None:
    one = lone()
    one.send(3)
    one.out(0)
    assert one.endpoint.next_deadline_ns() == TIMEOUT
    assert one.out(TIMEOUT - 1) == []
    assert one.out(TIMEOUT) == [("SEND", 100), ("SEND", 101), ("SEND", 102)]
    assert one.read(r.RETRY_CNT, "retry_counter") == 1


def test_progress_starts_the_timer_anew(lone: Any) -> None:
    one = lone()
    one.send(2)
    one.out(0)
    one.now = TIMEOUT - 1
    one.ack(100)
    assert one.out(TIMEOUT) == []
    assert one.out(2 * TIMEOUT - 1) == [("SEND", 101)]
    one.ack(101)
    assert one.read(r.RETRY_CNT, "retry_counter") == 0


def test_psns_wrap(lone: Any) -> None:
    one = lone(psn=4_094)
    one.send(4)
    assert [psn for _, psn in one.out()] == [4_094, 4_095, 0, 1]
    one.nak(0)
    assert [psn for _, psn in one.out()] == [0, 1]
    one.ack(1)
    assert one.states() == ""


@pytest.mark.parametrize(
    ("psn", "counter"),
    [
        (99, "drop_stale_response"),
        (50, "drop_stale_response"),
        (103, "drop_ghost_response"),
        (2_147, "drop_ghost_response"),
    ],
)
def test_acks_of_what_is_not_outstanding(lone: Any, psn: int, counter: str) -> None:
    one = lone()
    one.send(4)
    one.out(budget=3)
    one.ack(psn)
    assert one.states() == "AAAG"
    assert one.dropped() == {counter: 1}


@pytest.mark.parametrize("syndrome", [0x40, 0x5F, 0x61, 0x62, 0x7F])
def test_syndromes_that_rc_link_lacks(lone: Any, syndrome: int) -> None:
    one = lone()
    one.send()
    one.out()
    one.peer(OP_ACK, 100, syndrome)
    assert (one.states(), one.dropped()) == ("A", {"drop_bad_syndrome": 1})


def test_the_arbiters_queue_does_not_grow(lone: Any) -> None:
    """Going back again and again, before the packet behind is sent, leaves no trace of each time."""
    one = lone(qp_num=6)
    one.send(2)
    for number in range(14):
        one.nak(100)
        one.qp.retry_count = 0
        assert one.out(number, budget=1) == [("SEND", 100)]
        assert max(len(bank) for bank in one.endpoint.sender._banks) <= 4 * 6 + 1
    for number in range(200):
        one.nak(100)
        one.qp.retry_count = 0
        one.out(number, budget=1)
    assert max(len(bank) for bank in one.endpoint.sender._banks) <= 4 * 6 + 1
    assert one.out() == [("SEND", 101)]


def test_psn_registers_that_make_no_sense(lone: Any) -> None:
    """A host says that more was sent than was: an ACK of that frees what there is, and no more."""
    one = lone()
    one.endpoint.write(r.QP_CONTROL, 0)
    one.endpoint.write(r.TX_MAX_FW, 110)
    one.endpoint.write(r.QP_CONTROL, 1)
    one.send(2)
    one.out()
    one.ack(108)
    assert (one.states(), one.endpoint.free_slots) == ("", 512)


# ------------------------------------------------------------------------------ limits and the recovery procedure


def exhaust(one: Any, limit: int) -> None:
    """Timeouts until the QP stops."""
    for number in range(limit):
        assert one.out((number + 1) * TIMEOUT), f"retry {number + 1}"
    assert one.out((limit + 1) * TIMEOUT) == []


@pytest.mark.parametrize("limit", [0, 3, 15])
def test_retry_limit_and_its_interrupt(lone: Any, limit: int) -> None:
    one = lone(retry_limit=limit)
    one.send(2)
    one.out(0)
    exhaust(one, limit)
    assert one.endpoint.read(r.INTR_STATUS) == r.INTR_RETRY_OUT
    assert one.endpoint.interrupt_line
    assert r.AT[r.IRQ_INFO].get(one.endpoint.read(r.IRQ_INFO), "qpid") == 5
    assert one.endpoint.next_interrupt() is None
    assert one.read(r.QP_CONTROL, "stopped") == 1
    assert one.endpoint.next_deadline_ns() is None
    with pytest.raises(RcLinkError, match="QP 5 has stopped since its peer did not answer: recover it"):
        one.send()
    one.endpoint.write(r.INTR_STATUS, r.INTR_RETRY_OUT)
    assert not one.endpoint.interrupt_line


def test_naks_without_progress_are_retries(lone: Any) -> None:
    one = lone(retry_limit=2)
    one.send(2)
    for number in range(3):
        assert len(one.out(number)) == 2
        one.nak(100)
    assert one.endpoint.next_interrupt() == (IRQ_RETRY_OUT, 5)


def test_a_stopped_qp_harms_no_other(lone: Any) -> None:
    one = lone(retry_limit=0)
    set_up(one.endpoint, 6, one.path)
    one.send()
    one.out(0)
    assert one.out(TIMEOUT) == []
    one.endpoint.send(6, b"x")
    assert one.out(TIMEOUT) == [("SEND", 100)]


def test_an_ack_for_a_stopped_qp_frees_slots_and_starts_nothing(lone: Any) -> None:
    one = lone(retry_limit=0)
    one.send(3)
    one.out(0)
    one.out(TIMEOUT)
    one.ack(101)
    assert one.states() == "A"
    assert one.endpoint.next_deadline_ns() is None
    assert one.out(9 * TIMEOUT) == []


def test_recovery_procedure(lone: Any) -> None:
    """Disable, take the rate, 1 us and no freeing, free, drain, read, set up from psn + 1: step by step."""
    one = lone(retry_limit=0, ost=200)
    one.send(150, size=10, tag=1)
    one.out(0)
    one.out(TIMEOUT)
    now = TIMEOUT
    recovery = Recovery(one.endpoint, 5, one.path)

    def step() -> Step:
        return recovery.step

    assert recovery.advance(now) == now + 1_000
    assert step() is Step.WAIT
    assert one.read(r.QP_CONTROL, "qp_en") == 0
    assert one.read(r.TX_SPEED, "tx_speed_cfg") == 0
    assert recovery.advance(now + 999) == now + 1_000
    assert step() is Step.WAIT
    now += 1_000
    assert recovery.advance(now) is not None
    assert step() is Step.DRAIN
    assert one.read(r.XON_THR_RDMA, "type1_free_busy") == 1
    rounds = 0
    while recovery.advance(now) is not None:
        assert step() is Step.DRAIN
        assert one.read(r.QP_CONTROL, "free_buf_set") == 1
        assert one.endpoint.has_work(now)
        assert one.out(now) == []
        rounds += 1
    assert rounds == 3, "64 slots a turn"
    assert (recovery.step, recovery.psn) == (Step.DONE, 100 + 150 + 1)
    assert one.endpoint.free_slots == 200
    done = [sent.ok for sent in iter(one.endpoint.next_sent, None)]
    assert done == [False] * 150
    assert one.read(r.QP_CONTROL, "stopped") == 0
    one.send()
    assert one.out(now) == [("SEND", 251)]


def test_recovery_waits_for_another_qps_buffers(lone: Any) -> None:
    one = lone(retry_limit=0)
    set_up(one.endpoint, 6, one.path)
    one.endpoint.send(6, b"x")
    one.endpoint.write(r.QP_ID_SET, 6)
    one.endpoint.write(r.QP_CONTROL, 0)
    one.endpoint.write(r.QP_CONTROL, 1 << 15)
    recovery = Recovery(one.endpoint, 5)
    recovery.advance(0)
    assert recovery.advance(1_000) == 2_000
    assert recovery.step is Step.WAIT
    one.out(1_500)
    recovery.advance(2_000)
    one.out(2_000)
    assert recovery.advance(2_500) is None
    assert (recovery.step, recovery.done, recovery.psn) == (Step.SET_UP, True, 101)


def test_a_qp_cannot_be_enabled_before_its_slots_are_free(lone: Any) -> None:
    one = lone(retry_limit=0)
    one.send()
    one.out(0)
    one.out(TIMEOUT)
    one.endpoint.write(r.QP_CONTROL, 0)
    with pytest.raises(RcLinkError, match="free its slots with free_buf_set first"):
        one.endpoint.write(r.QP_CONTROL, 1)
    with pytest.raises(RcLinkError, match="TX_EPSN of QP 5: disable the QP and free its slots first"):
        one.endpoint.write(r.TX_EPSN, 1)


def test_rnr_nak_waits_and_goes_back(lone: Any) -> None:
    one = lone()
    one.send(3)
    one.out(0)
    one.peer(OP_ACK, 101, RNR)
    assert one.states() == "GG"
    assert one.endpoint.next_deadline_ns() == 10_000
    assert one.out(9_999) == []
    assert one.out(10_000) == [("SEND", 101), ("SEND", 102)]
    assert one.read(r.RETRY_CNT, "rnr_retry_counter") == 1
    one.ack(102)
    assert one.read(r.RETRY_CNT, "rnr_retry_counter") == 0


def test_an_ack_ends_an_rnr_wait(lone: Any) -> None:
    one = lone()
    one.send(3)
    one.out(0)
    one.peer(OP_ACK, 100, RNR)
    one.ack(100)
    assert one.out(1) == [("SEND", 101), ("SEND", 102)]


@pytest.mark.parametrize(("limit", "stops"), [(0, True), (2, True), (7, False)])
def test_rnr_limit(lone: Any, limit: int, stops: bool) -> None:
    one = lone(rnr_limit=limit)
    one.send()
    now = 0
    for _ in range(20):  # waits: for the limit of RNR NAKs
        if not one.out(now):
            break
        one.peer(OP_ACK, 100, RNR)
        now += 10_000
    assert (one.endpoint.next_interrupt() == (IRQ_RETRY_OUT, 5)) is stops


def test_rnr_for_what_never_left_is_nothing(lone: Any) -> None:
    one = lone()
    one.send()
    one.peer(OP_ACK, 100, RNR)
    assert one.out(0) == [("SEND", 100)]
