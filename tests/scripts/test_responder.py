"""The responder: the named checks in their order, duplicates, NAKs (IBA vol. 1, 9.7; 004 7.3)."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.context.qpc import OPT_CREDITS, SRQ_VALID
from rnic.mem.keys import key_index
from rnic.rings.cqe import CQE_IMM, CQE_INV, CQE_SOLICITED
from rnic.rings.queue_block import ARM_NEXT, ARM_SOLICITED
from rnic.spec.access import REMOTE_WRITE
from rnic.spec.events import COMM_EST, SRQ_LAST_WQE, WQ_ACCESS_ERROR, WQ_CATAS_ERROR, WQ_INVAL_REQ_ERROR
from rnic.spec.states import ERR, RESET, RTR, RTS, ST_RC, ST_UC, ST_UD
from rnic.state.queue_pair import REPLIES
from rnic.transport.responder import OWED_NS
from rnic.transport.wqe import ReceiveRing
from tests.scripts.conftest import NewScript, Script

FULL = bytes(range(256))


def write(
    s: Script, name: str, psn: int, payload: bytes = b"", at: int = 0, length: int | None = None, **over: Any
) -> None:
    fields = {"va": s.va + at, "rkey": s.key, "dma_length": len(payload) if length is None else length}
    s.inject(name, psn, payload=payload, **fields | over)


# ----------------------------------------------------------------------------------- what works


def test_write_is_stored_and_acknowledged(new: NewScript) -> None:
    s = new()
    write(s, "WRITE_FIRST", 100, FULL, at=64, length=522)
    s.inject("WRITE_MIDDLE", 101, payload=FULL)
    s.inject("WRITE_LAST", 102, payload=b"0123456789", ackreq=True)
    assert s.data[64:586] == FULL * 2 + b"0123456789"
    (ack,) = s.packets()
    assert (ack.psn, ack.syndrome, ack.msn) == (102, 0x1F, 1)
    assert s.ctx.expected_psn == 103
    assert s.recv_cq.take() == []


def test_no_ack_at_once_where_none_is_asked_for(new: NewScript) -> None:
    s = new()
    write(s, "WRITE_ONLY", 100, b"1234")
    assert s.out() == []


def test_ack_coalescing(new: NewScript) -> None:
    s = new()
    for psn in range(100, 110):
        write(s, "WRITE_ONLY", psn, b"1234", ackreq=True)
    assert s.out() == ["ACKNOWLEDGE 109 1f"]
    assert s.counters["acks_coalesced"] == 9


@pytest.mark.parametrize(
    ("name", "over", "flags"),
    [
        ("SEND_ONLY", {}, 0),
        ("SEND_ONLY", {"solicited": True}, CQE_SOLICITED),
        ("SEND_ONLY_IMM", {"imm": 7}, CQE_IMM),
        ("WRITE_ONLY_IMM", {"imm": 8}, CQE_IMM),
    ],
)
def test_receive_completion(new: NewScript, name: str, over: dict[str, Any], flags: int) -> None:
    s = new()
    s.recv(100, at=1000)
    write(s, name, 100, b"abcd", at=1000, **over)
    entry = s.recv_cq.entries[0]
    assert (entry.length, entry.imm, entry.index, entry.qpn) == (4, over.get("imm", 0), 0, 16)
    assert entry.word3 & (CQE_IMM | CQE_SOLICITED | CQE_INV) == flags
    assert s.data[1000:1004] == b"abcd"


def test_send_with_invalidate_of_nothing_fails(new: NewScript) -> None:
    s = new()
    s.recv(100)
    s.inject("SEND_ONLY_INV", 100, payload=b"abcd", inv_rkey=0x4242)
    assert s.out() == ["ACKNOWLEDGE 100 62"]
    assert s.recv_cq.take() == ["REM_INV_REQ_ERR"]


def test_read_and_atomics(new: NewScript) -> None:
    s = new()
    before = int.from_bytes(s.data[:8], "little")
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=600)
    s.inject("FETCH_ADD", 103, va=s.va, rkey=s.key, swap_add=1)
    s.inject("COMPARE_SWAP", 104, va=s.va, rkey=s.key, swap_add=5, compare=(before + 1) % 2**64)
    s.inject("COMPARE_SWAP", 105, va=s.va, rkey=s.key, swap_add=6, compare=4)
    first, middle, last, *atomics = s.packets()
    assert [p.row.name[17:] for p in (first, middle, last)] == ["FIRST", "MIDDLE", "LAST"]
    assert [p.orig for p in atomics] == [before, (before + 1) % 2**64, 5]
    assert [p.msn for p in (first, last, *atomics)] == [1, 1, 2, 3, 4]
    assert {p.syndrome for p in (first, last, *atomics)} == {0x1F}
    assert s.data[:8] == (5).to_bytes(8, "little")


def test_the_last_word_of_a_region_can_be_changed(new: NewScript) -> None:
    s = new()
    end = len(s.data) - 8
    s.data[end:] = bytes(8)
    s.inject("FETCH_ADD", 100, va=s.va + end, rkey=s.key, swap_add=5)
    assert s.data[end:] == (5).to_bytes(8, "little")
    s.inject("FETCH_ADD", 101, va=s.va + end + 8, rkey=s.key, swap_add=5)
    assert s.ctx.state == ERR


def test_replies_keep_to_the_budget(new: NewScript) -> None:
    s = new()
    write(s, "WRITE_ONLY", 100, b"1234", ackreq=True)
    s.inject("READ_REQUEST", 101, va=s.va, rkey=s.key, dma_length=10 * 256)
    assert [len(s.packets(6)) for _ in range(3)] == [6, 5, 0]


def test_zero_length_needs_no_key(new: NewScript) -> None:
    s = new()
    write(s, "WRITE_ONLY", 100, rkey=1, ackreq=True)
    s.inject("READ_REQUEST", 101, rkey=1, dma_length=0)
    assert s.out() == ["ACKNOWLEDGE 100 1f", "READ_RESPONSE_ONLY 101"]


def test_msn_wraps(new: NewScript) -> None:
    s = new()
    s.qp.responder.msn = 0xFFFFFF
    write(s, "WRITE_ONLY", 100, b"1234", ackreq=True)
    (ack,) = s.packets()
    assert (ack.psn, ack.msn, s.ctx.rmsn) == (100, 0, 0)


@pytest.mark.parametrize("operation", ["WRITE_ONLY", "READ_REQUEST", "FETCH_ADD"])
def test_a_key_of_before_opens_nothing(new: NewScript, operation: str) -> None:
    """The right index with another tag: what had that key is gone, and somebody else's memory is in its place."""
    s = new()
    before = bytes(s.data)
    fields = {"va": s.va, "rkey": s.key ^ 1}
    if operation == "FETCH_ADD":
        s.inject(operation, 100, swap_add=1, **fields)
    else:
        s.inject(operation, 100, payload=b"1234" if operation == "WRITE_ONLY" else b"", dma_length=4, **fields)
    assert s.out() == ["ACKNOWLEDGE 100 62"]
    assert bytes(s.data) == before


@pytest.mark.parametrize("operation", ["FETCH_ADD", "COMPARE_SWAP"])
def test_an_atomic_of_no_whole_word_is_refused(new: NewScript, operation: str) -> None:
    s = new()
    before = bytes(s.data)
    s.inject(operation, 100, va=s.va + 4, rkey=s.key, swap_add=1, compare=int.from_bytes(before[4:12], "little"))
    (line,) = s.out()
    assert line.startswith("ACKNOWLEDGE 100 6")
    assert bytes(s.data) == before


# ------------------------------------------------------------------------------------ check_psn


def test_one_sequence_nak_a_gap(new: NewScript) -> None:
    s = new()
    for psn in (101, 102, 103):
        write(s, "WRITE_ONLY", psn, b"1234")
    assert s.out() == ["ACKNOWLEDGE 100 60"]
    assert (s.counters["drop_psn_gap"], s.counters["drop_naked"]) == (1, 2)
    write(s, "WRITE_ONLY", 100, b"1234")
    write(s, "WRITE_ONLY", 102, b"1234")
    assert s.out() == ["ACKNOWLEDGE 101 60"]


def test_an_ack_does_not_take_the_place_of_a_nak(new: NewScript) -> None:
    """Later ACKs cover earlier ones (IBA 9.7.5.1.2), not what asks for a packet again."""
    s = new()
    write(s, "WRITE_ONLY", 101, b"1234")
    write(s, "WRITE_ONLY", 100, b"1234", ackreq=True)
    write(s, "WRITE_ONLY", 101, b"1234", ackreq=True)
    assert s.out() == ["ACKNOWLEDGE 100 60", "ACKNOWLEDGE 101 1f"]


def test_duplicate_send_and_write(new: NewScript) -> None:
    s = new()
    s.recv(100)
    s.recv(100)
    for psn in (100, 101):
        s.inject("SEND_ONLY", psn, payload=b"abcd")
    s.inject("SEND_ONLY", 100, payload=b"efgh")
    assert s.out() == ["ACKNOWLEDGE 101 1f"]
    assert s.recv_cq.take() == ["SUCCESS"] * 2
    assert s.data[:4] == b"abcd"


def test_duplicate_read_whole_and_from_the_middle(new: NewScript) -> None:
    s = new()
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=600)
    s.out()
    s.inject("READ_REQUEST", 101, va=s.va + 256, rkey=s.key, dma_length=344)
    assert s.out() == ["READ_RESPONSE_FIRST 101", "READ_RESPONSE_LAST 102"]
    for over in ({"va": s.va + 8}, {"rkey": s.key ^ 1}, {"dma_length": 9999}):
        fields = {"va": s.va, "rkey": s.key, "dma_length": 600} | over
        s.inject("READ_REQUEST", 100, **fields)
    s.inject("READ_REQUEST", 90, va=s.va, rkey=s.key, dma_length=600)
    assert s.out() == []
    assert s.counters["drop_duplicate_unmatched"] == 4


def test_a_stale_read_whose_memory_is_gone_harms_nobody(new: NewScript) -> None:
    s = new()
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=600)
    s.out()
    s.host.memory.disable(s.key)
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=600)
    assert s.out() == []
    assert s.ctx.state == RTS


def test_duplicate_atomic_is_replayed_not_repeated(new: NewScript) -> None:
    s = new()
    s.data[:8] = bytes(8)
    for _ in range(3):
        s.inject("FETCH_ADD", 100, va=s.va, rkey=s.key, swap_add=1)
        assert [p.orig for p in s.packets()] == [0]
    assert s.data[0] == 1
    s.inject("FETCH_ADD", 100, va=s.va, rkey=s.key, swap_add=2)
    assert s.out() == []


def test_of_two_atomics_with_one_psn_the_newest_answers(new: NewScript) -> None:
    """2^24 PSNs lie between them, and no other READ or atomic."""
    s = new()
    s.data[:8] = bytes(8)
    for orig in range(2):
        s.ctx.expected_psn = 100
        for _ in range(2):
            s.inject("FETCH_ADD", 100, va=s.va, rkey=s.key, swap_add=1)
            assert [p.orig for p in s.packets()] == [orig]


def test_answers_to_duplicates_do_not_count_against_the_limit(new: NewScript) -> None:
    s = new(max_dest_rd_atomic=1)
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=600)
    s.packets(1)
    s.inject("READ_REQUEST", 101, va=s.va + 256, rkey=s.key, dma_length=344)
    s.packets(2)  # the first answer is out, the duplicate's waits
    s.inject("READ_REQUEST", 103, va=s.va, rkey=s.key, dma_length=8)
    assert s.ctx.state == RTS
    assert "READ_RESPONSE_ONLY 103" in s.out()


def test_the_second_of_two_saved_requests_is_found(new: NewScript) -> None:
    s = new()
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=8)
    s.inject("FETCH_ADD", 101, va=s.va, rkey=s.key, swap_add=1)
    s.inject("READ_REQUEST", 102, va=s.va + 8, rkey=s.key, dma_length=8)
    s.packets()
    s.inject("FETCH_ADD", 101, va=s.va, rkey=s.key, swap_add=1)
    s.inject("READ_REQUEST", 102, va=s.va + 8, rkey=s.key, dma_length=8)
    assert s.out() == ["ATOMIC_ACKNOWLEDGE 101", "READ_RESPONSE_ONLY 102"]


def test_a_repeated_read_leaves_room_for_new_ones(new: NewScript) -> None:
    """An answer to a duplicate that has gone out frees nothing that it never took."""
    s = new(max_dest_rd_atomic=2)
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=8)
    s.inject("FETCH_ADD", 101, va=s.va, rkey=s.key)
    s.packets()
    for _ in range(3):
        s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=8)
        s.inject("FETCH_ADD", 101, va=s.va, rkey=s.key)
        assert s.qp.responder.replies.pending_reads == 0
        assert len(s.packets()) == 2
    for psn in (102, 103, 104):
        s.inject("READ_REQUEST", psn, va=s.va, rkey=s.key, dma_length=8)
    assert s.ctx.state == ERR


def test_replies_are_bounded(new: NewScript) -> None:
    s = new()
    responder = s.qp.responder
    for psn in range(REPLIES - 2):
        responder.replies.atomic(psn, 0, 0x1F, 0, again=True)
    for psn in (100, 101, 102, 103):
        responder.reply(psn, 0x60)
    assert len(responder.replies) == REPLIES


def test_repeated_reads_are_bounded(new: NewScript) -> None:
    s = new()
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=60_000)
    for again in range(REPLIES // 2 + 10):  # two of each
        psn = 100 + again % 234
        length = 60_000 - again % 234 * 256
        s.inject("READ_REQUEST", psn, va=s.va + again % 234 * 256, rkey=s.key, dma_length=length)
        s.inject("FETCH_ADD", 90 + again % 9, va=s.va, rkey=s.key)
    assert len(s.qp.responder.replies) <= REPLIES


# ------------------------------------------------------------------- refusals: NAK, status, event


@pytest.mark.parametrize(
    ("packets", "nak", "event"),
    [
        # check_op_seq
        (["WRITE_MIDDLE"], 0x61, WQ_INVAL_REQ_ERROR),
        (["SEND_LAST"], 0x61, WQ_INVAL_REQ_ERROR),
        (["WRITE_FIRST", "WRITE_ONLY"], 0x61, WQ_INVAL_REQ_ERROR),
        (["WRITE_FIRST", "SEND_MIDDLE"], 0x61, WQ_INVAL_REQ_ERROR),
        (["WRITE_FIRST", "READ_REQUEST"], 0x61, WQ_INVAL_REQ_ERROR),
    ],
)
def test_sequence(new: NewScript, packets: list[str], nak: int, event: int) -> None:
    s = new()
    for offset, name in enumerate(packets):
        write(s, name, 100 + offset, FULL if "MIDDLE" in name or "FIRST" in name else b"", length=1024)
    assert s.out() == [f"ACKNOWLEDGE {99 + len(packets)} {nak:02x}"]
    assert s.ctx.state == ERR
    assert s.event_types() == [event]


@pytest.mark.parametrize(
    ("name", "over", "nak"),
    [
        ("WRITE_ONLY", {"rkey": 1}, 0x62),
        ("WRITE_ONLY", {"va": 1}, 0x62),
        ("WRITE_ONLY", {"va": (1 << 64) - 2}, 0x62),
        ("READ_REQUEST", {"rkey": 1, "dma_length": 8}, 0x62),
        ("FETCH_ADD", {"rkey": 1}, 0x62),
        ("FETCH_ADD", {"va": 4}, 0x61),
        ("READ_REQUEST", {"dma_length": (1 << 31) + 1}, 0x61),
        ("READ_REQUEST", {"dma_length": 1 << 31}, 0x61),
        ("WRITE_FIRST", {"dma_length": (1 << 32) - 1, "payload": FULL}, 0x61),
        ("WRITE_FIRST", {"dma_length": 256, "payload": FULL}, 0x61),
        ("WRITE_FIRST", {"dma_length": 600, "payload": b"1234"}, 0x61),
        ("WRITE_ONLY", {"dma_length": 8}, 0x61),
        ("WRITE_ONLY", {"dma_length": 300, "payload": FULL + b"1234"}, 0x61),
    ],
)
def test_refusals(new: NewScript, name: str, over: dict[str, Any], nak: int) -> None:
    s = new()
    payload = b"1234" if name == "WRITE_ONLY" else b""
    s.inject(name, 100, **{"va": s.va, "rkey": s.key, "dma_length": len(payload), "payload": payload} | over)
    assert s.out() == [f"ACKNOWLEDGE 100 {nak:02x}"]
    assert s.event_types() == [WQ_ACCESS_ERROR if nak == 0x62 else WQ_INVAL_REQ_ERROR]
    assert s.ctx.state == ERR


@pytest.mark.parametrize("name", ["WRITE_ONLY", "READ_REQUEST", "FETCH_ADD"])
def test_access_flags_of_the_qp(new: NewScript, name: str) -> None:
    s = new(access_flags=0)
    write(s, name, 100)
    assert s.out() == ["ACKNOWLEDGE 100 61"]


def test_rights_and_pd(new: NewScript) -> None:
    for access, pd in ((0x1 | 0x4, 1), (0x1F, 2)):
        s = new()
        entry = s.register(bytearray(64), access, pd)
        write(s, "WRITE_ONLY", 100, b"1234", va=entry.start, rkey=entry.key)
        assert s.out() == ["ACKNOWLEDGE 100 62"]


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_write_ends_with_its_region_at_the_latest(new: NewScript, beyond: int) -> None:
    s = new()
    entry = s.register(bytearray(64))
    write(s, "WRITE_ONLY", 100, b"1234", va=entry.start + 60 + beyond, rkey=entry.key, ackreq=True)
    assert s.out() == [f"ACKNOWLEDGE 100 {0x62 if beyond else 0x1F:02x}"]


def test_a_scatter_entry_ends_with_its_region_at_the_latest(new: NewScript) -> None:
    s = new()
    s.recv(8, at=len(s.data) - 8)
    s.recv(8, at=len(s.data) - 7)
    s.inject("SEND_ONLY", 100, payload=b"12345678")
    s.inject("SEND_ONLY", 101, payload=b"1")
    assert s.data[-8:] == b"12345678"
    assert s.out() == ["ACKNOWLEDGE 101 63"]


def test_too_many_reads(new: NewScript) -> None:
    s = new(max_dest_rd_atomic=2)
    for psn in (100, 101, 102):
        s.inject("READ_REQUEST", psn, va=s.va, rkey=s.key, dma_length=8)
    assert s.out() == ["READ_RESPONSE_ONLY 100", "READ_RESPONSE_ONLY 101", "ACKNOWLEDGE 102 61"]


@pytest.mark.parametrize(("length", "nak"), [(1 << 31, 0x62), ((1 << 31) + 1, 0x61)])
def test_no_message_is_longer_than_2_gib(new: NewScript, length: int, nak: int) -> None:
    """What is too long is an invalid request; what is not, here, only lies outside of the region."""
    for name, extra in (("WRITE_FIRST", {"payload": bytes(4096)}), ("READ_REQUEST", {})):
        s = new(mtu=5)
        s.inject(name, 100, va=s.va, rkey=s.key, dma_length=length, **extra)
        assert s.out() == [f"ACKNOWLEDGE 100 {nak:02x}"]


def test_send_too_long(new: NewScript) -> None:
    s = new()
    s.recv(300)
    s.inject("SEND_FIRST", 100, payload=FULL)
    s.inject("SEND_LAST", 101, payload=bytes(48))
    assert s.out() == ["ACKNOWLEDGE 101 61"]
    assert s.recv_cq.take() == ["LOC_LEN_ERR"]


def test_receive_entry_with_a_bad_key(new: NewScript) -> None:
    s = new()
    s.recv(300, key=5)
    s.inject("SEND_ONLY", 100, payload=b"1234")
    assert s.out() == ["ACKNOWLEDGE 100 63"]
    assert s.recv_cq.take() == ["LOC_PROT_ERR"]


def test_rnr(new: NewScript) -> None:
    s = new(rnr_nak_timer=14)
    for psn in (100, 101):
        s.inject("SEND_ONLY", psn, payload=b"1234")
    assert s.out() == ["ACKNOWLEDGE 100 2e"]
    s.recv(10)
    s.inject("SEND_ONLY", 100, payload=b"1234", ackreq=True)
    assert s.out() == ["ACKNOWLEDGE 100 1f"]
    write(s, "WRITE_ONLY_IMM", 101, b"1234")
    assert s.out() == ["ACKNOWLEDGE 101 2e"]


@pytest.mark.parametrize("service", [ST_RC, ST_UC, ST_UD])
def test_a_receive_ring_that_cannot_be_read_is_a_local_fault(
    new: NewScript, monkeypatch: pytest.MonkeyPatch, service: int
) -> None:
    """004 7.7: no RNR without end, since no receive that is posted will ever be found."""
    s = new(service, far=True)
    monkeypatch.setattr(ReceiveRing, "_read", lambda ring, offset, length: None)
    fields = {"qkey": 0x1111, "sqpn": 7} if service == ST_UD else {}
    if service == ST_RC:
        s.inject("SEND_ONLY", 100, payload=b"1234")
        assert s.out() == ["ACKNOWLEDGE 100 21"]  # nothing is posted: the peer may wait
    s.recv(1024)
    s.inject("SEND_ONLY", 100, payload=b"1234", **fields)
    assert s.out() == (["ACKNOWLEDGE 100 63"] if service == ST_RC else [])
    assert (s.ctx.state, s.counters["qp_faults"]) == (ERR, 1)
    assert s.event_types() == [WQ_CATAS_ERROR]
    assert s.recv_cq.take() == []


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_rq_almost_full(new: NewScript, kept: int) -> None:
    """004 RC_CHK: with no more entries posted than the threshold, RNR; what was taken before goes on."""
    s = new(rnr_nak_timer=14, rq_almost_full=kept)
    for _ in range(kept + 1):
        s.recv(1024)
    s.inject("SEND_FIRST", 100, payload=FULL)
    s.inject("SEND_LAST", 101, payload=b"1234", ackreq=True)
    assert s.out() == ["ACKNOWLEDGE 101 1f"]
    s.inject("SEND_ONLY", 102, payload=b"1234")
    assert s.out() == ["ACKNOWLEDGE 102 2e"]
    write(s, "WRITE_ONLY_IMM", 102, b"1234")
    assert s.out() == ["ACKNOWLEDGE 102 2e"]
    s.recv(1024)
    write(s, "WRITE_ONLY_IMM", 102, b"1234", ackreq=True)
    assert s.out() == ["ACKNOWLEDGE 102 1f"]


@pytest.mark.parametrize(("kept", "answer"), [(62, "20"), (63, "1f"), (1000, "1f")])
def test_a_ring_that_holds_no_more_than_is_kept_back_is_used_whole(new: NewScript, kept: int, answer: str) -> None:
    """A program that posts one receive at a time hangs otherwise, as its ring never holds more than the threshold."""
    s = new(rnr_nak_timer=0, rq_almost_full=kept)
    s.recv(1024)
    s.inject("SEND_ONLY", 100, payload=b"1234", ackreq=True)
    assert s.out() == [f"ACKNOWLEDGE 100 {answer}"]
    if answer == "20":
        assert s.qp.why is not None
        assert s.qp.why.text.endswith(
            "no receive is posted: 1 posted, RQ_ALMOST_FULL=62 of them kept back; an RNR NAK lets the peer wait"
        )
    s = new(options=OPT_CREDITS, rq_almost_full=kept)
    for _ in range(3):
        s.recv(600)
    s.inject("WRITE_ONLY", 100, va=s.va, rkey=s.key, dma_length=4, payload=b"1234", ackreq=True)
    assert [(p.syndrome, p.msn) for p in s.packets()] == [(3 if answer == "1f" else 0, 1)]


@pytest.mark.parametrize("service", [ST_UC, ST_UD])
def test_unreliable_services_use_every_entry(new: NewScript, service: int) -> None:
    s = new(service, rq_almost_full=3)
    s.recv(1024)
    s.inject("SEND_ONLY", 100, payload=b"1234", **({"qkey": 0x1111, "sqpn": 7} if service == ST_UD else {}))
    assert s.recv_cq.take() == ["SUCCESS"]


def test_credits_leave_out_what_is_kept_back(new: NewScript) -> None:
    s = new(options=OPT_CREDITS, rq_almost_full=2)
    for _ in range(3):
        s.recv(600)
    s.inject("SEND_ONLY", 100, payload=b"1234", ackreq=True)
    assert [(p.syndrome, p.msn) for p in s.packets()] == [(0, 1)]


def test_region_vanishes_under_an_open_write_or_read(new: NewScript) -> None:
    s = new()
    write(s, "WRITE_FIRST", 100, FULL, length=600)
    s.host.memory.disable(s.key)
    s.inject("WRITE_MIDDLE", 101, payload=b"\1" * 256)
    assert s.out() == ["ACKNOWLEDGE 101 62"]
    assert s.data[256:512] != b"\1" * 256
    s = new()
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=600)
    s.inject("FETCH_ADD", 103, va=s.va, rkey=s.key)
    assert (
        s.out(1)
        == ["READ_RESPONSE_FIRST 100", "READ_RESPONSE_MIDDLE 101", "READ_RESPONSE_LAST 102", "ATOMIC_ACKNOWLEDGE 103"][
            :4
        ]
    )
    s.inject("READ_REQUEST", 104, va=s.va, rkey=s.key, dma_length=60_000)
    s.packets(4)
    s.host.memory.disable(s.key)
    s.packets()
    assert s.out() == ["ACKNOWLEDGE 108 63"]
    assert s.ctx.state == ERR


def test_window_bound_elsewhere_under_an_open_write(new: NewScript) -> None:
    s = new()
    table = s.host.memory
    from rnic.mem.table import WINDOW1, MemoryEntry

    key = table.alloc_key(WINDOW1)
    table.enable(MemoryEntry(key, 1, 0, 0, 0, kind=WINDOW1))
    assert table.bind_window(key_index(key), key, s.key, 1, 16, s.va, 1024, REMOTE_WRITE)
    write(s, "WRITE_FIRST", 100, FULL, length=512, rkey=key)
    assert table.bind_window(key_index(key), key, s.key, 1, 16, s.va + 4096, 1024, REMOTE_WRITE)
    before = bytes(s.data)
    s.inject("WRITE_LAST", 101, payload=FULL)
    assert s.out() == ["ACKNOWLEDGE 101 62"]
    assert s.data == before


def test_window_bound_to_more_under_an_open_write(new: NewScript) -> None:
    """It opens all that the WRITE needs still, but it is not what the WRITE began in."""
    from rnic.mem.table import WINDOW1, MemoryEntry

    s = new()
    table = s.host.memory
    key = table.alloc_key(WINDOW1)
    table.enable(MemoryEntry(key, 1, 0, 0, 0, kind=WINDOW1))
    assert table.bind_window(key_index(key), key, s.key, 1, 16, s.va, 1024, REMOTE_WRITE)
    write(s, "WRITE_FIRST", 100, FULL, length=768, rkey=key)
    s.inject("WRITE_MIDDLE", 101, payload=FULL)
    assert s.data[256:512] == FULL
    assert table.bind_window(key_index(key), key, s.key, 1, 16, s.va, 2048, REMOTE_WRITE)
    before = bytes(s.data)
    s.inject("WRITE_LAST", 102, payload=FULL)
    assert s.out() == ["ACKNOWLEDGE 102 62"]
    assert s.data == before


@pytest.mark.parametrize("kind", ["SEND", "WRITE"])
def test_a_last_packet_holds_at_least_one_byte(new: NewScript, kind: str) -> None:
    """IBA 9.7 (C9-92): the length of a LAST packet is 1 to PMTU."""
    s = new()
    s.recv(1024)
    s.inject(f"{kind}_FIRST", 100, payload=FULL, va=s.va, rkey=s.key, dma_length=2 * len(FULL))
    s.inject(f"{kind}_LAST", 101, payload=b"")
    assert s.out() == ["ACKNOWLEDGE 101 61"]
    assert s.ctx.state == ERR


def test_credits_count_the_entry_of_an_open_message(new: NewScript) -> None:
    s = new(options=OPT_CREDITS)
    s.recv(600)
    s.recv(600)
    s.inject("SEND_FIRST", 100, payload=FULL, ackreq=True)
    assert [(p.syndrome, p.msn) for p in s.packets()] == [(2, 0)]
    s.inject("SEND_LAST", 101, payload=FULL, ackreq=True)
    assert [(p.syndrome, p.msn) for p in s.packets()] == [(1, 1)]


# --------------------------------------------------------------------------------------- UC, UD, rest


def test_uc_gap_drops_the_message_and_keeps_its_receive_entry(new: NewScript) -> None:
    s = new(ST_UC)
    s.recv(1024)
    s.inject("SEND_FIRST", 100, payload=FULL)
    s.inject("SEND_LAST", 102, payload=FULL)
    write(s, "WRITE_ONLY", 103, b"1234", at=2048)  # not the message that the entry waits for
    s.inject("SEND_ONLY", 110, payload=b"abcd")
    assert [(e.index, e.length) for e in s.recv_cq.entries] == [(0, 4)]
    assert s.data[:4] == b"abcd"
    assert s.out() == []
    assert s.events == []


@pytest.mark.parametrize(
    ("packets", "counter"),
    [
        (["SEND_MIDDLE"], "drop_bad_sequence"),
        (["SEND_FIRST", "SEND_ONLY"], "drop_bad_sequence"),
        (["SEND_FIRST", "WRITE_MIDDLE"], "drop_bad_sequence"),
    ],
)
def test_uc_sequence(new: NewScript, packets: list[str], counter: str) -> None:
    s = new(ST_UC)
    s.recv(1024)
    for offset, name in enumerate(packets):
        s.inject(name, 100 + offset, payload=b"1234" if "ONLY" in name else FULL)
    assert s.counters[counter] == 1
    assert s.ctx.state == RTS


def test_uc_goes_on_behind_what_it_refused(new: NewScript) -> None:
    s = new(ST_UC)
    write(s, "WRITE_ONLY", 100, b"1234", rkey=5)
    write(s, "WRITE_ONLY", 101, b"5678")
    assert s.data[:4] == b"5678"
    assert (s.counters["drop_access"], s.counters["drop_psn_gap"]) == (1, 0)


def test_uc_forgets_the_open_message_at_a_gap(new: NewScript) -> None:
    """The packet that is late comes in its place, but its message is lost already."""
    s = new(ST_UC)
    s.recv(700)
    s.inject("SEND_FIRST", 100, payload=FULL)
    s.inject("SEND_LAST", 102, payload=b"1234")
    s.inject("SEND_LAST", 101, payload=b"1234")
    assert s.recv_cq.take() == []
    assert (s.counters["drop_psn_gap"], s.counters["drop_bad_sequence"]) == (1, 1)


def test_uc_without_receive_or_rights(new: NewScript) -> None:
    s = new(ST_UC)
    s.inject("SEND_ONLY", 100, payload=b"1234")
    write(s, "WRITE_ONLY", 101, b"1234", rkey=1)
    write(s, "WRITE_ONLY", 102, b"1234", length=8)
    assert (s.counters["drop_no_receive"], s.counters["drop_access"], s.counters["drop_bad_length"]) == (1, 1, 1)
    write(s, "WRITE_ONLY", 103, b"abcd")
    assert s.data[:4] == b"abcd"


def test_uc_receive_entry_with_a_bad_key_fails_the_qp(new: NewScript) -> None:
    s = new(ST_UC)
    s.recv(100, key=5)
    s.inject("SEND_ONLY", 100, payload=b"1234")
    assert s.recv_cq.take() == ["LOC_PROT_ERR"]
    assert s.ctx.state == ERR


def test_ud_receive(new: NewScript) -> None:
    s = new(ST_UD)
    s.inject("SEND_ONLY", 5, qkey=0x1111, sqpn=9, payload=b"1234")
    s.recv(100)
    s.inject("SEND_ONLY", 5, qkey=0x2222, sqpn=9, payload=b"1234")
    s.inject("SEND_ONLY_IMM", 5, qkey=0x1111, sqpn=9, payload=b"1234", imm=3, solicited=True)
    entry = s.recv_cq.entries[0]
    assert (entry.length, entry.wqe_id, entry.imm) == (44, 9, 3)
    assert entry.word3 & CQE_SOLICITED
    assert s.data[40:44] == b"1234"
    assert s.data[20] == 0x45  # an IPv4 header in the last 20 bytes
    assert (s.counters["drop_no_receive"], s.counters["drop_bad_qkey"]) == (1, 1)
    s.inject("SEND_ONLY", 5, qkey=0x1111, sqpn=9, payload=FULL + b"1234")
    assert s.counters["drop_bad_length"] == 1


@pytest.mark.parametrize(("length", "key", "status"), [(43, None, "LOC_LEN_ERR"), (100, 5, "LOC_PROT_ERR")])
def test_ud_receive_errors(new: NewScript, length: int, key: int | None, status: str) -> None:
    s = new(ST_UD)
    s.recv(length, key=key)
    s.recv(100)
    s.inject("SEND_ONLY", 5, qkey=0x1111, sqpn=9, payload=b"1234")
    assert s.recv_cq.take() == [status, "WR_FLUSH_ERR"]
    assert s.ctx.state == ERR
    assert s.events == []  # the completion tells it


def test_comm_est_and_replies_in_rtr(new: NewScript) -> None:
    s = new(state=RTR)
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=8)
    write(s, "WRITE_ONLY", 101, b"1234", ackreq=True)
    assert s.event_types() == [COMM_EST]
    assert s.out() == ["READ_RESPONSE_ONLY 100", "ACKNOWLEDGE 101 1f"]
    s.ack(100)
    assert s.counters["drop_ghost_response"] == 1


def test_last_wqe_event_of_an_srq_comes_once(new: NewScript) -> None:
    s = new(srqn=3 | SRQ_VALID)
    s.recv(100)
    write(s, "WRITE_ONLY", 100, b"1234", rkey=1)
    s.qp.fail_receive(0x14, 0, None)
    s.to(ERR)
    assert s.event_types().count(SRQ_LAST_WQE) == 1
    assert s.recv_cq.take() == []  # the SRQ's entries are not this QP's


@pytest.mark.parametrize("state", [ERR, RESET])
def test_what_it_took_is_acknowledged_when_software_stops_it(new: NewScript, state: int) -> None:
    s = new()
    s.recv(100)
    write(s, "SEND_ONLY", 100, b"1234", ackreq=True)
    s.inject("READ_REQUEST", 101, va=s.va, rkey=s.key, dma_length=4)
    write(s, "WRITE_ONLY", 102, b"1234", ackreq=True)
    s.to(state)
    assert s.parted() == ["ACKNOWLEDGE 100 1f"]  # the READ is unanswered, and nothing behind it may overtake it
    assert s.out() == []
    write(s, "WRITE_ONLY", 103, b"1234", ackreq=True)
    assert s.counters["drop_qp_state"] == 1
    assert s.parted() == s.out() == []


# -------------------------------------------------------------------------- unsupported operations


@pytest.mark.parametrize("opcode", [0x15, 0x18, 0x19, 0x1A, 0x1B, 0x1E, 0x1F])
@pytest.mark.parametrize("payload", [b"", b"x" * 24])
def test_an_unsupported_operation_is_an_invalid_request(new: NewScript, opcode: int, payload: bytes) -> None:
    s = new()
    s.inject(f"UNSUPPORTED_{opcode:02X}", 100, payload=payload)
    assert s.out() == ["ACKNOWLEDGE 100 61"]
    assert s.ctx.state == ERR
    assert s.event_types() == [WQ_INVAL_REQ_ERROR]


def test_an_unsupported_operation_is_looked_at_in_its_turn_only(new: NewScript) -> None:
    s = new()
    s.inject("UNSUPPORTED_1B", 101)
    assert s.out() == ["ACKNOWLEDGE 100 60"]
    s.inject("UNSUPPORTED_1B", 99)
    assert s.ctx.state == RTS
    s.inject("UNSUPPORTED_1B", 100)
    assert s.out()[-1] == "ACKNOWLEDGE 100 61"
    assert s.ctx.state == ERR


# ------------------------------------------------------------------------------- lost completions


@pytest.mark.parametrize("name", ["SEND_ONLY", "SEND_ONLY_IMM", "WRITE_ONLY_IMM"])
def test_a_message_whose_completion_is_lost_is_not_acknowledged(new: NewScript, name: str) -> None:
    s = new()
    for _ in range(4):
        s.recv(100)
    s.recv_cq.room = 2
    for psn in range(100, 104):
        s.inject(name, psn, ackreq=True)
    assert s.out() == ["ACKNOWLEDGE 102 63"]  # it acknowledges 101
    assert (s.ctx.state, s.ctx.expected_psn, s.ctx.rmsn) == (ERR, 102, 2)
    assert s.recv_cq.take() == ["SUCCESS"] * 2
    assert s.event_types() == [WQ_CATAS_ERROR]


def test_an_unreliable_message_whose_completion_is_lost_fails_the_queue_pair(new: NewScript) -> None:
    s = new(ST_UC)
    s.recv(100)
    s.recv_cq.room = 0
    s.inject("SEND_ONLY", 100, payload=b"abcd")
    assert s.out() == []
    assert s.ctx.state == ERR


# ------------------------------------------------------------------------- counters of the context


def test_rq_wqe_counter_counts_receive_entries_taken(new: NewScript) -> None:
    s = new(rq_wqe_counter=0xFFFE)
    for _ in range(4):
        s.recv(512)
    s.inject("SEND_ONLY", 100)
    assert s.ctx.rq_wqe_counter == 0xFFFF
    s.inject("WRITE_ONLY_IMM", 101)
    assert s.ctx.rq_wqe_counter == 0
    s.inject("SEND_FIRST", 102, payload=FULL)
    assert s.ctx.rq_wqe_counter == 1
    s.to(ERR)
    assert s.ctx.rq_wqe_counter == 2  # flushed entries are taken too


def test_rq_wqe_counter_of_datagrams(new: NewScript) -> None:
    s = new(ST_UD)
    s.recv(100)
    s.inject("SEND_ONLY", 0, qkey=0x1111, payload=b"abcd")
    assert s.ctx.rq_wqe_counter == 1


def test_ra_buff_indx_is_the_slot_that_the_next_read_or_atomic_takes(new: NewScript) -> None:
    s = new(max_dest_rd_atomic=3)
    for number in range(5):
        assert s.ctx.ra_buff_indx == number % 3
        if number % 2:
            s.inject("FETCH_ADD", 100 + number, va=s.va, rkey=s.key, swap_add=1)
        else:
            s.inject("READ_REQUEST", 100 + number, va=s.va, rkey=s.key, dma_length=8)
        s.out()
    s.inject("READ_REQUEST", 104, va=s.va, rkey=s.key, dma_length=8)  # a duplicate takes none
    assert s.ctx.ra_buff_indx == 2


# ------------------------------------------------------------------------ beside requests of its own


@pytest.mark.parametrize("notified", [False, True])
def test_neither_answers_nor_requests_starve_the_others(new: NewScript, notified: bool) -> None:
    s = new()
    s.recv_cq.notified = notified
    s.inject("READ_REQUEST", 100, va=s.va, rkey=s.key, dma_length=64 * 256)
    s.post("WRITE", 64 * 256)
    first = [text.split()[0] for text in s.out(16)]
    assert len(first) == 20, "four packets for who comes second"
    answers = [text.startswith("READ_RESPONSE") for text in first]
    assert answers == ([True] * 16 + [False] * 4 if notified else [False] * 16 + [True] * 4)


@pytest.mark.parametrize("arm", [0, ARM_NEXT, ARM_SOLICITED])
@pytest.mark.parametrize("solicited", [False, True])
def test_answers_go_first_where_the_owner_sleeps_on_events(new: NewScript, arm: int, solicited: bool) -> None:
    """What it posts once it was woken must not overtake the ACK of what woke it."""
    s = new()
    s.recv(100)
    s.recv_cq.arm(arm)
    write(s, "SEND_ONLY", 100, b"1234", ackreq=True, solicited=solicited)
    s.post("SEND", 10)
    woken = arm == ARM_NEXT or (solicited and arm == ARM_SOLICITED)
    assert s.recv_cq.notified == woken
    sent = s.out()
    assert sent == (["ACKNOWLEDGE 100 1f", "SEND_ONLY 100!"] if woken else ["SEND_ONLY 100!", "ACKNOWLEDGE 100 1f"])


# ------------------------------------------------------------------------------------ what asks for no ACK


def test_what_asks_for_no_ack_gets_one_after_a_while(new: NewScript) -> None:
    s = new()
    write(s, "WRITE_ONLY", 100, b"1234")
    s.wait(60_000)
    write(s, "WRITE_ONLY", 101, b"5678", at=4)
    assert s.out() == []
    assert s.deadline == OWED_NS - 60_000
    s.wait(OWED_NS - 60_001)
    assert s.out() == []
    s.wait(1)
    assert s.out() == ["ACKNOWLEDGE 101 1f"]
    assert s.deadline is None


def test_a_long_round_trip_leaves_more_time_for_it(new: NewScript) -> None:
    s = new()
    s.qp.requester.peer.srtt = 2 * OWED_NS
    write(s, "WRITE_ONLY", 100, b"1234")
    assert s.deadline == 2.5 * OWED_NS


@pytest.mark.parametrize("answer", ["asked", "a gap", "a duplicate"])
def test_any_answer_settles_what_is_owed(new: NewScript, answer: str) -> None:
    s = new()
    write(s, "WRITE_ONLY", 100, b"1234")
    if answer == "asked":
        write(s, "WRITE_ONLY", 101, b"1234", ackreq=True)
    else:
        write(s, "WRITE_ONLY", 102 if answer == "a gap" else 100, b"1234")
    assert s.out() == [{"asked": "ACKNOWLEDGE 101 1f", "a gap": "ACKNOWLEDGE 101 60"}.get(answer, "ACKNOWLEDGE 100 1f")]
    assert s.deadline is None
    s.wait(2 * OWED_NS)
    assert s.out() == []


@pytest.mark.parametrize("name", ["READ_REQUEST", "FETCH_ADD"])
def test_a_response_with_data_settles_it_too(new: NewScript, name: str) -> None:
    """Else the ACK that follows would have the PSN of a request for data."""
    s = new()
    write(s, "WRITE_ONLY", 100, b"1234")
    fields = {"dma_length": 8} if name == "READ_REQUEST" else {"swap_add": 1}
    s.inject(name, 101, va=s.va, rkey=s.key, **fields)
    assert s.deadline is None
    (only,) = s.out()
    assert only.split()[1] == "101"
    s.wait(2 * OWED_NS)
    assert s.out() == []


def test_only_whole_messages_that_were_taken_are_owed_an_ack(new: NewScript) -> None:
    s = new()
    write(s, "WRITE_FIRST", 100, FULL, length=300)
    assert s.deadline is None
    write(s, "WRITE_LAST", 101, FULL[:44])
    assert s.deadline == OWED_NS


def test_no_ack_is_owed_for_what_is_unreliable(new: NewScript) -> None:
    s = new(ST_UC)
    write(s, "WRITE_ONLY", 100, b"1234")
    assert s.deadline is None


@pytest.mark.parametrize("state", [RESET, ERR])
def test_who_is_stopped_owes_nothing(new: NewScript, state: int) -> None:
    s = new()
    write(s, "WRITE_ONLY", 100, b"1234")
    s.to(state)
    s.wait(2 * OWED_NS)
    assert s.out() == []
    assert s.deadline is None


def test_before_it_may_send_it_acknowledges_all_the_same(new: NewScript) -> None:
    s = new(state=RTR)
    write(s, "WRITE_ONLY", 100, b"1234")
    s.wait(OWED_NS)
    assert s.out() == ["ACKNOWLEDGE 100 1f"]
