"""HPCC: a window computed from the in-band telemetry (INT) of switches.

Li and others, "HPCC: High Precision Congestion Control", SIGCOMM 2019, algorithm 1.
"""

from __future__ import annotations

from rnic.cc.control import Ack, Control, Flow, Hop
from rnic.spec.psn import psn_diff


class Hpcc(Control):
    """Window that keeps the busiest link of the path at a target utilization.

    Args:
        flow, now_ns: see :class:`~rnic.cc.control.Control`.
        base_rtt_us: round-trip time of the idle network in microseconds; 0 to use the shortest measured one.
        eta: target utilization.
        stages: consecutive round trips with additive increase only.
        flows: number of flows on a link for which the additive step is dimensioned.
    """

    telemetry = True

    def __init__(
        self, flow: Flow, now_ns: int, *, base_rtt_us: float = 0, eta: float = 0.95, stages: int = 5, flows: int = 100
    ) -> None:
        super().__init__(flow, now_ns)
        self.fixed_ns, self.base_ns = base_rtt_us * 1e3, base_rtt_us * 1e3
        self.eta, self.stages, self.flows = eta, stages, flows
        self.used = 0.0
        self.stage = 0
        self.hops: tuple[Hop, ...] = ()
        self.updated_psn: int | None = None
        self.reference = 0.0
        """W_c: the window at the last update, in bytes."""
        if self.base_ns:
            self._begin(flow)

    def _begin(self, flow: Flow) -> None:
        self.reference = flow.line_rate * self.base_ns / 8e9
        self._answer(flow, self.reference)

    def _answer(self, flow: Flow, window: float) -> None:
        """Set a window in bytes and the corresponding rate."""
        self.allowance = max(window / flow.packet_bytes, 0.01)
        self.rate = min(window * 8e9 / self.base_ns, flow.line_rate)

    def on_ack(self, flow: Flow, ack: Ack) -> None:
        """Measure the bytes in flight, and set the window."""
        if not ack.telemetry:
            return
        if not self.fixed_ns and (not self.base_ns or ack.rtt_ns - ack.remote_ns < self.base_ns):
            self.base_ns = ack.rtt_ns - ack.remote_ns
        if not self.reference:
            self._begin(flow)
        if len(self.hops) == len(ack.telemetry):
            self._measure(ack.telemetry)
            update = self.updated_psn is None or psn_diff(ack.psn, self.updated_psn) > 0
            self._answer(flow, self._window(flow, update))
            if update:
                self.updated_psn = ack.next_psn
        self.hops = ack.telemetry

    def _measure(self, hops: tuple[Hop, ...]) -> None:
        """Update the utilization of the busiest link, weighted by the time between two samples."""
        most, over = 0.0, 0
        for now, before in zip(hops, self.hops, strict=True):
            took = now.time_ns - before.time_ns
            if took <= 0:
                continue
            rate = (now.sent_bytes - before.sent_bytes) * 8e9 / took
            queued = min(now.queued_bytes, before.queued_bytes) * 8e9
            used = queued / (now.bits_s * self.base_ns) + rate / now.bits_s
            if used > most:
                most, over = used, took
        share = min(over / self.base_ns, 1.0)
        self.used += share * (most - self.used)

    def _window(self, flow: Flow, update: bool) -> float:
        step = flow.line_rate * self.base_ns / 8e9 * (1 - self.eta) / self.flows
        cut = self.used >= self.eta or self.stage >= self.stages
        window = self.reference * self.eta / self.used + step if cut and self.used else self.reference + step
        window = min(window, flow.line_rate * self.base_ns / 8e9)
        if update:
            self.stage = 0 if cut else self.stage + 1
            self.reference = window
        return window
