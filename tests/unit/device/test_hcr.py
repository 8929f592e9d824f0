"""The command register: words, mailboxes by DMA, status, token, events; and that nothing moves when a mailbox fails."""

from __future__ import annotations

import pytest

from rnic.context.modify import TRANSITIONS
from rnic.device.commands import COMMANDS
from rnic.device.hcr import INBOX_BYTES, MAILBOX_BYTES, OUTBOX_BYTES, inbox_bytes
from rnic.device.mailboxes import DEV_LIM, ICM_ENTRY, INIT_HCA, MTT_HEADER
from rnic.spec import commands as cmd
from rnic.spec import events
from rnic.spec import registers as reg
from tests.unit.device.conftest import Driver, Snapshot


class Hcr:
    """The driver's side: two mailboxes and the seven words."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        memory, va = driver.memory(2 * MAILBOX_BYTES + 32)
        skip = -va % 32
        self.inbox = memoryview(memory)[skip : skip + MAILBOX_BYTES]
        self.outbox = memoryview(memory)[skip + MAILBOX_BYTES :]
        self.in_va, self.out_va = va + skip, va + skip + MAILBOX_BYTES

    def go(
        self,
        op: int,
        modifier: int = 0,
        op_modifier: int = 0,
        inbox: bytes = b"",
        in_va: int | None = None,
        out_va: int | None = None,
        token: int = 0,
        event: bool = False,
    ) -> int:
        self.inbox[: len(inbox)] = inbox
        in_va = (self.in_va if inbox else 0) if in_va is None else in_va
        out_va = self.out_va if out_va is None else out_va
        write = self.driver.uar.write
        write(0x80, in_va >> 32)
        write(0x84, in_va & 0xFFFFFFFF)
        write(0x88, modifier)
        write(0x8C, out_va >> 32)
        write(0x90, out_va & 0xFFFFFFFF)
        write(0x94, token << 16)
        write(0x98, 1 << 23 | event << 22 | op_modifier << 12 | op)
        word = self.driver.uar.read(0x98)
        assert word & 0x00FF_FFFF == event << 22 | op_modifier << 12 | op  # GO reads 0 again
        return word >> 24

    @property
    def out_param(self) -> int:
        read = self.driver.uar.read
        return read(0x8C) << 32 | read(0x90)


@pytest.fixture
def hcr(driver: Driver) -> Hcr:
    return Hcr(driver)


def test_query_fills_the_output_mailbox(driver: Driver, hcr: Hcr) -> None:
    hcr.outbox[:] = b"\xff" * len(hcr.outbox)
    assert hcr.go(cmd.QUERY_DEV_LIM) == cmd.ST_OK
    assert hcr.outbox[: DEV_LIM.size] == driver.ok(cmd.QUERY_DEV_LIM).outbox
    assert bytes(hcr.outbox[DEV_LIM.size :]).strip(b"\xff") == b""
    assert hcr.out_param == hcr.out_va


def test_answer_in_out_param(hcr: Hcr) -> None:
    assert hcr.go(cmd.ALLOC_RES, cmd.RES_PD) == cmd.ST_OK
    assert hcr.out_param == 1


def test_input_mailbox_and_op_modifier(driver: Driver, hcr: Hcr) -> None:
    pd = driver.alloc(cmd.RES_PD)
    _, va = driver.memory(64)
    key = driver.alloc(cmd.RES_MPT)
    assert hcr.go(cmd.SW2HW_MPT, key, inbox=driver.mpt(key, pd, va, 64)) == cmd.ST_OK
    assert driver.nic.memory.lookup(key) is not None
    assert hcr.go(cmd.ALLOC_MW, pd, 2) == cmd.ST_OK
    assert hcr.go(cmd.ALLOC_MW, pd, 3) == cmd.ST_BAD_PARAM
    assert hcr.go(cmd.HW2SW_MPT, key) == cmd.ST_OK


def test_words_are_the_contexts_own(driver: Driver, new_driver: type[Driver]) -> None:
    other = new_driver(driver.nic)
    driver.uar.write(reg.HCR_MODIFIER, 5)
    assert other.uar.read(reg.HCR_MODIFIER) == 0
    assert driver.uar.read(reg.HCR_MODIFIER) == 5


def test_nothing_runs_without_go(driver: Driver, hcr: Hcr) -> None:
    driver.uar.write(reg.HCR_MODIFIER, cmd.RES_PD)
    driver.uar.write(reg.HCR_COMMAND, cmd.ALLOC_RES)
    assert driver.uar.read(reg.HCR_COMMAND) == cmd.ALLOC_RES
    assert not driver.nic.resources.pools[cmd.RES_PD].owners


def test_end_told_by_event(driver: Driver, hcr: Hcr) -> None:
    assert hcr.go(cmd.NOP, token=7, event=True) == cmd.ST_OK  # nobody asked for command events
    eq = driver.eq()
    driver.map_events(eq, events.CMD)
    driver.uar.write(reg.IRQ_STATUS, 0xFFFF_FFFF)
    assert hcr.go(cmd.ALLOC_RES, cmd.RES_PD, token=0xBEEF, event=True) == cmd.ST_OK
    assert hcr.go(cmd.ALLOC_RES, 99, token=2, event=True) == cmd.ST_BAD_PARAM
    assert hcr.go(cmd.NOP) == cmd.ST_OK
    entries = driver.poll(eq)
    # type, token, status, output parameter
    assert [(e[0], e[1], e[2]) for e in entries] == [(0x0A, 0xBEEF, 0), (0x0A, 2, cmd.ST_BAD_PARAM)]
    assert entries[0][4] << 32 | entries[0][5] == 1
    assert driver.uar.read(reg.IRQ_STATUS) & reg.IRQ_COMMAND
    assert driver.nic.next_event() == 0


@pytest.mark.parametrize("op", sorted(COMMANDS), ids=lambda op: cmd.COMMAND_NAMES[op])
def test_a_mailbox_that_does_not_answer_changes_nothing(driver: Driver, hcr: Hcr, snapshot: Snapshot, op: int) -> None:
    nowhere = 0x40
    modifier = 1 if op in (cmd.WRITE_MTT, cmd.MAP_ICM, cmd.UNMAP_ICM) else 0
    before = snapshot(driver)
    if inbox_bytes(op, modifier):
        assert hcr.go(op, modifier, in_va=nowhere) == cmd.ST_INTERNAL_ERR
        assert hcr.go(op, modifier, in_va=hcr.in_va + 4) == cmd.ST_BAD_PARAM
    if op in OUTBOX_BYTES:
        assert hcr.go(op, modifier, out_va=nowhere) == cmd.ST_INTERNAL_ERR
        assert hcr.go(op, modifier, out_va=hcr.out_va + 8) == cmd.ST_BAD_PARAM
    assert snapshot(driver) == before


def test_mailboxes_have_a_size(driver: Driver, hcr: Hcr, snapshot: Snapshot) -> None:
    before = snapshot(driver)
    for op in (cmd.WRITE_MTT, cmd.MAP_ICM, cmd.UNMAP_ICM):
        assert hcr.go(op, 1 << 31, in_va=hcr.in_va) == cmd.ST_BAD_SIZE
    assert snapshot(driver) == before
    assert inbox_bytes(cmd.WRITE_MTT, 510) == MAILBOX_BYTES
    assert inbox_bytes(cmd.MAP_ICM, 256) == MAILBOX_BYTES


GOLDEN_INBOX = {
    **dict.fromkeys((0x07, 0x0D, 0x13, 0x16, 0x2C, 0x35), 64),
    **dict.fromkeys((0x19, 0x1A, 0x1B, 0x1C, 0x1D, 0x1E, 0x1F, 0x20, 0x21, 0x2D, 0x38), 256),
    **dict.fromkeys((0x25, 0x26), 512),
    0x12: 8,
    0x24: 256,
    0x27: 16,
    0x40: 4,
    0xF15: 8,
    0xF17: 24,
}
GOLDEN_OUTBOX = {0x03: 256, 0x06: 64, 0x0E: 64, 0x22: 256, 0x24: 256, 0x25: 512, 0x37: 64, 0xF13: 4096}


def test_golden_mailbox_sizes() -> None:
    assert INBOX_BYTES == GOLDEN_INBOX
    assert OUTBOX_BYTES == GOLDEN_OUTBOX
    assert (INIT_HCA.size, ICM_ENTRY.size, MTT_HEADER.size) == (64, 16, 16)
    assert set(TRANSITIONS) <= set(INBOX_BYTES)


GOLDEN_OPCODES = {
    "QUERY_DEV_LIM": 0x03, "QUERY_ADAPTER": 0x06, "INIT_HCA": 0x07, "CLOSE_HCA": 0x08, "INIT_PORT": 0x09,
    "CLOSE_PORT": 0x0A, "SW2HW_MPT": 0x0D, "QUERY_MPT": 0x0E, "HW2SW_MPT": 0x0F, "WRITE_MTT": 0x11, "MAP_EQ": 0x12,
    "SW2HW_EQ": 0x13, "HW2SW_EQ": 0x14, "SW2HW_CQ": 0x16, "HW2SW_CQ": 0x17, "RST2INIT": 0x19, "INIT2RTR": 0x1A,
    "RTR2RTS": 0x1B, "RTS2RTS": 0x1C, "SQERR2RTS": 0x1D, "TOERR": 0x1E, "RTS2SQD": 0x1F, "SQD2RTS": 0x20,
    "ERR2RST": 0x21, "QUERY_QP": 0x22, "CONF_SPECIAL_QP": 0x23, "MAD_IFC": 0x24, "READ_MGM": 0x25, "WRITE_MGM": 0x26,
    "MGID_HASH": 0x27, "RESIZE_CQ": 0x2C, "INIT2INIT": 0x2D, "NOP": 0x31, "SW2HW_SRQ": 0x35, "HW2SW_SRQ": 0x36,
    "QUERY_SRQ": 0x37, "SQD2SQD": 0x38, "ARM_SRQ": 0x40, "ALLOC_MW": 0xF00, "DEALLOC_MW": 0xF01, "ALLOC_RES": 0xF10,
    "FREE_RES": 0xF11, "SET_WEIGHT": 0xF12, "READ_NON_RDMA": 0xF13, "READ_CFG": 0xF14, "WRITE_CFG": 0xF15,
    "WRITE_NON_RDMA": 0xF16, "OPEN_XRCD": 0xF17, "CLOSE_XRCD": 0xF18,
    "UNMAP_ICM": 0xFF9, "MAP_ICM": 0xFFA,
}  # fmt: skip


def test_golden_opcodes() -> None:
    assert {name: op for op, name in cmd.COMMAND_NAMES.items()} == GOLDEN_OPCODES
    assert set(GOLDEN_OPCODES.values()) == COMMANDS
