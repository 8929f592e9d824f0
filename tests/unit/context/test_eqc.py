"""EQC: golden bytes typed by hand from 002 4.2.3."""

from __future__ import annotations

from rnic.context import eqc
from rnic.context.eqc import EQC

BYTES = bytes.fromhex(
    "01040100"  # 00h flags: owned by hardware, TR, armed
    "0405060708090a0b"  # 04h start[63:32], 08h start[31:0]
    "0c0d0e0f"  # 0Ch logsize 12, usrpage 0D0E0Fh
    "10111213"  # 10h
    "00001617"  # 14h msix_vector in the low half
    "18191a1b"  # 18h pd
    "1c1d1e1f"  # 1Ch lkey
    "00000000 00000000"  # 20h, 24h
    "28292a2b"  # 28h consumer_index
    "2c2d2e2f"  # 2Ch producer_index
) + bytes(16)
VALUES = {
    "flags": 0x01040100,
    "start": 0x0405060708090A0B,
    "logsize": 12,
    "usrpage": 0x0D0E0F,
    "event_mask": 0x10111213,
    "msix_vector": 0x1617,
    "pd": 0x18191A1B,
    "lkey": 0x1C1D1E1F,
    "consumer_index": 0x28292A2B,
    "producer_index": 0x2C2D2E2F,
}


def test_golden_bytes() -> None:
    assert EQC.pack(VALUES) == BYTES
    assert EQC.unpack(BYTES) == VALUES


def test_flag_bits() -> None:
    """``hardware.md`` 2a: EQ flags armed 1<<8, TR 1<<18, owner_hw 1<<24."""
    assert (eqc.EQ_ARMED, eqc.EQ_TR, eqc.EQ_OWNER_HW) == (0x100, 0x40000, 0x1000000)
    assert eqc.EQC_BYTES == 64
