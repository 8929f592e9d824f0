"""Which work request of the device an opcode of verbs is."""

from __future__ import annotations

from rnic.spec import opcodes as op
from rnic.verbs import enums as e
from rnic.verbs.posting import OPCODES, PLAIN


def test_each_opcode_of_verbs_is_a_work_request() -> None:
    assert OPCODES == {
        e.IBV_WR_RDMA_WRITE: op.WR_WRITE,
        e.IBV_WR_RDMA_WRITE_WITH_IMM: op.WR_WRITE_IMM,
        e.IBV_WR_SEND: op.WR_SEND,
        e.IBV_WR_SEND_WITH_IMM: op.WR_SEND_IMM,
        e.IBV_WR_RDMA_READ: op.WR_READ,
        e.IBV_WR_ATOMIC_CMP_AND_SWP: op.WR_CMP_SWAP,
        e.IBV_WR_ATOMIC_FETCH_AND_ADD: op.WR_FETCH_ADD,
        e.IBV_WR_LOCAL_INV: op.WR_LOCAL_INV,
        e.IBV_WR_BIND_MW: op.WR_BIND_MW,
        e.IBV_WR_SEND_WITH_INV: op.WR_SEND_INV,
        e.IBV_WR_FLUSH: op.WR_FLUSH,
        e.IBV_WR_ATOMIC_WRITE: op.WR_ATOMIC_WRITE,
    }


def test_what_needs_no_operands_of_its_own_is_plain() -> None:
    assert set(PLAIN.values()) == {op.WR_SEND, op.WR_SEND_IMM, op.WR_WRITE, op.WR_WRITE_IMM, op.WR_READ}
