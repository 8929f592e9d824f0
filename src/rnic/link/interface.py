"""Look up a local address in the kernel: the IP MTU of its interface, and whether it belongs to this machine."""

from __future__ import annotations

import array
import ipaddress
import socket
import struct
import sys

from rnic.link.base import format_address

DEFAULT_MTU = 1_500
"""MTU of Ethernet, used if the kernel does not report one."""

_LINUX_64 = sys.platform == "linux" and struct.calcsize("P") == 8
_SIOCGIFCONF = 0x8912
_SIOCGIFMTU = 0x8921
_IFREQ = struct.Struct("16sHH4s16x")
"""Name, family, port and IPv4 address of a Linux ifreq on 64-bit systems."""
_SIOCGIFFLAGS = 0x8913
_FLAGS_REQUEST = struct.Struct("16sH22x")
_IFF_UP = 1
_MTU_REQUEST = struct.Struct("16si20x")
_IFCONF_BYTES = 1_024 * _IFREQ.size


def interface_of(address: bytes) -> str | None:
    """Return the name of the Linux interface that holds a 4- or 16-byte address, or ``None``."""
    try:
        return _ipv4_interface(address) if len(address) == 4 else _ipv6_interface(address)
    except OSError:
        return None


def is_of_many(address: bytes) -> bool:
    """Return whether an address is a multicast or broadcast address, which can be bound but names no machine.

    The kernel knows the broadcast addresses of its networks, and refuses to connect a socket to one without
    SO_BROADCAST.
    """
    if address[0] == 0xFF if len(address) == 16 else address[0] >= 224:
        return True
    if len(address) == 16:
        return False
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((socket.inet_ntoa(address), 9))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def is_up(name: str) -> bool:
    """Return whether a Linux interface is up; true if the kernel does not say."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answer = _ioctl(sock, _SIOCGIFFLAGS, _FLAGS_REQUEST.pack(name.encode(), 0))
    except OSError:
        return True
    return bool(_FLAGS_REQUEST.unpack(answer)[1] & _IFF_UP)


def ip_mtu(address: bytes) -> int:
    """Return the IP MTU in bytes of the interface that holds an address; 1500 if the kernel does not say."""
    name = interface_of(address)
    if name is None:
        return DEFAULT_MTU
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answer = _ioctl(sock, _SIOCGIFMTU, _MTU_REQUEST.pack(name.encode(), 0))
    except OSError:
        return DEFAULT_MTU
    mtu = _MTU_REQUEST.unpack(answer)[1]
    return int(mtu)


def local_addresses() -> list[str]:
    """Return the usable addresses of this machine: 127.0.0.1 first, then ::1, then those of its interfaces."""
    found = ["127.0.0.1"]
    try:
        if is_local(bytes(15) + b"\1"):
            found.append("::1")
        found += [format_address(address) for name, address in _ipv4_table() if address[0] != 127]
        with open("/proc/net/if_inet6", encoding="ascii") as table:
            rows = [line.split() for line in table]
        # scope 00 is global; link-local addresses need a zone, which packets do not carry
        found += [format_address(bytes.fromhex(row[0])) for row in rows if len(row) == 6 and row[3] == "00"]
    except OSError:
        return found
    return list(dict.fromkeys(found))


def is_local(address: bytes) -> bool:
    """Return whether packets to an address stay on this machine, which is true if a socket can be bound to this unicast
    address."""
    if address[0] == 127 and len(address) == 4:
        return True
    if ipaddress.ip_address(address).is_multicast:
        return False
    family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((format_address(address), 0))
    except OSError:
        return False
    return True


def _ioctl(sock: socket.socket, request: int, argument: bytes) -> bytes:
    import fcntl  # noqa: PLC0415 - Windows has no fcntl, and no interface is ever found there

    return fcntl.ioctl(sock, request, argument)


def _ipv4_interface(address: bytes) -> str | None:
    if _LINUX_64 and address[0] == 127:
        return "lo"
    for name, found in _ipv4_table():
        if found == address:
            return name
    return None


def _ipv4_table() -> list[tuple[str, bytes]]:
    """Return interface name and address of every IPv4 address (SIOCGIFCONF)."""
    if not _LINUX_64:
        return []
    buffer = array.array("B", bytes(_IFCONF_BYTES))
    where, _ = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = _ioctl(sock, _SIOCGIFCONF, struct.pack("i4xP", _IFCONF_BYTES, where))
    used = struct.unpack_from("i", answer)[0]
    rows = (_IFREQ.unpack_from(buffer, start) for start in range(0, used, _IFREQ.size))
    # An alias such as eth0:1 is a label of eth0.
    return [(name.split(b"\0", 1)[0].decode().partition(":")[0], found) for name, _, _, found in rows]


def _ipv6_interface(address: bytes) -> str | None:
    with open("/proc/net/if_inet6", encoding="ascii") as table:
        for line in table:
            words = line.split()
            if len(words) == 6 and words[0] == address.hex():
                return words[5]
    return None
