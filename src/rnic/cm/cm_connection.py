"""Connections by InfiniBand CM (IBA vol. 1, chapter 12; annex A11): ``rnic.cm_listen`` and ``rnic.cm_connect``.

They reach whoever speaks CM: librdmacm's programs under ``rnic exec``, Linux, adapters, and this API itself. Nothing
is shared by name, as :func:`rnic.connect` does it: peers tell each other addresses and keys in messages of their own.
Each operation comes twice: blocking (``recv``) and for asyncio (``arecv``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Generator
from errno import EINVAL
from typing import Any, TypeVar

from rnic.cm.line_socket import DEFAULT_TIMEOUT_S
from rnic.cm.manager import REMOTE_RIGHTS, Event, EventChannel, Manager, manager_of
from rnic.cm.records import Parameters
from rnic.cm.work_queue import LOOK_S, Job, Jobs, PeerClosedError
from rnic.mem.space import byte_view
from rnic.runtime.wait import wait_readable
from rnic.spec import attach_cm as wire
from rnic.spec import cm
from rnic.spec.errors import RnicError, VerbsError
from rnic.verbs import enums as e
from rnic.verbs.attrs import SGE, WC, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.verbs.context import Context
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP
from rnic.wire.cm_message import REJECT_REASONS

DEPTH = 64
"""Send work requests in flight on one connection."""
MESSAGE_BYTES = 1 << 16
RECEIVES = 16
RD_ATOMIC = 16
MAX_PRIVATE = 56
"""Bytes of private data that a request has room for; an acceptance has 196, a rejection 148."""
MAX_PRIVATE_ACCEPT, MAX_PRIVATE_REJECT = 196, 148
T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that waits, at each ``yield``, until something may have happened."""


class CmConnectError(RnicError, ConnectionError):
    """No connection was made, or it was lost while it was made."""


class CmTimeoutError(CmConnectError, TimeoutError):
    """The peer did not answer in time."""


class CmRejectedError(CmConnectError):
    """The peer, or its connection manager, said no.

    Attributes:
        reason: number of the reason (IBA vol. 1, 12.6.7.2); 28 where the program itself said so.
        private: what it said with it, with the zeros that the message was filled up with.
    """

    def __init__(self, where: str, reason: int, private: bytes) -> None:
        words = REJECT_REASONS.get(reason, "a reason that the standard does not know")
        hint = _REJECT_HINTS.get(reason, "")
        super().__init__(f"{where} rejected the connection: {words} (reason {reason}){hint}")
        self.reason = reason
        self.private = private


_REJECT_HINTS = {
    cm.REJ_INVALID_SERVICE_ID: "; nobody listens on that port: start the listener first",
    cm.REJ_NO_RESOURCES: "; it has no room for more: try again",
    cm.REJ_TIMEOUT: "; it gave up waiting",
    cm.REJ_STALE_CONN: "; it took the queue pair for one of before: try again",
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


class CmConnection:
    """A reliable connection made by CM. Made by :func:`cm_connect` and :meth:`CmRequest.accept`.

    Messages are plain bytes. READ and WRITE take the address and key that the peer told. ``pd`` and ``qp`` are its
    protection domain and queue pair for what goes beyond; ``private`` is what the peer said when it connected or
    accepted, with the zeros that the message was filled up with.

    Every operation raises :class:`~rnic.spec.errors.WorkCompletionError` when it fails on the way or at the peer, and
    the connection is then broken, as the standard says.
    """

    def __init__(self, ctx: Context, owned: bool, peer: str, message_bytes: int, receives: int) -> None:
        for name, value, low, high in (
            ("message_bytes", message_bytes, 1, 1 << 30),
            ("receives", receives, 1, 4_096),
        ):
            if not low <= value <= high:
                raise VerbsError(EINVAL, f"{name}={value} is out of range; use {low} to {high}")
        self.ctx = ctx
        self.peer = peer
        self.private = b""
        self.closed = False
        self._owned = owned
        self._number = 0
        self._ended = False
        self._messages: deque[WC] = deque()
        self._broken: WC | None = None
        self._message_bytes = message_bytes
        self._manager: Manager = manager_of(ctx)
        # what is made first is closed last
        with contextlib.ExitStack() as made:
            self._channel: EventChannel = self._manager.channel()
            made.callback(self._channel.close)
            self.pd = PD(ctx)
            made.callback(self.pd.close)
            self._jobs = Jobs(ctx, DEPTH, DEPTH + receives + 1, self._received)
            made.callback(self._jobs.close)
            cq = self._jobs.cq
            self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(DEPTH, receives, 1, 1, 0), cq, cq))
            made.callback(self.qp.close)
            self._jobs.use(self.qp)
            attr = QPAttr()
            attr.qp_access_flags = REMOTE_RIGHTS
            self.qp.to_init(attr)
            memory = bytearray(message_bytes * receives)
            self._view = memoryview(memory)
            self._slots = MR(self.pd, memory)
            for slot in range(receives):
                self._post_slot(slot)
            self._made = made.pop_all()
        ctx.driver.start()

    # ------------------------------------------------------------------------------- messages

    def send(self, data: Any) -> None:
        """Send a message. Waits until the peer's NIC has it, which is once the peer has posted a receive.

        Raises:
            WorkCompletionError: it could not be delivered: too long for the peer's receive, or the peer is gone.
        """
        self._run(self._posted("SEND", e.IBV_WR_SEND, data))

    async def asend(self, data: Any) -> None:
        """:meth:`send` for asyncio."""
        await self._arun(self._posted("SEND", e.IBV_WR_SEND, data))

    def recv(self, timeout_s: float | None = None) -> bytes:
        """The next message.

        Raises:
            TimeoutError: none came in time.
            PeerClosedError: the peer disconnected and nothing is left.
            VerbsError: EINVAL once it is closed, by another thread too.
        """
        self._usable()
        while (wc := self._next_message()) is None:
            self._end_of_stream()
            ready = self._jobs.wait(self._has_news, timeout_s, self._channel)
            self._usable()  # another thread may have closed it
            if not (ready or self._look() or timeout_s is None):
                raise TimeoutError(f"no message from {self.peer} within {timeout_s:g} s")
        return self._open(wc)

    async def arecv(self) -> bytes:
        """:meth:`recv` for asyncio; ``asyncio.timeout`` bounds it."""
        self._usable()
        while (wc := self._next_message()) is None:
            self._end_of_stream()
            ready = await self._jobs.wait_async(self._has_news, self._channel)
            self._usable()  # another task may have closed it
            if not ready:
                self._look()
        return self._open(wc)

    # ------------------------------------------------------------------------- one-sided access

    def register(self, buffer: Any, writable: bool = True) -> MR:
        """Let the peer read a buffer, and write it; tell it ``buf`` and ``rkey`` of the region that this returns."""
        return MR(self.pd, buffer, REMOTE_RIGHTS if writable else e.IBV_ACCESS_REMOTE_READ)

    def read(self, address: int, rkey: int, length: int) -> bytearray:
        """Read ``length`` bytes of the peer's memory at an address that it told, with the key to it."""
        into = bytearray(length)
        self._run(self._posted("READ", e.IBV_WR_RDMA_READ, into, address, rkey))
        return into

    async def aread(self, address: int, rkey: int, length: int) -> bytearray:
        """:meth:`read` for asyncio."""
        into = bytearray(length)
        await self._arun(self._posted("READ", e.IBV_WR_RDMA_READ, into, address, rkey))
        return into

    def write(self, address: int, rkey: int, data: Any) -> None:
        """Write bytes to the peer's memory at an address that it told. On return they are there."""
        self._run(self._posted("WRITE", e.IBV_WR_RDMA_WRITE, data, address, rkey))

    async def awrite(self, address: int, rkey: int, data: Any) -> None:
        """:meth:`write` for asyncio."""
        await self._arun(self._posted("WRITE", e.IBV_WR_RDMA_WRITE, data, address, rkey))

    def _posted(self, what: str, opcode: int, data: Any, address: int = 0, rkey: int = 0) -> Job:
        self._usable()
        mr: MR | None = None
        parts = []
        if byte_view(data).nbytes if not isinstance(data, bytes | bytearray) else len(data):
            mr = MR(self.pd, data, e.IBV_ACCESS_LOCAL_WRITE if opcode == e.IBV_WR_RDMA_READ else 0)
            parts = [SGE(mr.buf, mr.length, mr.lkey)]
        job = Job(what, None if mr is None else mr.close)
        request = SendWR(opcode=opcode, send_flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE, sg=parts)
        if opcode != e.IBV_WR_SEND:
            request.set_wr_rdma(rkey, address)
        self._jobs.post(job, [request])
        return job

    def _run(self, job: Job) -> None:
        self._jobs.wait(job.done)
        job.check(self.peer)

    async def _arun(self, job: Job) -> None:
        await self._jobs.wait_async(job.done)
        job.check(self.peer)

    # --------------------------------------------------------------------------------- ending

    @property
    def connected(self) -> bool:
        """Whether neither side has disconnected, as far as this side knows."""
        if not self.closed and not self._ended:
            self._look()
        return not self.closed and not self._ended

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Wait until the peer disconnects, or another thread closes; false where none did within ``timeout_s``."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        self.ctx.driver.rest()
        while self.connected:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            # closing the channel would not wake a thread that waits on it
            wait_readable(
                _open([self._channel.fileno(), *self._manager.lifelines()]),
                LOOK_S if left is None else min(left, LOOK_S),
            )
        return True

    def disconnect(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Disconnect, and wait until the peer has confirmed it. What was not received is lost.

        Raises:
            CmTimeoutError: it did not within ``timeout_s``; the connection is over all the same.
        """
        self.drive(self._leave(), timeout_s, "confirmed no disconnection")

    async def adisconnect(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """:meth:`disconnect` for asyncio."""
        await self.adrive(self._leave(), timeout_s, "confirmed no disconnection")

    def _leave(self) -> Steps[None]:
        if self.closed or self._ended:
            return
        self._fail()
        self._manager.request(wire.CM_DISCONNECT, id=self._number)
        while self.connected:
            yield

    def close(self) -> None:
        """Disconnect without waiting, and let go of everything. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self.ctx.driver.kick()  # what arrived last may still want its acknowledgement
        with contextlib.suppress(VerbsError):
            if self._number:
                self._manager.request(wire.CM_DESTROY, id=self._number)
        self._made.close()
        if self._owned:
            self.ctx.close()

    def __enter__(self) -> CmConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> CmConnection:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "ended" if self._ended else "open"
        return f"<CmConnection to {self.peer} {state}>"

    # ------------------------------------------------------------------------------ setting up

    def connecting(self, source: bytes, target: bytes, port: int, private: bytes) -> Steps[None]:
        """The active side: REQ, wait for REP, RTU."""
        request = self._manager.request
        self._number = request(wire.CM_CREATE, channel=self._channel.number, port_space=cm.PS_TCP, qp_type=wire.QP_RC)[
            "id"
        ]
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
        self._make_ready()
        request(wire.CM_ESTABLISH, id=self._number)

    def accepting(self, number: int, asked: dict[str, int], private: bytes) -> Steps[None]:
        """The passive side: REP, and wait for RTU or for the first message."""
        self._number = number
        request = self._manager.request
        request(wire.CM_MIGRATE, id=number, channel=self._channel.number)
        resources = min(RD_ATOMIC, asked["responder_resources"])
        depth = min(RD_ATOMIC, asked["initiator_depth"])
        try:
            self._make_ready(resources, depth)
            self._offer(wire.CM_ACCEPT, private, resources, depth)
        except VerbsError:
            reason = request(wire.CM_QUERY, id=number)["status"]
            if reason:  # the peer took its request back
                raise CmRejectedError(self.peer, reason, b"") from None
            raise
        while True:
            event = self._channel.get_event()
            if event is not None:
                if event.event != cm.EVENT_ESTABLISHED:
                    raise connect_error(event, self.peer, self.ctx.udp_port)
                return
            if self._has_news():
                # its RTU is late or lost: the peer is ready all the same
                request(wire.CM_NOTIFY, id=number)
                continue
            yield
            self._jobs.dispatch()

    def _offer(self, op: int, private: bytes, resources: int, depth: int) -> None:
        usual = Parameters()
        self._manager.request(
            op,
            private,
            id=self._number,
            qpn=self.qp.qp_num,
            responder_resources=resources,
            initiator_depth=depth,
            retry_count=usual.retry_count,
            rnr_retry_count=usual.rnr_retry_count,
        )

    def _make_ready(self, resources: int | None = None, depth: int | None = None) -> None:
        """Bring the queue pair to RTS; ``resources`` and ``depth`` go before what the connection says."""
        attr = self._manager.qp_attr(self._number, self.ctx.udp_port)
        if resources is not None and depth is not None:
            attr.max_dest_rd_atomic, attr.max_rd_atomic = resources, depth
        self.qp.to_rts(attr)

    def _wait_event(self) -> Steps[Event]:
        while (event := self._channel.get_event()) is None:
            yield
        return event

    def _look(self) -> bool:
        """Take an event, if one waits: after the first, each tells of the end."""
        event = self._channel.get_event()
        if event is None:
            return False
        if event.event in _ENDS and not self._ended:
            self._ended = True
            self._fail()
        return True

    def _fail(self) -> None:
        """The queue pair is of no use any more: what is under way ends."""
        attr = QPAttr(e.IBV_QPS_ERR)
        with contextlib.suppress(VerbsError):
            self.qp.modify(attr, e.IBV_QP_STATE)

    def _waits(self) -> list[int]:
        return _open([self._channel.fileno(), self._jobs.channel.fileno(), *self._manager.lifelines()])

    def drive(self, steps: Steps[None], timeout_s: float, what: str) -> None:
        """Run steps to their end."""
        end = time.monotonic() + timeout_s
        for _ in steps:
            left = end - time.monotonic()
            if left <= 0:
                raise self._late(timeout_s, what)
            self._jobs.arm()
            self._jobs.dispatch()
            self.ctx.driver.rest()
            wait_readable(self._waits(), min(left, LOOK_S))

    async def adrive(self, steps: Steps[None], timeout_s: float, what: str) -> None:
        """:meth:`drive` on an event loop."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        for _ in steps:
            left = end - loop.time()
            if left <= 0:
                raise self._late(timeout_s, what)
            self._jobs.arm()
            self._jobs.dispatch()
            self.ctx.driver.rest()
            await readable(loop, self._waits(), min(left, LOOK_S))

    def _late(self, timeout_s: float, what: str) -> CmTimeoutError:
        port = self.ctx.udp_port
        return CmTimeoutError(f"{self.peer} {what} within {timeout_s:g} s: is a NIC there, on UDP port {port}?")

    # ------------------------------------------------------------------------------- receives

    def _post_slot(self, slot: int) -> None:
        size = self._message_bytes
        self.qp.post_recv(RecvWR(slot, 1, [SGE(self._slots.buf + slot * size, size, self._slots.lkey)]))

    def _received(self, wc: WC) -> None:
        if wc.status == e.IBV_WC_SUCCESS:
            self._messages.append(wc)
        elif self._broken is None:
            self._broken = wc

    def _has_news(self) -> bool:
        return bool(self._messages) or self._broken is not None

    def _next_message(self) -> WC | None:
        with contextlib.suppress(IndexError):
            return self._messages.popleft()
        return None

    def _end_of_stream(self) -> None:
        """Raise where no message can come any more."""
        self._look()
        if self._ended:
            self._jobs.dispatch()  # what came before the end counts
            if self._messages:
                return
            raise PeerClosedError(f"{self.peer} disconnected")
        if self._broken is not None:
            job = Job("receive")
            job.failed = self._broken
            job.check(self.peer)

    def _open(self, wc: WC) -> bytes:
        start = wc.wr_id * self._message_bytes
        data = bytes(self._view[start : start + wc.byte_len])
        with contextlib.suppress(VerbsError):  # the connection may have ended meanwhile
            self._post_slot(wc.wr_id)
        return data

    def _usable(self) -> None:
        if self.closed:
            raise VerbsError(EINVAL, f"the connection to {self.peer} is closed; open a new one")


_ENDS = frozenset({cm.EVENT_DISCONNECTED, cm.EVENT_REJECTED, cm.EVENT_CONNECT_ERROR, cm.EVENT_DEVICE_REMOVAL})


def _open(descriptors: list[int]) -> list[int]:
    """Those that no other thread has closed."""
    return [each for each in descriptors if each >= 0]


async def readable(loop: asyncio.AbstractEventLoop, descriptors: list[int], timeout_s: float) -> None:
    """Until one of some descriptors can be read, or the time is over."""
    news = loop.create_future()

    def come() -> None:
        if not news.done():
            news.set_result(None)

    # duplicates: others of this loop may watch the same descriptors
    watched = [os.dup(descriptor) for descriptor in descriptors]
    try:
        for descriptor in watched:
            loop.add_reader(descriptor, come)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await news
    finally:
        for descriptor in watched:
            loop.remove_reader(descriptor)
            os.close(descriptor)


__all__ = ["CmConnectError", "CmConnection", "CmRejectedError", "CmTimeoutError"]
