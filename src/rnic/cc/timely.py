"""TIMELY: a rate controlled by the gradient of the round-trip time.

Mittal and others, "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015, algorithm 1.
"""

from __future__ import annotations

from rnic.cc.control import Ack, Control, Flow


class Timely(Control):
    """Rate that follows the gradient of the round-trip time between two thresholds.

    Args:
        flow, now_ns: see :class:`~rnic.cc.control.Control`.
        low_us: round-trip time in microseconds below which the rate always increases.
        high_us: round-trip time above which the rate always decreases.
        min_rtt_us: minimum round-trip time, which normalizes the gradient.
        delta_mbps: additive step in Mb/s.
        beta: multiplicative decrease.
        ewma: weight of a new round-trip difference.
        segment: acknowledged bytes between two updates.
        hai: consecutive updates without a rising round-trip time after which the rate increases five times as
            fast.
    """

    telemetry = True

    def __init__(
        self,
        flow: Flow,
        now_ns: int,
        *,
        low_us: float = 50,
        high_us: float = 500,
        min_rtt_us: float = 20,
        delta_mbps: float = 10,
        beta: float = 0.8,
        ewma: float = 0.875,
        segment: int = 16_384,
        hai: int = 5,
    ) -> None:
        super().__init__(flow, now_ns)
        self.low_ns, self.high_ns, self.min_ns = low_us * 1e3, high_us * 1e3, min_rtt_us * 1e3
        self.delta, self.beta, self.ewma, self.segment, self.hai = delta_mbps * 1e6, beta, ewma, segment, hai
        self.rate = flow.line_rate / 2
        self.rtt_ns = self.acked = self.calm = 0
        self.difference = 0.0

    def on_ack(self, flow: Flow, ack: Ack) -> None:
        """Update the rate after each segment."""
        self.acked += ack.bytes
        if not ack.rtt_ns or self.acked < self.segment:
            return
        self.acked = 0
        rtt = ack.rtt_ns - ack.remote_ns
        before, self.rtt_ns = self.rtt_ns or rtt, rtt
        self.difference += self.ewma * (rtt - before - self.difference)
        gradient = self.difference / self.min_ns
        rate = self.rate
        if rtt < self.low_ns:
            rate += self.delta
        elif rtt > self.high_ns:
            rate *= 1 - self.beta * (1 - self.high_ns / rtt)
        elif gradient <= 0:
            self.calm += 1
            rate += self.delta * (5 if self.calm >= self.hai else 1)
        else:
            rate *= max(0.5, 1 - self.beta * gradient)
        if gradient > 0 or not self.low_ns <= rtt <= self.high_ns:
            self.calm = 0
        self.rate = min(max(rate, self.delta), flow.line_rate)
