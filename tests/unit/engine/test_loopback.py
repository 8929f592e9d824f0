"""Wires in memory (engine/io/loopback.c) against a list, and NICs that are joined by them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.engine import use
from rnic.link.loopback import Fabric, LoopbackLink, loopback_pair
from rnic.spec import opcodes as op
from rnic.verbs import CQ, GID, MR, PD, QP, AHAttr, CompChannel, Context, GlobalRoute, QPAttr, QPCap, QPInitAttr
from rnic.verbs import enums as e
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet

if TYPE_CHECKING:
    from rnic.engine._engine import Loopback

pytestmark = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")

ROOM = 100
PARCELS = 4096
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


def wire_of(window_bytes: int) -> Loopback:
    assert use.COMPILED is not None
    return use.COMPILED.Loopback(window_bytes)


@given(
    st.lists(
        st.one_of(st.integers(1, ROOM + 1).map(lambda n: ("put", n)), st.integers(0, 5).map(lambda n: ("take", n)))
    )
)
def test_what_is_put_is_taken_in_order_as_it_was(steps: list[tuple[str, int]]) -> None:
    wire = wire_of(ROOM)
    waiting: deque[bytes] = deque()
    taken: list[tuple[bytes, memoryview]] = []
    put = lost = 0
    for what, number in steps:
        if what == "put":
            put += 1
            data = bytes([put & 0xFF]) * number
            assert wire.put(b"me", data, 1, 2, 3, 4)
            missing = wire.lost()
            assert missing in (0, number)
            lost += missing
            if missing:
                held = sum(map(len, waiting)) + sum(len(was) for was, _ in taken)
                assert held + number > ROOM // 2, "lost although more than half of the room was free"
            else:
                waiting.append(data)
        else:
            got = wire.take(number)
            assert len(got) == min(number, len(waiting))
            taken = []
            for name, view, *how in got:
                assert (name, how) == (b"me", [1, 2, 3, 4])
                taken.append((waiting.popleft(), view))
        assert all(bytes(view) == was for was, view in taken), "what was taken last changed"


def test_an_empty_wire_takes_all_that_it_has_room_for_wherever_it_was() -> None:
    wire = wire_of(ROOM)
    for length in (70, ROOM, 1, ROOM):
        wire.put(b"", bytes(length), 1, 0, 0, 0)
        assert wire.lost() == 0
        assert [len(what[1]) for what in wire.take(2)] == [length]
        assert wire.take(2) == []


def test_more_bursts_than_places_are_lost() -> None:
    wire = wire_of(1 << 20)
    for _ in range(PARCELS + 3):
        wire.put(b"", b"ab", 1, 0, 0, 0)
    assert wire.lost() == 2 * 3
    assert sum(len(wire.take(64)) for _ in range(PARCELS)) == PARCELS


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="a name of 29 bytes: give at most 28"):
        wire_of(8).put(bytes(29), b"x", 1, 0, 0, 0)


def test_a_closed_wire_takes_nothing() -> None:
    wire = wire_of(8)
    wire.put(b"", b"x", 1, 0, 0, 0)
    wire.close()
    assert wire.take(1) == []
    assert not wire.put(b"", b"x", 1, 0, 0, 0)
    assert wire.lost() == 0


class End:
    """A NIC on a link in memory, with a queue pair and 256 KiB."""

    def __init__(self, link: LoopbackLink, waits: bool = False) -> None:
        self.ctx = Context(link=link)
        pd = PD(self.ctx)
        self.channel = CompChannel(self.ctx) if waits else None
        self.cq = CQ(self.ctx, 64, channel=self.channel)
        self.qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(16, 16), scq=self.cq, rcq=self.cq))
        self.mr = MR(pd, bytearray(1 << 18), RIGHTS)

    def join(self, peer: End, timeout: int = 14, retries: int = 7) -> None:
        attr = QPAttr()
        attr.path_mtu, attr.timeout, attr.retry_cnt = e.IBV_MTU_1024, timeout, retries
        attr.dest_qp_num, attr.qp_access_flags = peer.qp.qp_num, RIGHTS
        attr.ah_attr = AHAttr(GlobalRoute(GID(peer.ctx.query_gid().raw)), udp_dport=peer.ctx.udp_port)
        self.qp.to_rts(attr)

    def write(self, peer: End, length: int, drives: bool = True) -> int:
        """Status of a WRITE; whoever owns the peer's NIC is driven too, unless it has a thread."""
        self.qp.post_rdma(op.WR_WRITE, self.mr.buf, length, self.mr.lkey, peer.mr.buf, peer.mr.rkey)
        while True:
            count, found = self.cq.poll(1)
            if count:
                return found[0].status
            if drives and not peer.ctx.closed:
                peer.ctx.runtime.progress()


def joined(waits: bool = False) -> tuple[End, End]:
    a, b = (End(link, waits) for link in loopback_pair())
    a.join(b)
    b.join(a)
    return a, b


def test_nics_in_memory_need_no_python_for_their_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = joined()
    assert a.write(b, 8) == e.IBV_WC_SUCCESS
    for name in ("send", "receive", "deliver"):
        monkeypatch.setattr(LoopbackLink, name, None)
    a.mr.buffer[:] = bytes(n * 7 & 0xFF for n in range(1 << 18))
    assert a.write(b, 1 << 18) == e.IBV_WC_SUCCESS
    assert b.mr.buffer == a.mr.buffer
    monkeypatch.undo()
    a.ctx.close()
    b.ctx.close()


def test_what_is_not_rdma_reaches_a_nic_that_the_engine_drives() -> None:
    fabric = Fabric()
    a, b = End(fabric.attach(bytes((10, 0, 0, 1)))), End(fabric.attach(bytes((10, 0, 0, 2))))
    a.join(b)
    b.join(a)
    there = b.ctx.runtime.nic.config.address
    frame = ip_packet(Flow(a.ctx.runtime.nic.config.address, there, 5, 53), b"q" * 90)
    for _ in range(2):
        assert a.write(b, 8) == e.IBV_WC_SUCCESS
        assert b.ctx.runtime._engine_polls
        fabric.carry(there, frame)
        b.ctx.runtime.progress()
        assert b.ctx.read_non_rdma() == frame
    a.ctx.close()
    b.ctx.close()


def test_the_python_thread_runs_until_the_engine_takes_the_rounds() -> None:
    fabric = Fabric()
    a, b = End(fabric.attach(bytes((10, 0, 0, 1)))), End(fabric.attach(bytes((10, 0, 0, 2))))
    a.join(b)
    b.join(a)
    assert a.write(b, 8) == e.IBV_WC_SUCCESS
    runtime = b.ctx.runtime
    there = runtime.nic.config.address
    frames = [ip_packet(Flow(a.ctx.runtime.nic.config.address, there, 5, 53), bytes([n])) for n in range(3)]
    for frame in frames:
        fabric.carry(there, frame)
    runtime.rest()
    with runtime.lock:
        runtime._run_punted_rounds()
    assert [b.ctx.read_non_rdma() for _ in frames] == frames
    a.ctx.close()
    b.ctx.close()


def test_packets_of_a_nic_that_python_drives_meet_those_of_the_engine() -> None:
    a, b = joined()
    io_poll = a.ctx.runtime._io_poll
    assert io_poll is not None
    io_poll.stop()
    for length in (1, 5000, 1 << 18):
        a.mr.buffer[:length] = bytes([length & 0xFE | 1]) * length
        assert a.write(b, length) == e.IBV_WC_SUCCESS
        assert b.mr.buffer[:length] == a.mr.buffer[:length]
    assert b.write(a, 1 << 18) == e.IBV_WC_SUCCESS
    a.ctx.close()
    b.ctx.close()


def test_a_nic_that_has_gone_is_unreachable_and_one_in_its_place_is_found() -> None:
    fabric = Fabric()
    a, b = End(fabric.attach(bytes([10, 0, 0, 1]))), End(fabric.attach(bytes([10, 0, 0, 2])))
    a.join(b, timeout=10, retries=2)
    b.join(a)
    assert a.write(b, 8) == e.IBV_WC_SUCCESS
    b.ctx.close()
    assert a.write(b, 8) == e.IBV_WC_RETRY_EXC_ERR
    assert a.ctx.runtime.link.counters["drop_tx_unreachable"] >= 2
    again = End(fabric.attach(bytes([10, 0, 0, 2])))
    a.qp = QP(a.qp.pd, QPInitAttr(e.IBV_QPT_RC, cap=QPCap(16, 16), scq=a.cq, rcq=a.cq))
    a.join(again)
    again.join(a)
    assert a.write(again, 1 << 16) == e.IBV_WC_SUCCESS
    a.ctx.close()
    again.ctx.close()


def test_threads_that_put_mix_nothing_and_what_is_lost_is_counted() -> None:
    wire = wire_of(1 << 12)
    lengths = [1 + count % 97 for count in range(500)]

    def put(number: int) -> None:
        for length in lengths:
            wire.put(number.to_bytes(2), bytes([number]) * length, 1, 0, 0, 0)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    seen = 0
    while (left := any(thread.is_alive() for thread in threads)) or (got := wire.take(16)):
        got = wire.take(16) if left else got
        for name, view, *_ in got:
            assert bytes(view) == bytes([int.from_bytes(name)]) * len(view)
            seen += len(view)
    for thread in threads:
        thread.join()
    assert seen + wire.lost() == 4 * sum(lengths)
