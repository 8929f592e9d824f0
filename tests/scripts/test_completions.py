"""Every field of every kind of completion entry."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.rings.cqe import CQE_IMM, CQE_INV, CQE_RECEIVE, CQE_SOLICITED
from rnic.rings.sqe import FLAG_SIGNALED
from rnic.spec.opcodes import WR_NOP, WR_SEND, WR_SEND_IMM, WR_SEND_INV, WR_WRITE, WR_WRITE_IMM
from rnic.spec.states import ERR, RESET, RTS, ST_UC, ST_UD
from rnic.state.record import NONE
from rnic.transport.wqe import SendRing
from tests.scripts.conftest import NewScript

FULL = bytes(range(256))
RECEIVE = {"vendor": 0, "wqe_id": 0, "requested": 0, "qpn": 16}


def entries(queue: Any) -> list[dict[str, object]]:
    """The entries since the last call."""
    found = [vars(entry) for entry in queue.entries]
    queue.take()
    return found


def sent(index: int, status: str, opcode: int, length: int, done: bool = True, **more: object) -> dict[str, object]:
    """An entry of a send queue; ``wqe_id`` is index + 100."""
    return {
        "index": index, "status": status, "vendor": 0, "length": length if done else 0, "word3": opcode,
        "wqe_id": index + 100, "requested": length, "qpn": 16, "imm": 0,
    } | more  # fmt: skip


def received(index: int, status: str, opcode: int, length: int, imm: int = 0, **more: object) -> dict[str, object]:
    """An entry of a receive queue."""
    return {"index": index, "status": status, "word3": CQE_RECEIVE | opcode, "length": length, "imm": imm} | (
        RECEIVE | more
    )


def test_sends(new: NewScript) -> None:
    s = new()
    s.post("WRITE", 600, wqe_id=100)
    s.post("SEND", 10, wqe_id=101)
    s.post("NOP", wqe_id=102)
    s.post("READ", 300, wqe_id=103)
    s.out()
    s.ack(103)
    assert entries(s.send_cq) == [
        sent(0, "SUCCESS", WR_WRITE, 600),
        sent(1, "SUCCESS", WR_SEND, 10),
        sent(2, "SUCCESS", WR_NOP, 0),
    ]


def test_receives(new: NewScript) -> None:
    s = new()
    for at in range(6):
        s.recv(600, at=at * 1000)
    s.inject("SEND_FIRST", 100, payload=FULL)
    s.inject("SEND_LAST_IMM", 101, payload=b"1234", imm=7, solicited=True)
    s.inject("SEND_ONLY", 102, payload=b"1234")
    s.inject("WRITE_ONLY_IMM", 103, va=s.va, rkey=s.key, dma_length=4, payload=b"1234", imm=8)
    assert entries(s.recv_cq) == [
        received(0, "SUCCESS", WR_SEND_IMM | CQE_IMM | CQE_SOLICITED, 260, 7),
        received(1, "SUCCESS", WR_SEND, 4),
        received(2, "SUCCESS", WR_WRITE_IMM | CQE_IMM, 4, 8),
    ]


def test_entries_go_round_the_ring(new: NewScript) -> None:
    """With the phase bit of each lap, and with the room that software gives back."""
    s = new()
    for lap in range(6):
        for _ in range(25):
            s.post("WRITE", 1)
        s.out()
        s.ack(99 + 25 * (lap + 1))
        assert s.send_cq.take() == ["SUCCESS"] * 25


def test_a_send_with_invalidate_names_the_key(new: NewScript) -> None:
    from rnic.mem.table import WINDOW2, MemoryEntry

    s = new()
    table = s.host.memory
    window = MemoryEntry(table.alloc_key(WINDOW2), 1, 0, 0, 0, kind=WINDOW2)
    table.enable(window)
    key = window.key ^ 1
    assert table.bind_window(window.index, key, s.key, 1, 16, s.va, 64, 2)
    s.recv(600)
    s.inject("SEND_ONLY_INV", 100, payload=b"1234", inv_rkey=key)
    assert entries(s.recv_cq) == [received(0, "SUCCESS", WR_SEND_INV | CQE_INV, 4, key)]
    assert not window.valid


def test_a_fatal_nak_is_the_vendor_error(new: NewScript) -> None:
    s = new()
    s.post("WRITE", 600, wqe_id=100)
    s.post("SEND", 10, wqe_id=101)
    s.out()
    s.ack(100, syndrome=0x62)
    assert entries(s.send_cq) == [
        sent(0, "REM_ACCESS_ERR", WR_WRITE, 600, done=False, vendor=0x62),
        sent(1, "WR_FLUSH_ERR", WR_SEND, 10, done=False),
    ]


def test_a_refused_request_takes_its_receive_entry_along(new: NewScript) -> None:
    s = new()
    s.recv(100)
    s.recv(200)
    s.inject("SEND_ONLY", 100, payload=FULL)
    assert entries(s.recv_cq) == [
        received(0, "LOC_LEN_ERR", WR_SEND, 0, vendor=0x61),
        received(1, "WR_FLUSH_ERR", WR_SEND, 0),
    ]


@pytest.mark.parametrize("opened", [True, False])
def test_flushes(new: NewScript, opened: bool) -> None:
    """What is sent, what waits and what was never read; and the receive entry of a message that is open."""
    s = new(window_packets=1)
    s.recv(600)
    s.recv(600)
    if opened:
        s.inject("SEND_FIRST", 100, payload=FULL)
    for number in range(3):
        s.post("WRITE", 300, wqe_id=100 + number)
    s.out()
    s.to(ERR)
    assert entries(s.send_cq) == [sent(index, "WR_FLUSH_ERR", WR_WRITE, 300, done=False) for index in range(3)]
    assert entries(s.recv_cq) == [received(index, "WR_FLUSH_ERR", WR_SEND, 0) for index in range(2)]


def test_a_descriptor_that_cannot_be_read(new: NewScript, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SendRing, "fetch", lambda ring, index: None)
    s = new(far=True)
    for _ in range(2):
        s.post("WRITE", 300)
    s.out()
    assert entries(s.send_cq) == [
        sent(0, "LOC_PROT_ERR", WR_NOP, 0, done=False, wqe_id=0),
        sent(1, "WR_FLUSH_ERR", WR_NOP, 0, done=False, wqe_id=0),
    ]
    assert s.ctx.state == ERR


def test_flushing_descriptors_that_cannot_be_read(new: NewScript, monkeypatch: pytest.MonkeyPatch) -> None:
    s = new(window_packets=1)
    for number in range(2):
        s.post("WRITE", 300, wqe_id=100 + number)
    monkeypatch.setattr(SendRing, "fetch", lambda ring, index: None)
    s.to(ERR)
    assert entries(s.send_cq) == [sent(index, "WR_FLUSH_ERR", WR_NOP, 0, done=False, wqe_id=0) for index in range(2)]


def test_a_datagram_names_its_sender(new: NewScript) -> None:
    s = new(ST_UD)
    s.recv(100)
    s.inject("SEND_ONLY_IMM", 5, qkey=0x1111, sqpn=9, payload=b"1234", imm=3)
    (entry,) = entries(s.recv_cq)
    assert (entry["length"], entry["wqe_id"], entry["imm"], entry["vendor"], entry["requested"]) == (44, 9, 3, 0, 0)


@pytest.mark.parametrize("service", [ST_UC, ST_UD])
def test_unreliable_sends_complete_when_they_are_sent(new: NewScript, service: int) -> None:
    s = new(service)
    s.post("SEND", 100, wqe_id=100)
    s.post("SEND", 100, wqe_id=101, flags=0)
    s.post("SEND", 100, wqe_id=102, lkey=5)
    s.post("SEND", 100, wqe_id=103, flags=FLAG_SIGNALED)
    s.out()
    assert entries(s.send_cq) == [
        sent(0, "SUCCESS", WR_SEND, 100),
        sent(2, "LOC_PROT_ERR", WR_SEND, 100, done=False),
        sent(3, "WR_FLUSH_ERR", WR_SEND, 100, done=False),
    ]


def test_reset_forgets_both_halves(new: NewScript) -> None:
    """After RESET a new connection finds nothing of the old one."""
    s = new()
    s.recv(600)
    s.inject("SEND_FIRST", 100, payload=FULL)
    s.inject("SEND_MIDDLE", 102, payload=FULL)
    s.inject("READ_REQUEST", 103, va=s.va, rkey=s.key, dma_length=8)
    s.post("READ", 10)
    s.post("WRITE", 10)
    s.out()
    s.ack(101)
    assert s.qp.completer.implied_psn == 100
    s.to(RESET)
    responder, requester = s.qp.responder, s.qp.requester
    assert s.qp.completer.implied_psn == NONE
    assert (responder.open, responder.offset, responder.nak_sent, responder.established, responder.msn) == (0,) * 5
    assert (responder.receive_wqe, len(responder.replies), len(responder.resources)) == (None, 0, 0)
    assert (requester.una, requester.sent_psn, requester.ssn, requester.lsn) == (0, 0, 0, NONE)
    assert (requester.begun, requester.piece_count, requester.read_index, requester.probe_due) == (False, 0, NONE, 0)
    assert s.qp.flow is None
    assert s.send_cq.take() == s.recv_cq.take() == []


def test_a_reset_queue_pair_starts_at_its_new_numbers(new: NewScript) -> None:
    s = new()
    s.post("WRITE", 600)
    s.out()
    s.to(RESET)
    s.sq_tail = s.rq_tail = 0
    s.ctx.next_send_psn = s.ctx.expected_psn = 0xFFFFFF
    for state in (1, 2, RTS):
        s.to(state)
    s.post("WRITE", 300)
    assert s.out() == ["WRITE_FIRST 16777215", "WRITE_LAST 0!"]
    s.inject("WRITE_ONLY", 0xFFFFFF, va=s.va, rkey=s.key, dma_length=4, payload=b"1234", ackreq=True)
    assert s.out() == ["ACKNOWLEDGE 16777215 1f"]
