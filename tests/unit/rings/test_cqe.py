"""CQ entries: golden bytes typed by hand from ``design.md`` "CQ entry", over 001 3.2's words."""

from __future__ import annotations

from rnic.rings import cqe
from rnic.rings.cqe import CQ_ENTRY, CQE_STRUCT

RECEIVE = bytes.fromhex(
    "44332211"  # word 0: index 0x11223344
    "13870000"  # word 1: status 0x13, vendor error 0x87
    "a1a2a3a4"  # word 2: bytes
    "053b0080"  # word 3: opcode 5, receive, immediate, GRH, solicited, SRQ (0x3B00), phase
    "b1b2b3b4"  # word 4: wqe_id, or source QPN, or SRQ
    "c1c2c3c4"  # word 5: requested length
    "d1d2d300"  # word 6: qpn 0xD3D2D1
    "e1e2e3e4"  # word 7: immediate
)
VALUES = {
    "index": 0x11223344,
    "status": 0x13,
    "vendor_err": 0x87,
    "bytes": 0xA4A3A2A1,
    "opcode": 5,
    "receive": 1,
    "imm_valid": 1,
    "invalidated": 0,
    "grh": 1,
    "solicited": 1,
    "srq": 1,
    "phase": 1,
    "wqe_id": 0xB4B3B2B1,
    "requested": 0xC4C3C2C1,
    "qpn": 0xD3D2D1,
    "imm": 0xE4E3E2E1,
}
INVALIDATED = bytes.fromhex("00000000 00000000 00000000 17050000 00000000 00000000 00000000 00000000")


def test_golden_bytes() -> None:
    assert CQ_ENTRY.pack(VALUES) == RECEIVE
    assert CQ_ENTRY.unpack(RECEIVE) == VALUES


def test_golden_invalidated() -> None:
    assert CQ_ENTRY.pack({"opcode": 0x17, "receive": 1, "invalidated": 1}) == INVALIDATED


def test_first_six_words_are_those_of_the_descriptor_engine() -> None:
    """001 3.2: SQ index, status, bytes sent, debug, original ID, original length, 8 reserved bytes."""
    engine = bytes.fromhex("03000000 04000000 00100000 00000000 efbeadde 00200000 0000000000000000")
    values = {"index": 3, "status": 4, "bytes": 4096, "wqe_id": 0xDEADBEEF, "requested": 8192}
    assert CQ_ENTRY.pack(values) == engine


def test_word_3_bits() -> None:
    assert cqe.CQE_RECEIVE == 0x100
    assert cqe.CQE_IMM == 0x200
    assert cqe.CQE_INV == 0x400
    assert cqe.CQE_GRH == 0x800
    assert cqe.CQE_SOLICITED == 0x1000
    assert cqe.CQE_SRQ == 0x2000
    assert cqe.CQE_PHASE == 0x8000_0000


def test_struct_reads_the_words() -> None:
    assert (cqe.CQE_BYTES, 1 << cqe.CQE_SHIFT, CQE_STRUCT.size) == (32, 32, 32)
    assert CQE_STRUCT.unpack(RECEIVE) == (
        0x11223344,
        0x8713,
        0xA4A3A2A1,
        0x80003B05,
        0xB4B3B2B1,
        0xC4C3C2C1,
        0xD3D2D1,
        0xE4E3E2E1,
    )
