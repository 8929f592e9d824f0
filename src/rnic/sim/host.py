"""A NIC at the fabric's edge: it sends when its link has room, and takes what arrives."""

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
from rnic.verbs.context import Context
from rnic.wire.crc import crc32

if TYPE_CHECKING:
    from rnic.link.loopback import LoopbackLink
    from rnic.sim.agenda import Agenda
    from rnic.wire.bursts import TxBurst
    from rnic.wire.flow import Flow

ROOM = 2
"""Packets that wait in front of a NIC's own wire: the NIC makes the next when there are fewer, as hardware does."""
BURST = 64
"""Packets that a NIC makes at once: a whole turn of a queue pair, since a turn cut short waits for its ACK."""
_ROUNDS = 64
_AT_ONCE = 1


class Uplink(Middleware):
    """A NIC's link: what it sends waits at the port, what arrives there waits in the link in memory behind it."""

    def __init__(self, inner: LoopbackLink, port: Port) -> None:
        super().__init__(inner)
        self._memory = inner
        self._port = port
        self._ways: dict[Flow, int] = {}

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Put packets on the wire, or behind those that wait for it."""
        for burst in bursts:
            flow = burst.flow
            way = self._ways.get(flow)
            if way is None:
                ports = flow.sport << 16 | flow.dport
                way = self._ways[flow] = crc32(flow.src + flow.dst + ports.to_bytes(4, "big"))
            self._port.put(Packet(burst, way))

    def take(self, packet: Packet) -> None:
        """A packet has arrived."""
        burst = marked_to_send(packet.burst) if packet.ce else packet.burst
        self._memory.deliver(burst, memoryview(b"".join(burst.buffers)))


class HostRuntime(Runtime):
    """Sends no more than the wire has room for. The fabric drives it; who polls a queue drives nothing."""

    def __init__(self, nic: Nic, link: Link, agenda: Agenda, host: Edge) -> None:
        self._host = host
        super().__init__(nic, link, agenda)

    def progress(self) -> bool:
        """Nothing happens but by the fabric."""
        return False

    def round(self) -> bool:
        """One round; true if something happened."""
        self.budget = BURST if len(self._host.port.queue) < ROOM else 0
        return self._round(self.clock())

    def carry(self, out: list[TxBurst]) -> None:
        """Send what the NIC made."""
        self._send(out)

    def deliver(self) -> None:
        """The NIC takes what has arrived."""
        now_ns = self.clock()
        for burst in self.receive(_AT_ONCE):
            self.nic.receive(burst, now_ns)

    def kick(self) -> None:
        """A doorbell was rung: the NIC looks at it when time moves on."""
        self._host.wake()

    def start(self) -> None:
        """Nothing: there is no thread."""


class Edge(Protocol):
    """Where a NIC meets the fabric."""

    port: Port

    def wake(self) -> None:
        """Look at the NIC as soon as what is due now has happened."""


class Host:
    """One NIC with an opened context.

    Args:
        name: the topology's.
        nic: the device.
        link: its place on a fabric in memory, for what has arrived.
        port: its end of its one link.
        agenda: virtual time.

    ``after`` is called when something has happened at this NIC.
    """

    def __init__(self, name: str, nic: Nic, link: LoopbackLink, port: Port, agenda: Agenda) -> None:
        self.name = name
        self.nic = nic
        self.port = port
        self.after: Callable[[], None] | None = None
        self._agenda = agenda
        self._due_ns: int | None = None
        self._actor = agenda.actor(self._act)
        self._uplink = Uplink(link, port)
        port.left = self._left
        self._runtime = HostRuntime(nic, self._uplink, agenda, self)
        self.ctx = Context(runtime=self._runtime, space=SimAddressSpace())

    def wake(self) -> None:
        """Look at the NIC as soon as what is due now has happened."""
        self._wake_at(self._agenda.now_ns)

    def arrive(self, packet: Packet) -> None:
        """A packet came over the link."""
        self._uplink.take(packet)
        self.wake()

    def _left(self, packet: Packet) -> None:
        if self.nic.has_work():
            self.wake()

    def _wake_at(self, time_ns: int) -> None:
        if self._due_ns is None or time_ns < self._due_ns:
            self._due_ns = time_ns
            self._agenda.at(time_ns, self._actor)

    def _act(self) -> None:
        now_ns = self._agenda.now_ns
        if self._due_ns is None or self._due_ns > now_ns:
            return  # it was woken earlier since, and has done this
        self._due_ns = None
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
            self._wake_at(max(deadline, now_ns + 1))
