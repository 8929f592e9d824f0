"""A tap on a running device: what it shows, what it samples, that it is bounded and goes away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rnic.runtime.tap import EXPIRES_NS, MAX_ANSWER, MAX_EVENTS, MAX_QPS, MAX_SAMPLE, MAX_SESSIONS, Session, Tap
from rnic.spec.psn import PSN_MASK
from rnic.testing import QpPair
from rnic.verbs import enums as e


@pytest.fixture
def pair() -> Iterator[QpPair]:
    with QpPair("RC", size=1 << 16) as pair:
        yield pair


def taps(pair: QpPair) -> tuple[Tap, Tap]:
    first, second = (side.node.ctx.runtime.tap() for side in (pair.a, pair.b))
    return first, second


def stages(answer: dict[str, Any], *only: str) -> list[tuple[str, str]]:
    return [(event[2], event[4].get("opcode", "")) for event in answer["events"] if not only or event[2] in only]


def test_an_operation_from_doorbell_to_completion(pair: QpPair) -> None:
    own, other = taps(pair)
    assert own.answer("x 0 1")["events"] == other.answer("x 0 1")["events"] == []
    pair.a.post_send(e.IBV_WR_RDMA_WRITE, 3000)
    pair.a.wait()
    pair.net.run()
    seen = own.answer("x 0 1")
    assert stages(seen) == [
        ("doorbell", ""),
        ("fetched", "WRITE"),
        *[("sent", name) for name in ("RC_WRITE_FIRST", "RC_WRITE_MIDDLE", "RC_WRITE_LAST")],
        ("received", "RC_ACKNOWLEDGE"),
        ("completed", ""),
    ]
    fetched, completed = (event for event in seen["events"] if event[2] in ("fetched", "completed"))
    assert fetched[4]["bytes"] == 3000
    assert fetched[4]["cold"]
    assert completed[4]["psn"] == fetched[4]["psn"]
    assert {event[3] for event in seen["events"]} == {pair.a.qp.qp_num}
    there = stages(other.answer("x 0 1"))
    assert [stage for stage, _ in there] == ["received"] * 3 + ["sent"]
    # the next question gets what came since
    assert own.answer(f"x {seen['next']} 1")["events"] == []
    pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
    pair.a.wait()
    again = own.answer(f"x {seen['next']} 1")
    assert [event[4].get("cold") for event in again["events"] if event[2] == "fetched"] == [None]
    assert again["lost"] == 0


@pytest.mark.parametrize("opcode", [e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ])
def test_both_ends_sample_the_same_messages_with_all_their_packets(pair: QpPair, opcode: int) -> None:
    own, other = taps(pair)
    own.answer("x 0 4")
    other.answer("x 0 4")
    for _ in range(64):
        pair.a.post_send(opcode, 5000)
        pair.a.wait()
    pair.net.run()
    here, there = own.answer("x 0 4")["events"], other.answer("x 0 4")["events"]
    operations = [event[4]["psn"] for event in here if event[2] == "fetched"]
    assert 4 < len(operations) < 40
    assert [event[4]["psn"] for event in here if event[2] == "completed"] == operations

    def packets(events: list[Any], stage: str) -> list[tuple[str, int]]:
        return [(event[4]["opcode"], event[4]["psn"]) for event in events if event[2] == stage]

    assert packets(here, "sent") == packets(there, "received")
    assert packets(here, "received") == packets(there, "sent")
    pmtu = pair.a.node.nic.qps[pair.a.qp.qp_num].ctx.mtu_bytes
    each = -(-5000 // pmtu)
    assert len(packets(here, "received" if opcode == e.IBV_WR_RDMA_READ else "sent")) == each * len(operations)


@pytest.mark.parametrize("sample", [2, 16, 20, 100])
@pytest.mark.parametrize("packets", [1, 3, 16, 256, 1024, 4096])
def test_the_choice_is_fair_however_long_messages_are(packets: int, sample: int) -> None:
    """Whatever the first PSN: in 40 times ``sample`` messages, about 40."""
    session = Session(frozenset(), sample)
    for first in (0, 1, 2, 77, 1023, 0xABCDEF):
        starts = [first + number * packets & PSN_MASK for number in range(40 * sample)]
        assert 15 <= sum(map(session.chosen, starts)) <= 75, first


def test_only_the_queue_pairs_that_are_named(pair: QpPair) -> None:
    own, _ = taps(pair)
    own.answer(f"this 0 1 {pair.a.qp.qp_num}")
    own.answer("another 0 1 4000")
    pair.a.post_send(e.IBV_WR_SEND, 8)
    pair.b.post_recv(8)
    pair.a.wait()
    assert own.answer(f"this 0 1 {pair.a.qp.qp_num}")["events"]
    assert own.answer("another 0 1 4000")["events"] == []


def test_what_is_kept_is_bounded_and_what_is_lost_is_said(pair: QpPair) -> None:
    own, _ = taps(pair)
    own.answer("x 0 1")
    session = own.sessions["x"]
    for number in range(MAX_EVENTS + 10):
        session.add(number, "step", 0, {})
    answer = own.answer("x 5 1")
    assert (answer["lost"], len(answer["events"]), answer["next"]) == (5, MAX_ANSWER, 10 + MAX_ANSWER)


def test_bad_questions_are_refused(pair: QpPair) -> None:
    own, _ = taps(pair)
    many = ",".join(map(str, range(MAX_QPS + 1)))
    for words in (
        "",
        "x",
        "x 0",
        "x y 1",
        "x -1 1",
        "x 0 0",
        f"x 0 {MAX_SAMPLE + 1}",
        "x 0 1 a",
        f"x 0 1 {many}",
        "x 0 1 1 1",
    ):
        with pytest.raises(ValueError):
            own.answer(words)
    for number in range(MAX_SESSIONS):
        own.answer(f"s{number} 0 1")
    with pytest.raises(ValueError, match="look at this device already"):
        own.answer("more 0 1")


def test_it_takes_itself_away(pair: QpPair) -> None:
    runtime = pair.a.node.ctx.runtime
    link, tracer = runtime.link, runtime.nic.tracer
    own, _ = taps(pair)
    own.answer("x 0 1")
    assert runtime.link is own
    assert runtime.nic.tracer is own
    for session in own.sessions.values():
        session.asked_ns -= EXPIRES_NS + 1
    pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
    pair.a.wait()
    assert (runtime.link, runtime.nic.tracer) == (link, tracer)
    # and comes back
    own.answer("x 0 1")
    pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8)
    pair.a.wait()
    assert ("sent", "RC_WRITE_ONLY") in stages(own.answer("x 0 1"))


def test_packets_that_are_none_and_queue_pairs_that_end(pair: QpPair) -> None:
    own, other = taps(pair)
    own.answer("x 0 1")
    other.answer("x 0 1")
    flow = pair.a.node.nic.qps[pair.a.qp.qp_num].flow
    assert flow is not None
    for data in (b"", b"\xff" * 20, b"\x0a" + bytes(11)):
        other._packet(0, "received", flow, memoryview(data))
    assert other.answer("x 0 1")["events"] == []
    pair.a.qp.close()
    pair.b.post_send(e.IBV_WR_RDMA_WRITE, 8)
    assert pair.net.run(lambda: ("received", "RC_WRITE_ONLY") in stages(own.answer("x 0 1")))
