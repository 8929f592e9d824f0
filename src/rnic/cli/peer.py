"""Client and server of the commands that run between two processes: TCP line, hello message, local address."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from rnic.arrays.listener import local_address
from rnic.cli.pingpong_data import Data, Streams
from rnic.cm.line_socket import DEFAULT_TIMEOUT_S, ExchangeError, dial, dialling, tcp_port
from rnic.spec.errors import RnicError
from rnic.spec.json_text import json_value

EXIT_FAILED = 1
"""Exit status where data was wrong or the peer failed; wrong arguments give 2."""


class PeerError(RnicError):
    """The two sides cannot continue. The message is one line."""


class Line:
    """JSON objects over TCP, one per line, in lockstep."""

    def __init__(self, sock: socket.socket, timeout_s: float = 60.0) -> None:
        sock.settimeout(timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._file = sock.makefile("rb")

    def send(self, **message: Any) -> None:
        """Send one object."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise PeerError(f"peer hung up: {error}") from None

    def receive(self) -> dict[str, Any]:
        """Wait for one object."""
        try:
            raw = self._file.readline(1 << 20)
        except OSError as error:
            raise PeerError(f"peer said nothing: {error}") from None
        if not raw:
            raise PeerError("peer hung up; its own output says why")
        try:
            message = json_value(raw)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise PeerError(f"peer sent {raw[:40]!r}: is it rnic of this version?")
        if "error" in message:
            raise PeerError(f"peer: {message['error']}")
        return message

    def waiting(self) -> bool:
        """Return whether something has arrived."""
        return bool(select.select([self.sock], [], [], 0)[0])

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.sock.close()


@contextlib.contextmanager
def failing(command: str, *more: type[Exception]) -> Iterator[None]:
    """Turn errors of the peer in this block, and those of types ``more``, into one line and exit status 1."""
    caught: tuple[type[Exception], ...] = (PeerError, ExchangeError, *more)
    try:
        yield
    except caught as error:
        print(f"rnic {command}: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)


def listen(address: str, port: int) -> socket.socket:
    """Open a TCP listener on an address, or on all with ``""``.

    Raises:
        PeerError: the port is taken, or the address is not local.
    """
    dual = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=1, dualstack_ipv6=dual)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise PeerError(f"--addr {address} is not an address of this machine: rnic devinfo lists them") from None
        reason = os.strerror(error.errno) if error.errno else error
        where = address or "all addresses"
        raise PeerError(f"TCP port {port} of {where} cannot be used ({reason}): choose another with --port") from None


def towards(host: str, port: int) -> tuple[str, str]:
    """Return the local address of the route to ``host``, and the address of ``host``, without sending anything.

    For a name with addresses of both IP versions, use IPv4, since listeners are on 127.0.0.1 by default.

    Args:
        host: a name or an address.
        port: TCP port to which the caller will connect, for messages.

    Raises:
        ExchangeError: no such host, or no route to it.
    """
    number = tcp_port(host, port, 1)
    where = f"{host} port {number}"
    with dialling(where, DEFAULT_TIMEOUT_S):
        found = socket.getaddrinfo(host, number, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            own = local_address(probe)
    return own, str(address[0])


def own_address(addr: str | None, server: str | None, port: int) -> str:
    """Return ``--addr``, or its default: 127.0.0.1; for a client, the local address of the route to its server.

    Raises:
        PeerError: no such host, or no route to it.
    """
    if addr is not None:
        return addr
    if server is None:
        return "127.0.0.1"
    try:
        return towards(server, port)[0]
    except ExchangeError as error:
        raise PeerError(str(error)) from None


Result_co = TypeVar("Result_co", covariant=True)


class PlayingSide(Protocol[Result_co]):
    """One side of a ping-pong between two rnic programs."""

    KIND: ClassVar[str]
    AGREED: ClassVar[tuple[str, ...]]
    """Names of the settings that must be equal on both sides."""

    @property
    def settings(self) -> Any:
        """Settings, with ``addr``, ``timeout_s``, and all that :attr:`AGREED` names."""

    def describe(self) -> dict[str, object]:
        """Return what the peer needs to know besides the settings."""

    def bring_up(self, hello: Mapping[str, Any]) -> None:
        """Connect to the peer that sent ``hello``; ``KeyError``, ``ValueError``, ``TypeError`` if it is malformed."""

    def show(self, kind: str) -> None:
        """Print the ``local`` or the ``remote`` end."""

    def play(self, data: Data, first: bool, line: Line) -> Result_co:
        """Exchange all messages."""


def hello_of(side: PlayingSide[Any], seed: str) -> dict[str, object]:
    """Return the first message of a side."""
    agreed = {name: getattr(side.settings, name) for name in side.AGREED}
    return {side.KIND: 1, **side.describe(), "seed": seed, **agreed}


def accept(side: PlayingSide[Any], hello: Mapping[str, object]) -> str:
    """Connect a side to the peer that sent ``hello``, and return the peer's seed.

    Raises:
        PeerError: the settings differ, or the peer is not an rnic program of this kind.
    """
    for name in side.AGREED:
        mine, theirs = getattr(side.settings, name), hello.get(name)
        if mine != theirs:
            raise PeerError(f"{name} is {mine} here and {theirs} at the peer: give both sides the same")
    try:
        seed = str(hello["seed"])
        side.bring_up(hello)
    except (KeyError, ValueError, TypeError) as error:
        raise PeerError(f"the peer's line is not one of rnic {side.KIND}: {error!r}"[:200]) from None
    return seed


def play(side: PlayingSide[Result_co], server: str | None, port: int, quiet: bool, queues: int = 1) -> Result_co:
    """Exchange lines, then messages, with another rnic program.

    The client speaks first, the server brings itself up and answers.

    Args:
        side: this one.
        server: the peer's address for a client, ``None`` for a server.
        port: TCP port, there or here.
        quiet: print neither the ends nor the server's address.
        queues: queue pairs of a side.

    Raises:
        PeerError: the settings differ, or the peer is another program, fails, or sends wrong data.
    """
    settings, seed = side.settings, secrets.token_hex(8)
    if not quiet:
        side.show("local")
    if server is None:
        with listen(settings.addr, port) as listener:
            if not quiet:
                print(f"  waiting on {settings.addr} TCP port {listener.getsockname()[1]}", flush=True)
            line = Line(listener.accept()[0], settings.timeout_s)
    else:
        try:
            line = Line(dial(server, port).sock, settings.timeout_s)
        except ExchangeError as error:
            raise PeerError(str(error)) from None
    with contextlib.closing(line):
        if server is not None:
            line.send(**hello_of(side, seed))
        said = line.receive()
        try:
            theirs = accept(side, said)
        except PeerError as error:
            if server is None:
                line.send(error=str(error))
            raise
        if server is None:
            line.send(**hello_of(side, seed))
        if not quiet:
            side.show("remote")
        return side.play(Streams(seed, theirs, queues), first=server is not None, line=line)


def rate_lines(size: int, iters: int, seconds: float, checked: str = "") -> tuple[dict[str, float], list[str]]:
    """Return the results of a ping-pong, for JSON and as lines: ``iters`` messages of ``size`` in each direction."""
    count = size * iters * 2
    microseconds = max(seconds * 1e6, 1e-3)
    mbit_per_sec, usec_per_iter = count * 8 / microseconds, microseconds / iters
    figures = {
        "bytes": count,
        "iters": iters,
        "seconds": seconds,
        "mbit_per_sec": mbit_per_sec,
        "usec_per_iter": usec_per_iter,
    }
    lines = [
        f"{count} bytes in {seconds:.2f} seconds = {mbit_per_sec:.2f} Mbit/sec{checked}",
        f"{iters} iters in {seconds:.2f} seconds = {usec_per_iter:.2f} usec/iter",
    ]
    return figures, lines
