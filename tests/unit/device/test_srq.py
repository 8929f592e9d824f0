"""Shared receive queues: taking in order, the limit event."""

from __future__ import annotations

import pytest

from rnic.device.mailboxes import SRQ_ARM
from rnic.rings.queue_block import RQ_HEAD, RQ_TAIL, SRQ_LIMIT
from rnic.spec import commands as cmd
from rnic.spec import events


@pytest.fixture
def eq(driver):
    eq = driver.eq()
    driver.map_events(eq, events.SRQ_LIMIT)
    return eq


@pytest.fixture
def srq(driver, eq):
    return driver.srq(driver.alloc(cmd.RES_PD))


def test_entries_come_in_order(driver, srq) -> None:
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
def test_limit_event_once(driver, eq, srq, by_register: bool) -> None:
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


def test_tail_beyond_the_ring_is_an_empty_ring(driver, srq) -> None:
    driver.uar.store(srq.block, RQ_TAIL, 16)
    device = driver.nic.resources.srqs[srq.number]
    assert device.available() == 0
    assert device.take() is None
