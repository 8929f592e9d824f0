"""The receiving half by scripts: ACK, NAK, CNP, interrupts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.rclink import RcLinkError, set_up
from rnic.rclink import registers as r
from rnic.rclink.endpoint import IRQ_OVER_CREDIT, IRQ_OVERSIZE, IRQ_RX_DISABLED, IRQ_TX_DISABLED
from rnic.rclink.header import Rh
from rnic.rclink.numbers import OP_ACK, OP_CNP
from rnic.rclink.packet import build, seal
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow

ME, PEER = b"\x0a\0\0\x01", b"\x0a\0\0\x02"
ACK = 0x1F
TIMEOUT = 244 * 4_096
"""The retry timer's reset value."""
W = 4_096
"""The smallest rate window, and the time that ACKs wait to be merged."""


# ------------------------------------------------------------------------------------------------ receiving


def test_in_order(lone: Any) -> None:
    one = lone()
    for psn in (200, 201, 202):
        one.arrive(psn)
    assert one.out(4_095) == []
    assert one.out(4_096) == [("ACK", 202)], "one ACK for all three"
    assert [received.payload for received in iter(one.endpoint.recv, None)] == [b"data"] * 3
    assert one.read(r.REQ_CHK, "rx_req_epsn") == one.read(r.TX_ACK_SN, "tx_epsn") == 203


def test_fack_forces_an_ack(lone: Any) -> None:
    one = lone()
    one.now = 5_000_000
    one.arrive(200)
    one.arrive(201, fack=1, ts_en=1, timestamp=77)
    ((rh, _),) = one.raw()
    assert (one.named(rh), rh.fack, rh.ts_en, rh.timestamp) == (("ACK", 201), 0, 1, 77)
    assert one.out(5_100_000) == [], "the merger owes nothing more"


def test_fack_is_sent_when_asked_for(lone: Any) -> None:
    one = lone()
    one.send(fack=True)
    one.send()
    assert [rh.fack for rh, _ in one.raw()] == [1, 0]


def test_acks_carry_timestamps_where_told(lone: Any) -> None:
    one = lone(ack_time=True)
    one.arrive(200, ts_en=1, timestamp=500)
    ((rh, _),) = one.raw(W)
    assert (rh.ts_en, rh.timestamp) == (1, 500)
    one = lone()
    one.arrive(200, ts_en=1, timestamp=500)
    ((rh, _),) = one.raw(W)
    assert (rh.ts_en, rh.timestamp) == (0, 0)


def test_round_trip_time(lone: Any) -> None:
    one = lone()
    one.send()
    ((rh, _),) = one.raw(1_024 * 65_535)
    assert (rh.ts_en, rh.timestamp) == (1, 65_535)
    one.now += 10 * 1_024
    one.ack(100, ts_en=1, timestamp=rh.timestamp)
    assert one.endpoint.rtt_ns(5) == 10 * 1_024


def test_a_gap_is_naked_once(lone: Any) -> None:
    one = lone()
    one.arrive(200)
    for psn in (203, 204, 202):
        one.arrive(psn)
    assert one.out(W) == [("NAK", 201)], "and it acknowledges PSN 200"
    assert one.dropped() == {"drop_psn_gap": 3}
    for psn in (205, 206):
        one.arrive(psn)
    assert one.out(2 * W) == []
    one.arrive(201)
    one.arrive(203)
    assert one.out(3 * W) == [("NAK", 202)], "a new gap"


def test_a_gap_that_closes_before_its_nak_left(lone: Any) -> None:
    one = lone()
    one.arrive(201)
    one.arrive(200)
    one.arrive(201)
    assert one.out(W) == [("ACK", 201)]


def test_a_duplicate_is_acknowledged_again(lone: Any) -> None:
    one = lone()
    one.arrive(200)
    one.out(W)
    one.arrive(200)
    one.arrive(199)
    assert one.out(9 * W) == [("ACK", 200)]
    assert one.dropped() == {"drop_duplicate": 2}
    assert len(list(iter(one.endpoint.recv, None))) == 1


def test_a_full_inbox_answers_rnr(lone: Any) -> None:
    one = lone(rx_packets=2, rnr_timer=3)
    for psn in (200, 201, 202, 203):
        one.arrive(psn)
    ((rh, _),) = one.raw()
    assert (one.named(rh), rh.len_syndrome) == (("RNR", 202), 0x23)
    one.endpoint.recv()
    one.arrive(202)
    assert one.out(W) == [("ACK", 202)]
    assert one.dropped() == {"drop_no_receive": 1, "drop_psn_gap": 1}


def test_acks_of_many_qps_go_four_at_a_time(lone: Any) -> None:
    one = lone()
    for qpid in (900, 6, 7, 4):
        set_up(one.endpoint, qpid, one.path)
    for qpid in (900, 7, 5, 4, 6, 5):
        one.arrive(200 + (qpid == 5 and one.qp.rx_epsn == 201), dest_qp=qpid)
    assert one.out(W, budget=2) == [("ACK", 200), ("ACK", 201)]
    assert one.out(W, budget=9) == [("ACK", 200)] * 3


def test_answers_go_before_sends(lone: Any) -> None:
    one = lone()
    one.send(2)
    one.arrive(201)
    assert one.out(0, budget=2) == [("NAK", 200), ("SEND", 100)]


# -------------------------------------------------------------------------------------------------- congestion


def test_ecn_marks_become_one_cnp_in_each_time(lone: Any) -> None:
    one = lone(cnp_timer_ns=10_000)
    for psn in range(200, 206):
        one.arrive(psn, ecn=3)
    assert one.out(0) == [("CNP", 0)]
    one.now = 10_000
    one.arrive(206, ecn=3)
    assert ("CNP", 0) not in one.out()
    one.now = 10_001
    one.arrive(207, ecn=3)
    assert ("CNP", 0) in one.out()
    for ecn in (0, 1, 2):
        one.arrive(208 + ecn, ecn=ecn)
    assert ("CNP", 0) not in one.out(99_999)
    assert one.endpoint.counters["ecn_received"] == 8


def test_a_mark_counts_on_whatever_the_packet_is(lone: Any) -> None:
    """Congestion is congestion, though the marked packet is a duplicate or comes behind a gap."""
    one = lone()
    one.arrive(250, ecn=3)
    assert one.out() == [("CNP", 0), ("NAK", 200)]


def test_without_merging_each_mark_is_told(lone: Any) -> None:
    one = lone(cnp_merge=False)
    for psn in (200, 201):
        one.arrive(psn, ecn=3)
        assert one.out(0)[0] == ("CNP", 0)


def test_received_cnps_are_reported_once_in_each_time(lone: Any) -> None:
    one = lone(cnp_timer_ns=1_000)
    for one.now in (0, 500, 1_000):
        one.peer(OP_CNP)
    assert (one.endpoint.next_congestion(), one.endpoint.next_congestion()) == (5, None)
    one.now = 1_001
    one.peer(OP_CNP)
    assert one.endpoint.next_congestion() == 5
    assert (one.endpoint.counters["cnps_received"], one.endpoint.counters["cnps_reported"]) == (4, 2)


def test_a_cnp_halves_the_rate_for_a_time(lone: Any) -> None:
    one = lone(cnp_halves=True, cnp_timer_ns=3 * W)
    one.endpoint.write(r.TX_SPEED, 400)
    one.send(200)
    assert len(one.out(0)) == 4
    one.now = 10
    one.peer(OP_CNP)
    # 400 bytes went in window 0; windows 1 to 3 end halved, at the end of window 4 all is as before
    assert [len(one.out(window * W)) for window in range(1, 7)] == [0, 2, 2, 4, 4, 4]


def test_without_that_option_a_cnp_is_only_reported(lone: Any) -> None:
    one = lone()
    one.endpoint.write(r.TX_SPEED, 400)
    one.send(8)
    one.peer(OP_CNP)
    assert len(one.out(0)) == 4
    assert len(one.out(W)) == 4


# ----------------------------------------------------------------------------------------- interrupts, refusals


def test_oversize_over_credit_and_disabled_raise_their_interrupts(lone: Any) -> None:
    one = lone(pkt_len=64, ost=2)
    with pytest.raises(RcLinkError, match="packet of 65 bytes on QP 5: use 1 to 64"):
        one.send(size=65)
    one.send(2, size=64)
    with pytest.raises(RcLinkError, match="all 2 slots are taken: send when free_slots is above 0"):
        one.send(size=1)
    with pytest.raises(RcLinkError, match="QP 4 is disabled"):
        one.endpoint.send(4, b"x")
    one.arrive(0, dest_qp=3)
    assert [one.endpoint.next_interrupt() for _ in range(5)] == [
        (IRQ_OVERSIZE, 5), (IRQ_OVER_CREDIT, 5), (IRQ_TX_DISABLED, 4), (IRQ_RX_DISABLED, 3), None,
    ]  # fmt: skip
    assert one.endpoint.read(r.INTR_STATUS) == 1 << 0 | 1 << 1 | 1 << 14 | 1 << 15
    assert one.dropped() == {"drop_disabled": 1}


def test_interrupts_nobody_takes_do_not_pile_up(lone: Any) -> None:
    one = lone()
    for _ in range(50):
        one.arrive(0, dest_qp=3)
    assert one.endpoint.next_interrupt() == (IRQ_RX_DISABLED, 3)
    assert one.endpoint.next_interrupt() is None


def test_disabling_forgets_answers_and_keeps_slots(lone: Any) -> None:
    one = lone()
    one.send(2)
    one.out(0)
    one.arrive(200, ecn=3)
    one.arrive(205)
    one.endpoint.write(r.QP_CONTROL, 0)
    assert one.out(W) == []
    assert one.states() == "AA"
    one.arrive(201)
    assert one.dropped() == {"drop_psn_gap": 1, "drop_disabled": 1}
    one.endpoint.write(r.QP_CONTROL, 1)
    assert one.out(W + TIMEOUT) == [("SEND", 100), ("SEND", 101)]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("TYPE2", "TYPE2 (unreliable multicast) is not supported: send TYPE1 to each receiver"),
        (
            "TYPE3",
            "TYPE3 (raw Ethernet from memory descriptors) is not supported: use the system's network stack",
        ),
        ("TYPE9", "type 'TYPE9' is not one of TYPE1, TYPE2, TYPE3: use TYPE1"),
    ],
)
def test_other_types_are_refused_in_words(lone: Any, kind: str, words: str) -> None:
    with pytest.raises(RcLinkError) as error:
        lone().send(kind=kind)
    assert str(error.value) == words


@pytest.mark.parametrize("opcode", [OP_ACK, OP_CNP])
def test_fack_on_what_is_no_send_is_refused(lone: Any, opcode: int) -> None:
    one = lone()
    one.send()
    one.out()
    one.peer(opcode, 100, ACK, fack=1)
    assert (one.states(), one.dropped()) == ("A", {"drop_rclink_fack": 1})


@pytest.mark.parametrize("count", [0, 1, 30])
def test_an_ack_that_counts_credits_is_refused(lone: Any, count: int) -> None:
    one = lone()
    one.send()
    one.out()
    one.peer(OP_ACK, 100, count)
    assert (one.states(), one.dropped()) == ("A", {"drop_rclink_credits": 1})


@pytest.mark.parametrize(
    ("dst", "port", "counter"),
    [
        (ME, 4794, "drop_rclink_type2"),
        (b"\xe0\0\0\x05", 4793, "drop_rclink_type2"),
        (ME, 4791, "drop_rclink_type3"),
        (bytes.fromhex("ff02000000000000000000000000000e"), 4793, "drop_rclink_type2"),
    ],
)
def test_packets_of_other_types_are_refused(lone: Any, dst: bytes, port: int, counter: str) -> None:
    one = lone()
    src = PEER if len(dst) == 4 else bytes(15) + b"\1"
    flow = Flow(src, dst, 4793, port)
    data = seal(build(Rh(psn=200, pkey=7, dest_qp=5), b"data"), flow)
    one.endpoint.receive(RxBurst(flow, memoryview(data), len(data), len(data), 0), 0)
    assert one.dropped() == {counter: 1}
    assert one.endpoint.recv() is None
