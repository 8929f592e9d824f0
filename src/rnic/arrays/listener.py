"""``rnic.listen`` and ``rnic.connect``: from an address to a :class:`~rnic.arrays.connection.Connection`."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from errno import EIO
from typing import Any, Self

from rnic.arrays.connection import MESSAGE_BYTES, RECEIVES, Connection
from rnic.arrays.exports import open_shares
from rnic.arrays.half_open import MAX_HALF_OPEN, HalfOpen
from rnic.arrays.handshake import parse_endpoint, refusal_line
from rnic.cm.line_socket import DEFAULT_TIMEOUT_S, ExchangeError, LineSocket, dial, listen_socket
from rnic.spec.errors import RnicError, VerbsError
from rnic.verbs.context import Context

DEFAULT_PORT = 7471
MAX_HANDSHAKES = MAX_HALF_OPEN + 32
"""Handshakes in progress at a time; more clients wait in the kernel's backlog."""
RETRY_S = 0.1
"""Pause in seconds after an ``accept`` that failed for lack of descriptors or memory."""
CHECK_S = 0.5
"""Seconds between two checks whether the peers of unaccepted connections have closed."""


class BufferListener(ABC):
    """Base of :class:`Listener` and :class:`~rnic.arrays.aio.AsyncListener`: socket, shares, connections.

    Arguments are those of :func:`listen`.
    """

    def __init__(
        self,
        addr: str,
        port: int | str,
        udp_port: int | None,
        message_bytes: int,
        receives: int,
        context: Context | None,
        share: Mapping[str, Any] | None = None,
    ) -> None:
        self._socket = listen_socket(addr, port)
        try:
            self.address: str = self._socket.getsockname()[0]
            self.port: int = self._socket.getsockname()[1]
            nic_address = self.address if context is None else context.address
            self._shares = open_shares(context, nic_address, udp_port, share)
        except RnicError:
            self._socket.close()
            raise
        self._message_bytes = message_bytes
        self._receives = receives
        self._half_open = HalfOpen()
        self._waiting: deque[Connection] = deque()
        """Connections that were not accepted yet, in order of arrival."""
        self._dropped: deque[Connection] = deque()
        """Accepted connections that the program has dropped without a close: they serve until their peer leaves."""
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Prepare to accept connections."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """True if it no longer listens."""

    def share(self, **buffers: Any) -> Self:
        """Let peers that connect from now on read and write these buffers, by name; return the listener.

        For peers that may connect at any time, pass ``share`` to :func:`listen`. Read-only memory is shared for
        reading.

        Raises:
            VerbsError: EINVAL for a name that is taken, or a buffer that cannot be registered.
        """
        self._shares.add(buffers, writable=True)
        return self

    def share_readonly(self, **buffers: Any) -> Self:
        """Share buffers as :meth:`share` does, but read-only."""
        self._shares.add(buffers, writable=False)
        return self

    @contextlib.contextmanager
    def _while_half_open(self, lines: LineSocket, address: str) -> Iterator[None]:
        """Count a client as half-open while its line is received; raise if it was dropped to make room."""
        reason = None
        try:
            try:
                yield
            finally:
                reason = self._half_open.leave(lines, address)
        except ExchangeError:
            if reason is not None:
                raise ExchangeError(reason) from None
            raise
        if reason is not None:  # its line came after it had been dropped
            raise ExchangeError(reason)

    def _connect(self, line: bytes, lines: LineSocket, undo: ExitStack) -> tuple[Connection, bytes]:
        """Make this side's end for a client's line; return the connection and the line to answer with."""
        peer = parse_endpoint(line, lines.where)
        connection = Connection(self._shares, self._message_bytes, self._receives, owned=False)
        undo.callback(connection.close)
        connection.bring_up(peer, lines)
        connection.keeper = self._keep
        return connection, connection.endpoint.to_line()

    def _keep(self, connection: Any) -> bool:
        if not self.closed:
            self._dropped.append(connection)  # called by the garbage collector: takes no lock
        return not self.closed

    def _take_abandoned(self) -> list[Connection]:
        """Remove and return unaccepted or dropped connections whose peer is gone."""
        gone: list[Connection] = []
        for connections in (self._waiting, self._dropped):
            for _ in range(len(connections)):  # the garbage collector may append meanwhile
                connection = connections.popleft()
                (gone if connection.peer_gone() else connections).append(connection)
        return gone

    def _take_all(self) -> list[Connection]:
        """Remove and return all connections that the program does not hold."""
        found = [*self._waiting, *self._dropped]
        self._waiting.clear()
        self._dropped.clear()
        return found

    def _closed_error(self) -> ExchangeError:
        return ExchangeError(f"the listener on {self.address} port {self.port} is closed")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.address} port {self.port}{' closed' if self.closed else ''}>"


class Listener(BufferListener):
    """Shares buffers with every process that connects, and accepts connections for messages.

    A thread serves peers: :func:`rnic.connect` succeeds, and peers read and write, whatever this program does.
    """

    def _start(self) -> None:
        self._closing = threading.Event()
        self._arrived = threading.Condition()
        self._handshakes = threading.Semaphore(MAX_HANDSHAKES)
        self._thread = threading.Thread(target=self._run, name=f"rnic listener {self.port}", daemon=True)
        self._thread.start()

    def accept(self, timeout_s: float | None = None) -> Connection:
        """Return the next connection, in order of arrival. Unaccepted connections serve their
        peers, too.

        Args:
            timeout_s: seconds to wait; ``None`` waits without limit.

        Raises:
            TimeoutError: no client connected in time.
            ExchangeError: the listener was closed meanwhile.
            VerbsError: EIO in a forked child.
        """
        if not self.closed and not self._thread.is_alive():
            raise VerbsError(EIO, "the listener was made before this process was forked: listen anew here")
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._waiting or self.closed, timeout_s):
                raise TimeoutError(f"nobody connected to {self.address} port {self.port} within {timeout_s:g} s")
            if self.closed:
                raise self._closed_error()
            return self._waiting.popleft()

    def wait(self, timeout_s: float | None = None) -> None:
        """Serve until the listener is closed, the time is up, or the program is interrupted.

        Args:
            timeout_s: seconds to wait; ``None`` waits without limit.
        """
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Stop listening, close unaccepted connections, deregister the buffers. A second call does nothing."""
        if self.closed:
            return
        self._closing.set()
        # closing the descriptor would not wake the thread that waits on it
        _wake(self._socket)
        self._thread.join(timeout=5)
        self._socket.close()
        with self._arrived:
            connections = self._take_all()
            self._arrived.notify_all()
        for connection in connections:
            connection.close()
        self._shares.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True if it no longer listens."""
        return self._closing.is_set()

    # ------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        self._socket.settimeout(CHECK_S)
        checked = time.monotonic()
        while not self._closing.is_set():
            if time.monotonic() - checked >= CHECK_S:
                checked = time.monotonic()
                self._close_abandoned()
            self._handshakes.acquire()
            try:
                sock, address = self._socket.accept()
            except TimeoutError:
                self._handshakes.release()
                continue
            except OSError:  # out of descriptors or memory: further clients wait in the kernel's backlog
                self._handshakes.release()
                self._closing.wait(RETRY_S)
                continue
            if self._closing.is_set():
                sock.close()
                return
            lines = client_socket(sock, address)
            self._half_open.admit(lines, address[0])
            try:
                threading.Thread(target=self._handshake, args=(lines, address[0]), daemon=True).start()
            except RuntimeError:  # the client is told, and the listener serves on
                self._half_open.leave(lines, address[0])
                _refuse(lines, "the listener's system has no more threads: try again")
                self._handshakes.release()

    def _handshake(self, lines: LineSocket, address: str) -> None:
        try:
            with ExitStack() as undo:
                with self._while_half_open(lines, address):
                    line = lines.receive()
                connection, answer = self._connect(line, lines, undo)
                lines.send(answer)
                undo.pop_all()
        except RnicError as error:  # the client is told, and the listener serves on
            _refuse(lines, str(error))
            return
        finally:
            self._handshakes.release()
        with self._arrived:
            if not self.closed:
                self._waiting.append(connection)
                self._arrived.notify()
                return
        connection.close()

    def _close_abandoned(self) -> None:
        with self._arrived:
            gone = self._take_abandoned()
        for connection in gone:
            connection.close()


def listen(
    addr: str = "127.0.0.1",
    port: int | str = DEFAULT_PORT,
    *,
    share: Mapping[str, Any] | None = None,
    udp_port: int | None = None,
    message_bytes: int = MESSAGE_BYTES,
    receives: int = RECEIVES,
    context: Context | None = None,
) -> Listener:
    """Wait for connections on a TCP port, with a NIC on the same address.

    Args:
        addr: local address, IPv4 or IPv6.
        port: TCP port of the exchange; 0 for any free one.
        share: buffers that peers may read and write, by name. They are there before the first peer is answered.
        udp_port: UDP port of the NIC; by default 4791, or on a loopback address any free one if that is taken.
        message_bytes: longest message that each connection receives.
        receives: messages that may wait on each connection.
        context: use this opened device.

    Raises:
        ExchangeError: the TCP port is taken, or not a local address.
        LinkError: the NIC's UDP port is taken, or not on a local address.
        VerbsError: EINVAL for a buffer that cannot be shared.
    """
    return Listener(addr, port, udp_port, message_bytes, receives, context, share)


def connect(
    host: str,
    port: int | str = DEFAULT_PORT,
    *,
    addr: str | None = None,
    udp_port: int | None = None,
    share: Mapping[str, Any] | None = None,
    message_bytes: int = MESSAGE_BYTES,
    receives: int = RECEIVES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    context: Context | None = None,
) -> Connection:
    """Connect to a listener of another process or machine.

    Args:
        host: its name or address.
        port: its TCP port.
        addr: local address of the NIC; by default that of the route to ``host``.
        udp_port: UDP port of the NIC; by default 4791, or on a loopback address any free one if that is taken.
        share: buffers that the listener's side may read and write, by name.
        message_bytes: longest message that this end receives.
        receives: messages that may wait.
        timeout_s: for the connection to be made.
        context: use this opened device.

    Raises:
        ExchangeError: there is no listener, it is not an rnic listener, or it refuses.
        LinkError: no NIC can be opened on ``addr``.
    """
    with ExitStack() as undo:
        lines = dial(host, port, timeout_s)
        undo.callback(lines.close)
        connection = prepare(lines, undo, addr, udp_port, share, message_bytes, receives, context)
        lines.send(connection.endpoint.to_line(), timeout_s)
        connection.get_ready()
        connection.bring_up(parse_endpoint(lines.receive(timeout_s), lines.where), lines)
        undo.pop_all()
    return connection


def prepare(
    lines: LineSocket,
    undo: ExitStack,
    addr: str | None,
    udp_port: int | None,
    share: Mapping[str, Any] | None,
    message_bytes: int,
    receives: int,
    context: Context | None,
) -> Connection:
    """Make a client's end, not yet brought up; ``undo`` closes it. Arguments are those of :func:`connect`."""
    shares = open_shares(context, addr or local_address(lines.sock), udp_port, share)
    connection = Connection(shares, message_bytes, receives, owned=True)
    undo.callback(connection.close)
    return connection


def client_socket(sock: socket.socket, address: Any) -> LineSocket:
    """Return a line socket for a client's connection."""
    return LineSocket(sock, f"client {address[0]} port {address[1]}")


def local_address(sock: socket.socket) -> str:
    """Return this end's address of a TCP connection, with its scope if it has one."""
    name = sock.getsockname()
    address: str = name[0]
    if address.startswith("::ffff:"):
        return address.removeprefix("::ffff:")
    if address.lower().startswith("fe80") and len(name) == 4 and "%" not in address:
        return f"{address}%{name[3]}"
    return address


def _refuse(lines: LineSocket, reason: str) -> None:
    with contextlib.suppress(ExchangeError):
        lines.send(refusal_line(reason))
    lines.close()


def _wake(listening: socket.socket) -> None:
    with contextlib.suppress(OSError), socket.create_connection(listening.getsockname()[:2], timeout=1):
        pass


__all__ = ["Connection", "Listener", "connect", "listen"]
