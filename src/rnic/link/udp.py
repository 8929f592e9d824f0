"""RoCEv2 over one unprivileged UDP socket per NIC and local address.

The socket is never connected and always sends with DF: Linux then sets ident 0, so the ICRC is exact without
seeing the IP header. A burst goes out in one system call (UDP_SEGMENT) where its segments stay on this
machine or the peer agreed; what arrives that way is received in one call too (UDP_GRO). Systems without these
options send and receive packet by packet.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence

from rnic.link.base import DrivenLink, LinkError, check_group, flow_between, format_address, parse_address
from rnic.link.ident_sockets import IdentSockets, Read
from rnic.link.interface import interface_of, ip_mtu, is_local, is_of_many, is_up
from rnic.link.packets import joined, single_packets
from rnic.link.steering import Group
from rnic.link.udp_socket import (
    ANCILLARY_BYTES,
    HAS_SENDMSG,
    LINUX,
    Ancillary,
    SocketAddress,
    enable_gro,
    enable_gso,
    enable_headers,
    enable_stamps,
    granted_receive_bytes,
    open_group_socket,
    open_socket,
    raw_address,
    read_ancillary,
    read_stamp,
    segment_option,
    set_hop_limit,
    set_option,
    set_priority,
    set_tclass,
    socket_address,
    split_address,
    wait_writable,
)
from rnic.spec.drops import DropReason
from rnic.spec.limits import MAX_PATH_MTU, ROCE_UDP_PORT
from rnic.spec.twins import compiled_twin
from rnic.trace.counters import Counters
from rnic.wire.bursts import DONT_FRAGMENT, RxBurst, TxBurst
from rnic.wire.flow import MAX_IDENTS, Flow

BUFFER_BYTES = 4 << 20
"""Asked for in each direction; the system may grant less."""

_calls = compiled_twin(__name__, "rnic.link._udp_calls") if LINUX else None
"""The compiled system calls, or ``None``."""

_MAX_DATAGRAM = 65_507
"""UDP payload bytes of one send, segmented or not."""
_PACKET_TRUESIZE = 8_456
"""What one packet of 4112 bytes takes of a Linux receive buffer when it arrives alone, the worst case."""
_MAX_RECEIVE = 64
"""Datagrams per ``receive``: a buffer of 64 KiB is kept for each that was ever needed."""
_MAX_CACHED = 4_096
_BLOCKED_RETRIES = 3
_BLOCKED_WAIT_MS = 1
MAX_SOURCE_PORTS = 256
"""Ports to send from; more would spread no better and cost descriptors."""

_GSO_ERRNOS = frozenset((errno.EINVAL, errno.EIO, errno.EOPNOTSUPP, errno.ENOPROTOOPT))
_NO_WAY_ERRNOS = frozenset((errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENODEV, errno.EINVAL))
"""What a send says when the interface is down, among other troubles."""
_SEND_DROPS = {
    errno.EMSGSIZE: "drop_tx_too_long",
    errno.ECONNREFUSED: "drop_tx_unreachable",
    errno.EHOSTUNREACH: "drop_tx_unreachable",
    errno.ENETUNREACH: "drop_tx_unreachable",
    errno.ENOBUFS: "drop_tx_blocked",
}
"""Counters of failed sends, by errno; ``drop_tx_error`` counts the rest."""


class _Outlet:
    """A socket that packets leave from, and what its options say of them.

    The system's defaults are its administrator's: ours are set before the first send. Service level 0 leaves the
    priority to the system, as long as no other was asked for.
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
        """Others may have set the options meanwhile; one of them cuts what is sent, unless a message says otherwise."""
        self.tclass = self.hop_limit = self.sl = -1
        self.shared = True

    def shape(self, flow: Flow) -> None:
        """What leaves from now on has the traffic class, hop limit and priority of ``flow``."""
        if self.shared and self.tclass < 0:
            enable_gso(self.socket)
        if flow.tclass != self.tclass:
            self.tclass = flow.tclass
            set_tclass(self.socket, self._ipv4, flow.tclass)
            if self._ipv4 and self.sl:
                self.sl = -1  # the system has just made a priority of the type of service
        if flow.sl != self.sl:
            self.sl = flow.sl
            if not set_priority(self.socket, flow.sl):
                self._counters.bump("priority_refused")
        if flow.hop_limit != self.hop_limit:
            self.hop_limit = flow.hop_limit
            set_hop_limit(self.socket, self._ipv4, flow.hop_limit)


class _Peer:
    """An address and port that packets go to: how many one burst may hold."""

    __slots__ = ("segments",)

    def __init__(self, segments: int) -> None:
        self.segments = segments


class _Path:
    """What the link remembers about a path, in ``Flow.link``."""

    __slots__ = ("outlet", "owner", "peer", "raw", "to")

    def __init__(self, owner: UdpLink, outlet: _Outlet, to: SocketAddress, peer: _Peer) -> None:
        self.owner = owner
        self.outlet = outlet
        self.to = to
        self.raw = raw_address(to)
        self.peer = peer


class UdpLink(DrivenLink):
    """A NIC's UDP socket on one local address.

    Args:
        address: local IPv4 or IPv6 address as text; an IPv6 address of link scope needs its ``%interface``.
        port: UDP port to bind; 0 lets the system choose.
        gso: let the system segment bursts, where it can.
        gro: let the system deliver bursts, where it can.
        source_ports: send from so many ports more instead of the bound one, so that switches spread queue pairs
            over equal paths (ECMP). Each costs a descriptor, and a burst that goes from another port than the last
            one a system call where their traffic classes, hop limits or service levels differ.
        buffer_bytes: socket buffers to ask for.
        counters: where drops are counted.
        sock: an open one of this address and port, as :func:`~rnic.link.udp_socket.open_socket` makes it; closed with
            the link.
        hop_limits: have the system tell those of what arrives, which costs each packet some time; without, bursts say
            64 until :meth:`tell_hop_limits` is called.

    Raises:
        LinkError: bad address, an address of another machine, or a port that is taken.
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
        hop_limits: bool = True,
    ) -> None:
        if not 0 <= port <= 0xFFFF:
            raise LinkError(f"UDP port {port} is not a port: give 0 to 65535")
        self.address = parse_address(address)
        if is_of_many(self.address):
            raise LinkError(f"address {address} is a multicast or broadcast address: give one of this machine alone")
        self.counters = Counters() if counters is None else counters
        self._ipv4 = len(self.address) == 4
        self._scope_id = _scope_id(address)
        self._buffer_bytes = buffer_bytes
        self.lends = sock is None
        """Whether long bursts may leave by their pages: not by a socket that is given, by which others may send."""
        if sock is None:
            sock = open_socket(self.address, port, self._scope_id, buffer_bytes)
        self.port = int(sock.getsockname()[1])
        self.mtu = ip_mtu(self.address)
        self.up = True
        self._interface = interface_of(self.address)
        self.frames = None
        """What is not UDP and for this port, the system keeps."""
        self.gso = gso and enable_gso(sock)
        self.gro = gro and enable_gro(sock)
        self.headers = enable_headers(sock, self._ipv4, hop_limits)
        """Whether the system tells traffic class and hop limit of what arrives."""
        self._main = _Outlet(sock, self._ipv4, self.counters)
        self._outlets = {self.port: self._main}
        self.source_ports = self._open_source_ports(source_ports)
        self._calls = _calls
        self._closed = False
        self.lone = True
        """Whether everything comes through one open socket: no group is joined."""
        self._vectored = HAS_SENDMSG
        self._paths: dict[tuple[bytes, int, int, int], _Path] = {}
        self._peers: dict[tuple[bytes, int], _Peer] = {}
        self._agreed: set[tuple[bytes, int]] = set()
        self._gso_refused: set[tuple[bytes, int]] = set()
        self._groups: dict[bytes, _Inbox] = {}
        self._unicast = _Inbox(sock, self.address)
        self._inboxes = [self._unicast]
        self._group: Group | None = None
        self.idents: IdentSockets | None = None
        """Where packets come in from senders that count their IPv4 idents, once there is one."""
        self.idents_begun = False
        """Packets that such senders sent before came by the unicast socket, and all of these were received."""
        self._may_separate = self._ipv4 and LINUX
        self._buffers: list[tuple[memoryview]] = []
        self._greed = 1

    def _open_source_ports(self, count: int) -> tuple[int, ...]:
        """Sockets to send from, on ports that the system chooses; the bound port where none are wanted."""
        if not 0 <= count <= MAX_SOURCE_PORTS:
            self._main.socket.close()
            raise LinkError(f"source_ports={count}: give 0 to {MAX_SOURCE_PORTS}")
        ports = []
        for _ in range(count):
            try:
                sock = open_socket(self.address, 0, self._scope_id, self._buffer_bytes)
            except LinkError:
                for outlet in self._outlets.values():
                    outlet.socket.close()
                raise
            # nobody sends to these ports: what comes there is not kept
            set_option(sock, socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
            if self.gso:
                enable_gso(sock)
            outlet = _Outlet(sock, self._ipv4, self.counters)
            self._outlets[outlet.port] = outlet
            ports.append(outlet.port)
        return tuple(ports) or (self.port,)

    @property
    def window_packets(self) -> int:
        """Packets of any size that the receive buffer surely holds, a quarter kept in reserve."""
        return max(1, granted_receive_bytes(self._main.socket) * 3 // 4 // _PACKET_TRUESIZE)

    @property
    def window_bytes(self) -> int:
        """Payload bytes of full-sized packets that the receive buffer surely holds."""
        return self.window_packets * MAX_PATH_MTU

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """See :meth:`rnic.link.base.Link.send`. What the system refuses is a counted drop."""
        if self._closed:
            where = f"{format_address(self.address)} port {self.port}"
            raise LinkError(f"UDP link {where} is closed: open a new one")
        if not self.up:
            self.up = self._interface_up()
        for burst in bursts:
            flow = burst.flow
            path = flow.link
            if not isinstance(path, _Path) or path.owner is not self:
                path = self._path(flow)
            path.outlet.shape(flow)
            if burst.count > path.peer.segments or (burst.count > 1 and burst.length > _MAX_DATAGRAM):
                self._send_apart(burst, path)
                continue
            try:
                self._transmit(burst, path)
            except OSError as error:
                self._send_failed(error, burst, path)

    def _transmit(self, burst: TxBurst, path: _Path) -> None:
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

    def _send_apart(self, burst: TxBurst, path: _Path) -> None:
        for packet in single_packets(burst):
            try:
                self._transmit(packet, path)
            except OSError as error:
                self._send_failed(error, packet, path)

    def _send_failed(self, error: OSError, burst: TxBurst, path: _Path) -> None:
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

    def _retry(self, burst: TxBurst, path: _Path) -> None:
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

    def _path(self, flow: Flow) -> _Path:
        key = flow.dst, flow.dport, flow.flow_label, flow.sport
        path = self._paths.get(key)
        if path is None:
            if len(self._paths) >= _MAX_CACHED:
                self._paths.clear()
                self._peers.clear()
            peer = self._peers.get(key[:2])
            if peer is None:
                peer = self._peers[key[:2]] = _Peer(self._segments_towards(key[:2]))
            to = socket_address(flow.dst, flow.dport, self._scope_id, flow.flow_label)
            path = _Path(self, self._outlets.get(flow.sport, self._main), to, peer)
            self._paths[key] = path
        flow.link = path
        return path

    def _segments_towards(self, key: tuple[bytes, int]) -> int:
        if not self.gso or key in self._gso_refused:
            return 1
        return MAX_IDENTS if key in self._agreed or is_local(key[0]) else 1

    def receive(self, limit: int) -> list[RxBurst]:
        """See :meth:`rnic.link.base.Link.receive`.

        Finding the socket empty costs as much as receiving a packet, so a call expects about as much as the
        last ones found instead of reading on until nothing is left.
        """
        out: list[RxBurst] = [] if self.idents is None else self.receive_idents(False, limit // 2)
        others = len(out)
        quota = min(limit, others + self._greed, _MAX_RECEIVE)
        drained = True
        for inbox in self._inboxes:
            drained = inbox.receive(self, quota - len(out), out, self.buffer) and drained
        if len(self._inboxes) > 1:
            # So that none starves the others.
            self._inboxes.append(self._inboxes.pop(0))
        self._greed = max(1, len(out) - others) if drained else min(_MAX_RECEIVE, (quota - others) * 2)
        self.idents_begun |= drained and self.idents is not None
        return out

    def receive_idents(self, drained: bool, limit: int) -> list[RxBurst]:
        """Up to ``limit`` packets of senders that count idents.

        Args:
            drained: nothing is left in the unicast socket, where their packets came before.
        """
        self.idents_begun |= drained
        return self.idents.receive(limit) if self.idents is not None and self.idents_begun else []

    def buffer(self, index: int) -> tuple[memoryview]:
        """Receive buffer number ``index`` as a scatter list of one; buffers are made as they are needed."""
        while index >= len(self._buffers):
            self._buffers.append((memoryview(bytearray(1 << 16)),))
        return self._buffers[index]

    def fileno(self) -> int | None:
        """Descriptor of the unicast socket; ``None`` once closed."""
        return None if self._closed else self._main.descriptor

    def filenos(self) -> list[int]:
        """Descriptors of the unicast socket and of each joined group's."""
        if self._closed:
            return []
        idents = [] if self.idents is None else [self.idents.fileno()]
        return [inbox.socket.fileno() for inbox in self._inboxes] + idents

    def next_deadline_ns(self) -> int | None:
        """At once where packets were read and not given yet, else never: arrivals make the descriptors readable."""
        return 0 if self.idents is not None and self.idents.pending else None

    def local_flow(self, remote_addr: bytes, remote_port: int, sport: int = 0) -> Flow:
        """See :meth:`rnic.link.base.Link.local_flow`; the source port is always the bound one."""
        return flow_between(self.address, self.port, remote_addr, remote_port)

    def max_segments(self, flow: Flow) -> int:
        """64 towards addresses of this machine and peers that agreed, else 1."""
        path = flow.link
        if not isinstance(path, _Path) or path.owner is not self:
            path = self._path(flow)
        return path.peer.segments

    def allow_gso(self, flow: Flow) -> None:
        """See :meth:`rnic.link.base.Link.allow_gso`; holds for the flow's destination address and port."""
        key = flow.dst, flow.dport
        self._agreed.add(key)
        self._path(flow).peer.segments = self._segments_towards(key)

    # ------------------------------------------------------------------- for who drives the sockets beside the link

    wired = False
    """Packets go by sockets, not by a wire in memory."""

    @property
    def main_socket(self) -> socket.socket:
        """The unicast socket, for those who let others share its port (:mod:`rnic.link.steering`)."""
        return self._main.socket

    @property
    def group(self) -> Group:
        """The sockets that share the port, the unicast one first; closed with the link.

        Raises:
            OSError: this system has no such groups.
        """
        if self._group is None:
            self._group = Group(self._main.socket, self.address, self.port, self._buffer_bytes)
        return self._group

    def separate(self, sender: bytes) -> bool:
        """Receive what comes from an IPv4 address by sockets that show bits of idents; whether these are new.

        Where the system refuses, packets come as before.
        """
        if not self._may_separate or self._closed:
            return False
        new = self.idents is None
        try:
            if new:
                sockets = self.group.open_for_idents()
                self.idents = IdentSockets(sockets, [self._reads(sock) for sock in sockets])
            self.group.separate(sender)  # somebody reads the sockets by now
        except (OSError, LinkError):
            self._may_separate = False
        return new and self.idents is not None

    def _reads(self, sock: socket.socket) -> Read:
        if self.headers:
            enable_headers(sock, self._ipv4)
        enable_stamps(sock)
        inbox = _Inbox(sock, self.address, self._unicast.flows)

        def read(buffer: tuple[memoryview]) -> tuple[bool, RxBurst | None, int]:
            found: list[RxBurst] = []
            empty = inbox.receive(self, 1, found, lambda _: buffer)
            return empty, found[0] if found else None, inbox.stamp

        return read

    @property
    def outlets(self) -> tuple[_Outlet, ...]:
        """Sockets to send from. Who sends beside the link says to them how the options are then."""
        return tuple(self._outlets.values())

    def tx_path(self, flow: Flow) -> tuple[_Outlet, bytes, int]:
        """The socket from which a flow's packets leave, the raw address that they go to, and how many a burst holds."""
        path = flow.link
        if not isinstance(path, _Path) or path.owner is not self:
            path = self._path(flow)
        return path.outlet, path.raw, path.peer.segments

    def make_burst(self, sender: bytes, buf: memoryview, *how: int) -> RxBurst:
        """What somebody else received on the unicast socket from a raw address, as :meth:`receive` would give it.

        Args:
            how: segment size, traffic class, hop limit, flow label.
        """
        return self._unicast.make_burst(self, sender, buf, *how)

    def refused(self, flow: Flow) -> None:
        """The system refused a burst: from now on packets go there one by one."""
        self._gso_refused.add((flow.dst, flow.dport))
        self._path(flow).peer.segments = 1

    def check_interface(self) -> None:
        """A send failed as it does where the interface is down: look whether it is."""
        self.up = self._interface_up()

    def forget(self) -> None:
        """Others send by the same socket: what its options say is not known any more."""
        self._main.forget()

    def tell_hop_limits(self) -> None:
        """From now on bursts say which hop limit they came with, where the system tells."""
        self.headers = enable_headers(self._main.socket, self._ipv4)

    def join(self, group: bytes) -> None:
        """See :meth:`rnic.link.base.Link.join`; each group has a socket of its own."""
        check_group(group, self.address)
        if group in self._groups:
            return
        sock = open_group_socket(self.address, group, self.port, self._buffer_bytes)
        if self.headers:
            enable_headers(sock, self._ipv4)
        self._groups[group] = _Inbox(sock, group)
        self._inboxes.append(self._groups[group])
        self.lone = False

    def leave(self, group: bytes) -> None:
        """See :meth:`rnic.link.base.Link.leave`."""
        inbox = self._groups.pop(group, None)
        if inbox is not None:
            self._inboxes.remove(inbox)
            inbox.socket.close()
        self.lone = not self._groups and not self._closed

    def close(self) -> None:
        """Close all sockets."""
        self._closed = True
        self.lone = False
        for inbox in self._inboxes:
            inbox.socket.close()
        for outlet in self._outlets.values():
            outlet.socket.close()
        if self.idents is not None:
            self.idents.close()
        if self._group is not None:
            self._group.close()
        self.idents = self._group = None
        self._inboxes.clear()
        self._groups.clear()


_Flows = dict[tuple[str, int] | bytes, Flow]
_Buffers = Callable[[int], tuple[memoryview]]


class _Inbox:
    """One socket's receiving side: packets sent to ``address``, by sender."""

    __slots__ = ("_receive", "_receiver", "address", "flows", "socket", "stamp")

    def __init__(self, sock: socket.socket, address: bytes, flows: _Flows | None = None) -> None:
        self.socket = sock
        self.address = address
        self.flows: _Flows = {} if flows is None else flows
        """By the sender's address as the system call gives it."""
        self.stamp = 0
        """When the last packet arrived, in nanoseconds; 0 where the system does not tell, or was not asked."""
        self._receiver = None if _calls is None else _calls.Receiver(sock.fileno())
        self._receive = None if self._receiver is None else self._receiver.receive

    def receive(self, link: UdpLink, quota: int, out: list[RxBurst], buffers: _Buffers) -> bool:
        """Append up to ``quota`` bursts; whether the socket was found empty.

        Args:
            buffers: gives one for each place in ``out``.
        """
        if self._receive is not None:
            return self._receive_compiled(link, quota, out, buffers)
        ancillary_bytes = ANCILLARY_BYTES if link.gro or link.headers else 0
        for _ in range(quota):
            iov = buffers(len(out))
            ancillary: Ancillary = []
            try:
                if ancillary_bytes:
                    size, ancillary, _, sender = self.socket.recvmsg_into(iov, ancillary_bytes)
                else:
                    size, sender = self.socket.recvfrom_into(iov[0])
            except BlockingIOError:
                return True
            except OSError:
                # Some systems report here that an earlier send found no receiver.
                link.counters.bump("rx_socket_error")
                continue
            if not size:
                link.counters.bump(DropReason.TOO_SHORT.value)
                continue
            flow = self.flows.get(sender)
            if flow is None:
                family = socket.AF_INET if len(self.address) == 4 else socket.AF_INET6
                flow = self._flow(link, sender, socket.inet_pton(family, sender[0]), sender[1])
            segment, tclass, hop_limit, label = read_ancillary(ancillary, size)
            self.stamp = read_stamp(ancillary)
            out.append(RxBurst(flow, iov[0][:size], segment, size, None, DONT_FRAGMENT, tclass, hop_limit, label))
        return False

    def _receive_compiled(self, link: UdpLink, quota: int, out: list[RxBurst], buffers: _Buffers) -> bool:
        """The same by the compiled calls, which do not raise."""
        receiver, receive = self._receiver, self._receive
        assert receiver is not None
        assert receive is not None
        for _ in range(quota):
            buffer = buffers(len(out))[0]
            found = receive(buffer)
            if found is None:
                return True
            if found.__class__ is int:
                link.counters.bump("rx_socket_error")
                continue
            size, segment, sender, tclass, hop_limit, label = found
            self.stamp = receiver.stamp
            if not size:
                link.counters.bump(DropReason.TOO_SHORT.value)
                continue
            out.append(self.make_burst(link, sender, buffer[:size], segment, tclass, hop_limit, label))
        return False

    def make_burst(self, link: UdpLink, sender: bytes, buf: memoryview, *how: int) -> RxBurst:
        """What came from a raw socket address; ``how``: segment size, traffic class, hop limit, flow label."""
        flow = self.flows.get(sender)
        if flow is None:
            flow = self._flow(link, sender, *split_address(sender))
        segment, tclass, hop_limit, label = how
        return RxBurst(flow, buf, segment, len(buf), None, DONT_FRAGMENT, tclass, hop_limit, label)

    def _flow(self, link: UdpLink, sender: tuple[str, int] | bytes, address: bytes, port: int) -> Flow:
        if len(self.flows) >= _MAX_CACHED:
            self.flows.clear()
        flow = self.flows[sender] = Flow(address, self.address, port, link.port).doubt()
        return flow


def _scope_id(address: str) -> int:
    interface = address.partition("%")[2]
    if not interface:
        return 0
    try:
        return int(interface) if interface.isdigit() else socket.if_nametoindex(interface)
    except OSError:
        raise LinkError(f"address {address!r} names no interface: correct the part after %") from None
