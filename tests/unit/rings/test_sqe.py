"""SQ descriptors: golden bytes typed by hand from 001 3.2 and ``design.md``, and the structs of the data path."""

from __future__ import annotations

import pytest

from rnic.rings import sqe
from rnic.rings.sqe import SGE, SQ_ENTRY, SQ_ENTRY_ATOMIC, SQ_ENTRY_BIND, SQ_ENTRY_UD
from rnic.spec.layout import Layout

# 001: 0-3 WQE ID, 4-5 opcode, 6-7 flags, 8-15 local address, 16-23 remote address, 24-27 length, little-endian.
# design.md: then lkey, rkey, immediate, and the union.
WRITE_IMM = bytes.fromhex(
    "01020304"  # wqe_id 0x04030201
    "0b00"  # opcode 0x0B WRITE_IMM
    "0300"  # signaled, solicited
    "1112131415161718"  # local_addr
    "2122232425262728"  # remote_addr
    "31323334"  # length
    "41424344"  # lkey
    "51525354"  # rkey
    "61626364"  # imm
) + bytes(24)
WRITE_IMM_VALUES = {
    "wqe_id": 0x04030201,
    "opcode": 0x0B,
    "signaled": 1,
    "solicited": 1,
    "local_addr": 0x1817161514131211,
    "remote_addr": 0x2827262524232221,
    "length": 0x34333231,
    "lkey": 0x44434241,
    "rkey": 0x54535251,
    "imm": 0x64636261,
}

CMP_SWAP = bytes.fromhex(
    "fffefdfc"  # wqe_id 0xFCFDFEFF
    "1300"  # opcode 0x13 CMP_SWAP
    "0400"  # fence
    "1112131415161718"  # local_addr
    "2122232425262728"  # remote_addr
    "08000000"  # length 8
    "41424344"  # lkey
    "51525354"  # rkey
    "00000000"
    "7172737475767778"  # swap_add
    "8182838485868788"  # compare
    "0000000000000000"
)
CMP_SWAP_VALUES = {
    "wqe_id": 0xFCFDFEFF,
    "opcode": 0x13,
    "fence": 1,
    "local_addr": 0x1817161514131211,
    "remote_addr": 0x2827262524232221,
    "length": 8,
    "lkey": 0x44434241,
    "rkey": 0x54535251,
    "swap_add": 0x7877767574737271,
    "compare": 0x8887868584838281,
}

UD_SEND = bytes.fromhex(
    "01000000"  # wqe_id 1
    "0500"  # opcode 0x05 SEND_IMM
    "1100"  # signaled, list
    "1112131415161718"  # local_addr
    "cbba0a02"  # flow_label 0xABACB, tclass 0x20
    "b712"  # udp_dport 4791
    "00c0"  # udp_sport 0xC000
    "31323334"  # length
    "02000000"  # lkey: 2 entries in the list
    "03000000"  # sgid_index 3
    "61626364"  # imm
    "00000000000000000000ffff0a000002"  # dgid ::ffff:10.0.0.2, first byte first
    "563412"  # dqpn 0x123456
    "40"  # hop_limit 64
    "00000180"  # qkey 0x80010000
)
UD_SEND_VALUES = {
    "wqe_id": 1,
    "opcode": 5,
    "signaled": 1,
    "list": 1,
    "local_addr": 0x1817161514131211,
    "flow_label": 0xABACB,
    "tclass": 0x20,
    "udp_dport": 4791,
    "udp_sport": 0xC000,
    "length": 0x34333231,
    "lkey": 2,
    "sgid_index": 3,
    "imm": 0x64636261,
    "dgid": 0x0200000AFFFF << 80,
    "dqpn": 0x123456,
    "hop_limit": 64,
    "qkey": 0x80010000,
}

BIND = bytes.fromhex(
    "07000000"  # wqe_id 7
    "f000"  # opcode 0xF0 BIND_MW
    "0900"  # signaled, inline (no meaning here, but its place)
    "0e000000"  # access: REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
    "00000000"
    "2122232425262728"  # start
    "00000000"
    "41424344"  # lkey
    "51525354"  # new_rkey
    "61626364"  # window
    "7172737475767778"  # bind_length
    "00000000000000000000000000000000"
)
BIND_VALUES = {
    "wqe_id": 7,
    "opcode": 0xF0,
    "signaled": 1,
    "inline": 1,
    "access": 0xE,
    "start": 0x2827262524232221,
    "lkey": 0x44434241,
    "new_rkey": 0x54535251,
    "window": 0x64636261,
    "bind_length": 0x7877767574737271,
}

SGE_BYTES = bytes.fromhex("1112131415161718 31323334 41424344")
SGE_VALUES = {"addr": 0x1817161514131211, "length": 0x34333231, "lkey": 0x44434241}

CASES = [
    pytest.param(SQ_ENTRY, WRITE_IMM, WRITE_IMM_VALUES, id="WRITE_IMM"),
    pytest.param(SQ_ENTRY_ATOMIC, CMP_SWAP, CMP_SWAP_VALUES, id="CMP_SWAP"),
    pytest.param(SQ_ENTRY_UD, UD_SEND, UD_SEND_VALUES, id="UD_SEND_IMM"),
    pytest.param(SQ_ENTRY_BIND, BIND, BIND_VALUES, id="BIND_MW"),
    pytest.param(SGE, SGE_BYTES, SGE_VALUES, id="SGE"),
]


@pytest.mark.parametrize(("layout", "data", "values"), CASES)
def test_golden_bytes(layout: Layout, data: bytes, values: dict[str, int]) -> None:
    assert len(data) == layout.size
    assert layout.pack(values) == data
    assert {name: value for name, value in layout.unpack(data).items() if value} == values


def test_flag_bits() -> None:
    assert (
        sqe.FLAG_SIGNALED,
        sqe.FLAG_SOLICITED,
        sqe.FLAG_FENCE,
        sqe.FLAG_INLINE,
        sqe.FLAG_LIST,
        sqe.FLAGS_DEFINED,
    ) == (0x01, 0x02, 0x04, 0x08, 0x10, 0x1F)


def test_sizes() -> None:
    assert (sqe.SQE_BYTES, 1 << sqe.SQE_SHIFT, sqe.SGE_BYTES) == (64, 64, 16)
    assert sqe.SQE_STRUCT.size == 40
    assert sqe.SQE_UD_STRUCT.size == 24


def test_structs_read_the_golden_bytes() -> None:
    assert sqe.SQE_STRUCT.unpack_from(WRITE_IMM) == (
        0x04030201,
        0x0B,
        0x03,
        0x1817161514131211,
        0x2827262524232221,
        0x34333231,
        0x44434241,
        0x54535251,
        0x64636261,
    )
    assert sqe.SQE_ATOMIC_STRUCT.unpack_from(CMP_SWAP, 40) == (0x7877767574737271, 0x8887868584838281)
    assert sqe.SQE_UD_STRUCT.unpack_from(UD_SEND, 40) == (UD_SEND[40:56], 0x40123456, 0x80010000)
    assert sqe.SQE_UD_PATH_STRUCT.unpack_from(UD_SEND, 16) == (0x20 << 20 | 0xABACB, 4791, 0xC000)
    assert sqe.SGE_STRUCT.unpack(SGE_BYTES) == tuple(SGE_VALUES.values())
