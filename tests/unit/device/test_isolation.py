"""64 queue pairs under traffic: whatever breaks one disturbs no other (004 7.7), and turns are fair (004 7.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rnic.rings.queue_block import RQ_TAIL, SQ_TAIL
from rnic.rings.sqe import SQE_BYTES
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec import registers as reg
from rnic.spec.opcodes import WR_WRITE
from rnic.spec.states import ERR, SQE, ST_UC, ST_UD
from rnic.spec.status import LOC_PROT_ERR, LOC_QP_OP_ERR, REM_ACCESS_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR
from tests.unit.device.conftest import Driver, NewPair, Pair, Queue

QPS = 64
VICTIM = 13
Way = Callable[[Pair, Queue], None]
Cause = Callable[[Pair, Queue, Queue], object]


def bad_opcode(bench: Pair, qp: Queue) -> None:
    bench.drivers[0].post(qp, 0x55, *local(bench))


def bad_lkey(bench: Pair, qp: Queue) -> None:
    _, va, _ = bench.mrs[0]
    bench.drivers[0].write(qp, va, 64, 0x12345, bench.mrs[1][1], bench.mrs[1][2])


def bad_rkey(bench: Pair, qp: Queue) -> None:
    bench.drivers[0].write(qp, *local(bench), bench.mrs[1][1], 0x54321)


def wild_remote(bench: Pair, qp: Queue) -> None:
    bench.drivers[0].write(qp, *local(bench), 0xDEAD_0000_0000, bench.mrs[1][2])


def wild_local(bench: Pair, qp: Queue) -> None:
    bench.drivers[0].write(qp, 0xDEAD_0000_0000, 64, bench.mrs[0][2], bench.mrs[1][1], bench.mrs[1][2])


def wild_length(bench: Pair, qp: Queue) -> None:
    _, va, key = bench.mrs[0]
    bench.drivers[0].post(qp, WR_WRITE, va, 0xFFFF_FFFF, key, bench.mrs[1][1], bench.mrs[1][2])


def garbage(bench: Pair, qp: Queue) -> None:
    qp.memory[:SQE_BYTES] = bytes(range(64, 128))
    bench.drivers[0].uar.store(qp.block, SQ_TAIL, 1)


def tail_beyond_the_ring(bench: Pair, qp: Queue) -> None:
    bench.drivers[0].uar.store(qp.block, SQ_TAIL, 0xFFFF_FFFF)


def to_error(bench: Pair, qp: Queue) -> None:
    bench.drivers[0].ok(cmd.TOERR, qp.number)


def destroyed(bench: Pair, qp: Queue) -> None:
    bench.drivers[0].ok(cmd.ERR2RST, qp.number)


WAYS = [
    bad_opcode,
    bad_lkey,
    bad_rkey,
    wild_remote,
    wild_local,
    wild_length,
    garbage,
    tail_beyond_the_ring,
    to_error,
    destroyed,
]


def listen(driver: Driver) -> None:
    """Enable the interrupt of faults alone, and take back what was raised so far."""
    driver.uar.write(reg.CONTROL, driver.uar.read(reg.CONTROL) | reg.CONTROL_IRQ)
    driver.uar.write(reg.IRQ_ENABLE, reg.IRQ_QP_FAULT)
    driver.uar.write(reg.IRQ_STATUS, 0xFFFF_FFFF)


def interrupted(driver: Driver) -> bool:
    return bool(driver.uar.read(reg.IRQ_STATUS) & reg.IRQ_QP_FAULT)


def local(bench: Pair) -> tuple[int, int, int]:
    _, va, key = bench.mrs[0]
    return va, 64, key


@pytest.fixture
def bench(new_pair: NewPair) -> Pair:
    pair = new_pair(log_max_qps=7)
    for side in (0, 1):
        pair.cqs[side] = pair.drivers[side].cq(pair.eqs[side], logsize=10)
    pair.drivers[0].map_events(pair.eqs[0], *(t for t in events.EVENT_NAMES if t != events.COMP))
    pair.queues = [pair.connect()[0] for _ in range(QPS)]
    return pair


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_breaking_one_disturbs_no_other(bench: Pair, way: Way) -> None:
    driver, target = bench.drivers[0], bench.mrs[1]
    listen(driver)
    others = [qp for index, qp in enumerate(bench.queues) if index != VICTIM]
    victim = bench.queues[VICTIM]
    for qp in others:
        driver.write(qp, *local(bench), target[1], target[2])
    bench.wire.step()
    way(bench, victim)
    for qp in others:
        driver.write(qp, *local(bench), target[1], target[2])
    bench.wire.run()
    done = [(entry[6] & 0xFFFFFF, entry[1] & 0xFF) for entry in bench.poll(0)]
    good = [(qp.number, 0) for qp in others for _ in range(2)]
    assert sorted(entry for entry in done if entry[0] != victim.number) == sorted(good)
    assert all(status for number, status in done if number == victim.number)
    if way is not destroyed:
        assert bench.nics[0].qps[victim.number].ctx.state == ERR
    told = {entry[1] & 0xFFFFFF for entry in bench.events(0) if entry[0] & 0xFF != events.COMP}
    assert told <= {victim.number}
    # whatever stops a queue pair but its own software interrupts (004 7.7), whether or not an event tells of it
    assert interrupted(driver) == (way not in (to_error, destroyed))
    for qp in others:
        driver.write(qp, *local(bench), target[1], target[2])
    bench.wire.run()
    assert [entry[1] & 0xFF for entry in bench.poll(0)] == [0] * len(others)


def no_answer(pair: Pair, a: Queue, b: Queue) -> None:
    pair.wire.drop = lambda data: True
    pair.drivers[0].write(a, *local(pair), pair.mrs[1][1], pair.mrs[1][2])
    for _ in range(4):
        pair.wire.skip(1 << 30)


def never_ready(pair: Pair, a: Queue, b: Queue) -> None:
    pair.drivers[0].send(a, *local(pair))
    for _ in range(4):
        pair.wire.skip(1 << 20)


def unusable_entry(pair: Pair, a: Queue, b: Queue) -> None:
    pair.drivers[1].recv(b, 0xDEAD_0000_0000, 64, pair.mrs[1][2])
    pair.drivers[0].send(a, *local(pair))
    pair.wire.run()


def full_cq(pair: Pair, a: Queue, b: Queue) -> None:
    for _ in range(12):
        pair.drivers[1].recv(b, pair.mrs[1][1], 64, pair.mrs[1][2])
        pair.drivers[0].send(a, *local(pair))
        pair.wire.run()


CAUSES = [
    # what is done, the side that faults, its state then, the status of its last completion
    ("invalid WQE", lambda pair, a, b: bad_opcode(pair, a), 0, ERR, LOC_QP_OP_ERR),
    ("bad lkey", lambda pair, a, b: bad_lkey(pair, a), 0, ERR, LOC_PROT_ERR),
    ("fatal NAK received", lambda pair, a, b: bad_rkey(pair, a), 0, ERR, REM_ACCESS_ERR),
    ("fatal NAK sent", lambda pair, a, b: bad_rkey(pair, a), 1, ERR, None),
    ("retries exceeded", no_answer, 0, ERR, RETRY_EXC_ERR),
    ("RNR retries exceeded", never_ready, 0, ERR, RNR_RETRY_EXC_ERR),
    ("receive entry of no use", unusable_entry, 1, ERR, LOC_PROT_ERR),
    ("CQ overflow", full_cq, 1, ERR, None),
    ("tail beyond the ring", lambda pair, a, b: tail_beyond_the_ring(pair, a), 0, ERR, None),
]


@pytest.mark.parametrize(
    ("cause", "side", "state", "status"), [row[1:] for row in CAUSES], ids=[row[0] for row in CAUSES]
)
def test_every_fault_interrupts(new_pair: NewPair, cause: Cause, side: int, state: int, status: int | None) -> None:
    """004 7.3, 7.7: an invalid WQE, a bad key, a fatal NAK, retries exceeded stop the queue pair and interrupt."""
    pair = new_pair()
    pair.cqs[1] = pair.drivers[1].cq(pair.eqs[1], logsize=3)
    a, b = pair.connect()
    for driver in pair.drivers:
        listen(driver)
    good = pair.mrs[1][1], pair.mrs[1][2]
    pair.drivers[0].write(a, *local(pair), *good)
    pair.wire.run()
    pair.poll(0)
    assert [interrupted(driver) for driver in pair.drivers] == [False, False]
    cause(pair, a, b)
    pair.wire.run()
    assert pair.nics[side].qps[(a, b)[side].number].ctx.state == state
    assert status in (None, *[entry[1] & 0xFF for entry in pair.poll(side)][:1])
    assert interrupted(pair.drivers[side])
    assert pair.nics[side].globals.interrupt_line
    pair.drivers[side].uar.write(reg.IRQ_STATUS, reg.IRQ_QP_FAULT)
    pair.wire.run()
    assert not interrupted(pair.drivers[side])
    assert not pair.nics[side].globals.interrupt_line


@pytest.mark.parametrize(("cause", "side"), [row[1:3] for row in CAUSES], ids=[row[0] for row in CAUSES])
def test_every_fault_raises_one_event_in_the_profile(new_pair: NewPair, cause: Cause, side: int) -> None:
    """004 7.3: the application hears of each, also where a completion tells of it (``NicConfig.fault_events``)."""
    pair = new_pair(fault_events=True)
    pair.cqs[1] = pair.drivers[1].cq(pair.eqs[1], logsize=3)
    a, b = pair.connect()
    for driver, eq in zip(pair.drivers, pair.eqs, strict=True):
        driver.map_events(eq, events.WQ_CATAS_ERROR, events.WQ_ACCESS_ERROR, events.WQ_INVAL_REQ_ERROR)
    cause(pair, a, b)
    pair.wire.run()
    told = [entry[1] for entry in pair.events(side)]
    assert told == [(a, b)[side].number]


@pytest.mark.parametrize("service", [ST_UC, ST_UD])
def test_a_send_queue_that_stops_alone_interrupts(new_pair: NewPair, service: int) -> None:
    pair = new_pair(fault_events=True)
    a, _ = pair.connect(service)
    listen(pair.drivers[0])
    pair.drivers[0].map_events(pair.eqs[0], events.WQ_CATAS_ERROR)
    bad_opcode(pair, a)
    pair.wire.run()
    assert pair.nics[0].qps[a.number].ctx.state == SQE
    assert interrupted(pair.drivers[0])
    assert [entry[:2] for entry in pair.events(0)] == [(events.WQ_CATAS_ERROR, a.number)]


@pytest.mark.parametrize("block", [0, 1, 200, 255, 1 << 20])
def test_doorbells_for_unknown_queues(bench: Pair, block: int) -> None:
    before = bench.nics[0].counters.snapshot()
    bench.drivers[0].uar.store(block, SQ_TAIL, 3)
    bench.drivers[0].uar.store(block, RQ_TAIL, 3)
    bench.nics[0].resources.doorbells.ring(block)  # as a program that writes its window itself does
    bench.wire.run()
    assert bench.nics[0].counters.snapshot() == before


def first_turns(bench: Pair, heavy: int, weight: int) -> dict[int, int]:
    """Packets of two queue pairs with much to do, over the first turns: 256 in all."""
    driver, target = bench.drivers[0], bench.mrs[1]
    two = bench.queues[:2]
    bench.wire.run()
    bench.nics[0].config.turn_bytes = 65_536  # so that several turns fit
    for place, qp in enumerate(two):
        driver.ok(cmd.SET_WEIGHT, qp.number, weight if place == heavy else 1)
    bench.nics[0].qps[two[0].number].requester.peer.limit = 512  # a peer that has shown how much it takes
    _, va, key = bench.mrs[0]
    for _ in range(4):
        for qp in two:
            driver.write(qp, va, 1 << 16, key, target[1], target[2])
    sent: dict[int, int] = {}
    bench.wire.now += 1_000
    peers = {bench.nics[0].qps[qp.number].ctx.remote_qpn: index for index, qp in enumerate(two)}
    for burst in bench.nics[0].produce(bench.wire.now, 256):
        dqpn = int.from_bytes(b"".join(burst.buffers)[5:8], "big")
        sent[peers[dqpn]] = sent.get(peers[dqpn], 0) + burst.count
    assert sum(sent.values()) == 256
    return sent


def test_turns_are_fair_and_bounded(bench: Pair) -> None:
    assert first_turns(bench, 0, 1)[0] == pytest.approx(128, abs=2)


def test_a_weight_gives_longer_turns(bench: Pair) -> None:
    assert first_turns(bench, 1, 3)[1] == pytest.approx(192, abs=2)


def test_outstanding_packets_of_a_queue_pair_are_bounded(new_pair: NewPair) -> None:
    """OSQ_PER_QP (004 7.4)."""
    pair = new_pair(window_packets=16)
    a, _ = pair.connect()
    _, va, key = pair.mrs[0]
    pair.drivers[0].write(a, va, 1 << 16, key, pair.mrs[1][1], pair.mrs[1][2])
    assert sum(burst.count for burst in pair.nics[0].produce(5_000)) == 16
    assert pair.nics[0].produce(6_000) == []
