"""Completion queues: entries, phase, arming, overflow, resizing; with views of memory and through the port."""

from __future__ import annotations

import pytest

from rnic.context.cqc import CQ_STAMPED, CQC
from rnic.device import Nic
from rnic.device.cq import CompletionQueue
from rnic.device.eq import EventQueue
from rnic.mem.space import SimAddressSpace
from rnic.rings.cqe import CQ_ENTRY, CQE_BYTES, CQE_RECEIVE, CQE_SOLICITED, STAMP
from rnic.rings.queue_block import ARM_NEXT, ARM_SOLICITED, CQ_DOORBELL, CQ_HEAD, CQ_SIZE, CQ_TAIL, QUEUE_STATE
from rnic.rings.ring import PhaseConsumer
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec.states import ERR
from tests.unit.device.conftest import Driver, Queue


class PortOnly(SimAddressSpace):
    """Memory that is not in reach as views."""

    def views(self, va: int, length: int) -> None:
        return None


@pytest.fixture(params=[SimAddressSpace, PortOnly], ids=["views", "port"])
def driver(request: pytest.FixtureRequest, nic: Nic, new_driver: type[Driver]) -> Driver:
    return new_driver(nic, request.param())


@pytest.fixture
def eq(driver: Driver) -> Queue:
    eq = driver.eq(vector=5)
    driver.map_events(eq, events.CQ_ERROR, events.WQ_CATAS_ERROR)
    return eq


@pytest.fixture
def cq(driver: Driver, eq: Queue) -> Queue:
    return driver.cq(eq, logsize=3)


@pytest.fixture
def device_cq(driver: Driver, cq: Queue) -> CompletionQueue:
    return driver.nic.resources.cqs[cq.number]


def fill(device_cq: CompletionQueue, *, index: int = 1, status: int = 0, word3: int = 4) -> None:
    device_cq.complete(index, status, 0, 100, word3, 7, 100, 20, 0xAABBCCDD)


def test_entry_bytes(cq: Queue, device_cq: CompletionQueue) -> None:
    device_cq.complete(3, 0x13, 0x62, 100, CQE_RECEIVE | 4, 0x01020304, 200, 0x123456, 0xAABBCCDD)
    assert cq.memory[:32].hex() == ("0300000013620000640000000401008004030201c800000056341200ddccbbaa")
    entry = CQ_ENTRY.unpack(cq.memory)
    assert (entry["index"], entry["status"], entry["vendor_err"], entry["phase"]) == (3, 0x13, 0x62, 1)


def test_a_stamped_queue_says_when_an_entry_was_made(
    driver: Driver, eq: Queue, cq: Queue, device_cq: CompletionQueue
) -> None:
    number, block = driver.alloc(cmd.RES_CQ), driver.alloc(cmd.RES_UAR_BLOCK)
    memory, va = driver.memory(8 * CQE_BYTES)
    context = bytearray(driver.cqc(eq, block, va, 3))
    CQC.put(context, "flags", CQ_STAMPED)
    driver.ok(cmd.SW2HW_CQ, number, 0, bytes(context))
    stamped = driver.nic.resources.cqs[number]
    for place, now in enumerate((0x1234_5678_9ABC, 0xFFFF_0000_0001_0002)):
        driver.nic.now_ns = now
        for queue in (stamped, device_cq):
            queue.complete(3, 0x13, 0x62, 100, 4, 7, 200, 20, 0)
        made, plain = (bytes(each[32 * place : 32 * place + 32]) for each in (memory, cq.memory))
        assert STAMP.unpack(made) == {"high": now >> 32 & 0xFFFF, "low": now & 0xFFFF_FFFF}
        assert CQ_ENTRY.unpack(made) | {"requested": 200} == CQ_ENTRY.unpack(plain)


def test_phase_and_producer_record_over_many_laps(driver: Driver, cq: Queue, device_cq: CompletionQueue) -> None:
    for index in range(50):
        fill(device_cq, index=index)
        assert driver.uar.load(cq.block, CQ_TAIL) == (index + 1) % 8
        ((first, *_),) = driver.poll(cq)
        assert first == index


def test_overflow(driver: Driver, eq: Queue, cq: Queue, device_cq: CompletionQueue) -> None:
    qp = driver.qp(driver.alloc(cmd.RES_PD), cq)
    other = driver.qp(driver.alloc(cmd.RES_PD), driver.cq(eq))
    for index in range(7):
        fill(device_cq, index=index)
    assert not device_cq.failed
    before = bytes(cq.memory)
    fill(device_cq, index=7)
    fill(device_cq, index=8)
    assert bytes(cq.memory) == before, "nothing is overwritten"
    assert driver.uar.load(cq.block, QUEUE_STATE) == 15
    assert [entry[:2] for entry in driver.poll(eq)] == [(events.CQ_ERROR, cq.number)]
    assert driver.nic.has_work()
    driver.nic.produce(1)
    assert driver.nic.qps[qp.number].ctx.state == ERR
    assert driver.nic.qps[other.number].ctx.state != ERR
    assert [entry[:2] for entry in driver.poll(eq)] == [(events.WQ_CATAS_ERROR, qp.number)]
    assert not driver.nic.has_work()
    assert driver.run(cmd.RESIZE_CQ, cq.number, 0, driver.cqc(eq, cq.block, cq.va, 3)).status == (cmd.ST_BAD_RES_STATE)


def test_complete_says_whether_the_entry_was_stored(device_cq: CompletionQueue) -> None:
    stored = [device_cq.complete(index, 0, 0, 100, 4, 7, 100, 20, 0) for index in range(9)]
    assert stored == [True] * 7 + [False] * 2


def test_a_head_beyond_the_ring_counts_as_full(driver: Driver, cq: Queue, device_cq: CompletionQueue) -> None:
    driver.uar.store(cq.block, CQ_HEAD, 8)
    for index in range(8):
        fill(device_cq, index=index)
    assert device_cq.failed


def test_memory_that_goes_away(driver: Driver, eq: Queue, cq: Queue, device_cq: CompletionQueue) -> None:
    if device_cq.view is not None:
        pytest.skip("a view keeps its memory")
    (mapping,) = [item for item in driver.space._by_va._items if item.va == cq.va]
    driver.space.unmap(mapping)
    fill(device_cq)
    assert device_cq.failed
    assert device_cq.read(0) is None
    assert device_cq.unread_entries() == []


@pytest.mark.parametrize(
    ("arm", "status", "word3", "fires"),
    [
        (0, 0, 4 | CQE_SOLICITED, False),
        (ARM_NEXT, 0, 4, True),
        (ARM_NEXT | ARM_SOLICITED, 0, 4, True),
        (ARM_SOLICITED, 0, 4, False),
        (ARM_SOLICITED, 0, 4 | CQE_SOLICITED, True),
        (ARM_SOLICITED, 5, 4, True),
        (4, 0, 4 | CQE_SOLICITED, False),
    ],
)
def test_arming(
    driver: Driver, eq: Queue, cq: Queue, device_cq: CompletionQueue, arm: int, status: int, word3: int, fires: bool
) -> None:
    driver.arm(cq, arm)
    fill(device_cq, status=status, word3=word3)
    assert driver.nic.next_event() == (5 if fires else None)
    assert len(driver.poll(eq)) == fires
    assert driver.uar.load(cq.block, CQ_DOORBELL) == (0 if fires else arm)
    fill(device_cq, status=status, word3=word3)
    assert driver.nic.next_event() is None, "an event disarms"


def test_software_that_arms_between_the_entry_and_the_look_is_told(
    driver: Driver, eq: Queue, cq: Queue, device_cq: CompletionQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def software_arms() -> None:
        seen.append(CQ_ENTRY.unpack(cq.memory)["phase"])
        driver.arm(cq, ARM_NEXT)

    monkeypatch.setattr("rnic.device.cq.fence", software_arms)
    fill(device_cq)
    assert seen == [1], "the entry is stored before the barrier, once"
    assert driver.nic.next_event() == 5


def test_full_eq_leaves_the_cq_armed(driver: Driver, nic: Nic) -> None:
    eq = driver.eq(logsize=1)
    first, second = (driver.cq(eq) for _ in range(2))
    cqs = [nic.resources.cqs[queue.number] for queue in (first, second)]
    for queue, device in zip((first, second), cqs, strict=True):
        driver.arm(queue, ARM_NEXT)
        fill(device)
    assert nic.counters["eq_overflows"] == 1
    assert [entry[1] for entry in driver.poll(eq)] == [first.number]
    fill(cqs[1])
    assert [entry[1] for entry in driver.poll(eq)] == [second.number]


@pytest.mark.parametrize("armed", [ARM_NEXT, ARM_SOLICITED])
def test_software_that_arms_while_the_eq_is_full_has_the_last_word(
    driver: Driver, nic: Nic, monkeypatch: pytest.MonkeyPatch, armed: int
) -> None:
    eq = driver.eq(logsize=1)
    cq, other = (driver.cq(eq) for _ in range(2))
    device, full = (nic.resources.cqs[queue.number] for queue in (cq, other))
    driver.arm(other, ARM_NEXT)
    fill(full)  # the EQ's only place
    driver.arm(cq, ARM_SOLICITED)

    def software_arms(event_queue: EventQueue, *event: int) -> bool:
        driver.arm(cq, armed)
        return report(event_queue, *event)

    report = EventQueue.report
    monkeypatch.setattr(EventQueue, "report", software_arms)
    fill(device, word3=4 | CQE_SOLICITED)
    monkeypatch.undo()
    assert nic.counters["eq_overflows"] == 1
    assert driver.uar.load(cq.block, CQ_DOORBELL) == armed
    driver.poll(eq)
    fill(device)
    assert [entry[1] for entry in driver.poll(eq)] == ([cq.number] if armed == ARM_NEXT else [])


def test_an_event_that_just_found_room_leaves_the_cq_armed(
    driver: Driver, nic: Nic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for room and the event software takes an entry: one event too many, but none is lost."""
    eq = driver.eq(logsize=1)
    cq, other = (driver.cq(eq) for _ in range(2))
    driver.arm(other, ARM_NEXT)
    fill(nic.resources.cqs[other.number])
    driver.arm(cq, ARM_NEXT)

    def software_takes(event_queue: EventQueue, *event: int) -> bool:
        driver.poll(eq)
        return report(event_queue, *event)

    report = EventQueue.report
    monkeypatch.setattr(EventQueue, "report", software_takes)
    fill(nic.resources.cqs[cq.number])
    monkeypatch.undo()
    assert driver.uar.load(cq.block, CQ_DOORBELL) == ARM_NEXT
    assert [entry[1] for entry in driver.poll(eq)] == [cq.number]


@pytest.mark.parametrize("taken", [0, 3, 6])
@pytest.mark.parametrize("logsize", [2, 3, 6])
def test_resize(driver: Driver, eq: Queue, cq: Queue, device_cq: CompletionQueue, taken: int, logsize: int) -> None:
    for _ in range(6):  # so that the entries wrap
        fill(device_cq)
    driver.poll(cq)
    for index in range(6):
        fill(device_cq, index=index)
    assert cq.ring is not None
    for _ in range(taken):
        cq.ring.pop()
    driver.uar.store(cq.block, CQ_HEAD, cq.ring.head)
    memory, va = driver.memory(32 << logsize)
    memory[:] = b"\xff" * len(memory)
    result = driver.run(cmd.RESIZE_CQ, cq.number, 0, driver.cqc(eq, cq.block, va, logsize))
    if 6 - taken >= 1 << logsize:
        assert result.status == cmd.ST_BAD_SIZE
        assert driver.uar.load(cq.block, CQ_SIZE) == 8
        return
    assert result.status == cmd.ST_OK
    left = 6 - taken
    assert [driver.uar.load(cq.block, register) for register in (CQ_SIZE, CQ_HEAD, CQ_TAIL)] == [
        1 << logsize,
        0,
        left,
    ]
    cq.ring = PhaseConsumer(memoryview(memory), 1 << logsize)
    cq.memory = memory
    assert [entry[0] for entry in driver.poll(cq)] == list(range(taken, 6))
    for index in range(200):
        fill(device_cq, index=index)
        assert [entry[0] for entry in driver.poll(cq)] == [index]
    assert not device_cq.failed


def test_resize_with_an_impossible_head(driver: Driver, eq: Queue, cq: Queue, device_cq: CompletionQueue) -> None:
    driver.uar.store(cq.block, CQ_HEAD, 99)
    _, va = driver.memory(512)
    assert driver.run(cmd.RESIZE_CQ, cq.number, 0, driver.cqc(eq, cq.block, va)).status == cmd.ST_BAD_PARAM


def test_resize_onto_memory_that_refuses(
    driver: Driver, nic: Nic, eq: Queue, cq: Queue, device_cq: CompletionQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device_cq.view is not None:
        pytest.skip("a view refuses nothing")
    fill(device_cq)
    _, va = driver.memory(512)
    monkeypatch.setattr(PortOnly, "write", lambda self, va, data: False)
    assert driver.run(cmd.RESIZE_CQ, cq.number, 0, driver.cqc(eq, cq.block, va)).status == cmd.ST_BAD_PARAM
    assert driver.uar.load(cq.block, CQ_SIZE) == 8
    monkeypatch.setattr(PortOnly, "read", lambda self, va, buf: False)
    assert device_cq.unread_entries() is None
