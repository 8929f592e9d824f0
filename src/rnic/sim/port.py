"""One end of a link: what waits to leave there, and what is on its way to the other end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from rnic.spec.congestion_regs import WINDOW_NS

if TYPE_CHECKING:
    from rnic.sim.agenda import Agenda
    from rnic.sim.topology import Link
    from rnic.wire.bursts import TxBurst

IPV4_WIRE_BYTES = 7 + 1 + 14 + 20 + 8 + 4 + 12
"""What a link carries with a UDP payload: preamble, start, Ethernet, IPv4 and UDP headers, FCS, gap (IEEE 802.3)."""
PAUSE_WIRE_BYTES = 84
"""A PFC frame, the shortest there is, with preamble and gap (IEEE 802.1Qbb)."""
_BIT_NS = 8_000_000_000


class Packet:
    """A packet on the fabric.

    ``size`` is in bytes on the wire; ``way`` is the hash that ECMP goes by; ``ect`` says that its sender understands
    marks, ``ce`` that a switch has marked it. ``ingress`` and ``in_headroom`` are the switch's that holds it now.
    """

    __slots__ = ("burst", "ce", "ect", "in_headroom", "ingress", "size", "way")

    def __init__(self, burst: TxBurst, way: int) -> None:
        self.burst = burst
        self.size = burst.length + IPV4_WIRE_BYTES
        self.way = way
        self.ect = burst.flow.tclass & 3 != 0
        self.ce = False
        self.ingress = 0
        self.in_headroom = False


class Port:
    """The queue of what leaves a node over one link, and the wire behind it.

    Args:
        agenda: virtual time.
        name: for tables, "h0 > s0".
        link: rate, delay and loss.
        rng: for losses.
        extra_ns: what the node at the other end takes for each packet.

    ``peer`` is the port at the other end, for pauses. ``arrive`` is called there with each packet, ``left`` here when a
    packet has left. The counts are of packets, but for ``pauses``, of PFC frames that stopped this port,
    ``peak_bytes``, the longest that its queue was, and ``paused_ns``, how long it stood. ``stops``, where somebody put
    a list there, gets the times when it stops and goes on, in turn; ``tap`` is called with each packet that leaves.
    """

    __slots__ = (
        "_agenda",
        "_bits_s",
        "_busy",
        "_delay_ns",
        "_free_actor",
        "_lost",
        "_rest",
        "_rng",
        "_signal_actor",
        "_signals",
        "_since_ns",
        "_wire",
        "_wire_actor",
        "arrive",
        "left",
        "lost",
        "marked",
        "name",
        "paused",
        "paused_ns",
        "pauses",
        "peak_bytes",
        "peer",
        "queue",
        "queued_bytes",
        "sent",
        "sent_bytes",
        "stops",
        "tap",
    )

    peer: Port
    arrive: Callable[[Packet], None]
    left: Callable[[Packet], None]

    def __init__(self, agenda: Agenda, name: str, link: Link, rng: Random, extra_ns: int) -> None:
        self.name = name
        self.queue: deque[Packet] = deque()
        self.queued_bytes = self.peak_bytes = 0
        self.sent = self.sent_bytes = self.lost = self.marked = self.pauses = self.paused_ns = 0
        self.paused = False
        self.stops: list[int] | None = None
        self.tap: Callable[[Packet], None] | None = None
        self._agenda = agenda
        self._bits_s = link.bits_s
        self._delay_ns = link.delay_ns + extra_ns
        self._lost = link.loss
        self._rng = rng
        self._rest = 0
        self._busy = False
        self._since_ns = 0
        self._wire: deque[Packet] = deque()
        self._signals: deque[bool] = deque()
        self._free_actor = agenda.actor(self._freed)
        self._wire_actor = agenda.actor(self._arrived)
        self._signal_actor = agenda.actor(self._signalled)

    @property
    def window_bytes(self) -> int:
        """Its rate in bytes a window of the congestion registers."""
        return max(1, self._bits_s * WINDOW_NS // _BIT_NS)

    def put(self, packet: Packet) -> None:
        """Queue a packet behind those that wait."""
        self.queue.append(packet)
        self.queued_bytes += packet.size
        if self.queued_bytes > self.peak_bytes:
            self.peak_bytes = self.queued_bytes
        if not self._busy and not self.paused:
            self._start()

    def pause(self, stop: bool) -> None:
        """Tell the port at the other end, with a PFC frame that overtakes what waits here, to stop or to go on."""
        self._signals.append(stop)
        frame_ns = PAUSE_WIRE_BYTES * _BIT_NS // self._bits_s
        self._agenda.at(self._agenda.now_ns + frame_ns + self._delay_ns, self._signal_actor)

    def _start(self) -> None:
        packet = self.queue[0]
        # what rounding leaves over counts for the next packet, so that the rate is exact
        took_ns, self._rest = divmod(packet.size * _BIT_NS + self._rest, self._bits_s)
        self._busy = True
        self._agenda.at(self._agenda.now_ns + took_ns, self._free_actor)

    def _freed(self) -> None:
        """The packet at the head has left."""
        packet = self.queue.popleft()
        self.queued_bytes -= packet.size
        self.sent += 1
        self.sent_bytes += packet.size
        self._busy = False
        if self.tap is not None:
            self.tap(packet)
        if self._lost and self._rng.random() < self._lost:
            self.lost += 1
        else:
            self._wire.append(packet)
            self._agenda.at(self._agenda.now_ns + self._delay_ns, self._wire_actor)
        self.left(packet)
        if self.queue and not self._busy and not self.paused:
            self._start()

    def _arrived(self) -> None:
        self.arrive(self._wire.popleft())

    def _signalled(self) -> None:
        self.peer.stop(self._signals.popleft())

    def stop(self, stop: bool) -> None:
        """A PFC frame came from the other end: what has begun to leave still leaves."""
        now_ns = self._agenda.now_ns
        if stop and not self.paused:
            self.pauses += 1
            self._since_ns = now_ns
            if self.stops is not None:
                self.stops.append(now_ns)
        elif self.paused and not stop:
            self.paused_ns += now_ns - self._since_ns
            if self.stops is not None:
                self.stops.append(now_ns)
        self.paused = stop
        if not stop and self.queue and not self._busy:
            self._start()
