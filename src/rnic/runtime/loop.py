"""The loop around one NIC and its link, driven by its callers and, for passive sides, by a thread.

An application that polls drives its NIC itself: ``progress`` does one bounded round and returns. The threads serve the
NIC while the application does not poll (a peer reads this process's memory, a wait for an event): they block in
``poll`` until a packet or a deadline comes, and back off while the application polls. If rounds are compiled, a thread
in C runs them without the interpreter (engine/io/progress_thread.h), and the thread in Python handles what it punts.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable
from weakref import WeakSet

from rnic.device.nic import Nic
from rnic.link.base import Link
from rnic.link.own_fd import OwnFd
from rnic.link.udp import UdpLink
from rnic.runtime.rounds import CHECK_NS, THREAD_ROUNDS, Rounds
from rnic.runtime.wait import wait_readable
from rnic.spec.limits import NEVER
from rnic.spec.rounds import (
    PARK_MAX,
    PARK_NS,
    WRITE_BACK_NS,
)

_LONGEST_SLEEP_S = 0.5
_ERROR_PAUSE_S = 0.01
"""Pause of the thread after a round raised: the next one may raise again at once."""
_BACKOFFS_WHILE_POLLED = 10
"""Of the thread in C, for which the one in Python sleeps while the application polls."""
_live: WeakSet[Runtime] = WeakSet()
_threaded: WeakSet[Runtime] = WeakSet()


def _backoff_ns() -> int:
    return min(max(1, len(_threaded)), PARK_MAX) * PARK_NS


class Runtime(Rounds):
    """Owns a NIC and its link, and the thread that serves them while the application does not poll.

    Args:
        nic: the device.
        link: the link that carries its packets; closed with the runtime.
        clock: returns nanoseconds; only differences matter.
    """

    def __init__(self, nic: Nic, link: Link, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._thread: threading.Thread | None = None
        self._stop = False
        self._engine_thread = False
        """True if a thread in C runs rounds while the application does not poll; the one in Python assists it."""
        self._wake_read, self._wake_write = -1, -1
        super().__init__(nic, link, clock)
        _live.add(self)

    def start(self) -> None:
        """Start the background thread; a second call does nothing."""
        with self.lock:
            if self._thread is not None or self.closed:
                return
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_read, False)
            os.set_blocking(self._wake_write, False)
            self._wake_pipe = [OwnFd(fd, private=False) for fd in (self._wake_read, self._wake_write)]
            self._stop = False
            self._thread = threading.Thread(target=self._run, name=f"rnic {self.nic.config.name}", daemon=True)
            _threaded.add(self)
            if self.engine_loop is not None:
                sockets = [fd for fd in self.link.filenos() if fd not in self._ident_filenos()]
                self._engine_thread = self.engine_loop.start_thread(sockets, self._wake_write, WRITE_BACK_NS)
            self._thread.start()

    @property
    def threaded(self) -> bool:
        """True if the background thread runs."""
        return self._thread is not None

    def listen(self) -> None:
        """Note that the application waits for events by descriptors: a post is no sign that it will poll."""
        self.listens = True

    def rest(self) -> None:
        """Let the thread take over at once, since the application stops polling."""
        with self.lock:
            self._last_poll = 0
            if self.engine_loop is not None:
                self.engine_loop.prepare_to_sleep()
            if self._thread is not None and not (self._engine_thread and self._engine_polls and self.idents is None):
                self._wake()

    def _run(self) -> None:
        while not self._stop:
            if not self._assist_engine_thread():
                self._run_own_rounds()
            if self._wake_pipe[0].valid():
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)

    def _assist_engine_thread(self) -> bool:
        """Handle what the thread in C punts, and wait for more. Return false at once if there is no such thread."""
        with self.lock:  # taking the lock ends a round that C has stopped
            if self._stop or not self._engine_thread or not self._engine_polls:
                return self._stop
            with self.guard.around("round"):
                self.nic.write_back_if_due(self.clock())
                self._run_punted_rounds()
            known = [self.nic.own_deadline_ns(), self.link.next_deadline_ns(), self._held_deadline_ns()]
        wait = min([at for at in known if at is not None], default=NEVER) - self.clock()
        watched = [self._wake_read]
        if not self._application_polls():
            watched += self._ident_filenos()  # the thread in C does not know them
        elif self.idents is None:
            # its polls handle deadlines, and C wakes this thread when it stops
            wait = max(wait, _BACKOFFS_WHILE_POLLED * _backoff_ns())
        else:
            wait = _backoff_ns()
        self._sleep(watched, max(0, wait) / 1e9)
        return True

    def _sleep(self, descriptors: list[int], timeout: float | None) -> None:
        """Sleep until a descriptor is readable, for a limited time: a closed descriptor would never wake the thread."""
        timeout = _LONGEST_SLEEP_S if timeout is None else min(timeout, _LONGEST_SLEEP_S)
        if self._lost or not self._wake_pipe[0].valid():
            time.sleep(_LONGEST_SLEEP_S)
        else:
            wait_readable(descriptors, timeout)

    def _ident_filenos(self) -> list[int]:
        """Return the descriptor for packets from senders that count their IP IDs, if there are any."""
        idents = self._own_link.idents if isinstance(self._own_link, UdpLink) else None
        return [] if idents is None else [idents.fileno()]

    def _run_own_rounds(self) -> None:
        """Run rounds in Python, then sleep."""
        timeout: float | None = _backoff_ns() / 1e9
        sockets: list[int] = []
        if not self._application_polls():  # without the lock, which is left to the application while it polls
            with self.lock:
                if self._stop:
                    return
                timeout, sockets = self._rounds_and_sleep_time()
        self._sleep([self._wake_read, *sockets], timeout)
        self._sleep_until = None

    def _application_polls(self) -> bool:
        """Return whether the application has polled within the back-off time."""
        driven = 0 if self.engine_loop is None else self.engine_loop.last_poll
        return self.clock() - max(self._last_poll, driven) < _backoff_ns()

    def _run_punted_rounds(self) -> None:
        """Run rounds that C has punted, while the application does not poll. The thread in C runs all others."""
        loop = self.engine_loop
        assert loop is not None
        for _ in range(THREAD_ROUNDS):
            if self._application_polls():
                return
            if not self._round(self.clock()):
                if self.idents is None:
                    return
                break  # there may be work or deadlines that the thread in C has not seen
            if self._engine_polls and not loop.needs_python:
                break
        loop.wake_thread()

    def _run_rounds(self) -> bool:
        """Run rounds while there is work. Return false once the application polls."""
        for _ in range(THREAD_ROUNDS):
            if self._application_polls():
                return False
            if not self._round(self.clock()):
                break
        return True

    def _rounds_and_sleep_time(self) -> tuple[float | None, list[int]]:
        """Run rounds. Return how long to sleep, and on which sockets."""
        try:
            return self._sleep_time() if self._run_rounds() else (_backoff_ns() / 1e9, [])
        except Exception as error:  # noqa: BLE001 - the last guard: without the thread the peers are not served
            self.guard.caught("round", error)
            return _ERROR_PAUSE_S, []

    def _sleep_time(self) -> tuple[float | None, list[int]]:
        """Return how long to sleep, and on which sockets, once nothing is left to do."""
        sockets = self.link.filenos()
        if self.nic.has_work():
            return 0.0, sockets
        deadlines = [self.nic.next_deadline_ns(), self.link.next_deadline_ns(), self._held_deadline_ns()]
        known = [deadline for deadline in deadlines if deadline is not None]
        if not known:
            self._sleep_until = 1 << 63
            # in-memory links have no descriptor to wait on
            return (None if sockets else 0.001), sockets
        self._sleep_until = min(known)
        wait = max(0, self._sleep_until - self.clock()) / 1e9
        return (wait if sockets else min(wait, 0.001)), sockets

    def close(self) -> None:
        """Stop the thread and close the link; a second call does nothing."""
        while self.beside:
            self.beside.pop().close()
        with self.lock:
            if self.closed:
                return
            self.closed = True
            _live.discard(self)
            _threaded.discard(self)
            self._stop = True
            self._checked_ns -= CHECK_NS
            thread, self._thread = self._thread, None
            if thread is not None:
                self._wake()
            try:
                with self.guard.around("link"):
                    if self._io_poll is not None:
                        self._io_poll.stop()
                        self._io_poll = None
                    last = self.nic.drain_acks()
                    if self._owns_descriptors(self.clock()):
                        self.link.send(last)
            except BaseException:
                self.link.close()
                raise
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)
        if self.engine_loop is not None:
            self.engine_loop.stop_thread()
        for own in self._wake_pipe:
            own.close()
        self._wake_read = self._wake_write = -1
        self.link.close()


def _after_fork() -> None:
    """Close the runtimes of a forked child, which has no threads and must not use its parent's sockets."""
    for runtime in list(_live):
        runtime.lock = threading.RLock()
        runtime.closed = True
        runtime._thread = None
        while runtime.beside:
            runtime.beside.pop().abandon()
        runtime._io_poll = None
        if runtime.engine_loop is not None:
            runtime.engine_loop.forget_thread()
    _threaded.clear()


@atexit.register
def _before_end() -> None:
    """Stop the threads in C before the interpreter frees its memory."""
    for runtime in list(_live):
        if runtime.engine_loop is not None:
            runtime.engine_loop.stop_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
