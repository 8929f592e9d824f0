"""``rnic.cm_listen`` and ``rnic.cm_connect``: from an address to a :class:`~rnic.cm.cm_connection.CmConnection`."""

from __future__ import annotations

import contextlib
import socket
from errno import EINVAL
from typing import Any

from rnic.cm.cm_connection import (
    MAX_PRIVATE,
    MAX_PRIVATE_ACCEPT,
    MAX_PRIVATE_REJECT,
    MESSAGE_BYTES,
    RECEIVES,
    CmConnectError,
    CmConnection,
    Steps,
    closed_on_error,
)
from rnic.cm.ids import MAPPED
from rnic.cm.line_socket import DEFAULT_TIMEOUT_S, tcp_port
from rnic.cm.manager import Event, EventChannel, Manager, manager_of
from rnic.cm.work_queue import wait_event, wait_event_async
from rnic.link.base import LinkError, format_address
from rnic.spec import attach_cm as wire
from rnic.spec import cm
from rnic.spec.errors import RnicError, VerbsError
from rnic.verbs.attrs import GID
from rnic.verbs.context import Context

_LOOPBACKS = 16
"""``cm_connect`` tries 127.0.0.1 to 127.0.0.16 for an address that no other NIC has."""


class CmRequest:
    """A connection request; :meth:`CmListener.get_request` returns it.

    ``peer`` is the peer's address and ``private`` its private data, zero-padded to 56 bytes. A request that is neither
    accepted nor rejected keeps its peer waiting until it times out (``timeout_s`` of :func:`cm_connect`). A peer
    without such a limit waits 17 minutes: an MRA delays each of its 15 retransmissions by 69 s. The request itself is
    kept until its listener is closed.
    """

    def __init__(self, listener: CmListener, event: Event) -> None:
        self.private = event.private
        self._listener = listener
        self._number = event.number
        self._offered = event.fields
        address = _address_text(event.fields["dst"].to_bytes(16, "little"))
        self.peer = f"client {address} port {event.fields['dst_port']}"
        self._answered = False

    def accept(self, private: bytes = b"", timeout_s: float = DEFAULT_TIMEOUT_S) -> CmConnection:
        """Accept the request, and return the connection once the peer is ready.

        Args:
            private: at most 196 bytes for the peer.
            timeout_s: for the peer to be ready.

        Raises:
            CmRejectedError: the peer withdrew its request; ``reason`` is 4 if it had timed out.
            CmTimeoutError: the peer did not confirm (RTU) in time.
            VerbsError: EINVAL for private data that is too long, or a request that was answered already.
        """
        connection = self._begin(private)
        with closed_on_error(connection):
            steps = connection.accepting(self._number, self._offered, private)
            connection.drive(steps, timeout_s, "did not say that it is ready")
        return connection

    async def aaccept(self, private: bytes = b"", timeout_s: float = DEFAULT_TIMEOUT_S) -> CmConnection:
        """Accept the request as :meth:`accept`, for asyncio.

        Args:
            private: at most 196 bytes for the peer.
            timeout_s: seconds to wait for the peer.

        Returns:
            The connection.
        """
        connection = self._begin(private)
        with closed_on_error(connection):
            steps = connection.accepting(self._number, self._offered, private)
            await connection.adrive(steps, timeout_s, "did not say that it is ready")
        return connection

    def reject(self, private: bytes = b"") -> None:
        """Reject the request. The peer gets :class:`CmRejectedError` with reason 28.

        Args:
            private: at most 148 bytes for the peer.
        """
        _check_private(private, MAX_PRIVATE_REJECT)
        self._answer()
        manager = self._listener.manager
        try:
            manager.request(wire.CM_REJECT, private, id=self._number)
        finally:
            manager.request(wire.CM_DESTROY, id=self._number)

    def _begin(self, private: bytes) -> CmConnection:
        _check_private(private, MAX_PRIVATE_ACCEPT)
        self._answer()
        listener = self._listener
        try:
            connection = CmConnection(listener.ctx, False, self.peer, listener.message_bytes, listener.receives)
        except RnicError:
            self._answered = False
            raise
        connection.private = self.private
        return connection

    def _answer(self) -> None:
        if self._answered:
            raise VerbsError(EINVAL, f"the request of {self.peer} was answered already")
        self._answered = True

    def __repr__(self) -> str:
        return f"<CmRequest of {self.peer}>"


class CmListener:
    """Listens through the CM on a port of a device; :func:`cm_listen` makes it."""

    def __init__(
        self, ctx: Context, owned: bool, port: int | str, backlog: int, message_bytes: int, receives: int
    ) -> None:
        self.ctx = ctx
        self.message_bytes = message_bytes
        self.receives = receives
        self.closed = False
        self._owned = owned
        number = tcp_port(ctx.address, port, 0)
        self.manager: Manager = manager_of(ctx)
        self._channel: EventChannel = self.manager.channel()
        request = self.manager.request
        try:
            self._number = request(
                wire.CM_CREATE, channel=self._channel.number, port_space=cm.PS_TCP, qp_type=wire.QP_RC
            )["id"]
            gid = int.from_bytes(ctx.query_gid().raw, "little")
            request(wire.CM_BIND, id=self._number, src=gid, src_port=number)
            self.port = request(wire.CM_LISTEN, id=self._number, value=backlog)["src_port"]
        except VerbsError as error:
            self._channel.close()
            raise CmConnectError(f"cannot listen by CM on {ctx.address} port {port}: {error.strerror}") from None
        ctx.driver.start()

    @property
    def address(self) -> str:
        """The device's IP address."""
        return self.ctx.address

    def get_request(self, timeout_s: float | None = None) -> CmRequest:
        """Wait for the next request, in order of arrival.

        Args:
            timeout_s: seconds to wait; ``None`` waits without limit.

        Raises:
            TimeoutError: none came in time.
            CmConnectError: the listener is closed.
        """
        self.ctx.driver.rest()
        request = wait_event(self._next_request, self._descriptors, timeout_s)
        if request is None:
            raise TimeoutError(f"nobody connected to {self.address} port {self.port} within {timeout_s:g} s")
        return request

    async def aget_request(self) -> CmRequest:
        """Run :meth:`get_request` on asyncio; ``asyncio.timeout`` bounds it."""
        self.ctx.driver.rest()
        request = await wait_event_async(self._next_request, self._descriptors, None)
        assert request is not None  # without a timeout
        return request

    def accept(self, timeout_s: float | None = None, private: bytes = b"") -> CmConnection:
        """Accept the next request.

        Args:
            timeout_s: seconds to wait for a request; ``None`` waits without limit.
            private: at most 196 bytes for the peer.

        Returns:
            The connection.

        Raises:
            TimeoutError: no request came in time; others as :meth:`CmRequest.accept`.
        """
        return self.get_request(timeout_s).accept(private)

    async def aaccept(self, private: bytes = b"") -> CmConnection:
        """Accept the next request, for asyncio.

        Args:
            private: at most 196 bytes for the peer.

        Returns:
            The connection.
        """
        return await (await self.aget_request()).aaccept(private)

    def _descriptors(self) -> list[int]:
        return [self._channel.fileno(), *self.manager.hangup_filenos()]

    def _next_request(self) -> CmRequest | None:
        while not self.closed:
            event = self._channel.get_event()
            if event is None:
                self.ctx.driver.check()
                return None
            if event.event == cm.EVENT_CONNECT_REQUEST:
                return CmRequest(self, event)
            # the device is gone: a request already returned fails when it is answered
        raise CmConnectError(f"the listener on {self.address} port {self.port} is closed")

    def close(self) -> None:
        """Stop listening; waiting requests are rejected. A second call does nothing.

        If the NIC was made for the listener, closing it ends the connections that it accepted.
        """
        if self.closed:
            return
        self.closed = True
        self._channel.close()
        if self._owned:
            self.ctx.close()

    def __enter__(self) -> CmListener:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> CmListener:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CmListener on {self.address} port {self.port}{' closed' if self.closed else ''}>"


def cm_listen(
    addr: str = "127.0.0.1",
    port: int | str = 0,
    *,
    backlog: int = 0,
    message_bytes: int = MESSAGE_BYTES,
    receives: int = RECEIVES,
    udp_port: int | None = None,
    context: Context | None = None,
) -> CmListener:
    """Listen for connections through the CM.

    Args:
        addr: local address of the NIC, which is made in this process.
        port: in rdma_cm's TCP port space; 0 for any free one. No TCP port of the kernel is used.
        backlog: requests that may wait for :meth:`CmListener.get_request`, 0 for 1,024, which is the most. A request
            beyond that gets no answer, and its sender retransmits it until its ``timeout_s`` is over.
        message_bytes: longest message that each connection receives.
        receives: messages that may wait on each connection.
        udp_port: UDP port of the NIC, 4791 by default; peers must have the same, since CM messages name none.
        context: use this opened device, such as ``rnic.open(addr)`` gives one of the NIC process.

    Raises:
        CmConnectError: the port is taken.
        LinkError: the address is not local, or a NIC is on it already.
    """
    ctx = context or Context(addr=addr, port=udp_port)
    try:
        return CmListener(ctx, context is None, port, backlog, message_bytes, receives)
    except BaseException:
        if context is None:
            ctx.close()
        raise


def cm_connect(
    host: str,
    port: int | str,
    *,
    private: bytes = b"",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    addr: str | None = None,
    udp_port: int | None = None,
    message_bytes: int = MESSAGE_BYTES,
    receives: int = RECEIVES,
    context: Context | None = None,
) -> CmConnection:
    """Connect through the CM to a listener: :func:`cm_listen`, a librdmacm program, the Linux kernel, a hardware NIC.

    Args:
        host: its name or address.
        port: in rdma_cm's TCP port space.
        private: at most 56 bytes for the listener.
        timeout_s: for the connection to be made.
        addr: local address of the NIC, which is made in this process; by default the one that leads to ``host``, or on
            loopback the first of 127.0.0.1 to 127.0.0.16 that has none.
        udp_port: its UDP port, 4791 by default; the peer must have the same.
        message_bytes: longest message that this end receives.
        receives: messages that may wait.
        context: use this opened device instead.

    Raises:
        CmRejectedError: the listener rejected it, or there is no listener.
        CmTimeoutError: no answer in time.
        CmConnectError: the host is unknown or of another IP version.
        LinkError: no NIC can be made on ``addr``.
        VerbsError: EINVAL for private data that is too long.
    """
    connection, steps = _begin(host, port, private, addr, udp_port, message_bytes, receives, context)
    with closed_on_error(connection):
        connection.drive(steps, timeout_s, "did not answer")
    return connection


async def acm_connect(
    host: str,
    port: int | str,
    *,
    private: bytes = b"",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    addr: str | None = None,
    udp_port: int | None = None,
    message_bytes: int = MESSAGE_BYTES,
    receives: int = RECEIVES,
    context: Context | None = None,
) -> CmConnection:
    """Connect as :func:`cm_connect`, for asyncio, with the same arguments and errors.

    Args:
        host: the listener's name or IP address; a name is looked up at once.
        port: its port, or service name.
        private: at most 56 bytes for the listener.
        timeout_s: seconds to wait for the connection.
        addr: local IP address of the NIC, by default that of the route to ``host``.
        udp_port: UDP port of the NIC, 4791 by default.
        message_bytes: longest message to receive.
        receives: messages that may wait.
        context: use this opened device instead.
    """
    connection, steps = _begin(host, port, private, addr, udp_port, message_bytes, receives, context)
    with closed_on_error(connection):
        await connection.adrive(steps, timeout_s, "did not answer")
    return connection


def _begin(
    host: str,
    port: int | str,
    private: bytes,
    addr: str | None,
    udp_port: int | None,
    message_bytes: int,
    receives: int,
    context: Context | None,
) -> tuple[CmConnection, Steps[None]]:
    _check_private(private, MAX_PRIVATE)
    number = tcp_port(host, port, 1)
    where = f"{host} port {number}"
    try:
        family, *_, place = socket.getaddrinfo(host, number, type=socket.SOCK_DGRAM)[0]
    except (OSError, UnicodeError) as error:
        raise CmConnectError(f"cannot reach {where}: {getattr(error, 'strerror', None) or error}") from None
    ctx = context or own_device(addr, family, place, udp_port)
    connection = CmConnection(ctx, context is None, where, message_bytes, receives)
    target = GID(str(place[0]).partition("%")[0]).raw
    return connection, connection.connecting(ctx.query_gid().raw, target, number, private)


def own_device(addr: str | None, family: int, place: Any, udp_port: int | None) -> Context:
    """Open a NIC in this process, on ``addr`` or on the local address of the route to ``place``."""
    if addr is not None:
        return Context(addr=addr, port=udp_port)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(place)
        except OSError as error:
            raise CmConnectError(f"cannot reach {place[0]}: {error.strerror}") from None
        own = str(probe.getsockname()[0])
    if own != "127.0.0.1":
        return Context(addr=own, port=udp_port)
    for last in range(1, _LOOPBACKS):
        with contextlib.suppress(LinkError):
            return Context(addr=f"127.0.0.{last}", port=udp_port)
    return Context(addr=f"127.0.0.{_LOOPBACKS}", port=udp_port)


def _check_private(private: bytes, most: int) -> None:
    if len(private) > most:
        raise VerbsError(EINVAL, f"private data of {len(private)} bytes: this message has room for {most}")


def _address_text(gid: bytes) -> str:
    return format_address(gid[len(MAPPED) :] if gid.startswith(MAPPED) else gid)


__all__ = ["CmListener", "CmRequest", "acm_connect", "cm_connect", "cm_listen"]
