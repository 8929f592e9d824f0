"""Commands on the device as a whole, on context memory and on page lists; a model for command x state."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from rnic.device import Nic, NicConfig
from rnic.device.commands import COMMANDS, CommandResult
from rnic.device.icm import CONTEXTS, TPT, Lender
from rnic.device.mailboxes import ICM_ENTRY, INIT_HCA, MTT_ENTRY, MTT_HEADER
from rnic.device.system_commands import BEFORE_INIT
from rnic.mem.dma import NULL_BYTES
from rnic.mem.mpt import MPT_ENTRY
from rnic.mem.table import VTP_LENGTH
from rnic.spec import access
from rnic.spec import commands as cmd
from rnic.spec import registers as reg
from rnic.spec.gids import gid_from_address
from rnic.wire.mad import Mad
from tests.unit.device.conftest import Driver, Pair, Snapshot

Scattered = tuple[bytearray, int, int, int]


@pytest.fixture
def asleep(new_driver: type[Driver]) -> Driver:
    nic = Nic(NicConfig(bytes((10, 0, 0, 1)), log_max_qps=6, autostart=False), rng=random.Random(1))
    return new_driver(nic)


def pages_of(driver: Driver, count: int) -> int:
    """Address of ``count`` aligned pages."""
    _, va = driver.memory((count + 1) * 4096)
    return va + 4095 & ~4095


def icm(virt: int, host: int, npages: int = 1) -> bytes:
    fields = {"virt": virt, "page_hi": host >> 32, "page": host >> 12 & 0xFFFFF, "npages": npages}
    return ICM_ENTRY.pack(fields)


def refuse(driver: Driver, snapshot: Snapshot, status: int, *command: Any) -> None:
    before = snapshot(driver)
    assert cmd.STATUS_NAMES[driver.run(*command).status] == cmd.STATUS_NAMES[status]
    assert snapshot(driver) == before


# ------------------------------------------------------------------------------- start and stop


@pytest.mark.parametrize("op", sorted(COMMANDS), ids=lambda op: cmd.COMMAND_NAMES[op])
def test_before_init_hca(asleep: Driver, snapshot: Snapshot, op: int) -> None:
    if op not in BEFORE_INIT:
        refuse(asleep, snapshot, cmd.ST_BAD_SYS_STATE, op)
    else:
        assert asleep.run(op).status != cmd.ST_BAD_SYS_STATE


def test_init_and_close(asleep: Driver, snapshot: Snapshot, new_driver: type[Driver]) -> None:
    uar = asleep.uar
    refuse(asleep, snapshot, cmd.ST_BAD_SIZE, cmd.INIT_HCA, 0, 0, bytes(63))
    for name, log in (("qpc", 7), ("cqc", 7), ("eqc", 11), ("mpt", 16), ("mtt", 19)):
        refuse(asleep, snapshot, cmd.ST_EXCEED_LIM, cmd.INIT_HCA, 0, 0, INIT_HCA.pack({f"log_{name}s": log}))
    tables = {"qpc_base_hi": 1, "qpc_base": 0x20, "log_qpcs": 6, "log_mtts": 18, "cqc_base": 0x1000, "eqc_base": 0x2000}
    for wrong in ({"qpc_base": 0x21}, {"cqc_base": 0x2000}, {"qpc_base_hi": 0, "qpc_base": 0xFF0}):
        refuse(asleep, snapshot, cmd.ST_BAD_PARAM, cmd.INIT_HCA, 0, 0, INIT_HCA.pack(tables | wrong))
    asleep.ok(cmd.INIT_HCA, 0, 0, INIT_HCA.pack(tables))
    assert {name: asleep.nic.hca[name] for name in tables} == tables
    assert uar.read(reg.HW_STATUS) & reg.STATUS_READY
    refuse(asleep, snapshot, cmd.ST_BAD_SYS_STATE, cmd.INIT_HCA, 0, 0, bytes(64))
    pd = asleep.alloc(cmd.RES_PD)
    refuse(asleep, snapshot, cmd.ST_RESOURCE_BUSY, cmd.CLOSE_HCA)
    asleep.ok(cmd.FREE_RES, pd, cmd.RES_PD)
    other = new_driver(asleep.nic)
    refuse(asleep, snapshot, cmd.ST_RESOURCE_BUSY, cmd.CLOSE_HCA)
    asleep.nic.unmap_uar(other.uar)
    asleep.ok(cmd.CLOSE_HCA)
    assert not uar.read(reg.HW_STATUS) & reg.STATUS_READY
    refuse(asleep, snapshot, cmd.ST_BAD_SYS_STATE, cmd.CLOSE_HCA)
    asleep.ok(cmd.INIT_HCA, 0, 0, bytes(64))


def test_golden_init_hca_mailbox() -> None:
    raw = INIT_HCA.pack(
        {"qpc_base_hi": 0x11, "qpc_base": 0x222222, "log_qpcs": 13, "cqc_base_hi": 0x33, "eqc_base_hi": 0x44}
        | {"mpt_base_hi": 0x55, "log_mpts": 14, "mtt_base_hi": 0x66}
    )
    words = [raw[at : at + 4].hex() for at in range(0, 64, 4)]
    assert words == [
        "00000000", "00000000", "00000011", "2222220d", "00000033", "00000000", "00000044", "00000000",
        "00000000", "00000000", "00000000", "00000000", "00000055", "0000000e", "00000066", "00000000",
    ]  # fmt: skip
    assert icm(0x1_0000_2000, 0xABCDE_12345000, 0x678).hex() == "0000000100002000000abcde12345678"


# ------------------------------------------------------------------------------- context memory


def test_map_icm(asleep: Driver, snapshot: Snapshot, new_driver: type[Driver]) -> None:
    host = pages_of(asleep, 4)
    asleep.ok(cmd.MAP_ICM, 2, CONTEXTS, icm(0, host, 2) + icm(0x10000, host + 0x2000))
    asleep.ok(cmd.MAP_ICM, 1, TPT, icm(0, host + 0x3000))
    table = asleep.nic.resources.icm
    assert len(table) == 4
    assert table.translate(CONTEXTS, 0x1234) == (asleep.uar, host + 0x1234)
    assert table.translate(CONTEXTS, 0x10FFF) == (asleep.uar, host + 0x2FFF)
    assert table.translate(TPT, 0x10) == (asleep.uar, host + 0x3010)
    assert table.translate(CONTEXTS, 0x2000) is None
    for status, count, kind, inbox in (
        (cmd.ST_BAD_SIZE, 0, CONTEXTS, b""),
        (cmd.ST_BAD_SIZE, 2, CONTEXTS, icm(0x20000, host)),
        (cmd.ST_BAD_PARAM, 1, 3, icm(0x20000, host)),
        (cmd.ST_BAD_PARAM, 1, CONTEXTS, icm(0x20001, host)),
        (cmd.ST_BAD_PARAM, 1, CONTEXTS, icm(0x20000, host, 0)),
        (cmd.ST_RESOURCE_BUSY, 1, CONTEXTS, icm(0x1000, host)),
        (cmd.ST_RESOURCE_BUSY, 2, CONTEXTS, icm(0x20000, host, 2) + icm(0x21000, host)),
        (cmd.ST_BAD_NVMEM, 1, CONTEXTS, icm(0x20000, 0x40000000)),
        (cmd.ST_BAD_NVMEM, 1, CONTEXTS, icm(0x20000, host, 64)),
    ):
        refuse(asleep, snapshot, status, cmd.MAP_ICM, count, kind, inbox)
    many = icm(0x1000_0000, host, 2)
    taken = Lender(asleep.uar), 0
    asleep.nic.resources.icm._pages[TPT].update(dict.fromkeys(range(1000, 1000 + (1 << 18) - 5), taken))
    assert asleep.run(cmd.MAP_ICM, 1, CONTEXTS, many).status == cmd.ST_EXCEED_LIM
    asleep.nic.resources.icm._pages[TPT].clear()
    other = new_driver(asleep.nic)
    assert other.run(cmd.UNMAP_ICM, 1, CONTEXTS, icm(0, 0)).status == cmd.ST_BAD_NVMEM
    refuse(asleep, snapshot, cmd.ST_BAD_NVMEM, cmd.UNMAP_ICM, 1, CONTEXTS, icm(0x1000, 0, 2))
    refuse(asleep, snapshot, cmd.ST_BAD_PARAM, cmd.UNMAP_ICM, 1, CONTEXTS, icm(0x1000, 0, 0))
    refuse(asleep, snapshot, cmd.ST_EXCEED_LIM, cmd.MAP_ICM, 65, TPT, icm(0x40000, host) * 65)
    asleep.ok(cmd.UNMAP_ICM, 1, CONTEXTS, icm(0, 0, 2))
    asleep.nic.unmap_uar(asleep.uar)
    assert len(table) == 0


# ------------------------------------------------------------------------- management datagrams


def smp(attribute: int, modifier: int = 0, **over: int) -> bytes:
    values = {"base_version": 1, "mgmt_class": 1, "class_version": 1, "method": 1, "status": 0, "class_specific": 0}
    values |= {"tid": 0x77, "attr_id": attribute, "reserved16": 0, "attr_modifier": modifier} | over
    return Mad(**values).pack().ljust(256, b"\0")


def ask(driver: Driver, datagram: bytes) -> tuple[int, bytes]:
    out = driver.ok(cmd.MAD_IFC, 1, 0, datagram).outbox
    reply = Mad.parse(out)
    assert (len(out), reply.method, reply.tid) == (256, 0x81, 0x77)
    return reply.status, out[64:128]


def test_node_info(driver: Driver) -> None:
    status, data = ask(driver, smp(0x11))
    guid = driver.nic.config.guid.to_bytes(8, "big")
    assert status == 0
    assert data[:4] == bytes((1, 1, 1, 1))
    assert data[4:28] == guid * 3
    assert data[28:40] == bytes.fromhex("0001524e0000000101ffffff")


def test_port_info_follows_the_port(driver: Driver) -> None:
    status, data = ask(driver, smp(0x15, 1))
    assert (status, data[28], data[32] & 0xF, data[36] >> 4, data[41] & 0xF) == (0, 1, 4, 5, 5)
    driver.nic.set_link(False)
    assert ask(driver, smp(0x15, 1))[1][32] & 0xF == 1


def test_other_attributes(driver: Driver) -> None:
    assert ask(driver, smp(0x10))[1].rstrip(b"\0") == b"rnic0"
    assert ask(driver, smp(0x14))[1][:8] == driver.nic.config.guid.to_bytes(8, "big")
    assert ask(driver, smp(0x16))[1][:4] == b"\xff\xff\0\0"


@pytest.mark.parametrize(
    ("datagram", "status"),
    [
        (smp(0x11, mgmt_class=5), 0x04),
        (smp(0x11, mgmt_class=4), 0x0C),
        (smp(0x11, class_version=2), 0x04),
        (smp(0x11, method=5), 0x08),
        (smp(0x11, method=2), 0x0C),
        (smp(0x20), 0x0C),
        (smp(0x15, 2), 0x1C),
        (smp(0x14, 1), 0x1C),
        (smp(0x16, 1), 0x1C),
    ],
)
def test_datagrams_refused_by_the_agent(driver: Driver, datagram: bytes, status: int) -> None:
    assert ask(driver, datagram)[0] == status


def test_what_is_no_request(driver: Driver, snapshot: Snapshot) -> None:
    refuse(driver, snapshot, cmd.ST_BAD_SIZE, cmd.MAD_IFC, 1, 0, bytes(255))
    refuse(driver, snapshot, cmd.ST_BAD_INDEX, cmd.MAD_IFC, 2, 0, smp(0x11))
    refuse(driver, snapshot, cmd.ST_BAD_PARAM, cmd.MAD_IFC, 1, 0, smp(0x11, method=0x81))
    refuse(driver, snapshot, cmd.ST_BAD_PARAM, cmd.MAD_IFC, 1, 0, smp(0x11, base_version=2))
    refuse(driver, snapshot, cmd.ST_BAD_RESOURCE, cmd.CONF_SPECIAL_QP, 1)


def test_mgid_hash(driver: Driver, snapshot: Snapshot) -> None:
    group = gid_from_address(bytes((239, 0, 0, 7)))
    assert driver.ok(cmd.MGID_HASH, 0, 0, group).out_param == 0xE3D8
    refuse(driver, snapshot, cmd.ST_BAD_SIZE, cmd.MGID_HASH, 0, 0, group[:15])
    refuse(driver, snapshot, cmd.ST_BAD_PARAM, cmd.MGID_HASH, 0, 0, gid_from_address(bytes((10, 0, 0, 7))))


# ------------------------------------------------------------------------------------ page lists


def mtt(segment: int, first: int, *pages: int) -> bytes:
    entries = b"".join(MTT_ENTRY.pack({"page": page >> 12, "present": 1}) for page in pages)
    return MTT_HEADER.pack({"segment": segment, "first": first}) + entries


@pytest.fixture
def scattered(driver: Driver) -> Scattered:
    """Three pages in an order of their own, in a page list: memory, its address, the list's number."""
    memory, va = driver.memory(5 * 4096)
    base = va + 4095 & ~4095
    number = driver.alloc(cmd.RES_MTT)
    driver.ok(cmd.WRITE_MTT, 3, 0, mtt(number, 0, base + 0x2000, base, base + 0x3000))
    return memory, va, base, number


def test_page_list_region(driver: Driver, scattered: Scattered) -> None:
    memory, va, base, number = scattered
    pd, key = driver.alloc(cmd.RES_PD), driver.alloc(cmd.RES_MPT)
    start = 0x7000_0800  # 0x800 into the first page
    entry = driver.mpt(key, pd, start, 0x2000, mtt_seg=number, address=0)
    driver.ok(cmd.SW2HW_MPT, key, 0, entry)
    region = driver.nic.memory.check(key, pd, start, 0x2000, access.REMOTE_WRITE)
    assert region is not None
    data = random.Random(3).randbytes(0x2000)
    assert region.write_from(start, data)
    at = base - va
    assert memory[at + 0x2800 : at + 0x3000] == data[:0x800]
    assert memory[at : at + 0x1000] == data[0x800:0x1800]
    assert memory[at + 0x3000 : at + 0x3800] == data[0x1800:]
    back = bytearray(0x2000)
    assert region.read_into(start, back)
    assert back == data
    assert driver.nic.memory.check(key, pd, start, 0x2001, 0) is None
    assert driver.nic.memory.reason == VTP_LENGTH
    answer = MPT_ENTRY.unpack(driver.ok(cmd.QUERY_MPT, key).outbox)
    assert {name: answer[name] for name in ("key", "pd", "start", "length", "mtt_seg", "region", "sw_owns")} == {
        "key": key, "pd": pd, "start": start, "length": 0x2000, "mtt_seg": number, "region": 1, "sw_owns": 0,
    }  # fmt: skip
    assert driver.run(cmd.WRITE_MTT, 1, 0, mtt(number, 0, base)).status == cmd.ST_RESOURCE_BUSY
    assert driver.run(cmd.FREE_RES, number, cmd.RES_MTT).status == cmd.ST_RESOURCE_BUSY
    driver.ok(cmd.HW2SW_MPT, key)
    assert MPT_ENTRY.unpack(driver.ok(cmd.QUERY_MPT, key).outbox)["sw_owns"] == 15
    driver.ok(cmd.FREE_RES, number, cmd.RES_MTT)
    assert not driver.nic.resources.segments


def test_write_through_a_page_list(pair: Pair) -> None:
    """The data path places packets over scattered pages."""
    a, _ = pair.connect()
    driver = pair.drivers[1]
    memory, va = driver.memory(5 * 4096)
    base = va + 4095 & ~4095
    number, key = driver.alloc(cmd.RES_MTT), driver.alloc(cmd.RES_MPT)
    driver.ok(cmd.WRITE_MTT, 3, 0, mtt(number, 0, base + 0x2000, base, base + 0x3000))
    driver.ok(cmd.SW2HW_MPT, key, 0, driver.mpt(key, pair.pds[1], 0x5000, 0x3000, mtt_seg=number, address=0))
    data = random.Random(4).randbytes(0x3000)
    pair.mrs[0][0][: len(data)] = data
    pair.drivers[0].write(a, pair.mrs[0][1], len(data), pair.mrs[0][2], 0x5000, key)
    pair.wire.run()
    assert [entry[1] for entry in pair.poll(0)] == [0]
    at = base - va
    assert memory[at + 0x2000 : at + 0x3000] == data[:0x1000]
    assert memory[at : at + 0x1000] == data[0x1000:0x2000]
    assert memory[at + 0x3000 : at + 0x4000] == data[0x2000:]


def null(
    driver: Driver,
    key: int,
    pd: int,
    rights: int = access.LOCAL_WRITE,
    start: int = 0,
    length: int = NULL_BYTES,
    **over: int,
) -> bytes:
    return driver.mpt(key, pd, start, length, rights, **({"null": 1, "address": 0} | over))


def test_a_region_without_memory(pair: Pair) -> None:
    """What is sent from it is zeros, and what arrives there is gone; it opens nothing to peers."""
    a, _ = pair.connect()
    driver = pair.drivers[0]
    key = driver.alloc(cmd.RES_MPT)
    driver.ok(cmd.SW2HW_MPT, key, 0, null(driver, key, pair.pds[0]))
    pair.mrs[1][0][:] = bytes((0xEE,)) * len(pair.mrs[1][0])
    for address in (0, 0x7000_0000, NULL_BYTES - 3000):
        driver.write(a, address, 3000, key, pair.mrs[1][1], pair.mrs[1][2])
    pair.wire.run()
    assert [entry[1] for entry in pair.poll(0)] == [0, 0, 0]
    assert bytes(pair.mrs[1][0][:3001]) == bytes(3000) + b"\xee"
    region = driver.nic.memory.check(key, pair.pds[0], 5, 100, access.LOCAL_WRITE, local=True)
    assert region is not None
    assert region.write_from(5, bytes(range(100)))
    back = bytearray(b"x" * 100)
    assert region.read_into(5, back)
    assert back == bytes(100)
    assert driver.nic.memory.check(key, pair.pds[0], 5, 100, access.REMOTE_READ) is None
    assert MPT_ENTRY.unpack(driver.ok(cmd.QUERY_MPT, key).outbox)["null"] == 1


def test_regions_without_memory_refused(driver: Driver, snapshot: Snapshot) -> None:
    pd, key = driver.alloc(cmd.RES_PD), driver.alloc(cmd.RES_MPT)
    for inbox in (
        null(driver, key, pd, start=4096),
        null(driver, key, pd, length=NULL_BYTES + 1),
        null(driver, key, pd, mtt_seg=1),
        null(driver, key, pd, access.LOCAL_WRITE | access.REMOTE_WRITE),
        null(driver, key, pd, access.REMOTE_READ),
        null(driver, key, pd, access.MW_BIND),
    ):
        refuse(driver, snapshot, cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, inbox)


def test_contiguous_pages_have_a_view(driver: Driver) -> None:
    base = pages_of(driver, 2)
    number, key, pd = driver.alloc(cmd.RES_MTT), driver.alloc(cmd.RES_MPT), driver.alloc(cmd.RES_PD)
    driver.ok(cmd.WRITE_MTT, 2, 0, mtt(number, 0, base, base + 4096))
    driver.ok(cmd.SW2HW_MPT, key, 0, driver.mpt(key, pd, 0x9000, 8192, mtt_seg=number, address=0))
    entry = driver.nic.memory.lookup(key)
    assert entry is not None
    assert entry.view is not None


def test_page_lists_refused(driver: Driver, scattered: Scattered, snapshot: Snapshot, new_driver: type[Driver]) -> None:
    _, _, base, number = scattered
    pd, key = driver.alloc(cmd.RES_PD), driver.alloc(cmd.RES_MPT)

    def entry(**over: int) -> bytes:
        return driver.mpt(key, pd, 0x1000, 0x3000, **({"mtt_seg": number, "address": 0} | over))

    for status, inbox in (
        (cmd.ST_BAD_INDEX, entry(mtt_seg=number + 1)),
        (cmd.ST_BAD_PARAM, entry(start=0x1001)),
        (cmd.ST_BAD_PARAM, entry(page_size=20)),
        (cmd.ST_BAD_PARAM, entry(page_size=12)),
    ):
        refuse(driver, snapshot, status, cmd.SW2HW_MPT, key, 0, inbox)
    for status, count, inbox in (
        (cmd.ST_BAD_SIZE, 0, mtt(number, 0)),
        (cmd.ST_BAD_SIZE, 2, mtt(number, 0, base)),
        (cmd.ST_BAD_RESOURCE, 1, mtt(0, 0, base)),
        (cmd.ST_BAD_INDEX, 1, mtt(number + 1, 0, base)),
        (cmd.ST_EXCEED_LIM, 1, mtt(number, 1 << 18, base)),
    ):
        refuse(driver, snapshot, status, cmd.WRITE_MTT, count, 0, inbox)
    assert new_driver(driver.nic).run(cmd.WRITE_MTT, 1, 0, mtt(number, 0, base)).status == cmd.ST_BAD_INDEX
    driver.ok(cmd.WRITE_MTT, 1, 0, mtt(number, 1, 0x4000_0000))
    refuse(driver, snapshot, cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, entry())
    driver.ok(cmd.WRITE_MTT, 1, 0, MTT_HEADER.pack({"segment": number, "first": 1}) + MTT_ENTRY.pack({}))
    refuse(driver, snapshot, cmd.ST_BAD_PARAM, cmd.SW2HW_MPT, key, 0, entry())
    full = {page: page for page in range((1 << 18) - 2)}
    driver.nic.resources.segments[number].pages = full
    other = driver.alloc(cmd.RES_MTT)
    assert driver.run(cmd.WRITE_MTT, 3, 0, mtt(other, 0, base, base, base)).status == cmd.ST_EXCEED_LIM


# --------------------------------------------------------------------------- command x state


def test_every_status_has_a_cause(driver: Driver, asleep: Driver) -> None:
    """One command for each status code, so that none is only a number."""
    eq = driver.eq()
    cq = driver.cq(eq)
    pd = driver.alloc(cmd.RES_PD)
    qp = driver.qp(pd, cq)
    uar = driver.uar

    def hcr(op: int, in_va: int = 0) -> int:
        uar.write(reg.HCR_IN_LO, in_va)
        uar.write(reg.HCR_COMMAND, reg.HCR_GO | op)
        return uar.read(reg.HCR_COMMAND) >> 24

    causes = {
        cmd.ST_OK: driver.run(cmd.NOP).status,
        cmd.ST_INTERNAL_ERR: hcr(cmd.MAP_EQ, 0x40),
        cmd.ST_BAD_OP: driver.run(0x99).status,
        cmd.ST_BAD_PARAM: driver.run(cmd.ALLOC_RES, 99).status,
        cmd.ST_BAD_SYS_STATE: asleep.run(cmd.ALLOC_RES, cmd.RES_PD).status,
        cmd.ST_BAD_RESOURCE: driver.run(cmd.QUERY_QP, 1).status,
        cmd.ST_RESOURCE_BUSY: driver.run(cmd.HW2SW_EQ, eq.number).status,
        cmd.ST_EXCEED_LIM: [driver.run(cmd.ALLOC_RES, cmd.RES_EQ).status for _ in range(1024)][-1],
        cmd.ST_BAD_RES_STATE: driver.run(cmd.HW2SW_CQ, driver.alloc(cmd.RES_CQ)).status,
        cmd.ST_BAD_INDEX: driver.run(cmd.QUERY_QP, 60).status,
        cmd.ST_BAD_NVMEM: driver.run(cmd.UNMAP_ICM, 1, CONTEXTS, icm(0, 0)).status,
        cmd.ST_BAD_QP_STATE: driver.run(cmd.RTR2RTS, qp.number).status,
        cmd.ST_BAD_SIZE: driver.run(cmd.SW2HW_CQ, 1, 0, b"x").status,
    }
    driver.nic.judge = lambda *_: CommandResult(cmd.ST_ERRNO | errno.ENOMEM)
    causes[cmd.ST_ERRNO] = driver.run(cmd.NOP).status & ~errno.ENOMEM
    assert causes == {status: status for status in cmd.STATUS_NAMES}


def test_weights_share_the_turns(driver: Driver, snapshot: Snapshot) -> None:
    pd = driver.alloc(cmd.RES_PD)
    qp = driver.qp(pd, driver.cq(driver.eq()))
    refuse(driver, snapshot, cmd.ST_BAD_PARAM, cmd.SET_WEIGHT, qp.number, 0)
    refuse(driver, snapshot, cmd.ST_BAD_PARAM, cmd.SET_WEIGHT, qp.number, 17)
    refuse(driver, snapshot, cmd.ST_BAD_INDEX, cmd.SET_WEIGHT, qp.number + 1, 2)
    refuse(driver, snapshot, cmd.ST_BAD_QP_STATE, cmd.SET_WEIGHT, driver.alloc(cmd.RES_QP), 2)
    driver.ok(cmd.SET_WEIGHT, qp.number, 3)
    assert driver.nic.qps[qp.number].turn == 3 * driver.nic.config.turn_bytes
