"""Whatever a program leaves in its window, whose words it may all store to: nothing that reads them raises."""

from __future__ import annotations

import pytest

from rnic.device.inspect import look
from rnic.mem.order import store32
from rnic.rings.queue_block import BLOCK_BYTES, BLOCK_SHIFT, SRQ_LIMIT
from rnic.spec import commands as cmd
from rnic.spec.states import ST_RC, ST_UD
from tests.unit.device.conftest import Driver

VALUES = (0, 1, 15, 16, 17, 0xFF, 0xFFFF, 0x10000, 0xFF_FFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rc", "ud", "srq", "cq", "eq"])
def test_every_word_of_a_queue_block(driver: Driver, kind: str) -> None:
    pd, eq = driver.alloc(cmd.RES_PD), driver.eq()
    for offset in range(0, BLOCK_BYTES, 4):
        cq, srq = driver.cq(eq), driver.srq(pd)
        qp = driver.qp(pd, cq, ST_UD if kind == "ud" else ST_RC, srq if kind in ("srq", "ud") else None)
        driver.to_rts(qp, driver.nic.config.gid_table[0], qp.number)
        queue = {"rc": qp, "ud": qp, "srq": srq, "cq": cq, "eq": eq}[kind]
        for now, value in enumerate(VALUES):
            store32(driver.uar.buf, (queue.block << BLOCK_SHIFT) + offset, value)
            driver.nic.resources.doorbells.ring(queue.block)
            driver.nic.produce(now)
            driver.nic.handle_timers(now)
            driver.ok(cmd.QUERY_QP, qp.number)
            driver.ok(cmd.QUERY_SRQ, srq.number)
            driver.nic.flush_contexts()
            for what in ("regs", "counters", "top", f"qp {qp.number}", f"cq {cq.number}"):
                assert look(driver.nic, what) is not None
        driver.ok(cmd.ERR2RST, qp.number)
        driver.ok(cmd.HW2SW_SRQ, srq.number)
        driver.ok(cmd.HW2SW_CQ, cq.number)
        for number, pool in ((qp.number, cmd.RES_QP), (cq.number, cmd.RES_CQ), (srq.number, cmd.RES_SRQ)):
            driver.ok(cmd.FREE_RES, number, pool)
        for queue in (qp, cq, srq):
            driver.ok(cmd.FREE_RES, queue.block, cmd.RES_UAR_BLOCK)


@pytest.mark.parametrize("limit", [16, 17, 0x10000, 0xFFFF_FFFF])
def test_a_limit_that_no_ring_reaches_changes_nothing(driver: Driver, limit: int) -> None:
    srq = driver.srq(driver.alloc(cmd.RES_PD), limit=3)
    driver.uar.store(srq.block, SRQ_LIMIT, limit)
    driver.nic.produce(1)
    assert driver.nic.resources.srqs[srq.number].limit == 3
    assert driver.uar.load(srq.block, SRQ_LIMIT) == 3
    assert driver.nic.counters["bad_doorbells"] == 1
    assert driver.run(cmd.QUERY_SRQ, srq.number).status == cmd.ST_OK
