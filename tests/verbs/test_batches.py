"""Posting and polling by the array: equal to one at a time, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rnic import enums as e
from rnic.rings.cqe import CQ_ENTRY, CQE_RECEIVE
from rnic.rings.sqe import FLAG_FENCE, FLAG_INLINE, FLAG_LIST, FLAG_SIGNALED, SQ_ENTRY_ATOMIC, SQ_ENTRY_UD
from rnic.spec import opcodes as op
from rnic.spec import status as st
from rnic.spec.errors import VerbsError
from rnic.spec.layout import Layout
from rnic.testing import QpPair
from rnic.verbs import completion_dtype, datagram_dtype, send_dtype

NewPair = Callable[..., QpPair]


def writes(pair: QpPair, count: int, opcode: int = op.WR_WRITE) -> Any:
    """WRITEs of 8 bytes each from one region to the same places of the other, numbered from 0."""
    entries = np.zeros(count, send_dtype())
    places = 8 * np.arange(count)
    entries["opcode"] = opcode
    entries["flags"] = FLAG_SIGNALED
    entries["wqe_id"] = np.arange(count)
    entries["local_addr"] = pair.a.mr.buf + places
    entries["remote_addr"] = pair.b.mr.buf + places
    entries["length"] = 8
    entries["lkey"], entries["rkey"] = pair.a.mr.lkey, pair.b.mr.rkey
    return entries


def poll(pair: QpPair, count: int, room: int = 64, side: str = "a") -> tuple[Any, Any]:
    """The next completions and their identifiers."""
    end = getattr(pair, side)
    found, ids = np.zeros(room, completion_dtype()), np.zeros(room, np.uint64)
    got = 0

    def enough() -> bool:
        nonlocal got
        got += end.cq.poll_batch(found[got:], ids[got:])
        return bool(got >= count)

    pair.net.driving = True
    try:
        assert pair.net.run(enough, 10**9)
    finally:
        pair.net.driving = False
    return found[:got], ids[:got]


@pytest.mark.parametrize(
    ("kind", "layout"),
    [(send_dtype, SQ_ENTRY_ATOMIC), (datagram_dtype, SQ_ENTRY_UD), (completion_dtype, CQ_ENTRY)],
)
def test_the_types_have_the_layout_of_the_tables(kind: Callable[[], Any], layout: Layout) -> None:
    assert kind().itemsize == layout.size
    bytes_of = np.random.default_rng(1).integers(0, 256, layout.size, np.uint8)
    entry = bytes_of.view(kind())[0]
    named = [field for field in layout.fields if field.name in kind().names]
    assert len(named) > len(layout.fields) // 2
    for field in named:
        value = entry[field.name]
        whole = int.from_bytes(value.tobytes(), "little")
        assert whole & field.mask == layout.get(bytes_of.tobytes(), field.name), field.name


def test_a_batch_equals_as_many_single_posts(new_pair: NewPair) -> None:
    with new_pair() as pair:
        pair.a.buf[:320] = bytes(range(256)) + bytes(range(64))
        for _ in range(4):  # round the ring's end twice
            assert pair.a.qp.post_batch(writes(pair, 40)) == 40
            found, ids = poll(pair, 40)
            assert ids.tolist() == found["wqe_id"].tolist() == list(range(40))
            assert set(found["status"].tolist()) == {st.SUCCESS}
            assert set((found["qpn"] & 0xFFFFFF).tolist()) == {pair.a.qp.qp_num}
        assert pair.b.buf[:320] == pair.a.buf[:320]
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 8, 8, wr_id=1 << 40)
        found, ids = poll(pair, 1)
        assert ids.tolist() == [1 << 40]
        assert pair.a.qp.post_batch(writes(pair, 3)) == 3
        assert [wc.wr_id for wc in pair.a.wait(3)] == [0, 1, 2]


def test_without_identifiers_the_slots_get_free_too(new_pair: NewPair) -> None:
    with new_pair(depth=8) as pair:
        found = np.zeros(8, completion_dtype())
        for _ in range(5):
            assert pair.a.qp.post_batch(writes(pair, 8)) == 8
            pair.run()
            assert pair.a.cq.poll_batch(found) == 8


def test_a_full_ring_takes_what_fits(new_pair: NewPair) -> None:
    with new_pair(depth=4) as pair:
        entries = writes(pair, 7)
        assert pair.a.qp.post_batch(entries) == 4
        assert pair.a.qp.post_batch(entries[4:]) == 0
        _, ids = poll(pair, 4, 5)
        assert ids.tolist() == [0, 1, 2, 3]
        assert pair.a.qp.post_batch(entries[4:]) == 3
        _, ids = poll(pair, 3, 5)
        assert ids.tolist() == [4, 5, 6]
        assert pair.a.qp.post_batch(entries[:0]) == pair.a.cq.poll_batch(np.zeros(0, completion_dtype())) == 0


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("opcode", 0x77, "opcode=0x77"),
        ("opcode", op.WR_BIND_MW, "opcode=0xf0"),
        ("opcode", 0xFFFF, "opcode=0xffff"),
        ("flags", FLAG_INLINE | FLAG_SIGNALED, "flags=0x9: .*singly"),
        ("flags", FLAG_LIST, "flags=0x10"),
        ("flags", 0x8000, "flags=0x8000"),
    ],
)
def test_a_bad_entry_is_named_and_those_before_it_are_posted(
    new_pair: NewPair, field: str, value: int, says: str
) -> None:
    with new_pair() as pair:
        entries = writes(pair, 5)
        entries["flags"][1] |= FLAG_FENCE
        entries[field][3] = value
        with pytest.raises(VerbsError, match=rf"array\[3\]: {says}") as error:
            pair.a.qp.post_batch(entries)
        assert error.value.bad_wr == 3
        _, ids = poll(pair, 3)
        assert ids.tolist() == [0, 1, 2]
        with pytest.raises(VerbsError, match=r"array\[0\]"):
            pair.a.qp.post_batch(entries[3:])
        pair.run()
        assert pair.a.poll() == []


def test_a_bad_entry_behind_a_full_ring_waits_for_its_turn(new_pair: NewPair) -> None:
    with new_pair(depth=4) as pair:
        entries = writes(pair, 6)
        entries["opcode"][5] = 0
        assert pair.a.qp.post_batch(entries) == 4
        poll(pair, 4, 5)
        with pytest.raises(VerbsError, match=r"array\[1\]: opcode=0x0") as error:
            pair.a.qp.post_batch(entries[4:])
        assert error.value.bad_wr == 1


def test_what_the_device_finds_completes_in_error(new_pair: NewPair) -> None:
    with new_pair() as pair:
        entries = writes(pair, 3)
        entries["lkey"][1] ^= 0xFF
        assert pair.a.qp.post_batch(entries) == 3
        found, ids = poll(pair, 3)
        assert ids.tolist() == [0, 1, 2]
        assert found["status"].tolist() == [st.SUCCESS, st.LOC_PROT_ERR, st.WR_FLUSH_ERR]


@pytest.mark.parametrize(("service", "kind"), [("RC", datagram_dtype), ("UC", completion_dtype), ("UD", send_dtype)])
def test_wrong_types_are_refused(new_pair: NewPair, service: str, kind: Callable[[], Any]) -> None:
    with new_pair(service) as pair:
        qp, cq = pair.a.qp, pair.a.cq
        right = datagram_dtype() if service == "UD" else send_dtype()
        for wrong in (np.zeros(2, kind()), np.zeros((2, 2), right), np.zeros(16, "<u8"), bytes(64), None):
            with pytest.raises(VerbsError, match="array") as error:
                qp.post_batch(wrong)  # type: ignore[arg-type]
            assert error.value.errno == 22
        refused: tuple[Any, ...] = (
            np.zeros(2, right),
            np.zeros((2, 2), completion_dtype()),
            np.zeros(4, completion_dtype())[::2],
            np.frombuffer(bytes(64), completion_dtype()),
            [],
        )
        for entries in refused:
            with pytest.raises(VerbsError, match="array"):
                cq.poll_batch(entries)
        good = np.zeros(2, completion_dtype())
        for ids in (np.zeros(1, np.uint64), np.zeros(2, np.uint32), np.zeros(2), np.zeros((2, 2), np.uint64), [0, 0]):
            with pytest.raises(VerbsError, match="wr_ids"):
                cq.poll_batch(good, ids)  # type: ignore[arg-type]
        assert cq.poll_batch(good, np.zeros(2, np.int64)) == 0


def test_a_queue_pair_that_cannot_send(new_pair: NewPair) -> None:
    with new_pair(connect=False) as pair, pytest.raises(VerbsError, match="not in RTS"):
        pair.a.qp.post_batch(writes(pair, 1))


@pytest.mark.parametrize("srq", [False, True])
def test_receives_give_their_identifiers_too(new_pair: NewPair, srq: bool) -> None:
    with new_pair(srq=srq) as pair:
        for turn in range(3):
            for number in range(30):
                pair.b.post_recv(8, 8 * number, wr_id=(1 << 33) + 100 * turn + number)
            assert pair.a.qp.post_batch(writes(pair, 30, op.WR_SEND)) == 30
            found, ids = poll(pair, 30, side="b")
            assert ids.tolist() == [(1 << 33) + 100 * turn + number for number in range(30)]
            assert (found["flags"] & CQE_RECEIVE).all()
            assert set(found["bytes"].tolist()) == {8}
            assert set(found["opcode"].tolist()) == {op.WR_SEND}
            poll(pair, 30)


@pytest.mark.parametrize("service", ["RC", "UC"])
def test_a_key_is_invalidated_by_the_array(new_pair: NewPair, service: str) -> None:
    with new_pair(service) as pair:
        entries = writes(pair, 1, op.WR_LOCAL_INV)
        entries["imm"] = 0x1234  # nobody's key
        assert pair.a.qp.post_batch(entries) == 1
        found, _ = poll(pair, 1)
        assert (found["opcode"].tolist(), found["status"].tolist()) == ([op.WR_LOCAL_INV], [st.LOC_PROT_ERR])


def test_datagrams_by_the_array(new_pair: NewPair) -> None:
    with new_pair("UD") as pair:
        a, b = pair.a, pair.b
        entries = np.zeros(4, datagram_dtype())
        entries["opcode"], entries["flags"] = op.WR_SEND, FLAG_SIGNALED
        entries["local_addr"] = a.mr.buf + 8 * np.arange(4)
        entries["length"], entries["lkey"] = 8, a.mr.lkey
        entries["udp_dport"] = b.ctx.udp_port
        entries["dgid"] = np.frombuffer(b.ctx.query_gid().raw, "V16")[0]
        entries["dqpn_hop_limit"] = b.qp.qp_num | 64 << 24
        entries["qkey"] = 0x1111_1111
        a.buf[:32] = bytes(range(32))
        for number in range(4):
            b.post_recv(48, 1000 + 48 * number, wr_id=number)
        assert a.qp.post_batch(entries) == 4
        found, ids = poll(pair, 4, side="b")
        assert ids.tolist() == [0, 1, 2, 3]
        assert set(found["wqe_id"].tolist()) == {a.qp.qp_num}
        assert [bytes(b.buf[1040 + 48 * number :][:8]) for number in range(4)] == [
            bytes(range(8 * number, 8 * number + 8)) for number in range(4)
        ]
        entries["opcode"] = op.WR_WRITE
        with pytest.raises(VerbsError, match=r"array\[0\]: opcode=0xa"):
            a.qp.post_batch(entries)


def test_completions_of_a_queue_pair_that_was_reset_are_left_out(new_pair: NewPair) -> None:
    """What another queue pair's reset took out of the ring is polled first."""
    with new_pair() as pair:
        a = pair.a
        assert a.qp.post_batch(writes(pair, 5)) == 5
        pair.run()
        a.cq.clean(0)  # as the reset of another queue pair does it
        assert a.qp.post_batch(writes(pair, 2)) == 2
        found, ids = poll(pair, 7)
        assert ids.tolist() == found["wqe_id"].tolist() == [0, 1, 2, 3, 4, 0, 1]
        assert a.qp.post_batch(writes(pair, 5)) == 5
        pair.run()
        del a.cq._queues[a.qp.qp_num], a.ctx._qps[a.qp.qp_num]
        a.cq._plain.clear()
        assert a.cq.poll_batch(np.zeros(8, completion_dtype())) == 0
        a.ctx._qps[a.qp.qp_num] = a.qp
        a.cq.attach(a.qp.qp_num, a.qp)
