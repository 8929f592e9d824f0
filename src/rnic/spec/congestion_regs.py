"""The congestion registers of the configuration interface: 64 bits wide, at byte offsets (004 7.4, ``hardware.md`` 4).

Offsets and bits are those of the core that 004 describes. It gives no unit for its two times; here both count
windows of :data:`WINDOW_NS`, the 1,024 cycles of a 1 GHz clock in which that core counts bytes (a choice).
Besides the outstanding limit, rates that software sets and the device keeps, and rates that the device finds itself
(DCQCN), with what it finds them by and where they are. Its other parameters have no register in that core's list.

A register of a queue pair up to 8192 lies ``QP_STRIDE * (QPN - 1)`` behind that of queue pair 1.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.layout import Field, bits
from rnic.spec.registers import WideRegister

WINDOW_NS: Final = 1_024
"""Nanoseconds of one window, the unit of both times."""

CNP_TIMER_THRD: Final = 0x2000A0
DCQCN_CTRL: Final = 0x200200
ALPHA_TIMER: Final = 0x200218
CONGESTION_CTRL: Final = 0x200220
QP_CTRL: Final = 0x400000
QP_CNP_MERGE: Final = 0x600000
QP_RATE: Final = 0x600008
QP_ALPHA: Final = 0x600010
QP_BYTE_CNT: Final = 0x600018
QP_ROUNDS: Final = 0x600020
QP_CC_RATE: Final = 0x600028
QP_STRIDE: Final = 0x100
QP_REGISTERS: Final = 0x2000
"""Queue pairs that have registers, 1 to 8192 (004 7.2); those of the next kind follow behind them."""

TIME_MASK: Final = 0xFFFF
RATE_MASK: Final = 0xFFFF_FFFF
MAX_RATE_SHIFT: Final = 16
MAX_RATE_MASK: Final = 0xFFFF
BYTE_CNT_SHIFT: Final = 32
BYTE_CNT_MASK: Final = (1 << 19) - 1
BYTE_CNT_UNIT: Final = 64
"""Bytes that a byte counter counts by (a choice: 19 bits then hold the 10 MB of the DCQCN paper)."""
TIMER_BUSY: Final = 1 << 51
ALPHA_REGISTER_BITS: Final = 10
ROUNDS_MASK: Final = 0xFF
ROUNDS_SHIFT: Final = 8
HW_EN: Final = 1 << 24
OST_LIMIT: Final = 1 << 26
LIMITER: Final = 1 << 54
SQ_ARB_MASK: Final = 1 << 1
TIMER_RUNS: Final = 1 << 5


CONGESTION_REGISTERS: tuple[WideRegister, ...] = (
    WideRegister(
        "CNP_TIMER_THRD",
        CNP_TIMER_THRD,
        "how long a CNP holds the outstanding limit down",
        (bits("CNP_TIMER_THRD", 0, 15, 0, "windows of 1,024 ns; 0 is taken as 1", "RW"),),
    ),
    WideRegister(
        "DCQCN_CTRL",
        DCQCN_CTRL,
        "how queue pairs raise their rates again while HW_EN holds",
        (
            bits("NOCNP_TIMER", 0, 15, 0, "a round of the timer, in windows of 1,024 ns; 0 is taken as 1", "RW"),
            bits("MAX_RATE", 0, 31, 16, "bytes a window: what the wire takes; 0 is taken as 1", "RW"),
            Field("BYTE_CNT", 0, 50, 32, "a round of the byte counter, in 64 bytes; 0 is taken as 1", 8, "RW"),
            Field("TIMER_BUSY", 0, 51, 51, "1: some queue pair is below MAX_RATE", 8, "RO"),
        ),
    ),
    WideRegister(
        "ALPHA_TIMER",
        ALPHA_TIMER,
        "how long without a CNP until alpha falls",
        (bits("ALPHA_TIMER", 0, 15, 0, "windows of 1,024 ns; 0 is taken as 1", "RW"),),
    ),
    WideRegister(
        "CONGESTION_CTRL",
        CONGESTION_CTRL,
        "what congestion does",
        (
            bits("CNP_MERGE", 0, 15, 0, "windows of 1,024 ns in which one flow gets one CNP; 0: each mark one", "RW"),
            bits(
                "HW_EN", 0, 24, 24, "1: queue pairs find their rates by their CNPs (DCQCN); OST_LIMIT goes before", "RW"
            ),
            bits("OST_LIMIT", 0, 26, 26, "1: a CNP halves the outstanding limit of its queue pair", "RW"),
            Field("LIMITER", 0, 54, 54, "1: no queue pair sends faster than its QP_RATE", 8, "RW"),
        ),
    ),
    WideRegister(
        "QP_CTRL",
        QP_CTRL,
        "one queue pair's arbitration and timer",
        (
            bits("SQ_ARB_MASK", 0, 1, 1, "1: its send queue takes no part in the arbitration", "RW"),
            bits("TIMER_RUNS", 0, 5, 5, "1: its outstanding limit is halved, until its timer ends", "RO"),
        ),
        per_qp=True,
    ),
    WideRegister(
        "QP_RATE",
        QP_RATE,
        "what the queue pair may send while LIMITER holds",
        (bits("RATE", 0, 31, 0, "bytes of UDP payload a window of 1,024 ns; 0: as fast as it can", "RW"),),
        per_qp=True,
    ),
    WideRegister(
        "QP_CNP_MERGE",
        QP_CNP_MERGE,
        "what is left of the period in which marks of this flow bring no further CNP",
        (bits("CNP_MERGE", 0, 15, 0, "windows of 1,024 ns, rounded up", "RO"),),
        per_qp=True,
    ),
    WideRegister(
        "QP_ALPHA",
        QP_ALPHA,
        "DCQCN's alpha",
        (bits("ALPHA", 0, 9, 0, "1,024ths; 1,023 also where it is 1", "RO"),),
        per_qp=True,
    ),
    WideRegister(
        "QP_BYTE_CNT",
        QP_BYTE_CNT,
        "DCQCN's byte counter",
        (bits("BYTE_CNT", 0, 18, 0, "64 bytes that left in this round", "RO"),),
        per_qp=True,
    ),
    WideRegister(
        "QP_ROUNDS",
        QP_ROUNDS,
        "DCQCN's rounds since the last CNP, 255 at most",
        (
            bits("TIMER_ROUNDS", 0, 7, 0, "of the timer", "RO"),
            bits("BYTE_ROUNDS", 0, 15, 8, "of the byte counter", "RO"),
        ),
        per_qp=True,
    ),
    WideRegister(
        "QP_CC_RATE",
        QP_CC_RATE,
        "the rate that DCQCN found",
        (bits("CC_RATE", 0, 31, 0, "bytes of UDP payload a window of 1,024 ns; 0: as fast as it can", "RO"),),
        per_qp=True,
    ),
)
