"""Swift: a window by the delay of the fabric, with a target that rises with hops and with the number of flows.

Kumar and others, "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020:
algorithm 1 and section 3.5, for the delay of the fabric. The paper's second window, by the delay of the hosts, is not
here: a simulated NIC has none.
"""

from __future__ import annotations

from math import sqrt

from rnic.cc.control import Ack, Control, Flow


class Swift(Control):
    """A window that rises below a target delay, and falls in proportion to what the delay exceeds it by.

    Args:
        flow, now_ns: as for all.
        base_us: target delay of one hop and many packets, in microseconds.
        hop_us: more of it for each further hop.
        range_us: the most that small windows add to it.
        most_cwnd: window in packets from which on they add nothing.
        least_cwnd: window from which on they add all.
        ai: packets by which the window rises in a round trip.
        beta: share of the excess by which it falls.
        most_cut: the largest fall, as a share.
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
        """Return the target delay for a path with this number of hops, at the window now."""
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
        """Cut the window, once a round trip."""
        if now_ns - self.cut_ns >= self.delay_ns:
            self.allowance = max(self.allowance * (1 - self.most_cut), 0.01)
            self.cut_ns = now_ns
