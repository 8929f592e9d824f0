"""XRC, from both sides (IBA vol. 1, annex A14): requests name a shared receive queue, responses name none."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.rings.cqe import CQE_IMM
from rnic.spec.opcodes import PLACEMENT_GLOBAL
from rnic.spec.states import ERR, RTS, ST_XRC_INI, ST_XRC_TGT
from rnic.wire.opcode import OPCODES
from tests.model.traces import watched_script
from tests.scripts.channels import channel_script
from tests.scripts.conftest import NewScript, Script
from tests.scripts.xrc import SharedQueue, XrcTarget

FULL = bytes(range(256))
RIGHTS = 0x1F | 0x100
NEAR, FAR, NONE = 5, 6, 7
"""Numbers of the domain's queues, and one that is none of them."""
OTHER_PD = 2


@pytest.fixture(params=[watched_script(Script), channel_script(Script)], ids=["steps", "channels"])
def new(request: pytest.FixtureRequest) -> NewScript:
    """Make a script of the reference: the device gives the engine no XRC queue pairs."""
    maker: NewScript = request.param
    return maker


def target(new: NewScript, **fields: int) -> Script:
    """A queue pair that receives, with two queues: of the script's protection domain, and of another."""
    s = new(ST_XRC_TGT, **fields)
    assert isinstance(s.qp, XrcTarget)
    s.qp.queues |= {NEAR: SharedQueue(1), FAR: SharedQueue(OTHER_PD)}
    return s


def receive(s: Script, number: int, length: int, at: int = 0) -> None:
    """Post a receive to one of the queues."""
    assert isinstance(s.qp, XrcTarget)
    key = s.key if number == NEAR else s.register(s.data, pd=OTHER_PD).key
    s.qp.queues[number].post(number, s.va + at, length, key)


# ------------------------------------------------------------------------------------ the requester's side


def test_every_packet_of_a_request_names_its_queue(new: NewScript) -> None:
    s = new(ST_XRC_INI)
    s.post("SEND", 600, srqn=NEAR)
    s.post("WRITE_IMM", 300, srqn=FAR, imm=9)
    s.post("READ", 300, srqn=NEAR)
    s.post("FETCH_ADD", 8, srqn=FAR)
    s.post("FLUSH", imm=PLACEMENT_GLOBAL, swap_add=8, srqn=NEAR)
    s.post("ATOMIC_WRITE", srqn=0xFFFFFF)
    assert [(s.say(packet), packet.srqn) for packet in s.packets()] == [
        ("SEND_FIRST 100", NEAR),
        ("SEND_MIDDLE 101", NEAR),
        ("SEND_LAST 102!", NEAR),
        ("WRITE_FIRST 103", FAR),
        ("WRITE_LAST_IMM 104!", FAR),
        ("READ_REQUEST 105!", NEAR),
        ("FETCH_ADD 107!", FAR),
        ("FLUSH 108!", NEAR),
        ("ATOMIC_WRITE 109!", 0xFFFFFF),
    ]


def test_responses_name_no_queue_and_complete_in_order(new: NewScript) -> None:
    s = new(ST_XRC_INI)
    s.post("SEND", 10)
    s.post("READ", 300, at=1000)
    s.post("FETCH_ADD", 8, at=2000)
    s.post("FLUSH", imm=PLACEMENT_GLOBAL, swap_add=8)
    s.out()
    s.ack(100, msn=1)
    s.inject("READ_RESPONSE_FIRST", 101, payload=FULL, msn=2)
    s.inject("READ_RESPONSE_LAST", 102, payload=FULL[:44], msn=2)
    s.inject("ATOMIC_ACKNOWLEDGE", 103, msn=3, orig=77)
    s.inject("READ_RESPONSE_ONLY", 104, msn=4)
    assert s.send_cq.take() == ["SUCCESS"] * 4
    assert s.data[1000:1300] == FULL + FULL[:44]
    assert s.data[2000:2008] == (77).to_bytes(8, "little")


def test_a_retransmission_names_the_same_queue(new: NewScript) -> None:
    s = new(ST_XRC_INI)
    s.post("SEND", 300, srqn=NEAR)
    s.post("SEND", 10, srqn=FAR)
    before = s.packets()
    s.inject("ACKNOWLEDGE", 101, syndrome=0x60, msn=0)
    after = s.packets()
    assert [(p.psn, p.srqn) for p in before] == [(100, NEAR), (101, NEAR), (102, FAR)]
    assert [(p.psn, p.srqn) for p in after] == [(101, NEAR), (102, FAR)]
    assert s.counters["sequence_naks_received"] == 1


def test_an_rnr_nak_delays_the_messages_to_other_queues_too(new: NewScript) -> None:
    """The queue pair waits, not the queue."""
    s = new(ST_XRC_INI)
    s.post("SEND", 10, srqn=NEAR)
    s.post("SEND", 10, srqn=FAR)
    s.out()
    s.inject("ACKNOWLEDGE", 100, syndrome=0x21, msn=0)
    assert s.out() == []
    s.wait(10_000_000)
    assert s.out() == ["SEND_ONLY 100!", "SEND_ONLY 101!"]


def test_the_sending_queue_pair_takes_no_requests(new: NewScript) -> None:
    s = new(ST_XRC_INI)
    s.inject("SEND_ONLY", 100, srqn=NEAR, payload=b"1234", ackreq=True)
    assert s.out() == []
    assert s.counters["drop_wrong_service"] == 1
    assert s.ctx.state == RTS


# ------------------------------------------------------------------------------------ the responder's side


def test_each_message_takes_an_entry_of_the_queue_that_it_names(new: NewScript) -> None:
    s = target(new)
    receive(s, NEAR, 300)
    receive(s, FAR, 300, at=1000)
    s.inject("SEND_FIRST", 100, srqn=FAR, payload=FULL)
    s.inject("SEND_LAST_IMM", 101, srqn=FAR, payload=b"far", imm=9)
    s.inject("SEND_ONLY", 102, srqn=NEAR, payload=b"near", ackreq=True)
    (ack,) = s.packets()
    assert (ack.row.name, ack.psn, ack.syndrome & 0x60, ack.msn) == ("XRC_ACKNOWLEDGE", 102, 0, 2)
    assert s.data[1000:1259] == FULL + b"far"
    assert s.data[:4] == b"near"
    assert [(e.index, e.length, e.word3 & CQE_IMM != 0) for e in s.recv_cq.entries] == [
        (FAR, 259, True),
        (NEAR, 4, False),
    ]


def test_responses_have_no_xrceth(new: NewScript) -> None:
    assert [row.name for row in OPCODES if row is not None and row.response and row.xrceth] == []
    s = target(new, access_flags=RIGHTS)
    fields = {"va": s.va, "rkey": s.key, "srqn": NEAR}
    s.inject("READ_REQUEST", 100, dma_length=300, **fields)
    s.inject("FETCH_ADD", 102, swap_add=1, **fields)
    assert s.out() == ["READ_RESPONSE_FIRST 100", "READ_RESPONSE_LAST 101", "ATOMIC_ACKNOWLEDGE 102"]


def test_an_empty_queue_lets_the_sender_wait_whatever_the_others_hold(new: NewScript) -> None:
    s = target(new)
    receive(s, FAR, 300)
    s.inject("SEND_ONLY", 100, srqn=NEAR, payload=b"near", ackreq=True)
    assert s.out() == ["ACKNOWLEDGE 100 21"]
    s.inject("SEND_ONLY", 101, srqn=FAR, payload=b"far", ackreq=True)
    assert s.out() == []
    receive(s, NEAR, 300, at=500)
    s.inject("SEND_ONLY", 100, srqn=NEAR, payload=b"near", ackreq=True)
    s.inject("SEND_ONLY", 101, srqn=FAR, payload=b"far", ackreq=True)
    assert [e.index for e in s.recv_cq.entries] == [NEAR, FAR]
    assert s.data[500:504] == b"near"


def refused(s: Script, syndrome: str, psn: int) -> None:
    """The request was refused, and nothing was taken or stored."""
    assert s.out() == [f"ACKNOWLEDGE {psn} {syndrome}"]
    assert s.ctx.state == ERR
    assert "SUCCESS" not in s.recv_cq.take()


@pytest.mark.parametrize("name", ["SEND_FIRST", "SEND_ONLY", "WRITE_ONLY", "READ_REQUEST", "FETCH_ADD"])
@pytest.mark.parametrize("number", [0, NONE, 0xFFFFFF])
def test_a_number_that_is_no_queue_of_the_domain_is_an_invalid_request(new: NewScript, name: str, number: int) -> None:
    s = target(new)
    receive(s, NEAR, 300)
    fields: dict[str, Any] = {"payload": FULL} if name.startswith(("SEND", "WRITE")) else {}
    if not name.startswith("SEND"):
        fields |= {"va": s.va, "rkey": s.key} | ({"dma_length": 256} if name != "FETCH_ADD" else {"swap_add": 1})
    before = bytes(s.data)
    s.inject(name, 100, srqn=number, **fields)
    refused(s, "61", 100)
    assert s.data == before
    assert s.qp.why is not None
    assert f"SRQ {number:#x} is not in the XRC domain" in s.qp.why.text


@pytest.mark.parametrize("name", ["SEND_MIDDLE", "SEND_LAST"])
def test_a_message_stays_with_the_queue_that_its_first_packet_names(new: NewScript, name: str) -> None:
    s = target(new)
    for number in (NEAR, FAR):
        receive(s, number, 1000)
    s.inject("SEND_FIRST", 100, srqn=NEAR, payload=FULL)
    s.inject(name, 101, srqn=FAR, payload=FULL)
    refused(s, "61", 101)


@pytest.mark.parametrize("name", ["WRITE_ONLY", "READ_REQUEST", "FETCH_ADD"])
def test_memory_is_that_of_the_queues_protection_domain(new: NewScript, name: str) -> None:
    fields: dict[str, Any] = {"payload": FULL} if name == "WRITE_ONLY" else {}
    fields |= {"dma_length": 256} if name != "FETCH_ADD" else {"swap_add": 1}
    s = target(new)
    s.inject(name, 100, srqn=NEAR, va=s.va, rkey=s.key, **fields)
    assert s.ctx.state == RTS
    s = target(new)
    before = bytes(s.data)
    s.inject(name, 100, srqn=FAR, va=s.va, rkey=s.key, **fields)
    refused(s, "62", 100)
    assert s.data == before


def test_duplicates_are_answered_again(new: NewScript) -> None:
    s = target(new)
    receive(s, NEAR, 300)
    fields = {"va": s.va + 512, "rkey": s.key, "srqn": NEAR}
    for _ in range(2):
        s.inject("SEND_ONLY", 100, srqn=NEAR, payload=b"near", ackreq=True)
        assert s.out() == ["ACKNOWLEDGE 100 1f"]
    for _ in range(2):
        s.inject("READ_REQUEST", 101, dma_length=10, **fields)
        assert s.out() == ["READ_RESPONSE_ONLY 101"]
    for _ in range(2):
        s.inject("FETCH_ADD", 102, swap_add=1, **fields)
        (answer,) = s.packets()
        assert answer.orig == int.from_bytes(s.data[512:520], "little") - 1
    assert s.recv_cq.take() == ["SUCCESS"]


def test_the_receiving_queue_pair_takes_no_responses(new: NewScript) -> None:
    s = target(new)
    s.ack(100)
    assert s.counters["drop_ghost_response"] == 1
    assert s.ctx.state == RTS
