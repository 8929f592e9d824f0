"""The congestion registers of the configuration interface: 64 bits wide, at byte offsets (004 7.4, ``hardware.md`` 4).

Offsets and bits are those of the core that 004 describes. It gives no unit for its two times; here both count
windows of :data:`WINDOW_NS`, the 1,024 cycles of a 1 GHz clock in which that core counts bytes (a choice).
Besides the outstanding limit, rates that software sets and the device keeps, and rates that the device finds itself
(DCQCN). The registers of the latter's parameters and rates are not here, and their offsets read 0.

A register of a queue pair up to 8192 lies ``QP_STRIDE * (QPN - 1)`` behind that of queue pair 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rnic.spec.layout import Field, bits

WINDOW_NS: Final = 1_024
"""Nanoseconds of one window, the unit of both times."""

CNP_TIMER_THRD: Final = 0x2000A0
CONGESTION_CTRL: Final = 0x200220
QP_CTRL: Final = 0x400000
QP_CNP_MERGE: Final = 0x600000
QP_RATE: Final = 0x600008
QP_STRIDE: Final = 0x100
QP_REGISTERS: Final = 0x2000
"""Queue pairs that have registers, 1 to 8192 (004 7.2); those of the next kind follow behind them."""

TIME_MASK: Final = 0xFFFF
RATE_MASK: Final = 0xFFFF_FFFF
HW_EN: Final = 1 << 24
OST_LIMIT: Final = 1 << 26
LIMITER: Final = 1 << 54
SQ_ARB_MASK: Final = 1 << 1
TIMER_RUNS: Final = 1 << 5


@dataclass(frozen=True, slots=True)
class WideRegister:
    """One 64-bit register at byte ``offset``; ``per_qp`` says that every queue pair has one."""

    name: str
    offset: int
    doc: str
    fields: tuple[Field, ...]
    per_qp: bool = False


CONGESTION_REGISTERS: tuple[WideRegister, ...] = (
    WideRegister(
        "CNP_TIMER_THRD",
        CNP_TIMER_THRD,
        "how long a CNP holds the outstanding limit down",
        (bits("CNP_TIMER_THRD", 0, 15, 0, "windows of 1,024 ns; 0 is taken as 1", "RW"),),
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
)
