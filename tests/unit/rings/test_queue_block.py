"""The queue block: offsets as 001 and ``hardware.md`` 1a have them, and golden bytes for the three kinds."""

from __future__ import annotations

import pytest

from rnic.rings import queue_block as block
from rnic.spec.layout import Layout

# The value of each register is its own offset, so its bytes stand where the offset says.
QP = bytes.fromhex(
    "00000000 04000000 00000000 00000000 00000000 00000000 00000000 00000000"  # 00: number 0, state 4
    "20000000 24000000 28000000 2c000000 30000000 34000000 38000000 3c000000"  # 20: send queue
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000"  # 40
    "60000000 64000000 68000000 6c000000 70000000 74000000 00000000 00000000"  # 60: receive queue
)
CQ = bytes.fromhex(
    "00000000 04000000 00000000 00000000 00000000 00000000 00000000 00000000"  # 00: number 0, state 4
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000"  # 20
    "40000000 44000000 48000000 4c000000 50000000 54000000 58000000 00000000"  # 40: completion queue
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000"  # 60
)
SRQ = bytes.fromhex(
    "00000000 04000000 00000000 00000000 00000000 00000000 00000000 00000000"  # 00: number 0, state 4
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000"  # 20
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000"  # 40
    "60000000 64000000 68000000 6c000000 70000000 74000000 78000000 00000000"  # 60: receive queue, limit
)


@pytest.mark.parametrize(
    ("layout", "data"), [(block.QP_BLOCK, QP), (block.CQ_BLOCK, CQ), (block.SRQ_BLOCK, SRQ)], ids=["QP", "CQ", "SRQ"]
)
def test_golden_bytes(layout: Layout, data: bytes) -> None:
    assert layout.pack({field.name: field.byte for field in layout.fields}) == data


@pytest.mark.parametrize(
    ("offset", "name"),
    [
        (0x00, "QUEUE_NUMBER"),
        (0x04, "QUEUE_STATE"),
        (0x20, "SQ_BASE_LO"),
        (0x24, "SQ_BASE_HI"),
        (0x28, "SQ_SIZE"),
        (0x2C, "SQ_HEAD"),
        (0x30, "SQ_TAIL"),
        (0x34, "SQ_DOORBELL"),
        (0x38, "SQ_FLAGS"),
        (0x3C, "SQ_STRIDE"),
        (0x40, "CQ_BASE_LO"),
        (0x44, "CQ_BASE_HI"),
        (0x48, "CQ_SIZE"),
        (0x4C, "CQ_HEAD"),
        (0x50, "CQ_TAIL"),
        (0x54, "CQ_DOORBELL"),
        (0x58, "CQ_FLAGS"),
        (0x60, "RQ_BASE_LO"),
        (0x64, "RQ_BASE_HI"),
        (0x68, "RQ_SIZE"),
        (0x6C, "RQ_HEAD"),
        (0x70, "RQ_TAIL"),
        (0x74, "RQ_STRIDE"),
        (0x78, "SRQ_LIMIT"),
    ],
)
def test_register_offset(offset: int, name: str) -> None:
    assert getattr(block, name) == offset


def test_sizes_and_arm_values() -> None:
    assert (block.BLOCK_BYTES, 1 << block.BLOCK_SHIFT) == (128, 128)
    assert (block.ARM_NEXT, block.ARM_SOLICITED) == (1, 2)
