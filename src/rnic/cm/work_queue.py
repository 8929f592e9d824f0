"""Work requests of one queue pair on behalf of callers that wait for them, in threads or in asyncio.

Whoever waits drives: it polls the completion queue and hands each completion to the job it belongs to, its own or
another's. A waiter spins for a short time, since a wake-up costs more than most operations, then sleeps.
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
from typing import Protocol

from rnic.runtime.wait import wait_readable
from rnic.spec.errors import RnicError, VerbsError, WorkCompletionError
from rnic.verbs import enums as e
from rnic.verbs.attrs import WC, SendWR
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.event_queues import CompChannel
from rnic.verbs.qp import QP

SPIN_NS = 300_000
"""How long a waiter polls before it sleeps."""
_SLEEP_S = 0.05
"""Longest sleep, so that nothing hangs on a wake-up that another thread took."""
LOOK_S = 0.5
"""The same of those who wait for an end alone, or for the connection manager."""
_POLL = 16

_HINTS = {
    e.IBV_WC_RETRY_EXC_ERR: "the peer does not answer; it is gone, or the network to it is",
    e.IBV_WC_WR_FLUSH_ERR: "the connection is broken since an earlier error",
    e.IBV_WC_REM_ACCESS_ERR: "the peer does not let us: range, rights, or a buffer that it shares no more",
    e.IBV_WC_REM_INV_REQ_ERR: "the peer refuses the request: too long, or not aligned to 8 bytes",
    e.IBV_WC_REM_OP_ERR: "the peer could not carry it out",
    e.IBV_WC_LOC_LEN_ERR: "the message is longer than the receive",
    e.IBV_WC_RNR_RETRY_EXC_ERR: "the peer posts no receives",
}


class PeerClosedError(RnicError, ConnectionError):
    """The peer closed the connection, so nothing will arrive any more."""


class HasFileno(Protocol):
    """What becomes readable at the end of a connection, and not before."""

    def fileno(self) -> int:
        """Its descriptor."""


class Job:
    """One operation: a work request, or several that belong together.

    Args:
        what: for messages, such as ``READ of 'a'``.
        release: called when the last of its work requests completed, whether anybody still waits or not.
    """

    __slots__ = ("failed", "release", "remaining", "what")

    def __init__(self, what: str, release: Callable[[], None] | None = None) -> None:
        self.what = what
        self.release = release
        self.remaining = 0
        self.failed: WC | None = None

    def done(self) -> bool:
        """Whether all its work requests completed."""
        return self.remaining == 0

    def took(self, wc: WC) -> None:
        """One of its work requests completed."""
        if wc.status != e.IBV_WC_SUCCESS and self.failed is None:
            self.failed = wc
        self.remaining -= 1
        if not self.remaining and self.release is not None:
            self.release()

    def check(self, peer: str) -> None:
        """:class:`WorkCompletionError` if it failed."""
        wc = self.failed
        if wc is not None:
            hint = _HINTS.get(wc.status, "see the status in the InfiniBand standard")
            raise WorkCompletionError(wc.status, f"{self.what} at {peer} failed with {wc.status_name}: {hint}")


_live: weakref.WeakSet[Jobs] = weakref.WeakSet()


class Jobs:
    """Posts the work requests of jobs, keeps those that do not fit yet, and hands out completions.

    Args:
        ctx: the device.
        depth: send work requests in flight.
        cqe: completions to hold, receives included.
        on_receive: called with each receive completion.
    """

    def __init__(self, ctx: Context, depth: int, cqe: int, on_receive: Callable[[WC], None]) -> None:
        self.closed = False
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
        self._flying: dict[int, Job] = {}
        self._backlog: deque[tuple[Job, SendWR]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: list[int] = []
        self._waiters: list[asyncio.Future[None]] = []

    def use(self, qp: QP) -> None:
        """The queue pair to post to; its completions come to :attr:`cq`."""
        self._qp = qp

    def post(self, job: Job, requests: Sequence[SendWR]) -> None:
        """Start a job."""
        job.remaining = len(requests)
        with self.lock:
            self._backlog.extend((job, request) for request in requests)
            self._post_backlog()

    def _post_backlog(self) -> None:
        backlog = self._backlog
        while backlog and len(self._flying) < self._depth and self._qp is not None:
            job, request = backlog.popleft()
            request.wr_id = self._next_id
            self._next_id += 1
            self._flying[request.wr_id] = job
            try:
                self._qp.post_send(request)
            except VerbsError:
                del self._flying[request.wr_id]
                for _ in range(1 + sum(other is job for other, _ in backlog)):
                    job.took(WC(status=e.IBV_WC_GENERAL_ERR))
                self._backlog = deque(item for item in backlog if item[0] is not job)
                raise

    def dispatch(self) -> None:
        """Let the NIC work and hand out what completed; nothing once it is closed."""
        with self.lock:
            if self.closed:
                return
            count, found = self.cq.poll(_POLL)
            while count:
                for wc in found:
                    job = None if wc.opcode & e.IBV_WC_RECV else self._flying.pop(wc.wr_id, None)
                    if job is not None:
                        job.took(wc)
                    elif wc.opcode & e.IBV_WC_RECV:
                        self._on_receive(wc)
                self._post_backlog()
                self._wake_waiters()
                count, found = self.cq.poll(_POLL) if count == _POLL else (0, [])

    def arm(self) -> None:
        """The next completion wakes who sleeps on :attr:`channel`."""
        with self.lock:
            if not self.closed:  # its registers may be another's by now
                self.cq.req_notify()

    # ---------------------------------------------------------------------------------- in threads

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None, hang_up: HasFileno | None = None) -> bool:
        """Drive until ``ready()``.

        Args:
            timeout_s: how long; ``None`` for ever.
            hang_up: what tells of the peer's end, where that ends the wait.

        Returns:
            Whether it is ready; false after the timeout, when the peer hung up, or once this side was closed.
        """
        now = busy = time.monotonic_ns()
        end = None if timeout_s is None else now + int(timeout_s * 1e9)
        while not self.closed:
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
            if hang_up is not None and hung_up(hang_up):
                self.dispatch()
                return ready()
            self._sleep(_SLEEP_S if end is None else min(_SLEEP_S, (end - now) / 1e9), hang_up)
        return ready()

    def _sleep(self, seconds: float, hang_up: HasFileno | None) -> None:
        sockets = self._runtime.filenos()
        watched = [self.channel.fileno(), *sockets]
        if hang_up is not None:
            watched.append(hang_up.fileno())
        # another thread may have closed some; a link in memory has nothing to wait on
        wait_readable([each for each in watched if each >= 0], seconds if sockets else min(seconds, 0.001))
        self._drain()

    def _drain(self) -> None:
        with self.lock, contextlib.suppress(VerbsError):
            while not self.closed:
                self.channel.get_cq_event(block=False)

    # ---------------------------------------------------------------------------------- in asyncio

    async def wait_async(self, ready: Callable[[], bool], hang_up: HasFileno | None = None) -> bool:
        """As :meth:`wait`, for a task of the running event loop; closing ends this wait, too, in whatever thread."""
        self.dispatch()
        if ready():
            return True
        loop = asyncio.get_running_loop()
        with self.lock:
            self._watch(loop, hang_up)
        while not ready():
            waiter = loop.create_future()
            with self.lock:
                if self.closed:
                    return False
                self._waiters.append(waiter)
                self.arm()
            self.dispatch()
            if not ready():
                if hang_up is not None and hung_up(hang_up):
                    return False
                # from here on the thread of the NIC receives, and the channel wakes us
                self._runtime.rest()
                await waiter
        return True

    def _watch(self, loop: asyncio.AbstractEventLoop, hang_up: HasFileno | None) -> None:
        if self.closed:  # nothing is there to watch
            return
        if self._loop is not loop:
            self._forget_loop()
            self._loop = loop
        descriptors = [self.channel.fileno(), *([] if hang_up is None else [hang_up.fileno()])]
        for descriptor in descriptors:
            if descriptor not in self._watched:
                loop.add_reader(descriptor, self._on_readable, descriptor)
                self._watched.append(descriptor)

    def _on_readable(self, descriptor: int) -> None:
        if descriptor != self.channel.fileno() and self._loop is not None:
            # the peer hung up, once and for all
            self._loop.remove_reader(descriptor)
        self._drain()
        self.dispatch()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Have tasks look again, each in its own loop, which need not be the one that watches."""
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
        """Close the queues; jobs that are not done fail, and who waits looks again."""
        self._forget_loop()
        with self.lock:
            self.closed = True
            unfinished = [*self._flying.values(), *(job for job, _ in self._backlog)]
            self._flying.clear()
            self._backlog.clear()
            for job in unfinished:
                job.took(WC(status=e.IBV_WC_WR_FLUSH_ERR))
            self._wake_waiters()
            self.channel.close()


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def hung_up(sock: HasFileno, timeout_s: float = 0) -> bool:
    """Whether the peer closes its end within ``timeout_s``, or this side has closed its own.

    Nothing is ever sent after the exchange, so whatever is readable is the end.
    """
    descriptor = sock.fileno()
    return descriptor < 0 or wait_readable([descriptor], timeout_s)


def _after_fork() -> None:
    """A child closes connections, too: a thread that is not there may have waited for one of them."""
    for jobs in list(_live):
        jobs.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
