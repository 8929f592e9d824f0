"""Events for a program: asynchronous events, completion channels, and their file descriptors."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from errno import EINVAL
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from rnic.link.own_fd import OwnFd
from rnic.spec.errors import VerbsError
from rnic.verbs import enums as e

if TYPE_CHECKING:
    from rnic.verbs.context import Context
    from rnic.verbs.cq import CQ
    from rnic.verbs.qp import QP
    from rnic.verbs.srq import SRQ

_PLENTY = 64
"""Bytes to read at once to empty a pipe, which holds one or a few."""
_live: WeakSet[EventPipe] = WeakSet()


class AsyncEvent:
    """An asynchronous event.

    Args:
        event_type: ``IBV_EVENT_*``.
        element: the QP, CQ or SRQ that it is about, ``None`` for a device's.
    """

    __slots__ = ("element", "event_type")

    def __init__(self, event_type: int, element: QP | CQ | SRQ | None) -> None:
        self.event_type = event_type
        self.element = element

    def ack(self) -> None:
        """Do nothing, for pyverbs compatibility: events are not counted here."""

    def __repr__(self) -> str:
        return f"<AsyncEvent {e.EVENT_NAMES.get(self.event_type, self.event_type)} {self.element!r}>"


class EventPipe:
    """A thread-safe queue with a real file descriptor that polls readable while it holds items.

    The descriptor is opened on the first :meth:`fileno`: a connection that only serves one-sided operations has none.

    Args:
        closed: errno and text of the error that calls raise once it is closed.
        most: items that may wait; of more, the oldest are dropped. By default any number.
    """

    def __init__(self, closed: tuple[int, str], most: int | None = None) -> None:
        self._error = closed
        self._lock = threading.RLock()
        self._ends: tuple[OwnFd, OwnFd] | None = None
        """The ends of the pipe, to read from and to write to; ``None`` until the first :meth:`fileno`."""
        self._closed = False
        self._queue: deque[Any] = deque(maxlen=most)
        self._readable = False
        """True if a byte is in the pipe: at least one item may wait."""
        _live.add(self)

    def fileno(self) -> int:
        """Return the descriptor for select, poll and event loops; below 0 once it is closed.

        Raises:
            OSError: it is asked for the first time, and the program has no descriptor left.
        """
        with self._lock:
            if self._closed:
                return -1
            if self._ends is None:
                self._ends = self._open()
                self._tell()
            return self._ends[0].fd

    @staticmethod
    def _open() -> tuple[OwnFd, OwnFd]:
        read, write = os.pipe()
        os.set_blocking(write, False)
        os.set_blocking(read, False)
        return OwnFd(read, private=False), OwnFd(write, private=True)

    def put(self, item: object) -> None:
        """Add an item; never waits. Once it is closed, the item is dropped."""
        with self._lock:
            if not self._closed:
                self._queue.append(item)
                self._tell()

    def _tell(self) -> None:
        """Make the descriptor poll readable if an item waits."""
        if self._queue and not self._readable and self._ends is not None and self._valid(self._ends):
            os.write(self._ends[1].fd, b"\0")
            self._readable = True

    @staticmethod
    def _valid(ends: tuple[OwnFd, OwnFd]) -> bool:
        """Return whether the program has not closed the descriptor itself."""
        return all(end.valid() for end in ends)

    def get(self) -> Any | None:
        """Return the oldest item, or ``None``.

        Raises:
            VerbsError: it is closed.
        """
        with self._lock:
            if self._closed:
                raise VerbsError(*self._error)
            item = self._queue.popleft() if self._queue else None
            self._settle()
            return item

    def drop(self, unwanted: Callable[[Any], bool]) -> None:
        """Drop the items for which ``unwanted`` returns true."""
        with self._lock:
            if not self._closed and any(map(unwanted, self._queue)):
                self._queue = deque((item for item in self._queue if not unwanted(item)), self._queue.maxlen)
                self._settle()

    def _settle(self) -> None:
        """Clear the descriptor if no item waits anymore."""
        if not self._queue:
            self._readable = False  # first: if a signal handler raises here, the surplus byte is read the next time
            if self._ends is not None and self._valid(self._ends):
                with contextlib.suppress(BlockingIOError):
                    os.read(self._ends[0].fd, _PLENTY)

    def close(self) -> None:
        """Close the descriptor; waiting threads wake up. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            for end in self._ends or ():
                end.close()
            self._ends = None

    def forget(self) -> None:
        """Close the pipe in a forked child: the byte in it is for the parent to read."""
        self._lock = threading.RLock()  # a thread that the child lacks may hold the old lock
        self.close()


class CompChannel:
    """A completion channel: a descriptor that polls readable when an armed CQ has an event.

    Args:
        ctx: the device's context.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._pipe = EventPipe((EINVAL, "the completion channel is closed: open a new one"))
        self.cqs: set[CQ] = set()
        ctx.driver.start()
        ctx.driver.listen()
        ctx.add_child(self)

    def fileno(self) -> int:
        """Return the descriptor for select, poll and event loops; below 0 once it is closed."""
        return self._pipe.fileno()

    def notify(self, cq: CQ) -> None:
        """Queue an event of ``cq``."""
        self._pipe.put(cq)

    def forget(self, cq: CQ) -> None:
        """Drop the events of ``cq``, which is closed."""
        self.cqs.discard(cq)
        self._pipe.drop(lambda waiting: waiting is cq)

    def get_cq_event(self, expected_cq: CQ | None = None, block: bool = True) -> CQ:
        """Wait for the next event and return the CQ that it is about.

        Args:
            expected_cq: the CQ that the event must be about.
            block: wait; else raise EAGAIN.

        Raises:
            VerbsError: EAGAIN without ``block`` if none waits; EINVAL if it is another CQ's than expected, and
                if the channel is closed, even while a thread waits.
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
