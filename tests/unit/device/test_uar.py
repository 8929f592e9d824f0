from __future__ import annotations

import pytest

from rnic.device.uar import CQ_DOORS, QP_DOORS, SRQ_DOORS, Doorbells, Registers, Uar
from rnic.mem.space import SimAddressSpace
from rnic.rings import queue_block as q


@pytest.fixture
def doorbells() -> Doorbells:
    doorbells = Doorbells()
    doorbells.doors |= {5: QP_DOORS, 2: CQ_DOORS, 3: SRQ_DOORS}
    return doorbells


@pytest.fixture
def uar(doorbells: Doorbells) -> Uar:
    return Uar(SimAddressSpace(), doorbells, 8)


WRITABLE = {
    5: {q.SQ_TAIL: True, q.SQ_DOORBELL: True, q.SQ_FLAGS: False, q.RQ_TAIL: True},
    2: {q.CQ_HEAD: False, q.CQ_DOORBELL: False, q.CQ_FLAGS: False},
    3: {q.RQ_TAIL: False, q.SRQ_LIMIT: True},
}


@pytest.mark.parametrize("block", [5, 2, 3])
def test_every_offset(uar: Uar, doorbells: Doorbells, block: int) -> None:
    for register in range(-4, q.BLOCK_BYTES + 8):
        before = bytes(uar.buf)
        uar.store(block, register, 0x1_2345_6789)
        if register in WRITABLE[block]:
            assert uar.load(block, register) == 0x2345_6789
            assert list(doorbells.rung) == [block] * WRITABLE[block][register]
            if doorbells.rung:
                assert doorbells.take() == block
            Registers(uar, block).set(register, 0)
        else:
            assert bytes(uar.buf) == before
            assert not doorbells.rung


@pytest.mark.parametrize("block", [0, 4, 8, -1, 1 << 40])
def test_no_queue_no_store(uar: Uar, doorbells: Doorbells, block: int) -> None:
    uar.store(block, q.SQ_TAIL, 1)
    assert not any(uar.buf)
    assert not doorbells.rung


def test_load_outside_is_zero(uar: Uar) -> None:
    uar.buf[:] = b"\xff" * len(uar.buf)
    assert uar.load(7, 0x7C) == 0xFFFF_FFFF
    for block, register in [(8, 0), (-1, 0), (5, 0x80), (5, -4), (5, 2)]:
        assert uar.load(block, register) == 0


def test_a_block_is_noted_once_until_taken(uar: Uar, doorbells: Doorbells) -> None:
    for tail in (1, 2, 3):
        uar.store(5, q.SQ_TAIL, tail)
    uar.store(3, q.SRQ_LIMIT, 1)
    assert list(doorbells.rung) == [5, 3]
    assert doorbells.take() == 5
    uar.store(5, q.SQ_TAIL, 4)
    assert list(doorbells.rung) == [3, 5]


def test_registers(uar: Uar) -> None:
    regs = Registers(uar, 5)
    regs.set(0x7C, 0xDEADBEEF)
    assert regs.get(0x7C) == uar.load(5, 0x7C) == 0xDEADBEEF
    assert bytes(uar.buf[Uar.offset(6) - 4 : Uar.offset(6)]) == b"\xef\xbe\xad\xde"
    regs.clear()
    assert not any(uar.buf)


def test_a_window_of_its_own_is_private_zeros(doorbells: Doorbells) -> None:
    given = memoryview(bytearray(1024))
    uar = Uar(SimAddressSpace(), doorbells, 8, given)
    uar.store(5, q.SQ_TAIL, 9)
    assert any(given)
