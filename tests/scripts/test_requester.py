"""The requester: packets, window, acknowledgements, retries (IBA vol. 1, 9.7; design.md "Loss recovery")."""

from __future__ import annotations

import pytest

from rnic.context.qpc import OPT_NO_PROBE, OPT_SQ_SIG_ALL
from rnic.rings.sqe import FLAG_FENCE, FLAG_INLINE, FLAG_SIGNALED, FLAG_SOLICITED, SQE_ENTRY_BIND_STRUCT
from rnic.spec.events import SQ_DRAINED
from rnic.spec.opcodes import WR_BIND_MW
from rnic.spec.states import ERR, RTS, SQD, SQE, ST_UC, ST_UD
from rnic.spec.syndromes import rnr_timer_ns

ALL = FLAG_SIGNALED


@pytest.mark.parametrize(
    ("operation", "packets"),
    [
        ("SEND", ["SEND_FIRST 100", "SEND_MIDDLE 101", "SEND_LAST 102!"]),
        ("SEND_IMM", ["SEND_FIRST 100", "SEND_MIDDLE 101", "SEND_LAST_IMM 102!"]),
        ("SEND_INV", ["SEND_FIRST 100", "SEND_MIDDLE 101", "SEND_LAST_INV 102!"]),
        ("WRITE", ["WRITE_FIRST 100", "WRITE_MIDDLE 101", "WRITE_LAST 102!"]),
        ("WRITE_IMM", ["WRITE_FIRST 100", "WRITE_MIDDLE 101", "WRITE_LAST_IMM 102!"]),
        ("READ", ["READ_REQUEST 100!"]),
    ],
)
def test_iba_9_7_2_segmentation(new, operation, packets) -> None:
    s = new()
    s.post(operation, 700, imm=0x1234)
    sent = s.packets()
    assert [s.say(packet) for packet in sent] == packets
    if operation != "READ":
        assert b"".join(packet.payload for packet in sent) == s.data[:700]
        assert (sent[-1].imm or getattr(sent[-1], "inv_rkey", 0)) == (0x1234 if "_" in operation else 0)
    if sent[0].row.reth:
        assert (sent[0].va, sent[0].rkey, sent[0].dma_length) == (0x5000, 0xABC01, 700)


@pytest.mark.parametrize(
    ("operation", "packet"),
    [
        ("SEND", "SEND_ONLY"),
        ("SEND_IMM", "SEND_ONLY_IMM"),
        ("SEND_INV", "SEND_ONLY_INV"),
        ("WRITE", "WRITE_ONLY"),
        ("WRITE_IMM", "WRITE_ONLY_IMM"),
        ("READ", "READ_REQUEST"),
    ],
)
def test_iba_9_7_2_zero_length_takes_one_psn(new, operation, packet) -> None:
    s = new()
    s.post(operation, 0)
    s.post("SEND", 0)
    assert s.out() == [f"{packet} 100!", "SEND_ONLY 101!"]


def test_iba_9_7_2_psn_wraps(new) -> None:
    s = new(next_send_psn=0xFFFFFF)
    s.post("WRITE", 700)
    assert [p.psn for p in s.packets()] == [0xFFFFFF, 0, 1]
    s.ack(0xFFFFFF)
    s.ack(1)
    assert s.send_cq.take() == ["SUCCESS"]


def test_window_bounds_what_is_outstanding(new) -> None:
    s = new(window_packets=8)
    s.post("WRITE", 20 * 256)
    assert len(s.packets()) == 8
    assert s.packets() == []
    s.ack(103)
    assert len(s.packets()) == 4


def test_design_a_loss_halves_what_is_in_flight(new) -> None:
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


def test_design_the_window_opens_as_far_as_it_was_and_no_further(new) -> None:
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


def test_design_a_narrow_window_asks_for_acks_more_often(new) -> None:
    """Whatever the window, four packets of it ask for an ACK, so that it moves on before it is used up."""
    for segments in (1, 15):
        s = new(segments=segments, window_packets=128, ack_every=64)
        s.post("WRITE", 250 * 256)
        assert [p.psn for p in s.packets() if p.ackreq] == [128, 160, 192, 224]
        s.ack(100, syndrome=0x60)
        s.out()
        s.ack(101, syndrome=0x60)
        assert [p.psn for p in s.packets() if p.ackreq] == [104, 112, 120, 128]


def test_design_an_rnr_nak_is_no_loss(new) -> None:
    s = new(window_packets=128)
    s.post("SEND", 250 * 256)
    s.out()
    s.ack(100, syndrome=0x21)
    s.wait(10_000)
    assert len(s.packets()) == 128


def test_window_bounds_bytes_as_well(new) -> None:
    s = new(window_bytes=4 * (256 + 64) + 1)
    s.post("WRITE", 20 * 256)
    assert len(s.packets()) == 4


def test_iba_9_7_5_1_1_ack_is_asked_for_regularly(new) -> None:
    for segments in (1, 15):
        s = new(segments=segments, ack_every=4)
        s.post("WRITE", 20 * 256)
        asked = [p.psn for p in s.packets() if p.ackreq]
        assert asked == [100, 104, 108, 112, 116, 119]


def test_uc_never_asks_for_an_ack(new) -> None:
    s = new(ST_UC, segments=15, ack_every=4)
    s.post("WRITE", 20 * 256)
    packets = s.packets()
    assert len(packets) == 20
    assert not any(p.ackreq for p in packets)
    assert s.send_cq.take() == ["SUCCESS"]


def test_iba_9_7_5_1_2_ack_is_cumulative(new) -> None:
    s = new()
    for _ in range(3):
        s.post("WRITE", 256)
    s.packets()
    s.ack(101)
    assert s.send_cq.take() == ["SUCCESS"] * 2
    s.ack(100)
    assert s.counters["drop_stale_response"] == 1
    s.ack(103)
    assert s.counters["drop_ghost_response"] == 1
    assert s.send_cq.take() == []
    s.ack(102)
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.deadline is None


def test_iba_10_7_3_1_unsignaled(new) -> None:
    s = new()
    s.post("WRITE", 10, flags=0)
    s.post("WRITE", 10)
    s.packets()
    s.ack(101)
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.qp.sq_head == 2
    s = new(options=OPT_SQ_SIG_ALL)
    s.post("WRITE", 10, flags=0)
    s.packets()
    s.ack(100)
    assert s.send_cq.take() == ["SUCCESS"]


def test_solicited_goes_on_the_last_packet(new) -> None:
    s = new()
    s.post("SEND", 700, flags=ALL | FLAG_SOLICITED)
    assert [p.solicited for p in s.packets()] == [False, False, True]


def test_inline_and_scatter_lists(new) -> None:
    s = new()
    s.post("SEND", 40, flags=ALL | FLAG_INLINE, inline=bytes(range(40)))
    s.sq[64 * 64 : 64 * 64 + 40] = bytes(40)
    sges = [(i * 100, 13) for i in range(32)]
    s.post("SEND", 32 * 13, sges=sges)
    first, *rest = s.packets()
    # the data is taken when the descriptor is fetched
    assert first.payload == bytes(40)
    assert b"".join(p.payload for p in rest) == b"".join(s.data[at : at + n] for at, n in sges)


# --------------------------------------------------------------------------------------- retries


def test_iba_9_7_5_2_sequence_nak_goes_back_into_the_message(new) -> None:
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


def test_iba_9_7_6_1_3_local_ack_timeout(new) -> None:
    s = new(probe=False, ackto=10)
    s.post("WRITE", 10)
    s.out()
    assert s.deadline == 4096 << 10
    s.wait((4096 << 10) - 1)
    assert s.out() == []
    s.wait(1)
    assert s.out() == ["WRITE_ONLY 100!"]


def test_iba_9_9_2_1_1_retry_count(new) -> None:
    s = new(probe=False, ackto=1, retry_cnt=2)
    s.post("WRITE", 10)
    s.post("SEND", 10)
    for _ in range(3):
        assert s.out() == ["WRITE_ONLY 100!", "SEND_ONLY 101!"]
        s.wait(4096 << 1)
    assert s.send_cq.take() == ["RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    assert s.ctx.state == ERR
    assert s.events == []  # the completion tells it
    assert s.out() == []


def test_an_ack_starts_the_timer_anew(new) -> None:
    s = new(probe=False, ackto=10)
    s.post("WRITE", 10)
    s.post("WRITE", 10)
    s.out()
    s.wait(1_000_000)
    s.ack(100)
    assert s.deadline == 4096 << 10
    s.ack(101)
    assert s.deadline is None


def test_design_the_probe_waits_two_round_trips(new) -> None:
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
    assert s.deadline == 2 * (2_000_000 * 7 + 10_000_000) // 8


def test_design_a_repeated_packet_measures_no_round_trip(new) -> None:
    s = new(ackto=0)
    s.post("WRITE", 10)
    s.out()
    s.wait(900_000)
    s.ack(100, syndrome=0x60)
    s.out()
    s.wait(900_000)
    s.ack(100)
    assert s.qp.requester.srtt == 0


def test_timeout_zero_is_never(new) -> None:
    s = new(probe=False, ackto=0)
    s.post("WRITE", 10)
    s.out()
    assert s.deadline is None


def test_progress_restores_the_retry_count(new) -> None:
    s = new(probe=False, ackto=1, retry_cnt=1)
    s.post("WRITE", 512)
    for psn in (100, 101):
        s.out()
        s.wait(4096 << 1)
        s.out()
        s.ack(psn)
    assert s.send_cq.take() == ["SUCCESS"]


@pytest.mark.parametrize("limit", range(7))
def test_iba_9_7_5_2_8_rnr_limit(new, limit) -> None:
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
def test_rnr_timer_and_forever(new, code) -> None:
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


def test_rnr_inside_a_sequence_retry(new) -> None:
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
def test_iba_9_7_5_2_fatal_naks(new, syndrome, status) -> None:
    s = new()
    for _ in range(3):
        s.post("WRITE", 10)
    s.out()
    s.ack(101, syndrome=syndrome)
    assert s.send_cq.entries[1].vendor == syndrome
    assert s.send_cq.take() == ["SUCCESS", status, "WR_FLUSH_ERR"]
    assert s.events == []


def test_reserved_syndromes_are_dropped(new) -> None:
    s = new()
    s.post("WRITE", 10)
    s.out()
    s.ack(100, syndrome=0x40)
    s.ack(100, syndrome=0x65)
    assert s.counters["drop_bad_opcode"] == 2
    assert s.ctx.state == RTS


# -------------------------------------------------------------------------------- READ and atomics


def read_response(s, psn, packets, at=0, total=None, first=100) -> None:
    total = packets * 256 if total is None else total
    names = (
        ["READ_RESPONSE_ONLY"]
        if packets == 1
        else ["READ_RESPONSE_FIRST", *["READ_RESPONSE_MIDDLE"] * (packets - 2), "READ_RESPONSE_LAST"]
    )
    for index, name in enumerate(names):
        size = min(256, total - index * 256)
        s.inject(name, psn + index, payload=bytes([psn + index & 0xFF]) * size)


def test_iba_9_7_5_1_9_read_places_responses(new) -> None:
    s = new()
    s.post("READ", 700, at=1000)
    s.out()
    read_response(s, 100, 3, total=700)
    assert s.data[1000:1700] == bytes([100]) * 256 + bytes([101]) * 256 + bytes([102]) * 188
    assert s.send_cq.take() == ["SUCCESS"]


def test_long_read_goes_in_pieces_and_is_repeated_from_the_middle(new) -> None:
    s = new(window_packets=8, probe=False, ackto=1)
    s.post("READ", 10 * 256)
    requests = s.packets()
    assert [(p.psn, p.va, p.dma_length) for p in requests] == [(100, 0x5000, 1024), (104, 0x5400, 1024)]
    s.inject("READ_RESPONSE_FIRST", 100, payload=bytes(256))
    s.inject("READ_RESPONSE_MIDDLE", 101, payload=bytes(256))
    s.packets()
    s.wait(4096 << 1)
    again = s.packets()
    assert [(p.psn, p.va, p.dma_length) for p in again] == [
        (102, 0x5200, 512),
        (104, 0x5400, 1024),
        (108, 0x5800, 512),
    ]
    read_response(s, 102, 2)
    read_response(s, 104, 4)
    read_response(s, 108, 2)
    assert s.send_cq.take() == ["SUCCESS"]


def test_iba_9_7_5_1_3_implied_nak_of_a_lost_response(new) -> None:
    s = new()
    s.post("READ", 512)
    s.post("WRITE", 10)
    s.out()
    s.ack(102)
    assert s.send_cq.take() == []
    assert s.counters["implied_naks"] == 1
    assert s.out() == ["READ_REQUEST 100!", "WRITE_ONLY 102!"]
    s.inject("READ_RESPONSE_LAST", 101, payload=bytes(256))
    assert s.counters["implied_naks"] == 1  # says the same again, so soon
    read_response(s, 100, 2)
    s.ack(102)
    assert s.send_cq.take() == ["SUCCESS"] * 2


def test_design_a_response_lost_twice_is_asked_for_again(new) -> None:
    """The second loss looks like an answer to the first request: after a while without the response it counts."""
    s = new(ackto=0)
    s.post("READ", 768)
    s.out()
    s.inject("READ_RESPONSE_MIDDLE", 101, payload=bytes(256))
    assert s.out() == ["READ_REQUEST 100!"]
    assert s.deadline is None
    s.wait(400_000)
    s.inject("READ_RESPONSE_LAST", 102, payload=bytes(256))
    assert s.out() == []
    assert s.deadline == 600_000
    s.wait(600_000)
    assert s.out() == ["READ_REQUEST 100!"]
    assert s.counters["implied_naks"] == 2
    assert s.deadline is None
    s.inject("READ_RESPONSE_MIDDLE", 101, payload=bytes(256))
    read_response(s, 100, 3)
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.deadline is None


def test_design_the_wait_for_a_lost_response_ends_with_any_progress(new) -> None:
    s = new(ackto=0)
    s.post("READ", 768)
    s.out()
    for _ in range(2):
        s.inject("READ_RESPONSE_LAST", 102, payload=bytes(256))
        s.out()
    assert s.deadline == 1_000_000
    s.inject("READ_RESPONSE_FIRST", 100, payload=bytes(256))
    assert s.deadline is None


def test_design_a_response_lost_for_ever_uses_up_the_retries(new) -> None:
    s = new(ackto=0, retry_cnt=2)
    s.post("READ", 768)
    for _ in range(3):
        assert s.out() == ["READ_REQUEST 100!"]
        s.inject("READ_RESPONSE_LAST", 102, payload=bytes(256))
        s.wait(1_000_000)
    assert s.send_cq.take() == ["RETRY_EXC_ERR"]


def test_acks_behind_a_rewound_read_do_not_complete_it(new) -> None:
    """Between the rewind and the repeated request, an ACK must not stand in for the responses."""
    s = new()
    s.post("READ", 10)
    s.post("WRITE", 10)
    s.post("WRITE", 10)
    s.out()
    s.ack(101)
    s.ack(102)
    assert s.send_cq.take() == []
    assert s.out() == ["READ_REQUEST 100!", "WRITE_ONLY 101!", "WRITE_ONLY 102!"]
    s.inject("READ_RESPONSE_ONLY", 100, payload=b"x" * 10)
    s.ack(102)
    assert s.send_cq.take() == ["SUCCESS"] * 3
    assert s.data[:10] == b"x" * 10


def test_a_response_to_what_asks_for_none_is_stale(new) -> None:
    s = new()
    s.post("WRITE", 10)
    s.post("READ", 10)
    s.out()
    s.inject("READ_RESPONSE_ONLY", 100, payload=b"x" * 10)
    assert s.counters["drop_stale_response"] == 1
    assert s.send_cq.take() == []
    s.inject("READ_RESPONSE_ONLY", 101, payload=b"x" * 10)
    assert s.send_cq.take() == ["SUCCESS", "SUCCESS"]


def test_a_response_acknowledges_what_was_before_it(new) -> None:
    """And so a bad one fails the READ, not the WRITE in front of it."""
    s = new()
    s.post("WRITE", 10)
    s.post("READ", 10)
    s.out()
    s.inject("READ_RESPONSE_ONLY", 101, payload=b"x" * 11)
    assert s.send_cq.take() == ["SUCCESS", "BAD_RESP_ERR"]


def test_late_answers_to_the_first_request_serve_after_a_retry(new) -> None:
    s = new(probe=False, ackto=1)
    s.post("READ", 4 * 256)
    s.out()
    s.inject("READ_RESPONSE_FIRST", 100, payload=bytes(256))
    s.wait(4096 << 1)
    assert s.out() == ["READ_REQUEST 101!"]
    s.inject("READ_RESPONSE_MIDDLE", 101, payload=bytes(256))
    s.inject("READ_RESPONSE_FIRST", 101, payload=bytes(256))
    s.inject("READ_RESPONSE_MIDDLE", 102, payload=bytes(256))
    s.inject("READ_RESPONSE_LAST", 103, payload=bytes(256))
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.counters["drop_stale_response"] == 1


@pytest.mark.parametrize("name", ["READ_RESPONSE_LAST", "READ_RESPONSE_FIRST", "READ_RESPONSE_MIDDLE"])
def test_iba_9_7_5_1_9_wrong_response_opcode(new, name) -> None:
    s = new()
    s.post("READ", 256)
    s.out()
    s.inject(name, 100, payload=bytes(256))
    assert s.send_cq.take() == ["BAD_RESP_ERR"]


@pytest.mark.parametrize("operation", ["CMP_SWAP", "FETCH_ADD"])
def test_atomic(new, operation) -> None:
    s = new()
    s.post(operation, 8, swap_add=5, compare=9)
    (packet,) = s.packets()
    assert (packet.swap_add, packet.compare) == (5, 9 if operation == "CMP_SWAP" else 0)
    s.inject("ATOMIC_ACKNOWLEDGE", 100, orig=0x1122334455667788)
    assert int.from_bytes(s.data[:8], "little") == 0x1122334455667788
    assert s.send_cq.take() == ["SUCCESS"]
    s.inject("ATOMIC_ACKNOWLEDGE", 100, orig=0)
    assert s.counters["drop_stale_response"] == 1


def test_an_atomic_answer_to_a_read_is_bad(new) -> None:
    s = new()
    s.post("READ", 8)
    s.out()
    s.inject("ATOMIC_ACKNOWLEDGE", 100, orig=0)
    assert s.send_cq.take() == ["BAD_RESP_ERR"]


def test_iba_10_8_3_3_fence(new) -> None:
    s = new()
    s.post("READ", 8)
    s.post("WRITE", 8, flags=ALL | FLAG_FENCE)
    assert s.out() == ["READ_REQUEST 100!"]
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes(8))
    assert s.out() == ["WRITE_ONLY 101!"]


def test_fenced_local_request_waits_and_completes(new) -> None:
    s = new()
    s.post("READ", 8)
    s.post("NOP", 0, flags=ALL | FLAG_FENCE)
    s.post("WRITE", 8)
    assert s.out() == ["READ_REQUEST 100!"]
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes(8))
    assert s.out() == ["WRITE_ONLY 101!"]
    s.ack(101)
    assert s.send_cq.take() == ["SUCCESS"] * 3


def test_max_rd_atomic(new) -> None:
    s = new(max_rd_atomic=2)
    for _ in range(3):
        s.post("FETCH_ADD", 8)
    assert len(s.out()) == 2
    s.inject("ATOMIC_ACKNOWLEDGE", 100, orig=0)
    assert s.out() == ["FETCH_ADD 102!"]


# --------------------------------------------------------------------------------- credits, probe


def test_iba_9_7_7_2_credits(new) -> None:
    s = new()
    s.post("SEND", 10)
    s.out()
    s.ack(100, msn=1, syndrome=0)  # no receive entry left
    s.post("SEND", 700)
    s.post("SEND", 10)
    assert s.out() == ["SEND_FIRST 101!"]  # one packet, which asks
    assert s.out() == []
    s.ack(101, msn=1, syndrome=0)  # taken: it has its entry
    assert s.out() == ["SEND_MIDDLE 102", "SEND_LAST 103!", "SEND_ONLY 104!"]
    s.ack(103, msn=2, syndrome=0x1F)
    s.post("SEND", 700)
    assert len(s.out()) == 3


def test_one_credit_is_good_for_one_message(new) -> None:
    s = new()
    s.post("SEND", 10)
    s.out()
    s.ack(100, msn=1, syndrome=1)
    s.post("SEND", 700)
    s.post("SEND", 700)
    # the second goes without credit: its first packet asks for it
    assert s.out() == ["SEND_FIRST 101", "SEND_MIDDLE 102", "SEND_LAST 103!", "SEND_FIRST 104!"]


def test_an_unsolicited_ack_grants_credits(new) -> None:
    s = new()
    s.post("SEND", 10)
    s.out()
    s.ack(100, msn=1, syndrome=0)
    s.ack(100, msn=1, syndrome=2)
    s.post("SEND", 700)
    assert len(s.out()) == 3


def test_read_responses_carry_no_credits(new) -> None:
    """software.md section 4: common NICs put syndrome 0 there, which would stop every SEND."""
    s = new()
    s.post("READ", 8)
    s.out()
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes(8), syndrome=0)
    s.post("SEND", 700)
    assert len(s.out()) == 3


def test_design_probe_repeats_both_ends_and_backs_off(new) -> None:
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


def test_design_an_answered_probe_is_followed_by_another_at_once(new) -> None:
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


def test_design_a_lost_nak_costs_one_probe(new) -> None:
    s = new()
    s.post("WRITE", 1024)
    s.out()
    s.wait(1_000_000)
    assert s.out() == ["WRITE_FIRST 100!", "WRITE_LAST 103!"]
    s.ack(100)  # the probe made the responder wait for 101 again, and say so
    s.ack(101, syndrome=0x60)
    assert s.out() == ["WRITE_MIDDLE 101", "WRITE_MIDDLE 102", "WRITE_LAST 103!"]


@pytest.mark.parametrize("how", [{"probe": False}, {"options": OPT_NO_PROBE}])
def test_probe_off(new, how) -> None:
    s = new(ackto=0, **how)
    s.post("SEND", 10)
    s.out()
    assert s.deadline is None


def test_no_probe_while_a_read_is_outstanding(new) -> None:
    s = new(ackto=0)
    s.post("WRITE", 10)
    s.post("READ", 10)
    s.out()
    assert s.deadline is None


# ------------------------------------------------------------------------------------- local errors


@pytest.mark.parametrize(
    ("operation", "length", "over", "status"),
    [
        ("SEND", 10, {"lkey": 1}, "LOC_PROT_ERR"),
        ("SEND", 70_000, {}, "LOC_PROT_ERR"),
        ("BOGUS", 10, {}, "LOC_QP_OP_ERR"),
        ("SEND", (1 << 31) + 1, {}, "LOC_LEN_ERR"),
        ("SEND", 1 << 31, {"lkey": 1}, "LOC_LEN_ERR"),
        ("CMP_SWAP", 16, {}, "LOC_LEN_ERR"),
        ("SEND", 600, {"flags": ALL | FLAG_INLINE, "inline": b""}, "LOC_QP_OP_ERR"),
        ("READ", 8, {"flags": ALL | FLAG_INLINE, "inline": bytes(8)}, "LOC_QP_OP_ERR"),
        ("LOCAL_INV", 0, {"imm": 0x1234}, "LOC_PROT_ERR"),
    ],
)
def test_iba_10_10_2_local_errors_come_in_order(new, operation, length, over, status) -> None:
    s = new()
    s.post("WRITE", 10)
    s.post(operation, length, **over)
    s.post("WRITE", 10)
    if status == "LOC_LEN_ERR" and length == 1 << 31:
        assert s.ctx.mtu_bytes == 256  # 2^23 packets: one more than may be outstanding
    # what follows the failed request is never sent
    assert s.out() == ["WRITE_ONLY 100!"]
    assert s.send_cq.take() == []
    s.ack(100)
    assert s.send_cq.take() == ["SUCCESS", status, "WR_FLUSH_ERR"]
    assert s.ctx.state == ERR


def test_read_without_max_rd_atomic(new) -> None:
    s = new(max_rd_atomic=0)
    s.post("READ", 8)
    s.out()
    assert s.send_cq.take() == ["LOC_QP_OP_ERR"]


def test_bind_refused(new) -> None:
    s = new()
    s.post("BIND_MW", raw=SQE_ENTRY_BIND_STRUCT.pack(0, WR_BIND_MW, ALL, 2, s.va, s.key, 0x201, 0x200, 8))
    s.out()
    assert s.send_cq.take() == ["MW_BIND_ERR"]


def test_iba_10_6_5_region_vanishes_under_a_message(new) -> None:
    s = new(window_packets=2)
    s.post("WRITE", 1024)
    s.out()
    s.host.memory.disable(s.key)
    s.wait(1_000_000)
    assert s.out() == []  # not even the probe reads it
    s.ack(101)
    s.out()
    assert s.send_cq.take() == ["LOC_PROT_ERR"]


def test_region_vanishes_under_a_read(new) -> None:
    s = new()
    s.post("WRITE", 10)
    s.post("READ", 10)
    s.out()
    s.host.memory.disable(s.key)
    s.inject("READ_RESPONSE_ONLY", 101, payload=b"x" * 10)
    assert s.send_cq.take() == ["SUCCESS", "LOC_PROT_ERR"]
    assert s.data[:10] != b"x" * 10


# --------------------------------------------------------------------------------------------- states


def test_iba_10_3_1_6_sqd_drains_once(new) -> None:
    s = new()
    s.post("WRITE", 10)
    s.out()
    s.to(SQD)
    s.post("WRITE", 10)
    assert s.out() == []
    assert s.events == []
    s.ack(100)
    assert s.event_types() == [SQ_DRAINED]
    s.to(RTS)
    assert s.out() == ["WRITE_ONLY 101!"]
    s.ack(101)
    assert s.event_types() == [SQ_DRAINED]


def test_sqd_of_an_idle_queue_drains_at_once(new) -> None:
    s = new()
    s.to(SQD)
    assert s.event_types() == [SQ_DRAINED]


def test_iba_10_3_1_7_err_flushes_in_order(new) -> None:
    s = new(window_packets=1)
    for _ in range(4):
        s.post("WRITE", 300)
    s.recv(10)
    s.out()
    s.to(ERR)
    assert [entry.index for entry in s.send_cq.entries] == [0, 1, 2, 3]
    assert s.send_cq.take() == ["WR_FLUSH_ERR"] * 4
    assert s.recv_cq.take() == ["WR_FLUSH_ERR"]
    s.post("WRITE", 10)
    s.recv(10)
    s.qp.doorbell(s.sq_tail)
    assert s.send_cq.take() == ["WR_FLUSH_ERR"]
    assert s.recv_cq.take() == ["WR_FLUSH_ERR"]
    assert s.deadline is None


@pytest.mark.parametrize("service", [ST_UC, ST_UD])
def test_iba_10_3_1_5_sqe_of_unreliable_services(new, service) -> None:
    s = new(service)
    s.post("SEND", 10, lkey=1)
    s.post("SEND", 10)
    assert s.out() == []
    assert s.send_cq.take() == ["LOC_PROT_ERR", "WR_FLUSH_ERR"]
    assert s.ctx.state == SQE
    s.post("SEND", 10)
    assert s.send_cq.take() == ["WR_FLUSH_ERR"]
    s.to(RTS)
    s.post("SEND", 10)
    assert s.out() == ["SEND_ONLY 100"]
    assert s.send_cq.take() == ["SUCCESS"]


def test_ud_sends_one_packet(new) -> None:
    s = new(ST_UD)
    s.post("SEND", 200, qkey=1 << 31)
    s.post("SEND_IMM", 200, imm=9, flags=ALL | FLAG_SOLICITED, qkey=5)
    s.post("SEND", 257)
    first, second = s.packets()
    assert (first.qkey, first.sqpn, first.dqpn, second.qkey, second.imm, second.solicited) == (
        0x1111,
        16,
        77,
        5,
        9,
        True,
    )
    assert s.send_cq.take() == ["SUCCESS", "SUCCESS", "LOC_LEN_ERR"]


def test_reset_forgets(new) -> None:
    s = new()
    s.post("READ", 10)
    s.out()
    s.to(0)
    assert s.out() == []
    assert s.deadline is None
    assert s.send_cq.take() == []
