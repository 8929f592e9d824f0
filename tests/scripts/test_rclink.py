"""RC Link by packet scripts: one endpoint, a peer made by hand, time in nanoseconds (``hardware.md`` §4)."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.rclink import Path, RcLinkConfig, RcLinkEndpoint, RcLinkError, Recovery, set_up
from rnic.rclink import registers as r
from rnic.rclink.driver import Step
from rnic.rclink.endpoint import IRQ_OVER_CREDIT, IRQ_OVERSIZE, IRQ_RETRY_OUT, IRQ_RX_DISABLED, IRQ_TX_DISABLED
from rnic.rclink.header import Rh
from rnic.rclink.numbers import OP_ACK, OP_CNP, OP_SEND
from rnic.rclink.packet import RcLinkPacket, build, icrc_ok, parse, seal
from rnic.rclink.slots import SlotState
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow

ME, PEER = b"\x0a\0\0\x01", b"\x0a\0\0\x02"
ACK, NAK, RNR = 0x1F, 0x60, 0x21
MS = 1_000_000
TIMEOUT = 244 * 4_096
W = 4_096


class Lone:
    """An endpoint whose QP 5 talks to QP 9 of a peer that the test plays."""

    def __init__(self, psn: int = 100, remote_psn: int = 200, qpid: int = 5, **settings: Any) -> None:
        self.now = 0
        self.qpid = qpid
        self.endpoint = RcLinkEndpoint(RcLinkConfig(**settings), lambda dst, port, sport: Flow(ME, dst, 4793, port))
        self.path = Path(PEER, 9, psn=psn, remote_psn=remote_psn, pkey=7)
        set_up(self.endpoint, qpid, self.path)
        self.qp = self.endpoint.qps[qpid]

    def send(self, count: int = 1, size: int = 100, **options: Any) -> None:
        for _ in range(count):
            self.endpoint.send(self.qpid, bytes(size), **options)

    def out(self, at: int | None = None, budget: int = 64) -> list[tuple[str, int]]:
        """What leaves now: ``("SEND", psn)``, ``("ACK", psn)``, ``("NAK", psn)``, ``("CNP", 0)`` ..."""
        return [self.named(rh) for rh, _ in self.raw(at, budget)]

    def raw(self, at: int | None = None, budget: int = 64) -> list[tuple[Rh, bytes]]:
        self.now = self.now if at is None else at
        self.endpoint.handle_timers(self.now)
        out = []
        for burst in self.endpoint.produce(self.now, budget):
            data = b"".join(burst.buffers)
            assert icrc_ok(data, burst.flow)
            packet = parse(memoryview(data))
            assert isinstance(packet, RcLinkPacket)
            assert (packet.rh.pkey, packet.rh.dest_qp) == (7, 9)
            out.append((packet.rh, bytes(packet.payload)))
        return out

    @staticmethod
    def named(rh: Rh) -> tuple[str, int]:
        if rh.opcode == OP_ACK:
            return {0x00: "ACK", 0x20: "RNR", 0x60: "NAK"}[rh.len_syndrome & 0x60], rh.psn
        return {OP_SEND: "SEND", OP_CNP: "CNP"}[rh.opcode], rh.psn

    def peer(self, opcode: int, psn: int = 0, syndrome: int = 0, payload: bytes = b"", ecn: int = 0, src: bytes = PEER,
             **values: Any) -> None:  # fmt: skip
        """A packet arrives now."""
        fields = {"pkey": 7, "dest_qp": self.qpid, "len_syndrome": syndrome, **values}
        flow = Flow(src, ME, 4793, 4793)
        data = seal(build(Rh(opcode=opcode, psn=psn, **fields), payload), flow)
        self.endpoint.receive(RxBurst(flow, memoryview(data), len(data), len(data), 0, tclass=ecn), self.now)

    def ack(self, psn: int, **values: Any) -> None:
        self.peer(OP_ACK, psn, ACK, **values)

    def nak(self, psn: int) -> None:
        self.peer(OP_ACK, psn, NAK)

    def arrive(self, psn: int, **values: Any) -> None:
        self.peer(OP_SEND, psn, payload=b"data", **values)

    def states(self) -> str:
        """States of the QP's slots in order, by initial: G, A, C."""
        slots = [*self.qp.unacked, *self.qp.waiting]
        return "".join({"WAIT_GRANT": "G", "WAIT_ACK": "A", "WAIT_CRD": "C"}[slot.state.name] for slot in slots)

    def dropped(self) -> dict[str, int]:
        return {name: count for name, count in self.endpoint.counters.items() if name.startswith("drop_")}

    def read(self, offset: int, field: str) -> int:
        self.endpoint.write(r.QP_ID_SET, self.qpid)
        return r.AT[offset].get(self.endpoint.read(offset), field)


# ------------------------------------------------------------------------------------------------ slots


def test_slot_from_empty_to_empty() -> None:
    one = Lone()
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


def test_one_ack_covers_all_before_it() -> None:
    one = Lone()
    one.send(10)
    one.out()
    one.ack(106)
    assert one.states() == "AAA"
    assert one.read(r.EXPECT_RESP, "expect_resp_psn") == 107


def test_rate_control_blocks_and_unblocks() -> None:
    one = Lone()
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


def test_a_blocked_qp_lets_others_pass() -> None:
    one = Lone()
    set_up(one.endpoint, 6, one.path)
    one.endpoint.write(r.QP_ID_SET, 5)
    one.endpoint.write(r.TX_SPEED, 1)
    one.send(3)
    one.endpoint.send(6, b"x")
    assert one.out(0) == [("SEND", 100), ("SEND", 100)]
    assert one.states() == "ACG"


def test_taking_the_rate_away_blocks_and_giving_it_back_unblocks() -> None:
    one = Lone()
    one.endpoint.write(r.TX_SPEED, 0)
    one.send()
    assert one.out(0) == []
    assert one.states() == "C"
    assert one.endpoint.next_deadline_ns() is None
    one.endpoint.write(r.TX_SPEED, 1)
    assert one.states() == "G"
    assert one.out() == [("SEND", 100)]


def test_fifo_over_all_qps() -> None:
    one = Lone()
    set_up(one.endpoint, 6, one.path)
    for qpid in (5, 5, 6, 5, 6):
        one.endpoint.send(qpid, bytes([qpid]))
    assert [payload[0] for _, payload in one.raw()] == [5, 5, 6, 5, 6]


def test_banks_in_turn() -> None:
    """With ``bank_rr`` no bank sends twice while another waits; alone it does."""
    one = Lone(qpid=1, bank_rr=True)
    for qpid in (5, 2):
        set_up(one.endpoint, qpid, Path(PEER, 8 + qpid % 4, pkey=7))
    for qpid in (1, 1, 1, 5, 2, 2):
        one.endpoint.send(qpid, bytes([qpid]))
    sent = [b"".join(burst.buffers)[8] for burst in one.endpoint.produce(0)]
    assert sent == [1, 2, 1, 2, 1, 5]


def test_banks_must_agree() -> None:
    one = Lone(qpid=1, bank_rr=True)
    with pytest.raises(
        RcLinkError, match="QP 2 cannot be enabled: with banks its peer's number 9 must end in the same"
    ):
        set_up(one.endpoint, 2, one.path)


# ------------------------------------------------------------------------------------------- Go-Back-N


def test_nak_goes_back_and_acknowledges_what_was_before() -> None:
    one = Lone()
    one.send(5)
    one.out()
    one.nak(102)
    assert one.states() == "GGG"
    assert one.read(r.TX_LAST_PSN, "tx_last_psn") == 101
    assert one.read(r.TX_MAX_FW, "max_forward_psn") == 104
    assert one.out() == [("SEND", 102), ("SEND", 103), ("SEND", 104)]
    assert one.read(r.RETRY_CNT, "retry_counter") == 0, "the NAK brought progress"
    assert one.endpoint.counters["retransmitted_packets"] == 3


def test_what_went_back_leaves_before_what_is_new() -> None:
    one = Lone()
    one.send(2)
    one.out()
    one.send(1)
    one.nak(100)
    assert one.out() == [("SEND", 100), ("SEND", 101), ("SEND", 102)]


def test_a_second_nak_before_it_went_again_changes_nothing() -> None:
    one = Lone()
    one.send(3)
    one.out()
    one.nak(100)
    one.nak(100)
    assert one.read(r.RETRY_CNT, "retry_counter") == 1
    assert len(one.out()) == 3
    assert one.endpoint.counters["rewinds"] == 1


def test_an_ack_that_comes_after_going_back_frees_what_waits() -> None:
    """WAIT_GRANT and WAIT_CRD to EMPTY: the sender need not send again what has arrived."""
    one = Lone()
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


def test_going_back_unblocks_the_slot_that_is_no_longer_first() -> None:
    one = Lone()
    one.endpoint.write(r.TX_SPEED, 150)
    one.send(3)
    one.out(0)
    assert one.states() == "AAC"
    one.nak(100)
    assert one.states() == "GGG"
    assert one.out(0) == []
    assert one.states() == "CGG"
    assert one.out(W) == [("SEND", 100)]


def test_timeout_goes_back() -> None:
    one = Lone()
    one.send(3)
    one.out(0)
    assert one.endpoint.next_deadline_ns() == TIMEOUT
    assert one.out(TIMEOUT - 1) == []
    assert one.out(TIMEOUT) == [("SEND", 100), ("SEND", 101), ("SEND", 102)]
    assert one.read(r.RETRY_CNT, "retry_counter") == 1


def test_progress_starts_the_timer_anew() -> None:
    one = Lone()
    one.send(2)
    one.out(0)
    one.now = TIMEOUT - 1
    one.ack(100)
    assert one.out(TIMEOUT) == []
    assert one.out(2 * TIMEOUT - 1) == [("SEND", 101)]
    one.ack(101)
    assert one.read(r.RETRY_CNT, "retry_counter") == 0


def test_psns_wrap() -> None:
    one = Lone(psn=4_094)
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
def test_acks_of_what_is_not_outstanding(psn: int, counter: str) -> None:
    one = Lone()
    one.send(4)
    one.out(budget=3)
    one.ack(psn)
    assert one.states() == "AAAG"
    assert one.dropped() == {counter: 1}


@pytest.mark.parametrize("syndrome", [0x40, 0x5F, 0x61, 0x62, 0x7F])
def test_syndromes_that_rc_link_lacks(syndrome: int) -> None:
    one = Lone()
    one.send()
    one.out()
    one.peer(OP_ACK, 100, syndrome)
    assert (one.states(), one.dropped()) == ("A", {"drop_bad_syndrome": 1})


# ------------------------------------------------------------------------------ limits and the recovery procedure


def exhaust(one: Lone, limit: int) -> None:
    """Timeouts until the QP stops."""
    for number in range(limit):
        assert one.out((number + 1) * TIMEOUT), f"retry {number + 1}"
    assert one.out((limit + 1) * TIMEOUT) == []


@pytest.mark.parametrize("limit", [0, 3, 15])
def test_retry_limit_and_its_interrupt(limit: int) -> None:
    one = Lone(retry_limit=limit)
    one.send(2)
    one.out(0)
    exhaust(one, limit)
    assert one.endpoint.read(r.INTR_STATUS) == r.INTR_RETRY_OUT
    assert one.endpoint.interrupt_line
    assert r.AT[r.IRQ_INFO].get(one.endpoint.read(r.IRQ_INFO), "qpid") == 5
    assert one.endpoint.next_interrupt() is None
    assert one.read(r.QP_CONTROL, "stopped") == 1
    assert one.endpoint.next_deadline_ns() is None
    with pytest.raises(RcLinkError, match="QP 5 has stopped, its peer did not answer: recover it"):
        one.send()
    one.endpoint.write(r.INTR_STATUS, r.INTR_RETRY_OUT)
    assert not one.endpoint.interrupt_line


def test_naks_without_progress_are_retries() -> None:
    one = Lone(retry_limit=2)
    one.send(2)
    for number in range(3):
        assert len(one.out(number)) == 2
        one.nak(100)
    assert one.endpoint.next_interrupt() == (IRQ_RETRY_OUT, 5)


def test_a_stopped_qp_harms_no_other() -> None:
    one = Lone(retry_limit=0)
    set_up(one.endpoint, 6, one.path)
    one.send()
    one.out(0)
    assert one.out(TIMEOUT) == []
    one.endpoint.send(6, b"x")
    assert one.out(TIMEOUT) == [("SEND", 100)]


def test_an_ack_for_a_stopped_qp_frees_slots_and_starts_nothing() -> None:
    one = Lone(retry_limit=0)
    one.send(3)
    one.out(0)
    one.out(TIMEOUT)
    one.ack(101)
    assert one.states() == "A"
    assert one.endpoint.next_deadline_ns() is None
    assert one.out(9 * TIMEOUT) == []


def test_recovery_procedure() -> None:
    """Disable, take the rate, 1 us and no freeing, free, drain, read, set up from psn + 1: step by step."""
    one = Lone(retry_limit=0, ost=200)
    one.send(150, size=10, tag=1)
    one.out(0)
    one.out(TIMEOUT)
    now = TIMEOUT
    recovery = Recovery(one.endpoint, 5, one.path)
    assert recovery.advance(now) == now + 1_000
    assert recovery.step is Step.WAIT
    assert one.read(r.QP_CONTROL, "qp_en") == 0
    assert one.read(r.TX_SPEED, "tx_speed_cfg") == 0
    assert recovery.advance(now + 999) == now + 1_000
    assert recovery.step is Step.WAIT
    now += 1_000
    assert recovery.advance(now) is not None
    assert recovery.step is Step.DRAIN
    assert one.read(r.XON_THR_RDMA, "type1_free_busy") == 1
    rounds = 0
    while recovery.advance(now) is not None:
        assert recovery.step is Step.DRAIN
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


def test_recovery_waits_for_another_qps_buffers() -> None:
    one = Lone(retry_limit=0)
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


def test_a_qp_cannot_be_enabled_before_its_slots_are_free() -> None:
    one = Lone(retry_limit=0)
    one.send()
    one.out(0)
    one.out(TIMEOUT)
    one.endpoint.write(r.QP_CONTROL, 0)
    with pytest.raises(RcLinkError, match="let free_buf_set free its slots first"):
        one.endpoint.write(r.QP_CONTROL, 1)
    with pytest.raises(RcLinkError, match="TX_EPSN of QP 5: disable the QP and free its slots first"):
        one.endpoint.write(r.TX_EPSN, 1)


def test_rnr_nak_waits_and_goes_back() -> None:
    one = Lone()
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


def test_an_ack_ends_an_rnr_wait() -> None:
    one = Lone()
    one.send(3)
    one.out(0)
    one.peer(OP_ACK, 100, RNR)
    one.ack(100)
    assert one.out(1) == [("SEND", 101), ("SEND", 102)]


@pytest.mark.parametrize(("limit", "stops"), [(0, True), (2, True), (7, False)])
def test_rnr_limit(limit: int, stops: bool) -> None:
    one = Lone(rnr_limit=limit)
    one.send()
    now = 0
    for _ in range(20):
        if not one.out(now):
            break
        one.peer(OP_ACK, 100, RNR)
        now += 10_000
    assert (one.endpoint.next_interrupt() == (IRQ_RETRY_OUT, 5)) is stops


def test_rnr_for_what_never_left_is_nothing() -> None:
    one = Lone()
    one.send()
    one.peer(OP_ACK, 100, RNR)
    assert one.out(0) == [("SEND", 100)]


# ------------------------------------------------------------------------------------------------ receiving


def test_in_order() -> None:
    one = Lone()
    for psn in (200, 201, 202):
        one.arrive(psn)
    assert one.out(4_095) == []
    assert one.out(4_096) == [("ACK", 202)], "one ACK for all three"
    assert [received.payload for received in iter(one.endpoint.recv, None)] == [b"data"] * 3
    assert one.read(r.REQ_CHK, "rx_req_epsn") == one.read(r.TX_ACK_SN, "tx_epsn") == 203


def test_fack_forces_an_ack() -> None:
    one = Lone()
    one.now = 5_000_000
    one.arrive(200)
    one.arrive(201, fack=1, ts_en=1, timestamp=77)
    ((rh, _),) = one.raw()
    assert (one.named(rh), rh.fack, rh.ts_en, rh.timestamp) == (("ACK", 201), 0, 1, 77)
    assert one.out(5_100_000) == [], "the merger owes nothing more"


def test_fack_is_sent_when_asked_for() -> None:
    one = Lone()
    one.send(fack=True)
    one.send()
    assert [rh.fack for rh, _ in one.raw()] == [1, 0]


def test_acks_carry_timestamps_where_told() -> None:
    one = Lone(ack_time=True)
    one.arrive(200, ts_en=1, timestamp=500)
    ((rh, _),) = one.raw(W)
    assert (rh.ts_en, rh.timestamp) == (1, 500)
    one = Lone()
    one.arrive(200, ts_en=1, timestamp=500)
    ((rh, _),) = one.raw(W)
    assert (rh.ts_en, rh.timestamp) == (0, 0)


def test_round_trip_time() -> None:
    one = Lone()
    one.send()
    ((rh, _),) = one.raw(1_024 * 65_535)
    assert (rh.ts_en, rh.timestamp) == (1, 65_535)
    one.now += 10 * 1_024
    one.ack(100, ts_en=1, timestamp=rh.timestamp)
    assert one.endpoint.rtt_ns(5) == 10 * 1_024


def test_a_gap_is_naked_once() -> None:
    one = Lone()
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


def test_a_gap_that_closes_before_its_nak_left() -> None:
    one = Lone()
    one.arrive(201)
    one.arrive(200)
    one.arrive(201)
    assert one.out(W) == [("ACK", 201)]


def test_a_duplicate_is_acknowledged_again() -> None:
    one = Lone()
    one.arrive(200)
    one.out(W)
    one.arrive(200)
    one.arrive(199)
    assert one.out(9 * W) == [("ACK", 200)]
    assert one.dropped() == {"drop_duplicate": 2}
    assert len(list(iter(one.endpoint.recv, None))) == 1


def test_a_full_inbox_answers_rnr() -> None:
    one = Lone(rx_packets=2, rnr_timer=3)
    for psn in (200, 201, 202, 203):
        one.arrive(psn)
    ((rh, _),) = one.raw()
    assert (one.named(rh), rh.len_syndrome) == (("RNR", 202), 0x23)
    one.endpoint.recv()
    one.arrive(202)
    assert one.out(W) == [("ACK", 202)]
    assert one.dropped() == {"drop_no_receive": 1, "drop_psn_gap": 1}


def test_acks_of_many_qps_go_four_at_a_time() -> None:
    one = Lone()
    for qpid in (900, 6, 7, 4):
        set_up(one.endpoint, qpid, one.path)
    for qpid in (900, 7, 5, 4, 6, 5):
        one.arrive(200 + (qpid == 5 and one.qp.rx_epsn == 201), dest_qp=qpid)
    assert one.out(W, budget=2) == [("ACK", 200), ("ACK", 201)]
    assert one.out(W, budget=9) == [("ACK", 200)] * 3


def test_answers_go_before_sends() -> None:
    one = Lone()
    one.send(2)
    one.arrive(201)
    assert one.out(0, budget=2) == [("NAK", 200), ("SEND", 100)]


# -------------------------------------------------------------------------------------------------- congestion


def test_ecn_marks_become_one_cnp_in_each_time() -> None:
    one = Lone(cnp_timer_ns=10_000)
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


def test_a_mark_counts_on_whatever_the_packet_is() -> None:
    """Congestion is congestion, though the marked packet is a duplicate or comes behind a gap."""
    one = Lone()
    one.arrive(250, ecn=3)
    assert one.out() == [("CNP", 0), ("NAK", 200)]


def test_without_merging_each_mark_is_told() -> None:
    one = Lone(cnp_merge=False)
    for psn in (200, 201):
        one.arrive(psn, ecn=3)
        assert one.out(0)[0] == ("CNP", 0)


def test_received_cnps_are_reported_once_in_each_time() -> None:
    one = Lone(cnp_timer_ns=1_000)
    for one.now in (0, 500, 1_000):
        one.peer(OP_CNP)
    assert (one.endpoint.next_congestion(), one.endpoint.next_congestion()) == (5, None)
    one.now = 1_001
    one.peer(OP_CNP)
    assert one.endpoint.next_congestion() == 5
    assert (one.endpoint.counters["cnps_received"], one.endpoint.counters["cnps_reported"]) == (4, 2)


def test_a_cnp_halves_the_rate_for_a_time() -> None:
    one = Lone(cnp_halves=True, cnp_timer_ns=3 * W)
    one.endpoint.write(r.TX_SPEED, 400)
    one.send(200)
    assert len(one.out(0)) == 4
    one.now = 10
    one.peer(OP_CNP)
    # 400 bytes went in window 0; windows 1 to 3 end halved, at the end of window 4 all is as before
    assert [len(one.out(window * W)) for window in range(1, 7)] == [0, 2, 2, 4, 4, 4]


def test_without_that_option_a_cnp_is_only_reported() -> None:
    one = Lone()
    one.endpoint.write(r.TX_SPEED, 400)
    one.send(8)
    one.peer(OP_CNP)
    assert len(one.out(0)) == 4
    assert len(one.out(W)) == 4


# ----------------------------------------------------------------------------------------- interrupts, refusals


def test_oversize_over_credit_and_disabled_raise_their_interrupts() -> None:
    one = Lone(pkt_len=64, ost=2)
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


def test_interrupts_nobody_takes_do_not_pile_up() -> None:
    one = Lone()
    for _ in range(50):
        one.arrive(0, dest_qp=3)
    assert one.endpoint.next_interrupt() == (IRQ_RX_DISABLED, 3)
    assert one.endpoint.next_interrupt() is None


def test_disabling_forgets_answers_and_keeps_slots() -> None:
    one = Lone()
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
        ("TYPE2", "TYPE2 (multicast, never repeated) is not carried: send TYPE1 to each receiver"),
        (
            "TYPE3",
            "TYPE3 (raw Ethernet from memory descriptors) is not carried: the system's own network stack does that",
        ),
        ("TYPE9", "type 'TYPE9' is none of TYPE1, TYPE2, TYPE3: use TYPE1"),
    ],
)
def test_other_types_are_refused_in_words(kind: str, words: str) -> None:
    with pytest.raises(RcLinkError) as error:
        Lone().send(kind=kind)
    assert str(error.value) == words


@pytest.mark.parametrize("opcode", [OP_ACK, OP_CNP])
def test_fack_on_what_is_no_send_is_refused(opcode: int) -> None:
    one = Lone()
    one.send()
    one.out()
    one.peer(opcode, 100, ACK, fack=1)
    assert (one.states(), one.dropped()) == ("A", {"drop_rclink_fack": 1})


@pytest.mark.parametrize("count", [0, 1, 30])
def test_an_ack_that_counts_credits_is_refused(count: int) -> None:
    one = Lone()
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
def test_packets_of_other_types_are_refused(dst: bytes, port: int, counter: str) -> None:
    one = Lone()
    src = PEER if len(dst) == 4 else bytes(15) + b"\1"
    flow = Flow(src, dst, 4793, port)
    data = seal(build(Rh(psn=200, pkey=7, dest_qp=5), b"data"), flow)
    one.endpoint.receive(RxBurst(flow, memoryview(data), len(data), len(data), 0), 0)
    assert one.dropped() == {counter: 1}
    assert one.endpoint.recv() is None


def test_states_are_these_four() -> None:
    assert [state.name for state in SlotState] == ["EMPTY", "WAIT_GRANT", "WAIT_ACK", "WAIT_CRD"]
