"""``rnic.alisten`` and ``rnic.aconnect``: the short API on an event loop, with no thread for any call or connection.

The NIC's own thread plays the role of hardware. A host name is looked up in a thread of the event loop; an address
needs no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from contextlib import ExitStack
from typing import Any, ParamSpec

from rnic.arrays.connection import MESSAGE_BYTES, RECEIVES, Connection
from rnic.arrays.handshake import parse_endpoint, refusal_line
from rnic.arrays.listener import (
    CHECK_S,
    DEFAULT_PORT,
    MAX_HANDSHAKES,
    RETRY_S,
    BufferListener,
    client_socket,
    connect,
    prepare,
)
from rnic.cm.line_socket import ExchangeError, LineSocket, dialling, tcp_port
from rnic.cm.work_queue import wait_event_async
from rnic.spec.errors import RnicError
from rnic.verbs.context import Context

_Given = ParamSpec("_Given")


class _Connecting:
    """Result of :func:`aconnect`: ``await`` it for a connection, or open it with ``async with``."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Connection]]) -> None:
        self._begin = begin  # called on await: a task cancelled before that would leak a coroutine
        self._connection: Connection | None = None

    def __await__(self) -> Generator[Any, None, Connection]:
        return self._begin().__await__()

    async def __aenter__(self) -> Connection:
        self._connection = await self
        return self._connection

    async def __aexit__(self, *exc: object) -> None:
        if self._connection is not None:
            self._connection.close()


def _for_asyncio(connect: Callable[_Given, Connection]) -> Callable[_Given, _Connecting]:
    """Return ``aconnect`` with whatever arguments ``connect`` has."""
    signature = inspect.signature(connect)

    def aconnect(*args: _Given.args, **kwargs: _Given.kwargs) -> _Connecting:
        """Connect as :func:`rnic.connect`, for asyncio, with the same arguments and errors.

        It may be awaited, or opened with ``async with``.

        Args:
            host: the listener's name or IP address.
            port: its TCP port, or service name.
            addr: local IP address of the NIC, by default that of the route to ``host``.
            udp_port: UDP port of the NIC, 4791 by default.
            share: buffers or arrays for the peer, by name.
            message_bytes: longest message to receive.
            receives: messages that may wait.
            timeout_s: seconds to wait for the connection.
            context: use this opened device instead.
        """
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return _Connecting(functools.partial(_connect, **given.arguments))

    aconnect.__qualname__ = "aconnect"
    functools.update_wrapper(aconnect, connect, assigned=())  # copies the signature, for help() and editors
    return aconnect


aconnect = _for_asyncio(connect)


async def _connect(host: str, port: int | str, timeout_s: float, **end: Any) -> Connection:
    """Connect with ``end``, the arguments of :func:`~rnic.arrays.listener.connect` that make this side's end."""
    number = tcp_port(host, port, 1)
    with ExitStack() as undo:
        lines = LineSocket(await _dial(host, number, timeout_s), f"{host} port {number}")
        undo.callback(lines.close)
        connection = prepare(lines, undo, **end)
        await lines.asend(connection.endpoint.to_line(), timeout_s)
        connection.get_ready()
        connection.bring_up(parse_endpoint(await lines.areceive(timeout_s), lines.where), lines)
        undo.pop_all()
    return connection


async def _dial(host: str, port: int, timeout_s: float) -> socket.socket:
    loop = asyncio.get_running_loop()
    with dialling(f"{host} port {port}", timeout_s):
        async with asyncio.timeout(timeout_s):
            try:  # an address needs no lookup, and so no thread
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            except socket.gaierror:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            refused: OSError = ConnectionRefusedError()
            for family, kind, protocol, _, place in found:
                sock = socket.socket(family, kind, protocol)
                sock.setblocking(False)
                try:
                    await loop.sock_connect(sock, place)
                except OSError as error:
                    sock.close()
                    refused = error
                except BaseException:
                    sock.close()
                    raise
                else:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return sock
            raise refused


def _close_cancelled(lines: LineSocket, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        lines.close()


class AsyncListener(BufferListener):
    """Result of :func:`alisten`: ``async with`` starts it, ``async for`` yields the connections in order of arrival.

    Peers read and write shared buffers independently of the program, whether it accepts them or not.
    """

    def _start(self) -> None:
        self._closed = False
        self._arrived = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes = asyncio.Semaphore(MAX_HANDSHAKES)

    @property
    def closed(self) -> bool:
        """True if it no longer listens."""
        return self._closed

    async def accept(self) -> Connection:
        """Return the next connection; raise :class:`ExchangeError` once closed. ``asyncio.timeout`` bounds the wait."""
        while not self._waiting and not self.closed:
            self._arrived.clear()
            await self._arrived.wait()
        if self.closed:
            raise self._closed_error()
        return self._waiting.popleft()

    async def __aiter__(self) -> AsyncIterator[Connection]:
        while not self.closed:
            try:
                yield await self.accept()
            except ExchangeError:
                return

    async def __aenter__(self) -> AsyncListener:
        self._socket.setblocking(False)
        self._spawn(self._run())
        self._spawn(self._close_abandoned())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening, close unaccepted connections, deregister the buffers. A second call does nothing."""
        if self.closed:
            return
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # this task may be cancelled, too, and is not called again
            self._socket.close()
            for connection in self._take_all():
                connection.close()
            self._arrived.set()
            self._shares.close()

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self) -> None:
        while True:
            await self._handshakes.acquire()
            try:
                # a socket accepted by asyncio would be lost if the task is cancelled at that moment
                accepted = await wait_event_async(self._accept_tcp, lambda: [self._socket.fileno()], None)
                assert accepted is not None  # without a timeout
                sock, address = accepted
            except OSError:  # out of descriptors or memory: further clients wait in the kernel's backlog
                self._handshakes.release()
                await asyncio.sleep(RETRY_S)
                continue
            lines = client_socket(sock, address)
            self._half_open.admit(lines, address[0])
            # a task that is cancelled before its first step does nothing
            self._spawn(self._handshake(lines, address[0])).add_done_callback(
                functools.partial(_close_cancelled, lines)
            )

    def _accept_tcp(self) -> tuple[socket.socket, Any] | None:
        try:
            return self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None

    async def _handshake(self, lines: LineSocket, address: str) -> None:
        try:
            with ExitStack() as undo:
                with self._while_half_open(lines, address):
                    line = await lines.areceive()
                connection, answer = self._connect(line, lines, undo)
                await lines.asend(answer)
                undo.pop_all()
        except RnicError as error:  # the client is told, and the listener serves on
            try:
                with contextlib.suppress(ExchangeError):
                    await lines.asend(refusal_line(str(error)))
            finally:
                lines.close()
            return
        except BaseException:
            lines.close()
            raise
        finally:
            self._handshakes.release()
        self._waiting.append(connection)
        self._arrived.set()

    async def _close_abandoned(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            for connection in self._take_abandoned():
                connection.close()


def alisten(
    addr: str = "127.0.0.1",
    port: int | str = DEFAULT_PORT,
    *,
    share: Mapping[str, Any] | None = None,
    udp_port: int | None = None,
    message_bytes: int = MESSAGE_BYTES,
    receives: int = RECEIVES,
    context: Context | None = None,
) -> AsyncListener:
    """Listen as :func:`rnic.listen`, for asyncio, with the same arguments and errors.

    ``async with`` starts it, and ``async for peer in listener`` yields the connections.

    Args:
        addr: local IP address, of the TCP port and the NIC.
        port: TCP port, or service name; 0 for a free one.
        share: buffers or arrays for peers, by name.
        udp_port: UDP port of the NIC, 4791 by default.
        message_bytes: longest message that each connection receives.
        receives: messages that may wait on each connection.
        context: use this opened device instead.
    """
    return AsyncListener(addr, port, udp_port, message_bytes, receives, context, share)


__all__ = ["AsyncListener", "aconnect", "alisten"]
