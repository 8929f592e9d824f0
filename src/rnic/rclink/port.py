"""An endpoint on a link, driven by its caller in bounded rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rnic.rclink.config import RcLinkConfig
from rnic.rclink.endpoint import RcLinkEndpoint
from rnic.trace.counters import Counters
from rnic.trace.tracer import Tracer
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow

RECEIVE_LIMIT = 32


class Link(Protocol):
    """Interface of the link of a port; every link of :mod:`rnic.link` has it."""

    @property
    def counters(self) -> Counters:
        """Drop counters."""

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Send bursts, or count drops."""

    def receive(self, limit: int) -> list[RxBurst]:
        """Return received bursts."""

    def next_deadline_ns(self) -> int | None:
        """Return when to call ``receive`` if nothing arrives."""

    def local_flow(self, remote_addr: bytes, remote_port: int, sport: int = 0) -> Flow:
        """Return the flow to a peer."""


class RcLinkPort:
    """An endpoint and its link; simulation loops use the attributes ``nic`` and ``link``.

    Args:
        link: carries the packets; the caller closes it.
        config: configuration of the endpoint.
        clock: returns the time in nanoseconds.
        tracer: tracer of the endpoint.
    """

    def __init__(
        self, link: Link, config: RcLinkConfig, clock: Callable[[], int], tracer: Tracer | None = None
    ) -> None:
        self.link = link
        self.clock = clock
        self.nic = RcLinkEndpoint(config, link.local_flow, link.counters, tracer)

    @property
    def endpoint(self) -> RcLinkEndpoint:
        """The endpoint; same as ``nic``."""
        return self.nic

    def progress(self) -> bool:
        """Run one round: process received packets and send those due. Return whether there were any."""
        now_ns = self.clock()
        endpoint = self.nic
        bursts = self.link.receive(RECEIVE_LIMIT)
        for burst in bursts:
            endpoint.receive(burst, now_ns)
        deadline = endpoint.next_deadline_ns()
        due = deadline is not None and deadline <= now_ns
        if due:
            endpoint.handle_timers(now_ns)
        if not due and not endpoint.has_work(now_ns):
            return bool(bursts)
        out = endpoint.produce(now_ns)
        if out:
            self.link.send(out)
        return bool(bursts) or bool(out) or due

    def next_deadline_ns(self) -> int | None:
        """Return when to call :meth:`progress` if nothing arrives; the present time if it has work."""
        now_ns = self.clock()
        if self.nic.has_work(now_ns):
            return now_ns
        times = [time for time in (self.nic.next_deadline_ns(), self.link.next_deadline_ns()) if time is not None]
        return min(times, default=None)
