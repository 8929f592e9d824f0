"""The sending side of :mod:`rnic.link.udp`: sockets, and the paths from them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from rnic.link.udp_socket import SocketAddress, enable_gso, raw_address, set_hop_limit, set_priority, set_tclass
from rnic.trace.counters import Counters
from rnic.wire.flow import Flow

if TYPE_CHECKING:
    from rnic.link.udp import UdpLink


class Outlet:
    """A socket to send from, and the options set on it.

    System defaults may have been changed, so options are set before the first send. Service level 0 leaves the priority
    to the kernel, until another level is requested.
    """

    __slots__ = ("_counters", "_ipv4", "descriptor", "hop_limit", "port", "shared", "sl", "socket", "tclass")

    def __init__(self, sock: socket.socket, ipv4: bool, counters: Counters) -> None:
        self.socket = sock
        self.descriptor = sock.fileno()
        self.port = int(sock.getsockname()[1])
        self._counters = counters
        self._ipv4 = ipv4
        self.tclass = self.hop_limit = -1
        self.shared = False
        self.sl = 0

    def forget(self) -> None:
        """Forget the options, since other code may have set them, including the default segment size."""
        self.tclass = self.hop_limit = self.sl = -1
        self.shared = True

    def shape(self, flow: Flow) -> None:
        """Send from now on with the traffic class, hop limit and priority of ``flow``."""
        if self.shared and self.tclass < 0:
            enable_gso(self.socket)
        if flow.tclass != self.tclass:
            self.tclass = flow.tclass
            set_tclass(self.socket, self._ipv4, flow.tclass)
            if self._ipv4 and self.sl:
                self.sl = -1  # setting the type of service changes the socket's priority
        if flow.sl != self.sl:
            self.sl = flow.sl
            if not set_priority(self.socket, flow.sl):
                self._counters.bump("priority_refused")
        if flow.hop_limit != self.hop_limit:
            self.hop_limit = flow.hop_limit
            set_hop_limit(self.socket, self._ipv4, flow.hop_limit)


class Peer:
    """A destination address and port, and the number of packets that one burst to it may hold."""

    __slots__ = ("segments",)

    def __init__(self, segments: int) -> None:
        self.segments = segments


class Path:
    """State of a path that the link keeps in ``Flow.link``."""

    __slots__ = ("outlet", "owner", "peer", "raw", "to")

    def __init__(self, owner: UdpLink, outlet: Outlet, to: SocketAddress, peer: Peer) -> None:
        self.owner = owner
        self.outlet = outlet
        self.to = to
        self.raw = raw_address(to)
        self.peer = peer
