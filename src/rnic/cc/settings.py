"""What the congestion registers hold (:mod:`rnic.spec.congestion_regs`)."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

from rnic.cc.dcqcn import DcqcnSettings
from rnic.spec.congestion_regs import TIME_MASK, WINDOW_NS
from rnic.spec.errors import VerbsError

MODES = ("none", "limit", "dcqcn")
"""Names of what a notification does: nothing but being counted, halving the outstanding limit, or lowering the rate
that the queue pair finds itself (:mod:`rnic.cc.dcqcn`)."""


@dataclass(slots=True)
class CongestionSettings:
    """Both times in windows of 1,024 ns.

    Raises:
        VerbsError: EINVAL for a mode that does not exist, or a time beyond its register.
    """

    mode: str = "none"
    timer_windows: int = 977
    """CNP_TIMER_THRD: how long a CNP holds the limit down; about 1 ms, some round trips between software NICs."""
    merge_windows: int = 49
    """CNP_MERGE: one CNP a flow in this time; about 50 us, as common NICs have it."""
    limiter: bool = False
    """Whether queue pairs keep to the rates that software set."""
    dcqcn: DcqcnSettings = field(default_factory=DcqcnSettings)
    """How the mode ``"dcqcn"`` finds rates; no register has them."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise VerbsError(
                errno.EINVAL, f"congestion={self.mode!r} is no congestion control; use {' or '.join(MODES)}"
            )
        for name in ("timer_windows", "merge_windows"):
            value = getattr(self, name)
            if not 0 <= value <= TIME_MASK:
                raise VerbsError(errno.EINVAL, f"{name}={value} does not fit its register; use 0 to {TIME_MASK}")

    @property
    def timer_ns(self) -> int:
        """CNP_TIMER_THRD in nanoseconds, at least one window."""
        return max(1, self.timer_windows) * WINDOW_NS

    @property
    def merge_ns(self) -> int:
        """CNP_MERGE in nanoseconds."""
        return self.merge_windows * WINDOW_NS
