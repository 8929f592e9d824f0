"""The requester: packets, window, acknowledgements, credits, local errors, states (IBA vol. 1, 9.7)."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.context.qpc import OPT_GSO, OPT_NO_PROBE, OPT_SQ_SIG_ALL
from rnic.rings.sqe import FLAG_INLINE, FLAG_SIGNALED, FLAG_SOLICITED, SQE_ENTRY_BIND_STRUCT
from rnic.spec.access import REMOTE_READ
from rnic.spec.events import SQ_DRAINED
from rnic.spec.opcodes import WR_BIND_MW
from rnic.spec.states import ERR, RTS, SQD, SQE, ST_UC, ST_UD
from rnic.transport.send_queue import ACK_EACH_AFTER_PROBE
from rnic.wire.flow import Flow
from tests.scripts.conftest import NewScript

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
def test_segmentation(new: NewScript, operation: str, packets: list[str]) -> None:
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
def test_zero_length_takes_one_psn(new: NewScript, operation: str, packet: str) -> None:
    s = new()
    s.post(operation, 0)
    s.post("SEND", 0)
    assert s.out() == [f"{packet} 100!", "SEND_ONLY 101!"]


def test_psn_wraps(new: NewScript) -> None:
    s = new(next_send_psn=0xFFFFFF)
    s.post("WRITE", 700)
    assert [p.psn for p in s.packets()] == [0xFFFFFF, 0, 1]
    s.ack(0xFFFFFF)
    s.ack(1)
    assert s.send_cq.take() == ["SUCCESS"]


def test_window_bounds_what_is_outstanding(new: NewScript) -> None:
    s = new(window_packets=8)
    s.post("WRITE", 20 * 256)
    assert len(s.packets()) == 8
    assert s.packets() == []
    s.ack(103)
    assert len(s.packets()) == 4


def test_bursts_are_long_only_where_the_peer_agreed(new: NewScript) -> None:
    for options, agreed in ((0, False), (OPT_GSO, True), (OPT_SQ_SIG_ALL, False)):
        assert new(options=options).host.gso_agreed == agreed


@pytest.mark.parametrize(("name", "counts"), [("WRITE", [2, 1]), ("SEND", [3]), ("SEND_IMM", [2, 1])])
def test_a_shorter_packet_ends_its_burst(new: NewScript, name: str, counts: list[int]) -> None:
    """What divides a burst divides it into equal packets but for the last (UDP_SEGMENT). A WRITE's first has a RETH."""
    s = new(segments=15)
    s.post(name, 768)
    bursts = s.bursts()
    assert [burst.count for burst in bursts] == counts
    assert [packet.psn for packet in s.parse(bursts)] == [100, 101, 102]


def test_window_bounds_bytes_as_well(new: NewScript) -> None:
    s = new(window_bytes=4 * (256 + 64) + 1)
    s.post("WRITE", 20 * 256)
    assert len(s.packets()) == 4


def test_ack_is_asked_for_regularly(new: NewScript) -> None:
    for segments in (1, 15):
        s = new(segments=segments, ack_every=4)
        s.post("WRITE", 20 * 256)
        asked = [p.psn for p in s.packets() if p.ackreq]
        assert asked == [100, 104, 108, 112, 116, 119]


def test_an_ack_is_asked_for_where_others_may_take_the_room(new: NewScript) -> None:
    """Who shares the way with others has a turn at a time: the ACK of one gives him the next."""
    for others in (0, 5):
        s = new()
        inflight = s.host.inflight
        inflight.took(inflight.peer(Flow(b"1234", b"5678", 50_000)), others, 0)
        s.post("WRITE", 20 * 256)
        assert [p.psn for p in s.packets(10) if p.ackreq] == ([109] if others else [])
        assert [p.psn for p in s.packets(10) if p.ackreq] == [119]


@pytest.mark.parametrize(
    ("name", "length", "over", "quiet"),
    [
        ("WRITE", 10, {"flags": 0}, True),
        ("WRITE", 0, {"flags": 0}, True),
        ("WRITE", 10, {}, False),
        ("WRITE", 300, {"flags": 0}, False),
        ("WRITE_IMM", 10, {"flags": 0}, False),
        ("SEND", 10, {"flags": 0}, False),
        ("READ", 10, {"flags": 0}, False),
    ],
)
def test_a_short_write_that_nobody_waits_for_asks_for_no_ack(
    new: NewScript, name: str, length: int, over: dict[str, Any], quiet: bool
) -> None:
    s = new()
    s.post(name, length, **over)
    assert s.packets()[-1].ackreq is not quiet
    s.post("WRITE", 10)
    assert s.packets()[-1].ackreq
    s.inject("ACKNOWLEDGE", s.qp.requester.sent_psn - 1, syndrome=0x1F)
    if name != "READ":
        assert s.send_cq.take() == ["SUCCESS"] * (1 + (over == {}))


@pytest.mark.parametrize(
    ("why", "asked"),
    [
        ("nothing", []),
        ("all signaled", list(range(12))),
        ("no probe", list(range(12))),
        ("no probe of this one", list(range(12))),
        ("others in flight", list(range(12))),
        ("the window is used up", [0, 2, 4, 6, 7]),
        ("there is no room in flight", [3]),
        ("its PSN", [2, 6, 10]),
        ("half of the send queue waits", [30, *range(32, 50)]),
    ],
)
def test_who_runs_short_or_is_waited_for_asks_for_an_ack(new: NewScript, why: str, asked: list[int]) -> None:
    config: dict[str, dict[str, Any]] = {
        "all signaled": {"options": OPT_SQ_SIG_ALL},
        "no probe": {"probe": False},
        "no probe of this one": {"options": OPT_NO_PROBE},
        "the window is used up": {"window_packets": 8},
        "its PSN": {"ack_every": 4},
    }
    s = new(**config.get(why, {}), next_send_psn=98)
    inflight, peer = s.host.inflight, s.qp.requester.peer
    if why == "others in flight":
        inflight.took(inflight.peer(Flow(b"1234", b"5678", 50_000)), 5, 0)
    if why == "there is no room in flight":
        peer.limit_16 = 4 << 16
    found = []
    for _ in range(50 if "half" in why else 12):
        s.post("WRITE", 10, flags=0)
        found += [packet.psn - 98 for packet in s.packets() if packet.ackreq]
    assert found == asked


def test_of_several_in_a_row_only_the_last_asks_for_no_ack(new: NewScript) -> None:
    s = new()
    for _ in range(3):
        s.post("WRITE", 10, flags=0)
    assert s.out() == ["WRITE_ONLY 100!", "WRITE_ONLY 101!", "WRITE_ONLY 102"]


def test_what_is_sent_again_asks_for_an_ack(new: NewScript) -> None:
    s = new()
    for psn in (100, 101, 102):
        s.post("WRITE", 10, flags=0)
        assert s.out() == [f"WRITE_ONLY {psn}"]
    s.ack(101, syndrome=0x60)
    assert s.out() == ["WRITE_ONLY 101!", "WRITE_ONLY 102!"]
    s.ack(102)
    s.post("WRITE", 10, flags=0)
    assert s.out() == ["WRITE_ONLY 103"]


def test_what_asks_for_no_ack_measures_no_round_trip(new: NewScript) -> None:
    s = new(ackto=0)
    s.post("WRITE", 10, flags=0)
    s.out()
    s.wait(100_000)
    s.post("WRITE", 10)
    s.out()
    s.wait(50_000)
    s.ack(101)
    assert s.qp.requester.srtt == 50_000


def test_a_peer_that_waits_to_be_asked_is_asked_for_a_while(new: NewScript) -> None:
    """One that acknowledges nothing else costs a repeated packet each time that a sender pauses, and no more."""
    s = new(ackto=0)
    s.post("WRITE", 10, flags=0)
    assert s.out() == ["WRITE_ONLY 100"]
    s.wait(1_000_000)
    assert s.out() == ["WRITE_ONLY 100!"]
    s.ack(100)
    s.out()
    for number in range(ACK_EACH_AFTER_PROBE):
        s.post("WRITE", 10, flags=0)
        assert s.out() == [f"WRITE_ONLY {101 + number}!"]
        s.ack(101 + number)
    s.post("WRITE", 10, flags=0)
    assert s.out() == [f"WRITE_ONLY {101 + ACK_EACH_AFTER_PROBE}"]


def test_uc_never_asks_for_an_ack(new: NewScript) -> None:
    s = new(ST_UC, segments=15, ack_every=4)
    s.post("WRITE", 20 * 256)
    packets = s.packets()
    assert len(packets) == 20
    assert not any(p.ackreq for p in packets)
    assert s.send_cq.take() == ["SUCCESS"]


def test_ack_is_cumulative(new: NewScript) -> None:
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


def test_unsignaled(new: NewScript) -> None:
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


def test_solicited_goes_on_the_last_packet(new: NewScript) -> None:
    s = new()
    s.post("SEND", 700, flags=ALL | FLAG_SOLICITED)
    assert [p.solicited for p in s.packets()] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "solicited"),
    [("SEND", True), ("SEND_IMM", True), ("SEND_INV", True), ("WRITE", False), ("WRITE_IMM", True), ("READ", False)],
)
@pytest.mark.parametrize("length", [10, 600])
def test_solicited_only_where_a_completion_follows(new: NewScript, name: str, solicited: bool, length: int) -> None:
    """IBA ch. 9: the bit is defined for what takes a receive entry; in anything else it is 0."""
    s = new()
    s.post(name, length, flags=ALL | FLAG_SOLICITED)
    *before, last = s.packets()
    assert not any(packet.solicited for packet in before)
    assert last.solicited == solicited


def test_inline_and_scatter_lists(new: NewScript) -> None:
    s = new()
    s.post("SEND", 40, flags=ALL | FLAG_INLINE, inline=bytes(range(40)))
    s.sq[64 * 64 : 64 * 64 + 40] = bytes(40)
    sges = [(i * 100, 13) for i in range(32)]
    s.post("SEND", 32 * 13, sges=sges)
    first, *rest = s.packets()
    # the data is taken when the descriptor is fetched
    assert first.payload == bytes(40)
    assert b"".join(p.payload for p in rest) == b"".join(s.data[at : at + n] for at, n in sges)


# ---------------------------------------------------------------------------------------- credits


def test_credits(new: NewScript) -> None:
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


def test_one_credit_is_good_for_one_message(new: NewScript) -> None:
    s = new()
    s.post("SEND", 10)
    s.out()
    s.ack(100, msn=1, syndrome=1)
    s.post("SEND", 700)
    s.post("SEND", 700)
    # the second goes without credit: its first packet asks for it
    assert s.out() == ["SEND_FIRST 101", "SEND_MIDDLE 102", "SEND_LAST 103!", "SEND_FIRST 104!"]


def test_one_packet_asks_for_credit_however_many_messages_wait(new: NewScript) -> None:
    s = new()
    s.post("SEND", 10)
    s.out()
    s.ack(100, msn=1, syndrome=0)
    s.post("SEND", 10)
    s.post("WRITE", 10)
    s.post("SEND", 700)
    assert s.out() == ["SEND_ONLY 101!", "WRITE_ONLY 102!"]
    assert s.out() == []
    s.ack(101, msn=2, syndrome=0)
    assert s.out() == ["SEND_FIRST 103!"]
    s.ack(103, msn=3, syndrome=0)
    assert s.out() == ["SEND_MIDDLE 104", "SEND_LAST 105!"]


def test_an_unsolicited_ack_grants_credits(new: NewScript) -> None:
    s = new()
    s.post("SEND", 10)
    s.out()
    s.ack(100, msn=1, syndrome=0)
    s.ack(100, msn=1, syndrome=2)
    s.post("SEND", 700)
    assert len(s.out()) == 3


def test_an_ack_of_long_ago_grants_no_credits(new: NewScript) -> None:
    """Only what repeats the last PSN may be an unsolicited ACK; an older one was overtaken, and so were its credits."""
    s = new()
    s.post("SEND", 10)
    s.post("SEND", 10)
    s.out()
    s.ack(101, msn=2, syndrome=0)
    s.ack(100, msn=2, syndrome=10)
    s.post("SEND", 700)
    assert s.out() == ["SEND_FIRST 102!"]  # it has to ask all the same


def test_a_request_that_the_peer_counts_twice_gives_no_credit(new: NewScript) -> None:
    """A READ request is lost, and a probe asks for its first response alone: the peer has two requests of one."""
    s = new(ackto=0)
    s.post("READ", 768)
    s.out()
    s.wait(1_000_000)
    assert s.out() == ["READ_REQUEST 100!"]
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes(256), msn=1)
    assert s.out() == ["READ_REQUEST 101!"]
    s.inject("READ_RESPONSE_FIRST", 101, payload=bytes(256), msn=2)
    s.inject("READ_RESPONSE_LAST", 102, payload=bytes(256), msn=2)
    s.post("SEND", 10)
    s.out()
    s.ack(103, msn=3, syndrome=1)  # one more receive entry
    s.post("SEND", 700)
    s.post("SEND", 700)
    assert s.out() == ["SEND_FIRST 104", "SEND_MIDDLE 105", "SEND_LAST 106!", "SEND_FIRST 107!"]
    assert s.send_cq.take() == ["SUCCESS"] * 2


def test_credits_count_each_request_of_a_long_read(new: NewScript) -> None:
    """While the first request of three is answered, three requests more are not: the credits begin behind that one."""
    s = new(ackto=0)
    s.post("SEND", 10)
    s.post("READ", 130 * 256)
    s.post("SEND", 10)
    s.post("SEND", 700)
    s.out(2)
    s.ack(100, msn=1, syndrome=3)  # for requests two to four: the READ's
    assert s.out() == ["READ_REQUEST 165!", "READ_REQUEST 229!", "SEND_ONLY 231!"]
    assert s.out() == []
    s.inject("READ_RESPONSE_FIRST", 101, payload=bytes(256))
    for psn in range(102, 165):
        s.inject("READ_RESPONSE_LAST" if psn == 164 else "READ_RESPONSE_MIDDLE", psn, payload=bytes(256))
    s.ack(164, msn=2, syndrome=4)  # up to request six: both SENDs
    assert s.out() == ["SEND_FIRST 232", "SEND_MIDDLE 233", "SEND_LAST 234!"]


def test_read_responses_carry_no_credits(new: NewScript) -> None:
    """software.md section 4: common NICs put syndrome 0 there, which would stop every SEND."""
    s = new()
    s.post("READ", 8)
    s.out()
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes(8), syndrome=0)
    s.post("SEND", 700)
    assert len(s.out()) == 3


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
def test_local_errors_come_in_order(
    new: NewScript, operation: str, length: int, over: dict[str, Any], status: str
) -> None:
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


def test_read_without_max_rd_atomic(new: NewScript) -> None:
    s = new(max_rd_atomic=0)
    s.post("READ", 8)
    s.out()
    assert s.send_cq.take() == ["LOC_QP_OP_ERR"]


@pytest.mark.parametrize("name", ["READ", "FETCH_ADD"])
def test_what_brings_bytes_needs_the_right_to_write_them(new: NewScript, name: str) -> None:
    s = new()
    entry = s.register(bytearray(64), access=REMOTE_READ)
    s.post("SEND", 8, at=entry.start - s.va, lkey=entry.key)
    s.post(name, 8, at=entry.start - s.va, lkey=entry.key)
    assert s.out() == ["SEND_ONLY 100!"]
    s.ack(100)
    assert s.send_cq.take() == ["SUCCESS", "LOC_PROT_ERR"]


def test_bind_refused(new: NewScript) -> None:
    s = new()
    s.post("BIND_MW", raw=SQE_ENTRY_BIND_STRUCT.pack(0, WR_BIND_MW, ALL, 2, s.va, s.key, 0x201, 0x200, 8))
    s.out()
    assert s.send_cq.take() == ["MW_BIND_ERR"]


def test_region_vanishes_under_a_message(new: NewScript) -> None:
    s = new(window_packets=2)
    s.post("WRITE", 1024)
    s.out()
    s.host.memory.disable(s.key)
    s.wait(1_000_000)
    assert s.out() == []  # not even the probe reads it
    s.ack(101)
    s.out()
    assert s.send_cq.take() == ["LOC_PROT_ERR"]


def test_region_vanishes_under_a_read(new: NewScript) -> None:
    s = new()
    s.post("WRITE", 10)
    s.post("READ", 10)
    s.out()
    s.host.memory.disable(s.key)
    s.inject("READ_RESPONSE_ONLY", 101, payload=b"x" * 10)
    assert s.send_cq.take() == ["SUCCESS", "LOC_PROT_ERR"]
    assert s.data[:10] != b"x" * 10


# --------------------------------------------------------------------------------------------- states


def test_sqd_drains_once(new: NewScript) -> None:
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


def test_sqd_of_an_idle_queue_drains_at_once(new: NewScript) -> None:
    s = new()
    s.to(SQD)
    assert s.event_types() == [SQ_DRAINED]


def test_sqd_to_sqd_raises_no_second_event(new: NewScript) -> None:
    s = new()
    s.post("WRITE", 10)
    s.out()
    s.to(SQD)
    s.to(SQD)
    assert s.events == []
    assert s.ctx.sq_draining
    s.ack(100)
    assert s.event_types() == [SQ_DRAINED]
    s.to(SQD)
    assert s.event_types() == [SQ_DRAINED]
    assert not s.ctx.sq_draining


def test_err_flushes_in_order(new: NewScript) -> None:
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
def test_sqe_of_unreliable_services(new: NewScript, service: int) -> None:
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


def test_ud_sends_one_packet(new: NewScript) -> None:
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


def test_reset_forgets(new: NewScript) -> None:
    s = new()
    s.post("READ", 10)
    s.out()
    s.to(0)
    assert s.out() == []
    assert s.deadline is None
    assert s.send_cq.take() == []


def test_each_entry_that_completes_is_counted_in_the_context(new: NewScript) -> None:
    s = new(sq_wqe_counter=0xFFFE)
    for flags in (0, FLAG_SIGNALED, FLAG_SIGNALED):
        s.post("WRITE", 8, flags=flags)
    s.out()
    s.ack(101)
    assert s.ctx.sq_wqe_counter == 0
    s.ack(102)
    assert s.ctx.sq_wqe_counter == 1
