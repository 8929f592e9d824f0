"""``rnic.listen`` and ``rnic.connect``: from an address to a :class:`~rnic.arrays.connection.Connection`."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rnic.arrays.connection import MESSAGE_BYTES, RECEIVES, Connection
from rnic.arrays.exports import Shares, open_context
from rnic.arrays.handshake import parse_endpoint, refusal_line
from rnic.cm.line_socket import DEFAULT_TIMEOUT_S, ExchangeError, LineSocket, dial, listen_socket
from rnic.spec.errors import RnicError
from rnic.verbs.context import Context

DEFAULT_PORT = 7471
MAX_HANDSHAKES = 32
"""Exchanges under way at a time; more wait in the system's backlog."""
RETRY_S = 0.1
"""How long the listener keeps off an ``accept`` for which the system had nothing left."""
CHECK_S = 0.5
"""How often connections that nobody accepted are looked at for their end."""


class Listener:
    """Shares buffers with every process that connects, and accepts connections for messages.

    A thread answers: :func:`rnic.connect` succeeds, and peers read and write, whatever this program does meanwhile.
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
        self._closing = threading.Event()
        try:
            self.address: str = self._socket.getsockname()[0]
            self.port: int = self._socket.getsockname()[1]
            nic_address = self.address if context is None else context.address
            self._shares = Shares(context or open_context(nic_address, udp_port), owned=context is None)
            try:
                self._shares.add(share or {}, writable=True)
            except RnicError:
                self._shares.close()
                raise
        except RnicError:
            self._socket.close()
            raise
        self._message_bytes = message_bytes
        self._receives = receives
        self._came = threading.Condition()
        self._waiting: deque[Connection] = deque()
        """Connections that nobody has accepted, in order of arrival."""
        self._slots = threading.Semaphore(MAX_HANDSHAKES)
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"rnic listener {self.port}", daemon=True)
        self._thread.start()

    def share(self, **buffers: Any) -> Listener:
        """Let peers that connect from now on read and write these buffers, by name; the listener itself.

        For peers that may come at any time, give ``share`` to :func:`listen`. Read-only memory is shared for reading.

        Raises:
            VerbsError: EINVAL for a name that is taken, or a buffer that cannot be registered.
        """
        self._shares.add(buffers, writable=True)
        return self

    def share_readonly(self, **buffers: Any) -> Listener:
        """As :meth:`share`, for reading alone."""
        self._shares.add(buffers, writable=False)
        return self

    def accept(self, timeout_s: float | None = None) -> Connection:
        """The next connection, in order of arrival. Those that are not accepted serve their peers all the same.

        Raises:
            TimeoutError: nobody connected in time.
            ExchangeError: the listener was closed meanwhile.
        """
        with self._came:
            if not self._came.wait_for(lambda: self._waiting or self.closed, timeout_s):
                raise TimeoutError(f"nobody connected to {self.address} port {self.port} within {timeout_s:g} s")
            if self.closed:
                raise ExchangeError(f"the listener on {self.address} port {self.port} is closed")
            return self._waiting.popleft()

    def wait(self, timeout_s: float | None = None) -> None:
        """Serve until the listener is closed, the time is over, or the program is interrupted."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Stop listening, close what was not accepted, deregister the buffers. A second call does nothing."""
        if self.closed:
            return
        self._closing.set()
        # a closed descriptor would not wake a thread that waits on it
        _wake(self._socket)
        self._thread.join(timeout=5)
        self._socket.close()
        with self._came:
            connections = list(self._waiting)
            self._waiting.clear()
            self._came.notify_all()
        for connection in connections:
            connection.close()
        self._shares.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Listener on {self.address} port {self.port}{' closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether it no longer listens."""
        return self._closing.is_set()

    # ------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        self._socket.settimeout(CHECK_S)
        looked = time.monotonic()
        while not self._closing.is_set():
            if time.monotonic() - looked >= CHECK_S:
                looked = time.monotonic()
                self._close_abandoned()
            self._slots.acquire()
            try:
                sock, address = self._socket.accept()
            except TimeoutError:
                self._slots.release()
                continue
            except OSError:  # nothing is left to make a socket of: who comes waits in the system's backlog
                self._slots.release()
                self._closing.wait(RETRY_S)
                continue
            if self._closing.is_set():
                sock.close()
                return
            where = f"client {address[0]} port {address[1]}"
            lines = LineSocket(sock, where)
            try:
                threading.Thread(target=self._welcome, args=(lines,), daemon=True).start()
            except RuntimeError:  # the client is told; a listener serves on
                _refuse(lines, "the listener's system has no more threads: try again")
                self._slots.release()

    def _welcome(self, lines: LineSocket) -> None:
        try:
            peer = parse_endpoint(lines.receive(), lines.where)
            connection = Connection(self._shares, self._message_bytes, self._receives, owned=False)
            try:
                connection.bring_up(peer, lines)
                lines.send(connection.endpoint().to_line())
            except RnicError:
                connection.close()
                raise
        except RnicError as error:
            # the client is told; a listener serves on
            _refuse(lines, str(error))
            return
        finally:
            self._slots.release()
        with self._came:
            if not self.closed:
                self._waiting.append(connection)
                self._came.notify()
                return
        connection.close()

    def _close_abandoned(self) -> None:
        """Close connections whose peer is gone and that nobody accepted."""
        with self._came:
            gone = [connection for connection in self._waiting if connection.peer_gone()]
            for connection in gone:
                self._waiting.remove(connection)
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
        udp_port: UDP port of the NIC; by default 4791, or on a loopback address any free one where that is taken.
        message_bytes: longest message that each connection receives.
        receives: messages that may wait on each connection.
        context: use this opened device.

    Raises:
        ExchangeError: the TCP port is taken, or not a local address.
        LinkError: the same of the NIC's UDP port.
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
        addr: local address of the NIC; by default the one that leads to ``host``.
        udp_port: UDP port of the NIC; by default 4791, or on a loopback address any free one where that is taken.
        share: buffers that the listener's side may read and write, by name.
        message_bytes: longest message that this end receives.
        receives: messages that may wait.
        timeout_s: for the connection to be made.
        context: use this opened device.

    Raises:
        ExchangeError: nobody listens there, or it is no rnic listener, or it refuses.
        LinkError: no NIC can be opened on ``addr``.
    """
    lines = dial(host, port, timeout_s)
    try:
        connection = prepare(lines, addr, udp_port, share, message_bytes, receives, context)
        try:
            lines.send(connection.endpoint().to_line(), timeout_s)
            connection.bring_up(parse_endpoint(lines.receive(timeout_s), lines.where), lines)
        except RnicError:
            connection.close()
            raise
    except RnicError:
        lines.close()
        raise
    return connection


def prepare(
    lines: LineSocket,
    addr: str | None,
    udp_port: int | None,
    share: Mapping[str, Any] | None,
    message_bytes: int,
    receives: int,
    context: Context | None,
) -> Connection:
    """A client's end, not yet brought up; arguments are those of :func:`connect`."""
    shares = Shares(context or open_context(addr or local_address(lines.sock), udp_port), owned=context is None)
    try:
        shares.add(share or {}, writable=True)
        return Connection(shares, message_bytes, receives, owned=True)
    except RnicError:
        shares.close()
        raise


def local_address(sock: socket.socket) -> str:
    """This end's address of a TCP connection, with its scope where it has one."""
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
