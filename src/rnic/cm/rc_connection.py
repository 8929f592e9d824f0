"""Base of all connections: a reliable queue pair, received messages, waiting and closing.

:class:`rnic.arrays.connection.Connection`, made over TCP, and :class:`rnic.cm.cm_connection.CmConnection`, made
through the InfiniBand CM, differ in the encoding of messages and in how they notice that the peer has closed.
"""

from __future__ import annotations

import _thread
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator
from errno import EINVAL, EIO
from typing import Any, ClassVar, Generic, Self, TypeVar

from rnic.cm.work_queue import Operation, PeerClosedError, WorkQueue, failure, wait_event
from rnic.spec.errors import VerbsError
from rnic.state.arena import private_memory
from rnic.verbs import enums as e
from rnic.verbs.attrs import SGE, WC, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP

DEPTH = 64
"""Send work requests in flight on one connection."""
RD_ATOMIC = 16
"""READs and atomics in flight on one connection, in each direction."""
REMOTE_RIGHTS = (
    e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC
)
MAX_MESSAGE_BYTES = 1 << 30
MAX_RECEIVES = 4_096
M = TypeVar("M")
T = TypeVar("T")


class Pending(Generic[T]):
    """A pending operation: a future of the connection.

    :meth:`result` waits for it; in asyncio, ``await`` it.
    """

    __slots__ = ("_connection", "finish", "operation")

    def __init__(self, connection: RcConnection[Any], operation: Operation, finish: Callable[[], T]) -> None:
        self._connection = connection
        self.operation = operation
        self.finish = finish

    def done(self) -> bool:
        """Return whether the operation completed, successfully or not; never wait."""
        if not self.operation.done():
            self._connection._queue.progress()
        return self.operation.done()

    def result(self) -> T:
        """Wait for the operation, and return its result.

        Raises:
            WorkCompletionError: the operation failed.
        """
        self._connection._queue.wait(self.operation.done)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, T]:
        yield from self._connection._queue.wait_async(self.operation.done).__await__()
        return self._outcome()

    def _outcome(self) -> T:
        if not self.operation.done():
            self._connection._check_open()
        self.operation.raise_on_error(self._connection.peer)
        return self.finish()


def check_message_limits(message_bytes: int, receives: int, low: int) -> None:
    """Raise ``VerbsError`` (EINVAL) for a length or a number of receives that is out of range."""
    for name, value, high in (
        ("message_bytes", message_bytes, MAX_MESSAGE_BYTES),
        ("receives", receives, MAX_RECEIVES),
    ):
        if not low <= value <= high:
            raise VerbsError(EINVAL, f"{name}={value} is out of range; use {low} to {high}")


class RcConnection(ABC, Generic[M]):
    """A reliable connection that carries messages of type ``M``.

    Args:
        made: objects to close with the connection, last first; all objects made here are added.
        pd: protection domain of queue pair and receives.
        buffer_bytes: of one receive.
        receives: receives to keep posted.
        max_send_sge: pieces of one send work request.
    """

    END: ClassVar[str]
    """Action by which the peer ended the connection, for error messages."""

    def __init__(self, made: contextlib.ExitStack, pd: PD, buffer_bytes: int, receives: int, max_send_sge: int) -> None:
        self.peer = ""
        self.keeper: Callable[[RcConnection[Any]], bool] | None = None
        """Called when the program drops the connection: takes it over, or returns false to have it closed."""
        self.ctx = pd.ctx
        self._made = made
        self._messages: deque[WC] = deque()
        """Messages that arrived, in order."""
        self._broken: WC | None = None
        """Completion of the first receive that failed."""
        self._buffer_bytes = buffer_bytes
        self._receives = receives
        self._buffers_view = memoryview(b"")
        if receives:
            memory = private_memory(buffer_bytes * receives)
            self._buffers_view = memoryview(memory)
            self._buffers = MR(pd, memory)
            made.callback(self._buffers.close)
        self._queue = WorkQueue(self.ctx, DEPTH, DEPTH + receives + 1, self._on_receive)
        made.callback(self._queue.close)
        cap = QPCap(DEPTH, max(1, receives), max_send_sge, 1, 0)
        self.qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, None, cap, self._queue.cq, self._queue.cq))
        made.callback(self.qp.close)
        self._queue.use(self.qp)
        self.closed = False

    def get_ready(self) -> None:
        """Take the queue pair to INIT and post the receives, before its path is known."""
        attr = QPAttr()
        attr.qp_access_flags = REMOTE_RIGHTS
        self.qp.to_init(attr)
        for buffer in range(self._receives):
            self._post_receive(buffer)
        # a passive side must respond while its program does something else
        self.ctx.driver.start()

    # ------------------------------------------------------------------------------- messages

    @abstractmethod
    def begin_send(self, data: Any) -> Pending[None]:
        """Start :meth:`send`."""

    @abstractmethod
    def _decode(self, data: memoryview) -> M:
        """Return the message that a receive buffer holds, in memory of its own."""

    def send(self, data: Any) -> None:
        """Send a message. Wait until the peer's NIC has it, for which the peer needs a free receive.

        Raises:
            VerbsError: EINVAL if it is known to be longer than the peer's receives.
            WorkCompletionError: it could not be delivered: too long for the peer's receive, or the peer is gone.
        """
        self.begin_send(data).result()

    async def asend(self, data: Any) -> None:
        """Run :meth:`send` on asyncio."""
        await self.begin_send(data)

    def recv(self, timeout_s: float | None = None) -> M:
        """Return the next message.

        Raises:
            TimeoutError: none came in time.
            PeerClosedError: the peer closed the connection and nothing is left.
            VerbsError: EINVAL once this end is closed, possibly by another thread; EIO in a forked child.
        """
        self._check_receives()
        while (wc := self._next_message()) is None:
            arrived = self._queue.wait(self._has_message, timeout_s, self)
            self._check_open()
            if not arrived:
                raise self._no_message(timeout_s)
        return self._take(wc)

    async def arecv(self) -> M:
        """Run :meth:`recv` on asyncio; ``asyncio.timeout`` bounds it."""
        self._check_receives()
        while (wc := self._next_message()) is None:
            arrived = await self._queue.wait_async(self._has_message, self)
            self._check_open()
            if not arrived:
                raise self._no_message(None)
        return self._take(wc)

    def _begin(self, operation: Operation, requests: list[SendWR], finish: Callable[[], T]) -> Pending[T]:
        self._queue.post(operation, requests)
        return Pending(self, operation, finish)

    def _post_receive(self, buffer: int) -> None:
        size = self._buffer_bytes
        self.qp.post_recv(RecvWR(buffer, 1, [SGE(self._buffers.buf + buffer * size, size, self._buffers.lkey)]))

    def _on_receive(self, wc: WC) -> None:
        if wc.status == e.IBV_WC_SUCCESS:
            self._messages.append(wc)
        elif self._broken is None:
            self._broken = wc

    def _has_message(self) -> bool:
        return bool(self._messages) or self._broken is not None

    def _next_message(self) -> WC | None:
        with contextlib.suppress(IndexError):
            return self._messages.popleft()
        if self._broken is not None:
            raise self._receive_error(self._broken)
        return None

    def _receive_error(self, wc: WC) -> Exception:
        return failure("receive", wc, self.peer)

    def _take(self, wc: WC) -> M:
        start = wc.wr_id * self._buffer_bytes
        try:
            return self._decode(self._buffers_view[start : start + wc.byte_len])
        finally:
            with contextlib.suppress(VerbsError):  # the connection may have ended meanwhile
                self._post_receive(wc.wr_id)

    def _no_message(self, timeout_s: float | None) -> Exception:
        if timeout_s is not None and not self.peer_gone():
            return TimeoutError(f"no message from {self.peer} within {timeout_s:g} s")
        return self._peer_closed()

    def _peer_closed(self) -> PeerClosedError:
        return PeerClosedError(f"{self.peer} {self.END}")

    def _check_open(self) -> None:
        """Raise in a forked child, and once this end is closed, which another thread or task may do during a wait."""
        if self._queue.inherited:
            raise VerbsError(EIO, f"the connection to {self.peer} is the parent process's: connect again in this one")
        if self.closed:
            raise VerbsError(EINVAL, f"the connection to {self.peer or 'nobody'} is closed; open a new one")

    def _check_receives(self) -> None:
        self._check_open()
        if not self._receives:
            raise VerbsError(EINVAL, "this end posts no receives; connect with receives and message_bytes above 0")

    # --------------------------------------------------------------------------------- ending

    @abstractmethod
    def peer_gone(self) -> bool:
        """True once the peer closed the connection."""

    @abstractmethod
    def peer_fileno(self) -> int:
        """Return the descriptor that is readable when :meth:`peer_gone` may be true; below 0 once it is closed."""

    def _end_descriptors(self) -> list[int]:
        """Return descriptors that are readable when the connection may have ended."""
        return [self.peer_fileno()]

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Wait until the peer or another thread closes the connection; return false after ``timeout_s``."""

        def ended() -> bool | None:
            if self._queue.inherited:
                self._check_open()
            if self.closed or self.peer_gone():
                return True
            self.ctx.driver.rest()
            return None

        return wait_event(ended, self._end_descriptors, timeout_s) is not None

    def close(self) -> None:
        """End the connection, and release everything; the peer's operations on it fail from now on.

        A second call does nothing.
        """
        if self.closed:
            return
        self.closed = True
        self.ctx.driver.kick()  # the last message may still need its ACK
        self._made.close()

    def __del__(self) -> None:
        """Close a connection that the program dropped: the device still holds queue pair, memory and descriptors.

        A separate thread closes it: the garbage collector may run in a thread that is in the middle of a command.
        """
        if getattr(self, "closed", True) or self._queue.inherited or (self.keeper is not None and self.keeper(self)):
            return
        with contextlib.suppress(RuntimeError):  # the interpreter exits, which releases everything
            _thread.start_new_thread(self.close, ())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()
