"""A switch: one buffer for all its ports, routes, ECN marks and PFC."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnic.sim import topology
    from rnic.sim.port import Packet, Port


class Switch:
    """Stores and forwards.

    Args:
        row: its settings.
        rng: for marks.
        salt: what makes its choice among equal ways differ from that of the switch before it.

    ``ports`` are in the order of its links, ``routes`` the ports towards each address. ``dropped`` counts packets that
    found no room.
    """

    __slots__ = (
        "_held",
        "_in_headroom",
        "_pausing",
        "_rng",
        "_salt",
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
        self._rng = rng
        self._salt = salt
        self._held: list[int] = []
        """Bytes in the buffer that came over each link, those in headroom included."""
        self._in_headroom: list[int] = []
        self._pausing: list[bool] = []

    def join(self, port: Port) -> None:
        """A port of this switch, whose link is connected at both ends."""
        number = self.add(port)
        port.left = self.left
        port.peer.arrive = lambda packet: self.arrive(packet, number)

    def add(self, port: Port) -> int:
        """A port of this switch; its number."""
        self.ports.append(port)
        self._held.append(0)
        self._in_headroom.append(0)
        self._pausing.append(False)
        return len(self.ports) - 1

    @property
    def buffered_bytes(self) -> int:
        """What the shared buffer holds now."""
        return sum(self._held) - sum(self._in_headroom)

    def arrive(self, packet: Packet, ingress: int) -> None:
        """A packet came in whole over a link."""
        row = self.row
        size = packet.size
        packet.in_headroom = self.buffered_bytes + size > row.buffer_bytes
        if packet.in_headroom:
            if self._in_headroom[ingress] + size > row.headroom_bytes:
                self.dropped += 1
                return
            self._in_headroom[ingress] += size
        packet.ingress = ingress
        self._held[ingress] += size
        self.peak_bytes = max(self.peak_bytes, sum(self._held))
        if row.xoff_bytes and not self._pausing[ingress] and self._held[ingress] > row.xoff_bytes:
            self._pausing[ingress] = True
            self.ports[ingress].pause(True)
        ways = self.routes[packet.burst.flow.dst]
        out = ways[0] if len(ways) == 1 else ways[_mixed(packet.way ^ self._salt) % len(ways)]
        if row.marks and packet.ect and not packet.ce and self._marks(out.queued_bytes):
            packet.ce = True
            out.marked += 1
        out.put(packet)

    def _marks(self, queued_bytes: int) -> bool:
        """Whether a packet that joins so long a queue is marked."""
        row = self.row
        if queued_bytes <= row.kmin_bytes:
            return False
        if queued_bytes >= row.kmax_bytes:
            return True
        share = row.pmax * (queued_bytes - row.kmin_bytes) / (row.kmax_bytes - row.kmin_bytes)
        return self._rng.random() < share

    def left(self, packet: Packet) -> None:
        """A packet has left, and its room is free."""
        ingress = packet.ingress
        self._held[ingress] -= packet.size
        if packet.in_headroom:
            self._in_headroom[ingress] -= packet.size
        if self._pausing[ingress] and self._held[ingress] <= self.row.xon_bytes:
            self._pausing[ingress] = False
            self.ports[ingress].pause(False)


def _mixed(value: int) -> int:
    """Spread a 32-bit hash, so that its low bits depend on all (the finalizer of MurmurHash3, public domain)."""
    value = (value ^ value >> 16) * 0x85EB_CA6B & 0xFFFF_FFFF
    value = (value ^ value >> 13) * 0xC2B2_AE35 & 0xFFFF_FFFF
    return value ^ value >> 16
