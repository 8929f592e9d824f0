"""The programs of a device that run the engine themselves (kernel bypass): their slots, and their totals."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from rnic.device.inspect import look
from rnic.device.queue_pair import DeviceQp
from rnic.engine import use
from rnic.link import steering
from rnic.link.base import Link, LinkError, format_address
from rnic.link.faults import FaultyLink
from rnic.link.middleware import innermost
from rnic.link.recorder import Recorder
from rnic.link.recording import Recording
from rnic.link.udp import UdpLink
from rnic.mem import order
from rnic.nic_process.bounded_work import WorkWatchdog
from rnic.nic_process.budget import DeviceBudget
from rnic.nic_process.bypass_slot import LOG_QPS, BypassSlot
from rnic.nic_process.capture_rings import DeviceCaptures
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.fault_page import FaultPage
from rnic.nic_process.program_watch import ProgramWatch
from rnic.nic_process.shm_loopback import RingPair, ShmLoopback
from rnic.nic_process.slot_counters import add
from rnic.runtime.faults import DeviceFaults
from rnic.runtime.loop import Runtime
from rnic.runtime.tap import Tap
from rnic.spec import commands as cmd
from rnic.spec.limits import GO_BACK_N
from rnic.spec.states import ST_RC
from rnic.wire.bursts import DONT_FRAGMENT, RxBurst
from rnic.wire.ident import DF, solve_word

REPAIR_NS = 250_000_000
"""Nanoseconds between repairs of the budget's page, while there is activity."""
_DRAIN = 4_096


def _duplicate(sock: socket.socket) -> socket.socket:
    """Return the same socket under another descriptor; like ``sock.dup()``, but without leaking a descriptor if memory
    runs out."""
    copied = Descriptor()
    copied.number = os.dup(sock.fileno())
    made = socket.socket(sock.family, sock.type, sock.proto, fileno=copied.number)
    copied.detach()
    made.setblocking(False)
    return made


class BypassPrograms:
    """The bypass slots of one device.

    Args:
        main: the device, whose link is the first of the group.
        watchdog: bounds work on their arenas.

    ``refused`` is the reason why there are no slots, once known.
    """

    def __init__(self, main: Runtime, watchdog: WorkWatchdog) -> None:
        self._main = main
        self._watchdog = watchdog
        self._group: steering.Group | None = None
        self._free: list[int] = []
        self._next_qpns: dict[int, int] = {}
        """For each slot the QP number after the last one that a program had there."""
        self.slots: dict[int, BypassSlot] = {}
        self.loopback = ShmLoopback()
        self.budget: DeviceBudget | None = None
        """Limit of packets that the device and all slots may have in flight together, while there are slots."""
        self.faults: FaultPage | None = None
        """The page of the device's fault rules, while there are slots."""
        recorder = recorder_of(main.link)
        self.recording = Recording(None, main.link.counters, waits=False) if recorder is None else recorder.recording
        """Gets the packets of all programs while it is active; without ``--capture``, only while programs read them."""
        self.captures = DeviceCaptures(self.recording)
        """The rings by which programs pass their packets to the recorder."""
        self._watch: ProgramWatch | None = None
        """While tools watch: passes the packets of slots to the device's tap."""
        self._port_held = False
        self._repair_at_ns = 0
        self.refused = ""
        self.without_slot: dict[int, str] = {}
        """Reason by pid for each program that asked for a slot and has none."""
        self.forwarded = 0
        self.lost = 0
        self.counted: Counter[str] = Counter()
        """Counters of slots that were released."""
        self.punted: Counter[str] = Counter()
        self.not_believable = 0
        """Number of released slots whose programs had stored impossible counts."""

    def open(self, pid: int = 0) -> BypassSlot | None:
        """Make a slot for a program; return ``None`` if that is not possible, with the reason in ``refused``."""
        self.refused = self._find_refusal()
        if self.refused:
            return None
        link = _plain_link(self._main.link)
        assert link is not None
        try:
            if self._group is None:
                self._group = link.group
                self._main.nic.stray = partial(self._forward, 0)
            if not self._free:
                self._free.append(self._group.join())
            sock = _duplicate(self._group.socket_of(self._free[-1]))
        except (OSError, LinkError) as error:
            self.refused = f"the system refuses sockets that share a port: {error}"
            return None
        member = self._free.pop()
        try:
            return self._make(member, sock, self._share(), self._fault_page(), pid)
        except OSError as error:
            self._abandon_slot(member, sock, pid)
            self.refused = f"the system refuses memory to share, or its capture file: {error}"
            return None
        except ValueError as error:
            self._abandon_slot(member, sock, pid)
            self.refused = str(error)
            return None
        except BaseException:
            self._abandon_slot(member, sock, pid)
            raise

    def _abandon_slot(self, member: int, sock: socket.socket, pid: int) -> None:
        """Undo the setup of a slot that could not be completed."""
        sock.close()
        self.captures.release(pid)
        self._free.append(member)
        if self.budget is not None:
            self.budget.remove_slot(member)
        if not self.slots:
            self._unshare()

    def _share(self) -> DeviceBudget:
        """Return the page of the device's budget, which bounds the NIC process as well."""
        if self.budget is None:
            nic = self._main.nic
            budget = DeviceBudget(nic.config.flight_packets, (nic.config.address, nic.config.port))
            try:
                mine = budget.add_slot(0)
                with self._main.lock:
                    nic.inflight.share(mine, budget)
                    if nic.engine_device is not None:
                        nic.engine_device.set_budget(mine)
            except BaseException:
                nic.inflight.leave_budget()
                budget.close()
                raise
            self.budget = budget
        return self.budget

    def _fault_page(self) -> FaultPage:
        """Return the page of the device's fault rules.

        Raises:
            OSError: the kernel refuses memory to share.
            ValueError: programs cannot judge by these rules; the message says why.
        """
        if self.faults is None:
            link = self._main.link
            while isinstance(link, DeviceFaults | Tap):
                link = link.inner
            self.faults = FaultPage(link if isinstance(link, FaultyLink) else None)
            self.faults.set_port_down(self._port_held)
        return self.faults

    def hold_port(self, down: bool) -> None:
        """Have all programs drop packets while the port is down, and tell them of its state."""
        self._port_held = down
        if self.faults is not None:
            self.faults.set_port_down(down)
        for slot in self.slots.values():
            slot.set_link(not down, self._main.nic.globals.down_state)
        for slot in self.slots.values():
            slot.tell_link()

    def _unshare(self) -> None:
        """Drop the pages that programs share once there are no slots."""
        if self.faults is not None:
            self.faults.close()
            self.faults = None
        if self.budget is not None:
            nic = self._main.nic
            with self._main.lock:
                if nic.engine_device is not None:
                    nic.engine_device.set_budget(None)
                nic.inflight.leave_budget()
            self.budget.close()
            self.budget = None

    def repair(self, now: int) -> None:
        """Repair the budget's page once it is time: programs may have written anything there."""
        if self.budget is None or now < self._repair_at_ns:
            return
        self._repair_at_ns = now + REPAIR_NS
        inflight = {0: self._main.nic.inflight, **{at: slot.runtime.nic.inflight for at, slot in self.slots.items()}}
        self.budget.repair({at: each.entries() for at, each in inflight.items()})
        for each in inflight.values():
            each.show()
        for slot in self.slots.values():
            slot.tell_link()
        for slot in self.slots.values():  # the shorter the interval, the less a program can falsify
            slot.counters()
            slot.punts()

    def _make(self, member: int, sock: socket.socket, budget: DeviceBudget, faults: FaultPage, pid: int) -> BypassSlot:
        link = self._main.link
        for _ in range(_DRAIN):  # packets for the program that had the slot before
            try:
                sock.recv(1)  # for 0 bytes Python makes no system call
            except OSError:
                break
        plain = _plain_link(link)
        own = UdpLink(format_address(link.address), link.port, sock=sock, sources=plain, hop_limits=False)
        first, captures = self._first_qpn(member), self.captures.of(pid)
        slot = BypassSlot(self._main, own, member, first, self._watchdog, self.loopback, budget, faults, captures)
        slot.pid = pid
        slot.runtime.nic.stray = partial(self._forward, member)
        slot.runtime.nic.share_idents(self._main.nic)
        slot.runtime.nic.counting = self._main.nic.counting
        if self._port_held:
            slot.set_link(False, self._main.nic.globals.down_state)
        if self._main.verbs_faults is not None:
            slot.runtime.verbs_faults, slot.runtime.nic.judge = self._main.verbs_faults, self._main.nic.judge
        self.slots[member] = slot
        return slot

    def _first_qpn(self, member: int) -> int:
        """Return the first number of a slot's next program, whose numbers continue after those of the last.

        Peers send to the queue pairs of a program that died until their retries end. So its numbers are used again only
        once all of the slot's have been.
        """
        least = steering.first_qpn(member)
        first = self._next_qpns.get(member, least)
        return first if first + (1 << LOG_QPS) <= least + (1 << steering.LOG_RANGE) else least

    def _find_refusal(self) -> str:
        main, link = self._main, _plain_link(self._main.link)
        if link is None and not isinstance(innermost(main.link), UdpLink):
            return "its packets cross a simulated fabric: the NIC process carries them"
        if link is None:
            return "its fault script counts packets for events, or its packets are watched: the NIC process takes them"
        config = main.nic.config
        if config.recovery != GO_BACK_N:
            return f"its recovery, {config.recovery}, is the reference's alone"
        tracer = main.nic.tracer
        if (tracer.before if isinstance(tracer, Tap) else tracer).enabled:
            return "its packets are watched: the NIC process takes them"
        if self._group is not None and not self._free and len(self._group) >= steering.MAX_MEMBERS:
            return f"{steering.MAX_MEMBERS} programs have slots of it already: there are no queue pair numbers for more"
        return refusal(link.address, link.scope_id) if self._group is None else ""

    def _forward(self, here: int, dqpn: int, burst: RxBurst, view: memoryview, index: int) -> bool:
        """Forward a packet that arrived at the wrong slot, ``here``; return whether it belonged to another slot.

        All packets of senders that count their IP IDs arrive here, through the sockets for IP IDs.
        """
        member = steering.member_of(dqpn)
        if member == here:
            return False
        slot = self.slots.get(member)
        now = self._main.clock()
        by_ident = burst.known[0] != 0
        ident, frag = None if burst.ident is None else burst.ident + index, burst.frag
        if by_ident and ident is None and (word := solve_word(view, burst.flow)) is not None:
            ident, frag = word & 0xFFFF, DONT_FRAGMENT if word & DF else 0
        how = burst.tclass, burst.hop_limit, burst.flow_label
        one = RxBurst(burst.flow, memoryview(bytes(view)), len(view), len(view), ident, frag, *how)
        if member == 0:
            if dqpn not in self._main.nic.qps:
                return False
            self._main.nic.receive(one, now)
        elif slot is None or dqpn not in slot.runtime.nic.qps:
            return False
        elif not slot.deliver(one, now):
            self.lost += 1
            return True
        if by_ident:
            self._main.nic.tally["rx_packets"] -= 1  # the other slot counts it
            return True
        self.forwarded += 1
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.steer()
        return True

    def join(self, slot: BypassSlot, qpn: int) -> tuple[BypassSlot, RingPair] | None:
        """Connect the ring pair of a queue pair's two slots, and return the peer's slot and the pair.

        Returns ``None`` if the peer is not a slot that takes part in loopback.

        Raises:
            OSError: there is no such queue pair, or the kernel refuses memory to share.
        """
        qp = slot.runtime.nic.qps.get(qpn)
        if qp is None:
            raise OSError(errno.EINVAL, f"SHM_RING: QP {qpn:#x} is none of this program's")
        flow, config = qp.flow, self._main.nic.config
        if slot.end is None or slot.served or flow is None or qp.ctx.servtype != ST_RC:
            return None
        other = self.slots.get(steering.member_of(qp.ctx.remote_qpn))
        if flow.dst != config.address or flow.dport != config.port or other is None or other.end is None:
            return None
        pair = self.loopback.connect(slot.member, other.member)
        for each in (slot, other):
            each.add_pair(pair)
        return other, pair

    def view(self) -> dict[str, Any]:
        """Return ``{"refused", "slots": [slot], "left_out", "sockets", "handed_on", "budget"}``.

        A slot is ``{"slot", "pid", "served", "first_qpn", "counters", "punts", "believable", "shm"}``, ``shm`` the
        slots that it shares rings with. ``believable`` is false once the program has stored an impossible count.
        ``refused`` says why there are no slots; ``left_out`` gives the reason, by pid, for each program that asked for
        a slot and has none; ``sockets`` counts the sockets kept for the device's life; ``budget`` gives the limit and
        the packets in flight, or ``None`` if there are no slots.
        """
        rows = [
            {
                "slot": member,
                "pid": slot.pid,
                "served": slot.served,
                "first_qpn": slot.runtime.nic.config.first_qpn,
                "counters": slot.counters(),
                "punts": slot.punts(),
                "believable": slot.believable,
                "shm": [sum(pair) - member for pair in self.loopback.members() if member in pair],
            }
            for member, slot in sorted(self.slots.items())
        ]
        kept = 0 if self._group is None else len(self._group)
        return {
            "refused": self._find_refusal(),
            "slots": rows,
            "left_out": {str(pid): why for pid, why in self.without_slot.items()},
            "sockets": kept,
            "handed_on": self.forwarded,
            "budget": None if self.budget is None else self.budget.view(),
        }

    def watch(self, tap: Tap) -> None:
        """Pass the packets of slots to the device's tap from now on, as long as it has sessions; pass those so far."""

        def leave(watch: ProgramWatch) -> None:
            self.recording.followers.remove(watch)
            self._watch = None
            self.captures.update()

        self.captures.drain()
        if self._watch is None and self.slots:
            address = self._main.link.address
            self._watch = ProgramWatch(tap, address, self._qps, leave)
            self.recording.followers.append(self._watch)
            self.captures.update()

    def _qps(self) -> Iterator[tuple[int, DeviceQp]]:
        """Yield the queue pairs of all slots with their numbers."""
        for slot in self.slots.values():
            yield from slot.runtime.nic.qps.items()

    def inspect(self, what: str) -> dict[str, Any] | None:
        """Return :func:`rnic.device.inspect.look` for the device and its slots, holding the arena of each.

        A slot numbers its own queue blocks, so these say ``slot``, too.

        Raises:
            OSError: EBUSY: a program was stopped while it held its arena.
        """
        seen = look(self._main.nic, what)
        if what == "counters" and seen is not None:
            return totals(seen, self)
        for slot in self.slots.values():
            if seen is None or what in ("top", "regs", "cm"):
                with slot.held():
                    mine = look(slot.runtime.nic, what)
                if seen is None:
                    seen = mine
                elif mine is not None and what == "cm":
                    seen["groups"] += [group for group in mine["groups"] if group not in seen["groups"]]
                elif mine is not None and what == "regs":
                    seen["blocks"] += [block | {"slot": slot.member} for block in mine["blocks"]]
                elif mine is not None:
                    objects = {kind: count + mine["objects"][kind] for kind, count in seen["objects"].items()}
                    seen |= {"objects": objects, "qps": seen["qps"] + mine["qps"], "cqs": seen["cqs"] + mine["cqs"]}
        if what == "top" and seen is not None:
            seen["counters"] = totals(seen["counters"], self)
        return seen

    def release_slot(self, slot: BypassSlot) -> None:
        """Close the slot of a program that has ended; its socket is kept for the next."""
        if self.slots.get(slot.member) is slot:
            self.loopback.remove_slot(slot.member)
            slot.runtime.nic.inflight.leave_budget()
            if self.budget is not None:
                self.budget.remove_slot(slot.member)
            del self.slots[slot.member]
            if not self.slots:
                self._unshare()
            self._next_qpns[slot.member] = slot.runtime.nic.resources.pools[cmd.RES_QP].fresh
            self._free.append(slot.member)
            self.counted = _sum(self.counted, slot.counters())
            self.punted = _sum(self.punted, slot.punts())
            self.not_believable += not slot.believable
        try:
            slot.close()
        finally:
            self.captures.release(slot.pid)

    def close(self) -> None:
        """Close everything together with the device."""
        for slot in list(self.slots.values()):
            self.loopback.remove_slot(slot.member)
            slot.runtime.nic.inflight.leave_budget()
            slot.close()
            self.captures.release(slot.pid)
        self.slots.clear()
        self._unshare()
        self._group = None


def _plain_link(link: Link) -> UdpLink | None:
    """Return the socket link below fault rules that programs can judge by; ``None`` if there is other middleware."""
    while isinstance(link, Tap) or (isinstance(link, DeviceFaults) and not link.touches_packets):
        link = link.inner
    if isinstance(link, FaultyLink) and not link.has_events_by_packets:
        link = link.inner
    if isinstance(link, Recorder):
        link = link.inner
    return link if isinstance(link, UdpLink) else None


def recorder_of(link: Link) -> Recorder | None:
    """Return the recorder of a device's packets, below faults, or ``None``."""
    while isinstance(link, FaultyLink | DeviceFaults | Tap):
        link = link.inner
    return link if isinstance(link, Recorder) else None


def refusal(address: bytes, scope_id: int = 0) -> str:
    """Return why programs cannot run the engine themselves on a local address, in words; empty if they can."""
    if use.COMPILED is None or use.ENGINE is None or not order.COMPILED:
        return "rnic was installed without a C compiler, or the engine is switched off"
    return steering.refusal(address, scope_id)


def _sum(first: Counter[str], second: dict[str, int]) -> Counter[str]:
    return Counter({name: add(first[name], second.get(name, 0)) for name in first.keys() | second.keys()})


def totals(own: dict[str, int], group: BypassPrograms) -> dict[str, int]:
    """Add up a device's counters and those of its slots: sums, packets by slot, punts by reason, packets forwarded."""
    seen = dict(own)
    by_slot = {f"slot_0_{name}": own.get(name, 0) for name in ("rx_packets", "tx_packets")}
    counted, punted = Counter(group.counted), Counter(group.punted)
    before = {f"slots_before_{name}": counted[name] for name in ("rx_packets", "tx_packets")}
    for member, slot in sorted(group.slots.items()):
        mine = slot.counters()
        counted, punted = _sum(counted, mine), _sum(punted, slot.punts())
        by_slot |= {f"slot_{member}_{name}": mine.get(name, 0) for name in ("rx_packets", "tx_packets")}
    for name, count in counted.items():
        seen[name] = add(seen.get(name, 0), count)
    seen |= {f"punt_{reason}": count for reason, count in sorted(punted.items()) if count}
    if group.slots or any(before.values()):
        seen |= by_slot | before
    doubtful = group.not_believable + sum(not slot.believable for slot in group.slots.values())
    if doubtful:
        seen["slots_not_believable"] = doubtful
    if group.forwarded or group.lost:
        seen |= {"handed_on": group.forwarded, "drop_handed_on": group.lost}
    return seen


__all__ = ["BypassPrograms", "refusal", "totals"]
