"""Settings in the congestion registers (:mod:`rnic.spec.congestion_regs`)."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Any

from rnic.cc.control import Control, Flow
from rnic.cc.dcqcn import Dcqcn, DcqcnSettings
from rnic.cc.find import find
from rnic.cc.limit import Limit
from rnic.spec.congestion_regs import TIME_MASK, WINDOW_NS
from rnic.spec.errors import VerbsError

_WINDOW_BITS_S = 8e9 / WINDOW_NS


@dataclass(slots=True)
class CongestionSettings:
    """Settings of congestion control; both times are in windows of 1,024 ns.

    Raises:
        VerbsError: EINVAL for a mode that does not exist, or a time that does not fit its register.
    """

    mode: str = "none"
    """The congestion control (:func:`rnic.cc.find.find`): ``none`` only counts CNPs, ``limit`` halves the outstanding
    limit, ``dcqcn`` sets a rate."""
    timer_windows: int = 977
    """CNP_TIMER_THRD: time for which a CNP lowers the limit; about 1 ms, several round trips between software NICs."""
    merge_windows: int = 49
    """CNP_MERGE: shortest time between two CNPs of a flow; about 50 us, as in common NICs."""
    limiter: bool = False
    """True if the rate registers of queue pairs are enforced."""
    dcqcn: DcqcnSettings = field(default_factory=DcqcnSettings)
    """Settings of the mode ``"dcqcn"`` without a register."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of any other congestion control."""

    def __post_init__(self) -> None:
        try:
            find(self.mode)
        except ValueError as error:
            raise VerbsError(errno.EINVAL, f"congestion={error}") from None
        for name in ("timer_windows", "merge_windows"):
            value = getattr(self, name)
            if not 0 <= value <= TIME_MASK:
                raise VerbsError(errno.EINVAL, f"{name}={value} does not fit its register; use 0 to {TIME_MASK}")

    @property
    def kind(self) -> type[Control]:
        """Class of the congestion control."""
        return find(self.mode)

    @property
    def line_rate(self) -> float:
        """Rate of the NIC's link in bits per second."""
        return self.dcqcn.line_rate * _WINDOW_BITS_S

    def make(self, flow: Flow, now_ns: int, words: memoryview) -> Control:
        """Create the congestion control of one queue pair.

        Args:
            flow: the queue pair.
            now_ns: start time.
            words: the words of its record, for a control that the engine knows.

        Raises:
            VerbsError: EINVAL for ``parameters`` that the control does not accept.
        """
        kind = self.kind
        if issubclass(kind, Limit):
            return kind(flow, now_ns, hold_ns=self.timer_ns, words=words)
        if issubclass(kind, Dcqcn):
            return kind(flow, now_ns, settings=self.dcqcn, words=words)
        try:
            return kind(flow, now_ns, **self.parameters)
        except TypeError as error:
            raise VerbsError(errno.EINVAL, f"congestion={self.mode!r}: {error}; give its own settings") from None

    @property
    def timer_ns(self) -> int:
        """CNP_TIMER_THRD in nanoseconds, at least one window."""
        return max(1, self.timer_windows) * WINDOW_NS

    @property
    def merge_ns(self) -> int:
        """CNP_MERGE in nanoseconds."""
        return self.merge_windows * WINDOW_NS
