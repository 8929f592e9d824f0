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
import ipaddress
import mmap
import os
import random
import secrets
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from rnic.device.inspect import look
from rnic.device.nic import Nic, arena_bytes
from rnic.engine import use
from rnic.link import steering
from rnic.link.base import LinkError, format_address
from rnic.link.udp import BUFFER_BYTES as SOCKET_BYTES
from rnic.link.udp import UdpLink
from rnic.mem import order
from rnic.mem.order import fence, load32, store32
from rnic.mem.table import MemoryEntry
from rnic.runtime.budget import DeviceBudget
from rnic.runtime.hairpin import End, Hairpins, Pair
from rnic.runtime.loop import Runtime
from rnic.runtime.memfd import memory
from rnic.runtime.patience import Patience
from rnic.spec import attach
from rnic.spec.limits import GO_BACK_N
from rnic.spec.rounds import BUFFER_BYTES, RECEIVE_LIMIT
from rnic.spec.states import ST_RC
from rnic.state.record import WORD_BYTES, place
from rnic.state.slot import BUFFERS_AT, DROPS, EVENTS, HAIRPIN, PUNT_REASONS, SLOT
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.ident import learn

LOG_QPS = 10
"""log2 of the queue pairs of a slot."""
SHARED_BYTES = BUFFERS_AT + RECEIVE_LIMIT * BUFFER_BYTES
MAX_WAITING = 256
"""Packets that wait for a slot whose program is at work; more are lost, as on a wire."""
LOOK_NS = 20_000_000
"""A program that leaves packets, or deadlines, lie for so long is asleep: its slot is served here."""
RIGHT_NS = 100_000_000
"""How often the budget's page is put right while anything happens."""
_ROUNDS = 64
_DRAIN = 4_096
_PATIENCE_S = 0.05
_TAKEN, _WANTED, _REFERENCE = (place(SLOT, name) * WORD_BYTES for name in ("taken", "wanted", "reference"))
_CHANGES, _ROUNDS_AT = place(SLOT, "changes"), place(SLOT, "rounds")
_RECORD_WORDS = SLOT.size // WORD_BYTES


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
        rng = random.Random(secrets.randbits(256))
        nic = Nic(config, rng=rng, counters=link.counters, memory=arena)
        self.runtime = Runtime(nic, link)
        nic.stopped = self._stopped
        nic.memory.told = self._key_told
        nic.flights.stock()
        nic.flights.share(budget.of(member), budget)
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
        """Take the arena, if the program is not at work on it just now; :meth:`release` gives it back."""
        if self.served:
            return True
        store32(self.shared, _WANTED, 1)
        if not self._is_left():
            store32(self.shared, _WANTED, 0)
            return False
        return True

    def _is_left(self) -> bool:
        """Whether the program, which was told, leaves the arena alone: it is not at work, or waits for an answer."""
        fence()  # the program stores its own word, then looks at the one of this side
        return not load32(self.shared, _TAKEN) or bool(self._messages.poll(0))

    def release(self) -> None:
        """The arena is the program's again, which finds everything anew."""
        self.words[_CHANGES] = self.words[_CHANGES] + 1 & (1 << 63) - 1
        store32(self.shared, _WANTED, 0)

    def lent(self) -> None:
        """The program has lent the arena with a message that is answered now: it finds everything anew."""
        self.runtime.nic.flights.stock()
        self.words[_CHANGES] = self.words[_CHANGES] + 1 & (1 << 63) - 1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the arena, which a program at work gives back within microseconds.

        Raises:
            OSError: EBUSY: it does not; it was stopped in the midst of its work.
        """
        end = time.monotonic() + _PATIENCE_S
        store32(self.shared, _WANTED, 1)  # from now on it takes the arena no more
        while not (self.served or self._is_left()):
            if time.monotonic() < end:
                os.sched_yield()
                continue
            store32(self.shared, _WANTED, 0)
            raise OSError(
                errno.EBUSY, f"program {self.pid} was stopped while it worked on its slot: continue or end it"
            )
        try:
            with self.work:
                yield
        finally:
            self.release()

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
        link = self.runtime.link
        assert isinstance(link, UdpLink)
        burst = link.arrived(name, data, segment, asked["tclass"], asked["hop_limit"], asked["flow_label"])
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

    # ---------------------------------------------------------------------------------------- now and then

    def look(self, now: int) -> bool:
        """Serve the slot where its program does not; whether there is more to do at once."""
        if self._waiting and self.hold():
            waiting, self._waiting = self._waiting, []
            for burst, _ in waiting:
                self.runtime.nic.receive(burst, now)
            self.runtime.settle(now)
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
        rounds = self.words[_ROUNDS_AT]
        if rounds == self._seen_rounds:
            deadline = self.runtime.nic.timers.next_ns()
            if (deadline is not None and deadline + LOOK_NS <= now) or self._poller.poll(0):
                return False
            if not self._rings_held and any(pair.waits(self.member) for pair in self.hairpins.of(self.member)):
                return False
        elif not self.served:
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
        seen = self.runtime.nic.counters.snapshot()
        own = {name: words[place(SLOT, name)] for name in ("rx_packets", "tx_packets", "rx_bytes", "tx_bytes")}
        own |= {name: words[place(SLOT, name)] for name in ("rx_socket_error", "gso_refused")}
        own |= {f"drop_{name}": words[place(SLOT, f"drop_{name}")] for name in DROPS}
        if self.end is not None:
            own |= {f"hairpin_{name}": words[place(SLOT, f"hairpin_{name}")] for name, _ in HAIRPIN}
        own |= {names[at]: words[place(SLOT, f"event_{at}")] for at in range(EVENTS) if at < len(names)}
        return {name: seen.get(name, 0) + own.get(name, 0) for name in seen.keys() | own.keys()}

    def punts(self) -> dict[str, int]:
        """How often the engine left something, by reason."""
        reasons = (*PUNT_REASONS, "unknown", "notify", "doorbell", "timer")
        return {reason: self.words[place(SLOT, f"punt_{reason}")] for reason in reasons}

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


class SlotGroup:
    """The slots of one device.

    Args:
        main: the device, whose link is the first of the group.
        patience: bounds what is done on their arenas.

    ``refused`` says why there are none, once that is known.
    """

    def __init__(self, main: Runtime, patience: Patience) -> None:
        self._main = main
        self._patience = patience
        self._group: steering.Group | None = None
        self._free: list[int] = []
        self._uses: dict[int, int] = {}
        self.slots: dict[int, Slot] = {}
        self.hairpins = Hairpins()
        self.budget: DeviceBudget | None = None
        """What the device and all slots may have in flight together, while there are any."""
        self._right_at_ns = 0
        self.refused = ""
        self.left_out: dict[int, str] = {}
        """Programs that asked for a slot and have none, by process, and why."""
        self.handed_on = 0
        self.lost = 0
        self.counted: Counter[str] = Counter()
        """What slots that have been given back had counted."""
        self.punted: Counter[str] = Counter()

    def open(self) -> Slot | None:
        """A slot for a program; ``None`` where there are none, as ``refused`` says."""
        self.refused = self._why_not()
        if self.refused:
            return None
        link = self._main.link
        assert isinstance(link, UdpLink)
        try:
            if self._group is None:
                self._group = steering.Group(link.main_socket, link.address, link.port, SOCKET_BYTES)
                self._main.nic.stray = partial(self._stray, 0)
            if not self._free:
                self._free.append(self._group.join())
            sock = self._group.socket_of(self._free[-1]).dup()
        except (OSError, LinkError) as error:
            self.refused = f"the system refuses sockets that share a port: {error}"
            return None
        member = self._free.pop()
        try:
            return self._make(member, sock, self._share())
        except OSError as error:
            self._failed(member, sock)
            self.refused = f"the system refuses memory to share: {error}"
            return None
        except BaseException:
            self._failed(member, sock)
            raise

    def _failed(self, member: int, sock: socket.socket) -> None:
        """There is no slot after all."""
        sock.close()
        self._free.append(member)
        if self.budget is not None:
            self.budget.end(member)
        if not self.slots:
            self._unshare()

    def _share(self) -> DeviceBudget:
        """The page of the device's budget, to which the NIC process keeps, too."""
        if self.budget is None:
            nic = self._main.nic
            budget = DeviceBudget(nic.config.flight_packets, (nic.config.address, nic.config.port))
            mine = budget.of(0)
            with self._main.lock:
                nic.flights.share(mine, budget)
                if nic.engine_device is not None:
                    nic.engine_device.share(mine)
            self.budget = budget
        return self.budget

    def _unshare(self) -> None:
        """There are no slots: the device is alone."""
        if self.budget is not None:
            nic = self._main.nic
            with self._main.lock:
                if nic.engine_device is not None:
                    nic.engine_device.share(None)
                nic.flights.leave_budget()
            self.budget.close()
            self.budget = None

    def put_right(self, now: int) -> None:
        """Now and then, put right what stands in the budget's page: programs may have written anything there."""
        if self.budget is None or now < self._right_at_ns:
            return
        self._right_at_ns = now + RIGHT_NS
        flights = {0: self._main.nic.flights, **{at: slot.runtime.nic.flights for at, slot in self.slots.items()}}
        self.budget.put_right({at: each.entries() for at, each in flights.items()})
        for each in flights.values():
            each.show()

    def _make(self, member: int, sock: socket.socket, budget: DeviceBudget) -> Slot:
        link = self._main.link
        assert isinstance(link, UdpLink)
        for _ in range(_DRAIN):  # what still comes for whoever had the slot before
            try:
                sock.recv(0)
            except OSError:
                break
        use_ = self._uses[member] = self._uses.get(member, -1) + 1
        ranges = 1 << steering.LOG_RANGE - LOG_QPS
        first = steering.first_qpn(member) + (use_ % ranges << LOG_QPS)
        own = UdpLink(format_address(link.address), link.port, sock=sock)
        slot = Slot(self._main, own, member, first, self._patience, self.hairpins, budget)
        slot.runtime.nic.stray = partial(self._stray, member)
        self.slots[member] = slot
        return slot

    def _why_not(self) -> str:
        main, link = self._main, self._main.link
        if not isinstance(link, UdpLink):
            return "its packets are delayed, harmed or recorded (--faults, --capture): the NIC process takes them"
        config = main.nic.config
        if config.recovery != GO_BACK_N or config.profile or config.congestion.mode != "none":
            return "its profile, recovery or congestion settings are the reference's alone"
        if link.source_ports != (link.port,):
            return "it sends from several ports (--source-ports)"
        if main.nic.tracer.enabled:
            return "its packets are watched: the NIC process takes them"
        if self._group is not None and not self._free and len(self._group) >= steering.MAX_MEMBERS:
            return f"{steering.MAX_MEMBERS} programs have slots of it already"
        return refusal(link.address) if self._group is None else ""

    def _stray(self, here: int, dqpn: int, burst: RxBurst, view: memoryview, index: int) -> bool:
        """Hand a packet on that came to the wrong slot, ``here``; whether it was another's."""
        member = steering.member_of(dqpn)
        if member == here:
            return False
        slot = self.slots.get(member)
        now = self._main.clock()
        ident = None if burst.ident is None else burst.ident + index
        how = burst.tclass, burst.hop_limit, burst.flow_label
        one = RxBurst(burst.flow, memoryview(bytes(view)), len(view), len(view), ident, burst.frag, *how)
        if member == 0:
            if dqpn not in self._main.nic.qps:
                return False
            self._main.nic.receive(one, now)
        elif slot is None or dqpn not in slot.runtime.nic.qps:
            return False
        elif not slot.hand(one, now):
            self.lost += 1
            return True
        self.handed_on += 1
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.steer()
        return True

    def join(self, slot: Slot, qpn: int) -> tuple[Slot, Pair] | None:
        """Whom a queue pair of a slot is connected to, and what the two share; ``None`` where that is none of these.

        Raises:
            OSError: there is no such queue pair, or the system refuses memory to share.
        """
        qp = slot.runtime.nic.qps.get(qpn)
        if qp is None:
            raise OSError(errno.EINVAL, f"HAIRPIN: QP {qpn:#x} is none of this program's")
        flow, config = qp.flow, self._main.nic.config
        if slot.end is None or slot.served or flow is None or qp.ctx.servtype != ST_RC:
            return None
        other = self.slots.get(steering.member_of(qp.ctx.remote_qpn))
        if flow.dst != config.address or flow.dport != config.port or other is None or other.end is None:
            return None
        pair = self.hairpins.pair(slot.member, other.member)
        for each in (slot, other):
            each.joins(pair)
        return other, pair

    def view(self) -> dict[str, Any]:
        """``{"refused", "slots": [slot], "left_out", "sockets", "handed_on", "budget"}``: why there are none, those in
        use.

        A slot is ``{"slot", "pid", "served", "first_qpn", "counters", "punts", "hairpin"}``, the last the slots that
        it shares rings with; ``left_out`` says of programs that
        asked for one and have none why, by process; ``sockets`` are kept for the device's life; ``budget`` is what
        all may have in flight and have, or ``None`` where there are none.
        """
        rows = [
            {
                "slot": member,
                "pid": slot.pid,
                "served": slot.served,
                "first_qpn": slot.runtime.nic.config.first_qpn,
                "counters": slot.counters(),
                "punts": slot.punts(),
                "hairpin": [sum(pair) - member for pair in self.hairpins.members() if member in pair],
            }
            for member, slot in sorted(self.slots.items())
        ]
        kept = 0 if self._group is None else len(self._group)
        return {
            "refused": self._why_not(),
            "slots": rows,
            "left_out": {str(pid): why for pid, why in self.left_out.items()},
            "sockets": kept,
            "handed_on": self.handed_on,
            "budget": None if self.budget is None else self.budget.view(),
        }

    def look(self, what: str) -> dict[str, Any] | None:
        """:func:`rnic.device.inspect.look` at the device with its slots, each of which is held meanwhile.

        A slot's queue blocks have numbers of its own: they say ``slot``, too.

        Raises:
            OSError: EBUSY: a program was stopped while it worked on its slot.
        """
        seen = look(self._main.nic, what)
        if what == "counters" and seen is not None:
            return totals(seen, self)
        for slot in self.slots.values():
            if seen is None or what in ("top", "regs"):
                with slot.held():
                    mine = look(slot.runtime.nic, what)
                if seen is None:
                    seen = mine
                elif mine is not None and what == "regs":
                    seen["blocks"] += [block | {"slot": slot.member} for block in mine["blocks"]]
                elif mine is not None:
                    objects = {kind: count + mine["objects"][kind] for kind, count in seen["objects"].items()}
                    seen |= {"objects": objects, "qps": seen["qps"] + mine["qps"], "cqs": seen["cqs"] + mine["cqs"]}
        if what == "top" and seen is not None:
            seen["counters"] = totals(seen["counters"], self)
        return seen

    def give_back(self, slot: Slot) -> None:
        """A program has gone: its slot's socket is kept for the next."""
        if self.slots.get(slot.member) is slot:
            self.hairpins.end(slot.member)
            slot.runtime.nic.flights.leave_budget()
            if self.budget is not None:
                self.budget.end(slot.member)
            del self.slots[slot.member]
            if not self.slots:
                self._unshare()
            self._free.append(slot.member)
            self.counted.update(slot.counters())
            self.punted.update(slot.punts())
        slot.close()

    def close(self) -> None:
        """The device goes."""
        for slot in list(self.slots.values()):
            self.hairpins.end(slot.member)
            slot.runtime.nic.flights.leave_budget()
            slot.close()
        self.slots.clear()
        self._unshare()
        if self._group is not None:
            self._group.close()
            self._group = None


def refusal(address: bytes) -> str:
    """Why programs cannot run the engine themselves on a local address, in words; empty where they can."""
    if use.COMPILED is None or use.ENGINE is None or not order.COMPILED:
        return "rnic was installed without a C compiler, or the engine is switched off"
    if len(address) == 16 and ipaddress.IPv6Address(address).is_link_local:
        return "its address is of link scope: the NIC process names the interface"
    return steering.refusal(address)


def totals(own: dict[str, int], group: SlotGroup) -> dict[str, int]:
    """A device's counters with those of its slots: sums, packets by slot, punts by reason, packets handed on."""
    seen = dict(own)
    by_slot = {f"slot_0_{name}": own.get(name, 0) for name in ("rx_packets", "tx_packets")}
    counted, punted = Counter(group.counted), Counter(group.punted)
    before = {f"slots_before_{name}": counted[name] for name in ("rx_packets", "tx_packets")}
    for member, slot in sorted(group.slots.items()):
        mine = slot.counters()
        counted.update(mine)
        punted.update(slot.punts())
        by_slot |= {f"slot_{member}_{name}": mine.get(name, 0) for name in ("rx_packets", "tx_packets")}
    for name, count in counted.items():
        seen[name] = seen.get(name, 0) + count
    seen |= {f"punt_{reason}": count for reason, count in sorted(punted.items()) if count}
    if group.slots or any(before.values()):
        seen |= by_slot | before
    if group.handed_on or group.lost:
        seen |= {"handed_on": group.handed_on, "drop_handed_on": group.lost}
    return seen


__all__ = ["Slot", "SlotGroup", "refusal", "totals"]
