"""Connections by InfiniBand CM (IBA vol. 1, chapter 12; annex A11): ``rnic.cm_listen`` and ``rnic.cm_connect``.

They connect to every peer that speaks CM: librdmacm programs under ``rnic exec``, Linux, hardware NICs, and this API
itself. Unlike with :func:`rnic.connect`, nothing is shared by name: peers send each other addresses and keys in their
own messages. Each operation comes twice: blocking (``recv``) and for asyncio (``arecv``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any, TypeVar

from rnic.cm.line_socket import DEFAULT_TIMEOUT_S
from rnic.cm.manager import Event, EventChannel, manager_of
from rnic.cm.rc_connection import RD_ATOMIC, REMOTE_RIGHTS, Pending, RcConnection, check_message_limits
from rnic.cm.records import Parameters
from rnic.cm.work_queue import Operation, wait_event, wait_event_async
from rnic.mem.space import byte_view
from rnic.spec import attach_cm as wire
from rnic.spec import cm
from rnic.spec.errors import RnicError, VerbsError
from rnic.verbs import enums as e
from rnic.verbs.attrs import SGE, WC, QPAttr, SendWR
from rnic.verbs.context import Context
from rnic.verbs.memory import MR, PD
from rnic.wire.cm_message import REJECT_REASONS

MESSAGE_BYTES = 1 << 16
RECEIVES = 16
MAX_PRIVATE = 56
"""Most private data in a request, in bytes; an acceptance has room for 196, a rejection for 148."""
MAX_PRIVATE_ACCEPT, MAX_PRIVATE_REJECT = 196, 148
T = TypeVar("T")
Steps = Generator[None, None, T]
"""Steps of a procedure; each ``yield`` waits for an event."""


class CmConnectError(RnicError, ConnectionError):
    """No connection was established, or it was lost during setup."""


class CmTimeoutError(CmConnectError, TimeoutError):
    """The peer did not answer in time."""


class CmRejectedError(CmConnectError):
    """The peer, or its connection manager, rejected the request.

    Attributes:
        reason: number of the reason (IBA vol. 1, 12.6.7.2); 28 if the program itself rejected it.
        private: private data of the rejection, zero-padded as in the message.
    """

    def __init__(self, where: str, reason: int, private: bytes) -> None:
        words = REJECT_REASONS.get(reason, "a reason unknown to the standard")
        hint = _REJECT_HINTS.get(reason, "")
        super().__init__(f"{where} rejected the connection: {words} (reason {reason}){hint}")
        self.reason = reason
        self.private = private


_REJECT_HINTS = {
    cm.REJ_INVALID_SERVICE_ID: "; nobody listens on that port: start the listener first",
    cm.REJ_NO_RESOURCES: "; it has no free resources: try again",
    cm.REJ_TIMEOUT: "; it gave up waiting",
    cm.REJ_STALE_CONN: "; it mistook the queue pair for an earlier one: try again",
}


def connect_error(
    event: Event, peer: str, udp_port: int, failure: str = "the connection was lost while it was made"
) -> CmConnectError:
    """Return the error for an event that ends a connection before it is established."""
    if event.event == cm.EVENT_REJECTED:
        return CmRejectedError(peer, event.status, event.private)
    if event.event == cm.EVENT_UNREACHABLE:
        return CmTimeoutError(f"{peer} did not answer: is a NIC there, on UDP port {udp_port}?")
    return CmConnectError(f"{peer}: {failure} ({cm.EVENT_NAMES.get(event.event, str(event.event))})")


class CmConnection(RcConnection[bytes]):
    """A reliable connection set up through the CM. :func:`cm_connect` and :meth:`CmRequest.accept` make it.

    Messages are plain bytes. READ and WRITE take the address and key that the peer sent. ``pd`` and ``qp`` are its
    protection domain and queue pair, for use through verbs; ``private`` is the peer's private data from its request or
    acceptance, zero-padded as in the message.

    Every operation raises :class:`~rnic.spec.errors.WorkCompletionError` when it fails in transit or at the peer.
    The connection is then broken, as the standard requires.
    """

    END = "disconnected"

    def __init__(self, ctx: Context, owned: bool, peer: str, message_bytes: int, receives: int) -> None:
        self.private = b""
        self._number = 0
        self._ended = False
        with contextlib.ExitStack() as made:
            if owned:
                made.callback(ctx.close)
            check_message_limits(message_bytes, receives, 1)
            self._manager = manager_of(ctx)
            self._channel: EventChannel = self._manager.channel()
            made.callback(self._channel.close)
            self.pd = PD(ctx)
            made.callback(self.pd.close)
            super().__init__(made, self.pd, message_bytes, receives, max_send_sge=1)
            made.callback(self._destroy_id)
            self.get_ready()
            self._made = made.pop_all()
        self.peer = peer

    # ------------------------------------------------------------------------------- operations

    def begin_send(self, data: Any) -> Pending[None]:
        """Start :meth:`send`.

        Args:
            data: bytes, at most the peer's ``message_bytes``.

        Returns:
            The pending operation.
        """
        return self._post("SEND", e.IBV_WR_SEND, data, None)

    def _decode(self, data: memoryview) -> bytes:
        return bytes(data)

    def register(self, buffer: Any, writable: bool = True) -> MR:
        """Let the peer read a buffer, and write it if ``writable``.

        Args:
            buffer: object with the buffer protocol, such as a ``bytearray`` or an array.
            writable: give the peer write access, too.

        Returns:
            The region: tell the peer its ``buf`` and ``rkey``.
        """
        return MR(self.pd, buffer, REMOTE_RIGHTS if writable else e.IBV_ACCESS_REMOTE_READ)

    def read(self, address: int, rkey: int, length: int) -> bytearray:
        """Read bytes of the peer's memory.

        Args:
            address: address that the peer sent, 64 bits.
            rkey: its key, 32 bits.
            length: bytes.

        Returns:
            The bytes.
        """
        return self._begin_read(address, rkey, length).result()

    async def aread(self, address: int, rkey: int, length: int) -> bytearray:
        """Read bytes of the peer's memory, for asyncio.

        Args:
            address: address that the peer sent, 64 bits.
            rkey: its key, 32 bits.
            length: bytes.

        Returns:
            The bytes.
        """
        return await self._begin_read(address, rkey, length)

    def write(self, address: int, rkey: int, data: Any) -> None:
        """Write bytes to the peer's memory; on return they are there.

        Args:
            address: address that the peer sent, 64 bits.
            rkey: its key, 32 bits.
            data: bytes, or an object with the buffer protocol.
        """
        self._post("WRITE", e.IBV_WR_RDMA_WRITE, data, None, address, rkey).result()

    async def awrite(self, address: int, rkey: int, data: Any) -> None:
        """Write bytes to the peer's memory, for asyncio.

        Args:
            address: address that the peer sent, 64 bits.
            rkey: its key, 32 bits.
            data: bytes, or an object with the buffer protocol.
        """
        await self._post("WRITE", e.IBV_WR_RDMA_WRITE, data, None, address, rkey)

    def _begin_read(self, address: int, rkey: int, length: int) -> Pending[bytearray]:
        into = bytearray(length)
        return self._post("READ", e.IBV_WR_RDMA_READ, into, into, address, rkey)

    def _post(self, what: str, opcode: int, data: Any, result: T, address: int = 0, rkey: int = 0) -> Pending[T]:
        self._check_open()
        mr: MR | None = None
        parts = []
        if byte_view(data).nbytes if not isinstance(data, bytes | bytearray) else len(data):
            mr = MR(self.pd, data, e.IBV_ACCESS_LOCAL_WRITE if opcode == e.IBV_WR_RDMA_READ else 0)
            parts = [SGE(mr.buf, mr.length, mr.lkey)]
        request = SendWR(opcode=opcode, send_flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE, sg=parts)
        if opcode != e.IBV_WR_SEND:
            request.set_wr_rdma(rkey, address)
        return self._begin(Operation(what, None if mr is None else mr.close), [request], lambda: result)

    # --------------------------------------------------------------------------------- ending

    @property
    def connected(self) -> bool:
        """True until either side disconnects, as far as this side knows."""
        return not self.closed and not self.peer_gone()

    def peer_gone(self) -> bool:
        """True once the connection has ended: every further event except TIMEWAIT_EXIT means that."""
        while not self._ended and (event := self._channel.get_event()) is not None:
            if event.event in _ENDS:
                self._ended = True
                self._flush()
        return self._ended

    def peer_fileno(self) -> int:
        """See :class:`~rnic.cm.rc_connection.RcConnection`."""
        return self._channel.fileno()

    def _end_descriptors(self) -> list[int]:
        return [self._channel.fileno(), *self._manager.hangup_filenos()]

    def _receive_error(self, wc: WC) -> Exception:
        return self._peer_closed() if self.peer_gone() else super()._receive_error(wc)  # a disconnect flushes receives

    def disconnect(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Disconnect, and wait until the peer has confirmed it. Messages not yet received are lost.

        Args:
            timeout_s: seconds to wait for the peer.

        Raises:
            CmTimeoutError: no confirmation within ``timeout_s``; the connection has ended anyway.
        """
        self.drive(self._disconnecting(), timeout_s, "confirmed no disconnection")

    async def adisconnect(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Disconnect as :meth:`disconnect`, for asyncio.

        Args:
            timeout_s: seconds to wait for the peer.
        """
        await self.adrive(self._disconnecting(), timeout_s, "confirmed no disconnection")

    def _disconnecting(self) -> Steps[None]:
        """Send DREQ and wait for DREP."""
        if self.closed or self._ended:
            return
        self._flush()
        self._manager.request(wire.CM_DISCONNECT, id=self._number)
        while self.connected:
            yield

    def _flush(self) -> None:
        """Make the queue pair flush its outstanding work requests."""
        with contextlib.suppress(VerbsError):
            self.qp.modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def _destroy_id(self) -> None:
        """Disconnect without waiting."""
        with contextlib.suppress(VerbsError):
            if self._number:
                self._manager.request(wire.CM_DESTROY, id=self._number)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "ended" if self._ended else "open"
        return f"<CmConnection to {self.peer} {state}>"

    # ------------------------------------------------------------------------------ setting up

    def connecting(self, source: bytes, target: bytes, port: int, private: bytes) -> Steps[None]:
        """Run the active side: send REQ, wait for REP, send RTU."""
        request = self._manager.request
        self._number = self._manager.create_id(self._channel.number)
        request(
            wire.CM_RESOLVE_ADDR,
            id=self._number,
            src=int.from_bytes(source, "little"),
            dst=int.from_bytes(target, "little"),
            dst_port=port,
        )
        if (event := (yield from self._wait_event())).event != cm.EVENT_ADDR_RESOLVED:
            raise CmConnectError(
                f"{self.peer} cannot be reached from {self.ctx.address}: use one IP version at both ends"
            )
        request(wire.CM_RESOLVE_ROUTE, id=self._number)
        yield from self._wait_event()
        self._offer(wire.CM_CONNECT, private, RD_ATOMIC, RD_ATOMIC)
        event = yield from self._wait_event()
        if event.event != cm.EVENT_CONNECT_RESPONSE:
            raise connect_error(event, self.peer, self.ctx.udp_port)
        self.private = event.private
        try:
            self._bring_up()
            request(wire.CM_ESTABLISH, id=self._number)
        except VerbsError:
            after = self._channel.get_event()
            if after is None:
                raise
            raise connect_error(after, self.peer, self.ctx.udp_port) from None  # the peer left meanwhile

    def accepting(self, number: int, offered: dict[str, int], private: bytes) -> Steps[None]:
        """Run the passive side: send REP, and wait for RTU or the first message."""
        self._number = number
        request = self._manager.request
        request(wire.CM_MIGRATE, id=number, channel=self._channel.number)
        resources = min(RD_ATOMIC, offered["responder_resources"])
        depth = min(RD_ATOMIC, offered["initiator_depth"])
        try:
            self._bring_up(resources, depth)
            self._offer(wire.CM_ACCEPT, private, resources, depth)
        except VerbsError:
            reason = request(wire.CM_QUERY, id=number)["status"]
            if reason:  # the peer withdrew its request
                raise CmRejectedError(self.peer, reason, b"") from None
            raise
        while (event := self._channel.get_event()) is None:
            if self._has_message():
                # its RTU is late or lost, but the peer is ready
                request(wire.CM_NOTIFY, id=number)
                continue
            yield
            self._queue.dispatch()
        if event.event != cm.EVENT_ESTABLISHED:
            raise connect_error(event, self.peer, self.ctx.udp_port)

    def _offer(self, op: int, private: bytes, resources: int, depth: int) -> None:
        default = Parameters()
        self._manager.request(
            op,
            private,
            id=self._number,
            qpn=self.qp.qp_num,
            responder_resources=resources,
            initiator_depth=depth,
            retry_count=default.retry_count,
            rnr_retry_count=default.rnr_retry_count,
        )

    def _bring_up(self, resources: int | None = None, depth: int | None = None) -> None:
        """Bring the queue pair to RTS; ``resources`` and ``depth`` override the connection's."""
        attr = self._manager.qp_attr(self._number, self.ctx.udp_port)
        if resources is not None and depth is not None:
            attr.max_dest_rd_atomic, attr.max_rd_atomic = resources, depth
        self.qp.to_rts(attr)

    def _wait_event(self) -> Steps[Event]:
        while (event := self._channel.get_event()) is None:
            yield
        return event

    def drive(self, steps: Steps[None], timeout_s: float, late: str) -> None:
        """Run steps to their end; ``late`` describes, for a timeout, what the peer did not do."""
        if wait_event(partial(self._step, steps), self._step_descriptors, timeout_s) is None:
            raise self._late(timeout_s, late)

    async def adrive(self, steps: Steps[None], timeout_s: float, late: str) -> None:
        """Run :meth:`drive` on an event loop."""
        if await wait_event_async(partial(self._step, steps), self._step_descriptors, timeout_s) is None:
            raise self._late(timeout_s, late)

    def _step(self, steps: Steps[None]) -> bool | None:
        for _ in steps:
            self._queue.arm()
            self._queue.dispatch()
            self.ctx.driver.rest()
            return None
        return True

    def _step_descriptors(self) -> list[int]:
        return [self._queue.channel.fileno(), *self._end_descriptors()]

    def _late(self, timeout_s: float, late: str) -> CmTimeoutError:
        port = self.ctx.udp_port
        return CmTimeoutError(f"{self.peer} {late} within {timeout_s:g} s: is a NIC there, on UDP port {port}?")


_ENDS = frozenset({cm.EVENT_DISCONNECTED, cm.EVENT_REJECTED, cm.EVENT_CONNECT_ERROR, cm.EVENT_DEVICE_REMOVAL})


@contextlib.contextmanager
def closed_on_error(connection: CmConnection) -> Iterator[None]:
    """Close a connection if the block raises."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


__all__ = ["CmConnectError", "CmConnection", "CmRejectedError", "CmTimeoutError"]
