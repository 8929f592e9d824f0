"""The work queue of one connection, for threads and asyncio tasks; and waits for connection events.

A caller that waits also drives: it polls the completion queue, and completes its own operations and those of
others. It spins for a short time, since a wake-up costs more than most operations, then sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from rnic.runtime.wait import wait_readable
from rnic.spec.errors import RnicError, VerbsError, WorkCompletionError
from rnic.verbs import enums as e
from rnic.verbs.attrs import WC, SendWR
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.event_queues import CompChannel
from rnic.verbs.qp import QP

SPIN_NS = 300_000
"""Time that a waiter polls before it sleeps."""
_SLEEP_S = 0.05
"""Longest sleep of a waiter, so that it does not hang if another thread takes its wake-up."""
MAX_WAIT_S = 0.5
"""Longest sleep of :func:`wait_event`."""
_POLL = 16
T = TypeVar("T")

_HINTS = {
    e.IBV_WC_RETRY_EXC_ERR: "the peer does not answer; it is gone, or the network to it is",
    e.IBV_WC_WR_FLUSH_ERR: "the connection is broken since an earlier error",
    e.IBV_WC_REM_ACCESS_ERR: "the peer refuses access: range, rights, or a buffer that it no longer shares",
    e.IBV_WC_REM_INV_REQ_ERR: "the peer refuses the request: too long, or not aligned to 8 bytes",
    e.IBV_WC_REM_OP_ERR: "the peer could not execute it",
    e.IBV_WC_LOC_LEN_ERR: "the message is longer than the receive",
    e.IBV_WC_RNR_RETRY_EXC_ERR: "the peer posts no receives",
}


class PeerClosedError(RnicError, ConnectionError):
    """The peer closed the connection, so nothing more will arrive."""


class Peer(Protocol):
    """The other end of a connection, as far as a wait depends on it."""

    def peer_gone(self) -> bool:
        """True once the peer has ended the connection."""

    def peer_fileno(self) -> int:
        """Return the descriptor that is readable when :meth:`peer_gone` may be true; negative once closed."""


class Operation:
    """One operation: a work request, or several that belong together.

    Args:
        what: name for error messages, such as ``READ of 'a'``.
        release: called when the last of its work requests completed, even if no caller waits anymore.
    """

    __slots__ = ("failed", "release", "remaining", "what")

    def __init__(self, what: str, release: Callable[[], None] | None = None) -> None:
        self.what = what
        self.release = release
        self.remaining = 0
        self.failed: WC | None = None

    def done(self) -> bool:
        """Return whether all its work requests completed."""
        return self.remaining == 0

    def complete(self, wc: WC) -> None:
        """Note the completion of one of its work requests."""
        if wc.status != e.IBV_WC_SUCCESS and self.failed is None:
            self.failed = wc
        self.remaining -= 1
        if not self.remaining and self.release is not None:
            self.release()

    def raise_on_error(self, peer: str) -> None:
        """Raise :class:`WorkCompletionError` if the operation failed."""
        if self.failed is not None:
            raise failure(self.what, self.failed, peer)


def failure(what: str, wc: WC, peer: str) -> WorkCompletionError:
    """Return the error for a completion that failed."""
    hint = _HINTS.get(wc.status, "see the status in the InfiniBand standard")
    return WorkCompletionError(wc.status, f"{what} at {peer} failed with {wc.status_name}: {hint}")


_live: weakref.WeakSet[WorkQueue] = weakref.WeakSet()


class WorkQueue:
    """Posts the work requests of operations, queues those that do not fit yet, and dispatches completions.

    Args:
        ctx: the device.
        depth: send work requests in flight.
        cqe: completions to hold, receives included.
        on_receive: called with each receive completion.
    """

    def __init__(self, ctx: Context, depth: int, cqe: int, on_receive: Callable[[WC], None]) -> None:
        self.closed = False
        self.inherited = False
        """True in a forked child, which can only close the queue."""
        self.channel = CompChannel(ctx)
        try:
            self.cq = CQ(ctx, cqe, channel=self.channel)
        except BaseException:
            self.channel.close()
            raise
        self.lock = threading.RLock()
        _live.add(self)
        self._runtime = ctx.driver
        self._depth = depth
        self._on_receive = on_receive
        self._qp: QP | None = None
        self._next_id = 0
        self._outstanding: dict[int, Operation] = {}
        self._backlog: deque[tuple[Operation, SendWR]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: list[int] = []
        self._waiters: list[asyncio.Future[None]] = []

    def use(self, qp: QP) -> None:
        """Post to this queue pair from now on, whose completions come to :attr:`cq`."""
        self._qp = qp

    def post(self, operation: Operation, requests: Sequence[SendWR]) -> None:
        """Start an operation."""
        operation.remaining = len(requests)
        with self.lock:
            self._backlog.extend((operation, request) for request in requests)
            self._post_backlog()

    def _post_backlog(self) -> None:
        backlog = self._backlog
        while backlog and len(self._outstanding) < self._depth and self._qp is not None:
            operation, request = backlog.popleft()
            request.wr_id = self._next_id
            self._next_id += 1
            self._outstanding[request.wr_id] = operation
            try:
                self._qp.post_send(request)
            except VerbsError:
                del self._outstanding[request.wr_id]
                for _ in range(1 + sum(other is operation for other, _ in backlog)):
                    operation.complete(WC(status=e.IBV_WC_GENERAL_ERR))
                self._backlog = deque(item for item in backlog if item[0] is not operation)
                raise

    def progress(self) -> None:
        """Run one step of the NIC, and dispatch completions."""
        self._runtime.progress()
        self.dispatch()

    def dispatch(self) -> None:
        """Dispatch completions; do nothing once closed."""
        with self.lock:
            if self.closed or self.inherited:
                return
            count, found = self.cq.poll(_POLL)
            while count:
                for wc in found:
                    if wc.opcode & e.IBV_WC_RECV:
                        self._on_receive(wc)
                    elif operation := self._outstanding.pop(wc.wr_id, None):
                        operation.complete(wc)
                self._post_backlog()
                self._wake_waiters()
                count, found = self.cq.poll(_POLL) if count == _POLL else (0, [])

    def arm(self) -> None:
        """Request that the next completion wake waiters that sleep on :attr:`channel`."""
        with self.lock:
            if not (self.closed or self.inherited):  # another context may own its registers by now
                self.cq.req_notify()

    # ---------------------------------------------------------------------------------- in threads

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None, peer: Peer | None = None) -> bool:
        """Drive until ``ready()``.

        Args:
            ready: checked after each step.
            timeout_s: longest wait; ``None`` for no limit.
            peer: the wait ends when the peer ends the connection.

        Returns:
            Whether it is ready; false after the timeout, when the peer is gone, or once this side was closed.
        """
        now = busy = time.monotonic_ns()
        end = None if timeout_s is None else now + int(timeout_s * 1e9)
        while not (self.closed or self.inherited):
            moved = self._runtime.progress()
            self.dispatch()
            if ready():
                return True
            now = time.monotonic_ns()
            if moved:
                busy = now
            if now - busy < SPIN_NS and (end is None or now < end):
                continue
            self.arm()
            self.dispatch()
            if ready():
                return True
            if end is not None and now >= end:
                return False
            if peer is not None and peer.peer_gone():
                self.dispatch()
                return ready()
            self._sleep(_SLEEP_S if end is None else min(_SLEEP_S, (end - now) / 1e9), peer)
        return ready()

    def _sleep(self, seconds: float, peer: Peer | None) -> None:
        sockets = self._runtime.filenos()
        watched = [self.channel.fileno(), *sockets]
        if peer is not None:
            watched.append(peer.peer_fileno())
        # a link in memory has no descriptor to wait on
        wait_readable(open_descriptors(watched), seconds if sockets else min(seconds, 0.001))
        self._drain()

    def _drain(self) -> None:
        with self.lock, contextlib.suppress(VerbsError):
            while not self.closed:
                self.channel.get_cq_event(block=False)

    # ---------------------------------------------------------------------------------- in asyncio

    async def wait_async(self, ready: Callable[[], bool], peer: Peer | None = None) -> bool:
        """Wait as :meth:`wait` does, in a task; a close by any thread also ends this wait."""
        self.dispatch()
        if ready():
            return True
        loop = asyncio.get_running_loop()
        with self.lock:
            self._watch(loop, peer)
        while not ready():
            waiter = loop.create_future()
            with self.lock:
                if self.closed or self.inherited:
                    return False
                self._waiters.append(waiter)
                self.arm()
            self.dispatch()
            if not ready():
                if peer is not None and peer.peer_gone():
                    self.dispatch()
                    return ready()
                # from here on the NIC's own thread receives, and the channel wakes this task
                self._runtime.rest()
                await waiter
        return True

    def _watch(self, loop: asyncio.AbstractEventLoop, peer: Peer | None) -> None:
        if self.closed or self.inherited:  # nothing is left to watch
            return
        if self._loop is not loop:
            self._forget_loop()
            self._loop = loop
        for descriptor in open_descriptors([self.channel.fileno(), -1 if peer is None else peer.peer_fileno()]):
            if descriptor not in self._watched:
                loop.add_reader(descriptor, self._on_readable, descriptor)
                self._watched.append(descriptor)

    def _on_readable(self, descriptor: int) -> None:
        if descriptor != self.channel.fileno() and self._loop is not None:
            # the peer has closed the connection: the descriptor stays readable
            self._loop.remove_reader(descriptor)
        self._drain()
        self.dispatch()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Make waiting tasks check again, each in its own event loop, which may not be the one that watches."""
        with self.lock:
            waiters, self._waiters = self._waiters, []
        for loop in {waiter.get_loop() for waiter in waiters}:
            with contextlib.suppress(RuntimeError):  # the loop ended, and its tasks with it
                loop.call_soon_threadsafe(_wake, [waiter for waiter in waiters if waiter.get_loop() is loop])

    def _forget_loop(self) -> None:
        """Stop watching descriptors in an event loop."""
        loop, self._loop = self._loop, None
        watched, self._watched = self._watched, []
        if loop is not None and not loop.is_closed():
            for descriptor in watched:
                loop.remove_reader(descriptor)

    def close(self) -> None:
        """Close the queues; operations that are not done fail, and waiters check again."""
        self._forget_loop()
        with self.lock:
            self.closed = True
            unfinished = [*self._outstanding.values(), *(operation for operation, _ in self._backlog)]
            self._outstanding.clear()
            self._backlog.clear()
            for operation in unfinished:
                operation.complete(WC(status=e.IBV_WC_WR_FLUSH_ERR))
            if not self.inherited:
                self._wake_waiters()
            self.channel.close()


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def open_descriptors(descriptors: list[int]) -> list[int]:
    """Return the descriptors that no other thread has closed."""
    return [each for each in descriptors if each >= 0]


class _Deadline:
    """Deadline of a wait, and the time left."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the seconds until the next check; 0 or less once the time is over."""
        return MAX_WAIT_S if self._end is None else min(MAX_WAIT_S, self._end - time.monotonic())


def wait_event(take: Callable[[], T | None], descriptors: Callable[[], list[int]], timeout_s: float | None) -> T | None:
    """Call ``take`` until it returns something, sleeping on ``descriptors()`` in between; return ``None`` on timeout.

    For events outside the data path: connection requests, answers of the connection manager, the end of a connection.
    """
    deadline = _Deadline(timeout_s)
    while (found := take()) is None:
        if (left := deadline.left_s()) <= 0:
            return None
        wait_readable(open_descriptors(descriptors()), left)
    return found


async def wait_event_async(
    take: Callable[[], T | None], descriptors: Callable[[], list[int]], timeout_s: float | None
) -> T | None:
    """Run :func:`wait_event` on asyncio."""
    loop = asyncio.get_running_loop()
    deadline = _Deadline(timeout_s)
    while (found := take()) is None:
        if (left := deadline.left_s()) <= 0:
            return None
        await _wait_readable_async(loop, open_descriptors(descriptors()), left)
    return found


async def _wait_readable_async(loop: asyncio.AbstractEventLoop, descriptors: list[int], timeout_s: float) -> None:
    readable = loop.create_future()

    def on_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    # duplicates: other tasks of this loop may watch the same descriptors
    watched: list[int] = []
    try:
        for descriptor in descriptors:
            watched.append(os.dup(descriptor))
            loop.add_reader(watched[-1], on_readable)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await readable
    finally:
        for descriptor in watched:
            loop.remove_reader(descriptor)
            os.close(descriptor)


def _after_fork() -> None:
    """Replace locks in a forked child, which must close connections: a thread it does not have may hold them."""
    for queue in list(_live):
        queue.lock = threading.RLock()
        queue.inherited = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
