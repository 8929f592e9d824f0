"""``rnic.alisten`` and ``rnic.aconnect``: the short API on an event loop, with no thread for any call or connection.

The NIC's own thread stands in for hardware, as everywhere. Looking up a host's name takes a thread of the event loop
for a moment; addresses do not.
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
from rnic.spec.errors import RnicError
from rnic.verbs.context import Context

_Given = ParamSpec("_Given")


class _Connecting:
    """What :func:`aconnect` returns: ``await`` it for a connection, or open it with ``async with``."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Connection]]) -> None:
        self._begin = begin  # only when it is awaited: a task that is cancelled before would leave a coroutine behind
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
    """``aconnect`` with whatever arguments ``connect`` has."""
    signature = inspect.signature(connect)

    def aconnect(*args: _Given.args, **kwargs: _Given.kwargs) -> _Connecting:
        """:func:`rnic.connect` for asyncio, with the same arguments and errors.

        It may be awaited, or opened with ``async with``.
        """
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return _Connecting(functools.partial(_connect, **given.arguments))

    aconnect.__qualname__ = "aconnect"
    functools.update_wrapper(aconnect, connect, assigned=())  # its signature, for help() and editors
    return aconnect


aconnect = _for_asyncio(connect)


async def _connect(host: str, port: int | str, timeout_s: float, **end: Any) -> Connection:
    """``end`` are the arguments of :func:`~rnic.arrays.listener.connect` that make this side's end."""
    number = tcp_port(host, port, 1)
    with ExitStack() as undo:
        lines = LineSocket(await _dial(host, number, timeout_s), f"{host} port {number}")
        undo.callback(lines.close)
        connection = prepare(lines, undo, **end)
        await lines.asend(connection.endpoint().to_line(), timeout_s)
        connection.bring_up(parse_endpoint(await lines.areceive(timeout_s), lines.where), lines)
        undo.pop_all()
    return connection


async def _dial(host: str, port: int, timeout_s: float) -> socket.socket:
    loop = asyncio.get_running_loop()
    with dialling(f"{host} port {port}", timeout_s):
        async with asyncio.timeout(timeout_s):
            try:  # an address needs no look-up, and so no thread
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


class AsyncListener(BufferListener):
    """What :func:`alisten` makes: ``async with`` starts it, ``async for`` gives the connections in order of arrival.

    Peers read and write what is shared while the program does something else, whether it accepts them or not.
    """

    def _start(self) -> None:
        self._closed = False
        self._arrived = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes = asyncio.Semaphore(MAX_HANDSHAKES)

    @property
    def closed(self) -> bool:
        """Whether it no longer listens."""
        return self._closed

    async def accept(self) -> Connection:
        """The next connection; ``asyncio.timeout`` bounds the wait. :class:`ExchangeError` once it is closed."""
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
        """Stop listening, close what was not accepted, deregister the buffers. A second call does nothing."""
        if self.closed:
            return
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        while self._waiting:
            self._waiting.popleft().close()
        self._arrived.set()
        self._shares.close()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._handshakes.acquire()
            try:
                sock, address = await loop.sock_accept(self._socket)
            except OSError:  # out of descriptors or memory: further clients wait in the system's backlog
                self._handshakes.release()
                await asyncio.sleep(RETRY_S)
                continue
            lines = client_socket(sock, address)
            self._half_open.admit(lines, address[0])
            self._spawn(self._handshake(lines, address[0]))

    async def _handshake(self, lines: LineSocket, address: str) -> None:
        try:
            with ExitStack() as undo:
                with self._while_half_open(lines, address):
                    line = await lines.areceive()
                connection, answer = self._connect(line, lines, undo)
                await lines.asend(answer)
                undo.pop_all()
        except RnicError as error:  # the client is told, and the listener serves on
            with contextlib.suppress(ExchangeError):
                await lines.asend(refusal_line(str(error)))
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
    """:func:`rnic.listen` for asyncio, with the same arguments and errors.

    ``async with`` starts it, and ``async for peer in listener`` gives the connections.
    """
    return AsyncListener(addr, port, udp_port, message_bytes, receives, context, share)


__all__ = ["AsyncListener", "aconnect", "alisten"]
