"""A queue runs on its cached context alone: evicted it stalls, loaded it goes on as if nothing had been."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.context import messages as m
from rnic.context import modify
from rnic.context.cqc import CQC
from rnic.context.ctxmdata import CQ, EQ, QP
from rnic.context.ctxmgt import NotWrittenBackError, Status
from rnic.context.qpc import QPC
from rnic.device import Nic
from rnic.rings.sqe import SQE_BYTES
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec.opcodes import WR_READ
from rnic.spec.rounds import WRITE_BACK_NS
from rnic.spec.states import ERR, RTS
from rnic.spec.status import REM_ACCESS_ERR, SUCCESS, WR_FLUSH_ERR
from rnic.state.queues import CONTEXT_BYTES
from tests.unit.device.conftest import NewPair, Pair


class Bench:
    """Two connected queue pairs at work."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.nic, self.driver, self.wire = pair.nics[0], pair.drivers[0], pair.wire
        self.contexts, self.counters = self.nic.contexts, self.nic.counters
        self.a, self.b = pair.connect()
        self.cq, self.eq = pair.cqs[0], pair.eqs[0]
        self.write()
        assert self.done() == [SUCCESS]

    def write(self, side: int = 0, length: int = 8) -> None:
        (_, va, lkey), (_, remote, rkey) = self.pair.mrs if side == 0 else reversed(self.pair.mrs)
        self.pair.drivers[side].write(self.b if side else self.a, va, length, lkey, remote, rkey)

    def done(self, side: int = 0) -> list[int]:
        self.wire.run()
        return [entry[1] & 0xFF for entry in self.pair.poll(side)]

    def slot(self, kind: str, number: int) -> bytes:
        """The context's part of a slot of the cache."""
        cache: Any = {QP: self.contexts.key.qps, CQ: self.contexts.key.cqs, EQ: self.contexts.key.eqs}[kind]
        at = cache.slot(number)
        size = {QP: 256, CQ: CONTEXT_BYTES["completion queue"], EQ: CONTEXT_BYTES["event queue"]}[kind]
        return bytes(self.nic.arena.memory[at : at + size])


def peek(nic: Nic, kind: str, number: int) -> bytes:
    found = nic.contexts.peek(kind, number)
    assert found is not None
    return found


@pytest.fixture
def bench(new_pair: NewPair) -> Bench:
    return Bench(new_pair())


@pytest.mark.parametrize("how", ["evict", "del"])
def test_a_queue_pair_stalls_until_it_is_loaded(bench: Bench, how: str) -> None:
    number = bench.a.number
    bench.nic.flush_contexts()
    before = bench.slot(QP, number)
    if how == "evict":
        assert bench.contexts.evict(QP, number) == Status.OK
    else:
        del bench.contexts.key.qps[number]
    assert bench.slot(QP, number) == bytes(256)
    assert bench.counters["ctx_evictions"] == 1
    # sends wait
    bench.wire.seen.clear()
    bench.write()
    assert bench.done() == []
    assert bench.wire.seen == []
    # what arrives is dropped, and the peer goes on asking
    bench.write(side=1)
    assert bench.done(1) == []
    assert bench.counters["drop_not_cached"] > 0
    assert bench.slot(QP, number) == bytes(256)
    assert bench.contexts.load(QP, number) == Status.OK
    assert bench.counters["ctx_loads"] == 1
    assert bench.slot(QP, number) == before
    assert bench.done() == [SUCCESS]
    bench.wire.skip(20_000_000)
    assert bench.done(1) == [SUCCESS]


def test_what_was_under_way_goes_on_after_a_load(bench: Bench) -> None:
    """Evicted with packets in flight, in both directions, and a READ among them."""
    (_, va, lkey), (_, remote, rkey) = bench.pair.mrs
    for _ in range(3):
        bench.write(length=20_000)
    bench.driver.post(bench.a, WR_READ, va, 9_000, lkey, remote, rkey)
    bench.write(side=1, length=30_000)
    for _ in range(2):
        bench.wire.step()
    assert bench.contexts.evict(QP, bench.a.number) == Status.OK
    done = [entry[1] & 0xFF for entry in bench.pair.poll(0)]
    assert len(done) < 4
    for _ in range(5):
        bench.wire.step()
    assert bench.pair.poll(0) == []
    assert bench.contexts.load(QP, bench.a.number) == Status.OK
    bench.wire.run()
    for _ in range(20):
        bench.wire.skip(5_000_000)
    assert done + bench.done() == [SUCCESS] * 4
    assert bench.done(1) == [SUCCESS]


@pytest.mark.parametrize("kind", [QP, CQ, EQ])
def test_a_load_brings_equal_bytes_back(bench: Bench, kind: str) -> None:
    number = {QP: bench.a.number, CQ: bench.cq.number, EQ: bench.eq.number}[kind]
    bench.nic.flush_contexts()
    before = bench.slot(kind, number)
    assert any(before)
    assert bench.contexts.evict(kind, number) == Status.OK
    assert not any(bench.slot(kind, number))
    assert bench.contexts.evicted(kind, number)
    assert bench.contexts.evict(kind, number) == Status.REFUSED
    assert bench.contexts.load(kind, number) == Status.OK
    assert not bench.contexts.evicted(kind, number)
    assert bench.slot(kind, number) == before
    bench.write()
    assert bench.done() == [SUCCESS]
    if kind == CQ:
        bench.nic.flush_contexts()
        assert CQC.get(peek(bench.nic, CQ, number), "producer_index") == 2


def test_a_completion_queue_holds_its_queue_pairs(bench: Bench) -> None:
    bench.write()
    bench.wire.step()  # on its way, not acknowledged
    assert bench.contexts.evict(CQ, bench.cq.number) == Status.OK
    for _ in range(5):
        bench.wire.step()
    memory = bytes(bench.cq.memory)
    bench.wire.skip(5_000_000)
    assert bytes(bench.cq.memory) == memory
    assert bench.nic.qps[bench.a.number].ctx.state == RTS
    assert bench.contexts.load(CQ, bench.cq.number) == Status.OK
    bench.wire.run()
    bench.wire.skip(20_000_000)
    assert bench.done() == [SUCCESS]


def test_events_of_an_event_queue_wait(bench: Bench) -> None:
    bench.driver.map_events(bench.eq, events.CQ_ERROR, events.WQ_CATAS_ERROR)
    bench.driver.arm(bench.cq, 1)
    assert bench.contexts.evict(EQ, bench.eq.number) == Status.OK
    bench.write()
    assert bench.done() == [SUCCESS]
    bench.nic.resources.cqs[bench.cq.number].fail()
    bench.nic.produce(bench.wire.now)
    assert bench.pair.events(0) == []
    assert bench.nic.next_event() is None
    assert bench.contexts.load(EQ, bench.eq.number) == Status.OK
    told = [entry[:2] for entry in bench.pair.events(0)]
    assert (events.CQ_ERROR, bench.cq.number) in told
    assert (events.WQ_CATAS_ERROR, bench.a.number) in told
    assert bench.nic.next_event() == 3


def test_a_completion_event_is_raised_when_its_queue_is_back(bench: Bench) -> None:
    bench.driver.arm(bench.cq, 1)
    assert bench.contexts.evict(EQ, bench.eq.number) == Status.OK
    bench.write()
    assert bench.done() == [SUCCESS]
    assert bench.counters["eq_uncached"] == 1
    assert bench.contexts.load(EQ, bench.eq.number) == Status.OK
    assert [entry[:2] for entry in bench.pair.events(0)] == [(events.COMP, bench.cq.number)]


def test_memory_that_takes_nothing_keeps_the_context_in_the_cache(bench: Bench) -> None:
    number = bench.a.number
    table = bench.contexts.ctxmdata.tables["qp"]
    bench.write()
    assert bench.done() == [SUCCESS]
    assert bench.contexts.unmap_icm(table.base, table.pages) == Status.OK
    assert bench.contexts.evict(QP, number) == Status.DMA_ERROR
    with pytest.raises(NotWrittenBackError, match=f"qp {number}"):
        del bench.contexts.key.qps[number]
    bench.write()
    assert bench.done() == [SUCCESS]
    assert bench.contexts.load(CQ, 9) == Status.REFUSED  # zeros are no context
    assert bench.contexts.load(CQ, 1 << 20) == Status.DMA_ERROR


def test_commands_bring_back_what_they_work_on(bench: Bench) -> None:
    number = bench.a.number
    for kind, which in ((QP, number), (CQ, bench.cq.number)):
        assert bench.contexts.evict(kind, which) == Status.OK
    shown = bench.driver.ok(cmd.QUERY_QP, number).outbox  # memory says it all
    assert QPC.get(shown, "state") == RTS
    assert QPC.get(shown, "next_send_psn") == 8
    bench.write()
    bench.driver.ok(cmd.TOERR, number, 0, bytes(256))
    assert bench.done() == [WR_FLUSH_ERR]
    assert bench.contexts.evict(QP, number) == Status.OK
    bench.driver.ok(cmd.ERR2RST, number)
    assert number not in bench.nic.qps
    assert not bench.contexts.key.qps.evicted
    bench.contexts.evict(CQ, bench.cq.number)
    bench.driver.ok(cmd.HW2SW_CQ, bench.cq.number)
    assert not bench.contexts.key.cqs.evicted


def test_an_evicted_queue_pair_can_be_destroyed_without_its_memory(bench: Bench) -> None:
    number, pd = bench.a.number, bench.pair.pds[0]
    users = bench.nic.resources.pd_users[pd]
    assert bench.contexts.evict(QP, number) == Status.OK
    table = bench.contexts.ctxmdata.tables["qp"]
    assert bench.contexts.unmap_icm(table.base, table.pages) == Status.OK
    assert bench.driver.run(cmd.TOERR, number, 0, bytes(256)).status == cmd.ST_BAD_NVMEM
    bench.driver.ok(cmd.ERR2RST, number)
    assert bench.nic.resources.pd_users[pd] == users - 1
    assert bench.nic.resources.cqs[bench.cq.number].users == 0


def test_a_failing_queue_pair_says_so_in_host_memory_at_once(bench: Bench) -> None:
    """At every state change, not only once the NIC is idle."""
    (_, va, lkey), (_, remote, _) = bench.pair.mrs
    bench.driver.write(bench.a, va, 8, lkey, remote, 0xBAD)
    assert bench.done() == [REM_ACCESS_ERR]
    assert QPC.get(peek(bench.nic, QP, bench.a.number), "state") == ERR
    assert QPC.get(peek(bench.pair.nics[1], QP, bench.b.number), "state") == ERR
    bench.wire.skip(2 * WRITE_BACK_NS)
    assert peek(bench.nic, QP, bench.a.number)[0x6C:0x70] == bench.slot(QP, bench.a.number)[0x6C:0x70]


@pytest.mark.parametrize("way", ["commands", "message"])
def test_a_context_of_the_documented_table_alone_works(new_pair: NewPair, way: str) -> None:
    """002 4.2.1 and nothing else: rings by key, length and entry size, the path by IP address; no extension."""
    pair = new_pair()
    driver, nic = pair.drivers[0], pair.nics[0]
    memory, va, key = driver.mr(pair.pds[0], 4096)
    number, block = driver.alloc(cmd.RES_QP), driver.alloc(cmd.RES_UAR_BLOCK)
    b = pair.drivers[1].qp(pair.pds[1], pair.cqs[1])
    pair.drivers[1].to_rts(b, pair.gid(0), number)
    creation = {
        "pd": pair.pds[0],
        "usr_page": block,
        "cqn_snd": pair.cqs[0].number,
        "cqn_rcv": pair.cqs[0].number,
        "wqe_base": 256,
        "snd_wqe_base_lkey": key,
        "snd_wqe_length": 16 * SQE_BYTES,
        "sq_entry_sz_log": 6,
        "rcv_wqe_base_lkey": key,
        "rcv_wqe_length": 256,
        "rq_entry_sz_log": 4,
        "port": 1,
    }
    rtr = {"dip": 0x0A00_0002, "hop_limit": 64, "mtu": 3, "remote_qpn": b.number, "expected_psn": 7, "rnr_nak_timer": 1}
    rts = {"next_send_psn": 7, "last_acked_psn": 7, "ackto": 14, "rnr_retry": 2}
    if way == "commands":
        masks = {
            cmd.RST2INIT: modify.PKEY_INDEX | modify.PORT | modify.ACCESS_FLAGS,
            cmd.INIT2RTR: driver.rtr_fields(0, pair.gid(1), 1)["opt_param_mask"],
            cmd.RTR2RTS: driver.rts_fields(0)["opt_param_mask"],
        }
        for (opcode, mask), fields in zip(masks.items(), (creation, rtr, rts), strict=True):
            image = QPC.pack(fields | {"opt_param_mask": mask})
            assert not any(image[192:])
            driver.ok(opcode, number, 0, image)
    else:
        image = QPC.pack(creation | rtr | rts | {"state": RTS, "local_qpn": number})
        assert nic.contexts.ceu(m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, number), image[:192])[0] == Status.OK
    queue = type(b)(number, block, memory, va)
    queue.rq_offset = 256 + 16 * SQE_BYTES
    sends = type(b)(number, block, memoryview(memory)[256:], va + 256)
    (source, mine, lkey), (target, remote, rkey) = pair.mrs
    source[:8] = b"from 002"
    driver.write(sends, mine, 8, lkey, remote, rkey)
    pair.wire.run()
    assert [entry[1] & 0xFF for entry in pair.poll(0)] == [SUCCESS]
    assert target[:8] == b"from 002"
    driver.recv(queue, mine + 64, 8, lkey)
    target[:8] = b"back now"
    pair.drivers[1].send(b, remote, 8, rkey)
    pair.wire.run()
    assert [entry[1] & 0xFF for entry in pair.poll(0)] == [SUCCESS]
    assert source[64:72] == b"back now"
    driver.ok(cmd.ERR2RST, number)
