"""RQ and SRQ entries: golden bytes, and the stride."""

from __future__ import annotations

import pytest

from rnic.rings.rqe import RQ_ENTRY, RQE_MIN_STRIDE, SGE_BYTES, SGE_STRUCT, SRQ_ORDER_STRUCT, rqe_stride, srq_bytes

TWO_ENTRIES = bytes.fromhex(
    "00100000 00000000 00020000 0100ab00"  # 512 bytes at 0x1000, key 0x00AB0001
    "ffeeddccbbaa9988 01000000 ffffffff"  # 1 byte at 0x8899AABBCCDDEEFF, key 0xFFFFFFFF
    "0000000000000000 00000000 00000000"  # end of the list
)


def test_golden_bytes() -> None:
    assert list(SGE_STRUCT.iter_unpack(TWO_ENTRIES)) == [
        (0x1000, 512, 0x00AB0001),
        (0x8899AABBCCDDEEFF, 1, 0xFFFFFFFF),
        (0, 0, 0),
    ]
    assert RQ_ENTRY.pack({"addr": 0x1000, "length": 512, "lkey": 0xAB0001}) == TWO_ENTRIES[:16]
    assert RQ_ENTRY.unpack(TWO_ENTRIES, 16) == {"addr": 0x8899AABBCCDDEEFF, "length": 1, "lkey": 0xFFFFFFFF}


@pytest.mark.parametrize(
    ("max_sge", "stride"), [(0, 16), (1, 16), (2, 32), (3, 64), (4, 64), (5, 128), (16, 256), (17, 512), (32, 512)]
)
def test_stride(max_sge: int, stride: int) -> None:
    assert rqe_stride(max_sge) == stride


def test_sizes() -> None:
    assert RQE_MIN_STRIDE == SGE_BYTES == 16


def test_order_of_a_shared_queue() -> None:
    """16 slots of 32 bytes, then 16 numbers of 4 bytes."""
    assert srq_bytes(16, 32) == 576
    assert SRQ_ORDER_STRUCT.pack(0x0102) == bytes((2, 1, 0, 0))
