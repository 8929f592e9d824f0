"""A whole device by the engine, call by call held against the device by Python: the same bytes behind each.

Two NICs on a fabric in memory. Each :meth:`Nic.receive` and :meth:`Nic.produce` is done by the engine's port first, its
image taken, everything put back, done again by :mod:`rnic.device`, and the two images compared.
"""

from __future__ import annotations

import copy
import os
import random
import sys
from typing import Any

import pytest

from rnic import enums as e
from rnic.device.sending import Sending
from rnic.engine import use
from rnic.link.faults import FaultRates
from rnic.mem.space import address_of
from rnic.nic_process.client_memory import ProgramMemory
from rnic.rings.queue_block import BLOCK_BYTES
from rnic.spec.limits import NEVER
from rnic.testing import QpPair
from rnic.testing.net import SimNet
from rnic.verbs import SrqAttr, enums
from rnic.wire.bursts import RxBurst, TxBurst

pytestmark = pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled")


class Image:
    """Everything of a device that receiving or sending may change."""

    def __init__(self, nic: Any) -> None:
        memory = [mapping.view for uar in nic.resources.uars for mapping in uar.port._by_va._items]
        blocks = [
            (uar.buf, block * BLOCK_BYTES) for uar in nic.resources.uars for block in nic.resources.doorbells.doors
        ]
        self.nic, self.memory, self.blocks = nic, [view for view in memory if not view.readonly], blocks
        self.state = {
            "arena": bytes(nic.arena.memory[: nic.arena.used]),
            "memory": [bytes(view) for view in self.memory],
            "blocks": [bytes(buf[at : at + BLOCK_BYTES]) for buf, at in blocks],
            "counters": {name: count for name, count in nic.counters.items() if count},
            "interrupts": list(nic.resources.interrupts),
            "free": {size: list(places) for size, places in nic.arena._free.items()},
            "carved": dict(nic.arena._carved),
            "write back": nic.write_back_at,
            "rung": list(nic.resources.doorbells.rung),
            "failed": list(nic.sending.failed_cqs),
            "last words": list(nic.sending.final_bursts),
        }
        self.turns = nic.sending._turns
        behind = nic.contexts.behind
        self.behind = {name: copy.copy(getattr(behind, name)) for name in ("_written", "_seen", "_live", "_round")}
        self.behind_left = nic._to_write_back, nic._busy_looks, nic._moved_ns

    def put_back(self) -> None:
        nic, state = self.nic, self.state
        nic.arena.memory[: len(state["arena"])] = state["arena"]
        for view, data in zip(self.memory, state["memory"], strict=True):
            view[:] = data
        for (buf, at), data in zip(self.blocks, state["blocks"], strict=True):
            buf[at : at + BLOCK_BYTES] = data
        nic.counters.clear()
        nic.counters.update(state["counters"])
        nic.resources.interrupts.clear()
        nic.resources.interrupts.extend(state["interrupts"])
        nic.arena._free = {size: list(places) for size, places in state["free"].items()}
        nic.arena._carved = dict(state["carved"])
        nic.write_back_at = state["write back"]
        doorbells = nic.resources.doorbells
        doorbells.rung.clear()
        doorbells._pending.clear()
        for block in state["rung"]:
            doorbells.ring(block)
        nic.sending.failed_cqs = list(state["failed"])
        nic.sending.final_bursts = list(state["last words"])
        nic.sending._turns = self.turns
        for name, kept in self.behind.items():
            setattr(nic.contexts.behind, name, copy.copy(kept))
        nic._to_write_back, nic._busy_looks, nic._moved_ns = self.behind_left


def same(engine: Image, reference: Image) -> None:
    for name, value in engine.state.items():
        other = reference.state[name]
        if name == "arena" and value != other:
            words = [
                (hex(at * 8), value[at * 8 : at * 8 + 8][::-1].hex(), other[at * 8 : at * 8 + 8][::-1].hex())
                for at in range(len(value) // 8)
                if value[at * 8 : at * 8 + 8] != other[at * 8 : at * 8 + 8]
            ]
            nic = engine.nic
            records = {hex(record): hex(qp.number) for record, qp in nic.sending.qps.items()}
            raise AssertionError(f"arena words (offset, engine, reference): {words[:12]}; queue pairs at {records}")
        assert value == other, name


HELD: dict[Sending, Held] = {}


class Held:
    """One NIC whose engine is held against its Python."""

    def __init__(self, nic: Any) -> None:
        self.nic = nic
        self.taken = self.sent = self.left = 0
        self.timed = 0
        self.turns = 0
        """Turns that the engine left."""
        HELD[nic.sending] = self
        self.receiving, self.producing, self.timing = nic.receive, nic.produce, nic.handle_timers
        self.hold(held=True)

    def hold(self, *, held: bool) -> None:
        """Hold it from now on, or let it go."""
        nic = self.nic
        nic.receive, nic.produce, nic.handle_timers = (
            (self.receive, self.produce, self.handle_timers) if held else (self.receiving, self.producing, self.timing)
        )

    def receive(self, burst: RxBurst, now_ns: int, start: int = 0) -> None:
        nic = self.nic
        if not nic.enabled:
            self.receiving(burst, now_ns)
            return
        before = Image(nic)
        taken = nic.engine_device.receive(burst, 0, now_ns)
        after = Image(nic)
        before.put_back()
        if taken:
            how = burst.ident, burst.frag, burst.tclass, burst.hop_limit, burst.flow_label
            self.receiving(RxBurst(burst.flow, burst.buf[:taken], burst.segment, taken, *how), now_ns)
        else:
            nic.now_ns = now_ns
        same(after, Image(nic))
        self.taken += -(-taken // burst.segment)
        if taken < burst.length:
            self.left += 1
            self.receiving(burst, now_ns, taken)

    def produce(self, now_ns: int, budget: int = 256) -> list[TxBurst]:
        nic = self.nic
        if nic.held:
            return list(self.producing(now_ns, budget))
        before = Image(nic)
        out = nic.sending.prepare(now_ns)
        first = len(out)
        nic.engine_device.send(now_ns, budget, out)
        after = Image(nic)
        before.put_back()
        expected: list[TxBurst] = self.producing(now_ns, budget)
        reference = Image(nic)
        # what comes before turns is counted where both are together
        prepared = sum(burst.count for burst in expected[:first])
        if prepared:
            after.state["counters"]["tx_packets"] = after.state["counters"].get("tx_packets", 0) + prepared
            after.state["write back"] = reference.state["write back"]
        same(after, reference)
        assert [self.bytes_of(burst) for burst in out] == [self.bytes_of(burst) for burst in expected]
        self.sent += sum(burst.count for burst in out)
        return expected

    def handle_timers(self, now_ns: int) -> None:
        nic = self.nic
        before = Image(nic)
        self.timing(now_ns)
        after = Image(nic)
        before.put_back()
        device, nic.engine_device = nic.engine_device, None
        try:
            self.timing(now_ns)
        finally:
            nic.engine_device = device
        same(after, Image(nic))
        self.timed += 1

    @staticmethod
    def bytes_of(burst: TxBurst) -> tuple[Any, ...]:
        return burst.flow, burst.segment, burst.count, burst.length, b"".join(burst.buffers)


@pytest.fixture(params=[False, True], ids=["at hand", "ahead"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a net of small NICs with the engine, and their holders; also with memory that is reached ahead."""
    take_over = Sending.take_over

    def counted(self: Sending, now_ns: int, out: list[TxBurst], *turn: int) -> tuple[int, bool]:
        HELD[self].turns += 1
        return take_over(self, now_ns, out, *turn)

    monkeypatch.setattr(Sending, "take_over", counted)
    HELD.clear()
    monkeypatch.setattr(use, "ENGINE", use.COMPILED)
    if request.param:
        plain = use.shared

        def shared(*what: Any) -> Any:
            made = plain(*what)
            assert made is not None
            made.enable_prefetch()
            return made

        monkeypatch.setattr(use, "shared", shared)
    monkeypatch.setattr("rnic.device.config._STATE_LEAST", 1 << 21)

    def make(pairs: int = 1, **options: Any) -> tuple[list[QpPair], list[Held]]:
        settings = {"log_max_qps": 4, "max_mrs": 64} | options.pop("settings", {})
        how = {name: options.pop(name) for name in ("srq", "service") if name in options}
        net = SimNet(2, settings=settings, **options)
        made = [QpPair(net=net, size=1 << 14, depth=16, **how) for _ in range(pairs)]
        return made, [Held(node.nic) for node in net.nodes]

    return make


def write(pair: QpPair, length: int, flags: int = e.IBV_SEND_SIGNALED, opcode: int = e.IBV_WR_RDMA_WRITE) -> None:
    pair.a.post_send(opcode, length, flags=flags)


def test_one_small_write_needs_no_python(held: Any) -> None:
    (pair,), (a, b) = held()
    pair.a.buf[:8] = b"12345678"
    write(pair, 8)
    assert [wc.status for wc in pair.a.wait()] == [enums.IBV_WC_SUCCESS]
    a.taken = a.left = b.left = 0
    for _ in range(20):
        write(pair, 8)
        assert [wc.status for wc in pair.a.wait()] == [enums.IBV_WC_SUCCESS]
    assert pair.b.buf[:8] == b"12345678"
    assert (a.taken, a.left, b.left) == (20, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("segments", [1, 64])
def test_long_messages_of_many(held: Any, segments: int) -> None:
    pairs, (a, b) = held(4, max_segments=segments, settings={"flight_packets": 64})
    rng = random.Random(segments)
    for _ in range(6):
        for pair in pairs:
            for _ in range(rng.randrange(3)):
                pair.b.post_recv(1 << 13)
                pair.a.post_send(e.IBV_WR_SEND, rng.choice((0, 1, 300, 5_000)))
            write(pair, rng.choice((1, 4096, 16_000)))
            pair.b.post_send(e.IBV_WR_RDMA_WRITE, rng.choice((8, 9_000)))
        pairs[0].run()
    for pair in pairs:
        for side in (pair.a, pair.b):
            assert {wc.status for wc in side.poll()} == {enums.IBV_WC_SUCCESS}
    assert min(a.taken, b.taken) > 100


@pytest.mark.slow
def test_what_waits_in_line_is_given_turns(held: Any) -> None:
    """So little may be in flight that queue pairs wait for each other all the time."""
    pairs, (a, _) = held(5, settings={"flight_packets": 6})
    for _ in range(3):
        for pair in pairs:
            write(pair, 16_000)
    waited = 0
    net = pairs[0].net
    while net.turn():
        waited = max(waited, sum(bool(qp.requester.parked) for qp in a.nic.qps.values()))
    assert waited > 1
    assert all({wc.status for wc in pair.a.poll()} == {enums.IBV_WC_SUCCESS} for pair in pairs)


def test_what_the_engine_does_not_know_is_left_and_gone_on_with(held: Any) -> None:
    """Of three queue pairs one is refused, which ends it: the others go on."""
    pairs, (a, b) = held(3)
    for pair in pairs:
        for opcode, length in ((e.IBV_WR_RDMA_WRITE, 8), (e.IBV_WR_RDMA_READ, 9_000), (e.IBV_WR_RDMA_WRITE, 5_000)):
            pair.a.post_send(opcode, length)
        if pair is pairs[1]:
            wrong = pair.a.send_wr(e.IBV_WR_RDMA_WRITE, 8)
            wrong.set_wr_rdma(5, pair.b.mr.buf)
            pair.a.qp.post_send(wrong)
        write(pair, 8)
    pairs[0].run()
    done = [[wc.status for wc in pair.a.poll()] for pair in pairs]
    assert done[0] == done[2] == [enums.IBV_WC_SUCCESS] * 4
    assert done[1] == [enums.IBV_WC_SUCCESS] * 3 + [enums.IBV_WC_REM_ACCESS_ERR, enums.IBV_WC_WR_FLUSH_ERR]
    assert min(a.left, b.left, a.taken, b.taken) > 0


@pytest.mark.slow
@pytest.mark.parametrize("segments", [1, 64])
def test_reads_and_atomics_need_no_python(held: Any, segments: int) -> None:
    pairs, (a, b) = held(3, max_segments=segments, settings={"flight_packets": 64})
    rng = random.Random(segments)
    pairs[0].run()
    for _ in range(5):
        for pair in pairs:
            write(pair, 8)
            pair.b.post_send(e.IBV_WR_RDMA_WRITE, 8)
        pairs[0].run()  # the first packets of each are the reference's
    statuses = {wc.status for pair in pairs for side in (pair.a, pair.b) for wc in side.poll()}
    a.taken = a.left = b.taken = b.left = 0
    for _ in range(6):
        for pair in pairs:
            for side in (pair.a, pair.b):
                side.post_send(e.IBV_WR_RDMA_READ, rng.choice((0, 8, 300, 4096, 16_000)))
                side.post_send(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, compare_add=3)
                side.post_send(e.IBV_WR_ATOMIC_CMP_AND_SWP, 8, compare_add=rng.randrange(9), swap=5)
            write(pair, rng.choice((8, 9_000)))
        pairs[0].run()
        statuses |= {wc.status for pair in pairs for side in (pair.a, pair.b) for wc in side.poll()}
    assert statuses == {enums.IBV_WC_SUCCESS}
    assert (a.left, b.left) == (0, 0)
    assert min(a.taken, b.taken) > 50


@pytest.mark.slow
@pytest.mark.parametrize("flight", [6, 24, 64])
@pytest.mark.parametrize("pairs", [1, 2])
def test_a_stream_of_reads(held: Any, flight: int, pairs: int) -> None:
    """Responses come many at a time, and who asks for them waits for room; what they acknowledge adds up."""
    many, (a, b) = held(pairs, max_segments=64, settings={"flight_packets": flight})
    many[0].run()
    for _ in range(8):  # until a peer's limit has grown to its most
        for pair in many:
            for length in (16_000, 9_000, 16_384, 5_000):
                pair.a.post_send(e.IBV_WR_RDMA_READ, length)
        many[0].run()
        statuses = [wc.status for pair in many for wc in pair.a.poll()]
        assert statuses == [enums.IBV_WC_SUCCESS] * 4 * pairs
    assert (a.left, b.left) == (0, 0)
    assert a.taken > 8 * 40 * pairs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_stream_of_reads_with_faults(held: Any, seed: int) -> None:
    """Probes, rewinds and round trips that differ are in the midst of what adds up."""
    rates = FaultRates(drop=0.01, duplicate=0.01, reorder=0.02)
    how: dict[str, Any] = {"packet_ns": 300, "latency_ns": 5_000} if seed % 2 else {}
    settings = {"flight_packets": (24, 64)[seed // 2]}
    many, (a, _) = held(1 + seed % 2, max_segments=64, tx=rates, seed=seed, settings=settings, **how)
    for _ in range(10):
        for pair in many:
            for length in (16_000, 9_000, 16_384, 5_000):
                pair.a.post_send(e.IBV_WR_RDMA_READ, length)
        many[0].run()
        statuses = {wc.status for pair in many for wc in pair.a.poll()}
        assert statuses == {enums.IBV_WC_SUCCESS}
    assert a.taken > 10 * 40
    assert a.timed > 0


def test_receives_from_a_shared_queue(held: Any) -> None:
    """Its own limit event, and an empty queue's RNR NAK, are in the midst."""
    pairs, (_, b) = held(2, srq=True)
    for _ in range(2):
        for pair in pairs:
            write(pair, 8)
        pairs[0].run()  # the first packets of each are the reference's
        for pair in pairs:
            pair.a.poll()
    b.taken = b.left = 0
    got = []
    for turn in range(6):
        for pair in pairs:
            for _ in range(2):
                pair.a.post_send(e.IBV_WR_SEND, 1_500 * turn)
            pair.a.post_send(e.IBV_WR_RDMA_WRITE_WITH_IMM, 8)
        pairs[0].net.turn()
        for pair in pairs:
            for _ in range(3):
                pair.b.post_recv(8_000)
        pairs[0].run()
        for pair in pairs:
            got += [wc.status for wc in pair.b.poll()]
            assert {wc.status for wc in pair.a.poll()} == {enums.IBV_WC_SUCCESS}
    assert got == [enums.IBV_WC_SUCCESS] * 36
    assert b.left == len(pairs)  # the first message that each missed: the reference says why
    assert b.taken > 40
    pairs[0].b.srq.modify(SrqAttr(srq_limit=2), e.IBV_SRQ_LIMIT)
    for _ in range(3):
        pairs[0].b.post_recv(10)
        pairs[0].a.post_send(e.IBV_WR_SEND, 10)
    pairs[0].run()
    assert b.left == len(pairs) + 1


@pytest.mark.parametrize("srq", [False, True])
@pytest.mark.parametrize("ipv6", [False, True])
@pytest.mark.parametrize("segments", [1, 64])
def test_datagrams_need_no_python(held: Any, segments: int, ipv6: bool, srq: bool) -> None:
    """But for the first to each destination, whose path the device looks for."""
    pairs, (a, b) = held(2, service="UD", srq=srq, ipv6=ipv6, max_segments=segments)
    rng = random.Random(segments)

    def send(pair: QpPair, count: int) -> None:
        for _ in range(count):
            pair.b.post_recv(1_100, 4_096)
            opcode = rng.choice((e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM))
            flags = e.IBV_SEND_SIGNALED | rng.choice((0, e.IBV_SEND_SOLICITED))
            pair.a.post_send(opcode, rng.choice((0, 1, 8, 700, 1_024)), rng.randrange(2_000), flags=flags)

    for is_held in (False, True):  # a path that was made stays; then the engine hears of it
        a.hold(held=is_held)
        for pair in pairs:
            send(pair, 1)
        pairs[0].run()
        for pair in pairs:
            pair.a.poll()
            pair.b.poll()
    a.left = a.sent = b.taken = b.left = a.turns = 0
    for _ in range(6):
        for pair in pairs:
            pair.b.cq.req_notify(solicited_only=rng.random() < 0.5)
            send(pair, 5)
        pairs[0].run()
        for pair in pairs:
            assert [wc.status for wc in pair.a.poll()] == [enums.IBV_WC_SUCCESS] * 5
            got = pair.b.poll()
            assert [(wc.status, wc.src_qp) for wc in got] == [(enums.IBV_WC_SUCCESS, pair.a.qp.qp_num)] * 5
            assert all(wc.wc_flags & e.IBV_WC_GRH for wc in got)
    assert (a.sent, a.turns, b.taken, b.left) == (60, 0, 60, 0)
    assert bytes(pairs[0].b.buf[4_096:4_136]) != bytes(40)


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_unreliable_connections(held: Any, drop: float) -> None:
    """What is lost stays lost; what is sent is complete."""
    pairs, (a, b) = held(2, service="UC", tx=FaultRates(drop=drop))
    rng = random.Random(3)
    for _ in range(5):
        for pair in pairs:
            write(pair, 8)
        pairs[0].run()  # the first packets of each are the reference's
    for pair in pairs:
        pair.a.poll()
    a.left = b.taken = b.left = 0
    got = 0
    for _ in range(6):
        for pair in pairs:
            pair.a.cq.req_notify()
            pair.b.post_recv(9_000)
            pair.a.post_send(rng.choice((e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM)), rng.choice((0, 8, 1_500, 9_000)))
            write(pair, rng.choice((0, 8, 6_000)))
        pairs[0].run()
        for pair in pairs:
            assert [wc.status for wc in pair.a.poll()] == [enums.IBV_WC_SUCCESS] * 2
            got += len(pair.b.poll())
    assert b.taken > 20
    if not drop:
        assert (got, a.left, b.left) == (12, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_losses(held: Any, seed: int) -> None:
    pairs, (a, b) = held(3, seed=seed, tx=FaultRates(drop=0.03, reorder=0.02, duplicate=0.02))
    rng = random.Random(seed)
    for _ in range(6):
        for pair in pairs:
            write(pair, rng.choice((8, 3_000, 16_000)))
            pair.a.post_send(e.IBV_WR_RDMA_READ, rng.choice((8, 3_000, 16_000)))
            pair.b.post_send(e.IBV_WR_RDMA_WRITE, rng.choice((8, 3_000)))
            pair.b.post_send(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, compare_add=1)
        pairs[0].run()
    for pair in pairs:
        assert {wc.status for side in (pair.a, pair.b) for wc in side.poll()} == {enums.IBV_WC_SUCCESS}
    # nothing but packets of an unknown IPv4 ident, and what a reordered packet says of that, is the reference's
    assert max(a.left, b.left) < min(a.taken, b.taken) / 4
    assert min(a.taken, b.taken) > 20
    assert a.timed
    assert b.timed
    assert a.nic.counters["probes"] + b.nic.counters["probes"]


def test_events_of_armed_queues_are_raised(held: Any) -> None:
    (pair,), (a, b) = held()
    for _ in range(3):
        pair.a.cq.req_notify()
        pair.b.cq.req_notify()
        pair.b.post_recv(100)
        pair.a.post_send(e.IBV_WR_SEND, 10)
        pair.run()
    assert [wc.status for wc in pair.a.poll()] == [enums.IBV_WC_SUCCESS] * 3
    assert (a.taken, b.taken) == (3, 3)


def test_a_queue_pair_that_is_gone_or_held_is_not_the_engine_s(held: Any) -> None:
    pairs, (_, b) = held(2)
    write(pairs[0], 8)
    write(pairs[1], 8)
    pairs[0].run()
    nic = pairs[0].b.node.nic
    left = b.left
    del nic.contexts.key.qps[pairs[0].b.qp.qp_num]  # evicted: held
    write(pairs[0], 8)
    write(pairs[1], 8)
    pairs[0].net.turn()
    pairs[0].net.turn()
    assert b.left > left
    pairs[1].b.qp.close()
    write(pairs[1], 8)
    for _ in range(4):
        pairs[0].net.turn()
    assert nic.counters["drop_unknown_qp"] + nic.counters.get("drop_not_cached", 0)


def test_deadlines_are_the_timers_s(held: Any) -> None:
    pairs, (a, _) = held(2)
    device, nic = a.nic.engine_device, a.nic
    assert device.deadline == NEVER == (nic.timers.next_ns() or NEVER)
    for pair in pairs:
        write(pair, 8)
    nic.produce(nic.now_ns)
    first = nic.timers.next_ns()
    assert device.deadline == first
    assert first is not None
    assert device.handle_deadlines(first - 1, 5) == (0, 4)
    # acknowledged meanwhile: who is woken has nothing to do and is armed no more
    while any(qp.requester.inflight for qp in nic.qps.values()):
        pairs[0].net.turn()
    armed = len(nic.timers)
    assert armed
    assert device.handle_deadlines(first * 1_000, 5) == (0, 5 - armed - 1)
    assert len(nic.timers) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_hostile_packets_in_the_midst(held: Any, seed: int) -> None:
    """Ahead of each burst come copies of its first packet with bytes changed, the ICRC made right again for most."""
    pairs, (a, b) = held(2, seed=seed)
    rng = random.Random(seed)

    def besiege(holder: Held) -> None:
        honest = holder.receive

        def receive(burst: RxBurst, now_ns: int, start: int = 0) -> None:
            for _ in range(3):
                packet = bytearray(burst.buf[: min(burst.segment, burst.length)])
                for _ in range(rng.randrange(1, 3)):
                    # mostly PSN and queue pair: few of the others leave a queue pair alive
                    fatal = rng.random() < 0.01
                    place = rng.choice((0, 1, 12, 15, 20, 24, 27) if fatal else (5, 6, 7, 9))
                    packet[place % len(packet)] ^= 1 << rng.randrange(8)
                if rng.random() < 0.9:
                    packet[-4:] = burst.flow.icrc(packet[:-4], burst.ident or 0).to_bytes(4, "little")
                how = 0 if burst.ident is None else burst.ident, burst.frag
                honest(RxBurst(burst.flow, memoryview(packet), len(packet), len(packet), *how), now_ns)
            honest(burst, now_ns, start)

        holder.nic.receive = receive

    for holder in (a, b):
        besiege(holder)
    for _ in range(12):
        for pair in pairs:
            write(pair, rng.choice((0, 8, 900)))
        for _ in range(6):
            pairs[0].net.turn()
    assert a.left + b.left > 40


@pytest.mark.skipif(sys.platform != "linux", reason="another process's memory is reached through /proc")
def test_memory_of_another_process_is_written_by_the_engine(held: Any) -> None:
    """Here it is this process's own, through the descriptors that a program hands over."""
    (pair,), (_, b) = held()
    nic = pair.b.node.nic
    entry = next(entry for entry in nic.memory._live.values() if entry.key == pair.b.mr.rkey)
    port = ProgramMemory(os.open("/proc/self/mem", os.O_RDWR), os.getpid())
    before = entry.view
    entry.base = address_of(memoryview(pair.b.buf))
    entry.view, entry.port = None, port
    nic.memory.on_key_change(entry)
    pair.a.buf[:8] = b"far away"
    for _ in range(3):
        write(pair, 8)
        assert [wc.status for wc in pair.a.wait()] == [enums.IBV_WC_SUCCESS]
    assert pair.b.buf[:8] == b"far away"
    if not b.taken and not _asks():
        pytest.skip("the kernel has no PROCMAP_QUERY, so the reference does it all")
    assert b.taken == 3
    entry.view = before
    nic.memory.on_key_change(entry)
    port.close()


def _asks() -> bool:
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 11)


@pytest.mark.skipif(sys.platform != "linux", reason="another process's memory is reached through /proc")
def test_memory_of_another_process_is_sent_by_the_engine(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair,), (a, _) = held(settings={"flight_packets": 64})
    nic = a.nic
    taken_over: list[int] = []
    entry = next(entry for entry in nic.memory._live.values() if entry.key == pair.a.mr.lkey)
    port = ProgramMemory(os.open("/proc/self/mem", os.O_RDWR), os.getpid())
    before, base = entry.view, entry.base
    entry.base = address_of(memoryview(pair.a.buf))
    entry.view, entry.port = None, port
    nic.memory.on_key_change(entry)
    pair.a.buf[:] = bytes(range(256)) * (len(pair.a.buf) // 256)
    take_over = Sending.take_over

    def noted(sending: Any, now_ns: int, out: list[TxBurst], *turn: int) -> tuple[int, bool]:
        taken_over.append(turn[0])
        return take_over(sending, now_ns, out, *turn)

    monkeypatch.setattr(Sending, "take_over", noted)
    for length in (8, 9_000, 1):
        write(pair, length)
        assert [wc.status for wc in pair.a.wait()] == [enums.IBV_WC_SUCCESS]
    assert pair.b.buf[:9_000] == pair.a.buf[:9_000]
    if taken_over and not _asks():
        pytest.skip("the kernel has no PROCMAP_QUERY, so the reference does it all")
    assert taken_over == []
    entry.base = 4096  # nothing is there: the reference is to say so
    nic.memory.on_key_change(entry)
    write(pair, 9_000)
    assert [wc.status for wc in pair.a.wait()] == [enums.IBV_WC_LOC_PROT_ERR]
    assert taken_over
    entry.view, entry.base = before, base
    nic.memory.on_key_change(entry)
    port.close()
