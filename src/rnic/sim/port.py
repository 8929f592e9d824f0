"""One end of a link: its queued packets, and packets on the wire to the other end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from rnic.spec.congestion_regs import WINDOW_NS

if TYPE_CHECKING:
    from rnic.sim.agenda import Agenda
    from rnic.sim.telemetry import Telemetry
    from rnic.sim.topology import Link
    from rnic.wire.bursts import TxBurst

IPV4_WIRE_BYTES = 7 + 1 + 14 + 20 + 8 + 4 + 12
"""Bytes that a link carries with a UDP payload: preamble, start, Ethernet, IPv4 and UDP headers, FCS, gap (IEEE
802.3)."""
PAUSE_WIRE_BYTES = 84
"""Bytes of a PFC frame, a minimum-size frame, with preamble and gap (IEEE 802.1Qbb)."""
PRIORITIES = 8
QUANTUM = 4_608
"""Bytes per unit of weight in deficit round robin: at least the largest packet."""
_BIT_NS = 8_000_000_000


class Packet:
    """A packet on the fabric.

    ``size`` is in bytes on the wire; ``way`` is the ECMP hash; ``ect`` is true if its sender is ECN-capable, ``ce`` if
    a switch has marked it. ``ingress`` belongs to the switch that holds the packet.
    """

    __slots__ = ("burst", "ce", "ect", "ingress", "priority", "size", "telemetry", "way")

    def __init__(self, burst: TxBurst, way: int, priority: int = 0) -> None:
        self.burst = burst
        self.size = burst.length + IPV4_WIRE_BYTES
        self.way = way
        self.priority = priority
        self.ect = burst.flow.tclass & 3 != 0
        self.ce = False
        self.ingress = 0
        self.telemetry: Telemetry | None = None


class Port:
    """The egress queues of a node for one link, one for each priority, and the wire.

    Args:
        agenda: virtual time.
        name: for tables, "h0 > s0".
        link: rate, delay and loss.
        rng: random numbers for losses.
        extra_ns: delay of the node at the other end for each packet.
        weights: weight of each priority, 0 for strict; empty if all are strict.

    ``peer`` is the port at the other end, for pauses. ``arrive`` is called there with each packet, ``left`` here when a
    packet was sent. The counts are of packets, except ``pauses`` (PFC frames that stopped a priority), ``peak_bytes``
    (most bytes queued) and ``paused_ns`` (time for which at least one priority was stopped). ``stops``, if set to a
    list, gets the times at which the first priority stops and the last resumes, alternating; ``tap`` is called with
    each sent packet. A port that is ``down`` loses all packets that it sends. ``waiting`` packets have
    ``queued_bytes``, ``class_bytes`` by priority.
    """

    __slots__ = (
        "_agenda",
        "_busy",
        "_current",
        "_deficits",
        "_delay_ns",
        "_filled",
        "_free_actor",
        "_lost",
        "_queues",
        "_rest",
        "_rng",
        "_signal_actor",
        "_signals",
        "_since_ns",
        "_stopped",
        "_strict",
        "_turn",
        "_weights",
        "_wire",
        "_wire_actor",
        "arrive",
        "bits_s",
        "class_bytes",
        "down",
        "in_switch",
        "left",
        "lost",
        "marked",
        "name",
        "paused_ns",
        "pauses",
        "peak_bytes",
        "peer",
        "queued_bytes",
        "sent",
        "sent_bytes",
        "stops",
        "tap",
        "waiting",
    )

    peer: Port
    arrive: Callable[[Packet], None]
    left: Callable[[Packet], None]

    def __init__(
        self, agenda: Agenda, name: str, link: Link, rng: Random, extra_ns: int, weights: tuple[int, ...] = ()
    ) -> None:
        self.name = name
        self._queues: tuple[deque[Packet], ...] = tuple(deque() for _ in range(PRIORITIES))
        self.class_bytes = [0] * PRIORITIES
        self.waiting = self.queued_bytes = self.peak_bytes = 0
        self.sent = self.sent_bytes = self.lost = self.marked = self.pauses = self.paused_ns = 0
        self._weights = weights or (0,) * PRIORITIES
        self._deficits = [0] * PRIORITIES
        self._strict = sum(1 << priority for priority, weight in enumerate(self._weights) if not weight)
        self._turn = self._current = 0
        self._filled = self._stopped = 0
        """Bit masks of the priorities with packets, and of those stopped by PFC."""
        self.stops: list[int] | None = None
        self.tap: Callable[[Packet], None] | None = None
        self.in_switch = False
        self.down = False
        self._agenda = agenda
        self.bits_s = link.bits_s
        self._delay_ns = link.delay_ns + extra_ns
        self._lost = link.loss
        self._rng = rng
        self._rest = 0
        self._busy = False
        self._since_ns = 0
        self._wire: deque[Packet] = deque()
        self._signals: deque[tuple[int, bool]] = deque()
        self._free_actor = agenda.actor(self._freed)
        self._wire_actor = agenda.actor(self._arrived)
        self._signal_actor = agenda.actor(self._signalled)

    @property
    def window_bytes(self) -> int:
        """Its rate in bytes per window of the congestion registers."""
        return max(1, self.bits_s * WINDOW_NS // _BIT_NS)

    @property
    def paused(self) -> bool:
        """True while PFC stops a priority."""
        return self._stopped != 0

    @property
    def paused_now_ns(self) -> int:
        """Time for which PFC has stopped a priority, up to now."""
        return self.paused_ns + (self._agenda.now_ns - self._since_ns if self._stopped else 0)

    @property
    def going(self) -> int:
        """Queued packets that PFC does not stop."""
        return sum(len(queue) for at, queue in enumerate(self._queues) if not self._stopped >> at & 1)

    def put(self, packet: Packet) -> None:
        """Append a packet to the queue of its priority."""
        priority = packet.priority
        self._queues[priority].append(packet)
        self._filled |= 1 << priority
        self.waiting += 1
        self.class_bytes[priority] += packet.size
        self.queued_bytes += packet.size
        if self.queued_bytes > self.peak_bytes:
            self.peak_bytes = self.queued_bytes
        if not self._busy:
            self._start()

    def pause(self, priority: int, stop: bool) -> None:
        """Send the other end a PFC frame, ahead of queued packets, to stop or resume a priority."""
        self._signals.append((priority, stop))
        frame_ns = PAUSE_WIRE_BYTES * _BIT_NS // self.bits_s
        self._agenda.at(self._agenda.now_ns + frame_ns + self._delay_ns, self._signal_actor)

    def _pick(self, ready: int) -> int:
        """Return the ready priority whose packet is sent next."""
        if strict := ready & self._strict:
            return strict.bit_length() - 1
        turn = self._turn
        while not ready >> turn & 1 or self._deficits[turn] < self._queues[turn][0].size:
            turn = (turn + 1) % PRIORITIES
            if ready >> turn & 1:
                self._deficits[turn] += self._weights[turn] * QUANTUM
        self._turn = turn
        self._deficits[turn] -= self._queues[turn][0].size
        return turn

    def _start(self) -> None:
        """Start to send the next packet that PFC does not stop."""
        ready = self._filled & ~self._stopped
        if not ready:
            return
        self._current = self._pick(ready)
        packet = self._queues[self._current][0]
        # carry the rounding remainder to the next packet, so that the rate is exact
        took_ns, self._rest = divmod(packet.size * _BIT_NS + self._rest, self.bits_s)
        self._busy = True
        self._agenda.at(self._agenda.now_ns + took_ns, self._free_actor)

    def _freed(self) -> None:
        """Free the sent packet at the head."""
        priority = self._current
        packet = self._queues[priority].popleft()
        if not self._queues[priority]:
            self._filled &= ~(1 << priority)
            self._deficits[priority] = 0
        self.waiting -= 1
        self.class_bytes[priority] -= packet.size
        self.queued_bytes -= packet.size
        self.sent += 1
        self.sent_bytes += packet.size
        self._busy = False
        if packet.telemetry is not None:
            packet.telemetry.left(self, self._agenda.now_ns)
        if self.tap is not None:
            self.tap(packet)
        if self.down or (self._lost and self._rng.random() < self._lost):
            self.lost += 1
        else:
            self._wire.append(packet)
            self._agenda.at(self._agenda.now_ns + self._delay_ns, self._wire_actor)
        self.left(packet)
        if not self._busy:
            self._start()

    def _arrived(self) -> None:
        self.arrive(self._wire.popleft())

    def _signalled(self) -> None:
        self.peer.stop(*self._signals.popleft())

    def stop(self, priority: int, stop: bool) -> None:
        """Stop or resume a priority for a PFC frame from the other end; a packet in transmission is still sent."""
        now_ns = self._agenda.now_ns
        before = self._stopped
        if stop:
            self.pauses += not before >> priority & 1
            self._stopped |= 1 << priority
        else:
            self._stopped &= ~(1 << priority)
        if (before == 0) != (self._stopped == 0):
            if before:
                self.paused_ns += now_ns - self._since_ns
            self._since_ns = now_ns
            if self.stops is not None:
                self.stops.append(now_ns)
        if not stop and not self._busy:
            self._start()
