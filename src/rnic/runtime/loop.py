"""The loop around one NIC and its link, driven by its callers and, for passive sides, by a thread.

An application that polls drives its NIC itself: ``progress`` does one bounded round and returns. The threads serve the
NIC while the application does not poll (a peer reads this process's memory, a wait for an event): they block in
``poll`` until a packet or a deadline comes, and back off while the application polls. Where rounds are compiled, one
thread is in C, which needs no interpreter (engine/io/progress_thread.h); the one in Python does what that punts.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from rnic.device.nic import Nic
from rnic.engine import use
from rnic.link.base import Link
from rnic.link.faults import FaultRates, FaultyLink
from rnic.link.loopback import LoopbackLink
from rnic.link.udp import UdpLink
from rnic.runtime.faults import DeviceFaults, wanted_by
from rnic.runtime.report import log_report
from rnic.runtime.tap import Tap
from rnic.runtime.wait import wait_readable
from rnic.spec.limits import NEVER
from rnic.spec.rounds import (
    BUDGET,
    IDLE_BEFORE_YIELD,
    PARK_MAX,
    PARK_NS,
    PARTIAL_ROUND,
    RECEIVE_LIMIT,
    REPLIES_AT_LEAST_EVERY,
    TIMERS_AT_LEAST_EVERY,
    WRITE_BACK_NS,
)
from rnic.wire.bursts import RxBurst, TxBurst

if TYPE_CHECKING:
    from rnic.engine import _engine

_THREAD_ROUNDS = 256
_ERROR_PAUSE_S = 0.01
"""Pause of the thread after a round that raised: the next one may raise again at once."""
_yield_core: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))

_live: WeakSet[Runtime] = WeakSet()
_threaded: WeakSet[Runtime] = WeakSet()


def _backoff_ns() -> int:
    return min(max(1, len(_threaded)), PARK_MAX) * PARK_NS


def _make_lock() -> threading.RLock | _engine.DeviceLock:
    """Make a reentrant lock, which compiled rounds take as well where there are any."""
    return threading.RLock() if use.ENGINE is None else use.ENGINE.DeviceLock()


class Runtime:
    """Owns a NIC and its link under one lock.

    Args:
        nic: the device.
        link: what carries its packets; closed with the runtime.
        clock: returns nanoseconds; only differences matter.
    """

    def __init__(self, nic: Nic, link: Link, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.nic = nic
        self.link: Link = link
        self._own_link = link
        self.clock = clock
        self.lock = _make_lock()
        """Held around every use of the NIC: commands, progress, timers."""
        self.handlers: dict[int, Callable[[], None]] = {}
        """Handlers of interrupt vectors; they run under the lock and must not wait."""
        self.guard = nic.guard
        if self.guard.report is None:
            self.guard.report = log_report
        self.closed = False
        self.listens = False
        self.budget = BUDGET
        """Packets that one round sends at most."""
        self.users = 0
        """Contexts that are open on this NIC; the last one to close closes the runtime."""
        self._frames = link.frames
        self._link_up = True
        self._rounds_without_replies = 0
        self._full_from = 1 if link.filenos() else RECEIVE_LIMIT
        """Bursts of a round from which on more may have arrived: sockets are asked for about what they had before."""
        self._backlog = 0
        """Rounds in a row that received as many; those of few bursts count as several."""
        self._last_poll = 0
        self._idle_rounds = 0
        self._thread: threading.Thread | None = None
        self._stop = False
        self._engine_thread = False
        """A thread in C does rounds while the application does not poll; the one in Python assists it."""
        self._sleep_until: int | None = None
        self._wake_read, self._wake_write = -1, -1
        nic.attach(link)
        if isinstance(link, UdpLink):
            nic.datagrams = link.tell_hop_limits
            nic.counting = self._separate
        nic.non_rdma.fed = link.frames is not None
        self.idents: Callable[[bool, int], list[RxBurst]] | None = None
        """Receives from senders that count their IPv4 idents, once there are any, beside the unicast socket."""
        self.sockets_changed: Callable[[], object] | None = None
        """Is told when the link has opened sockets by itself."""
        self._faults: DeviceFaults | None = None
        self._tap: Tap | None = None
        if wanted_by(link):
            self.faults()
        self._io_poll = self._make_io_poll(link)
        self.engine_loop = None if self._io_poll is None else use.engine().Loop(self, self._io_poll, self._full_from)
        """The same loop compiled, for frequent callers: ``progress`` and ``kick``; ``None`` where C does not poll."""
        if self.engine_loop is not None:
            nic.count = self.engine_loop.count
        _live.add(self)

    def _make_io_poll(self, link: Link) -> _engine.IoPoll | None:
        """Make the engine's rounds, where there is an engine and a plain link that it knows, in real time."""
        real = self.clock is time.monotonic_ns
        if self.nic.engine_device is None or not (
            link.__class__ is UdpLink or (link.__class__ is LoopbackLink and real)
        ):
            return None
        return use.engine().IoPoll(self.nic.engine_device, link, self._send)

    @property
    def _engine_polls(self) -> bool:
        """Whether C polls now: it does not while middleware stands before the link."""
        return self._io_poll is not None and self._io_poll.can_run(self.link)

    def faults(self) -> DeviceFaults:
        """Events for this device, on command (:mod:`rnic.runtime.faults`); from the first call on it costs a little."""
        with self.lock:
            if self._faults is None:
                self._faults = DeviceFaults(self)
                self.link = self._faults
            return self._faults

    def drop_one_in(self, one_in: int, seed: int = 0) -> None:
        """Drop one in N received packets, none for 0, chosen by a seed, and count them as ``fault_rx_drop``.

        The compiled rounds do so themselves and stay fast; other links are wrapped in a
        :class:`~rnic.link.faults.FaultyLink`, for good.

        Raises:
            ValueError: ``one_in`` is negative.
        """
        if one_in < 0:
            raise ValueError(f"one_in={one_in}: give 0 for no losses, or how many packets one is lost of")
        with self.lock:
            if self._io_poll is not None:
                self._io_poll.set_loss(one_in, seed)
            elif one_in:
                self.link = FaultyLink(
                    self.link, clock=self.clock, rng=random.Random(seed), rx=FaultRates(drop=1 / one_in)
                )

    def tap(self) -> Tap:
        """Return the tap that traces this device's packets; it costs nothing while it has no session."""
        with self.lock:
            if self._tap is None:
                self._tap = Tap(self)
                if self.nic.datagrams is not None:
                    self.nic.datagrams()  # sessions show the headers
            return self._tap

    def process_pending(self) -> None:
        """Deliver interrupts and send what is due, after something outside has changed the NIC."""
        with self.lock:
            self.kick()
            if self._thread is not None:
                self._wake()

    # ------------------------------------------------------------------------------- inline driving

    def progress(self) -> bool:
        """Do one round: receive, or else send what is due. True if something happened.

        The caller sees what arrives before replies to it are sent, since it may be waiting for just that. Replies
        leave with the next round, and after a few rounds in any case.
        """
        if self.closed:
            return False
        now = self._last_poll = self.clock()  # before the lock: a thread that holds it sees it and backs off
        if not self.lock.acquire(blocking=False):
            time.sleep(0)  # its holder may need the interpreter before it can let go
            return False
        try:
            did = self._round(now)
        finally:
            self.lock.release()
        if did:
            self._idle_rounds = 0
        else:
            # Two parties that spin on one core would each use up their time slice before the other runs.
            self._idle_rounds += 1
            if self._idle_rounds > IDLE_BEFORE_YIELD:
                _yield_core()
        return did

    def busy(self) -> None:
        """Forget polls that found nothing: the next ones do not yield the core."""
        self._idle_rounds = 0
        if self.engine_loop is not None:
            self.engine_loop.busy()

    def _round(self, now: int) -> bool:
        nic = self.nic
        if self.engine_loop is not None and self._engine_polls:
            return self.engine_loop.poll(now)
        did = False
        if self._rounds_without_replies >= REPLIES_AT_LEAST_EVERY:
            did = self._transmit(now)
        if self._frames:
            nic.receive_frame(memoryview(self._frames.popleft()), now)
            did = True
        bursts = self.receive(RECEIVE_LIMIT)
        if bursts:
            naks = nic.tally.get("sequence_naks_sent")
            for burst in bursts:
                nic.receive(burst, now)
            self._rounds_without_replies += 1
            did = True
            if nic.tally.get("sequence_naks_sent") != naks:
                self._transmit(now)  # until the NAK arrives, everything that the peer sends is dropped
        elif nic.has_work():
            did = self._transmit(now)
        return self._end(now, self._read_all(len(bursts)), did)

    def round(self) -> bool:
        """Do one round for the only caller that drives the NIC; return whether anything happened."""
        return self._round(self.clock())

    def flush(self, now: int) -> None:
        """Send what waits for no turn, and deliver interrupts, after work on single queue pairs."""
        self.send_bursts(self.nic.sending.prepare(now))
        self._update_multicast()
        if self.nic.resources.interrupts:
            self._interrupts()

    def _read_all(self, count: int) -> bool:
        """Whether deadlines count after a round of ``count`` bursts: all that had arrived is read, or it went on long.

        A packet that arrived in time is not late because this process did not run.
        """
        if count < self._full_from:
            self._backlog = 0
        else:
            self._backlog += 1 if count >= RECEIVE_LIMIT else PARTIAL_ROUND
            if self._backlog >= TIMERS_AT_LEAST_EVERY:
                self._backlog = 0
        return not self._backlog

    def _end(self, now: int, read_all: bool, did: bool) -> bool:
        """End a round: handle deadlines and interrupts."""
        nic = self.nic
        if read_all and self._is_deadline_due(now):
            nic.handle_timers(now)
            self._transmit(now)
            did = True
        if nic.resources.interrupts:
            self._interrupts()
        return did

    def _is_deadline_due(self, now: int) -> bool:
        """Whether a deadline is due."""
        if self._io_poll is not None:
            return not self.nic.held and bool(self._io_poll.is_due(now))
        deadline = self.nic.next_deadline_ns()
        return deadline is not None and deadline <= now

    def receive(self, limit: int) -> list[RxBurst]:
        """Receive at most ``limit`` bursts from the link."""
        try:
            bursts = self.link.receive(limit)
        except Exception as error:  # noqa: BLE001 - the last guard
            self.guard.caught("link", error)
            return []
        for burst in bursts:
            self.nic.tally["rx_bytes"] += burst.length
        return bursts

    def _separate(self, sender: bytes) -> None:
        """Have what comes from an IPv4 address come by sockets that show bits of its idents."""
        link = self._own_link
        if isinstance(link, UdpLink) and link.separate(sender):
            self.idents = link.receive_idents
            if self.sockets_changed is not None:
                self.sockets_changed()
            if self._thread is not None:
                self._wake()  # it may sleep on the sockets before the change

    def receive_idents(self, now: int, drained: bool) -> bool:
        """Take what came from senders that count their idents; return whether anything did.

        Args:
            drained: nothing was left in the unicast socket.
        """
        assert self.idents is not None
        try:
            bursts = self.idents(drained, RECEIVE_LIMIT)
        except Exception as error:  # noqa: BLE001 - the last guard
            self.guard.caught("link", error)
            return False
        naks = self.nic.tally.get("sequence_naks_sent")
        for burst in bursts:
            self.nic.tally["rx_bytes"] += burst.length
            self.nic.receive(burst, now)
        if self.nic.tally.get("sequence_naks_sent") != naks:
            self._transmit(now)
        return bool(bursts)

    def _transmit(self, now: int) -> bool:
        """Send everything that may be sent now, up to the NIC's budget."""
        self._rounds_without_replies = 0
        if self._io_poll is not None and self._engine_polls:
            did = self._io_poll.has_pending and self.send_bursts(self.nic.sending.prepare(now))
            did = self._io_poll.transmit(now, self.budget) or did
            self._check_link()
        else:
            did = self.send_bursts(self.nic.produce(now, self.budget))
        if self.nic.resources.groups.changes:
            self._update_multicast()
        return did

    def _update_multicast(self) -> None:
        """Join and leave multicast groups as queue pairs do."""
        changes = self.nic.take_group_changes() if self.nic.resources.groups.changes else []
        for group, join in changes:
            with self.guard.around("link"):
                if join:
                    self.link.join(group)
                else:
                    self.link.leave(group)
        if changes and self._thread is not None:
            self._wake()  # it may sleep on the sockets before the change

    def send_bursts(self, out: list[TxBurst]) -> bool:
        """Send bursts that the NIC made; return whether there were any."""
        if not out:
            return False
        try:
            if self._io_poll is not None and not self._io_poll.stopped:
                self._io_poll.send_bursts(out)
            else:
                self._send(out)
        except Exception as error:  # noqa: BLE001 - the last guard; lost packets are retransmitted
            self.guard.caught("link", error)
        if self.link.up is not self._link_up:
            self._check_link()
        return True

    def _send(self, out: list[TxBurst]) -> None:
        """Send packets by the link as it is now."""
        for burst in out:
            self.nic.tally["tx_bytes"] += burst.length
        self.link.send(out)

    def _check_link(self) -> None:
        link = self.link
        if link.up is not self._link_up:
            self._link_up = link.up
            self.nic.set_link(self._link_up)

    def kick(self) -> None:
        """Send at once what the NIC has to send, after a doorbell."""
        with self.lock:
            if self.closed:
                return
            self._transmit(self.clock())
            if self.nic.resources.interrupts:
                self._interrupts()
            if self._sleep_until is not None:
                self._wake_if_late()

    def _wake_if_late(self) -> None:
        """Wake the thread if a deadline is now earlier than it sleeps; the thread in C is woken by C."""
        until = self._sleep_until  # read once: the thread resets it without the lock
        if until is not None:
            deadline = self.nic.next_deadline_ns()
            if self.nic.has_work() or (deadline is not None and deadline < until):
                self._wake()

    def _interrupts(self) -> None:
        while (vector := self.nic.next_event()) is not None:
            if self._faults is None or self._faults.lets_pass(vector):
                self.interrupt(vector)

    def interrupt(self, vector: int) -> None:
        """Call the handler of an interrupt vector."""
        handler = self.handlers.get(vector)
        if handler is not None:
            with self.guard.around("interrupt"):
                handler()

    # ---------------------------------------------------------------------------------- the thread

    def start(self) -> None:
        """Start the background thread; a second call does nothing."""
        with self.lock:
            if self._thread is not None or self.closed:
                return
            self._wake_read, self._wake_write = os.pipe()
            os.set_blocking(self._wake_read, False)
            os.set_blocking(self._wake_write, False)
            self._stop = False
            self._thread = threading.Thread(target=self._run, name=f"rnic {self.nic.config.name}", daemon=True)
            _threaded.add(self)
            if self.engine_loop is not None:
                sockets = [fd for fd in self.link.filenos() if fd not in self._ident_filenos()]
                self._engine_thread = self.engine_loop.start_thread(sockets, self._wake_write, WRITE_BACK_NS)
            self._thread.start()

    @property
    def threaded(self) -> bool:
        """Whether the background thread runs."""
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

    def _wake(self) -> None:
        # a full pipe is a wake-up that was not read yet
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        while not self._stop:
            if not self._assist_engine_thread():
                self._run_own_rounds()
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)

    def _assist_engine_thread(self) -> bool:
        """Do what the thread in C punts, and wait for more; return false at once where there is no such thread."""
        with self.lock:  # taking it ends a round that C has stopped
            if self._stop or not self._engine_thread or not self._engine_polls:
                return self._stop
            with self.guard.around("round"):
                self._run_punted_rounds()
            known = [self.nic.own_deadline_ns(), self.link.next_deadline_ns()]
        wait = min([at for at in known if at is not None], default=NEVER) - self.clock()
        watched = [self._wake_read]
        if not self._application_polls():
            watched += self._ident_filenos()  # the thread in C does not know them
        elif self.idents is None:
            wait = max(wait, _backoff_ns())  # its polls handle deadlines, and C wakes this thread when it stops
        else:
            wait = _backoff_ns()
        wait_readable(watched, max(0, wait) / 1e9)
        return True

    def _ident_filenos(self) -> list[int]:
        """Return the descriptor that tells of packets from senders that count their idents, if there are any."""
        idents = self._own_link.idents if isinstance(self._own_link, UdpLink) else None
        return [] if idents is None else [idents.fileno()]

    def _run_own_rounds(self) -> None:
        """Do rounds in Python, then sleep."""
        timeout: float | None = _backoff_ns() / 1e9
        sockets: list[int] = []
        if not self._application_polls():  # without the lock, which is left to the application while it polls
            with self.lock:
                if self._stop:
                    return
                timeout, sockets = self._rounds_and_sleep_time()
        wait_readable([self._wake_read, *sockets], timeout)
        self._sleep_until = None

    def _application_polls(self) -> bool:
        """Whether the application has polled within the back-off time."""
        driven = 0 if self.engine_loop is None else self.engine_loop.last_poll
        return self.clock() - max(self._last_poll, driven) < _backoff_ns()

    def _run_punted_rounds(self) -> None:
        """Do rounds that C has punted, while the application does not poll. The thread in C does all others."""
        loop = self.engine_loop
        assert loop is not None
        for _ in range(_THREAD_ROUNDS):
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
        """Do rounds while there is work; return false once the application polls."""
        for _ in range(_THREAD_ROUNDS):
            if self._application_polls():
                return False
            if not self._round(self.clock()):
                break
        return True

    def _rounds_and_sleep_time(self) -> tuple[float | None, list[int]]:
        """Do rounds; return how long to sleep, and on which sockets."""
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
        deadlines = [self.nic.next_deadline_ns(), self.link.next_deadline_ns()]
        known = [deadline for deadline in deadlines if deadline is not None]
        if not known:
            self._sleep_until = 1 << 63
            # links in memory have nothing to wait on
            return (None if sockets else 0.001), sockets
        self._sleep_until = min(known)
        wait = max(0, self._sleep_until - self.clock()) / 1e9
        return (wait if sockets else min(wait, 0.001)), sockets

    def close(self) -> None:
        """Stop the thread and close the link; a second call does nothing."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            _live.discard(self)
            _threaded.discard(self)
            self._stop = True
            thread, self._thread = self._thread, None
            if thread is not None:
                self._wake()
            try:
                with self.guard.around("link"):
                    if self._io_poll is not None:
                        self._io_poll.stop()
                        self._io_poll = None
                    self.link.send(self.nic.drain_acks())
            except BaseException:
                self.link.close()
                raise
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)
        if self.engine_loop is not None:
            self.engine_loop.stop_thread()
        if self._wake_read >= 0:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1
        self.link.close()


def _after_fork() -> None:
    """Close the runtimes of a child, which has no threads and must not use its parent's sockets."""
    for runtime in list(_live):
        runtime.lock = threading.RLock()
        runtime.closed = True
        runtime._thread = None
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
