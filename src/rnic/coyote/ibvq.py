"""Connection setup: the exchange of Coyote's hosts over TCP, and rnic's own; both end with the same two structures.

Coyote's hosts exchange ``ibvQ`` in its x86-64 memory layout, little-endian, the client's first: 72 bytes with a 64-bit
size, or, in older hosts, 64 bytes with a 32-bit size. A server tells the two apart by the offset of the GID, and
answers in the same layout. The connection then stays open: it carries 32-bit words for barriers (``connSync``) and a
final word to close it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import time
from errno import EINVAL, ENOENT
from typing import Final, NamedTuple

from rnic.arrays.handshake import BufferInfo, Endpoint, parse_endpoint
from rnic.cm.line_socket import ExchangeError, LineSocket, dial, listen_socket
from rnic.coyote.pair import RD_ATOMIC, RECEIVES, SEND_BYTES
from rnic.coyote.shell import ADDRESS_END
from rnic.coyote.stack import RoceStack
from rnic.link.base import format_address
from rnic.rings import coyote as c
from rnic.spec.errors import VerbsError
from rnic.spec.limits import ROCE_UDP_PORT

DEF_PORT: Final = 18488
_IBVQ = struct.Struct("<4I2Q33s7x")
IBVQ_BYTES: Final = _IBVQ.size
_OLDER = struct.Struct("<4IQI33s3x")
OLDER_BYTES: Final = _OLDER.size
"""Length of an older host's ``ibvQ``, whose size field has 32 bits."""
OLDER_SIZE: Final = 0xFFFF_FFFF
"""Largest buffer, in bytes, that an older host's ``ibvQ`` can describe."""
_GID_AT, _OLDER_GID_AT, _GID_DIGITS = 32, 28, 32
_GRACE_S = 0.5
"""Seconds to wait for the rest of a 72-byte ``ibvQ`` if no GID shows the layout."""
_HEX = frozenset(b"0123456789abcdefABCDEF")
_WORD = struct.Struct("<I")
CLOSE: Final = 0
"""Word that a client sends before it closes the connection."""


class IbvQ(NamedTuple):
    """One side of a queue pair, as Coyote's hosts exchange it.

    ``ip_addr`` is an IPv4 address as a number, ``gid`` up to 32 hexadecimal digits: the address four times.
    """

    ip_addr: int
    qpn: int
    psn: int
    rkey: int
    vaddr: int
    size: int
    gid: str = ""
    older: bool = False
    """True if the host uses the older layout of 64 bytes."""

    def pack(self) -> bytes:
        """Return the ``ibvQ`` in 72 bytes, or in the older 64.

        Raises:
            ExchangeError: the size does not fit in the older layout.
        """
        gid = self.gid or f"{self.ip_addr:08x}" * 4
        if self.older and self.size > OLDER_SIZE:
            raise ExchangeError(f"size={self.size}: an older host's ibvQ has 32 bits for it, at most {OLDER_SIZE}")
        return (_OLDER if self.older else _IBVQ).pack(*self[:6], gid.encode())

    @property
    def address(self) -> str:
        """The IPv4 address in dotted form."""
        return str(ipaddress.IPv4Address(self.ip_addr))


def unpack_ibvq(data: bytes, where: str) -> IbvQ:
    """Parse the ``ibvQ`` that a peer sent.

    Args:
        data: 72 bytes, or the older 64.
        where: the peer, for messages.

    Raises:
        ExchangeError: the bytes do not describe a queue pair.
    """
    older = len(data) == OLDER_BYTES
    *numbers, gid = (_OLDER if older else _IBVQ).unpack(data)
    ip_addr, qpn, psn, rkey, vaddr, size = numbers
    said = IbvQ(ip_addr, qpn, psn, rkey, vaddr, size, gid.partition(b"\0")[0].decode("ascii", "replace"), older)
    host = ipaddress.IPv4Address(said.ip_addr)
    wrong = (
        (host.is_multicast or host.is_unspecified or said.ip_addr == 0xFFFFFFFF, f"ip_addr={host}", "a host's address"),
        (not 0 < said.qpn <= 0xFFFFFF, f"qpn={said.qpn:#x}", "1 to 2**24 - 1"),
        (said.psn > 0xFFFFFF, f"psn={said.psn:#x}", "below 2**24"),
        (said.vaddr + said.size > ADDRESS_END, f"vaddr={said.vaddr:#x} size={said.size}", "below 2**48"),
    )
    for bad, what, right in wrong:
        if bad:
            raise ExchangeError(f"{where} sent an ibvQ with {what}: it has to be {right}")
    return said


class OutOfBand:
    """The TCP connection between two hosts.

    Args:
        sock: connected; owned from now on.
        where: the peer, for messages.
    """

    def __init__(self, sock: socket.socket, where: str) -> None:
        self.sock = sock
        self.where = where

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send all of ``data``; raise :class:`~rnic.arrays.handshake.ExchangeError` if the peer is gone."""
        try:
            self.sock.settimeout(timeout_s)
            self.sock.sendall(data)
        except OSError as error:
            raise ExchangeError(f"{self.where} hung up: {error}") from None

    def receive(self, count: int, timeout_s: float | None, what: str) -> bytes:
        """Receive ``count`` bytes within ``timeout_s`` in total; raise :class:`ExchangeError` if they do not arrive."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        found = b""
        while len(found) < count:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise ExchangeError(f"{self.where} sent no {what} within {timeout_s:g} s: is it a Coyote host?")
            try:
                self.sock.settimeout(left)
                got = self.sock.recv(count - len(found))
            except TimeoutError:
                continue
            except OSError as error:
                raise ExchangeError(f"{self.where} hung up: {os.strerror(error.errno or 0)}") from None
            if not got:
                raise ExchangeError(f"{self.where} hung up before its {what} was there")
            found += got
        return found

    def receive_soon(self, count: int, timeout_s: float) -> bytes:
        """Receive up to ``count`` bytes within ``timeout_s``; fewer if the connection has ended."""
        end, found = time.monotonic() + timeout_s, b""
        while len(found) < count and (left := end - time.monotonic()) > 0:
            try:
                self.sock.settimeout(left)
                got = self.sock.recv(count - len(found))
            except OSError:
                break
            if not got:
                break
            found += got
        return found

    def send_word(self, word: int, timeout_s: float) -> None:
        """Send one 32-bit word."""
        self.send(_WORD.pack(word), timeout_s)

    def receive_word(self, timeout_s: float | None, what: str) -> int:
        """Receive one 32-bit word."""
        (word,) = _WORD.unpack(self.receive(_WORD.size, timeout_s, what))
        return int(word)

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


def accept(host: str, port: int, timeout_s: float | None) -> OutOfBand:
    """Wait for one client."""
    with listen_socket(host, port) as listener:
        listener.settimeout(timeout_s)
        try:
            sock, peer = listener.accept()
        except TimeoutError:
            raise ExchangeError(f"nobody came to TCP port {port} of {host} within {timeout_s:g} s") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return OutOfBand(sock, f"{peer[0]} port {peer[1]}")


def call(host: str, port: int, timeout_s: float) -> OutOfBand:
    """Connect to a server."""
    lines = dial(host, port, timeout_s)
    return OutOfBand(lines.sock, lines.where)


def own_ibvq(stack: RoceStack, number: int, psn: int, vaddr: int, size: int, older: bool = False) -> IbvQ:
    """Return queue pair ``number``'s ``ibvQ``: R_Key 0, since the peer uses the process's virtual addresses."""
    address = stack.runtime.nic.config.address
    if len(address) != 4:
        raise VerbsError(EINVAL, f"{format_address(address)} is IPv6, and an ibvQ has IPv4: use an IPv4 address")
    return IbvQ(int.from_bytes(address, "big"), stack.pair(number).qp.qp_num, psn, 0, vaddr, size, older=older)


def _gid_stands_at(data: bytes, place: int) -> bool:
    return len(text := data[place : place + _GID_DIGITS]) == _GID_DIGITS and set(text) <= _HEX


def _receive_ibvq(line: OutOfBand, timeout_s: float) -> bytes:
    """Receive a peer's 72 or 64 bytes: the GID's offset shows which; without a GID, whether 8 more bytes come."""
    data = line.receive(OLDER_BYTES, timeout_s, "ibvQ")
    if _gid_stands_at(data, _OLDER_GID_AT) and not data[_OLDER_GID_AT + _GID_DIGITS]:
        return data
    rest = IBVQ_BYTES - OLDER_BYTES
    if _gid_stands_at(data, _GID_AT) or any(data[_OLDER_GID_AT:]):
        return data + line.receive(rest, timeout_s, "ibvQ")
    more = line.receive_soon(rest, min(timeout_s, _GRACE_S))
    return data + more if len(more) == rest else data


def exchange(line: OutOfBand, own: IbvQ, *, client: bool, timeout_s: float) -> IbvQ:
    """Send this side's ``ibvQ`` and return the peer's; the client sends first, the server answers in its layout.

    Args:
        own: as a client, ``older`` says which kind of host the server is.

    Raises:
        ExchangeError: the peer is gone, sends nonsense, or answers in another layout than this side's.
    """
    if client:
        line.send(own.pack(), timeout_s)
    peer = unpack_ibvq(_receive_ibvq(line, timeout_s), line.where)
    if not client:
        line.send(own._replace(older=peer.older).pack(), timeout_s)
    elif peer.older != own.older:
        kinds = {False: f"{IBVQ_BYTES} bytes", True: f"{OLDER_BYTES} bytes"}
        raise ExchangeError(
            f"{line.where} answers an ibvQ of {kinds[own.older]} with {kinds[peer.older]}: "
            f"connect with older={peer.older}"
        )
    return peer


def bring_up(stack: RoceStack, number: int, psn: int, peer: IbvQ, udp_port: int = ROCE_UDP_PORT) -> None:
    """Connect queue pair ``number`` to the peer with the two structures, up to READY_SEND."""
    _connect(stack, number, psn, peer, 0xFFFF << 32 | peer.ip_addr, udp_port)


def _connect(stack: RoceStack, number: int, psn: int, peer: IbvQ, gid: int, udp_port: int) -> None:
    context = {
        "qp_num": number,
        "remote_psn": peer.psn,
        "local_psn": psn,
        "r_key": stack.keys.add(peer.rkey) if peer.rkey else 0,
        "virtual_address": peer.vaddr & ADDRESS_END - 1,
    }
    request = {"qpn": number, "remote_qpn": peer.qpn, "remote_ip_address": gid, "remote_udp_port": udp_port}
    stack.s_axis_qp_interface(c.QP_CONTEXT.pack(context | {"new_state": c.INIT}))
    stack.s_axis_qp_conn_interface(c.IF_CONN_REQ.pack(request))
    stack.s_axis_qp_interface(c.QP_CONTEXT.pack(context | {"new_state": c.READY_SEND}))


def connect(
    stack: RoceStack, number: int, vaddr: int, length: int, lines: LineSocket, *, passive: bool, psn: int
) -> BufferInfo:
    """Connect queue pair ``number`` through rnic's own exchange over TCP, with keys, then the two structures.

    Args:
        vaddr: first byte of the host memory that the peer may reach, ``length`` bytes of it.
        lines: a TCP connection to the peer, for the exchange of :mod:`rnic.arrays.handshake`.
        passive: this side answers; else it speaks first.
        psn: PSN of the first packet sent, 0 to 2**24 - 1.

    Returns:
        The peer's memory; its key has a short number in ``stack.keys``.

    Raises:
        ExchangeError: the peer is gone or sends nonsense.
        VerbsError: ``ENOENT`` if the peer shares no memory.
    """
    rkey = stack.register(number, vaddr, length)
    config = stack.runtime.nic.config
    own = Endpoint(
        qpn=stack.pair(number).qp.qp_num,
        psn=psn,
        gid=config.gid,
        udp_port=config.port,
        mtu=config.mtu,
        max_rd_atomic=RD_ATOMIC,
        message_bytes=SEND_BYTES,
        receives=RECEIVES,
        buffers=(BufferInfo("memory", vaddr, length, rkey, "|u1", (length,)),),
    )
    if not passive:
        lines.send(own.to_line())
    peer = parse_endpoint(lines.receive(), lines.where)
    if not peer.buffers:
        raise VerbsError(ENOENT, f"{lines.where} shares no memory: let it share a buffer first")
    memory = peer.buffers[0]
    said = IbvQ(0, peer.qpn, peer.psn, memory.rkey, memory.addr, memory.length)
    _connect(stack, number, psn, said, int.from_bytes(peer.gid, "big"), peer.udp_port)
    if passive:
        lines.send(own.to_line())
    return memory
