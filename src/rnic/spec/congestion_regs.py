"""The congestion registers of the configuration interface: 64 bits wide, at byte offsets (004 7.4, ``hardware.md`` 4).

Offsets and bits are those of the core that 004 describes. It gives no unit for its two times; here both count
windows of :data:`WINDOW_NS`, the 1,024 cycles of a 1 GHz clock in which that core counts bytes (a choice).
The registers cover the outstanding limit, rates that software sets, and DCQCN: its state and some of its parameters.
The other DCQCN parameters have no register in that core.

The registers of queue pair ``QPN``, up to 8192, are ``QP_STRIDE * (QPN - 1)`` bytes after those of queue pair 1.
"""

from __future__ import annotations

from typing import Final

from rnic.spec.layout import Field, bits
from rnic.spec.registers import WideRegister

WINDOW_NS: Final = 1_024
"""Length of one window, the unit of both times, in nanoseconds."""

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
"""Queue pairs with registers, 1 to 8192 (004 7.2); the next kind of register follows."""

TIME_MASK: Final = 0xFFFF
RATE_MASK: Final = 0xFFFF_FFFF
MAX_RATE_SHIFT: Final = 16
MAX_RATE_MASK: Final = 0xFFFF
BYTE_CNT_SHIFT: Final = 32
BYTE_CNT_MASK: Final = (1 << 19) - 1
BYTE_CNT_UNIT: Final = 64
"""Unit of the byte counters in bytes (a choice: 19 bits then hold the 10 MB of the DCQCN paper)."""
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
        "time for which a CNP halves the outstanding limit",
        (bits("CNP_TIMER_THRD", 0, 15, 0, "windows of 1,024 ns; 0 is taken as 1", "RW"),),
    ),
    WideRegister(
        "DCQCN_CTRL",
        DCQCN_CTRL,
        "DCQCN rate increase while HW_EN is 1",
        (
            bits("NOCNP_TIMER", 0, 15, 0, "timer period, in windows of 1,024 ns; 0 is taken as 1", "RW"),
            bits("MAX_RATE", 0, 31, 16, "line rate, in bytes per window; 0 is taken as 1", "RW"),
            Field("BYTE_CNT", 0, 50, 32, "period of the byte counter, in units of 64 bytes; 0 is taken as 1", 8, "RW"),
            Field("TIMER_BUSY", 0, 51, 51, "1: a queue pair is below MAX_RATE", 8, "RO"),
        ),
    ),
    WideRegister(
        "ALPHA_TIMER",
        ALPHA_TIMER,
        "time without a CNP after which alpha decreases",
        (bits("ALPHA_TIMER", 0, 15, 0, "windows of 1,024 ns; 0 is taken as 1", "RW"),),
    ),
    WideRegister(
        "CONGESTION_CTRL",
        CONGESTION_CTRL,
        "congestion control features",
        (
            bits("CNP_MERGE", 0, 15, 0, "windows of 1,024 ns in which a flow gets one CNP; 0: one per mark", "RW"),
            bits("HW_EN", 0, 24, 24, "1: DCQCN sets the rates of queue pairs; OST_LIMIT takes precedence", "RW"),
            bits("OST_LIMIT", 0, 26, 26, "1: a CNP halves the outstanding limit of its queue pair", "RW"),
            Field("LIMITER", 0, 54, 54, "1: no queue pair sends faster than its QP_RATE", 8, "RW"),
        ),
    ),
    WideRegister(
        "QP_CTRL",
        QP_CTRL,
        "arbitration and timer of a queue pair",
        (
            bits("SQ_ARB_MASK", 0, 1, 1, "1: exclude its send queue from arbitration", "RW"),
            bits("TIMER_RUNS", 0, 5, 5, "1: its outstanding limit is halved until its timer expires", "RO"),
        ),
        per_qp=True,
    ),
    WideRegister(
        "QP_RATE",
        QP_RATE,
        "rate limit of the queue pair while LIMITER is 1",
        (bits("RATE", 0, 31, 0, "bytes of UDP payload per window of 1,024 ns; 0: unlimited", "RW"),),
        per_qp=True,
    ),
    WideRegister(
        "QP_CNP_MERGE",
        QP_CNP_MERGE,
        "time until the next mark of this flow causes a CNP",
        (bits("CNP_MERGE", 0, 15, 0, "windows of 1,024 ns, rounded up", "RO"),),
        per_qp=True,
    ),
    WideRegister(
        "QP_ALPHA",
        QP_ALPHA,
        "DCQCN's alpha",
        (bits("ALPHA", 0, 9, 0, "in 1,024ths; 1,023 also stands for 1", "RO"),),
        per_qp=True,
    ),
    WideRegister(
        "QP_BYTE_CNT",
        QP_BYTE_CNT,
        "DCQCN's byte counter",
        (bits("BYTE_CNT", 0, 18, 0, "bytes sent in this period, in units of 64", "RO"),),
        per_qp=True,
    ),
    WideRegister(
        "QP_ROUNDS",
        QP_ROUNDS,
        "DCQCN periods since the last CNP, at most 255",
        (
            bits("TIMER_ROUNDS", 0, 7, 0, "of the timer", "RO"),
            bits("BYTE_ROUNDS", 0, 15, 8, "of the byte counter", "RO"),
        ),
        per_qp=True,
    ),
    WideRegister(
        "QP_CC_RATE",
        QP_CC_RATE,
        "current DCQCN rate",
        (bits("CC_RATE", 0, 31, 0, "bytes of UDP payload per window of 1,024 ns; 0: unlimited", "RO"),),
        per_qp=True,
    ),
)
