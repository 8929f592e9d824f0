"""Queue pair commands on a device: creation, every transition, every value, queries."""

from __future__ import annotations

from typing import Any

import pytest

from rnic.context import modify as m
from rnic.context.qpc import QPC, QPC_BYTES, SRQ_VALID
from rnic.device import Nic
from rnic.rings import queue_block as q
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec.gids import gid_from_address
from rnic.spec.states import (
    ERR,
    INIT,
    RESET,
    RTR,
    RTS,
    SERVICE_NAMES,
    SQD,
    SQE,
    ST_RC,
    ST_UC,
    ST_UD,
    STATE_NAMES,
)
from tests.unit.device.conftest import Driver, Queue, Snapshot

PEER = gid_from_address(bytes((10, 0, 0, 2)))
SERVICES = (ST_RC, ST_UC, ST_UD)


class Bench:
    """One queue pair of a service in any state."""

    def __init__(self, driver: Driver, service: int) -> None:
        self.driver = driver
        self.service = service
        self.pd = driver.alloc(cmd.RES_PD)
        self.eq = driver.eq()
        self.cq = driver.cq(self.eq)

    def make(self, state: int) -> Queue:
        driver = self.driver
        if state == RESET:
            queue = driver.qp(self.pd, self.cq, self.service)
            driver.ok(cmd.ERR2RST, queue.number)
            return queue
        queue = driver.qp(self.pd, self.cq, self.service)
        qp = driver.nic.qps[queue.number]
        if state in (RTR, RTS, SQD, SQE):
            driver.ok(cmd.INIT2RTR, queue.number, 0, QPC.pack(driver.rtr_fields(self.service, PEER, 99)))
        if state in (RTS, SQD, SQE):
            driver.ok(cmd.RTR2RTS, queue.number, 0, QPC.pack(driver.rts_fields(self.service)))
        if state == SQD:
            driver.ok(cmd.RTS2SQD, queue.number)
        if state == SQE:  # only the transport leads there
            qp.ctx.state = SQE
            qp.show()
        if state == ERR:
            driver.ok(cmd.TOERR, queue.number)
        assert qp.ctx.state == state
        return queue

    def attributes(self, opcode: int, queue: Queue) -> bytes:
        """A mailbox with all required attributes."""
        if opcode == cmd.RST2INIT:
            return QPC.pack(self.driver.creation(self.pd, self.cq, queue.block, queue.va, self.service))
        if opcode == cmd.INIT2RTR:
            return QPC.pack(self.driver.rtr_fields(self.service, PEER, 99))
        if opcode == cmd.RTR2RTS:
            return QPC.pack(self.driver.rts_fields(self.service))
        return b""


@pytest.mark.parametrize("opcode", sorted(m.TRANSITIONS), ids=cmd.COMMAND_NAMES.get)
@pytest.mark.parametrize("service", SERVICES, ids=SERVICE_NAMES.get)
@pytest.mark.parametrize("state", STATE_NAMES, ids=STATE_NAMES.get)
def test_every_state_and_transition(driver: Driver, snapshot: Snapshot, state: int, service: int, opcode: int) -> None:
    bench = Bench(driver, service)
    queue = bench.make(state)
    inbox = bench.attributes(opcode, queue)
    before = snapshot(driver)
    result = driver.run(opcode, queue.number, 0, inbox)
    transition = m.TRANSITIONS[opcode]
    if state in transition.sources and service in transition.attributes:
        assert result.status == cmd.ST_OK
        raw = driver.ok(cmd.QUERY_QP, queue.number).outbox
        assert QPC.get(raw, "state") == transition.target
        assert driver.uar.load(queue.block, q.QUEUE_STATE) == transition.target
    else:
        assert result.status == cmd.ST_BAD_QP_STATE
        assert snapshot(driver) == before


def test_create_shows_its_rings(driver: Driver) -> None:
    bench = Bench(driver, ST_RC)
    queue = bench.make(INIT)
    load = driver.uar.load
    block = queue.block
    assert load(block, q.QUEUE_NUMBER) == queue.number
    assert load(block, q.SQ_BASE_LO) | load(block, q.SQ_BASE_HI) << 32 == queue.va
    assert load(block, q.SQ_SIZE) == load(block, q.RQ_SIZE) == 16
    assert load(block, q.RQ_BASE_LO) | load(block, q.RQ_BASE_HI) << 32 == queue.va + 1024
    assert load(block, q.RQ_STRIDE) == 16
    ctx = driver.nic.qps[queue.number].ctx
    assert (ctx.local_qpn, ctx.pd, ctx.access_flags) == (queue.number, bench.pd, 0xF)
    assert ctx.qkey == 0, "an attribute that the mask does not name is not taken"


@pytest.mark.parametrize(
    ("over", "status"),
    [
        ({"servtype": 2}, cmd.ST_BAD_PARAM),
        ({"local_qpn": 5}, cmd.ST_BAD_PARAM),
        ({"pd": 999}, cmd.ST_BAD_INDEX),
        ({"usr_page": 200}, cmd.ST_BAD_INDEX),
        ({"usr_page": "cq"}, cmd.ST_RESOURCE_BUSY),
        ({"cqn_snd": 63}, cmd.ST_BAD_INDEX),
        ({"cqn_rcv": 0}, cmd.ST_BAD_INDEX),
        ({"srqn": SRQ_VALID | 1, "rcv_wqe_length": 0}, cmd.ST_BAD_INDEX),
        ({"snd_wqe_length": 0}, cmd.ST_BAD_SIZE),
        ({"snd_wqe_length": 64}, cmd.ST_BAD_SIZE),
        ({"snd_wqe_length": 1000}, cmd.ST_BAD_SIZE),
        ({"snd_wqe_length": 64 << 17}, cmd.ST_BAD_SIZE),
        ({"sq_slab_bytes": 528}, cmd.ST_BAD_SIZE),
        ({"sq_slab_bytes": 8}, cmd.ST_BAD_SIZE),
        ({"sq_slab_bytes": 512}, cmd.ST_BAD_PARAM),
        ({"sq_base": 64}, cmd.ST_BAD_PARAM),
        ({"sq_base": "odd"}, cmd.ST_BAD_PARAM),
        ({"sq_base": (1 << 64) - 64}, cmd.ST_BAD_PARAM),
        ({"rq_entry_sz_log": 3}, cmd.ST_BAD_SIZE),
        ({"rq_entry_sz_log": 10}, cmd.ST_BAD_SIZE),
        ({"rcv_wqe_length": 24}, cmd.ST_BAD_SIZE),
        ({"rcv_wqe_length": 16}, cmd.ST_BAD_SIZE),
        ({"rcv_wqe_length": 16 << 17}, cmd.ST_BAD_SIZE),
        ({"rq_base": 64}, cmd.ST_BAD_PARAM),
        ({"rq_base": "odd"}, cmd.ST_BAD_PARAM),
        ({"pkey_index": 1}, cmd.ST_BAD_PARAM),
        ({"port": 2}, cmd.ST_BAD_PARAM),
        ({"access_flags": 0x10}, cmd.ST_BAD_PARAM),
        ({"opt_param_mask": m.PORT}, cmd.ST_BAD_PARAM),
    ],
    ids=str,
)
def test_creation_refusals(driver: Driver, snapshot: Snapshot, over: dict[str, Any], status: int) -> None:
    bench = Bench(driver, ST_RC)
    queue = bench.make(RESET)
    values = driver.creation(bench.pd, bench.cq, queue.block, queue.va)
    for name, value in over.items():
        values[name] = {"cq": bench.cq.block, "odd": queue.va + 1}.get(value, value)
    before = snapshot(driver)
    assert driver.run(cmd.RST2INIT, queue.number, 0, QPC.pack(values)).status == status
    assert snapshot(driver) == before


def test_srq_takes_no_receive_ring(driver: Driver) -> None:
    bench = Bench(driver, ST_RC)
    queue = bench.make(RESET)
    srq = driver.srq(bench.pd)
    values = driver.creation(bench.pd, bench.cq, queue.block, queue.va, srq=srq)
    wrong = QPC.pack(values | {"rcv_wqe_length": 256})
    assert driver.run(cmd.RST2INIT, queue.number, 0, wrong).status == cmd.ST_BAD_SIZE
    driver.ok(cmd.RST2INIT, queue.number, 0, QPC.pack(values))
    assert driver.nic.qps[queue.number].rq is driver.nic.resources.srqs[srq.number]


def test_another_context_owns_nothing_here(driver: Driver, new_driver: type[Driver], snapshot: Snapshot) -> None:
    bench = Bench(driver, ST_RC)
    queue = bench.make(RTS)
    other = new_driver(driver.nic)
    before = snapshot(driver)
    for opcode in (*m.TRANSITIONS, cmd.QUERY_QP):
        assert other.run(opcode, queue.number).status == cmd.ST_BAD_INDEX
    foreign = other.alloc(cmd.RES_QP)
    values = driver.creation(bench.pd, bench.cq, other.alloc(cmd.RES_UAR_BLOCK), queue.va)
    assert other.run(cmd.RST2INIT, foreign, 0, QPC.pack(values)).status == cmd.ST_BAD_INDEX
    assert snapshot(driver)["qps"] == before["qps"]


@pytest.mark.parametrize("size", [1, 192, QPC_BYTES + 1])
def test_mailbox_size(driver: Driver, snapshot: Snapshot, size: int) -> None:
    queue = Bench(driver, ST_RC).make(RTS)
    before = snapshot(driver)
    for opcode in m.TRANSITIONS:
        assert driver.run(opcode, queue.number, 0, bytes(size)).status == cmd.ST_BAD_SIZE
    assert snapshot(driver) == before


VALUES = [
    (ST_RC, INIT, cmd.INIT2RTR, "mtu", (0, 6, 7), 5),
    (ST_RC, INIT, cmd.INIT2RTR, "remote_qpn", (0, 1 << 24), 0xFFFFFF),
    (ST_RC, INIT, cmd.INIT2RTR, "rnr_nak_timer", (32, 255), 31),
    (ST_RC, INIT, cmd.INIT2RTR, "max_dest_rd_atomic", (129,), 128),
    (ST_RC, INIT, cmd.INIT2RTR, "mgid_index", (1,), 0),
    (
        ST_RC,
        INIT,
        cmd.INIT2RTR,
        "rgid",
        (0, 1, 0x20010DB8 << 96 | 1, int.from_bytes(gid_from_address(bytes((239, 0, 0, 1))), "big"), 0xFFFF << 32),
        int.from_bytes(PEER, "big") + 1,
    ),
    (ST_RC, RTR, cmd.RTR2RTS, "ackto", (32,), 31),
    (ST_RC, RTR, cmd.RTR2RTS, "retry_cnt", (8,), 7),
    (ST_RC, RTR, cmd.RTR2RTS, "rnr_retry", (8,), 7),
    (ST_RC, RTR, cmd.RTR2RTS, "max_rd_atomic", (129,), 128),
    (ST_RC, RTR, cmd.RTR2RTS, "next_send_psn", (1 << 24,), 0xFFFFFF),
]


@pytest.mark.parametrize(("service", "state", "opcode", "name", "bad", "good"), VALUES, ids=lambda v: str(v)[:20])
def test_values(
    driver: Driver,
    snapshot: Snapshot,
    service: int,
    state: int,
    opcode: int,
    name: str,
    bad: tuple[int, ...],
    good: int,
) -> None:
    bench = Bench(driver, service)
    queue = bench.make(state)
    mailbox = bytearray(bench.attributes(opcode, queue))
    before = snapshot(driver)
    for value in bad:
        QPC.put(mailbox, name, value)
        assert driver.run(opcode, queue.number, 0, bytes(mailbox)).status == cmd.ST_BAD_PARAM, value
        assert snapshot(driver) == before
    QPC.put(mailbox, name, good)
    driver.ok(opcode, queue.number, 0, bytes(mailbox))
    assert getattr(driver.nic.qps[queue.number].ctx, name) == good


def test_mtu_is_bounded_by_the_port(driver: Driver, nic: Nic) -> None:
    nic.config.mtu = 1024
    queue = Bench(driver, ST_RC).make(INIT)
    fields = driver.rtr_fields(ST_RC, PEER, 99)
    assert driver.run(cmd.INIT2RTR, queue.number, 0, QPC.pack(fields | {"mtu": 4})).status == cmd.ST_BAD_PARAM
    driver.ok(cmd.INIT2RTR, queue.number, 0, QPC.pack(fields | {"mtu": 3}))
    assert nic.qps[queue.number].ctx.mtu_bytes == 1024


def test_path_is_taken_over(driver: Driver) -> None:
    queue = Bench(driver, ST_RC).make(RTR)
    qp = driver.nic.qps[queue.number]
    assert qp.flow is not None
    assert qp.flow.dst == bytes((10, 0, 0, 2))
    assert qp.ctx.sgid.to_bytes(16, "big") == driver.nic.config.gid_table[0]


def test_modify_takes_only_what_the_mask_names(driver: Driver) -> None:
    queue = Bench(driver, ST_RC).make(RTS)
    ctx = driver.nic.qps[queue.number].ctx
    before = ctx.store()
    junk = bytearray(b"\x5a" * QPC_BYTES)
    QPC.put(junk, "opt_param_mask", m.MIN_RNR_TIMER)
    QPC.put(junk, "local_qpn", queue.number)
    QPC.put(junk, "rnr_nak_timer", 9)
    driver.ok(cmd.RTS2RTS, queue.number, 0, bytes(junk))
    assert ctx.rnr_nak_timer == 9
    ctx.rnr_nak_timer = QPC.get(before, "rnr_nak_timer")
    assert ctx.store() == before


def test_query(driver: Driver) -> None:
    bench = Bench(driver, ST_RC)
    queue = bench.make(RTS)
    qpc = QPC.unpack(driver.ok(cmd.QUERY_QP, queue.number).outbox)
    assert qpc["state"] == RTS
    assert qpc["remote_qpn"] == 99
    assert qpc["next_send_psn"] == 7
    assert (qpc["ackto"], qpc["retry_cnt"], qpc["max_rd_atomic"]) == (14, 2, 4)
    driver.ok(cmd.ERR2RST, queue.number)
    qpc = QPC.unpack(driver.ok(cmd.QUERY_QP, queue.number).outbox)
    assert {name: value for name, value in qpc.items() if value} == {"local_qpn": queue.number}
    assert driver.run(cmd.QUERY_QP, 5).status == cmd.ST_BAD_RESOURCE


def test_ud_uses_the_ports_mtu(driver: Driver) -> None:
    queue = Bench(driver, ST_UD).make(RTS)
    ctx = driver.nic.qps[queue.number].ctx
    assert (ctx.mtu_bytes, ctx.qkey) == (4096, 0x1111_1111)


@pytest.mark.parametrize("service", SERVICES)
def test_who_wants_to_know_of_datagrams_is_told_before_any_can_come(driver: Driver, service: int) -> None:
    told: list[int] = []
    driver.nic.datagrams = lambda: told.append(max(qp.ctx.state for qp in driver.nic.qps.values()))
    Bench(driver, service).make(RTS)
    assert told == ([INIT, RTR, RTS] if service == ST_UD else [])


def test_created_again_after_reset(driver: Driver) -> None:
    bench = Bench(driver, ST_RC)
    queue = bench.make(RTS)
    first = driver.nic.qps[queue.number]
    driver.ok(cmd.ERR2RST, queue.number)
    driver.ok(cmd.ERR2RST, queue.number)
    assert queue.number not in driver.nic.qps
    driver.ok(cmd.RST2INIT, queue.number, 0, bench.attributes(cmd.RST2INIT, queue))
    assert driver.nic.qps[queue.number] is not first


@pytest.mark.parametrize("asked", [True, False])
def test_drained_event_on_request(driver: Driver, asked: bool) -> None:
    bench = Bench(driver, ST_RC)
    queue = bench.make(RTS)
    driver.map_events(bench.eq, events.SQ_DRAINED)
    mask = m.EN_SQD_ASYNC_NOTIFY if asked else 0
    driver.ok(cmd.RTS2SQD, queue.number, 0, QPC.pack({"opt_param_mask": mask}))
    expected = [(events.SQ_DRAINED, queue.number)] if asked else []
    assert [entry[:2] for entry in driver.poll(bench.eq)] == expected


def test_failed_cq_takes_no_queue_pair(driver: Driver) -> None:
    bench = Bench(driver, ST_RC)
    queue = bench.make(RESET)
    driver.nic.resources.cqs[bench.cq.number].fail()
    result = driver.run(cmd.RST2INIT, queue.number, 0, bench.attributes(cmd.RST2INIT, queue))
    assert result.status == cmd.ST_BAD_RES_STATE
