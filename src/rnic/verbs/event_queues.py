"""What a program waits for: asynchronous events, completion channels, and the descriptors that poll readable."""

from __future__ import annotations

import os
from collections import deque
from errno import EINVAL
from typing import TYPE_CHECKING, Any

from rnic.spec.errors import VerbsError
from rnic.verbs import enums as e

if TYPE_CHECKING:
    from rnic.verbs.context import Context
    from rnic.verbs.cq import CQ
    from rnic.verbs.qp import QP
    from rnic.verbs.srq import SRQ


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
    """A queue with a real descriptor that polls readable while something is in it."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._queue: deque[Any] = deque()

    def fileno(self) -> int:
        """Descriptor for select, poll and event loops."""
        return self._read

    def put(self, item: object) -> None:
        """Add an item; never waits."""
        self._queue.append(item)
        try:
            os.write(self._write, b"\0")
        except OSError:  # full or closed: it is readable already, or nobody reads any more
            return

    def get(self) -> Any | None:
        """The oldest item, or ``None``."""
        try:
            os.read(self._read, 1)
        except BlockingIOError:
            return None
        return self._queue.popleft() if self._queue else None

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._read >= 0:
            os.close(self._read)
            os.close(self._write)
            self._read = self._write = -1


class CompChannel:
    """A completion channel: a descriptor that polls readable when an armed CQ has news."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._pipe = EventPipe()
        self.cqs: set[CQ] = set()
        ctx.driver.start()
        ctx.driver.listen()
        ctx.add_child(self)

    def fileno(self) -> int:
        """Descriptor for select, poll and event loops."""
        return self._pipe.fileno()

    def notify(self, cq: CQ) -> None:
        """Queue an event of ``cq``."""
        self._pipe.put(cq)

    def get_cq_event(self, expected_cq: CQ | None = None, block: bool = True) -> CQ:
        """Wait for the next event; the CQ that it is about.

        Raises:
            VerbsError: EAGAIN without ``block`` where none waits, EINVAL if it is another CQ's than expected.
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
