"""The out-of-band exchange: what two ends tell each other over TCP before they can talk RoCEv2 (003 "Meta Interfaces
for Connection Setup").

One JSON object on one line each way. The client speaks first; the server brings its queue pair up and answers, so
that nothing the client sends afterwards meets a queue pair that is not ready. Whatever arrives is bounded and
checked: a bad line is one :class:`ExchangeError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NoReturn

from rnic.spec.errors import RnicError
from rnic.spec.limits import MAX_RD_ATOMIC, MTU_CODES
from rnic.spec.psn import PSN_MASK

VERSION = 1
MAX_LINE_BYTES = 1 << 20
MAX_BUFFERS = 4_096
MAX_NAME = 200
MAX_DIMENSIONS = 32
DEFAULT_TIMEOUT_S = 10.0

DTYPE_PATTERN = re.compile(r"[<>|=][biufcSUVmM][1-9]\d{0,8}(\[\w{1,12}\])?")
"""Array types as ``numpy.dtype.str`` writes them. Types that hold Python objects are not among them: their bytes
would be taken for pointers."""
_SHOWN = 200


Fields = list[list[Any]]
"""Name, type (text, or fields again) and, for a field that is an array, its shape."""
_MAX_FIELDS = 512
_MAX_DEPTH = 8


def fields_bytes(fields: object, depth: int = 0) -> int:
    """Bytes of one element of a structured type, once its fields are found to be such.

    Raises:
        ValueError: they are not.
    """
    if isinstance(fields, str) and DTYPE_PATTERN.fullmatch(fields):
        return item_bytes(fields)
    if not isinstance(fields, list) or not 0 < len(fields) <= _MAX_FIELDS or depth > _MAX_DEPTH:
        raise ValueError(fields)
    size = 0
    for one in fields:
        if not isinstance(one, list) or len(one) not in (2, 3) or not isinstance(one[0], str):
            raise ValueError(one)
        shape = one[2] if len(one) == 3 else []
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
            raise ValueError(one)
        if not all(type(extent) is int and 0 < extent <= 1 << 32 for extent in shape):
            raise ValueError(one)
        size += prod(shape) * fields_bytes(one[1], depth + 1)
    return size


class ExchangeError(RnicError):
    """The exchange failed: the peer is not there, too slow, or says what makes no sense. One line."""


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """A shared buffer as the peer sees it: where it is, the key that opens it, and what array it holds."""

    name: str
    addr: int
    length: int
    """Bytes."""
    rkey: int
    dtype: str = "|u1"
    """As ``numpy.dtype.str``."""
    shape: tuple[int, ...] = ()
    writable: bool = True
    fields: Fields | None = None
    """Of a structured type, as ``numpy.lib.format.dtype_to_descr`` writes them; ``dtype`` is ``|V`` and its size."""

    def to_dict(self) -> dict[str, object]:
        """As it goes into the line."""
        more = {} if self.fields is None else {"fields": self.fields}
        return {
            "name": self.name,
            "addr": self.addr,
            "length": self.length,
            "rkey": self.rkey,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "writable": self.writable,
            **more,
        }


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a connection to be."""

    qpn: int
    psn: int
    """PSN of the first packet that this end sends."""
    gid: bytes
    """16 bytes; IPv4 addresses as ``::ffff:a.b.c.d``."""
    udp_port: int
    mtu: int
    """Largest path MTU of this end, in bytes. The smaller of the two holds."""
    gso: bool = False
    """This end takes segments with idents 0, 1, 2 ...; segmentation is used where both agree."""
    max_rd_atomic: int = 1
    """READs and atomics that this end answers at a time."""
    message_bytes: int = 0
    """Longest SEND that fits this end's receives."""
    receives: int = 0
    """Receives that this end keeps posted."""
    buffers: tuple[BufferInfo, ...] = field(default=())
    keeps: bool = False
    """This end keeps what comes beyond a gap; where both do, what is lost is sent again alone."""

    def to_line(self) -> bytes:
        """The line that tells the peer."""
        return to_line(
            {
                "rnic": VERSION,
                "qpn": self.qpn,
                "psn": self.psn,
                "gid": self.gid.hex(),
                "udp_port": self.udp_port,
                "mtu": self.mtu,
                "gso": self.gso,
                "keeps": self.keeps,
                "max_rd_atomic": self.max_rd_atomic,
                "message_bytes": self.message_bytes,
                "receives": self.receives,
                "buffers": [buffer.to_dict() for buffer in self.buffers],
            }
        )


def refusal_line(reason: str) -> bytes:
    """The line that says why there will be no connection."""
    return to_line({"rnic": VERSION, "error": reason[:_SHOWN]})


def parse_endpoint(line: bytes, where: str) -> Endpoint:
    """Read a peer's line.

    Args:
        line: without the newline.
        where: the peer, for messages.

    Raises:
        ExchangeError: it is not such a line, another version's, holds a value that cannot be, or is a refusal.
    """
    said = Said(json_object(line, where), where)
    version = said.values.get("rnic")
    if version != VERSION:
        raise ExchangeError(
            f"{where} speaks version {_show(version)} of the exchange, this end {VERSION}: use the same rnic on both"
        )
    if "error" in said.values:
        raise ExchangeError(f"{where} refused: {_plain(said.text('error', _SHOWN))}")
    gid = said.text("gid", 32)
    if not re.fullmatch(r"[0-9a-f]{32}", gid):
        said.refuse("gid", gid, "32 hexadecimal digits")
    mtu = said.number("mtu", 0, 1 << 16)
    if mtu not in MTU_CODES:
        said.refuse("mtu", mtu, f"one of {', '.join(map(str, MTU_CODES))}")
    listed = said.values.get("buffers")
    if not isinstance(listed, list) or len(listed) > MAX_BUFFERS:
        said.refuse("buffers", listed, f"a list of at most {MAX_BUFFERS}")
    buffers = tuple(_buffer(item, where) for item in listed)
    if len({buffer.name for buffer in buffers}) != len(buffers):
        said.refuse("buffers", [buffer.name for buffer in buffers], "names that differ")
    return Endpoint(
        qpn=said.number("qpn", 2, 0xFFFFFE),
        psn=said.number("psn", 0, PSN_MASK),
        gid=bytes.fromhex(gid),
        udp_port=said.number("udp_port", 1, 0xFFFF),
        mtu=mtu,
        gso=said.flag("gso"),
        keeps="keeps" in said.values and said.flag("keeps"),
        max_rd_atomic=said.number("max_rd_atomic", 0, MAX_RD_ATOMIC),
        message_bytes=said.number("message_bytes", 0, 1 << 31),
        receives=said.number("receives", 0, 1 << 16),
        buffers=buffers,
    )


def _buffer(item: object, where: str) -> BufferInfo:
    if not isinstance(item, dict):
        raise ExchangeError(f"{where} sent {_show(item)} as a buffer; allowed: an object")
    said = Said(item, where)
    name = said.text("name", MAX_NAME)
    addr = said.number("addr", 0, (1 << 64) - 1)
    length = said.number("length", 1, 1 << 48)
    if addr + length > 1 << 64:
        said.refuse("addr", addr, f"an address that {length} bytes fit behind")
    dtype = said.text("dtype", 40)
    if not DTYPE_PATTERN.fullmatch(dtype):
        said.refuse("dtype", dtype, "a plain array type such as <f8")
    shape = said.values.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_DIMENSIONS
        or not all(type(extent) is int and 0 < extent <= length for extent in shape)
        or prod(shape) * item_bytes(dtype) != length
    ):
        said.refuse("shape", shape, f"up to {MAX_DIMENSIONS} extents that make {length} bytes of {dtype}")
    fields = said.values.get("fields")
    if fields is not None:
        try:
            if isinstance(fields, str) or dtype != f"|V{fields_bytes(fields)}":
                raise ValueError(fields)
        except (ValueError, RecursionError):
            said.refuse("fields", fields, f"fields that make {dtype}")
    rkey = said.number("rkey", 0, 0xFFFFFFFF)
    return BufferInfo(name, addr, length, rkey, dtype, tuple(shape), said.flag("writable"), fields)  # type: ignore[arg-type] # checked above


def item_bytes(dtype: str) -> int:
    """Bytes of one array element: the digits of its type, four times as many for Unicode."""
    digits = dtype[2:].partition("[")[0]
    return int(digits) * (4 if dtype[1] == "U" else 1)


class Said:
    """Fields of one object that a peer sent; each getter checks one, and raises :class:`ExchangeError`."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self._where = where

    def number(self, name: str, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self.values.get(name)
        if type(value) is not int or not low <= value <= high:
            self.refuse(name, value, f"a whole number from {low} to {high}")
        return value

    def text(self, name: str, limit: int) -> str:
        """1 to ``limit`` characters."""
        value = self.values.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= limit:
            self.refuse(name, value, f"1 to {limit} characters")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.values.get(name)
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value

    def refuse(self, name: str, value: object, allowed: str) -> NoReturn:
        """Raise: the peer said what is not allowed."""
        raise ExchangeError(f"{self._where} sent {name}={_show(value)}; allowed: {allowed}")


def json_object(line: bytes, where: str) -> dict[str, object]:
    """What a line holds. :class:`ExchangeError` where it is no JSON object."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ExchangeError(f"{where} does not speak the exchange of rnic; it sent {_show(line[:40])}")
    return values


def to_line(values: Mapping[str, object]) -> bytes:
    """One line that a peer can read with :func:`json_object`."""
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _plain(text: str) -> str:
    """Text from a peer, fit for a terminal and for one line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _show(value: object) -> str:
    text = _plain(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------------------- over TCP


class LineSocket:
    """A TCP connection that carries lines.

    Args:
        sock: connected; owned from now on.
        where: the peer, for messages.
    """

    def __init__(self, sock: socket.socket, where: str) -> None:
        self.sock = sock
        self.where = where
        self._rest = bytearray()
        self._pid = os.getpid()

    def send(self, line: bytes, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Send one line, newline included. :class:`ExchangeError` where the peer is gone."""
        try:
            self.sock.settimeout(timeout_s)
            self.sock.sendall(line)
        except TimeoutError:
            raise ExchangeError(f"{self.where} took nothing for {timeout_s:g} s; is it overloaded?") from None
        except OSError as error:
            raise ExchangeError(f"{self.where} hung up: {error.strerror}") from None

    def receive(
        self, timeout_s: float | None = DEFAULT_TIMEOUT_S, clock: Callable[[], float] = time.monotonic
    ) -> bytes:
        """One line, without its newline.

        Args:
            timeout_s: for the whole line, so that a peer cannot hold us by sending slowly; ``None`` waits.

        Raises:
            ExchangeError: too slow, too long, or the connection ended.
        """
        end = None if timeout_s is None else clock() + timeout_s
        searched = 0
        while True:
            at = self._rest.find(b"\n", searched)
            if at >= 0:
                line = bytes(self._rest[:at])
                del self._rest[: at + 1]
                return line
            searched = len(self._rest)
            if searched > MAX_LINE_BYTES:
                raise ExchangeError(f"{self.where} sent a line longer than {MAX_LINE_BYTES} bytes")
            left = None if end is None else end - clock()
            if left is not None and left <= 0:
                raise ExchangeError(f"{self.where} sent no whole line within {timeout_s:g} s; is it an rnic listener?")
            self.sock.settimeout(left)
            try:
                got = self.sock.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError as error:
                raise ExchangeError(f"{self.where} hung up: {error.strerror}") from None
            if not got:
                raise ExchangeError(f"{self.where} hung up before the exchange was done")
            self._rest += got

    async def areceive(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """:meth:`receive` for asyncio."""
        loop = asyncio.get_running_loop()
        self.sock.setblocking(False)
        try:
            async with asyncio.timeout(timeout_s):
                while (at := self._rest.find(b"\n")) < 0:
                    if len(self._rest) > MAX_LINE_BYTES:
                        raise ExchangeError(f"{self.where} sent a line longer than {MAX_LINE_BYTES} bytes")
                    got = await loop.sock_recv(self.sock, 1 << 16)
                    if not got:
                        raise ExchangeError(f"{self.where} hung up before the exchange was done")
                    self._rest += got
        except TimeoutError:
            raise ExchangeError(
                f"{self.where} sent no whole line within {timeout_s:g} s; is it an rnic listener?"
            ) from None
        except OSError as error:
            raise ExchangeError(f"{self.where} hung up: {error.strerror}") from None
        line = bytes(self._rest[:at])
        del self._rest[: at + 1]
        return line

    async def asend(self, line: bytes, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """:meth:`send` for asyncio."""
        self.sock.setblocking(False)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_sendall(self.sock, line)
        except TimeoutError:
            raise ExchangeError(f"{self.where} took nothing for {timeout_s:g} s; is it overloaded?") from None
        except OSError as error:
            raise ExchangeError(f"{self.where} hung up: {error.strerror}") from None

    def close(self) -> None:
        """Hang up, and wake who waits for the peer in another thread; a second call does nothing.

        In a child of the process that made it the connection is the parent's, and stays.
        """
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):  # the peer has hung up, or this side has
                # a thread in poll would not hear of a close, and keep the connection up as long as it waits
                self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def tcp_port(host: str, port: int | str, low: int) -> int:
    """A port as callers give it: a number, or its digits.

    Raises:
        ExchangeError: it is none from ``low`` to 65535; the system would cut a larger number off. Or the host is no
            text, or brings a port of its own.
    """
    if not isinstance(host, str):
        raise ExchangeError(f"cannot use host {host!r:.40}: give a name or an address as text, then the port")
    name, colon, digits = host.partition(":")
    if name and colon and digits.isascii() and digits.isdigit():
        raise ExchangeError(f"cannot use host {host}: give {name!r} and {digits} one after the other")
    number = int(port) if isinstance(port, str) and port.isascii() and port.isdigit() else port
    if type(number) is not int or not low <= number <= 0xFFFF:
        raise ExchangeError(f"cannot use {host} port {port}: a TCP port is a whole number from {low} to 65535")
    return number


@contextlib.contextmanager
def dialling(where: str, timeout_s: float) -> Iterator[None]:
    """Around what connects: what the system says becomes one :class:`ExchangeError`."""
    try:
        yield
    except ConnectionRefusedError:
        raise ExchangeError(f"nobody listens on {where}: start the listener first, or correct host and port") from None
    except TimeoutError:
        raise ExchangeError(f"{where} did not answer within {timeout_s:g} s: correct host and port") from None
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExchangeError(f"cannot reach {where}: {reason}") from None


def dial(host: str, port: int | str, timeout_s: float = DEFAULT_TIMEOUT_S) -> LineSocket:
    """Connect to a listener. :class:`ExchangeError` where nobody answers."""
    number = tcp_port(host, port, 1)
    where = f"{host} port {number}"
    with dialling(where, timeout_s):
        sock = socket.create_connection((host, number), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return LineSocket(sock, where)


def listen_socket(host: str, port: int | str) -> socket.socket:
    """A listening TCP socket; port 0 lets the system choose.

    Raises:
        ExchangeError: bad address, or a port that is taken.
    """
    number = tcp_port(host, port, 0)
    where = f"{host} port {number}"
    try:
        info = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(info[0], info[1], info[2])
    except (OSError, UnicodeError, OverflowError) as error:
        raise ExchangeError(f"cannot listen on {where}: {getattr(error, 'strerror', None) or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(info[4])
        sock.listen(64)
    except (OSError, OverflowError) as error:
        sock.close()
        if getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
            raise ExchangeError(
                f"cannot listen on TCP {where}: the address is not one of this machine; 127.0.0.1 always is"
            ) from None
        reason = getattr(error, "strerror", None) or error
        raise ExchangeError(
            f"cannot listen on TCP {where}: {reason}; give another port (0 lets the system choose)"
        ) from None
    return sock
