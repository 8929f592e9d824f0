"""DCQCN reaction point: sets a queue pair's rate from CNPs (``hardware.md`` 4; section 3 of the paper).

Zhu and others, "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015. The formulas are its algorithm 1
and equations 1 to 4. A CNP lowers the rate by half of alpha, an estimate of recent congestion. Without CNPs, periods of
a timer and of a byte counter raise the rate: five times halfway back to the previous rate, then toward a rising target.

All integers: rates in bytes per window of 1,024 ns with :data:`RATE_BITS` fractional bits, alpha with
:data:`ALPHA_BITS`, of which the core's register has the upper ten. The state is in the queue pair's record, which the
engine shares. Timers are only checked when the queue pair sends, since nothing depends on them before.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from rnic.cc.control import CONTROL_DCQCN, Control, Flow
from rnic.spec.congestion_regs import WINDOW_NS
from rnic.spec.limits import NEVER
from rnic.state.queue_pair import QP
from rnic.state.record import Word, view

ALPHA_BITS = 20
ALPHA_ONE = 1 << ALPHA_BITS
RATE_BITS = 16
MOST_ROUNDS = 1 << 16
"""Most timer periods applied at once, after a long time without a packet."""


@dataclass(slots=True)
class DcqcnSettings:
    """Settings, with the defaults of the paper (table 14) where it has them. Rates are in bytes per window of 1,024 ns.

    Raises:
        ValueError: a value is out of range.
    """

    line_rate: int = 3_200
    """Line rate: 25 Gb/s. A simulated fabric sets its link's rate."""
    least_rate: int = 2
    """Lowest rate after any number of CNPs, about 16 Mb/s."""
    g_shift: int = 8
    """g is 2 to the power of minus this: 1/256."""
    alpha_ns: int = 55_000
    """Interval without a CNP after which alpha decreases."""
    timer_ns: int = 55_000
    """Timer period."""
    counter_bytes: int = 10_000_000
    """Period of the byte counter in bytes."""
    recovery_rounds: int = 5
    """F: number of fast recovery steps."""
    additive_rate: int = 5
    """R_AI, the additive increase: 40 Mb/s."""
    hyper_rate: int = 50
    """R_HAI, the hyper increase; the paper leaves it to QCN, which uses ten times R_AI."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"dcqcn {name}={value} is out of range: use 1 or more")
        if self.least_rate > self.line_rate:
            raise ValueError(f"dcqcn least_rate={self.least_rate} is above line_rate={self.line_rate}")


@view(QP, "Dcqcn")
class Dcqcn(Control):
    """Reaction point of one queue pair: rate and target with fractional bits, alpha, and period counts.

    Args:
        flow, now_ns: see :class:`~rnic.cc.control.Control`. It starts at line rate with alpha 1, so the first
            CNP halves the rate.
        settings: settings of all queue pairs.
        words: the words of the queue pair's record.
    """

    number = CONTROL_DCQCN
    waits_for_cnp = True
    lazy = True

    dcqcn_rate: Word
    dcqcn_target: Word
    dcqcn_alpha: Word
    dcqcn_counted: Word
    dcqcn_counter_rounds: Word
    dcqcn_timer_rounds: Word
    dcqcn_alpha_at: Word
    dcqcn_timer_at: Word

    def __init__(self, flow: Flow, now_ns: int, *, settings: DcqcnSettings, words: memoryview) -> None:
        super().__init__(flow, now_ns)
        self.settings = settings
        self.words = words
        self._line = settings.line_rate << RATE_BITS
        self.dcqcn_rate = self.dcqcn_target = self._line
        self.dcqcn_alpha = ALPHA_ONE
        self._begin(now_ns)

    def _begin(self, now_ns: int) -> None:
        self.dcqcn_counted = self.dcqcn_counter_rounds = self.dcqcn_timer_rounds = 0
        self.dcqcn_alpha_at = now_ns + self.settings.alpha_ns
        self.dcqcn_timer_at = now_ns + self.settings.timer_ns

    @property
    def window_bytes(self) -> int:
        """The rate in whole bytes per window."""
        return self.dcqcn_rate >> RATE_BITS

    @property
    def recovered(self) -> bool:
        """True if the rate is the line rate, within a byte per window."""
        return self.window_bytes >= self.settings.line_rate - 1

    @property
    def rate(self) -> float:  # type: ignore[override]  # derived from the words
        """The rate in bits per second, ``inf`` once it has recovered."""
        return inf if self.recovered else max(1, self.window_bytes) * (8e9 / WINDOW_NS)

    @property
    def timer_ns(self) -> int:  # type: ignore[override]  # likewise
        """End of the current period of a timer, or ``NEVER``."""
        return NEVER if self.recovered else min(self.dcqcn_alpha_at, self.dcqcn_timer_at)

    def on_cnp(self, flow: Flow, now_ns: int) -> None:
        """Handle a CNP (equation 1): set the target to the rate, cut the rate by half of alpha, raise alpha."""
        self.on_timer(flow, now_ns)
        settings = self.settings
        rate, alpha = min(self.dcqcn_rate, self._line), min(self.dcqcn_alpha, ALPHA_ONE)
        self.dcqcn_target = rate
        self.dcqcn_rate = max(settings.least_rate << RATE_BITS, rate - (rate * alpha >> ALPHA_BITS + 1))
        self.dcqcn_alpha = alpha + ((ALPHA_ONE - alpha) >> settings.g_shift)
        self._begin(now_ns)

    def on_sent(self, flow: Flow, size: int) -> None:
        """Count sent bytes."""
        rounds, self.dcqcn_counted = divmod(self.dcqcn_counted + size, self.settings.counter_bytes)
        for _ in range(min(rounds, MOST_ROUNDS)):
            self.dcqcn_counter_rounds += 1
            self._raise()

    def on_timer(self, flow: Flow, now_ns: int) -> None:
        """Apply the timers up to now: decrease alpha (equation 2), and raise the rate once per period."""
        settings = self.settings
        if self.dcqcn_alpha_at <= now_ns:
            rounds = (now_ns - self.dcqcn_alpha_at) // settings.alpha_ns + 1
            self.dcqcn_alpha_at += rounds * settings.alpha_ns
            alpha = min(self.dcqcn_alpha, ALPHA_ONE)
            for _ in range(min(rounds, MOST_ROUNDS)):
                fallen = alpha >> settings.g_shift
                if not fallen:
                    break
                alpha -= fallen
            self.dcqcn_alpha = alpha
        if self.dcqcn_timer_at <= now_ns:
            rounds = (now_ns - self.dcqcn_timer_at) // settings.timer_ns + 1
            self.dcqcn_timer_at += rounds * settings.timer_ns
            for _ in range(min(rounds, MOST_ROUNDS)):
                if self.recovered:
                    break
                self.dcqcn_timer_rounds += 1
                self._raise()

    def _raise(self) -> None:
        """Raise the rate at the end of a period (equations 3 and 4, and hyper increase)."""
        settings = self.settings
        rounds = (self.dcqcn_timer_rounds, self.dcqcn_counter_rounds)
        target = min(self.dcqcn_target, self._line)
        if min(rounds) > settings.recovery_rounds:
            target += settings.hyper_rate << RATE_BITS
        elif max(rounds) >= settings.recovery_rounds:
            target += settings.additive_rate << RATE_BITS
        target = self.dcqcn_target = min(target, self._line)
        self.dcqcn_rate = (min(self.dcqcn_rate, self._line) + target) >> 1
