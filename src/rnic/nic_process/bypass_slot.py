"""The slot of a program that runs the engine itself (kernel bypass), on the NIC process's side.

A slot is a NIC with the device's address and settings, its own queue pair numbers, its own socket of the device's group
(:mod:`rnic.link.steering`) and its own arena in memory that both processes map. The program's engine works on the
arena. The reference works on it here: for punts, for commands, and for the whole slot while the program sleeps with
work left, or while each packet must be handled here.

Nothing here trusts the arena. The engine, which follows offsets, does not run on it in this process. The reference sees
it through bounded views, and an exception costs that program its connection.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import mmap
import os
import random
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence

from rnic.device.nic import Nic, arena_bytes
from rnic.engine import use
from rnic.link.base import LinkError
from rnic.link.recorder import Recorder
from rnic.link.udp import UdpLink
from rnic.mem.order import fence, load32, store32
from rnic.mem.table import MemoryEntry
from rnic.nic_process.bounded_work import WorkWatchdog
from rnic.nic_process.budget import DeviceBudget
from rnic.nic_process.capture_rings import CaptureRings
from rnic.nic_process.client_memory import task_state
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.fault_page import FaultPage, PortGate
from rnic.nic_process.memfd import shared_memory
from rnic.nic_process.shm_loopback import LoopbackEnd, RingPair, ShmLoopback
from rnic.nic_process.slot_counters import SlotCounters, add
from rnic.runtime.loop import Runtime
from rnic.runtime.wait import wait_readable
from rnic.spec import attach
from rnic.spec.rounds import BUDGET, BUFFER_BYTES, RECEIVE_LIMIT
from rnic.state.counters import PACKET_COUNTERS
from rnic.state.fault_table import COUNT_BYTES
from rnic.state.record import WORD_BYTES, place
from rnic.state.slot import BUFFERS_AT, DROPS, FAULT_COUNTERS, PUNT_REASONS, SHM_COUNTERS, SLOT
from rnic.transport.budget import LEAST
from rnic.wire.bursts import RxBurst, TxBurst

LOG_QPS = 13
"""log2 of the queue pairs of a slot."""
_FAULT_COUNTS_AT = BUFFERS_AT + RECEIVE_LIMIT * BUFFER_BYTES
SHARED_BYTES = _FAULT_COUNTS_AT + COUNT_BYTES
MAX_WAITING = 256
"""Packets that may wait for a slot whose program holds the arena; further ones are dropped."""
MAX_LINK_UNTOLD = 64
"""Port changes that may wait to be reported to a program; beyond that the oldest are dropped."""
CHECK_NS = 20_000_000
"""A program that leaves packets or deadlines unhandled for this long counts as asleep: its slot is served here."""
_ROUNDS = 64
_MAX_REFUSALS, _REFUSED_S = 100, 0.001
"""Consecutive rounds in which a program may hold a slot that is served here, and the seconds that each further round
waits."""
_BUSY_WAIT_S, _MAX_BUSY_WAIT_S = 0.05, 0.5
"""Seconds to wait for a program's arena: the first if the program was stopped, the second if not. A running program
holds its arena for microseconds, unless it has no core."""
_STOPPED = (b"T", b"t", b"Z", b"X")
_TAKEN, _WANTED, _REFERENCE = (place(SLOT, name) * WORD_BYTES for name in ("taken", "wanted", "reference"))
_CHANGES, _ROUNDS_AT = place(SLOT, "changes"), place(SLOT, "rounds")
_COUNTED = {
    name: place(SLOT, name)
    for name in (
        *("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_socket_error", "gso_refused"),
        *(f"drop_{name}" for name in DROPS),
        *(f"fault_{name}" for name in FAULT_COUNTERS),
    )
} | {name: place(SLOT, f"event_{number}") for number, name in enumerate(PACKET_COUNTERS)}
_RINGS = {f"shm_{name}": place(SLOT, f"shm_{name}") for name, _ in SHM_COUNTERS}
_PUNTS = {
    reason: place(SLOT, f"punt_{reason}") for reason in (*dict(PUNT_REASONS), "unknown", "notify", "doorbell", "timer")
}


class BypassSlot:
    """One program's part of a device.

    Args:
        main: the device.
        link: over the slot's own socket; closed with the slot.
        member: its number in the device's group.
        first_qpn: its first queue pair number.
        watchdog: bounds work on the arena.
        loopback: the ring pairs of the device's slots.
        budget: packets that all slots may have in flight together.
        faults: the device's fault rules.
        captures: the rings by which programs hand their packets to the recorder.

    ``runtime`` is the NIC of the slot. Only callers that have entered ``work`` may drive it.
    """

    def __init__(
        self,
        main: Runtime,
        link: UdpLink,
        member: int,
        first_qpn: int,
        watchdog: WorkWatchdog,
        loopback: ShmLoopback,
        budget: DeviceBudget,
        faults: FaultPage,
        captures: CaptureRings,
    ) -> None:
        self.member = member
        self.loopback = loopback
        self.end: LoopbackEnd | None = None
        """Its part in loopback over shared memory, if it requested that."""
        self.work = watchdog.work_on(self)
        self.closed = False
        self.served = False
        """True once the NIC process serves it instead of the program."""
        self.pid = 0
        self._link_untold: deque[tuple[bool, int]] = deque()
        """Port states not yet reported to the program: up or not, and the state while down."""
        self._refusals = 0
        self.check_at_ns = 0
        """When to call :meth:`serve_if_idle` next."""
        config = dataclasses.replace(
            main.nic.config, log_max_qps=min(LOG_QPS, main.nic.config.log_max_qps), first_qpn=first_qpn, reference=True
        )
        self.arena_bytes = -(-arena_bytes(config) // mmap.PAGESIZE) * mmap.PAGESIZE
        with contextlib.ExitStack() as undo:
            self._shared_fd, self._arena_fd = Descriptor(), Descriptor()
            undo.callback(self._shared_fd.close)
            undo.callback(self._arena_fd.close)
            self.shared = shared_memory("rnic slot", SHARED_BYTES, self._shared_fd)
            arena = shared_memory("rnic arena", self.arena_bytes, self._arena_fd)
            self.words = memoryview(self.shared)[: SLOT.size].cast("Q")
            for name, value in (
                ("layout", use.LAYOUT),
                ("ack_every", config.ack_every),
                ("probe", int(config.probe)),
                ("rq_almost_full", config.rq_almost_full),
                ("changes", 1),
            ):
                self.words[place(SLOT, name)] = value
            now = time.monotonic_ns()
            self._counted = SlotCounters(self.words, _COUNTED, now)
            self._rings = SlotCounters(self.words, _RINGS, now)
            self._punts = SlotCounters(self.words, _PUNTS, now)
            self.rounds = self.words[_ROUNDS_AT : _ROUNDS_AT + 1]
            """Rounds that the program has run: its heartbeat."""
            rng = random.Random(secrets.randbits(256))
            nic = Nic(config, rng=rng, counters=link.counters, memory=arena)
            self._captures = captures
            self._capture = captures.add(link)
            undo.callback(captures.remove, self._capture)
            recorded = Recorder(link, captures.recording)
            counts = memoryview(self.shared)[_FAULT_COUNTS_AT:]
            self._gate = PortGate(faults.in_front_of(recorded, counts))
            self.runtime, self._link = Runtime(nic, self._gate), link
            link.forget()  # the program's engine sends on it, too
            nic.stopped = self._qp_stopped
            nic.memory.on_key_change = self._key_changed
            nic.find_peer = main.nic.find_peer
            nic.inflight.reserve_line()
            nic.inflight.share(budget.add_slot(member), budget)
            self._budget_fd, self._faults_fd = budget.memfd.number, faults.memfd.number
            self._messages = select.poll()
            self._waiting: list[tuple[RxBurst, int]] = []
            self._idle_since_ns: int | None = None
            self._seen_rounds = 0
            self._pairs_held = False
            self._poller = select.poll()
            self._poller.register(link.filenos()[0], select.POLLIN)
            undo.pop_all()

    def assign_to(self, sock: socket.socket, pid: int) -> None:
        """Give the slot to a program: each message on its socket lends the arena until it is answered."""
        self.pid = pid
        self._messages.register(sock, select.POLLIN)

    def descriptors(self) -> list[int]:
        """Return socket, arena, shared record, budget, fault rules and recorder's ring, which all stay open here."""
        last = self._capture.memfd.number
        arena_fd, shared_fd = self._arena_fd.number, self._shared_fd.number
        return [self._link.filenos()[0], arena_fd, shared_fd, self._budget_fd, self._faults_fd, last]

    def source_socket(self, port: int) -> int:
        """Return the descriptor of the slot's socket on one of the device's source ports, which stays open here.

        Raises:
            OSError: EINVAL: it is not one of the source ports. Or the kernel refuses a socket.
        """
        if port not in self._link.source_ports:
            raise OSError(errno.EINVAL, f"SOURCE_PORT {port}: the device does not send from there")
        try:
            return self._link.outlet(port).descriptor
        except LinkError as error:
            raise OSError(errno.EADDRINUSE, str(error)) from None

    def _qp_stopped(self, qpn: int) -> None:
        for pair in self.loopback.pairs_of(self.member):
            pair.qp_stopped(self.member, qpn)

    def _key_changed(self, entry: MemoryEntry) -> None:
        if not entry.valid:
            for pair in self.loopback.pairs_of(self.member):
                pair.key_invalidated(self.member)

    def _hold_pairs(self, held: bool) -> None:
        """Tell peers whether to use the rings, or to send over the wire since this process serves the slot."""
        if self._pairs_held != held:
            self._pairs_held = held
            for pair in self.loopback.pairs_of(self.member):
                pair.set_held(self.member, held)

    def add_pair(self, pair: RingPair) -> None:
        """Note a new ring pair of the slot."""
        pair.set_held(self.member, self._pairs_held)

    # ---------------------------------------------------------------------------------------- ownership of the arena

    def hold(self) -> bool:
        """Take the arena unless the program holds it; :meth:`release` gives it back.

        A program that waits for an answer holds it: it may be in the middle of a turn, which it continues even if the
        slot is :attr:`served` here by then.
        """
        store32(self.shared, _WANTED, 1)
        if self._is_taken():
            store32(self.shared, _WANTED, 0)
            return False
        return True

    def _is_taken(self) -> bool:
        """Return whether the program holds the arena; call this after ``wanted`` is stored."""
        fence()  # the program stores its own word, then loads this side's word
        return bool(load32(self.shared, _TAKEN))

    def release(self) -> None:
        """Give the arena back to the program, which reloads everything."""
        self._advance_changes()
        store32(self.shared, _WANTED, 0)

    def hand_over(self) -> None:
        """Give the arena back with the answer to the message that lent it; the program reloads everything."""
        self.runtime.nic.inflight.reserve_line()
        self._advance_changes()

    def _advance_changes(self) -> None:
        self.words[_CHANGES] = self.words[_CHANGES] + 1 & (1 << 63) - 1
        self._link.forget()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the arena to inspect it or to change a word. A running program gives it back within microseconds.

        A program that waits for an answer holds it until the answer comes; that counts as given back.

        Raises:
            OSError: EBUSY: the program was stopped while it held the arena.
        """
        began = time.monotonic()
        store32(self.shared, _WANTED, 1)  # from now on the program does not take it again
        while not self.served and self._is_taken() and not self._messages.poll(0):
            self._captures.drain()  # it may hold the arena while it waits for room in its ring
            waited = time.monotonic() - began
            if waited < _BUSY_WAIT_S or (waited < _MAX_BUSY_WAIT_S and not self._is_stopped()):
                os.sched_yield()
                continue
            store32(self.shared, _WANTED, 0)
            raise OSError(
                errno.EBUSY, f"program {self.pid} was stopped while it worked on its slot, or hangs: continue or end it"
            )
        try:
            with self.work:
                yield
        finally:
            self.release()

    def _is_stopped(self) -> bool:
        """Return whether the program is stopped or gone, as far as ``/proc`` shows."""
        try:
            return task_state(f"/proc/{self.pid}/stat") in _STOPPED
        except (OSError, IndexError):
            return True

    def set_link(self, up: bool, state: int) -> None:
        """Queue a port state, up or down in some state, for :meth:`tell_link` to report to the program."""
        if len(self._link_untold) >= MAX_LINK_UNTOLD:
            self._link_untold.popleft()
        self._link_untold.append((up, state))
        self._gate.shut = not up

    def tell_link(self) -> None:
        """Report waiting port changes to the program; later if it holds its arena now."""
        if not self._link_untold or not self.hold():
            return
        try:
            with self.work:
                while self._link_untold:
                    up, state = self._link_untold.popleft()
                    self.runtime.nic.globals.down_state = state
                    self.runtime.nic.set_link(up)
                self.runtime.flush(self.runtime.clock())
        finally:
            self.release()

    def take_over(self) -> None:
        """Serve the slot's packets and doorbells here from now on, since packets are traced or delayed here."""
        if not self.served:
            with self.held():
                store32(self.shared, _REFERENCE, 1)
            self._hold_pairs(True)
            self.served = True

    @property
    def may_go_back(self) -> bool:
        """True if nothing is traced or delayed here any longer, so that the program could serve the slot again."""
        return self.served and not self.runtime.acts_on_packets

    def give_back(self) -> bool:
        """Let the program serve its slot again; return false if it holds the arena now.

        Its threads check every 100 ms whether they may. Doorbells rung meanwhile are handled here.
        """
        if not self.hold():
            return False
        self.served = False
        self._refusals = 0
        store32(self.shared, _REFERENCE, 0)
        self.release()
        return True

    # ---------------------------------------------------------------------------------------- punts

    def punt(self, body: bytes) -> bytes:
        """Handle what the program's engine punts, on the arena that it has lent; return the answer's body.

        Raises:
            OSError: EINVAL for a punt that no engine makes.
        """
        request = attach.PUNT.unpack(body)
        runtime, nic = self.runtime, self.runtime.nic
        now = runtime.clock()
        nic.now_ns = now
        answer = {"count": 0, "reschedule": 0, "settled": 0}
        kind = request["kind"]
        if kind == attach.PUNT_PACKET:
            answer["settled"] = int(self._receive(request, body, now))
        elif kind == attach.PUNT_DOORBELL:
            nic.sending.ring(request["qp"])
            runtime.kick()
        else:
            qp = nic.sending.qps.get(request["qp"])
            if qp is None:
                raise OSError(errno.EINVAL, f"PUNT: no queue pair's record lies at {request['qp']:#x}")
            if kind == attach.PUNT_TURN:
                if max(request["limit"], request["room"]) > BUDGET + 2 * LEAST:
                    raise OSError(errno.EINVAL, f"PUNT: a turn of {request['limit']} packets is more than a round's")
                out: list[TxBurst] = []
                turn = request["limit"], request["step"], request["count"], request["bytes"], request["room"]
                count, reschedule = nic.sending.take_over(now, out, request["qp"], *turn)
                runtime.send_bursts(out)
                answer |= {"count": count, "reschedule": int(reschedule)}
            elif kind == attach.PUNT_NOTIFY:
                for cqn, bit in ((qp.ctx.cqn_snd, attach.PUNT_NOTIFY_SEND), (qp.ctx.cqn_rcv, attach.PUNT_NOTIFY_RECV)):
                    cq = nic.resources.cqs.get(cqn)
                    if cq is not None and request["effects"] & bit:
                        cq.notify()
            elif kind == attach.PUNT_TIMER:
                nic.handle_deadline(qp, now)
            else:
                raise OSError(errno.EINVAL, f"PUNT kind {kind} is unknown")
        runtime.flush(now)
        self.hand_over()
        return attach.PUNT_REPLY.pack(answer)

    def _receive(self, request: dict[str, int], body: bytes, now: int) -> bool:
        """Receive the packets of an rx buffer; return whether the engine may receive further ones of their sender."""
        size, segment, buffer = request["length"], request["segment"], request["buffer"]
        name = body[attach.PUNT_SENDER_AT :][: min(request["sender_bytes"], attach.PUNT_SENDER_MAX)]
        if buffer >= RECEIVE_LIMIT or size > BUFFER_BYTES or not 0 < segment <= size or request["at"] >= size:
            raise OSError(errno.EINVAL, f"PUNT of {size} bytes in buffer {buffer}: there are no such packets")
        at = BUFFERS_AT + buffer * BUFFER_BYTES
        # a copy: the program cannot change it between check and use
        data = memoryview(self.shared[at : at + size])
        burst = self._link.make_burst(
            name, data, segment, request["tclass"], request["hop_limit"], request["flow_label"]
        )
        flow = burst.flow
        if request["count"] and flow.idents is not None:
            # the packets that the engine received since the last punt had the IP IDs that it expected
            self.runtime.nic.learn_idents(burst, request["count"])
        self.runtime.nic.receive(burst, now, request["at"])
        return flow.settled or (flow.idents is not None and flow.idents.small)

    def deliver(self, burst: RxBurst, now: int) -> bool:
        """Receive a packet that came to another slot, now or later; return false if it is lost."""
        if self.hold():
            try:
                with self.work:
                    self._waiting.append((burst, now))
                    self._receive_waiting(now)
            finally:
                self.release()
            return True
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append((burst, now))
        return True

    def _receive_waiting(self, now: int) -> None:
        """Receive the packets delivered while the program held the arena, which this process holds now."""
        waiting, self._waiting = self._waiting, []
        for burst, _ in waiting:
            self.runtime.nic.receive(burst, now)
        if waiting:
            self.runtime.flush(now)
            self.runtime.kick()  # the program may sleep, and does not know of the packets

    def serve(self) -> bool | None:
        """Do one round of the slot; return whether it did anything, or ``None`` while its program holds the arena."""
        if not self.hold():
            self._refusals += 1
            if self._refusals > _MAX_REFUSALS and self.served:
                time.sleep(_REFUSED_S)  # the program was stopped while it held the arena, and packets wait
            return None
        self._refusals = 0
        try:
            self._receive_waiting(self.runtime.clock())
            return self.runtime.round()
        finally:
            self.release()

    # ---------------------------------------------------------------------------------------- idle programs

    def serve_if_idle(self, now: int) -> bool:
        """Serve the slot if its program leaves it unattended; return whether there is more to do at once."""
        if self._waiting and self.hold():
            try:
                self._receive_waiting(now)
            finally:
                self.release()
        if self.is_attended(now):
            return False
        if self._idle_since_ns is None:
            self._idle_since_ns = now
        if now - self._idle_since_ns < CHECK_NS or not self.hold():
            return False
        self._hold_pairs(True)
        try:
            for _ in range(_ROUNDS):
                if not self.runtime.round():
                    return False
        finally:
            self.release()
        return True

    def is_attended(self, now: int) -> bool:
        """Return whether the program has run rounds since the last check, or has no pending work."""
        if not self.note_rounds(self.rounds[0]):
            deadline = self.runtime.nic.timers.next_ns()
            if (deadline is not None and deadline + CHECK_NS <= now) or self._poller.poll(0):
                return False
            if not self._pairs_held and any(
                pair.has_records(self.member) for pair in self.loopback.pairs_of(self.member)
            ):
                return False
        self._idle_since_ns = None
        return True

    def note_rounds(self, rounds: int) -> bool:
        """Note how many rounds the program has run; return whether that is more than before."""
        if rounds == self._seen_rounds:
            return False
        if not self.served:
            self._hold_pairs(False)
        self._seen_rounds, self._idle_since_ns = rounds, None
        return True

    @property
    def has_waiting(self) -> bool:
        """True while packets wait for the program to give the arena back."""
        return bool(self._waiting)

    def counters(self) -> dict[str, int]:
        """Return the counters of both sides."""
        counted = self._counted.read(time.monotonic_ns())
        if self.end is not None:
            counted |= self._rings.read(time.monotonic_ns())
        for name, count in self.runtime.nic.counters.snapshot().items():
            counted[name] = add(counted.get(name, 0), count)
        return counted

    def punts(self) -> dict[str, int]:
        """Return how often the engine punted, by reason."""
        return self._punts.read(time.monotonic_ns())

    @property
    def believable(self) -> bool:
        """True unless the program has stored an impossible count."""
        return all(each.believable for each in (self._counted, self._rings, self._punts))

    def close(self) -> None:
        """Close everything once the program has ended; packets that still arrive for it are lost."""
        if not self.closed:
            self.closed = True
            try:
                self.runtime.close()
            finally:
                self._arena_fd.close()
                self._shared_fd.close()
                if self.end is not None:
                    self.end.close()
                self._captures.remove(self._capture)


def wait_or_idle(epoll: int, slots: Sequence[BypassSlot], timeout_s: float) -> bool:
    """Sleep until ``epoll`` has an event or a program ran no round for ``CHECK_NS``; return whether one may be idle."""
    if use.ENGINE is None:
        wait_readable([epoll], CHECK_NS / 1e9)
        return True
    words = [slot.rounds for slot in slots]
    idle, seen = use.ENGINE.sleep_while_active(epoll, words, CHECK_NS // 1_000_000, int(timeout_s * 1e9))
    for slot, rounds in zip(slots, seen, strict=True):
        with slot.work:
            slot.note_rounds(rounds)
    return bool(idle)


def all_attended(slots: Sequence[BypassSlot]) -> bool:
    """Return whether :meth:`BypassSlot.is_attended` holds for all slots."""
    for slot in slots:
        with slot.work:
            if not slot.is_attended(time.monotonic_ns()):
                return False
    return True


__all__ = ["CHECK_NS", "LOG_QPS", "SHARED_BYTES", "BypassSlot", "all_attended", "wait_or_idle"]
