"""EQ entries: golden bytes typed by hand."""

from __future__ import annotations

from rnic.rings import eqe
from rnic.rings.eqe import EQ_ENTRY, EQE_STRUCT

COMMAND_DONE = bytes.fromhex(
    "0a550000"  # word 0: type 0x0A CMD, subtype 0x55
    "21436500"  # word 1: number 0x654321
    "03000000"  # word 2: status 3
    "00000080"  # word 3: phase
    "11121314"  # word 4: out_hi
    "21222324"  # word 5: out_lo
    "0000000000000000"
)
VALUES = {
    "type": 0x0A,
    "subtype": 0x55,
    "number": 0x654321,
    "status": 3,
    "phase": 1,
    "out_hi": 0x14131211,
    "out_lo": 0x24232221,
}


def test_golden_bytes() -> None:
    assert EQ_ENTRY.pack(VALUES) == COMMAND_DONE
    assert EQ_ENTRY.unpack(COMMAND_DONE) == VALUES


def test_struct_and_sizes() -> None:
    assert (eqe.EQE_BYTES, 1 << eqe.EQE_SHIFT, EQE_STRUCT.size, eqe.EQE_PHASE) == (32, 32, 32, 1 << 31)
    assert EQE_STRUCT.unpack(COMMAND_DONE) == (0x550A, 0x654321, 3, 0x80000000, 0x14131211, 0x24232221, 0, 0)
