"""READ and atomics from the requester's side: responses, implied NAKs, fence, limits (IBA vol. 1, 9.4.4, 9.7)."""

from __future__ import annotations

import pytest

from rnic.rings.sqe import FLAG_FENCE, FLAG_SIGNALED
from rnic.spec.states import RTS
from tests.scripts.conftest import NewScript, Script


def read_response(s: Script, psn: int, packets: int, at: int = 0, total: int | None = None, first: int = 100) -> None:
    total = packets * 256 if total is None else total
    names = (
        ["READ_RESPONSE_ONLY"]
        if packets == 1
        else ["READ_RESPONSE_FIRST", *["READ_RESPONSE_MIDDLE"] * (packets - 2), "READ_RESPONSE_LAST"]
    )
    for index, name in enumerate(names):
        size = min(256, total - index * 256)
        s.inject(name, psn + index, payload=bytes([psn + index & 0xFF]) * size)


def test_read_places_responses(new: NewScript) -> None:
    s = new()
    s.post("READ", 700, at=1000)
    s.out()
    read_response(s, 100, 3, total=700)
    assert s.data[1000:1700] == bytes([100]) * 256 + bytes([101]) * 256 + bytes([102]) * 188
    assert s.send_cq.take() == ["SUCCESS"]


def test_long_read_goes_in_pieces_and_is_repeated_from_the_middle(new: NewScript) -> None:
    s = new(window_packets=8, probe=False, ackto=1)
    s.post("READ", 10 * 256)
    requests = s.packets()
    assert [(p.psn, p.va, p.dma_length) for p in requests] == [(100, 0x5000, 1024), (104, 0x5400, 1024)]
    s.inject("READ_RESPONSE_FIRST", 100, payload=bytes(256))
    s.inject("READ_RESPONSE_MIDDLE", 101, payload=bytes(256))
    s.packets()
    s.wait(4096 << 1)
    again = s.packets()
    assert [(p.psn, p.va, p.dma_length) for p in again] == [(102, 0x5200, 512), (104, 0x5400, 1024)]
    read_response(s, 102, 2)
    read_response(s, 104, 4)
    # a peer that was silent for a timeout is asked for little at first
    assert [(p.psn, p.va, p.dma_length) for p in s.packets()] == [(108, 0x5800, 512)]
    read_response(s, 108, 2)
    assert s.send_cq.take() == ["SUCCESS"]


def test_implied_nak_of_a_lost_response(new: NewScript) -> None:
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


def test_late_responses_to_what_was_asked_before_cost_no_retry(new: NewScript) -> None:
    """A slow peer goes on with its first answer for longer than the requester would wait for eight losses."""
    s = new(ackto=16, retry_cnt=7, probe=False)
    s.post("READ", 256 * 20)
    s.out()
    for psn in range(101, 119):
        s.inject("READ_RESPONSE_MIDDLE", psn, payload=bytes(256))
        assert s.out() == (["READ_REQUEST 100!"] if psn == 101 else [])
        s.wait(2_000_000)
    assert s.counters["implied_naks"] == s.counters["rewinds"] == 1
    read_response(s, 100, 20)
    assert s.send_cq.take() == ["SUCCESS"]


def test_a_response_lost_twice_is_asked_for_again(new: NewScript) -> None:
    """The second loss looks like an answer to the first request: after a while without the response a probe asks."""
    s = new(ackto=0)
    s.post("READ", 768)
    s.out()
    s.inject("READ_RESPONSE_MIDDLE", 101, payload=bytes(256))
    assert s.out() == ["READ_REQUEST 100!"]
    s.wait(400_000)
    s.inject("READ_RESPONSE_LAST", 102, payload=bytes(256))
    assert s.out() == []
    assert s.deadline == 600_000
    s.wait(600_000)
    (probe,) = s.packets()
    assert (s.say(probe), probe.dma_length) == ("READ_REQUEST 100!", 256)
    read_response(s, 100, 1)
    again = s.packets()  # that the probe alone was answered says that the others are lost
    assert [(p.psn, p.va, p.dma_length) for p in again] == [(101, 0x5100, 512)]
    read_response(s, 101, 2)
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.data[:768] == bytes([100]) * 256 + bytes([101]) * 256 + bytes([102]) * 256
    assert s.deadline is None


@pytest.mark.parametrize("got", [0, 1, 5, 7])
def test_a_lost_tail_of_a_read_is_probed_for(new: NewScript, got: int) -> None:
    """The last responses are lost and nothing comes that says so: about two round trips later, one is asked for."""
    s = new(ackto=0)
    s.post("READ", 2048)
    s.out()
    for psn in range(100, 100 + got):
        s.inject("READ_RESPONSE_MIDDLE" if psn > 100 else "READ_RESPONSE_FIRST", psn, payload=bytes([psn]) * 256)
    assert s.deadline == 1_000_000
    s.wait(1_000_000)
    (probe,) = s.packets()
    assert (probe.psn, probe.va, probe.dma_length) == (100 + got, 0x5000 + got * 256, 256)
    read_response(s, 100 + got, 1)
    if got < 7:
        (again,) = s.packets()
        assert (again.psn, again.dma_length) == (101 + got, 2048 - (got + 1) * 256)
        read_response(s, 101 + got, 7 - got)
    assert s.data[:2048] == b"".join(bytes([psn]) * 256 for psn in range(100, 108))
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.counters["probes"] == 1


@pytest.mark.parametrize("got", [0, 3])
def test_late_responses_serve_although_a_probe_asked(new: NewScript, got: int) -> None:
    s = new(ackto=0)
    s.post("READ", 2048)
    s.out()
    names = ["READ_RESPONSE_FIRST", *["READ_RESPONSE_MIDDLE"] * 6, "READ_RESPONSE_LAST"]
    for place in range(8):
        if place == got:
            s.wait(1_000_000)
            assert len(s.out()) == 1
        s.inject(names[place], 100 + place, payload=bytes([100 + place]) * 256)
    assert s.send_cq.take() == ["SUCCESS"]
    s.inject("READ_RESPONSE_ONLY", 100 + got, payload=bytes(256))
    assert s.counters["drop_stale_response"] == 1
    assert s.data[:2048] == b"".join(bytes([psn]) * 256 for psn in range(100, 108))


def test_a_late_response_and_then_the_answer_to_the_probe(new: NewScript) -> None:
    s = new(ackto=0)
    s.post("READ", 1024)
    s.out()
    s.wait(1_000_000)
    s.out()
    s.inject("READ_RESPONSE_FIRST", 100, payload=bytes([100]) * 256)
    s.inject("READ_RESPONSE_MIDDLE", 101, payload=bytes([101]) * 256)
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes(256))
    assert s.out() == []
    s.wait(10_000_000)
    s.out()
    s.inject("READ_RESPONSE_ONLY", 102, payload=bytes([102]) * 256)
    assert s.out() == ["READ_REQUEST 103!"]
    s.inject("READ_RESPONSE_ONLY", 103, payload=bytes([103]) * 256)
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.data[:1024] == b"".join(bytes([psn]) * 256 for psn in range(100, 104))


def test_the_answer_to_a_probe_comes_when_all_was_asked_for_anew(new: NewScript) -> None:
    """The probe's answer is of one packet, as is the request that stands by then."""
    s = new(ackto=8)
    s.post("READ", 1024)
    s.out()
    s.wait(1_000_000)
    assert s.out() == ["READ_REQUEST 100!"]
    s.wait(5_000_000)
    assert s.out() == ["READ_REQUEST 100!", "READ_REQUEST 101!"]
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes([100]) * 256)
    assert s.out() == []
    s.inject("READ_RESPONSE_FIRST", 100, payload=bytes(256))
    for psn, opcode in zip((101, 102, 103), ("MIDDLE", "MIDDLE", "LAST"), strict=True):
        s.inject(f"READ_RESPONSE_{opcode}", psn, payload=bytes([psn]) * 256)
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.data[:1024] == b"".join(bytes([psn]) * 256 for psn in range(100, 104))


@pytest.mark.parametrize("operation", ["MIDDLE", "ONLY"])
def test_what_a_probe_asked_for_alone_is_asked_for_alone_again(new: NewScript, operation: str) -> None:
    """The responder may have carried out the probe's request, and not the first: it repeats one response, not four."""
    s = new(ackto=8)
    s.post("READ", 1024)
    s.out()
    s.inject("READ_RESPONSE_FIRST", 100, payload=bytes([100]) * 256)
    s.wait(1_000_000)
    assert s.out() == ["READ_REQUEST 101!"]
    s.wait(5_000_000)
    again = s.packets()
    assert [(p.psn, p.va - 0x5000, p.dma_length) for p in again] == [(101, 256, 256), (102, 512, 512)]
    s.inject(f"READ_RESPONSE_{operation}", 101, payload=bytes([101]) * 256)
    s.inject("READ_RESPONSE_FIRST", 102, payload=bytes([102]) * 256)
    s.inject("READ_RESPONSE_LAST", 103, payload=bytes([103]) * 256)
    assert s.send_cq.take() == ["SUCCESS"]
    assert s.data[:1024] == b"".join(bytes([psn]) * 256 for psn in range(100, 104))


def test_the_answer_to_a_probe_says_nothing_of_what_follows_a_write(new: NewScript) -> None:
    """The WRITE may be what was lost: it completes by an acknowledgement of its own."""
    s = new(ackto=8)
    s.post("READ", 512)
    s.post("WRITE", 256)
    s.post("FETCH_ADD", 8)
    s.out()
    s.inject("READ_RESPONSE_FIRST", 100, payload=bytes([100]) * 256)
    s.wait(1_000_000)
    assert s.out() == ["READ_REQUEST 101!"]
    s.inject("READ_RESPONSE_ONLY", 101, payload=bytes([101]) * 256)
    assert s.send_cq.take() == ["SUCCESS"]
    s.wait(5_000_000)
    assert s.out()[0] == "WRITE_ONLY 102!"
    s.ack(102)
    s.inject("ATOMIC_ACKNOWLEDGE", 103, orig=7)
    assert s.send_cq.take() == ["SUCCESS", "SUCCESS"]


def test_no_end_comes_before_the_last_but_for_a_probe(new: NewScript) -> None:
    s = new(ackto=0)
    s.post("READ", 1024)
    s.out()
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes(256))
    assert s.send_cq.take() == ["BAD_RESP_ERR"]


@pytest.mark.parametrize("operation", ["CMP_SWAP", "FETCH_ADD"])
def test_an_atomic_is_probed_for(new: NewScript, operation: str) -> None:
    s = new(ackto=0)
    s.post(operation, 8)
    first = s.packets()
    s.wait(1_000_000)
    again = s.packets()
    assert [s.say(p) for p in again] == [s.say(p) for p in first]
    s.inject("ATOMIC_ACKNOWLEDGE", 100, orig=7)
    assert s.send_cq.take() == ["SUCCESS"]


def test_the_oldest_is_probed_for_whatever_it_is(new: NewScript) -> None:
    s = new(ackto=0)
    s.post("WRITE", 10)
    s.post("READ", 10)
    s.post("WRITE", 10)
    s.out()
    s.wait(1_000_000)
    assert s.out() == ["WRITE_ONLY 100!", "WRITE_ONLY 102!"]
    s.ack(100)
    s.out()
    s.wait(10_000_000)
    assert s.out() == ["READ_REQUEST 101!"]
    s.inject("READ_RESPONSE_ONLY", 101, payload=bytes(10))
    s.out()
    s.wait(10_000_000)
    assert s.out() == ["WRITE_ONLY 102!"]


@pytest.mark.parametrize("ackto", [0, 10])
def test_a_response_lost_for_ever_uses_up_the_retries(new: NewScript, ackto: int) -> None:
    """A peer that goes on to say that it was lost costs one of them, the ACK timeout each further one.

    Where there is neither that nor a probe, each further word of the peer asks again.
    """
    s = new(ackto=ackto, retry_cnt=2, probe=False)
    s.post("READ", 768)
    asked = []
    while s.ctx.state == RTS:
        asked += s.out()
        s.inject("READ_RESPONSE_LAST", 102, payload=bytes(256))
        s.wait(1_000_000)
    assert asked == ["READ_REQUEST 100!"] * 3
    assert s.send_cq.take() == ["RETRY_EXC_ERR"]


def test_acks_behind_a_rewound_read_do_not_complete_it(new: NewScript) -> None:
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


def test_a_response_to_what_asks_for_none_is_stale(new: NewScript) -> None:
    s = new()
    s.post("WRITE", 10)
    s.post("READ", 10)
    s.out()
    s.inject("READ_RESPONSE_ONLY", 100, payload=b"x" * 10)
    assert s.counters["drop_stale_response"] == 1
    assert s.send_cq.take() == []
    s.inject("READ_RESPONSE_ONLY", 101, payload=b"x" * 10)
    assert s.send_cq.take() == ["SUCCESS", "SUCCESS"]


@pytest.mark.parametrize("name", ["READ_RESPONSE_ONLY", "ATOMIC_ACKNOWLEDGE"])
def test_a_stale_response_grants_no_credits(new: NewScript, name: str) -> None:
    """Common NICs put 0 into the AETH of a READ response: that is no word on receive entries, late ones included."""
    s = new()
    s.post("READ", 10)
    s.out()
    s.inject("READ_RESPONSE_ONLY", 100, payload=b"x" * 10, syndrome=0)
    s.inject(name, 100, payload=b"x" * 10 if name.startswith("READ") else b"", syndrome=0)
    assert s.counters["drop_stale_response"] == 1
    s.post("SEND", 600)
    assert s.out() == ["SEND_FIRST 101", "SEND_MIDDLE 102", "SEND_LAST 103!"]


def test_a_response_acknowledges_what_was_before_it(new: NewScript) -> None:
    """And so a bad one fails the READ, not the WRITE in front of it."""
    s = new()
    s.post("WRITE", 10)
    s.post("READ", 10)
    s.out()
    s.inject("READ_RESPONSE_ONLY", 101, payload=b"x" * 11)
    assert s.send_cq.take() == ["SUCCESS", "BAD_RESP_ERR"]


def test_late_answers_to_the_first_request_serve_after_a_retry(new: NewScript) -> None:
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
def test_wrong_response_opcode(new: NewScript, name: str) -> None:
    s = new()
    s.post("READ", 256)
    s.out()
    s.inject(name, 100, payload=bytes(256))
    assert s.send_cq.take() == ["BAD_RESP_ERR"]


@pytest.mark.parametrize("operation", ["CMP_SWAP", "FETCH_ADD"])
def test_atomic(new: NewScript, operation: str) -> None:
    s = new()
    s.post(operation, 8, swap_add=5, compare=9)
    (packet,) = s.packets()
    assert (packet.swap_add, packet.compare) == (5, 9 if operation == "CMP_SWAP" else 0)
    s.inject("ATOMIC_ACKNOWLEDGE", 100, orig=0x1122334455667788)
    assert int.from_bytes(s.data[:8], "little") == 0x1122334455667788
    assert s.send_cq.take() == ["SUCCESS"]
    s.inject("ATOMIC_ACKNOWLEDGE", 100, orig=0)
    assert s.counters["drop_stale_response"] == 1


def test_an_atomic_answer_to_a_read_is_bad(new: NewScript) -> None:
    s = new()
    s.post("READ", 8)
    s.out()
    s.inject("ATOMIC_ACKNOWLEDGE", 100, orig=0)
    assert s.send_cq.take() == ["BAD_RESP_ERR"]


def test_fence(new: NewScript) -> None:
    s = new()
    s.post("READ", 8)
    s.post("WRITE", 8, flags=FLAG_SIGNALED | FLAG_FENCE)
    assert s.out() == ["READ_REQUEST 100!"]
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes(8))
    assert s.out() == ["WRITE_ONLY 101!"]


def test_fenced_local_request_waits_and_completes(new: NewScript) -> None:
    s = new()
    s.post("READ", 8)
    s.post("NOP", 0, flags=FLAG_SIGNALED | FLAG_FENCE)
    s.post("WRITE", 8)
    assert s.out() == ["READ_REQUEST 100!"]
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes(8))
    assert s.out() == ["WRITE_ONLY 101!"]
    s.ack(101)
    assert s.send_cq.take() == ["SUCCESS"] * 3


def test_max_rd_atomic(new: NewScript) -> None:
    s = new(max_rd_atomic=2)
    for _ in range(3):
        s.post("FETCH_ADD", 8)
    assert len(s.out()) == 2
    s.inject("ATOMIC_ACKNOWLEDGE", 100, orig=0)
    assert s.out() == ["FETCH_ADD 102!"]
