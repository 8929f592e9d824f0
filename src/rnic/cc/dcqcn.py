"""DCQCN's reaction point: the rate that a queue pair finds by its notifications (``hardware.md`` 4; the paper's 3).

Zhu and others, "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015. The formulas are its algorithm 1
and equations 1 to 4. A notification lowers the rate by half of alpha, which is how much of late was congestion; while
none comes, rounds of a timer and of a counter of bytes raise it: first halfway back to where it was, five times, then
towards a target that itself rises.

All integers: rates in bytes a window of 1,024 ns with :data:`RATE_BITS` fractional bits, alpha with
:data:`ALPHA_BITS`, of which the core's register has the upper ten. Timers are looked at when the queue pair sends:
nothing depends on them before that.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnic.cc.pacing import Pace
from rnic.spec.congestion_regs import WINDOW_NS

ALPHA_BITS = 20
ALPHA_ONE = 1 << ALPHA_BITS
RATE_BITS = 16
BURST_PACKETS = 4
"""What may leave at once, so that a rate is one at the first switch too."""
UNBOUND = 1 << 20


@dataclass(slots=True)
class DcqcnSettings:
    """The paper's values (its table 14) where it gives them. Rates are in bytes a window of 1,024 ns.

    Raises:
        ValueError: a value out of its range.
    """

    line_rate: int = 3_200
    """What the wire takes: 25 Gb/s. A fabric sets its link's."""
    least_rate: int = 2
    """No notification takes the rate below, about 16 Mb/s."""
    g_shift: int = 8
    """g is 2 to the power of minus this: 1/256."""
    alpha_ns: int = 55_000
    """Alpha falls once in this time without a notification."""
    timer_ns: int = 55_000
    """A round of the timer."""
    counter_bytes: int = 10_000_000
    """A round of the byte counter."""
    recovery_rounds: int = 5
    """F: rounds of fast recovery."""
    additive_rate: int = 5
    """R_AI, 40 Mb/s."""
    hyper_rate: int = 50
    """R_HAI; the paper leaves it to QCN, which has ten times R_AI."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"dcqcn {name}={value} cannot be: give 1 or more")
        if self.least_rate > self.line_rate:
            raise ValueError(f"dcqcn least_rate={self.least_rate} is above line_rate={self.line_rate}")


class ReactionPoint:
    """What one queue pair knows: ``rate`` and ``target`` with fractional bits, ``alpha``, and its rounds.

    Args:
        settings: what all queue pairs share.
        now_ns: when it begins, at line rate with alpha 1 (the first notification halves the rate).
    """

    __slots__ = (
        "_alpha_at",
        "_counted",
        "_counter_rounds",
        "_line",
        "_timer_at",
        "_timer_rounds",
        "alpha",
        "rate",
        "settings",
        "target",
    )

    def __init__(self, settings: DcqcnSettings, now_ns: int) -> None:
        self.settings = settings
        self._line = settings.line_rate << RATE_BITS
        self.rate = self.target = self._line
        self.alpha = ALPHA_ONE
        self._begin(now_ns)

    def _begin(self, now_ns: int) -> None:
        self._counted = self._counter_rounds = self._timer_rounds = 0
        self._alpha_at = now_ns + self.settings.alpha_ns
        self._timer_at = now_ns + self.settings.timer_ns

    @property
    def window_bytes(self) -> int:
        """The rate in whole bytes a window."""
        return self.rate >> RATE_BITS

    @property
    def counted(self) -> int:
        """Bytes that left in this round of the byte counter."""
        return self._counted

    @property
    def rounds(self) -> tuple[int, int]:
        """Rounds of the timer and of the byte counter since the last notification."""
        return self._timer_rounds, self._counter_rounds

    @property
    def recovered(self) -> bool:
        """Whether it sends as fast as the wire, but for less than a byte a window."""
        return self.rate >> RATE_BITS >= self.settings.line_rate - 1

    def notified(self, now_ns: int) -> None:
        """A CNP came (equation 1): the target is the rate, the rate falls by half of alpha, alpha rises."""
        self.advance(now_ns)
        settings = self.settings
        self.target = self.rate
        cut = self.rate - (self.rate * self.alpha >> ALPHA_BITS + 1)
        self.rate = max(settings.least_rate << RATE_BITS, cut)
        self.alpha += (ALPHA_ONE - self.alpha) >> settings.g_shift
        self._begin(now_ns)

    def sent(self, count: int) -> None:
        """So many bytes left."""
        self._counted += count
        while self._counted >= self.settings.counter_bytes:
            self._counted -= self.settings.counter_bytes
            self._counter_rounds += 1
            self._raise()

    def advance(self, now_ns: int) -> None:
        """What the timers have done until now: alpha falls (equation 2), rounds raise the rate."""
        settings = self.settings
        if self._alpha_at <= now_ns:
            rounds = (now_ns - self._alpha_at) // settings.alpha_ns + 1
            self._alpha_at += rounds * settings.alpha_ns
            for _ in range(rounds):
                fallen = self.alpha >> settings.g_shift
                if not fallen:
                    break
                self.alpha -= fallen
        if self._timer_at <= now_ns:
            rounds = (now_ns - self._timer_at) // settings.timer_ns + 1
            self._timer_at += rounds * settings.timer_ns
            for _ in range(rounds):
                if self.recovered:
                    break
                self._timer_rounds += 1
                self._raise()

    def _raise(self) -> None:
        """A round is over (equations 3 and 4, and hyper increase)."""
        settings = self.settings
        rounds = (self._timer_rounds, self._counter_rounds)
        if min(rounds) > settings.recovery_rounds:
            self.target += settings.hyper_rate << RATE_BITS
        elif max(rounds) >= settings.recovery_rounds:
            self.target += settings.additive_rate << RATE_BITS
        self.target = min(self.target, self._line)
        self.rate = (self.rate + self.target) >> 1


class DcqcnPace(Pace):
    """The bucket that keeps a queue pair to what its reaction point says; once that has recovered, none."""

    __slots__ = ("point",)

    def __init__(self, settings: DcqcnSettings, now_ns: int, packet_bytes: int) -> None:
        super().__init__(settings.line_rate, now_ns, packet_bytes)
        self.point = ReactionPoint(settings, now_ns)

    def notified(self, now_ns: int) -> None:
        """A CNP came."""
        self.point.notified(now_ns)
        self.rate = max(1, self.point.window_bytes)

    def allowance(self, now_ns: int, packet_bytes: int) -> int:
        """See :meth:`Pace.allowance`."""
        point = self.point
        point.advance(now_ns)
        self.rate = max(1, point.window_bytes)
        self._most = BURST_PACKETS * packet_bytes * WINDOW_NS
        allowed = super().allowance(now_ns, packet_bytes)
        return UNBOUND if point.recovered else allowed

    def spend(self, sent_bytes: int) -> None:
        """See :meth:`Pace.spend`."""
        if not self.point.recovered:
            super().spend(sent_bytes)
        self.point.sent(sent_bytes)
