"""Loss: NAKs, timeouts, RNR, the window after a loss, the tail-loss probe (IBA vol. 1, 9.7; design.md)."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.context.qpc import OPT_NO_PROBE, OPT_SELECTIVE_REPEAT
from rnic.spec.states import ERR, RTS
from rnic.spec.syndromes import retry_exceeded_ns, rnr_timer_ns
from tests.scripts.conftest import NewScript


def test_sequence_nak_goes_back_into_the_message(new: NewScript) -> None:
    s = new()
    s.post("WRITE", 1280)
    s.post("SEND", 10)
    first = s.packets()
    s.ack(102, syndrome=0x60)
    again = s.packets()
    assert [s.say(p) for p in again] == ["WRITE_MIDDLE 102", "WRITE_MIDDLE 103", "WRITE_LAST 104!", "SEND_ONLY 105!"]
    assert [bytes(p.payload) for p in again] == [bytes(p.payload) for p in first[2:]]
    assert s.ctx.last_acked_psn == 102
    s.ack(105)
    assert s.send_cq.take() == ["SUCCESS"] * 2


def test_local_ack_timeout(new: NewScript) -> None:
    s = new(probe=False, ackto=10)
    s.post("WRITE", 10)
    s.out()
    assert s.deadline == 4096 << 10
    s.wait((4096 << 10) - 1)
    assert s.out() == []
    s.wait(1)
    assert s.out() == ["WRITE_ONLY 100!"]


def test_retry_count(new: NewScript) -> None:
    s = new(probe=False, ackto=1, retry_cnt=2)
    s.post("WRITE", 10)
    s.post("SEND", 10)
    for _ in range(3):
        assert s.out() == ["WRITE_ONLY 100!", "SEND_ONLY 101!"]
        s.wait(s.deadline)
    assert s.send_cq.take() == ["RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    assert s.ctx.state == ERR
    assert s.events == []  # the completion tells it
    assert s.out() == []


@pytest.mark.parametrize("retry_cnt", [0, 1, 3, 7])
@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_a_dead_peer_gets_no_more_probes_than_sendings(new: NewScript, operation: str, retry_cnt: int) -> None:
    """Also while new packets go out, each of which starts the probe's timer again."""
    s = new(ackto=12, retry_cnt=retry_cnt)
    s.post(operation, 512)
    seen = s.out()
    span = retry_exceeded_ns(12, retry_cnt)
    assert span is not None
    began, earliest = s.now, span[0]
    while s.ctx.state == RTS:
        assert s.now - began < earliest
        if s.now - began < 4_000_000:
            s.post("WRITE", 10)
        s.wait(s.deadline)
        seen += s.out()
    assert s.send_cq.take()[0] == "RETRY_EXC_ERR"
    assert s.now - began == earliest
    oldest = [name for name in seen if name.startswith(("WRITE_FIRST 100", "READ_REQUEST 100"))]
    assert retry_cnt + 1 <= len(oldest) <= 2 * (retry_cnt + 1)


def test_the_timer_backs_off_as_far_as_the_standard_lets_it(new: NewScript) -> None:
    """IBA 9.7.6.1.3: the transport timer runs for at least the timeout and at most four times that."""
    s = new(probe=False, ackto=10, retry_cnt=7)
    s.post("WRITE", 512)
    waits = []
    for _ in range(5):
        s.out()
        waits.append(s.deadline)
        s.wait(s.deadline)
    assert waits == [(4096 << 10) * times for times in (1, 2, 4, 4, 4)]
    s.out()
    s.ack(100)
    assert s.deadline == 4096 << 10  # progress


@pytest.mark.parametrize(("sample", "timeouts"), [(1_000_000, 1), (2_000_000, 1.9073486328125), (4_190_000, 3.99589)])
def test_the_timer_is_no_shorter_than_four_measured_round_trips(new: NewScript, sample: int, timeouts: float) -> None:
    s = new(probe=False, ackto=10)
    s.post("WRITE", 10)
    s.out()
    s.wait(sample)
    s.ack(100)
    s.post("WRITE", 10)
    s.out()
    assert s.deadline == pytest.approx(timeouts * (4096 << 10), rel=1e-4)


def test_what_waits_to_be_sent_again_is_not_late(new: NewScript) -> None:
    s = new(ackto=10)
    s.post("WRITE", 512)
    s.out()
    s.ack(100, syndrome=0x60)
    assert s.deadline is None
    s.wait(1_000_000_000)
    assert s.out() == ["WRITE_FIRST 100", "WRITE_LAST 101!"]
    assert s.counters["ack_timeouts"] == 0
    assert s.deadline == 1_000_000


def test_an_ack_starts_the_timer_anew(new: NewScript) -> None:
    s = new(probe=False, ackto=10)
    s.post("WRITE", 10)
    s.post("WRITE", 10)
    s.out()
    s.wait(1_000_000)
    s.ack(100)
    assert s.deadline == 4096 << 10
    s.ack(101)
    assert s.deadline is None


def test_the_probe_waits_two_round_trips(new: NewScript) -> None:
    """Round trips are measured from a first sending to the ACK that covers it, one at a time."""
    s = new(ackto=0)
    for sample in (2_000_000, 2_000_000, 10_000_000):
        s.post("WRITE", 10)
        s.out()
        s.wait(sample)
        s.ack(s.qp.requester.sent_psn - 1)
        s.wait(50_000_000)
    s.post("WRITE", 10)
    s.out()
    # mean and deviation as RFC 6298 has them: 3 ms and 2.5625 ms
    assert s.deadline == 2 * 3_000_000 + 4 * 2_562_500


def test_a_steady_round_trip_is_waited_for_twice(new: NewScript) -> None:
    s = new(ackto=0)
    for _ in range(40):
        s.post("WRITE", 10)
        s.out()
        s.wait(3_000_000)
        s.ack(s.qp.requester.sent_psn - 1)
    s.post("WRITE", 10)
    s.out()
    assert s.deadline == pytest.approx(6_000_000, rel=1e-3)


def test_one_round_trip_is_measured_at_a_time(new: NewScript) -> None:
    for first in (0, 100):
        s = new(ackto=0, next_send_psn=first)
        for name in ("WRITE", "WRITE", "READ"):
            s.post(name, 10)
            s.out()
            s.wait(200_000)
        s.ack(first + 1)
        assert s.qp.requester.srtt == 600_000


def test_a_round_trip_ends_with_the_last_packet_of_what_was_sent(new: NewScript) -> None:
    s = new(ackto=0)
    s.post("WRITE", 768)
    s.out()
    for psn in (100, 101, 102):
        assert s.qp.requester.srtt == 0
        s.wait(200_000)
        s.ack(psn)
    assert s.qp.requester.srtt == 600_000


def test_a_repeated_packet_measures_no_round_trip(new: NewScript) -> None:
    s = new(ackto=0)
    s.post("WRITE", 10)
    s.out()
    s.wait(900_000)
    s.ack(100, syndrome=0x60)
    s.out()
    s.wait(900_000)
    s.ack(100)
    assert s.qp.requester.srtt == 0


def test_timeout_zero_is_never(new: NewScript) -> None:
    s = new(probe=False, ackto=0)
    s.post("WRITE", 10)
    s.out()
    assert s.deadline is None


def test_progress_restores_the_retry_count(new: NewScript) -> None:
    s = new(probe=False, ackto=1, retry_cnt=1)
    s.post("WRITE", 512)
    for psn in (100, 101):
        s.out()
        s.wait(4096 << 1)
        s.out()
        s.ack(psn)
    assert s.send_cq.take() == ["SUCCESS"]


@pytest.mark.parametrize("limit", range(7))
def test_rnr_limit(new: NewScript, limit: int) -> None:
    s = new(rnr_retry=limit)
    s.post("SEND", 10)
    for _ in range(limit):
        assert s.out() == ["SEND_ONLY 100!"]
        s.ack(100, syndrome=0x21)
        s.wait(10_000)
    s.out()
    s.ack(100, syndrome=0x21)
    assert s.send_cq.take() == ["RNR_RETRY_EXC_ERR"]
    assert s.ctx.state == ERR


@pytest.mark.parametrize("code", [0, 1, 14, 31])
def test_rnr_timer_and_forever(new: NewScript, code: int) -> None:
    s = new(rnr_retry=7)
    s.post("WRITE", 10)
    s.post("SEND", 10)
    s.post("WRITE", 10)
    s.out()
    for _ in range(20):
        s.ack(101, syndrome=0x20 | code)
        assert s.deadline == rnr_timer_ns(code)
        s.wait(rnr_timer_ns(code) - 1)
        assert s.out() == []
        s.wait(1)
        assert s.out() == ["SEND_ONLY 101!", "WRITE_ONLY 102!"]
    s.ack(102)
    assert s.send_cq.take() == ["SUCCESS"] * 3


def test_rnr_inside_a_sequence_retry(new: NewScript) -> None:
    s = new(rnr_retry=1)
    s.post("SEND", 10)
    s.post("SEND", 10)
    s.out()
    s.ack(100, syndrome=0x60)
    s.out()
    s.ack(100, syndrome=0x21)
    s.ack(100, syndrome=0x60)
    assert s.out() == []  # still waiting
    s.wait(10_000)
    assert s.out() == ["SEND_ONLY 100!", "SEND_ONLY 101!"]


@pytest.mark.parametrize(
    ("syndrome", "status"),
    [(0x61, "REM_INV_REQ_ERR"), (0x62, "REM_ACCESS_ERR"), (0x63, "REM_OP_ERR"), (0x64, "REM_INV_REQ_ERR")],
)
def test_fatal_naks(new: NewScript, syndrome: int, status: str) -> None:
    s = new()
    for _ in range(3):
        s.post("WRITE", 10)
    s.out()
    s.ack(101, syndrome=syndrome)
    assert s.send_cq.entries[1].vendor == syndrome
    assert s.send_cq.take() == ["SUCCESS", status, "WR_FLUSH_ERR"]
    assert s.events == []


def test_a_fatal_nak_of_what_is_over_harms_nobody(new: NewScript) -> None:
    """As comes where the network has repeated a READ whose answer arrived long ago."""
    s = new()
    s.post("READ", 600)
    s.out()
    for number, name in enumerate(("FIRST", "MIDDLE", "LAST")):
        s.inject(f"READ_RESPONSE_{name}", 100 + number, payload=bytes(256 if number < 2 else 88))
    for psn in (100, 101, 102):
        s.ack(psn, syndrome=0x63)
    assert s.ctx.state == RTS
    assert s.counters["drop_stale_response"] == 3
    s.post("WRITE", 10)
    assert s.out() == ["WRITE_ONLY 103!"]
    s.ack(102, syndrome=0x63)
    s.ack(103)
    assert s.send_cq.take() == ["SUCCESS", "SUCCESS"]


def test_reserved_syndromes_are_dropped(new: NewScript) -> None:
    s = new()
    s.post("WRITE", 10)
    s.out()
    s.ack(100, syndrome=0x40)
    s.ack(100, syndrome=0x65)
    assert s.counters["drop_bad_opcode"] == 2
    assert s.ctx.state == RTS


# --------------------------------------------------------------------------------- the window after a loss


def test_a_loss_halves_what_is_in_flight(new: NewScript) -> None:
    """A loss halves the packets in flight, down to 32; acknowledged packets open the window again, four for one."""
    s = new(window_packets=128, ack_every=64)
    s.post("WRITE", 250 * 256)
    assert len(s.packets()) == 128
    for psn, count in ((100, 64), (101, 32), (102, 32)):
        s.ack(psn, syndrome=0x60)
        assert len(s.packets()) == count
    s.ack(102)
    assert len(s.packets()) == 1  # the NAKs acknowledged two, this the third
    s.ack(103)
    assert len(s.packets()) == 1 + 1  # the fourth makes room for one more
    s.ack(103 + 8)
    assert len(s.packets()) == 8 + 2
    s.ack(111 + 35)
    assert len(s.packets()) == 35 + 8
    assert s.qp.requester.window == 43


def test_the_window_opens_as_far_as_it_was_and_no_further(new: NewScript) -> None:
    s = new(window_packets=40)
    s.post("WRITE", 250 * 256)
    s.out()
    s.ack(100, syndrome=0x60)
    seen = []
    for psn in range(110, 220, 10):
        s.out()
        s.ack(psn)
        seen.append(s.qp.requester.window)
    assert seen == [34, 37, 39, 40, 40, 40, 40, 40, 40, 40, 40]


def test_a_narrow_window_asks_for_acks_more_often(new: NewScript) -> None:
    """Whatever the window, four packets of it ask for an ACK, so that it moves on before it is used up."""
    for segments in (1, 15):
        s = new(segments=segments, window_packets=128, ack_every=64)
        s.post("WRITE", 250 * 256)
        assert [p.psn for p in s.packets() if p.ackreq] == [128, 160, 192, 224, 227]
        s.ack(100, syndrome=0x60)
        s.out()
        s.ack(101, syndrome=0x60)
        assert [p.psn for p in s.packets() if p.ackreq] == [104, 112, 120, 128, 132]  # the last, since it stops there


def test_an_rnr_nak_is_no_loss(new: NewScript) -> None:
    s = new(window_packets=128)
    s.post("SEND", 250 * 256)
    s.out()
    s.ack(100, syndrome=0x21)
    s.wait(10_000)
    assert len(s.packets()) == 128


# ------------------------------------------------------------------------ a peer that keeps what comes beyond a gap


def test_the_packet_that_a_nak_names_is_sent_again_alone(new: NewScript) -> None:
    s = new(options=OPT_SELECTIVE_REPEAT)
    s.post("WRITE", 1280)
    s.post("SEND", 10)
    first = s.packets()
    s.ack(102, syndrome=0x60)
    s.post("SEND", 20)
    again = s.packets()
    assert [s.say(p) for p in again] == ["WRITE_MIDDLE 102!", "SEND_ONLY 106!"], "what is new goes on"
    assert bytes(again[0].payload) == bytes(first[2].payload)
    assert (s.counters["retransmitted_packets"], s.counters["rewinds"], s.counters["probes"]) == (1, 0, 0)
    s.ack(104, syndrome=0x60)  # it had 103, and lacks the last
    assert s.out() == ["WRITE_LAST 104!"]
    s.ack(106)
    assert s.send_cq.take() == ["SUCCESS"] * 3
    assert s.deadline is None


def test_a_peer_that_wants_the_next_one_too_gets_all(new: NewScript) -> None:
    """It has not kept it, or more is lost. Twice as many losses go by each time before it is tried again."""
    s = new(options=OPT_SELECTIVE_REPEAT, retry_cnt=7)
    s.post("WRITE", 250 * 256)
    s.out()
    rewinds = []
    for psn in range(100, 111):
        s.ack(psn, syndrome=0x60)
        s.out()
        rewinds.append(s.counters["rewinds"])
    assert rewinds == [0, 1, 1, 2, 3, 3, 4, 5, 6, 7, 7]
    assert s.qp.requester.go_back_penalty == 4


def test_a_peer_that_has_kept_is_trusted_again(new: NewScript) -> None:
    s = new(options=OPT_SELECTIVE_REPEAT)
    s.post("WRITE", 100 * 256)
    s.out()
    s.ack(100, syndrome=0x60)
    assert len(s.packets()) == 1
    s.ack(101, syndrome=0x60)
    assert len(s.packets()) > 1
    s.ack(110, syndrome=0x60)
    assert s.out() == ["WRITE_MIDDLE 110!"]
    s.ack(120)
    assert s.qp.requester.go_back_penalty == 0


def test_a_nak_said_twice_of_what_was_sent_alone_goes_back(new: NewScript) -> None:
    """What was sent alone is lost too, or late."""
    s = new(options=OPT_SELECTIVE_REPEAT)
    s.post("WRITE", 512)
    s.out()
    s.ack(100, syndrome=0x60)
    assert s.out() == ["WRITE_FIRST 100!"]
    s.ack(100, syndrome=0x60)
    assert s.out() == ["WRITE_FIRST 100", "WRITE_LAST 101!"]


def test_what_is_sent_alone_narrows_the_window_less(new: NewScript) -> None:
    s = new(options=OPT_SELECTIVE_REPEAT, window_packets=128)
    s.post("WRITE", 250 * 256)
    s.out()
    s.ack(100, syndrome=0x60)
    assert s.qp.requester.window == 96
    assert s.out() == ["WRITE_FIRST 100!"]
    for psn in range(140, 260, 2):
        s.ack(psn, syndrome=0x60)
    assert s.qp.requester.window >= 32


def test_with_reads_under_way_it_goes_back(new: NewScript) -> None:
    """What is missing may be a READ request, which is answered in its order."""
    s = new(options=OPT_SELECTIVE_REPEAT)
    s.post("READ", 512)
    s.post("WRITE", 10)
    s.out()
    s.ack(100, syndrome=0x60)
    assert s.out() == ["READ_REQUEST 100!", "WRITE_ONLY 102!"]


def test_a_timeout_goes_back_whatever_the_peer_keeps(new: NewScript) -> None:
    s = new(options=OPT_SELECTIVE_REPEAT | OPT_NO_PROBE, ackto=10)
    s.post("WRITE", 512)
    s.out()
    s.ack(100, syndrome=0x60)
    s.out()
    s.wait(s.deadline)
    assert s.out() == ["WRITE_FIRST 100", "WRITE_LAST 101!"]


# ------------------------------------------------------------------------------------ tail-loss probe


def test_probe_repeats_both_ends_and_backs_off(new: NewScript) -> None:
    s = new(ackto=0)
    s.post("SEND", 512)
    s.post("WRITE", 512)
    s.out()
    seen, gaps = [], []
    for _ in range(4):
        gaps.append(s.deadline)
        s.wait(s.deadline)
        seen += s.out()
    assert seen == ["SEND_FIRST 100!", "WRITE_LAST 103!"] * 4
    assert gaps == [1_000_000, 2_000_000, 4_000_000, 8_000_000]
    s.ack(103)
    assert s.deadline is None
    assert s.counters["probes"] == 4


def test_an_answered_probe_is_followed_by_another_at_once(new: NewScript) -> None:
    s = new(ackto=0)
    s.post("WRITE", 1024)
    s.out()
    s.wait(1_000_000)
    assert s.qp.scheduled
    assert s.out() == ["WRITE_FIRST 100!", "WRITE_LAST 103!"]
    s.ack(101)
    assert s.qp.scheduled
    assert s.out() == ["WRITE_MIDDLE 102!", "WRITE_LAST 103!"]
    assert s.deadline == 1_000_000
    s.ack(102)
    assert s.out() == []
    s.wait(1_000_000)
    assert s.out() == ["WRITE_LAST 103!"]


def test_a_lost_nak_costs_one_probe(new: NewScript) -> None:
    s = new()
    s.post("WRITE", 1024)
    s.out()
    s.wait(1_000_000)
    assert s.out() == ["WRITE_FIRST 100!", "WRITE_LAST 103!"]
    s.ack(100)  # the probe made the responder wait for 101 again, and say so
    s.ack(101, syndrome=0x60)
    assert s.out() == ["WRITE_MIDDLE 101", "WRITE_MIDDLE 102", "WRITE_LAST 103!"]


def test_a_probe_that_finds_no_packet_asks_for_none(new: NewScript) -> None:
    """No sequence of events leads there; a word of the state that another executor wrote wrong must not raise."""
    s = new(ackto=10)
    s.qp.requester.add_inflight(1)
    s.qp.requester.arm_timers(s.now)
    s.wait(1_000_000)
    assert s.qp.requester.probe_due
    assert s.bursts() == []
    assert s.counters["probes"] == 0
    s.wait(10_000_000)  # the ACK timeout starts again from nothing
    assert s.qp.requester.inflight == 0


@pytest.mark.parametrize("how", [{"probe": False}, {"options": OPT_NO_PROBE}])
def test_probe_off(new: NewScript, how: dict[str, Any]) -> None:
    s = new(ackto=0, **how)
    s.post("SEND", 10)
    s.out()
    assert s.deadline is None


# ------------------------------------------------------------------------------ NAKs in an RNR wait


def test_sequence_naks_in_an_rnr_wait_cost_no_retry(new: NewScript) -> None:
    """Linux answers each packet in flight behind the RNR NAK with a sequence NAK for the PSN that it refused."""
    s = new(retry_cnt=1, rnr_retry=7)
    for _ in range(8):
        s.post("SEND", 10)
    for _ in range(5):
        assert len(s.out()) == 8
        s.ack(100, syndrome=0x21)
        for _ in range(7):
            s.ack(100, syndrome=0x60)
        assert s.out() == []
        s.wait(10_000)
    assert len(s.out()) == 8
    s.ack(107)
    assert s.send_cq.take() == ["SUCCESS"] * 8
    assert s.counters["rewinds"] == 0


def test_an_rnr_nak_restores_the_retry_count(new: NewScript) -> None:
    """It says that the request has come. Linux's sequence NAKs behind its RNR NAK may be slower than the wait is long:
    each then sends the rest again, which is no sign of a peer that cannot be reached."""
    s = new(retry_cnt=1, rnr_retry=7)
    for _ in range(4):
        s.post("SEND", 10)
    for number in range(1, 6):
        s.out()
        s.ack(100, syndrome=0x21)
        s.wait(10_000)
        assert len(s.out()) == 4
        s.ack(100, syndrome=0x60)
        assert s.counters["rewinds"] == number
    s.out()
    s.ack(103)
    assert s.send_cq.take() == ["SUCCESS"] * 4


def test_between_rnr_naks_the_retry_count_ends_it(new: NewScript) -> None:
    s = new(retry_cnt=2, rnr_retry=7)
    s.post("SEND", 10)
    for code in (0x21, 0x60, 0x60):
        s.out()
        s.ack(100, syndrome=code)
        s.wait(10_000)
    s.out()
    s.ack(100, syndrome=0x60)
    assert s.send_cq.take() == ["RETRY_EXC_ERR"]


def test_a_sequence_nak_behind_the_rnr_wait_is_a_loss(new: NewScript) -> None:
    """The responder took the refused request after all, and lost the one behind: that does cost a retry."""
    s = new(retry_cnt=1)
    for _ in range(3):
        s.post("SEND", 10)
    s.out()
    s.ack(100, syndrome=0x21)
    s.wait(10_000)
    s.out()
    s.ack(101, syndrome=0x60)
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.counters["rewinds"] == 1
    assert s.out() == ["SEND_ONLY 101!", "SEND_ONLY 102!"]


def test_a_nak_said_twice_goes_back_once(new: NewScript) -> None:
    s = new(retry_cnt=1)
    s.post("WRITE", 1024)
    s.out()
    for _ in range(3):
        s.ack(101, syndrome=0x60)
    assert s.counters["rewinds"] == 1
    assert [p.psn for p in s.packets()] == [101, 102, 103]


def test_the_ack_timeout_runs_from_the_oldest_packet(new: NewScript) -> None:
    s = new(probe=False)
    s.post("WRITE", 8)
    s.packets()
    whole = s.deadline
    s.wait(1_000)
    s.post("WRITE", 8)
    s.packets()
    assert s.deadline == whole - 1_000, "what is sent later does not put it off"


# ------------------------------------------------------------------------------------ short turns


@pytest.mark.parametrize("budget", [1, 2, 5, 16, 63])
@pytest.mark.parametrize("first", [4, 16, 40])
def test_short_turns_do_not_wait_for_the_probe(new: NewScript, budget: int, first: int) -> None:
    """A turn that its budget ends asks for an ACK where the next might find no room: nothing else would give it any."""
    s = new(first_packets=first)
    s.post("WRITE", 60_000)
    asked: list[int] = []
    while not s.send_cq.entries:
        sent = s.packets(budget)
        asked += [packet.psn for packet in sent if packet.ackreq]
        if not sent:
            assert asked, "it waits, and no answer is under way"
            s.wait(20_000)
            s.ack(asked[-1])
            asked.clear()
    assert s.counters["probes"] == 0


def test_who_joins_between_two_turns_makes_nobody_wait_for_the_probe(new: NewScript) -> None:
    """Ten packets are under way and six more would go. Another takes four; then there is no room for a turn."""
    s = new(first_packets=16)
    inflight, peer = s.host.inflight, s.qp.requester.peer
    s.post("WRITE", 60_000)
    asked = [packet.psn for packet in s.packets(10) if packet.ackreq]
    inflight.took(peer, 4, 0)
    assert s.out() == []
    inflight.release(peer, 4)
    assert s.out() == []
    s.ack(asked[-1])
    assert s.out() != []
