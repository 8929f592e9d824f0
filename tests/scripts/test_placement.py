"""FLUSH and ATOMIC WRITE, from both sides (IBA vol. 1, annex A19): what they ask for, answers, duplicates, rights."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.rings.sqe import FLAG_INLINE, FLAG_SIGNALED
from rnic.spec.access import FLUSH_GLOBAL, FLUSH_PERSISTENT, LOCAL_WRITE, REMOTE_WRITE
from rnic.spec.opcodes import LEVEL_MR, LEVEL_SHIFT, PLACEMENT_GLOBAL, PLACEMENT_PERSISTENT
from rnic.spec.states import ERR, RTS
from tests.scripts.conftest import NewScript, Script

REGION = PLACEMENT_GLOBAL | LEVEL_MR << LEVEL_SHIFT
BOTH = PLACEMENT_GLOBAL | PLACEMENT_PERSISTENT
RIGHTS = 0xF | FLUSH_GLOBAL | FLUSH_PERSISTENT
WORD = bytes(range(8))


def script(new: NewScript, access: int = 0x1F | FLUSH_GLOBAL, **fields: int) -> Script:
    """A queue pair with all rights, and a region of its own with ``access``: ``key`` and ``va`` are the region's."""
    s = new(**({"access_flags": RIGHTS} | fields))
    s.mr = s.register(s.data, access)
    s.key, s.va = s.mr.key, s.mr.start
    return s


# ------------------------------------------------------------------------------------ the requester's side


def test_a_flush_has_feth_and_reth(new: NewScript) -> None:
    s = new()
    s.post("FLUSH", imm=REGION, swap_add=600, rkey=0x1234, remote=0x7008)
    (packet,) = s.packets()
    assert (packet.row.name, packet.psn, packet.ackreq) == ("RC_FLUSH", 100, True)
    assert (packet.feth, packet.va, packet.rkey, packet.dma_length) == (REGION, 0x7008, 0x1234, 600)
    s.inject("READ_RESPONSE_ONLY", 100, syndrome=0x1F, msn=1)
    assert s.send_cq.take() == ["SUCCESS"]


def test_an_atomic_write_carries_its_eight_bytes(new: NewScript) -> None:
    s = new()
    s.post("ATOMIC_WRITE", swap_add=int.from_bytes(WORD, "little"))
    (packet,) = s.packets()
    assert (packet.row.name, packet.dma_length, bytes(packet.payload)) == ("RC_ATOMIC_WRITE", 8, WORD)
    s.inject("READ_RESPONSE_ONLY", 100, syndrome=0x1F, msn=1)
    assert s.send_cq.take() == ["SUCCESS"]


@pytest.mark.parametrize("name", ["FLUSH", "ATOMIC_WRITE"])
def test_it_waits_for_its_response(new: NewScript, name: str) -> None:
    """An ACK of a later request shows that the response was lost; the request goes again, the WRITE behind it too."""
    s = new()
    s.post(name, imm=PLACEMENT_GLOBAL)
    s.post("WRITE", 8)
    assert s.out() == [f"{name} 100!", "WRITE_ONLY 101!"]
    s.ack(101)
    assert s.send_cq.take() == []
    assert s.out() == [f"{name} 100!", "WRITE_ONLY 101!"]
    s.inject("READ_RESPONSE_ONLY", 100, syndrome=0x1F, msn=1)
    s.ack(101)
    assert s.send_cq.take() == ["SUCCESS"] * 2


def test_it_counts_as_an_outstanding_read(new: NewScript) -> None:
    s = new(max_rd_atomic=2)
    s.post("READ", 8)
    s.post("ATOMIC_WRITE")
    s.post("FLUSH", imm=PLACEMENT_GLOBAL)
    assert s.out() == ["READ_REQUEST 100!", "ATOMIC_WRITE 101!"]
    s.inject("READ_RESPONSE_ONLY", 100, payload=bytes(8))
    assert s.out() == ["FLUSH 102!"]
    s.inject("READ_RESPONSE_ONLY", 101)
    s.inject("READ_RESPONSE_ONLY", 102)
    assert s.send_cq.take() == ["SUCCESS"] * 3


@pytest.mark.parametrize("name", ["FLUSH", "ATOMIC_WRITE"])
def test_it_is_probed_for(new: NewScript, name: str) -> None:
    s = new(ackto=0)
    s.post(name, imm=PLACEMENT_GLOBAL, swap_add=5)
    before = s.packets()
    s.wait(10_000_000)
    after = s.packets()
    assert [(p.row.name, p.psn, bytes(p.payload)) for p in after] == [
        (p.row.name, p.psn, bytes(p.payload)) for p in before
    ]
    assert s.counters["probes"] == 1


@pytest.mark.parametrize("name", ["FLUSH", "ATOMIC_WRITE"])
def test_other_responses_are_bad(new: NewScript, name: str) -> None:
    for answer, fields in (("ATOMIC_ACKNOWLEDGE", {"orig": 1}), ("READ_RESPONSE_ONLY", {"payload": bytes(8)})):
        s = new()
        s.post(name, imm=PLACEMENT_GLOBAL)
        s.out()
        s.inject(answer, 100, **fields)
        assert s.send_cq.take() == ["BAD_RESP_ERR"]


@pytest.mark.parametrize("name", ["FLUSH", "ATOMIC_WRITE"])
def test_an_entry_with_bytes_of_its_own_fails(new: NewScript, name: str) -> None:
    s = new()
    s.post(name, 8)
    assert s.out() == []
    assert s.send_cq.take() == ["LOC_LEN_ERR"]
    s = new()
    s.post(name, 0, flags=FLAG_SIGNALED | FLAG_INLINE)
    assert s.out() == []
    assert s.send_cq.take() == ["LOC_QP_OP_ERR"]


# ------------------------------------------------------------------------------------ the responder's side


def test_both_are_answered_by_a_read_response_without_bytes(new: NewScript) -> None:
    s = script(new)
    s.inject("ATOMIC_WRITE", 100, va=s.va + 16, rkey=s.key, dma_length=8, payload=WORD)
    s.inject("FLUSH", 101, va=s.va, rkey=s.key, dma_length=4096, feth=PLACEMENT_GLOBAL)
    answers = s.packets()
    assert [(p.row.name, p.psn, p.msn, len(p.payload)) for p in answers] == [
        ("RC_READ_RESPONSE_ONLY", 100, 1, 0),
        ("RC_READ_RESPONSE_ONLY", 101, 2, 0),
    ]
    assert s.data[16:24] == WORD
    assert (s.ctx.expected_psn, s.ctx.rmsn, s.ctx.ra_buff_indx) == (102, 2, 2)


def test_a_duplicate_is_answered_again_and_not_repeated(new: NewScript) -> None:
    s = script(new)
    for _ in range(2):
        s.inject("ATOMIC_WRITE", 100, va=s.va, rkey=s.key, dma_length=8, payload=WORD)
        assert s.out() == ["READ_RESPONSE_ONLY 100"]
        s.data[:8] = bytes(8)
    assert s.data[:8] == bytes(8)
    for _ in range(2):
        s.inject("FLUSH", 101, va=s.va, rkey=s.key, dma_length=8, feth=PLACEMENT_GLOBAL)
        assert s.out() == ["READ_RESPONSE_ONLY 101"]
    s.inject("FLUSH", 100, va=s.va, rkey=s.key, dma_length=8, feth=PLACEMENT_GLOBAL)
    assert s.out() == []
    assert (s.counters["duplicate_reads"], s.counters["drop_duplicate_unmatched"]) == (2, 1)


def test_a_region_flush_looks_at_the_key_alone(new: NewScript) -> None:
    s = script(new)
    s.inject("FLUSH", 100, va=5, rkey=s.key, dma_length=1 << 31, feth=REGION)
    assert s.out() == ["READ_RESPONSE_ONLY 100"]
    s.inject("FLUSH", 101, va=5, rkey=s.key ^ 1, dma_length=0, feth=REGION)
    assert s.out() == ["ACKNOWLEDGE 101 62"]


@pytest.mark.parametrize(
    ("feth", "over"),
    [
        (PLACEMENT_GLOBAL, {"dma_length": 70_000}),
        (PLACEMENT_GLOBAL, {"va": 8}),
        (PLACEMENT_PERSISTENT, {}),
        (BOTH, {}),
        (BOTH | LEVEL_MR << LEVEL_SHIFT, {}),
    ],
)
def test_memory_that_its_key_does_not_open_is_refused(new: NewScript, feth: int, over: dict[str, int]) -> None:
    """No region can be flushed persistently: none of them outlasts the machine."""
    s = script(new)
    s.inject("FLUSH", 100, **({"va": s.va, "rkey": s.key, "dma_length": 8, "feth": feth} | over))
    assert s.out() == ["ACKNOWLEDGE 100 62"]
    assert s.ctx.state == ERR


def test_regions_need_the_right(new: NewScript) -> None:
    s = script(new, LOCAL_WRITE | REMOTE_WRITE)
    s.inject("ATOMIC_WRITE", 100, va=s.va, rkey=s.key, dma_length=8, payload=WORD)
    s.inject("FLUSH", 101, va=s.va, rkey=s.key, dma_length=8, feth=PLACEMENT_GLOBAL)
    assert s.out() == ["READ_RESPONSE_ONLY 100", "ACKNOWLEDGE 101 62"]
    s = script(new, LOCAL_WRITE | FLUSH_GLOBAL)
    s.inject("FLUSH", 100, va=s.va, rkey=s.key, dma_length=8, feth=PLACEMENT_GLOBAL)
    s.inject("ATOMIC_WRITE", 101, va=s.va, rkey=s.key, dma_length=8, payload=WORD)
    assert s.out() == ["READ_RESPONSE_ONLY 100", "ACKNOWLEDGE 101 62"]
    assert s.data[:8] != WORD


@pytest.mark.parametrize(
    ("name", "rights", "over"),
    [
        ("FLUSH", 0xF, {}),
        ("FLUSH", 0xF | FLUSH_GLOBAL, {"feth": BOTH}),
        ("FLUSH", RIGHTS, {"feth": 0}),
        ("FLUSH", RIGHTS, {"feth": 4}),
        ("FLUSH", RIGHTS, {"feth": PLACEMENT_GLOBAL | 2 << LEVEL_SHIFT}),
        ("ATOMIC_WRITE", RIGHTS & ~REMOTE_WRITE, {}),
        ("ATOMIC_WRITE", RIGHTS, {"offset": 4}),
        ("ATOMIC_WRITE", RIGHTS, {"dma_length": 16}),
        ("ATOMIC_WRITE", RIGHTS, {"payload": bytes(4)}),
        ("ATOMIC_WRITE", RIGHTS, {"payload": bytes(16), "dma_length": 16}),
    ],
)
def test_invalid_requests(new: NewScript, name: str, rights: int, over: dict[str, Any]) -> None:
    s = script(new, access_flags=rights)
    before = bytes(s.data)
    fields: dict[str, object] = {"va": s.va + over.get("offset", 0), "rkey": s.key, "dma_length": 8}
    fields |= {"feth": PLACEMENT_GLOBAL} if name == "FLUSH" else {"payload": WORD}
    s.inject(name, 100, **(fields | {key: value for key, value in over.items() if key != "offset"}))
    assert s.out() == ["ACKNOWLEDGE 100 61"]
    assert bytes(s.data) == before


@pytest.mark.parametrize("name", ["FLUSH", "ATOMIC_WRITE"])
def test_they_take_responder_resources(new: NewScript, name: str) -> None:
    s = script(new, max_dest_rd_atomic=1)
    payload = WORD if name == "ATOMIC_WRITE" else b""
    for psn in (100, 101):
        s.inject(name, psn, va=s.va, rkey=s.key, dma_length=8, feth=PLACEMENT_GLOBAL, payload=payload)
        assert s.ctx.state == (RTS if psn == 100 else ERR)
