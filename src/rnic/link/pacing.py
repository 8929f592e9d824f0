"""A wire with finite rate and latency in front of any link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rnic.link.base import Link
from rnic.link.middleware import Middleware
from rnic.link.packets import marked_to_send, single_packets
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import CE

QUEUE_PACKETS = 65_536


class PacedLink(Middleware):
    """Sends one packet at a time and delivers each after the wire's latency.

    Args:
        inner: the underlying link.
        clock: the time in nanoseconds; the runtime's own or a virtual one.
        packet_ns: transmission time of one packet, 0 or more.
        latency_ns: propagation time of a packet after that, 0 or more.
        queue_packets: most packets that may wait; further ones are dropped and counted as ``drop_tx_queue_full``.
        mark_packets: queue length in packets from which a packet is marked with ECN CE, as by a switch, and counted as
            ``marked_tx``; ``None`` for no marking. Only packets with ECT are marked (RFC 3168).

    Raises:
        ValueError: a time or queue size out of range.
    """

    def __init__(
        self,
        inner: Link,
        *,
        clock: Callable[[], int],
        packet_ns: int,
        latency_ns: int = 0,
        queue_packets: int = QUEUE_PACKETS,
        mark_packets: int | None = None,
    ) -> None:
        super().__init__(inner)
        for name, value, least in (
            ("packet_ns", packet_ns, 0),
            ("latency_ns", latency_ns, 0),
            ("queue_packets", queue_packets, 1),
            ("mark_packets", 0 if mark_packets is None else mark_packets, 0),
        ):
            if value < least:
                raise ValueError(f"wire {name}={value!r} cannot be: give {least} or more")
        self._clock = clock
        self._packet_ns = packet_ns
        self._latency_ns = latency_ns
        self._queue_packets = queue_packets
        self._mark_packets = queue_packets if mark_packets is None else mark_packets
        self._free_ns = 0
        self._waiting: deque[tuple[int, TxBurst]] = deque()

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Queue the packets after those that wait, and send those that are due."""
        now_ns = self._clock()
        self._release(now_ns)
        free_ns = max(self._free_ns, now_ns)
        for burst in bursts:
            for packet in single_packets(burst):
                if len(self._waiting) >= self._queue_packets:
                    self.counters.bump("drop_tx_queue_full")
                    continue
                if len(self._waiting) >= self._mark_packets and packet.flow.tclass & CE:
                    self.counters.bump("marked_tx")
                    packet = marked_to_send(packet)
                free_ns += self._packet_ns
                self._waiting.append((free_ns + self._latency_ns, packet))
        self._free_ns = free_ns
        self._release(now_ns)

    def receive(self, limit: int) -> list[RxBurst]:
        """See :meth:`rnic.link.base.Link.receive`; packets to send that are due leave too."""
        self._release(self._clock())
        return self.inner.receive(limit)

    def next_deadline_ns(self) -> int | None:
        """Return the time at which the next packet arrives, or the inner link's deadline."""
        deadline = self.inner.next_deadline_ns()
        if not self._waiting:
            return deadline
        due = self._waiting[0][0]
        return due if deadline is None else min(due, deadline)

    def _release(self, now_ns: int) -> None:
        waiting = self._waiting
        due = []
        while waiting and waiting[0][0] <= now_ns:
            due.append(waiting.popleft()[1])
        if due:
            self.inner.send(due)
