"""Swift: a window controlled by fabric delay, with a target that scales with hops and number of flows.

Kumar and others, "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020:
algorithm 1 and section 3.5, for the fabric delay. The paper's second window, for the endpoint delay, is left out: a
simulated NIC has no such delay.
"""

from __future__ import annotations

from math import sqrt

from rnic.cc.control import Ack, Control, Flow


class Swift(Control):
    """Window that grows below a target delay and shrinks in proportion to the excess above it.

    Args:
        flow, now_ns: see :class:`~rnic.cc.control.Control`.
        base_us: target delay for one hop and a large window, in microseconds.
        hop_us: increase of the target per further hop.
        range_us: largest increase of the target for small windows.
        most_cwnd: window in packets from which the target is not increased.
        least_cwnd: window in packets up to which the increase is the largest.
        ai: additive increase in packets per round trip.
        beta: multiplicative decrease factor of the excess delay.
        most_cut: largest relative decrease.
    """

    telemetry = True

    def __init__(
        self,
        flow: Flow,
        now_ns: int,
        *,
        base_us: float = 25,
        hop_us: float = 1,
        range_us: float = 50,
        most_cwnd: float = 100,
        least_cwnd: float = 0.1,
        ai: float = 1,
        beta: float = 0.8,
        most_cut: float = 0.5,
    ) -> None:
        super().__init__(flow, now_ns)
        self.base_ns, self.hop_ns, self.range_ns = base_us * 1e3, hop_us * 1e3, range_us * 1e3
        self.ai, self.beta, self.most_cut = ai, beta, most_cut
        self.alpha = self.range_ns / (1 / sqrt(least_cwnd) - 1 / sqrt(most_cwnd))
        self.offset = self.alpha / sqrt(most_cwnd)
        self.allowance = float(min(16, flow.most))
        self.cut_ns = now_ns
        self.delay_ns = 0

    def target_ns(self, hops: int) -> float:
        """Return the target delay for this number of hops and the current window."""
        more = self.alpha / sqrt(self.allowance) - self.offset
        return self.base_ns + max(0, hops - 1) * self.hop_ns + max(0.0, min(more, self.range_ns))

    def on_ack(self, flow: Flow, ack: Ack) -> None:
        """Compare the delay with the target."""
        if not ack.rtt_ns:
            return
        cwnd, target = self.allowance, self.target_ns(ack.hops)
        self.delay_ns = delay = ack.rtt_ns - ack.remote_ns
        if delay < target:
            cwnd += self.ai * ack.packets / max(1.0, cwnd)
        elif ack.now_ns - self.cut_ns >= ack.rtt_ns:
            cwnd *= max(1 - self.beta * (delay - target) / delay, 1 - self.most_cut)
            self.cut_ns = ack.now_ns
        self.allowance = min(max(cwnd, 0.01), float(flow.most))

    def on_loss(self, flow: Flow, now_ns: int) -> None:
        """Cut the window, at most once per round trip."""
        if now_ns - self.cut_ns >= self.delay_ns:
            self.allowance = max(self.allowance * (1 - self.most_cut), 0.01)
            self.cut_ns = now_ns
