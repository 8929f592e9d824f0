"""Every command but the queue pair transitions: what it does, and each status that it can end with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rnic.context.cqc import CQC, SRQC
from rnic.device.mailboxes import ADAPTER, DEV_LIM, MGM, NON_RDMA_BYTES, NON_RDMA_HEADER, SRQ_ARM
from rnic.mem.keys import key_index
from rnic.mem.table import REGION, WINDOW1, WINDOW2
from rnic.rings import queue_block as q
from rnic.rings.rqe import srq_bytes
from rnic.spec import access, events
from rnic.spec import commands as cmd
from rnic.spec.gids import gid_from_address
from rnic.spec.limits import LOG_MAX_CQ
from rnic.spec.states import ST_RC, ST_UD
from rnic.wire.flow import Flow
from rnic.wire.ip import ip_packet
from tests.unit.device.conftest import Driver, Snapshot

GROUP = gid_from_address(bytes((239, 0, 0, 7)))
EVERY_EVENT = sum(1 << event for event in events.EVENT_NAMES).to_bytes(8, "big")
Refused = Callable[..., None]


@pytest.fixture
def refused(driver: Driver, snapshot: Snapshot) -> Refused:
    """Run a command that must fail with one status and change nothing."""

    def run(
        status: int, op: int, in_modifier: int = 0, op_modifier: int = 0, inbox: bytes = b"", by: Driver = driver
    ) -> None:
        before = snapshot(driver)
        result = by.run(op, in_modifier, op_modifier, inbox)
        assert cmd.STATUS_NAMES[result.status] == cmd.STATUS_NAMES[status]
        assert (result.out_param, result.outbox) == (0, b"")
        assert snapshot(driver) == before

    return run


# ------------------------------------------------------------------------------------------ queries


def test_nop_and_unknown(driver: Driver, refused: Refused) -> None:
    driver.ok(cmd.NOP)
    for op in (0, 0x99, -1, 1 << 40):
        refused(cmd.ST_BAD_OP, op)


def test_query_dev_lim(driver: Driver) -> None:
    lim = DEV_LIM.unpack(driver.ok(cmd.QUERY_DEV_LIM).outbox)
    assert lim["log_max_qps"] == lim["log_max_cqs"] == 6
    assert lim["log_max_eqs"] == 10
    assert lim["log_max_msg"] == 30  # 2^23 - 1 packets of 256 bytes are less than 2^31
    assert (lim["max_mtu"], lim["active_mtu"]) == (5, 5)
    assert lim["max_inline"] == 512
    assert lim["gid_count"] == lim["pkey_count"] == lim["num_ports"] == 1
    assert lim["gid0"].to_bytes(16, "big") == gid_from_address(bytes((10, 0, 0, 1)))
    assert lim["pkey0"] == 0xFFFF
    assert lim["udp_port"] == 4791
    assert lim["guid"] == driver.nic.config.guid
    assert lim["uar_blocks"] * 128 == len(driver.uar.buf)


def test_query_adapter(driver: Driver) -> None:
    adapter = ADAPTER.unpack(driver.ok(cmd.QUERY_ADAPTER).outbox)
    assert adapter["device_id"] == 0x524E
    assert adapter["guid"] == driver.nic.config.guid


def test_a_closed_context_gets_nothing(driver: Driver) -> None:
    driver.nic.unmap_uar(driver.uar)
    assert driver.run(cmd.NOP).status == cmd.ST_BAD_SYS_STATE
    driver.nic.unmap_uar(driver.uar)


# ------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [
        (cmd.RES_UAR_BLOCK, 2, 254),
        (cmd.RES_PD, 1, 4096),
        (cmd.RES_QP, 16, 64),
        (cmd.RES_CQ, 1, 64),
        (cmd.RES_SRQ, 1, 4096),
        (cmd.RES_EQ, 0, 1024),
    ],
)
def test_all_numbers_of_a_kind(driver: Driver, refused: Refused, kind: int, first: int, count: int) -> None:
    assert [driver.alloc(kind) for _ in range(count)] == list(range(first, first + count))
    refused(cmd.ST_EXCEED_LIM, cmd.ALLOC_RES, kind)
    driver.ok(cmd.FREE_RES, first + 3, kind)
    assert driver.alloc(kind) == first + 3


def test_numbers_belong_to_their_context(driver: Driver, new_driver: type[Driver], refused: Refused) -> None:
    other = new_driver(driver.nic)
    for kind in range(cmd.RES_UAR_BLOCK, cmd.RES_MTT + 1):
        number = driver.alloc(kind)
        refused(cmd.ST_BAD_INDEX, cmd.FREE_RES, number, kind, by=other)
        driver.ok(cmd.FREE_RES, number, kind)
        refused(cmd.ST_BAD_INDEX, cmd.FREE_RES, number, kind)
    for kind in (0, 9, -1):
        refused(cmd.ST_BAD_PARAM, cmd.ALLOC_RES, kind)
        refused(cmd.ST_BAD_PARAM, cmd.FREE_RES, 1, kind)


def test_resources_in_use_are_not_freed(driver: Driver, refused: Refused) -> None:
    pd = driver.alloc(cmd.RES_PD)
    eq = driver.eq()
    cq = driver.cq(eq)
    srq = driver.srq(pd)
    qp = driver.qp(pd, cq, srq=srq)
    _, _, key = driver.mr(pd, 64)
    for kind, number in [
        (cmd.RES_PD, pd),
        (cmd.RES_EQ, eq.number),
        (cmd.RES_CQ, cq.number),
        (cmd.RES_SRQ, srq.number),
        (cmd.RES_QP, qp.number),
        (cmd.RES_MPT, key),
        *((cmd.RES_UAR_BLOCK, queue.block) for queue in (eq, cq, srq, qp)),
    ]:
        refused(cmd.ST_RESOURCE_BUSY, cmd.FREE_RES, number, kind)
    refused(cmd.ST_RESOURCE_BUSY, cmd.HW2SW_CQ, cq.number)
    refused(cmd.ST_RESOURCE_BUSY, cmd.HW2SW_EQ, eq.number)
    refused(cmd.ST_RESOURCE_BUSY, cmd.HW2SW_SRQ, srq.number)
    driver.ok(cmd.ERR2RST, qp.number)
    driver.ok(cmd.HW2SW_SRQ, srq.number)
    driver.ok(cmd.HW2SW_CQ, cq.number)
    driver.ok(cmd.HW2SW_EQ, eq.number)
    driver.ok(cmd.HW2SW_MPT, key)
    for kind, number in [
        (cmd.RES_PD, pd),
        (cmd.RES_EQ, eq.number),
        (cmd.RES_CQ, cq.number),
        (cmd.RES_SRQ, srq.number),
        (cmd.RES_QP, qp.number),
        (cmd.RES_MPT, key),
        *((cmd.RES_UAR_BLOCK, queue.block) for queue in (eq, cq, srq, qp)),
    ]:
        driver.ok(cmd.FREE_RES, number, kind)
    assert not any(driver.uar.buf)
    assert not driver.nic.resources.blocks


# ------------------------------------------------------------------------------------------- memory


def test_region(driver: Driver) -> None:
    pd = driver.alloc(cmd.RES_PD)
    buffer, va, key = driver.mr(pd, 100)
    entry = driver.nic.memory.check(key, pd, va, 100, access.REMOTE_WRITE)
    assert entry is not None
    entry.write_from(va + 10, b"abc")
    assert buffer[10:13] == b"abc"
    driver.ok(cmd.HW2SW_MPT, key)
    assert driver.nic.memory.lookup(key) is None


def test_zero_based_region(driver: Driver) -> None:
    pd = driver.alloc(cmd.RES_PD)
    buffer, va = driver.memory(64)
    key = driver.alloc(cmd.RES_MPT)
    rights = access.LOCAL_WRITE | access.REMOTE_WRITE | access.ZERO_BASED
    driver.ok(cmd.SW2HW_MPT, key, 0, driver.mpt(key, pd, va, 64, rights, start=0))
    entry = driver.nic.memory.check(key, pd, 0, 64, access.REMOTE_WRITE)
    assert entry is not None
    entry.write_from(5, b"x")
    assert buffer[5] == ord("x")


def test_region_refusals(driver: Driver, new_driver: type[Driver], refused: Refused) -> None:
    pd = driver.alloc(cmd.RES_PD)
    _, va = driver.memory(64)
    key = driver.alloc(cmd.RES_MPT)

    def good(**over: int) -> bytes:
        own = {"key": key, "pd": pd, "va": va, "length": 64}
        return driver.mpt(**(own | over))

    refused(cmd.ST_BAD_SIZE, cmd.SW2HW_MPT, key, 0, good()[:-1])
    refused(cmd.ST_BAD_INDEX, cmd.SW2HW_MPT, key ^ 1, 0, good(key=key ^ 1))
    refused(cmd.ST_BAD_INDEX, cmd.SW2HW_MPT, key, 0, good(), by=new_driver(driver.nic))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, good(key=key ^ 1))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, good(sw_owns=15))
    refused(cmd.ST_BAD_INDEX, cmd.SW2HW_MPT, key, 0, good(pd=pd + 1))
    refused(cmd.ST_BAD_SIZE, cmd.SW2HW_MPT, key, 0, good(length=0))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, good(length=65))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, good(address=va + 4096))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, good(start=(1 << 64) - 63))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, good(address=(1 << 64) - 1))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, good(rights=access.REMOTE_WRITE))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, good(rights=access.REMOTE_READ | access.ZERO_BASED, start=va))
    raw = bytearray(good())
    raw[2] &= 0xFE  # the REGION bit
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, bytes(raw))
    refused(cmd.ST_BAD_RES_STATE, cmd.HW2SW_MPT, key)
    refused(cmd.ST_BAD_INDEX, cmd.HW2SW_MPT, -1)
    driver.ok(cmd.SW2HW_MPT, key, 0, good())
    refused(cmd.ST_BAD_RES_STATE, cmd.SW2HW_MPT, key, 0, good())
    refused(cmd.ST_BAD_RES_STATE, cmd.DEALLOC_MW, key_index(key))


def test_read_only_memory(driver: Driver, refused: Refused) -> None:
    pd, key = driver.alloc(cmd.RES_PD), driver.alloc(cmd.RES_MPT)
    buffer = b"constant" * 8
    va = driver.space.map(buffer).va
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, driver.mpt(key, pd, va, 64))
    driver.ok(cmd.SW2HW_MPT, key, 0, driver.mpt(key, pd, va, 64, access.REMOTE_READ))


def test_all_keys_out(driver: Driver, refused: Refused) -> None:
    driver.nic.memory.max_entries = driver.nic.memory._free = 3
    for _ in range(3):
        driver.alloc(cmd.RES_MPT)
    assert driver.run(cmd.ALLOC_RES, cmd.RES_MPT).status == cmd.ST_EXCEED_LIM
    pd = driver.alloc(cmd.RES_PD)
    assert driver.run(cmd.ALLOC_MW, pd, 1).status == cmd.ST_EXCEED_LIM


@pytest.mark.parametrize(("number", "kind"), [(1, WINDOW1), (2, WINDOW2)])
def test_windows(driver: Driver, refused: Refused, number: int, kind: str) -> None:
    memory = driver.nic.memory
    pd = driver.alloc(cmd.RES_PD)
    _, va, lkey = driver.mr(pd, 256)
    key = driver.ok(cmd.ALLOC_MW, pd, number).out_param
    window = memory.window(key)
    assert window is not None
    assert window.kind is kind
    new_key = key ^ 1
    assert memory.bind_window(key_index(key), new_key, lkey, pd, 20, va, 64, access.REMOTE_READ)
    refused(cmd.ST_RESOURCE_BUSY, cmd.HW2SW_MPT, lkey)
    refused(cmd.ST_RESOURCE_BUSY, cmd.FREE_RES, new_key, cmd.RES_MPT)
    refused(cmd.ST_BAD_INDEX, cmd.DEALLOC_MW, key_index(key) + 1)
    refused(cmd.ST_RESOURCE_BUSY, cmd.FREE_RES, pd, cmd.RES_PD)
    driver.ok(cmd.DEALLOC_MW, key_index(new_key))
    assert memory.lookup(new_key) is None
    driver.ok(cmd.HW2SW_MPT, lkey)
    driver.ok(cmd.FREE_RES, pd, cmd.RES_PD)


def test_window_refusals(driver: Driver, refused: Refused) -> None:
    pd = driver.alloc(cmd.RES_PD)
    refused(cmd.ST_BAD_PARAM, cmd.ALLOC_MW, pd, 0)
    refused(cmd.ST_BAD_PARAM, cmd.ALLOC_MW, pd, 3)
    refused(cmd.ST_BAD_INDEX, cmd.ALLOC_MW, pd + 1, 1)
    key = driver.alloc(cmd.RES_MPT)
    refused(cmd.ST_BAD_RES_STATE, cmd.DEALLOC_MW, key_index(key))
    assert driver.nic.resources.memory._kinds[key_index(key)] is REGION


# ------------------------------------------------------------------------------------ event queues


def test_event_queue(driver: Driver, refused: Refused) -> None:
    number, block = driver.alloc(cmd.RES_EQ), driver.alloc(cmd.RES_UAR_BLOCK)
    _, va = driver.memory(32 << 4)
    good = driver.eqc(block, va)
    refused(cmd.ST_BAD_SIZE, cmd.SW2HW_EQ, number, 0, good + b"\0")
    refused(cmd.ST_BAD_INDEX, cmd.SW2HW_EQ, number + 1, 0, good)
    refused(cmd.ST_BAD_INDEX, cmd.SW2HW_EQ, number, 0, driver.eqc(block + 1, va))
    refused(cmd.ST_BAD_SIZE, cmd.SW2HW_EQ, number, 0, driver.eqc(block, va, 0))
    refused(cmd.ST_BAD_SIZE, cmd.SW2HW_EQ, number, 0, driver.eqc(block, va, LOG_MAX_CQ + 1))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_EQ, number, 0, driver.eqc(block, va, 5))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_EQ, number, 0, driver.eqc(block, va + 2, 3))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_EQ, number, 0, driver.eqc(block, va, 4, 1024))
    refused(cmd.ST_BAD_RES_STATE, cmd.HW2SW_EQ, number)
    refused(cmd.ST_BAD_RES_STATE, cmd.MAP_EQ, number, 0, EVERY_EVENT)
    driver.ok(cmd.SW2HW_EQ, number, 0, good)
    load = driver.uar.load
    assert load(block, q.QUEUE_NUMBER) == number
    assert load(block, q.QUEUE_STATE) == 1
    assert load(block, q.CQ_BASE_LO) | load(block, q.CQ_BASE_HI) << 32 == va
    assert load(block, q.CQ_SIZE) == 16
    second = driver.alloc(cmd.RES_UAR_BLOCK)
    refused(cmd.ST_RESOURCE_BUSY, cmd.SW2HW_EQ, driver.alloc(cmd.RES_EQ), 0, good)
    refused(cmd.ST_BAD_RES_STATE, cmd.SW2HW_EQ, number, 0, driver.eqc(second, va))

    refused(cmd.ST_BAD_SIZE, cmd.MAP_EQ, number, 0, b"")
    refused(cmd.ST_BAD_PARAM, cmd.MAP_EQ, number, 0, (1 << 63).to_bytes(8, "big"))
    refused(cmd.ST_BAD_INDEX, cmd.MAP_EQ, 9, 0, EVERY_EVENT)
    driver.ok(cmd.MAP_EQ, number, 0, EVERY_EVENT)
    assert driver.uar.event_queues == dict.fromkeys(events.EVENT_NAMES, number)
    driver.ok(cmd.MAP_EQ, 1 << 31 | number, 0, (1 << events.SQ_DRAINED).to_bytes(8, "big"))
    assert events.SQ_DRAINED not in driver.uar.event_queues
    driver.nic.resources.eqs[number].report(events.COMP, 1)
    driver.ok(cmd.HW2SW_EQ, number)
    assert driver.uar.event_queues == {}
    assert driver.nic.next_event() is None
    assert load(block, q.QUEUE_NUMBER) == load(block, q.CQ_SIZE) == 0


# ------------------------------------------------------------------------------- completion queues


def test_completion_queue(driver: Driver, new_driver: type[Driver], refused: Refused) -> None:
    eq = driver.eq()
    number, block = driver.alloc(cmd.RES_CQ), driver.alloc(cmd.RES_UAR_BLOCK)
    _, va = driver.memory(32 << 4)
    good = driver.cqc(eq, block, va)
    refused(cmd.ST_BAD_SIZE, cmd.SW2HW_CQ, number, 0, b"")
    refused(cmd.ST_BAD_RESOURCE, cmd.SW2HW_CQ, 0, 0, good)
    refused(cmd.ST_BAD_INDEX, cmd.SW2HW_CQ, number, 0, good, by=new_driver(driver.nic))
    refused(cmd.ST_BAD_RESOURCE, cmd.SW2HW_CQ, number, 0, driver.cqc(eq, 0, va))
    refused(cmd.ST_RESOURCE_BUSY, cmd.SW2HW_CQ, number, 0, driver.cqc(eq, eq.block, va))
    refused(cmd.ST_BAD_SIZE, cmd.SW2HW_CQ, number, 0, driver.cqc(eq, block, va, 0))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_CQ, number, 0, driver.cqc(eq, block, va - 32))
    no_eq = CQC.pack({"start": va, "logsize": 4, "usrpage": block, "comp_eqn": 31})
    refused(cmd.ST_BAD_INDEX, cmd.SW2HW_CQ, number, 0, no_eq)
    idle = driver.alloc(cmd.RES_EQ)
    soft_eq = CQC.pack({"start": va, "logsize": 4, "usrpage": block, "comp_eqn": idle})
    refused(cmd.ST_BAD_RES_STATE, cmd.SW2HW_CQ, number, 0, soft_eq)
    refused(cmd.ST_BAD_RES_STATE, cmd.HW2SW_CQ, number)
    refused(cmd.ST_BAD_RES_STATE, cmd.RESIZE_CQ, number, 0, good)
    driver.ok(cmd.SW2HW_CQ, number, 0, good)
    assert driver.uar.load(block, q.CQ_SIZE) == 16
    other = driver.alloc(cmd.RES_UAR_BLOCK)
    refused(cmd.ST_BAD_RES_STATE, cmd.SW2HW_CQ, number, 0, driver.cqc(eq, other, va))
    refused(cmd.ST_BAD_SIZE, cmd.RESIZE_CQ, number, 0, good[1:])
    refused(cmd.ST_BAD_SIZE, cmd.RESIZE_CQ, number, 0, driver.cqc(eq, block, va, LOG_MAX_CQ + 1))
    refused(cmd.ST_BAD_PARAM, cmd.RESIZE_CQ, number, 0, driver.cqc(eq, block, 4096))
    driver.ok(cmd.HW2SW_CQ, number)
    driver.ok(cmd.HW2SW_EQ, eq.number)


def test_ring_in_read_only_memory(driver: Driver, refused: Refused) -> None:
    eq = driver.eq()
    number, block = driver.alloc(cmd.RES_CQ), driver.alloc(cmd.RES_UAR_BLOCK)
    va = driver.space.map(bytes(range(256)) * 2).va
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_CQ, number, 0, driver.cqc(eq, block, va))


# ----------------------------------------------------------------------------- shared receive queues


def test_shared_receive_queue(driver: Driver, refused: Refused) -> None:
    pd = driver.alloc(cmd.RES_PD)
    number, block = driver.alloc(cmd.RES_SRQ), driver.alloc(cmd.RES_UAR_BLOCK)
    _, va = driver.memory(srq_bytes(16, 16))
    good = driver.srqc(pd, block, va, limit=3)
    refused(cmd.ST_BAD_SIZE, cmd.SW2HW_SRQ, number, 0, good * 2)
    refused(cmd.ST_BAD_INDEX, cmd.SW2HW_SRQ, number + 1, 0, good)
    refused(cmd.ST_BAD_INDEX, cmd.SW2HW_SRQ, number, 0, driver.srqc(pd + 1, block, va))
    refused(cmd.ST_BAD_INDEX, cmd.SW2HW_SRQ, number, 0, driver.srqc(pd, block + 1, va))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_SRQ, number, 0, driver.srqc(pd, block, va, limit=16))
    refused(cmd.ST_BAD_PARAM, cmd.SW2HW_SRQ, number, 0, driver.srqc(pd, block, va, 5))
    refused(cmd.ST_BAD_SIZE, cmd.SW2HW_SRQ, number, 0, driver.srqc(pd, block, va, 0))
    for stride in (3, 10):
        raw = bytearray(good)
        SRQC.put(raw, "logstride", stride)
        refused(cmd.ST_BAD_SIZE, cmd.SW2HW_SRQ, number, 0, bytes(raw))
    refused(cmd.ST_BAD_RES_STATE, cmd.QUERY_SRQ, number)
    driver.ok(cmd.SW2HW_SRQ, number, 0, good)
    srqc = SRQC.unpack(driver.ok(cmd.QUERY_SRQ, number).outbox)
    assert srqc == {
        "state": 1,
        "logsize": 4,
        "srqn": number,
        "start": va,
        "logstride": 4,
        "usrpage": block,
        "pd": pd,
        "lkey": 0,
        "limit": 3,
        "wqe_counter": 0,
        "xrcd": 0,
        "cqn": 0,
    }
    for limit in (16, 1 << 20):
        refused(cmd.ST_BAD_PARAM, cmd.ARM_SRQ, number, 0, SRQ_ARM.pack({"limit": limit}))
    refused(cmd.ST_BAD_SIZE, cmd.ARM_SRQ, number, 0, b"\1")
    refused(cmd.ST_BAD_SIZE, cmd.ARM_SRQ, number, 5)
    refused(cmd.ST_BAD_INDEX, cmd.ARM_SRQ, number + 1, 0, SRQ_ARM.pack({"limit": 1}))
    for limit in (5, 15, 0, 7):
        driver.ok(cmd.ARM_SRQ, number, 0, limit.to_bytes(4, "big"))
        assert driver.uar.load(block, q.SRQ_LIMIT) == limit
    assert SRQC.get(driver.ok(cmd.QUERY_SRQ, number).outbox, "limit") == 7
    refused(cmd.ST_BAD_RES_STATE, cmd.SW2HW_SRQ, number, 0, driver.srqc(pd, driver.alloc(cmd.RES_UAR_BLOCK), va))
    driver.ok(cmd.HW2SW_SRQ, number)
    refused(cmd.ST_BAD_RES_STATE, cmd.HW2SW_SRQ, number)


# ---------------------------------------------------------------------------------------- multicast


def mgm(gid: bytes, *qpns: int) -> bytes:
    values = {"mgid": int.from_bytes(gid, "big"), "count": len(qpns)}
    return MGM.pack(values | {f"qpn{index}": qpn for index, qpn in enumerate(qpns)})


def test_multicast_groups(driver: Driver, refused: Refused) -> None:
    pd, cq = driver.alloc(cmd.RES_PD), driver.cq(driver.eq())
    ud, rc = driver.qp(pd, cq, ST_UD), driver.qp(pd, cq, ST_RC)
    driver.ok(cmd.WRITE_MGM, 0, 0, mgm(GROUP, ud.number))
    assert driver.ok(cmd.READ_MGM, 0, 0, GROUP).outbox == mgm(GROUP, ud.number)
    assert driver.nic.take_group_changes() == [(bytes((239, 0, 0, 7)), True)]
    assert driver.nic.take_group_changes() == []
    refused(cmd.ST_BAD_PARAM, cmd.WRITE_MGM, 0, 0, mgm(GROUP, rc.number))
    refused(cmd.ST_BAD_PARAM, cmd.WRITE_MGM, 0, 0, mgm(GROUP, ud.number, ud.number))
    refused(cmd.ST_BAD_RESOURCE, cmd.WRITE_MGM, 0, 0, mgm(GROUP, 15))
    refused(cmd.ST_BAD_PARAM, cmd.WRITE_MGM, 0, 0, mgm(driver.nic.config.gid_table[0], ud.number))
    refused(cmd.ST_BAD_PARAM, cmd.WRITE_MGM, 0, 0, mgm(b"\xff\x0e" + bytes(14), ud.number))
    refused(cmd.ST_BAD_SIZE, cmd.WRITE_MGM, 0, 0, GROUP)
    refused(cmd.ST_BAD_SIZE, cmd.READ_MGM, 0, 0, GROUP + b"\0")
    many = bytearray(mgm(GROUP))
    MGM.put(many, "count", 121)
    refused(cmd.ST_EXCEED_LIM, cmd.WRITE_MGM, 0, 0, bytes(many))
    driver.ok(cmd.ERR2RST, ud.number)
    refused(cmd.ST_RESOURCE_BUSY, cmd.FREE_RES, ud.number, cmd.RES_QP)
    driver.ok(cmd.WRITE_MGM, 0, 0, mgm(GROUP))
    driver.ok(cmd.FREE_RES, ud.number, cmd.RES_QP)
    assert driver.nic.take_group_changes() == [(bytes((239, 0, 0, 7)), False)]


# ----------------------------------------------------------------------------------------- cleaning


def test_reading_the_non_rdma_channel(driver: Driver, refused: Refused) -> None:
    long = bytes(range(256)) * 40
    for at, frame in ((70, long), (80, b"x")):
        driver.nic.receive_other(frame, at)
    assert NON_RDMA_HEADER.size + NON_RDMA_BYTES == 4096
    first = driver.ok(cmd.READ_NON_RDMA).outbox
    assert first[:16].hex() == "0000000000000046" + "00002800" + "00000002"
    assert first[16:] == long[:4080]
    rest = driver.ok(cmd.READ_NON_RDMA, 8160).outbox
    assert rest[16:] == long[8160:].ljust(4080, b"\0")
    refused(cmd.ST_BAD_SIZE, cmd.READ_NON_RDMA, 10241)
    refused(cmd.ST_BAD_PARAM, cmd.READ_NON_RDMA, 0, 2)
    assert driver.ok(cmd.READ_NON_RDMA, 0, 1).outbox == first
    assert driver.ok(cmd.READ_NON_RDMA, 0, 1).outbox[:18].hex() == "0000000000000050" + "00000001" * 2 + "7800"
    assert driver.ok(cmd.READ_NON_RDMA, 0, 1).outbox == bytes(4096)
    refused(cmd.ST_BAD_SIZE, cmd.READ_NON_RDMA, 1)


def test_writing_the_non_rdma_channel(driver: Driver, refused: Refused) -> None:
    here = driver.nic.config.address
    frame = ip_packet(Flow(here, bytes((10, 9, 8, 7)), 1, 53), b"question")
    refused(cmd.ST_BAD_OP, cmd.WRITE_NON_RDMA, len(frame), 0, frame)
    sent: list[tuple[bytes, bytes]] = []

    def take(to: bytes, packet: bytes) -> bool:
        sent.append((to, packet))
        return True

    driver.nic.non_rdma.send = take
    driver.ok(cmd.WRITE_NON_RDMA, len(frame), 0, frame)
    raw = ip_packet(Flow(here, bytes((1, 2, 3, 4)), 1, 53), b"")
    driver.ok(cmd.WRITE_NON_RDMA, 20, 0, b"\x46" + raw[1:2] + (20).to_bytes(2) + raw[4:20])
    assert [to.hex() for to, _ in sent] == ["0a090807", "01020304"]
    assert sent[0][1] == frame
    assert driver.nic.counters["drop_non_rdma_tx"] == 0
    assert driver.nic.counters["non_rdma_bytes_sent"] == len(frame) + 20
    rdma = ip_packet(Flow(here, bytes(4), 1, driver.nic.config.port), bytes(16))
    for bad in (b"", frame[:19], frame + b"x", rdma, b"\x60\0\0\0" + bytes(36), bytes(4096)):
        refused(cmd.ST_BAD_PARAM, cmd.WRITE_NON_RDMA, len(bad), 0, bad)
    refused(cmd.ST_BAD_PARAM, cmd.WRITE_NON_RDMA, 4097, 0, bytes(4096))
    driver.nic.held = True
    refused(cmd.ST_BAD_SYS_STATE, cmd.WRITE_NON_RDMA, len(frame), 0, frame)
    assert len(sent) == 2


def test_closing_a_context_frees_everything(driver: Driver, new_driver: type[Driver], snapshot: Snapshot) -> None:
    other = new_driver(driver.nic)
    kept = driver.alloc(cmd.RES_PD)
    before = dict(driver.nic.resources.pd_users), list(driver.nic.resources.blocks)
    pd = other.alloc(cmd.RES_PD)
    eq = other.eq()
    cq = other.cq(eq)
    srq = other.srq(pd)
    qps = [other.qp(pd, cq, service) for service in (ST_RC, ST_UD)]
    other.qp(pd, cq, srq=srq)
    other.map_events(eq, events.SRQ_LIMIT)
    other.ok(cmd.WRITE_MGM, 0, 0, mgm(GROUP, qps[1].number))
    _, va, lkey = other.mr(pd, 256)
    window = other.ok(cmd.ALLOC_MW, pd, 1).out_param
    assert driver.nic.memory.bind_window(key_index(window), window ^ 2, lkey, pd, 0, va, 8, 0)
    other.alloc(cmd.RES_MPT)
    driver.nic.unmap_uar(other.uar)
    res = driver.nic.resources
    assert (res.pd_users, list(res.blocks)) == before
    assert not any([res.qps, res.cqs, res.eqs, res.srqs, res.keys, res.groups.members])
    assert len(res.memory) == 0
    for kind, pool in res.pools.items():
        assert list(pool.owners) == ([kept] if kind == cmd.RES_PD else [])
    assert res.uars == [driver.uar]
    assert not driver.nic.has_work()
