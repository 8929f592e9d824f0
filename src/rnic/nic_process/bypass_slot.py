"""Slots: what a program that runs the engine itself has of a device in the NIC process (kernel bypass).

A slot is a NIC of its own in all but name: the device's address and settings, its own queue pair numbers, its own
socket of the device's group (:mod:`rnic.link.steering`), its own arena in memory that both processes map. The
program's engine works on the arena; here the reference does, with what that engine leaves to it, with commands, and
with the whole slot while the program sleeps at a bad time or once somebody wants to see each packet.

Nothing here trusts the arena: the engine, which follows offsets, does not run on it in this process; the reference sees
it through views with bounds, and what raises costs that program its connection.
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
from collections.abc import Iterator, Sequence

from rnic.device.nic import Nic, arena_bytes
from rnic.engine import use
from rnic.link.udp import UdpLink
from rnic.mem.order import fence, load32, store32
from rnic.mem.table import MemoryEntry
from rnic.nic_process.bounded_work import Patience
from rnic.nic_process.budget import DeviceBudget
from rnic.nic_process.client_memory import task_state
from rnic.nic_process.memfd import memory
from rnic.nic_process.shm_loopback import End, Hairpins, Pair
from rnic.runtime.loop import Runtime
from rnic.runtime.wait import wait_readable
from rnic.spec import attach
from rnic.spec.rounds import BUDGET, BUFFER_BYTES, RECEIVE_LIMIT
from rnic.state.record import WORD_BYTES, place
from rnic.state.slot import BUFFERS_AT, DROPS, EVENTS, HAIRPIN, PUNT_REASONS, SLOT
from rnic.transport.budget import LEAST
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.ident import learn

LOG_QPS = 10
"""log2 of the queue pairs of a slot."""
SHARED_BYTES = BUFFERS_AT + RECEIVE_LIMIT * BUFFER_BYTES
MAX_WAITING = 256
"""Packets that wait for a slot whose program is at work; more are lost, as on a wire."""
LOOK_NS = 20_000_000
"""A program that leaves packets, or deadlines, lie for so long is asleep: its slot is served here."""
_ROUNDS = 64
_MOST_REFUSALS, _REFUSED_S = 100, 0.001
"""How often in a row a program may be at work on a slot that is served here, and how long each look then waits."""
_PATIENCE_S, _MOST_PATIENCE_S = 0.05, 0.5
"""How long to wait for a program's arena: it has it for microseconds, unless it was stopped or has no core just now."""
_STOPPED = (b"T", b"t", b"Z", b"X")
_TAKEN, _WANTED, _REFERENCE = (place(SLOT, name) * WORD_BYTES for name in ("taken", "wanted", "reference"))
_CHANGES, _ROUNDS_AT = place(SLOT, "changes"), place(SLOT, "rounds")
_COUNTED = {
    name: place(SLOT, name)
    for name in (
        *("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_socket_error", "gso_refused"),
        *(f"drop_{name}" for name in DROPS),
    )
}
_RINGS = {f"hairpin_{name}": place(SLOT, f"hairpin_{name}") for name, _ in HAIRPIN}
_EVENTS = [place(SLOT, f"event_{at}") for at in range(EVENTS)]
_PUNTS = {reason: place(SLOT, f"punt_{reason}") for reason in (*PUNT_REASONS, "unknown", "notify", "doorbell", "timer")}


class Slot:
    """One program's part of a device.

    Args:
        main: the device.
        link: over the slot's own socket; closed with the slot.
        member: its number in the device's group.
        first_qpn: its first queue pair number.
        patience: bounds what is done on the arena.
        hairpins: what the device's programs share.
        budget: what all of them may have in flight together.

    ``runtime`` is the NIC of the slot, which nobody else in this process drives; whoever has it do something enters
    ``work`` for that.
    """

    def __init__(
        self,
        main: Runtime,
        link: UdpLink,
        member: int,
        first_qpn: int,
        patience: Patience,
        hairpins: Hairpins,
        budget: DeviceBudget,
    ) -> None:
        self.member = member
        self.hairpins = hairpins
        self.end: End | None = None
        """What it takes part with in loopback inside the NIC, where it asked for that."""
        self.work = patience.on(self)
        self.closed = False
        self.served = False
        """The NIC process takes everything itself from now on."""
        self.pid = 0
        self._refusals = 0
        self.look_at_ns = 0
        """When to :meth:`look` next."""
        config = dataclasses.replace(
            main.nic.config, log_max_qps=min(LOG_QPS, main.nic.config.log_max_qps), first_qpn=first_qpn, reference=True
        )
        self.arena_bytes = -(-arena_bytes(config) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._shared_fd, self.shared = memory("rnic slot", SHARED_BYTES)
        try:
            self._arena_fd, arena = memory("rnic arena", self.arena_bytes)
        except BaseException:
            os.close(self._shared_fd)
            raise
        self.words = memoryview(self.shared)[: SLOT.size].cast("Q")
        for name, value in (
            ("layout", use.LAYOUT),
            ("ack_every", config.ack_every),
            ("probe", int(config.probe)),
            ("rq_almost_full", config.rq_almost_full),
            ("changes", 1),
        ):
            self.words[place(SLOT, name)] = value
        self.rounds = self.words[_ROUNDS_AT : _ROUNDS_AT + 1]
        """How many rounds the program has made: its heartbeat."""
        rng = random.Random(secrets.randbits(256))
        nic = Nic(config, rng=rng, counters=link.counters, memory=arena)
        self.runtime, self._link = Runtime(nic, link), link
        link.forget()  # the program's engine sends by it, too
        nic.stopped = self._stopped
        nic.memory.told = self._key_told
        nic.inflight.reserve_line()
        nic.inflight.share(budget.of(member), budget)
        self._budget_fd = budget.fd
        self._messages = select.poll()
        self._waiting: list[tuple[RxBurst, int]] = []
        self._lay_ns: int | None = None
        self._seen_rounds = 0
        self._rings_held = False
        self._poller = select.poll()
        self._poller.register(link.filenos()[0], select.POLLIN)

    def lend_to(self, sock: socket.socket, pid: int) -> None:
        """The slot is a program's: each message that comes by its socket lends the arena until it is answered."""
        self.pid = pid
        self._messages.register(sock, select.POLLIN)

    def descriptors(self) -> list[int]:
        """Socket, arena, shared record and budget, for the program; they stay the slot's, the last the device's."""
        return [self.runtime.link.filenos()[0], self._arena_fd, self._shared_fd, self._budget_fd]

    def _stopped(self, qpn: int) -> None:
        for pair in self.hairpins.of(self.member):
            pair.stopped(self.member, qpn)

    def _key_told(self, entry: MemoryEntry) -> None:
        if not entry.valid:
            for pair in self.hairpins.of(self.member):
                pair.key_ended(self.member)

    def _hold_rings(self, held: bool) -> None:
        """Others leave packets in the rings to the slot, or send them by the wire, where this process takes them."""
        if self._rings_held != held:
            self._rings_held = held
            for pair in self.hairpins.of(self.member):
                pair.hold(self.member, held)

    def joins(self, pair: Pair) -> None:
        """It has a pair more."""
        pair.hold(self.member, self._rings_held)

    # ---------------------------------------------------------------------------------------- whose the arena is

    def hold(self) -> bool:
        """Take the arena, if the program is not at work on it just now; :meth:`release` gives it back.

        A program that waits for an answer is at work: it may be in the midst of a turn, which it goes on with, also
        after the slot has become one that is :attr:`served`.
        """
        store32(self.shared, _WANTED, 1)
        if self._is_taken():
            store32(self.shared, _WANTED, 0)
            return False
        return True

    def _is_taken(self) -> bool:
        """Whether the program, which was told, is at work on the arena."""
        fence()  # the program stores its own word, then looks at the one of this side
        return bool(load32(self.shared, _TAKEN))

    def release(self) -> None:
        """The arena is the program's again, which finds everything anew."""
        self._hand_over()
        store32(self.shared, _WANTED, 0)

    def lent(self) -> None:
        """The program has lent the arena with a message that is answered now: it finds everything anew."""
        self.runtime.nic.inflight.reserve_line()
        self._hand_over()

    def _hand_over(self) -> None:
        self.words[_CHANGES] = self.words[_CHANGES] + 1 & (1 << 63) - 1
        self._link.forget()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the arena, which a program at work gives back within microseconds, to look at it or to change a word.

        A program that waits for an answer has it in its hands for as long as nobody gives that.

        Raises:
            OSError: EBUSY: it does not; it was stopped in the midst of its work.
        """
        began = time.monotonic()
        store32(self.shared, _WANTED, 1)  # from now on it takes the arena no more
        while not self.served and self._is_taken() and not self._messages.poll(0):
            waited = time.monotonic() - began
            if waited < _PATIENCE_S or (waited < _MOST_PATIENCE_S and not self._is_stopped()):
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
        """Whether the program does not run at all, as far as can be seen."""
        try:
            return task_state(f"/proc/{self.pid}/stat") in _STOPPED
        except (OSError, IndexError):
            return True

    def serve_here(self) -> None:
        """The NIC process takes packets and doorbells itself from now on: somebody looks at packets, or delays them."""
        if not self.served:
            with self.held():
                store32(self.shared, _REFERENCE, 1)
            self._hold_rings(True)
            self.served = True

    # ---------------------------------------------------------------------------------------- what is left to it

    def punt(self, body: bytes) -> bytes:
        """Do what the program's engine leaves, on the arena that it has lent; the answer's body.

        Raises:
            OSError: EINVAL for what no engine leaves.
        """
        asked = attach.PUNT.unpack(body)
        runtime, nic = self.runtime, self.runtime.nic
        now = runtime.clock()
        nic.now_ns = now
        answer = {"count": 0, "polite": 0, "settled": 0}
        kind = asked["kind"]
        if kind == attach.PUNT_PACKET:
            answer["settled"] = int(self._packets(asked, body, now))
        elif kind == attach.PUNT_DOORBELL:
            nic.sending.ring(asked["qp"])
            runtime.kick()
        else:
            qp = nic.sending.qps.get(asked["qp"])
            if qp is None:
                raise OSError(errno.EINVAL, f"PUNT: no queue pair's record lies at {asked['qp']:#x}")
            if kind == attach.PUNT_TURN:
                if max(asked["limit"], asked["room"]) > BUDGET + 2 * LEAST:
                    raise OSError(errno.EINVAL, f"PUNT: a turn of {asked['limit']} packets is more than a round's")
                out: list[TxBurst] = []
                turn = asked["limit"], asked["step"], asked["count"], asked["bytes"], asked["room"]
                count, polite = nic.sending.take_over(now, out, asked["qp"], *turn)
                runtime.carry_away(out)
                answer |= {"count": count, "polite": int(polite)}
            elif kind == attach.PUNT_NOTIFY:
                for cqn, bit in ((qp.ctx.cqn_snd, attach.PUNT_NOTIFY_SEND), (qp.ctx.cqn_rcv, attach.PUNT_NOTIFY_RECV)):
                    cq = nic.resources.cqs.get(cqn)
                    if cq is not None and asked["effects"] & bit:
                        cq.notify()
            elif kind == attach.PUNT_TIMER:
                nic.handle_deadline(qp, now)
            else:
                raise OSError(errno.EINVAL, f"PUNT kind {kind} is unknown")
        runtime.settle(now)
        self.lent()
        return attach.PUNT_REPLY.pack(answer)

    def _packets(self, asked: dict[str, int], body: bytes, now: int) -> bool:
        """Packets of a receive buffer; whether the engine may take what comes from their sender."""
        size, segment, buffer = asked["length"], asked["segment"], asked["buffer"]
        name = body[attach.PUNT_SENDER_AT :][: min(asked["sender_bytes"], attach.PUNT_SENDER_MAX)]
        if buffer >= RECEIVE_LIMIT or size > BUFFER_BYTES or not 0 < segment <= size or asked["at"] >= size:
            raise OSError(errno.EINVAL, f"PUNT of {size} bytes in buffer {buffer}: there are no such packets")
        at = BUFFERS_AT + buffer * BUFFER_BYTES
        # a copy: what was checked stays what it was, whatever the program does meanwhile
        data = memoryview(self.shared[at : at + size])
        burst = self._link.make_burst(name, data, segment, asked["tclass"], asked["hop_limit"], asked["flow_label"])
        flow = burst.flow
        if asked["count"] and flow.idents is not None:
            # what the engine took since then had the idents that it expected
            learn(flow, asked["count"])
        self.runtime.nic.receive(burst, now, asked["at"])
        return flow.settled or (flow.idents is not None and flow.idents.small)

    def hand(self, burst: RxBurst, now: int) -> bool:
        """Take a packet that came to another slot; whether it was, now or later."""
        if self.hold():
            try:
                with self.work:
                    self.runtime.nic.receive(burst, now)
                    self.runtime.settle(now)
            finally:
                self.release()
            return True
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting.append((burst, now))
        return True

    def _take_waiting(self, now: int) -> None:
        """What was handed on while the program was at work; the arena is held."""
        waiting, self._waiting = self._waiting, []
        for burst, _ in waiting:
            self.runtime.nic.receive(burst, now)
        if waiting:
            self.runtime.settle(now)

    def serve(self) -> bool | None:
        """A round of the slot, where this process may; whether anything was done. ``None``: its program is at work."""
        if not self.hold():
            self._refusals += 1
            if self._refusals > _MOST_REFUSALS and self.served:
                time.sleep(_REFUSED_S)  # it was stopped in the midst of its work, and packets lie there
            return None
        self._refusals = 0
        try:
            self._take_waiting(self.runtime.clock())
            return self.runtime.round()
        finally:
            self.release()

    # ---------------------------------------------------------------------------------------- now and then

    def look(self, now: int) -> bool:
        """Serve the slot where its program does not; whether there is more to do at once."""
        if self._waiting and self.hold():
            try:
                self._take_waiting(now)
            finally:
                self.release()
        if self.is_looked_after(now):
            return False
        if self._lay_ns is None:
            self._lay_ns = now
        if now - self._lay_ns < LOOK_NS or not self.hold():
            return False
        self._hold_rings(True)
        try:
            for _ in range(_ROUNDS):
                if not self.runtime.round():
                    return False
        finally:
            self.release()
        return True

    def is_looked_after(self, now: int) -> bool:
        """Whether the program has been at work since the last look, or leaves nothing undone."""
        if not self.saw(self.rounds[0]):
            deadline = self.runtime.nic.timers.next_ns()
            if (deadline is not None and deadline + LOOK_NS <= now) or self._poller.poll(0):
                return False
            if not self._rings_held and any(pair.waits(self.member) for pair in self.hairpins.of(self.member)):
                return False
        self._lay_ns = None
        return True

    def saw(self, rounds: int) -> bool:
        """The program has made so many rounds: whether that is more than before."""
        if rounds == self._seen_rounds:
            return False
        if not self.served:
            self._hold_rings(False)
        self._seen_rounds, self._lay_ns = rounds, None
        return True

    @property
    def waits(self) -> bool:
        """Whether packets wait for the program to leave the arena alone."""
        return bool(self._waiting)

    def counters(self) -> dict[str, int]:
        """What both sides counted."""
        names = use.COMPILED.COUNTERS if use.COMPILED is not None else ()
        words = self.words
        counted = {name: words[at] for name, at in _COUNTED.items()}
        if self.end is not None:
            counted |= {name: words[at] for name, at in _RINGS.items()}
        counted |= {name: words[at] for name, at in zip(names, _EVENTS, strict=False)}  # as many as the engine has
        for name, count in self.runtime.nic.counters.snapshot().items():
            counted[name] = counted.get(name, 0) + count
        return counted

    def punts(self) -> dict[str, int]:
        """How often the engine left something, by reason."""
        return {reason: self.words[at] for reason, at in _PUNTS.items()}

    def close(self) -> None:
        """The program has gone; what still comes for it comes to nobody."""
        if not self.closed:
            self.closed = True
            try:
                self.runtime.close()
            finally:
                os.close(self._arena_fd)
                os.close(self._shared_fd)
                if self.end is not None:
                    self.end.close()


def look_on(epoll: int, slots: Sequence[Slot], timeout_s: float) -> bool:
    """Sleep until something comes by ``epoll`` or a program has stood still for one look; whether one may have."""
    if use.ENGINE is None:
        wait_readable([epoll], LOOK_NS / 1e9)
        return True
    words = [slot.rounds for slot in slots]
    quiet, seen = use.ENGINE.look_on(epoll, words, LOOK_NS // 1_000_000, int(timeout_s * 1e9))
    for slot, rounds in zip(slots, seen, strict=True):
        with slot.work:
            slot.saw(rounds)
    return bool(quiet)


def are_looked_after(slots: Sequence[Slot]) -> bool:
    """:meth:`Slot.is_looked_after` of all."""
    for slot in slots:
        with slot.work:
            if not slot.is_looked_after(time.monotonic_ns()):
                return False
    return True


__all__ = ["LOG_QPS", "LOOK_NS", "SHARED_BYTES", "Slot", "are_looked_after", "look_on"]
