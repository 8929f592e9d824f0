"""Shared receive queues: taking in order, slots and their order, the protection domain, the limit event."""

from __future__ import annotations

import pytest

from rnic.device.mailboxes import SRQ_ARM
from rnic.rings.queue_block import RQ_HEAD, RQ_TAIL, SRQ_LIMIT
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec.opcodes import RC, SEND_FIRST
from rnic.spec.states import ST_RC, ST_UD
from rnic.spec.status import LOC_PROT_ERR, SUCCESS
from rnic.wire.bursts import RxBurst
from rnic.wire.packet import build, seal
from tests.unit.device.conftest import Driver, NewPair, Pair, Queue


@pytest.fixture
def eq(driver: Driver) -> Queue:
    eq = driver.eq()
    driver.map_events(eq, events.SRQ_LIMIT)
    return eq


@pytest.fixture
def srq(driver: Driver, eq: Queue) -> Queue:
    return driver.srq(driver.alloc(cmd.RES_PD))


def test_entries_come_in_order(driver: Driver, srq: Queue) -> None:
    device = driver.nic.resources.srqs[srq.number]
    assert device.take() is None
    for lap in range(5):
        for index in range(7):
            driver.recv(srq, 0x1000 * (index + 1), 10 + lap, 77)
        assert device.available() == 7
        for index in range(7):
            wqe = device.take()
            assert wqe is not None
            assert wqe.sges == [(0x1000 * (index + 1), 10 + lap, 77)]
            assert wqe.index == (lap * 7 + index) % 16
        assert device.take() is None
        assert driver.uar.load(srq.block, RQ_HEAD) == (lap + 1) * 7 % 16
    assert device.taken == 35


@pytest.mark.parametrize("by_register", [True, False])
def test_limit_event_once(driver: Driver, eq: Queue, srq: Queue, by_register: bool) -> None:
    device = driver.nic.resources.srqs[srq.number]
    for _ in range(8):
        driver.recv(srq, 0x1000, 10, 77)
    if by_register:
        driver.uar.store(srq.block, SRQ_LIMIT, 6)
        driver.nic.produce(1)
    else:
        driver.ok(cmd.ARM_SRQ, srq.number, 0, SRQ_ARM.pack({"limit": 6}))
    for left in (7, 6):
        device.take()
        assert device.available() == left
        assert driver.poll(eq) == []
    device.take()
    assert [entry[:2] for entry in driver.poll(eq)] == [(events.SRQ_LIMIT, srq.number)]
    assert driver.uar.load(srq.block, SRQ_LIMIT) == 0
    device.take()
    assert driver.poll(eq) == []


def test_tail_beyond_the_ring_is_an_empty_ring(driver: Driver, srq: Queue) -> None:
    driver.uar.store(srq.block, RQ_TAIL, 16)
    device = driver.nic.resources.srqs[srq.number]
    assert device.available() == 0
    assert device.take() is None


def test_slots_come_in_the_order_of_posting(driver: Driver, srq: Queue) -> None:
    device = driver.nic.resources.srqs[srq.number]
    for slot in (9, 0, 15, 3):
        driver.recv(srq, 0x1000 * (slot + 1), 10, 77, slot)
    for slot in (9, 0, 15, 3):
        wqe = device.take()
        assert wqe is not None
        assert (wqe.index, wqe.sges) == (slot, [(0x1000 * (slot + 1), 10, 77)])


def test_a_slot_may_go_round_while_others_are_held(driver: Driver, srq: Queue) -> None:
    """Fifteen slots are held for ever; the sixteenth is used a hundred times."""
    device = driver.nic.resources.srqs[srq.number]
    for slot in range(15):
        driver.recv(srq, 0x1000, 10, 77, slot)
        device.take()
    for lap in range(100):
        driver.recv(srq, 0x1000, lap + 1, 77, 15)
        wqe = device.take()
        assert wqe is not None
        assert (wqe.index, wqe.sges) == (15, [(0x1000, lap + 1, 77)])


@pytest.mark.parametrize("slot", [16, 0xFFFF_FFFF])
def test_a_slot_that_is_not_there_is_an_empty_ring(driver: Driver, srq: Queue, slot: int) -> None:
    driver.recv(srq, 0x1000, 10, 77)
    srq.memory[srq.order_offset : srq.order_offset + 4] = slot.to_bytes(4, "little")
    device = driver.nic.resources.srqs[srq.number]
    assert device.take() is None
    srq.memory[srq.order_offset : srq.order_offset + 4] = bytes(4)
    assert device.take() is not None


def test_the_order_must_be_in_reach_too(driver: Driver) -> None:
    number, block, pd = driver.alloc(cmd.RES_SRQ), driver.alloc(cmd.RES_UAR_BLOCK), driver.alloc(cmd.RES_PD)
    _, va = driver.memory(16 * 16 + 16 * 4 - 1)
    assert driver.run(cmd.SW2HW_SRQ, number, 0, driver.srqc(pd, block, va)).status == cmd.ST_BAD_PARAM


def receiver(pair: Pair, service: int, pd: int, srq_pd: int) -> tuple[Queue, Queue, Queue]:
    """A queue pair of domain ``pd`` on each side, the second with a shared receive queue of ``srq_pd``."""
    far = pair.drivers[1]
    srq = far.srq(srq_pd)
    a = pair.drivers[0].qp(pair.pds[0], pair.cqs[0], service)
    b = far.qp(pd, pair.cqs[1], service, srq)
    pair.drivers[0].to_rts(a, pair.gid(1), b.number)
    far.to_rts(b, pair.gid(0), a.number)
    return a, b, srq


@pytest.mark.parametrize("service", [ST_RC, ST_UD])
@pytest.mark.parametrize("own", [True, False], ids=["the queue's", "the queue pair's"])
def test_entries_are_of_the_queues_protection_domain(new_pair: NewPair, service: int, own: bool) -> None:
    """IBA ch. 10: the keys of its entries are held against the SRQ's domain, whichever queue pair takes them."""
    pair = new_pair()
    far = pair.drivers[1]
    qp_pd, srq_pd = pair.pds[1], far.alloc(cmd.RES_PD)
    buffer, va, key = far.mr(srq_pd if own else qp_pd, 256)
    a, b, srq = receiver(pair, service, qp_pd, srq_pd)
    far.recv(srq, va, 256, key)
    source, source_va, source_key = pair.mrs[0]
    source[:5] = b"hello"
    if service == ST_UD:
        pair.drivers[0].send_ud(a, source_va, 5, source_key, pair.gid(1), b.number, 0x1111_1111)
    else:
        pair.drivers[0].send(a, source_va, 5, source_key)
    pair.wire.run()
    (entry,) = pair.poll(1)
    assert entry[1] & 0xFF == (SUCCESS if own else LOC_PROT_ERR)
    assert (b"hello" in buffer) == own


def test_an_entry_that_a_reset_queue_pair_had_taken_is_not_lost(new_pair: NewPair) -> None:
    pair = new_pair()
    far, (_, va, key) = pair.drivers[1], pair.mrs[1]
    _, b, srq = receiver(pair, ST_RC, pair.pds[1], pair.pds[1])
    device = pair.nics[1].resources.srqs[srq.number]
    far.recv(srq, va, 4096, key)
    out = pair.nics[1].qps[b.number].flow
    assert out is not None
    flow = out.reverse()
    frame = memoryview(seal(build(RC | SEND_FIRST, dqpn=b.number, psn=7, payload=bytes(1024)), flow))
    pair.nics[1].receive(RxBurst(flow, frame, len(frame), len(frame), 0), 5_000)
    assert device.available() == 0
    far.ok(cmd.ERR2RST, b.number)
    assert device.available() == 1
    wqe = device.take()
    assert wqe is not None
    assert wqe.sges == [(va, 4096, key)]
    assert device.take() is None
