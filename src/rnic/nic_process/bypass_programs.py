"""The programs of a device that run the engine themselves: which get a slot, and what all of them did."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections import Counter
from functools import partial
from typing import Any

from rnic.device.inspect import look
from rnic.engine import use
from rnic.link import steering
from rnic.link.base import LinkError, format_address
from rnic.link.udp import BUFFER_BYTES as SOCKET_BYTES
from rnic.link.udp import UdpLink
from rnic.mem import order
from rnic.nic_process.bounded_work import Patience
from rnic.nic_process.budget import DeviceBudget
from rnic.nic_process.bypass_slot import LOG_QPS, Slot
from rnic.nic_process.shm_loopback import Hairpins, Pair
from rnic.runtime.loop import Runtime
from rnic.spec.limits import GO_BACK_N
from rnic.spec.states import ST_RC
from rnic.wire.bursts import RxBurst

RIGHT_NS = 250_000_000
"""How often the budget's page is put right while anything happens."""
_DRAIN = 4_096


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
                nic.inflight.share(mine, budget)
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
                nic.inflight.leave_budget()
            self.budget.close()
            self.budget = None

    def put_right(self, now: int) -> None:
        """Now and then, put right what stands in the budget's page: programs may have written anything there."""
        if self.budget is None or now < self._right_at_ns:
            return
        self._right_at_ns = now + RIGHT_NS
        inflight = {0: self._main.nic.inflight, **{at: slot.runtime.nic.inflight for at, slot in self.slots.items()}}
        self.budget.put_right({at: each.entries() for at, each in inflight.items()})
        for each in inflight.values():
            each.show()

    def _make(self, member: int, sock: socket.socket, budget: DeviceBudget) -> Slot:
        link = self._main.link
        assert isinstance(link, UdpLink)
        for _ in range(_DRAIN):  # what still comes for whoever had the slot before
            try:
                sock.recv(1)  # for none Python asks nobody
            except OSError:
                break
        use_ = self._uses[member] = self._uses.get(member, -1) + 1
        ranges = 1 << steering.LOG_RANGE - LOG_QPS
        first = steering.first_qpn(member) + (use_ % ranges << LOG_QPS)
        own = UdpLink(format_address(link.address), link.port, sock=sock, hop_limits=False)
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
            raise OSError(errno.EINVAL, f"SHM_RING: QP {qpn:#x} is none of this program's")
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

    def give_back(self, slot: Slot) -> None:
        """A program has gone: its slot's socket is kept for the next."""
        if self.slots.get(slot.member) is slot:
            self.hairpins.end(slot.member)
            slot.runtime.nic.inflight.leave_budget()
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
            slot.runtime.nic.inflight.leave_budget()
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
