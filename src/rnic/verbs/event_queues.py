"""What a program waits for: asynchronous events, completion channels, and the descriptors that poll readable."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from errno import EINVAL
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from rnic.runtime.own_fd import OwnFd
from rnic.spec.errors import VerbsError
from rnic.verbs import enums as e

if TYPE_CHECKING:
    from rnic.verbs.context import Context
    from rnic.verbs.cq import CQ
    from rnic.verbs.qp import QP
    from rnic.verbs.srq import SRQ

_PLENTY = 64
"""Bytes to empty a pipe that holds one, or a few."""
_live: WeakSet[EventPipe] = WeakSet()


class AsyncEvent:
    """An asynchronous event. ``element`` is the QP, CQ or SRQ that it is about, ``None`` for a device's."""

    __slots__ = ("element", "event_type")

    def __init__(self, event_type: int, element: QP | CQ | SRQ | None) -> None:
        self.event_type = event_type
        self.element = element

    def ack(self) -> None:
        """Nothing to do: events are counted by nobody here. For pyverbs' sake."""

    def __repr__(self) -> str:
        return f"<AsyncEvent {e.EVENT_NAMES.get(self.event_type, self.event_type)} {self.element!r}>"


class EventPipe:
    """A queue with a real descriptor that polls readable while something is in it. Threads may use it at the same time.

    Args:
        closed: errno and words of the error for who asks once it is closed.
        most: items that may wait; of more, the oldest are dropped. By default any number.
    """

    def __init__(self, closed: tuple[int, str], most: int | None = None) -> None:
        self._closed = closed
        self._lock = threading.RLock()
        read, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(read, False)
        self._read, self._write = OwnFd(read, private=False), OwnFd(write, private=True)
        self._queue: deque[Any] = deque(maxlen=most)
        self._readable = False
        """A byte is in the pipe, which says no more than that something waits."""
        _live.add(self)

    def fileno(self) -> int:
        """Descriptor for select, poll and event loops; below 0 once it is closed."""
        return self._read.fd

    def put(self, item: object) -> None:
        """Add an item; never waits. Once it is closed, nobody gets it."""
        with self._lock:
            if self._read.fd < 0:
                return
            self._queue.append(item)
            if not self._readable and self._valid():
                os.write(self._write.fd, b"\0")
                self._readable = True

    def _valid(self) -> bool:
        """Whether the program has not closed the descriptor itself."""
        return self._read.valid() and self._write.valid()

    def get(self) -> Any | None:
        """The oldest item, or ``None``.

        Raises:
            VerbsError: it is closed.
        """
        with self._lock:
            if self._read.fd < 0:
                raise VerbsError(*self._closed)
            item = self._queue.popleft() if self._queue else None
            self._settle()
            return item

    def drop(self, unwanted: Callable[[Any], bool]) -> None:
        """Take out the items of which ``unwanted`` says so."""
        with self._lock:
            if self._read.fd >= 0 and any(map(unwanted, self._queue)):
                self._queue = deque((item for item in self._queue if not unwanted(item)), self._queue.maxlen)
                self._settle()

    def _settle(self) -> None:
        """Nothing waits any more, maybe: the descriptor does not poll readable then."""
        if not self._queue:
            self._readable = False  # first: a byte too many, where a signal handler raises here, is read the next time
            if self._valid():
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read.fd, _PLENTY)

    def close(self) -> None:
        """Close the descriptor; whoever waits for it wakes up. A second call does nothing."""
        with self._lock:
            if self._read.fd >= 0:
                self._read.close()
                self._write.close()
                self._queue.clear()

    def forget(self) -> None:
        """This process is a child of the one that waits for events: the byte in the pipe is that one's to read."""
        self._lock = threading.RLock()  # a thread that is not there may have held the other
        self.close()


class CompChannel:
    """A completion channel: a descriptor that polls readable when an armed CQ has news."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._pipe = EventPipe((EINVAL, "the completion channel is closed: open a new one"))
        self.cqs: set[CQ] = set()
        ctx.driver.start()
        ctx.driver.listen()
        ctx.add_child(self)

    def fileno(self) -> int:
        """Descriptor for select, poll and event loops; below 0 once it is closed."""
        return self._pipe.fileno()

    def notify(self, cq: CQ) -> None:
        """Queue an event of ``cq``."""
        self._pipe.put(cq)

    def forget(self, cq: CQ) -> None:
        """``cq`` is closed: nobody is told of it any more."""
        self.cqs.discard(cq)
        self._pipe.drop(lambda waiting: waiting is cq)

    def get_cq_event(self, expected_cq: CQ | None = None, block: bool = True) -> CQ:
        """Wait for the next event; the CQ that it is about.

        Raises:
            VerbsError: EAGAIN without ``block`` where none waits, EINVAL if it is another CQ's than expected, and
                once the channel is closed, for who waits meanwhile as well.
        """
        cq: CQ = self.ctx.wait_pipe(self._pipe, block, completions=True)  # type: ignore[assignment]  # only CQs
        if expected_cq is not None and cq is not expected_cq:
            raise VerbsError(EINVAL, f"event of {cq!r} where {expected_cq!r} was expected")
        return cq

    def close(self) -> None:
        """Close the descriptor, and the CQs that report here."""
        for cq in tuple(self.cqs):
            cq.close()
        self._pipe.close()
        self.ctx.drop_child(self)


def _after_fork() -> None:
    for pipe in list(_live):
        pipe.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
