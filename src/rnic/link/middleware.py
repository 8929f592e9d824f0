"""Base class of middleware: a link in front of another link that passes everything on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rnic.link.base import Link
from rnic.trace.counters import Counters
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import Flow


def innermost(link: Link) -> Link:
    """Return the link below all middleware."""
    while isinstance(link, Middleware):
        link = link.inner
    return link


class Middleware:
    """Passes everything on to ``inner``. Subclasses override methods and can be stacked in any order."""

    def __init__(self, inner: Link) -> None:
        self.inner = inner

    @property
    def address(self) -> bytes:
        """The inner link's."""
        return self.inner.address

    @property
    def port(self) -> int:
        """The inner link's."""
        return self.inner.port

    @property
    def source_ports(self) -> tuple[int, ...]:
        """The inner link's."""
        return self.inner.source_ports

    @property
    def mtu(self) -> int:
        """The inner link's."""
        return self.inner.mtu

    @property
    def window_bytes(self) -> int:
        """The inner link's."""
        return self.inner.window_bytes

    @property
    def window_packets(self) -> int:
        """The inner link's."""
        return self.inner.window_packets

    @property
    def counters(self) -> Counters:
        """The inner link's: all links of a stack share their counters."""
        return self.inner.counters

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """See :meth:`rnic.link.base.Link.send`."""
        self.inner.send(bursts)

    def receive(self, limit: int) -> list[RxBurst]:
        """See :meth:`rnic.link.base.Link.receive`."""
        return self.inner.receive(limit)

    @property
    def up(self) -> bool:
        """The inner link's."""
        return self.inner.up

    @property
    def frames(self) -> deque[bytes] | None:
        """The inner link's: faults are for RDMA packets."""
        return self.inner.frames

    @property
    def frame_sender(self) -> Callable[[bytes, bytes], bool] | None:
        """The inner link's."""
        return self.inner.frame_sender

    def fileno(self) -> int | None:
        """See :meth:`rnic.link.base.Link.fileno`."""
        return self.inner.fileno()

    def filenos(self) -> list[int]:
        """See :meth:`rnic.link.base.Link.filenos`."""
        return self.inner.filenos()

    def next_deadline_ns(self) -> int | None:
        """See :meth:`rnic.link.base.Link.next_deadline_ns`."""
        return self.inner.next_deadline_ns()

    def local_flow(self, remote_addr: bytes, remote_port: int, sport: int = 0) -> Flow:
        """See :meth:`rnic.link.base.Link.local_flow`."""
        return self.inner.local_flow(remote_addr, remote_port, sport)

    def max_segments(self, flow: Flow) -> int:
        """See :meth:`rnic.link.base.Link.max_segments`."""
        return self.inner.max_segments(flow)

    def allow_gso(self, flow: Flow) -> None:
        """See :meth:`rnic.link.base.Link.allow_gso`."""
        self.inner.allow_gso(flow)

    def join(self, group: bytes) -> None:
        """See :meth:`rnic.link.base.Link.join`."""
        self.inner.join(group)

    def leave(self, group: bytes) -> None:
        """See :meth:`rnic.link.base.Link.leave`."""
        self.inner.leave(group)

    def close(self) -> None:
        """See :meth:`rnic.link.base.Link.close`."""
        self.inner.close()
