"""A switch: one shared buffer for all ports, routes, ECN marking and PFC."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from rnic.sim.port import PRIORITIES

if TYPE_CHECKING:
    from rnic.sim import topology
    from rnic.sim.port import Packet, Port


class _Link:
    """Bytes of one link in a switch, by priority."""

    __slots__ = ("headroom", "headroom_bytes", "pausing", "shared")

    def __init__(self, headroom_bytes: int) -> None:
        self.headroom_bytes = headroom_bytes
        """Headroom of each priority, in addition to the shared buffer."""
        self.shared = [0] * PRIORITIES
        self.headroom = [0] * PRIORITIES
        self.pausing = [False] * PRIORITIES


class Switch:
    """A store-and-forward switch.

    Args:
        row: its settings.
        rng: random numbers for marking.
        salt: makes its ECMP choice independent of that of the previous switch.

    ``ports`` are in the order of its links, ``routes`` the ports toward each address. ``dropped`` counts packets
    without room, ``buffered_bytes`` is the fill of the shared buffer, ``peak_bytes`` the most bytes in all buffers so
    far.
    """

    __slots__ = (
        "_in_headroom",
        "_links",
        "_lossless",
        "_rng",
        "_salt",
        "_turn",
        "buffered_bytes",
        "dropped",
        "peak_bytes",
        "ports",
        "routes",
        "row",
    )

    def __init__(self, row: topology.Switch, rng: Random, salt: int) -> None:
        self.row = row
        self.ports: list[Port] = []
        self.routes: dict[bytes, tuple[Port, ...]] = {}
        self.dropped = 0
        self.peak_bytes = 0
        self.buffered_bytes = 0
        self._rng = rng
        self._salt = salt
        self._turn = 0
        self._lossless = row.lossless
        self._links: list[_Link] = []
        self._in_headroom = 0

    def join(self, port: Port, headroom_bytes: int) -> None:
        """Add a port of this switch, whose link is connected at both ends."""
        number = self.add(port, headroom_bytes)
        port.left = self.left
        port.peer.arrive = lambda packet: self.arrive(packet, number)

    def add(self, port: Port, headroom_bytes: int = 0) -> int:
        """Add a port to this switch and return its number."""
        self.ports.append(port)
        port.in_switch = True
        self._links.append(_Link(headroom_bytes))
        return len(self.ports) - 1

    def arrive(self, packet: Packet, ingress: int) -> None:
        """Process a packet that has arrived completely over a link."""
        row = self.row
        ways = self.routes[packet.burst.flow.dst]
        if len(ways) == 1:
            out = ways[0]
        elif row.spray:
            self._turn = (self._turn + 1) & 0xFFFF_FFFF
            out = ways[self._turn % len(ways)]
        else:
            out = ways[mixed(packet.way ^ self._salt) % len(ways)]
        if not self._admit(packet, ingress, out):
            self.dropped += 1
            return
        packet.ingress = ingress
        self.peak_bytes = max(self.peak_bytes, self.buffered_bytes + self._in_headroom)
        if row.marks and packet.ect and not packet.ce and self._marks(out.class_bytes[packet.priority]):
            packet.ce = True
            out.marked += 1
        out.put(packet)

    def _threshold(self) -> float:
        """Return the bytes that a priority of a link may hold of the shared buffer before PFC pauses it."""
        row = self.row
        if not row.alpha:
            return row.xoff_bytes
        return min(row.xoff_bytes, row.alpha * (row.buffer_bytes - self.buffered_bytes))

    def _admit(self, packet: Packet, ingress: int, out: Port) -> bool:
        """Charge a packet to the shared buffer, or to headroom. Return false if there is no room."""
        row, size, priority = self.row, packet.size, packet.priority
        link = self._links[ingress]
        room = self.buffered_bytes + size <= row.buffer_bytes
        if not self._lossless >> priority & 1:
            if row.alpha:
                free = row.buffer_bytes - self.buffered_bytes
                room = room and out.class_bytes[priority] + size <= row.alpha * free
            if not room:
                return False
        elif not room or link.shared[priority] + size > self._threshold():
            if link.headroom[priority] + size > link.headroom_bytes:
                return False
            link.headroom[priority] += size
            self._in_headroom += size
            if not link.pausing[priority]:
                link.pausing[priority] = True
                self.ports[ingress].pause(priority, True)
            return True
        link.shared[priority] += size
        self.buffered_bytes += size
        return True

    def _marks(self, queued_bytes: int) -> bool:
        """Return whether a packet that joins a queue of this length is marked."""
        row = self.row
        if queued_bytes <= row.kmin_bytes:
            return False
        if queued_bytes >= row.kmax_bytes:
            return True
        share = row.pmax * (queued_bytes - row.kmin_bytes) / (row.kmax_bytes - row.kmin_bytes)
        return self._rng.random() < share

    def left(self, packet: Packet) -> None:
        """Free the space of a sent packet: headroom first, so that it is empty when the link resumes."""
        link, priority, row = self._links[packet.ingress], packet.priority, self.row
        back = min(packet.size, link.headroom[priority])
        link.headroom[priority] -= back
        self._in_headroom -= back
        link.shared[priority] -= packet.size - back
        self.buffered_bytes -= packet.size - back
        if link.pausing[priority] and not link.headroom[priority]:
            below = row.xoff_bytes - row.xon_bytes
            if link.shared[priority] <= max(0, self._threshold() - below):
                link.pausing[priority] = False
                self.ports[packet.ingress].pause(priority, False)


def mixed(value: int) -> int:
    """Mix a 32-bit hash so that its low bits depend on all bits (the finalizer of MurmurHash3, public domain)."""
    value = (value ^ value >> 16) * 0x85EB_CA6B & 0xFFFF_FFFF
    value = (value ^ value >> 13) * 0xC2B2_AE35 & 0xFFFF_FFFF
    return value ^ value >> 16
