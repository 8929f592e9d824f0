"""Create and configure UDP sockets for the link, on different systems."""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import socket
import struct
import sys

from rnic.link.base import LinkError, format_address
from rnic.link.interface import interface_of

# Linux numbers that Python's socket module lacks (linux/udp.h, linux/in.h, linux/in6.h).
SOL_UDP = 17
UDP_NO_CHECK6_RX = 102
UDP_SEGMENT = 103
UDP_GRO = 104
_SO_TIMESTAMPNS = 35
_IP_MTU_DISCOVER = 10
_IPV6_MTU_DISCOVER = 23
_PMTUDISC_DO = 2
_FORCED = {socket.SO_RCVBUF: 33, socket.SO_SNDBUF: 32}
"""SO_RCVBUFFORCE and SO_SNDBUFFORCE, for programs with CAP_NET_ADMIN."""
_IP_MULTICAST_ALL = 49
_IP_RECVTTL = 12
_IPV6_RECVHOPLIMIT = 51
_IPV6_FLOWINFO = 11
_IPV6_FLOWINFO_SEND = 33
_IP_TTL = 2
_IP_TOS = 1
_IPV6_TCLASS = 67
_IPV6_HOPLIMIT = 52

_LOCAL_SCOPES = (1, 2)
"""Scope nibbles of interface-local and link-local IPv6 multicast, whose addresses do not identify the interface (RFC
4291, 2.7)."""

_DONT_FRAGMENT = {"darwin": (28, 62), "win32": (14, 14)}
"""Socket options that set DF on other systems, for IPv4 and IPv6."""

LINUX = sys.platform == "linux"
HAS_SENDMSG = hasattr(socket.socket, "sendmsg")
HAS_RECVMSG_INTO = hasattr(socket.socket, "recvmsg_into")
ANCILLARY_BYTES = 128 if HAS_RECVMSG_INTO else 0
"""Size of ancillary data for the segment size of a received burst and fields of its IP header."""
UNTOLD_HOP_LIMIT = 64
"""Hop limit of a packet if the kernel does not report it."""
MAX_PRIORITY = 6
"""Highest SO_PRIORITY that Linux allows without CAP_NET_ADMIN."""

_SEGMENT = struct.Struct("=H")
_STAMP = struct.Struct("@ll")
_LABEL_MASK = 0xFFFFF

_OPEN_ERRORS = {
    errno.EADDRINUSE: "is taken: give another port (0 lets the system choose one) or another local address;"
    " programs that are to share one NIC open it with rnic.open()",
    errno.EADDRNOTAVAIL: "cannot be used: the address is not one of this machine; 127.0.0.1 always is",
    errno.EACCES: "is not permitted: give a port from 1024 on",
}

_PLACES = {
    (SOL_UDP, UDP_GRO): 0,
    (socket.IPPROTO_IP, _IP_TOS): 1,
    (socket.IPPROTO_IPV6, _IPV6_TCLASS): 1,
    (socket.IPPROTO_IP, _IP_TTL): 2,
    (socket.IPPROTO_IPV6, _IPV6_HOPLIMIT): 2,
    (socket.IPPROTO_IPV6, _IPV6_FLOWINFO): 3,
}
"""Index at which :func:`read_ancillary` stores each value that Linux reports, by level and type."""

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
Ancillary = list[tuple[int, int, bytes]]


def open_socket(address: bytes, port: int, scope_id: int, buffer_bytes: int, member: bool = False) -> socket.socket:
    """Return a non-blocking unconnected UDP socket that sends with DF.

    If ``member`` is true, it joins the sockets on the same address and port, if they allow it
    (:mod:`rnic.link.steering`).

    Raises:
        LinkError: the address is not on this machine, the port is in use, or the kernel refuses.
    """
    ipv4 = len(address) == 4
    sock = _make(ipv4)
    try:
        _set_dont_fragment(sock, ipv4)
        _set_multicast_interface(sock, address)
        for option in _FORCED:
            set_buffer(sock, option, buffer_bytes)
        if member:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(socket_address(address, port, scope_id))
    except OSError as error:
        sock.close()
        remedy = _OPEN_ERRORS.get(error.errno or 0, f"cannot be opened: {error.strerror}")
        owner = port_owner(address, port) if error.errno == errno.EADDRINUSE else None
        if owner is not None and owner != os.getuid():
            remedy = f"is user {owner}'s, who has a NIC of their own there: give another local address or another port"
        raise LinkError(f"UDP port {port} on {format_address(address)} {remedy}") from None
    return sock


def port_owner(address: bytes, port: int) -> int | None:
    """Return the user ID of the owner of a UDP port at a local address, or at all of them; ``None`` if the kernel does
    not say."""
    wanted = {_kernel_hex(address), _kernel_hex(bytes(len(address)))}
    try:
        with open("/proc/net/udp" if len(address) == 4 else "/proc/net/udp6", encoding="ascii") as table:
            rows = [line.split() for line in table][1:]
    except OSError:
        return None
    for row in rows:
        where, _, number = row[1].partition(":")
        if int(number, 16) == port and where in wanted:
            return int(row[7])
    return None


def _kernel_hex(address: bytes) -> str:
    """Return an address in the format of the kernel's tables: 32-bit words in host byte order."""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(address) // 4}I", address))


def open_group_socket(address: bytes, group: bytes, port: int, buffer_bytes: int) -> socket.socket:
    """Return a non-blocking UDP socket that receives packets to a multicast group on the interface of ``address``.

    A socket bound to a unicast address gets no multicast, and one bound to the group gets only multicast.
    Several NICs of a machine may bind the same group.

    Raises:
        LinkError: the kernel refuses.
    """
    ipv4 = len(address) == 4
    index = _interface_index(address)
    sock = _make(ipv4)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        set_buffer(sock, socket.SO_RCVBUF, buffer_bytes)
        sock.bind(socket_address(group, port, index))
        if ipv4:
            if LINUX:
                set_option(sock, socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group + address)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack("=I", index))
    except OSError as error:
        sock.close()
        raise LinkError(
            f"cannot join {format_address(group)} on {format_address(address)}: {error.strerror}; "
            "give the link an address of an interface that carries multicast"
        ) from None
    return sock


def socket_address(address: bytes, port: int, scope_id: int, flow_label: int = 0) -> SocketAddress:
    """Return the address in the socket module's format; ``scope_id`` applies to IPv6 addresses of link scope."""
    text = format_address(address)
    if len(address) == 4:
        return text, port
    parsed = ipaddress.IPv6Address(address)
    local_scope = parsed.is_link_local or (parsed.is_multicast and address[1] & 0xF in _LOCAL_SCOPES)
    return text, port, flow_label, scope_id if local_scope else 0


def raw_address(to: SocketAddress) -> bytes:
    """Return a Linux ``sockaddr_in`` or ``sockaddr_in6``: family and scope in host order, all else as on the wire."""
    family = socket.AF_INET if len(to) == 2 else socket.AF_INET6
    head = family.to_bytes(2, sys.byteorder) + to[1].to_bytes(2, "big")
    if len(to) == 2:
        return head + socket.inet_pton(family, to[0]) + bytes(8)
    return head + struct.pack(">I", to[2]) + socket.inet_pton(socket.AF_INET6, to[0]) + struct.pack("=I", to[3])


def split_address(raw: bytes) -> tuple[bytes, int]:
    """Return IP address, 4 or 16 bytes, and port of a Linux ``sockaddr_in`` or ``sockaddr_in6``."""
    ipv4 = int.from_bytes(raw[:2], sys.byteorder) == socket.AF_INET
    return raw[4:8] if ipv4 else raw[8:24], int.from_bytes(raw[2:4], "big")


def set_option(sock: socket.socket, level: int, option: int, value: int | bytes) -> bool:
    """Set an option that a system may lack. Return whether it was set."""
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def set_buffer(sock: socket.socket, option: int, size: int) -> None:
    """Set a buffer to the requested size, limited by ``net.core.rmem_max`` unless this user may exceed it."""
    set_option(sock, socket.SOL_SOCKET, option, size)
    if LINUX and sock.getsockopt(socket.SOL_SOCKET, option) < 2 * size:  # the kernel reports twice the granted size
        set_option(sock, socket.SOL_SOCKET, _FORCED[option], size)


def enable_gso(sock: socket.socket) -> bool:
    """Check for segmentation by the kernel; return whether it is available."""
    return LINUX and HAS_SENDMSG and set_option(sock, SOL_UDP, UDP_SEGMENT, 0)


def enable_gro(sock: socket.socket) -> bool:
    """Enable receiving whole bursts; return whether the kernel supports it."""
    return LINUX and HAS_RECVMSG_INTO and set_option(sock, SOL_UDP, UDP_GRO, 1)


def enable_headers(sock: socket.socket, ipv4: bool, hop_limits: bool = True) -> bool:
    """Enable reports of traffic class, hop limit and flow label of received packets; return whether the kernel reports
    the first two.

    Each costs some time per packet; without ``hop_limits``, hop limits are not requested.
    """
    if not HAS_RECVMSG_INTO or not LINUX:
        return False
    if ipv4:
        level, tclass, hop_limit = socket.IPPROTO_IP, socket.IP_RECVTOS, _IP_RECVTTL
    else:
        level, tclass, hop_limit = socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, _IPV6_RECVHOPLIMIT
        set_option(sock, level, _IPV6_FLOWINFO, 1)
    told = [set_option(sock, level, tclass, 1), set_option(sock, level, hop_limit, int(hop_limits))]
    return all(told)


def enable_stamps(sock: socket.socket) -> bool:
    """Enable arrival times of packets; return whether the kernel reports them."""
    return LINUX and set_option(sock, socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def read_stamp(ancillary: Ancillary) -> int:
    """Return a packet's arrival time in nanoseconds; 0 if the kernel did not report it."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _STAMP.size:
            seconds, nanoseconds = _STAMP.unpack(data)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return 0


def segment_option(segment: int) -> Ancillary:
    """Return the option that makes the kernel segment a send into payloads of ``segment`` bytes."""
    return [(SOL_UDP, UDP_SEGMENT, _SEGMENT.pack(segment))]


def read_ancillary(ancillary: Ancillary, size: int) -> tuple[int, int, int, int]:
    """Return segment size, traffic class, hop limit and flow label of a received burst of ``size`` bytes.

    Linux only merges packets that agree in all of these.
    """
    told = [size, 0, UNTOLD_HOP_LIMIT, 0]
    for level, kind, data in ancillary:
        place = _PLACES.get((level, kind))
        if place is not None:
            told[place] = int.from_bytes(data, sys.byteorder)
    segment, tclass, hop_limit, label = told
    return segment, tclass, hop_limit, socket.ntohl(label) & _LABEL_MASK if label else 0


def set_tclass(sock: socket.socket, ipv4: bool, tclass: int) -> None:
    """Set the traffic class of packets sent from now on, ECN bits included."""
    if ipv4:
        set_option(sock, socket.IPPROTO_IP, socket.IP_TOS, tclass)
    elif hasattr(socket, "IPV6_TCLASS"):
        set_option(sock, socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tclass)


def set_hop_limit(sock: socket.socket, ipv4: bool, hop_limit: int) -> None:
    """Set the TTL or hop limit of packets sent from now on, including to groups."""
    if ipv4:
        set_option(sock, socket.IPPROTO_IP, socket.IP_TTL, hop_limit)
        set_option(sock, socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hop_limit)
    else:
        set_option(sock, socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hop_limit)
        set_option(sock, socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, hop_limit)


def set_priority(sock: socket.socket, level: int) -> bool:
    """Set the priority of packets sent from now on. Return false if the kernel limited or does not support it."""
    if not LINUX:
        return False
    if set_option(sock, socket.SOL_SOCKET, socket.SO_PRIORITY, level):
        return True
    set_option(sock, socket.SOL_SOCKET, socket.SO_PRIORITY, MAX_PRIORITY)
    return False


def granted_receive_bytes(sock: socket.socket) -> int:
    """Return the granted receive buffer as reported by Linux: twice the requested size, in truesize."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def wait_writable(sock: socket.socket, timeout_ms: int) -> None:
    """Wait until the send buffer takes more, or for ``timeout_ms``."""
    if hasattr(select, "poll"):
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        poller.poll(timeout_ms)
    else:
        select.select([], [sock], [], timeout_ms / 1_000)


def _make(ipv4: bool) -> socket.socket:
    try:
        sock = socket.socket(socket.AF_INET if ipv4 else socket.AF_INET6, socket.SOCK_DGRAM)
    except OSError as error:
        version = "IPv4" if ipv4 else "IPv6"
        raise LinkError(f"this system opens no {version} socket: {error.strerror}; use the other") from None
    sock.setblocking(False)
    if not ipv4:
        set_option(sock, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if LINUX:
            # hardware and rxe send RoCEv2 over IPv6 with UDP checksum 0
            set_option(sock, SOL_UDP, UDP_NO_CHECK6_RX, 1)
            set_option(sock, socket.IPPROTO_IPV6, _IPV6_FLOWINFO_SEND, 1)
    return sock


def _set_dont_fragment(sock: socket.socket, ipv4: bool) -> None:
    level = socket.IPPROTO_IP if ipv4 else socket.IPPROTO_IPV6
    if LINUX:
        sock.setsockopt(level, _IP_MTU_DISCOVER if ipv4 else _IPV6_MTU_DISCOVER, _PMTUDISC_DO)
    elif sys.platform in _DONT_FRAGMENT:
        set_option(sock, level, _DONT_FRAGMENT[sys.platform][0 if ipv4 else 1], 1)


def _set_multicast_interface(sock: socket.socket, address: bytes) -> None:
    if len(address) == 4:
        set_option(sock, socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
    else:
        set_option(sock, socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, _interface_index(address))


def _interface_index(address: bytes) -> int:
    """Return the index of the interface that holds an address; 0, the kernel's choice, if unknown."""
    name = interface_of(address)
    return socket.if_nametoindex(name) if name is not None else 0
