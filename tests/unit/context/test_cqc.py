"""CQC and SRQC: golden bytes typed by hand, the CQC's from 002 4.2.2."""

from __future__ import annotations

from rnic.context import cqc
from rnic.context.cqc import CQC, SRQC

CQC_BYTES = bytes.fromhex(
    "00040100"  # 00h flags: TR, armed
    "0405060708090a0b"  # 04h start[63:32], 08h start[31:0]
    "0c0d0e0f"  # 0Ch logsize 12, usrpage 0D0E0Fh
    "10111213"  # 10h comp_eqn
    "14151617"  # 14h pd
    "18191a1b"  # 18h lkey
    "1c1d1e1f"  # 1Ch last_notified_index
    "20212223"  # 20h solicit_producer_index
    "24252627"  # 24h consumer_index
    "28292a2b"  # 28h producer_index
    "2c2d2e2f"  # 2Ch cqn
    "30313233"  # 30h ci_db
    "34353637"  # 34h state_db
    "0000000000000000"
)
CQC_VALUES = {
    "flags": 0x00040100,
    "start": 0x0405060708090A0B,
    "logsize": 12,
    "usrpage": 0x0D0E0F,
    "comp_eqn": 0x10111213,
    "pd": 0x14151617,
    "lkey": 0x18191A1B,
    "last_notified_index": 0x1C1D1E1F,
    "solicit_producer_index": 0x20212223,
    "consumer_index": 0x24252627,
    "producer_index": 0x28292A2B,
    "cqn": 0x2C2D2E2F,
    "ci_db": 0x30313233,
    "state_db": 0x34353637,
}
SRQC_BYTES = bytes.fromhex(
    "1a020304"  # 00h state 1, logsize 10, srqn 020304h
    "0405060708090a0b"  # 04h start
    "060d0e0f"  # 0Ch logstride 6, usrpage 0D0E0Fh
    "10111213"  # 10h pd
    "14151617"  # 14h lkey
    "0020beef"  # 18h limit 32, wqe_counter BEEFh
    "00001e1f"  # 1Ch xrcd
    "20212223"  # 20h cqn
) + bytes(28)
SRQC_VALUES = {
    "state": 1,
    "logsize": 10,
    "srqn": 0x020304,
    "start": 0x0405060708090A0B,
    "logstride": 6,
    "usrpage": 0x0D0E0F,
    "pd": 0x10111213,
    "lkey": 0x14151617,
    "limit": 32,
    "wqe_counter": 0xBEEF,
    "xrcd": 0x1E1F,
    "cqn": 0x20212223,
}


def test_cqc_golden_bytes() -> None:
    assert CQC.pack(CQC_VALUES) == CQC_BYTES
    assert CQC.unpack(CQC_BYTES) == CQC_VALUES


def test_srqc_golden_bytes() -> None:
    assert SRQC.pack(SRQC_VALUES) == SRQC_BYTES
    assert SRQC.unpack(SRQC_BYTES) == SRQC_VALUES


def test_flag_bits() -> None:
    """``hardware.md`` 2a: CQ flags armed 1<<8, TR 1<<18."""
    assert (cqc.CQ_ARMED, cqc.CQ_TR) == (0x100, 0x40000)
    assert (cqc.CQC_BYTES, cqc.SRQC_BYTES) == (64, 64)
