"""Rounds of one NIC and its link: receive, send, timers, interrupts, with middleware before the link.

A caller that polls drives its NIC itself: ``progress`` does one bounded round and returns. :mod:`rnic.runtime.loop`
adds the thread for those that do not poll.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Protocol

from rnic.device.faults import fail_device
from rnic.device.nic import Nic
from rnic.engine import use
from rnic.link.base import Link
from rnic.link.fault_events import FaultEvent
from rnic.link.fault_rules import Counts
from rnic.link.faults import FaultyLink
from rnic.link.loopback import LoopbackLink
from rnic.link.middleware import Middleware, innermost
from rnic.link.own_fd import OwnFd, generation
from rnic.link.udp import UdpLink
from rnic.link.verbs_faults import VerbsFaults
from rnic.runtime.faults import DeviceFaults, wanted_by
from rnic.runtime.report import LOGGER, log_report
from rnic.runtime.tap import Tap
from rnic.spec.rounds import (
    BUDGET,
    IDLE_BEFORE_YIELD,
    PARTIAL_ROUND,
    RECEIVE_LIMIT,
    REPLIES_AT_LEAST_EVERY,
    TIMERS_AT_LEAST_EVERY,
)
from rnic.wire.bursts import RxBurst, TxBurst

if TYPE_CHECKING:
    from rnic.engine import _engine

THREAD_ROUNDS = 256
"""Most rounds in one holding of the lock."""
CHECK_NS = 250_000
"""Interval of the check that the descriptors are still ours."""
_yield_core: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))


def _make_lock() -> threading.RLock | _engine.DeviceLock:
    """Make a reentrant lock, which compiled rounds also take."""
    return threading.RLock() if use.ENGINE is None else use.ENGINE.DeviceLock()


class Beside(Protocol):
    """A server of a device in addition to its link."""

    def close(self) -> None:
        """Stop it; a second call does nothing."""

    def abandon(self) -> None:
        """Release it in a forked child, which has none of the parent's threads."""


class Rounds:
    """Runs rounds of a NIC and its link under one lock, for its callers: receive, send, timers, interrupts.

    Args:
        nic: the device.
        link: the link that carries its packets; closed with the runtime.
        clock: returns nanoseconds; only differences matter.
    """

    def __init__(self, nic: Nic, link: Link, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.nic = nic
        self.link: Link = link
        self._own_link = innermost(link)
        self._losses: FaultyLink | None = None
        """Middleware that :meth:`drop_one_in` has put before the link."""
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
        """Most packets that one round sends."""
        self.users = 0
        """Number of open contexts on this NIC; the last one to close closes the runtime."""
        self._frames = link.frames
        self._link_up = True
        self._rounds_without_replies = 0
        self.by_socket = bool(link.filenos())
        """True if packets wait in sockets, whose room is limited, and not in memory."""
        self._full_from = 1 if self.by_socket else RECEIVE_LIMIT
        """Bursts in a round that suggest that more have arrived: a socket returns about as many as it held before."""
        self._backlog = 0
        """Consecutive rounds that received that many; rounds of few bursts count as several."""
        self._last_poll = 0
        self._idle_rounds = 0
        self._sleep_until: int | None = None
        """Time until which the thread sleeps, if it does."""
        self._wake_pipe: list[OwnFd] = []
        """Both ends of the pipe that wakes the thread."""
        self._checked_ns = self._checked_generation = 0
        """Time of the last check that all descriptors are still ours."""
        self._lost = False
        """True if they are not: nothing is read or written anymore."""
        nic.attach(link)
        if isinstance(self._own_link, UdpLink):
            nic.datagrams = self._own_link.tell_hop_limits
            if link is self._own_link or (isinstance(link, FaultyLink) and link.inner is self._own_link):
                nic.counting = self._separate
        nic.non_rdma.fed = link.frames is not None
        nic.non_rdma.send = link.frame_sender
        self.idents: Callable[[bool, int], list[RxBurst]] | None = None
        """Function that receives from senders that count their IP IDs, once there are any, besides the unicast
        socket."""
        self.beside: list[Beside] = []
        """Servers of this device in addition to its link, closed before it."""
        self.on_idents: Callable[[list[RxBurst]], object] | None = None
        """Called with the bursts that :attr:`idents` receives, which bypass the link."""
        self.sockets_changed: Callable[[], object] | None = None
        """Called when the link has opened sockets by itself."""
        self._faults: DeviceFaults | None = None
        self._tap: Tap | None = None
        self.verbs_faults: VerbsFaults | None = None
        """Rules for verbs that fail on command, if a fault script has any."""
        self._io_poll: _engine.IoPoll | None = None
        if wanted_by(link):
            self.faults()
        self._io_poll = self._make_io_poll(link)
        self.engine_loop = None if self._io_poll is None else use.engine().Loop(self, self._io_poll, self._full_from)
        """The compiled loop, for frequent callers: ``progress`` and ``kick``; ``None`` if C does not poll."""
        if self.engine_loop is not None:
            nic.count = self.engine_loop.count

    def _make_io_poll(self, link: Link) -> _engine.IoPoll | None:
        """Make the engine's poll loop, if there is an engine and a plain link that it knows, in real time.

        It applies the rules of a fault script itself, if they are the only middleware before the link.
        """
        real = self.clock is time.monotonic_ns
        plain = link.inner if isinstance(link, FaultyLink) else link
        known = plain.__class__ is UdpLink or (plain.__class__ is LoopbackLink and real)
        if self.nic.engine_device is None or not known:
            return None
        if isinstance(link, FaultyLink) and self._judging_table(link) is None:
            return None
        poll = use.engine().IoPoll(self.nic.engine_device, plain, self._send)
        if isinstance(link, FaultyLink):
            self._have_judge(poll, link)
        return poll

    def _judging_table(self, link: FaultyLink) -> bytes | None:
        """Return the table by which the engine applies a link's fault rules; ``None`` if it cannot."""
        # the paths of in-memory links do not tell their destination
        sends = any(rule.match.direction != "rx" for rule in link.rules)
        if link.inner is not self._own_link or (sends and not isinstance(self._own_link, UdpLink)):
            return None
        return link.table() if self.clock is time.monotonic_ns else None

    def _have_judge(self, poll: _engine.IoPoll, link: FaultyLink | None) -> None:
        """Have the engine apply the fault rules of the only middleware before its link, or none."""
        table = b"" if link is None else self._judging_table(link)
        if table is not None:
            poll.set_faults(table, (Counts() if link is None else link.counts).words.cast("B"))
            poll.judging = link

    @property
    def _engine_polls(self) -> bool:
        """True if C polls now: it does not while other middleware is before the link."""
        return self._io_poll is not None and self._io_poll.can_run(self.link)

    def faults(self) -> DeviceFaults:
        """Return the fault events of this device (:mod:`rnic.runtime.faults`). The first call adds a small cost."""
        with self.lock:
            if self._faults is None:
                self.pass_held()
                self._faults = DeviceFaults(self)
                self.link = self._faults
            return self._faults

    @property
    def acts_on_packets(self) -> bool:
        """True while tap sessions watch packets, or fault events drop or delay them."""
        if self._tap is not None and self._tap.sessions:
            return True
        return (self._faults is not None and self._faults.acts_on_packets) or self.link.next_deadline_ns() is not None

    def insert(self, middleware: Callable[[Link], Middleware]) -> Middleware:
        """Insert middleware directly before the sockets, after all other, and return it; C stops polling.

        Packets that the compiled rounds' fault rules hold back are passed first, earlier than the rules say.

        Args:
            middleware: makes the middleware, given the link after it.
        """
        with self.lock:
            self.pass_held()
            outer, link = None, self.link
            while isinstance(link, Middleware):
                outer, link = link, link.inner
            made = middleware(link)
            if outer is None:
                self.link = made
            else:
                outer.inner = made
            if self._io_poll is not None:
                self._io_poll.judging = None
            return made

    def pass_held(self) -> None:
        """Pass packets that compiled rounds hold back by fault rules, before they end or get other rules."""
        poll = self._io_poll
        if poll is not None and self._engine_polls:
            poll.expire_held()
            for _ in range(THREAD_ROUNDS):  # a device that is not enabled runs none
                if poll.held_deadline_ns() is None:
                    break
                self._round(self.clock())

    def take_out(self, middleware: Middleware) -> None:
        """Remove middleware that :meth:`insert` returned; C polls again if nothing else prevents it."""
        with self.lock:
            outer, link = None, self.link
            while isinstance(link, Middleware) and link is not middleware:
                outer, link = link, link.inner
            if link is not middleware:
                return
            if outer is None:
                self.link = middleware.inner
            else:
                outer.inner = middleware.inner
            if self._io_poll is not None and isinstance(self.link, FaultyLink):
                self._have_judge(self._io_poll, self.link)

    def fail_verbs(self, faults: VerbsFaults) -> None:
        """Make verbs fail by these rules from now on."""
        with self.lock:
            self.verbs_faults = faults
            self.nic.judge = faults.judge_command
            faults.struck = self._happen_soon

    def _happen_soon(self, event: FaultEvent) -> None:
        self.faults().soon(event)

    def drop_one_in(self, one_in: int, seed: int = 0) -> None:
        """Drop one in N received packets (none for 0), chosen by a seed, and count them as ``fault_rx_drop``.

        This uses a :class:`~rnic.link.faults.FaultyLink` with one rule, which compiled rounds apply by themselves.

        Raises:
            ValueError: ``one_in`` is negative.
        """
        if one_in < 0:
            raise ValueError(f"one_in={one_in}: give 0 for no losses, or N to lose one packet in N")
        with self.lock:
            self.pass_held()
            if self._losses is not None and self.link is self._losses:
                self.link = self._losses.inner
            self._losses = None
            if one_in:
                rule = {"match": {"direction": "rx"}, "probability": 1 / one_in, "seed": seed, "action": "drop"}
                self._losses = FaultyLink(self.link, clock=self.clock, rng=random.Random(seed), script=[rule])
                self.link = self._losses
            if self._io_poll is not None:
                self._have_judge(self._io_poll, self.link if isinstance(self.link, FaultyLink) else None)

    def tap(self) -> Tap:
        """Return the tap that traces this device's packets; it costs nothing while it has no session."""
        with self.lock:
            if self._tap is None:
                self._tap = Tap(self)
                if self.nic.datagrams is not None:
                    self.nic.datagrams()  # sessions show the headers
            return self._tap

    def process_pending(self) -> None:
        """Deliver interrupts and send what is due, after outside code has changed the NIC."""
        with self.lock:
            self.kick()
            self._wake()

    # ------------------------------------------------------------------------------- inline driving

    def progress(self) -> bool:
        """Run one round: receive, or else send what is due. Return whether anything happened.

        The caller sees received data before replies are sent, since it may be waiting for it. Replies are sent
        with the next round, and after a few rounds in any case.
        """
        if self.closed:
            return False
        now = self._last_poll = self.clock()  # before the lock: the thread that holds it sees this and backs off
        if not self.lock.acquire(blocking=False):
            time.sleep(0)  # its holder may need the GIL to release it
            return False
        try:
            did = self._round(now)
        finally:
            self.lock.release()
        if did:
            self._idle_rounds = 0
        else:
            # Two threads that spin on one core would each use up their time slice before the other runs.
            self._idle_rounds += 1
            if self._idle_rounds > IDLE_BEFORE_YIELD:
                _yield_core()
        return did

    def has_turn(self) -> bool:
        """Return whether a round would send something now."""
        return self.nic.has_work()

    def seconds_until_due(self) -> float:
        """Return the time until the next timer; infinity if there is none."""
        if self.has_turn():
            return 0.0
        now = self.clock()
        deadlines = (self.nic.next_deadline_ns(), self.link.next_deadline_ns())
        return min([max(0, each - now) / 1e9 for each in deadlines if each is not None], default=inf)

    def busy(self) -> None:
        """Reset the count of idle polls: the next ones do not yield the core."""
        self._idle_rounds = 0
        if self.engine_loop is not None:
            self.engine_loop.busy()

    def _round(self, now: int) -> bool:
        nic = self.nic
        if self.engine_loop is not None and self._engine_polls:
            return self.engine_loop.poll(now)
        if not self._owns_descriptors(now):
            return False
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

    def _owns_descriptors(self, now: int) -> bool:
        """Return whether the device's descriptors are still its own; fail the device the first time they are not.

        Checks every 250 us, and at once if ``rnic exec`` has seen that the program closed some.
        """
        seen = generation()
        if self._lost or (now - self._checked_ns < CHECK_NS and seen == self._checked_generation):
            return not self._lost
        link = self._own_link
        if (isinstance(link, UdpLink) and link.lost()) or not all(own.valid() for own in self._wake_pipe):
            self._lost = True
            LOGGER.error(
                "this program has closed descriptors of device %s, which is dead now: close only your own",
                self.nic.config.name,
            )
            fail_device(self.nic)
            self._interrupts()
            return False
        self._checked_ns, self._checked_generation = now, seen
        return True

    def round(self) -> bool:
        """Run one round for the only caller that drives the NIC. Return whether anything happened."""
        return self._round(self.clock())

    def flush(self, now: int) -> None:
        """Send bursts that need no turn, and deliver interrupts, after work on single queue pairs."""
        self.send_bursts(self.nic.sending.prepare(now))
        self._update_multicast()
        if self.nic.resources.interrupts:
            self._interrupts()

    def _read_all(self, count: int) -> bool:
        """Return whether deadlines count after a round of ``count`` bursts: all arrived packets were read, or reading
        took many rounds.

        A packet that arrived in time must not count as late because this process did not run.
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

    def _held_deadline_ns(self) -> int | None:
        """Return the time at which packets held back by the engine's fault rules are due."""
        return self._io_poll.held_deadline_ns() if self._io_poll is not None and self._engine_polls else None

    def _is_deadline_due(self, now: int) -> bool:
        """Return whether a deadline is due."""
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
        """Receive from an IPv4 address through sockets that show bits of its IP IDs."""
        link = self._own_link
        if isinstance(link, UdpLink) and link.separate(sender):
            self.idents = link.receive_idents
            if self.sockets_changed is not None:
                self.sockets_changed()
            self._wake()  # the thread may sleep on the sockets before the change

    def receive_idents(self, now: int, drained: bool) -> bool:
        """Receive from senders that count their IP IDs. Return whether anything arrived.

        Args:
            drained: the unicast socket is empty.
        """
        assert self.idents is not None
        if not self._owns_descriptors(now):
            return False
        try:
            bursts = self.idents(drained, RECEIVE_LIMIT)
        except Exception as error:  # noqa: BLE001 - the last guard
            self.guard.caught("link", error)
            return False
        if self.on_idents is not None:
            self.on_idents(bursts)
        naks = self.nic.tally.get("sequence_naks_sent")
        if isinstance(self.link, FaultyLink):
            bursts = self.link.judge(bursts)
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
        """Join and leave multicast groups, following the queue pairs."""
        changes = self.nic.take_group_changes() if self.nic.resources.groups.changes else []
        for group, join in changes:
            with self.guard.around("link"):
                if join:
                    self.link.join(group)
                else:
                    self.link.leave(group)
        if changes:
            self._wake()  # the thread may sleep on the sockets before the change

    def send_bursts(self, out: list[TxBurst]) -> bool:
        """Send bursts that the NIC made. Return whether there were any."""
        if not out or not self._owns_descriptors(self.clock()):
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
        """Send packets through the current link."""
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
        """Wake the thread if a deadline is before the end of its sleep; C wakes its own thread."""
        until = self._sleep_until  # read once: the thread resets it without the lock
        if until is not None:
            deadline = self.nic.next_deadline_ns()
            if self.nic.has_work() or (deadline is not None and deadline < until):
                self._wake()

    def deliver_interrupts(self) -> None:
        """Call the handlers of event queues that have new entries; send nothing."""
        with self.lock:
            self._interrupts()

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

    def _wake(self) -> None:
        """Wake the thread, if there is one."""
        # a full pipe holds a wake-up that was not read yet
        if self._wake_pipe and self._wake_pipe[1].valid():
            with contextlib.suppress(OSError):
                os.write(self._wake_pipe[1].fd, b"\0")
