"""RoCEv2 over one unprivileged UDP socket per NIC and local address.

The socket is never connected and always sends with DF: Linux then sets IP ID 0, so the ICRC can be computed without the
IP header. A burst goes out in one system call (UDP_SEGMENT) if its segments stay on this machine or the peer agreed;
such a burst is received in one call too (UDP_GRO). Systems without these options send and receive packet by packet.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from rnic.link.base import DrivenLink, LinkError, check_group, flow_between, format_address, parse_address
from rnic.link.ident_sockets import IdentSockets, Read
from rnic.link.interface import interface_of, ip_mtu, is_local, is_of_many, is_up
from rnic.link.own_fd import OwnFd
from rnic.link.packets import joined, single_packets
from rnic.link.steering import Group
from rnic.link.udp_inbox import MAX_CACHED_FLOWS, Inbox
from rnic.link.udp_outlet import Outlet, Path, Peer
from rnic.link.udp_socket import (
    HAS_SENDMSG,
    LINUX,
    enable_gro,
    enable_gso,
    enable_headers,
    enable_stamps,
    granted_receive_bytes,
    open_group_socket,
    open_socket,
    segment_option,
    set_option,
    socket_address,
    wait_writable,
)
from rnic.spec.attach import MAX_SOURCE_PORTS
from rnic.spec.limits import MAX_PATH_MTU, ROCE_UDP_PORT
from rnic.spec.twins import compiled_twin
from rnic.trace.counters import Counters
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.flow import MAX_IDENTS, Flow

BUFFER_BYTES = 4 << 20
"""Size of each socket buffer to request; the kernel may grant less."""

_calls = compiled_twin(__name__, "rnic.link._udp_calls") if LINUX else None
"""The compiled system calls, or ``None``."""

_MAX_DATAGRAM = 65_507
"""Most UDP payload bytes of one send, segmented or not."""
_PACKET_TRUESIZE = 8_456
"""Bytes that a single packet of 4112 bytes uses in a Linux receive buffer, the worst case."""
_MAX_RECEIVE = 64
"""Most datagrams per ``receive``; each needs a buffer of 64 KiB, which is kept."""
_BLOCKED_RETRIES = 3
_BLOCKED_WAIT_MS = 1

_abandoned: list[object] = []
"""Objects kept alive, because their finalizers would close descriptors that are no longer rnic's."""

_GSO_ERRNOS = frozenset((errno.EINVAL, errno.EIO, errno.EOPNOTSUPP, errno.ENOPROTOOPT))
_NO_WAY_ERRNOS = frozenset((errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENODEV, errno.EINVAL))
"""Errors of a send if the interface is down (also for other reasons)."""
_SEND_DROPS = {
    errno.EMSGSIZE: "drop_tx_too_long",
    errno.ECONNREFUSED: "drop_tx_unreachable",
    errno.EHOSTUNREACH: "drop_tx_unreachable",
    errno.ENETUNREACH: "drop_tx_unreachable",
    errno.ENOBUFS: "drop_tx_blocked",
}
"""Counters of failed sends, by errno; ``drop_tx_error`` counts all others."""


class UdpLink(DrivenLink):
    """A NIC's UDP socket on one local address.

    Args:
        address: local IPv4 or IPv6 address as text; an IPv6 address of link scope needs its ``%interface``.
        port: UDP port to bind; 0 lets the kernel choose.
        gso: let the kernel segment bursts if it can.
        gro: let the kernel deliver bursts if it can.
        source_ports: number of additional ports to send from instead of the bound one, so that switches spread queue
            pairs over equal-cost paths (ECMP). Each costs a descriptor, and a burst on another port than the last one
            costs a system call if their traffic classes, hop limits or service levels differ.
        buffer_bytes: size of socket buffers to request.
        counters: counters of drops.
        sock: an open socket of this address and port, as :func:`~rnic.link.udp_socket.open_socket` makes it; closed
            with the link.
        sources: a link of the same address whose source ports this link also uses, with its own sockets, opened as
            needed.
        hop_limits: let the kernel report hop limits of received packets, at some cost per packet; if false, bursts have
            64 until :meth:`tell_hop_limits` is called.

    Raises:
        LinkError: bad address, an address of another machine, or a port in use.
    """

    def __init__(
        self,
        address: str,
        port: int = ROCE_UDP_PORT,
        *,
        gso: bool = True,
        gro: bool = True,
        source_ports: int = 0,
        buffer_bytes: int = BUFFER_BYTES,
        counters: Counters | None = None,
        sock: socket.socket | None = None,
        sources: UdpLink | None = None,
        hop_limits: bool = True,
    ) -> None:
        if not 0 <= port <= 0xFFFF:
            raise LinkError(f"UDP port {port} is not a port: give 0 to 65535")
        self.address = parse_address(address)
        if is_of_many(self.address):
            raise LinkError(f"address {address} is a multicast or broadcast address: give one of this machine alone")
        self.counters = Counters() if counters is None else counters
        self._ipv4 = len(self.address) == 4
        self.scope_id = scope_of(address)
        """The interface of an IPv6 address of link scope; 0 for others."""
        self._buffer_bytes = buffer_bytes
        self.lends = sock is None
        """True if long bursts may be spliced, which is not safe on a given socket on which others may send."""
        if sock is None:
            sock = open_socket(self.address, port, self.scope_id, buffer_bytes)
        self.port = int(sock.getsockname()[1])
        self.mtu = ip_mtu(self.address)
        self.up = True
        self._interface = interface_of(self.address)
        self.frames = None
        """``None``: only UDP packets to this port reach the socket."""
        self.frame_sender = None
        """``None``: the socket sends no other packets; a separate port may (:mod:`rnic.runtime.non_rdma_port`)."""
        self.gso = gso and enable_gso(sock)
        self.gro = gro and enable_gro(sock)
        self.headers = enable_headers(sock, self._ipv4, hop_limits)
        """True if the kernel reports traffic class and hop limit of received packets."""
        self._own: dict[socket.socket | IdentSockets, OwnFd] = {}
        self._watch(sock)
        self._main = Outlet(sock, self._ipv4, self.counters)
        self._outlets = {self.port: self._main}
        self._sources = sources
        self.source_ports: tuple[int, ...] = (
            self._open_source_ports(source_ports) if sources is None else sources.source_ports
        )
        self._calls = _calls
        self._closed = False
        self.lone = True
        """True if all packets come through one open socket, since no group is joined."""
        self._vectored = HAS_SENDMSG
        self._paths: dict[tuple[bytes, int, int, int], Path] = {}
        self._peers: dict[tuple[bytes, int], Peer] = {}
        self._agreed: set[tuple[bytes, int]] = set()
        self._gso_refused: set[tuple[bytes, int]] = set()
        self._groups: dict[bytes, Inbox] = {}
        self._unicast = Inbox(sock, self.address, _calls)
        self._inboxes = [self._unicast]
        self._group: Group | None = None
        self.idents: IdentSockets | None = None
        """Sockets for packets from senders that count their IP IDs, once there is such a sender."""
        self.idents_begun = False
        """True once all earlier packets of such senders, on the unicast socket, were received."""
        self._may_separate = self._ipv4 and LINUX
        self._buffers: list[tuple[memoryview]] = []
        self._greed = 1

    def _open_source_ports(self, count: int) -> tuple[int, ...]:
        """Open sockets to send from, on ports chosen by the kernel. Return the ports, or the bound one for count 0."""
        if not 0 <= count <= MAX_SOURCE_PORTS:
            self._main.socket.close()
            raise LinkError(f"source_ports={count}: give 0 to {MAX_SOURCE_PORTS}")
        ports = []
        for _ in range(count):
            try:
                sock = open_socket(self.address, 0, self.scope_id, self._buffer_bytes)
            except LinkError:
                for outlet in self._outlets.values():
                    outlet.socket.close()
                raise
            self._watch(sock)
            outlet = Outlet(self._only_send(sock), self._ipv4, self.counters)
            self._outlets[outlet.port] = outlet
            ports.append(outlet.port)
        return tuple(ports) or (self.port,)

    def outlet(self, port: int) -> Outlet:
        """Return the socket for packets with a source port: the bound one, unless it is one of the source ports.

        Raises:
            LinkError, OSError: the kernel refuses another socket on that port.
        """
        found = self._outlets.get(port)
        if found is None and self._sources is not None and port in self.source_ports:
            found = Outlet(self._sources.open_source(port), self._ipv4, self.counters)
            if self._main.shared:
                found.forget()
            self._watch(found.socket)
            self._outlets[port] = found
        return found or self._main

    def open_source(self, port: int) -> socket.socket:
        """Return another socket on one of the source ports, with its own options.

        Raises:
            LinkError, OSError: the kernel refuses.
        """
        self._outlets[port].socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock = open_socket(self.address, port, self.scope_id, self._buffer_bytes, member=True)
        return self._only_send(sock)

    def _only_send(self, sock: socket.socket) -> socket.socket:
        # no peer sends to source ports: do not buffer packets to them
        set_option(sock, socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        if self.gso:
            enable_gso(sock)
        return sock

    def _watch(self, sock: socket.socket | IdentSockets) -> None:
        if LINUX:
            self._own[sock] = OwnFd(sock.fileno(), private=False)

    def lost(self) -> bool:
        """Return whether the program has closed one of the link's descriptors, whose number may belong to another file
        now."""
        return not all(own.valid() for own in self._own.values())

    def _close(self, sock: socket.socket | IdentSockets) -> None:
        """Close one of the link's sockets, unless its descriptor is no longer rnic's."""
        own = self._own.pop(sock, None)
        if own is None or own.release():
            sock.close()
        elif isinstance(sock, IdentSockets):
            _abandoned.append(sock)
        else:
            sock.detach()

    @property
    def window_packets(self) -> int:
        """Packets of any size that always fit the receive buffer, with a quarter in reserve."""
        return max(1, granted_receive_bytes(self._main.socket) * 3 // 4 // _PACKET_TRUESIZE)

    @property
    def window_bytes(self) -> int:
        """Payload bytes of full-sized packets that always fit the receive buffer."""
        return self.window_packets * MAX_PATH_MTU

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """See :meth:`rnic.link.base.Link.send`. A packet that the kernel refuses is dropped and counted."""
        if self._closed:
            where = f"{format_address(self.address)} port {self.port}"
            raise LinkError(f"UDP link {where} is closed: open a new one")
        if not self.up:
            self.up = self._interface_up()
        for burst in bursts:
            flow = burst.flow
            path = flow.link
            if not isinstance(path, Path) or path.owner is not self:
                path = self._path(flow)
            path.outlet.shape(flow)
            if burst.count > path.peer.segments or (burst.count > 1 and burst.length > _MAX_DATAGRAM):
                self._send_apart(burst, path)
                continue
            try:
                self._transmit(burst, path)
            except OSError as error:
                self._send_failed(error, burst, path)

    def _transmit(self, burst: TxBurst, path: Path) -> None:
        buffers = burst.buffers
        calls = self._calls
        if calls is not None:
            error = calls.send(path.outlet.descriptor, path.raw, buffers, burst.segment if burst.count > 1 else 0)
            if error:
                raise OSError(error, os.strerror(error))
            return
        sock = path.outlet.socket
        if burst.count > 1:
            sock.sendmsg(buffers, segment_option(burst.segment), 0, path.to)
        elif len(buffers) == 1:
            sock.sendto(buffers[0], path.to)
        elif self._vectored:
            sock.sendmsg(buffers, (), 0, path.to)
        else:
            sock.sendto(joined(burst), path.to)

    def _send_apart(self, burst: TxBurst, path: Path) -> None:
        for packet in single_packets(burst):
            try:
                self._transmit(packet, path)
            except OSError as error:
                self._send_failed(error, packet, path)

    def _send_failed(self, error: OSError, burst: TxBurst, path: Path) -> None:
        if isinstance(error, BlockingIOError):
            self._retry(burst, path)
        elif burst.count > 1 and error.errno in _GSO_ERRNOS:
            self.counters.bump("gso_refused")
            self._gso_refused.add((burst.flow.dst, burst.flow.dport))
            path.peer.segments = 1
            self._send_apart(burst, path)
        else:
            self.counters.bump(_SEND_DROPS.get(error.errno or 0, "drop_tx_error"), burst.count)
            if error.errno in _NO_WAY_ERRNOS:
                self.up = self._interface_up()

    def _interface_up(self) -> bool:
        return self._interface is None or is_up(self._interface)

    def _retry(self, burst: TxBurst, path: Path) -> None:
        for _ in range(_BLOCKED_RETRIES):
            wait_writable(path.outlet.socket, _BLOCKED_WAIT_MS)
            try:
                self._transmit(burst, path)
            except BlockingIOError:
                continue
            except OSError as error:
                self._send_failed(error, burst, path)
            return
        self.counters.bump("drop_tx_blocked", burst.count)

    def _path(self, flow: Flow) -> Path:
        key = flow.dst, flow.dport, flow.flow_label, flow.sport
        path = self._paths.get(key)
        if path is None:
            if len(self._paths) >= MAX_CACHED_FLOWS:
                self._paths.clear()
                self._peers.clear()
            peer = self._peers.get(key[:2])
            if peer is None:
                peer = self._peers[key[:2]] = Peer(self._segments_towards(key[:2]))
            to = socket_address(flow.dst, flow.dport, self.scope_id, flow.flow_label)
            path = Path(self, self.outlet(flow.sport), to, peer)
            self._paths[key] = path
        flow.link = path
        return path

    def _segments_towards(self, key: tuple[bytes, int]) -> int:
        if not self.gso or key in self._gso_refused:
            return 1
        return MAX_IDENTS if key in self._agreed or is_local(key[0]) else 1

    def receive(self, limit: int) -> list[RxBurst]:
        """See :meth:`rnic.link.base.Link.receive`.

        An empty receive costs as much as receiving a packet, so a call reads about as many packets as recent calls
        found, instead of reading until the socket is empty.
        """
        out: list[RxBurst] = [] if self.idents is None else self.receive_idents(False, limit // 2)
        others = len(out)
        quota = min(limit, others + self._greed, _MAX_RECEIVE)
        drained = True
        for inbox in self._inboxes:
            drained = inbox.receive(self, quota - len(out), out, self.buffer) and drained
        if len(self._inboxes) > 1:
            # rotate, so that no socket starves the others
            self._inboxes.append(self._inboxes.pop(0))
        self._greed = max(1, len(out) - others) if drained else min(_MAX_RECEIVE, (quota - others) * 2)
        self.idents_begun |= drained and self.idents is not None
        return out

    def receive_idents(self, drained: bool, limit: int) -> list[RxBurst]:
        """Return up to ``limit`` packets of senders that count IP IDs.

        Args:
            drained: true if the unicast socket, on which their packets arrived before, is empty.
        """
        self.idents_begun |= drained
        return self.idents.receive(limit) if self.idents is not None and self.idents_begun else []

    def buffer(self, index: int) -> tuple[memoryview]:
        """Return receive buffer number ``index`` as a scatter list with one entry; buffers are allocated as needed."""
        while index >= len(self._buffers):
            self._buffers.append((memoryview(bytearray(1 << 16)),))
        return self._buffers[index]

    def fileno(self) -> int | None:
        """Return the descriptor of the unicast socket; ``None`` once closed."""
        return None if self._closed else self._main.descriptor

    def filenos(self) -> list[int]:
        """Return the descriptors of the unicast socket and of each joined group's."""
        if self._closed:
            return []
        idents = [] if self.idents is None else [self.idents.fileno()]
        return [inbox.socket.fileno() for inbox in self._inboxes] + idents

    def next_deadline_ns(self) -> int | None:
        """Return 0 if packets were read and not returned yet, else ``None``, since arrivals make the descriptors
        readable."""
        return 0 if self.idents is not None and self.idents.pending else None

    def local_flow(self, remote_addr: bytes, remote_port: int, sport: int = 0) -> Flow:
        """See :meth:`rnic.link.base.Link.local_flow`; the source port is always the bound one."""
        return flow_between(self.address, self.port, remote_addr, remote_port)

    def max_segments(self, flow: Flow) -> int:
        """Return 64 for addresses of this machine and peers that agreed, else 1."""
        path = flow.link
        if not isinstance(path, Path) or path.owner is not self:
            path = self._path(flow)
        return path.peer.segments

    def allow_gso(self, flow: Flow) -> None:
        """See :meth:`rnic.link.base.Link.allow_gso`; holds for the flow's destination address and port."""
        key = flow.dst, flow.dport
        self._agreed.add(key)
        self._path(flow).peer.segments = self._segments_towards(key)

    # ------------------------------------------------------------------- for code that bypasses the link

    wired = False
    """False: packets use sockets, not an in-memory wire."""

    @property
    def main_socket(self) -> socket.socket:
        """The unicast socket, for code that lets others share its port (:mod:`rnic.link.steering`)."""
        return self._main.socket

    @property
    def group(self) -> Group:
        """The sockets that share the port, the unicast one first; closed with the link.

        Raises:
            OSError: this system has no such groups.
        """
        if self._group is None:
            self._group = Group(self._main.socket, self.address, self.port, self._buffer_bytes, self.scope_id)
        return self._group

    def separate(self, sender: bytes) -> bool:
        """Receive packets from an IPv4 address on sockets that reveal bits of IP IDs. Return whether the sockets are
        new.

        If the kernel refuses, packets are received as before.
        """
        if not self._may_separate or self._closed:
            return False
        new = self.idents is None
        try:
            if new:
                sockets = self.group.open_for_idents()
                self.idents = IdentSockets(sockets, [self._reads(sock) for sock in sockets])
                self._watch(self.idents)
                for sock in sockets:
                    self._watch(sock)
            self.group.separate(sender)  # the engine reads the sockets now
        except (OSError, LinkError):
            self._may_separate = False
        return new and self.idents is not None

    def _reads(self, sock: socket.socket) -> Read:
        if self.headers:
            enable_headers(sock, self._ipv4)
        enable_stamps(sock)
        inbox = Inbox(sock, self.address, _calls, self._unicast.flows)

        def read(buffer: tuple[memoryview]) -> tuple[bool, RxBurst | None, int]:
            found: list[RxBurst] = []
            empty = inbox.receive(self, 1, found, lambda _: buffer)
            return empty, found[0] if found else None, inbox.stamp

        return read

    @property
    def outlets(self) -> tuple[Outlet, ...]:
        """Sockets to send from. Other code that sends on them must report the options that it sets."""
        return tuple(self._outlets.values())

    def tx_path(self, flow: Flow) -> tuple[Outlet, bytes, int]:
        """Return the socket for a flow's packets, their raw destination address, and the most packets in a burst."""
        path = flow.link
        if not isinstance(path, Path) or path.owner is not self:
            path = self._path(flow)
        return path.outlet, path.raw, path.peer.segments

    def make_burst(self, sender: bytes, buf: memoryview, *how: int) -> RxBurst:
        """Make a burst of packets that the engine received on the unicast socket from a raw address, as :meth:`receive`
        does.

        Args:
            how: segment size, traffic class, hop limit, flow label.
        """
        return self._unicast.make_burst(self, sender, buf, *how)

    def refused(self, flow: Flow) -> None:
        """Send packets to this peer one by one from now on: the kernel refused a burst."""
        self._gso_refused.add((flow.dst, flow.dport))
        self._path(flow).peer.segments = 1

    def check_interface(self) -> None:
        """Check whether the interface is down, after a send failed with an error that this may cause."""
        self.up = self._interface_up()

    def forget(self) -> None:
        """Forget the socket options, since other code sends on the sockets."""
        for outlet in self._outlets.values():
            outlet.forget()

    def tell_hop_limits(self) -> None:
        """Report hop limits of received bursts from now on, if the kernel does."""
        self.headers = enable_headers(self._main.socket, self._ipv4)

    def join(self, group: bytes) -> None:
        """See :meth:`rnic.link.base.Link.join`; each group has its own socket."""
        check_group(group, self.address)
        if group in self._groups:
            return
        sock = open_group_socket(self.address, group, self.port, self._buffer_bytes)
        if self.headers:
            enable_headers(sock, self._ipv4)
        self._watch(sock)
        self._groups[group] = Inbox(sock, group, _calls)
        self._inboxes.append(self._groups[group])
        self.lone = False

    def leave(self, group: bytes) -> None:
        """See :meth:`rnic.link.base.Link.leave`."""
        inbox = self._groups.pop(group, None)
        if inbox is not None:
            self._inboxes.remove(inbox)
            self._close(inbox.socket)
        self.lone = not self._groups and not self._closed

    def close(self) -> None:
        """Close all sockets."""
        self._closed = True
        self.lone = False
        for sock in list(self._own):
            self._close(sock)
        for inbox in self._inboxes:
            inbox.socket.close()
        for outlet in self._outlets.values():
            outlet.socket.close()
        if self.idents is not None and self.idents not in _abandoned:
            self.idents.close()
        if self._group is not None:
            self._group.close()
        self.idents = self._group = None
        self._inboxes.clear()
        self._groups.clear()


def scope_of(address: str) -> int:
    """Return the index of the interface after ``%`` in an address; 0 if there is none.

    Raises:
        LinkError: there is no such interface.
    """
    interface = address.partition("%")[2]
    if not interface:
        return 0
    try:
        return int(interface) if interface.isdigit() else socket.if_nametoindex(interface)
    except OSError:
        raise LinkError(f"address {address!r} names no interface: correct the part after %") from None
