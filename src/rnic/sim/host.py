"""A NIC at the fabric's edge: it sends when its link has room, and processes arriving packets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from rnic.device.nic import Nic
from rnic.link.base import Link
from rnic.link.middleware import Middleware
from rnic.link.packets import marked_to_send
from rnic.mem.space import SimAddressSpace
from rnic.runtime.loop import Runtime
from rnic.sim.port import Packet, Port
from rnic.sim.telemetry import Echoes
from rnic.spec.opcodes import ACKNOWLEDGE, CNP
from rnic.verbs.context import Context
from rnic.wire.crc import crc32

if TYPE_CHECKING:
    from rnic.cc.controlled import Arrival
    from rnic.link.loopback import LoopbackLink
    from rnic.sim.agenda import Agenda
    from rnic.wire.bursts import TxBurst
    from rnic.wire.flow import Flow

CONTROL_PRIORITY = 6
"""Priority of ACKs and CNPs."""
_CONTROL = (ACKNOWLEDGE, CNP)
ROOM = 2
"""Packets queued at a NIC's own port below which the NIC builds more, as hardware does."""
BURST = 2
"""Packets that a NIC builds at once; packets of other queue pairs wait for them."""
_ROUNDS = 64
_AT_ONCE = 1


class Uplink(Middleware):
    """A NIC's link: sent packets wait at the port, received packets in the inner in-memory link."""

    def __init__(self, inner: LoopbackLink, port: Port, control: int) -> None:
        super().__init__(inner)
        self._control = control
        self._memory = inner
        self._port = port
        self._ways: dict[Flow, int] = {}
        self.echoes: Echoes | None = None
        """Telemetry of its packets, if the congestion control uses it."""

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Put packets on the wire, or queue them."""
        for burst in bursts:
            flow = burst.flow
            way = self._ways.get(flow)
            if way is None:
                ports = flow.sport << 16 | flow.dport
                way = self._ways[flow] = crc32(flow.src + flow.dst + ports.to_bytes(4, "big"))
            control = burst.buffers[0][0] in _CONTROL
            packet = Packet(burst, way, self._control if control else flow.tclass >> 5)
            if self.echoes is not None:
                packet.telemetry = self.echoes.begin(burst)
            self._port.put(packet)

    def take(self, packet: Packet, arrival: Arrival | None = None) -> None:
        """Process an arrived packet and its telemetry."""
        burst = marked_to_send(packet.burst) if packet.ce else packet.burst
        self._memory.deliver(burst, memoryview(b"".join(burst.buffers)), arrival)


class HostRuntime(Runtime):
    """Runtime that sends only what the wire has room for. The fabric drives it; polling does not."""

    def __init__(self, nic: Nic, link: Link, agenda: Agenda, host: Edge, burst: int) -> None:
        self._host = host
        self._burst = burst
        super().__init__(nic, link, agenda)

    def progress(self) -> bool:
        """Do nothing: the fabric drives the NIC."""
        return False

    def round(self) -> bool:
        """Run one round. Return whether anything happened."""
        self.budget = self._burst if self._host.room() else 0
        return self._round(self.clock())

    def carry(self, out: list[TxBurst]) -> None:
        """Send the NIC's packets."""
        self._send(out)

    def deliver(self) -> None:
        """Pass received packets to the NIC."""
        now_ns = self.clock()
        for burst in self.receive(_AT_ONCE):
            self.nic.receive(burst, now_ns)

    def kick(self) -> None:
        """Note that a doorbell was rung: the NIC handles it when time advances."""
        self._host.wake()

    def start(self) -> None:
        """Do nothing: there is no thread."""


class Edge(Protocol):
    """Connection of a NIC to the fabric."""

    port: Port

    def wake(self) -> None:
        """Serve the NIC after the events that are due now."""

    def room(self) -> bool:
        """Return whether the NIC should build packets."""


class Host:
    """One NIC with an opened context.

    Args:
        name: name of the host in the topology.
        nic: the device.
        link: its in-memory link, for received packets.
        port: its end of its one link.
        agenda: virtual time.
        control: priority of ACKs and CNPs.
        burst: packets that the NIC builds at once.

    ``after`` is called after each event at this NIC.
    """

    def __init__(
        self, name: str, nic: Nic, link: LoopbackLink, port: Port, agenda: Agenda, control: int, burst: int
    ) -> None:
        self.name = name
        self.nic = nic
        self.address = nic.config.address
        self.port = port
        self.after: Callable[[], None] | None = None
        self._priorities = 0
        self._agenda = agenda
        self._due_ns: int | None = None
        self._deadline_ns = 0
        """Time of the NIC's next timer, as of its last round."""
        self._timer_ns: int | None = None
        """Time of the next timer event; if it is before the deadline, the event is armed again."""
        self._actor = agenda.actor(self._act)
        self._timer_actor = agenda.actor(self._timed)
        self._uplink = Uplink(link, port, control)
        if nic.congestion.settings.kind.telemetry:
            self._uplink.echoes = Echoes(nic)
        port.left = self._left
        self._runtime = HostRuntime(nic, self._uplink, agenda, self, burst)
        self.ctx = Context(runtime=self._runtime, space=SimAddressSpace())

    def wake(self) -> None:
        """Serve the NIC after the events that are due now."""
        self._wake_at(self._agenda.now_ns)

    def use(self, priority: int) -> None:
        """Note that it has a flow of this priority."""
        self._priorities |= 1 << priority

    def room(self) -> bool:
        """Return whether the NIC should build packets; a priority stopped by PFC does not hold back others."""
        if self._priorities & (self._priorities - 1) and self.port.paused:
            return self.port.going < ROOM
        return self.port.waiting < ROOM

    def arrive(self, packet: Packet) -> None:
        """Process a packet that arrived over the link."""
        echoes = self._uplink.echoes
        self._uplink.take(packet, None if echoes is None else echoes.take(packet, self._agenda.now_ns))
        self.wake()

    def _left(self, packet: Packet) -> None:
        if self.room() and self.nic.has_work():
            self.wake()

    def _wake_at(self, time_ns: int) -> None:
        if self._due_ns is None or time_ns < self._due_ns:
            self._due_ns = time_ns
            self._agenda.at(time_ns, self._actor)

    def _act(self) -> None:
        now_ns = self._agenda.now_ns
        if self._due_ns is None or self._due_ns > now_ns:
            return  # an earlier wake-up has done this
        self._due_ns = None
        self._serve()

    def _arm(self, time_ns: int) -> None:
        if self._timer_ns is None or time_ns < self._timer_ns:
            self._timer_ns = time_ns
            self._agenda.at(time_ns, self._timer_actor)

    def _timed(self) -> None:
        now_ns = self._agenda.now_ns
        if self._timer_ns != now_ns:
            return  # it was armed for an earlier time
        self._timer_ns = None
        if self._deadline_ns > now_ns:
            self._arm(self._deadline_ns)
        else:
            self._serve()

    def _serve(self) -> None:
        now_ns = self._agenda.now_ns
        runtime = self._runtime
        for _ in range(_ROUNDS):
            if not runtime.round():
                break
        else:
            self._wake_at(now_ns + 1)
        if self.after is not None:
            self.after()
        deadline = self.nic.next_deadline_ns()
        if deadline is not None:
            self._deadline_ns = max(deadline, now_ns + 1)
            self._arm(self._deadline_ns)
