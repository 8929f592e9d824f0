"""Inject fault events into a device, permanent or timed, and apply those that concern packets as middleware.

:mod:`rnic.link.fault_events` defines the events, :mod:`rnic.device.faults` their effects on a device. The driver of a
:class:`~rnic.runtime.rounds.Rounds` does not know of them: they are a link before its link.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from errno import EINVAL
from functools import partial
from typing import TYPE_CHECKING, Any

from rnic.device import faults as device
from rnic.link.base import Link
from rnic.link.fault_events import ALL, EVENTS, AsyncKind, FaultEvent, TimedEvent, make_event
from rnic.link.faults import FaultyLink
from rnic.link.middleware import Middleware
from rnic.link.packets import kept
from rnic.spec.errors import VerbsError
from rnic.spec.opcodes import RC
from rnic.spec.ports import PORT_ACTIVE, PORT_DOWN
from rnic.wire.bursts import RxBurst, TxBurst

if TYPE_CHECKING:
    from rnic.device.nic import Nic
    from rnic.runtime.rounds import Rounds

MAX_PENDING = 1 << 16
"""Most scheduled events, and most delayed interrupts."""
MAX_LASTING = 1 << 12
"""Most events that last at the same time."""
MAX_HELD = 1 << 12
"""Most bursts that slow memory delays in each direction; further ones are lost."""
_STEPS_PER_TURN = 64
"""Most due events that one turn handles, so that other work is not delayed."""
Undo = Callable[[], object]


class _Layers:
    """A stack of values of one setting: of those that still last, the newest is in force.

    ``store`` puts a value in force and returns the previous one.
    """

    def __init__(self, store: Callable[[Any], Any]) -> None:
        self._store = store
        self._lowest: Any = None
        self._held: dict[object, Any] = {}

    def put(self, value: object) -> Undo:
        """Push a value. Return a function that removes it, wherever it lies in the stack by then."""
        before = self._store(value)
        if not self._held:
            self._lowest = before
        key = object()
        self._held[key] = value
        return partial(self._take, key)

    def _take(self, key: object) -> None:
        top = next(reversed(self._held))
        del self._held[key]
        if key is top:
            self._store(next(reversed(self._held.values()), self._lowest))


class DeviceFaults(Middleware):
    """Faults of one running device. Get it by :meth:`rnic.runtime.rounds.Rounds.faults`.

    Everything runs under the runtime's lock. Packets that it drops or delays are counted as ``fault_port_down``,
    ``fault_path_loss`` and ``fault_slow_dma`` (those without room to wait as ``fault_slow_dma_full``),
    interrupts as ``fault_interrupt_lost`` and ``fault_interrupt_late``, events as ``fault_event_NAME``.
    """

    def __init__(self, runtime: Rounds) -> None:
        super().__init__(runtime.link)
        self._runtime = runtime
        self._nic = runtime.nic
        self._clock = runtime.clock
        self._began_ns = runtime.clock()
        self.kill: Undo | None = None
        """Function that kills the NIC process; ``None`` if the device is in its program's process."""
        self._down = 0
        """Number of events that hold the port down; 0 if it is up."""
        self.port_held: Callable[[bool], None] = lambda down: None
        """Called with true when events begin to hold the port down, with false when they release it."""
        self.hand_on: Callable[[FaultEvent], None] | None = None
        """Handles the events of scripts, if they concern more than this device."""
        self._lost_peers: dict[bytes, int] = {}
        self._dma_ns = 0
        self._slow_dmas = _Layers(self._set_dma_ns)
        self._tables: dict[tuple[str, int], _Layers] = {}
        """Entries of the GID and P_Key tables that an event changed."""
        self._leaving: deque[tuple[int, TxBurst]] = deque()
        self._arriving: deque[tuple[int, RxBurst]] = deque()
        self._interrupts_lost = 0
        self._interrupt_ns = 0
        self._late_interrupts = _Layers(self._set_interrupt_ns)
        self._late: list[tuple[int, int, int]] = []
        """Delayed interrupts: time, serial number, vector."""
        self._failing: dict[int, int] = {}
        """Status that the next send of a queue pair completes with."""
        self._schedule: list[tuple[int, int, Undo]] = []
        self._serial = 0
        self._lasting: dict[int, tuple[str, Undo]] = {}
        """Active faults, by serial number: the name, and the function that heals it."""
        for link in _chain(runtime.link):
            if isinstance(link, FaultyLink):
                link.struck = self._soon
                for timed in link.timed:
                    self._at(self._began_ns + timed.at_ns, partial(self._tick, timed, 1))

    # -------------------------------------------------------------------------------------- commands

    def do(self, name: str, *values: object, **by_name: object) -> None:
        """Inject an event now: ``do("port-down", "2s")``, or with names, ``do("flap", times=3, down="5ms")``.

        ``for`` is a Python keyword: write ``for_``.

        Raises:
            ValueError: no such event, or a value missing or out of range (:func:`rnic.link.fault_events.make_event`).
            VerbsError: EINVAL for an object that does not exist, EBUSY for a region with windows.
        """
        self.happen(make_event(name, *values, **by_name))

    def happen(self, event: FaultEvent) -> None:
        """Inject an event now; raises VerbsError as :meth:`do`."""
        runtime = self._runtime
        with runtime.lock:
            self._happen(event)
            runtime.process_pending()

    def state(self) -> dict[str, Any]:
        """Return the active and scheduled faults, for display and JSON."""
        now = self._clock()
        return {
            "device": self._nic.config.name,
            "port": "active" if self._nic.globals.port_state == PORT_ACTIVE else "down",
            "dead": self._nic.globals.dead,
            "lasting": [name for name, _ in self._lasting.values()],
            "pending": [round((due - now) / 1e9, 6) for due, _, _ in sorted(self._schedule, key=lambda each: each[:2])],
            "failing": {str(qpn): status for qpn, status in self._failing.items()},
        }

    def wake_at(self, due_ns: int) -> None:
        """Set a deadline for the device's loop: something that waits elsewhere is due then."""
        with self._runtime.lock:
            self._at(due_ns, _nothing)

    def soon(self, event: FaultEvent) -> None:
        """Inject an event with the next round: its verb was called (:mod:`rnic.link.verbs_faults`)."""
        self._soon(event)

    def _soon(self, event: FaultEvent) -> None:
        """Schedule the event of a matched rule for the next round, since this one may be in the middle of a turn."""
        if len(self._schedule) >= MAX_PENDING:
            self.counters.bump("fault_event_missed")
            return
        self._at(self._clock(), partial(self._try, event))

    def _tick(self, timed: TimedEvent, count: int) -> None:
        if timed.every_ns is not None and (timed.times is None or count < timed.times):
            due = self._began_ns + timed.at_ns + count * timed.every_ns
            self._at(due, partial(self._tick, timed, count + 1))
        self._try(timed.event)

    def _try(self, event: FaultEvent) -> None:
        """Try an event of a script: its object may be gone, or not exist yet."""
        if self.hand_on is not None:
            self.hand_on(event)
            return
        try:
            self._happen(event)
        except VerbsError:
            self.counters.bump("fault_event_missed")

    def _happen(self, event: FaultEvent) -> None:
        told = event.told
        name = event.name
        if EVENTS[name].takes("for") and len(self._lasting) >= MAX_LASTING:
            raise VerbsError(EINVAL, f"{name}: {MAX_LASTING} events last already: heal first")
        if event.for_ns is not None or name == "flap":
            self._check_room()
        made = _EVENTS[name](self, told)
        self.counters.bump(f"fault_event_{name.replace('-', '_')}")
        tracer = self._nic.tracer
        if tracer.enabled:
            tracer.event(self._clock(), "fault", 0, action=name)
        if made is not None:
            self._last(name, made, event.for_ns)

    def _last(self, name: str, undo: Undo, for_ns: int | None) -> None:
        """Keep a fault active until ``undo`` ends it: after ``for_ns``, or on heal."""
        self._serial += 1
        number = self._serial
        self._lasting[number] = (name, undo)
        if for_ns is not None:
            self._at(self._clock() + for_ns, partial(self._end, number))

    def _end(self, number: int) -> None:
        lasting = self._lasting.pop(number, None)
        if lasting is not None:
            lasting[1]()

    def _end_all(self, *names: str) -> None:
        for number in [number for number, (name, _) in self._lasting.items() if name in names]:
            self._end(number)

    def _at(self, due_ns: int, action: Undo) -> None:
        self._check_room()
        self._serial += 1
        heapq.heappush(self._schedule, (due_ns, self._serial, action))

    def _check_room(self) -> None:
        if len(self._schedule) >= MAX_PENDING:
            raise VerbsError(EINVAL, f"{MAX_PENDING} fault events wait already: heal first")

    # ---------------------------------------------------------------------------------------- events

    def _port_down(self, told: dict[str, Any]) -> Undo:
        return self._hold_port()

    def _port_state(self, told: dict[str, Any]) -> Undo:
        return self._hold_port(told["state"])

    def _hold_port(self, state: int = PORT_DOWN) -> Undo:
        self._down += 1
        self._nic.globals.down_state = state
        self._nic.set_link(False)
        if self._down == 1:
            self.port_held(True)

        def undo() -> None:
            self._down -= 1
            if not self._down:
                self._nic.set_link(self.inner.up)
                self.port_held(False)
                self._nic.globals.down_state = PORT_DOWN

        return undo

    def _port_up(self, told: dict[str, Any]) -> None:
        self._end_all("port-down", "port-state", "flap")

    def _flap(self, told: dict[str, Any]) -> None:
        times, down, up = told["times"], told["down"], told["up"]
        now = self._clock()

        def go_down(left: int, due: int) -> None:
            self._last("flap", self._hold_port(), None)
            self._at(due + down, partial(come_up, self._serial, left, due + down))

        def come_up(number: int, left: int, due: int) -> None:
            self._end(number)
            if left > 1:
                self._at(due + up, partial(go_down, left - 1, due + up))

        go_down(times, now)

    def _gid(self, told: dict[str, Any]) -> Undo:
        return self._put("gid", told, device.set_gid)

    def _pkey(self, told: dict[str, Any]) -> Undo:
        return self._put("pkey", told, device.set_pkey)

    def _put(self, table: str, told: dict[str, Any], store: Callable[[Nic, int, Any], Any]) -> Undo:
        index = told["index"]
        layers = self._tables.setdefault((table, index), _Layers(partial(store, self._nic, index)))
        return layers.put(told["value"])

    def _each(self, told: object, there: Iterable[int], act: Callable[[int], None]) -> None:
        for number in list(there) if told == ALL else [told]:
            act(number)  # type: ignore[arg-type]  # ALL or a number, as the event's table says

    def _qp_error(self, told: dict[str, Any]) -> None:
        self._each(told["qp"], self._nic.qps, partial(device.fail_qp, self._nic))

    def _srq_error(self, told: dict[str, Any]) -> None:
        self._each(told["srq"], self._nic.resources.srqs, partial(device.fail_srq, self._nic))

    def _cq_overflow(self, told: dict[str, Any]) -> None:
        self._each(told["cq"], self._nic.resources.cqs, partial(device.overflow_cq, self._nic))

    def _completion_error(self, told: dict[str, Any]) -> None:
        def fail(qpn: int) -> None:
            device.check_send(self._nic, qpn)
            self._failing[qpn] = told["status"]

        self._each(told["qp"], [qpn for qpn, qp in self._nic.qps.items() if qp.opcodes == RC], fail)

    def _async_event(self, told: dict[str, Any]) -> None:
        kind: AsyncKind = told["event"]
        number = None if told["number"] == ALL else told["number"]
        device.tell(self._nic, kind.event_type, kind.element, kind.subtype, number)

    def _path_loss(self, told: dict[str, Any]) -> Undo:
        peer = told["peer"]
        lost = self._lost_peers
        lost[peer] = lost.get(peer, 0) + 1

        def undo() -> None:
            lost[peer] -= 1
            if not lost[peer]:
                del lost[peer]

        return undo

    def _slow_dma(self, told: dict[str, Any]) -> Undo:
        return self._slow_dmas.put(told["delay"])

    def _set_dma_ns(self, delay_ns: int) -> int:
        before, self._dma_ns = self._dma_ns, delay_ns
        return before

    def _region_gone(self, told: dict[str, Any]) -> Undo:
        nic = self._nic
        lost: list[device.LostRegion] = []

        def undo() -> None:
            for region in lost:
                device.restore_region(nic, region)

        try:
            self._each(told["key"], device.regions(nic), lambda key: lost.append(device.lose_region(nic, key)))
        except VerbsError:  # a region has windows: remove none
            undo()
            raise
        return undo

    def _interrupt_lost(self, told: dict[str, Any]) -> Undo | None:
        self._interrupts_lost += told["times"]
        if self._interrupts_lost > told["times"]:
            return None  # extend the active one

        def undo() -> None:
            self._interrupts_lost = 0

        return undo

    def _interrupt_late(self, told: dict[str, Any]) -> Undo:
        return self._late_interrupts.put(told["delay"])

    def _set_interrupt_ns(self, delay_ns: int) -> int:
        before, self._interrupt_ns = self._interrupt_ns, delay_ns
        return before

    def _fatal(self, told: dict[str, Any]) -> Undo:
        device.fail_device(self._nic)

        def undo() -> None:
            self._leaving.clear()
            self._arriving.clear()
            self._failing.clear()
            device.revive_device(self._nic)

        return undo

    def _kill(self, told: dict[str, Any]) -> None:
        if self.kill is None:
            raise VerbsError(
                EINVAL, f"device {self._nic.config.name} is in its program's process: there is none to kill"
            )
        self.kill()

    def _heal(self, told: dict[str, Any]) -> None:
        """Undo active faults, the newest first, and cancel scheduled ones, scripts included.

        Delayed interrupts are delivered now, since nothing else would wake their waiters.
        """
        self._schedule.clear()
        self._failing.clear()
        while self._lasting:
            self._end(max(self._lasting))
        late, self._late = sorted(self._late), []
        for _, _, vector in late:
            self._runtime.interrupt(vector)

    # -------------------------------------------------------------------------------------- as a link

    @property
    def touches_packets(self) -> bool:
        """True if packets of some peers are lost, or all are late: faults that only the NIC process can inject."""
        return bool(self._lost_peers or self._dma_ns or self._leaving or self._arriving)

    @property
    def acts_on_packets(self) -> bool:
        """True while it loses or delays packets or interrupts, has a completion to fail, or the device is dead."""
        events = self._failing or self._interrupts_lost or self._interrupt_ns or self._schedule or self._late
        return self.touches_packets or bool(events) or self._nic.globals.dead

    @property
    def up(self) -> bool:
        """True if the interface is up and the port is not held down."""
        return not self._down and self.inner.up

    def lets_pass(self, vector: int) -> bool:
        """Return whether an interrupt reaches the driver now; a delayed one is delivered later."""
        if self._interrupts_lost:
            self._interrupts_lost -= 1
            self.counters.bump("fault_interrupt_lost")
            if not self._interrupts_lost:
                self._end_all("interrupt-lost")
            return False
        if self._interrupt_ns and len(self._late) < MAX_PENDING:
            self.counters.bump("fault_interrupt_late")
            self._serial += 1
            heapq.heappush(self._late, (self._clock() + self._interrupt_ns, self._serial, vector))
            return False
        return True

    def send(self, bursts: Sequence[TxBurst]) -> None:
        """Send the bursts that the port, the paths and slow memory let through."""
        if self._down or self._nic.globals.dead:
            self.counters.bump("fault_port_down", sum([burst.count for burst in bursts]))
            return
        if self._lost_peers:
            lost = self._lost_peers
            gone = sum([burst.count for burst in bursts if burst.flow.dst in lost])
            if gone:
                self.counters.bump("fault_path_loss", gone)
                bursts = [burst for burst in bursts if burst.flow.dst not in lost]
        if self._dma_ns or self._leaving:
            due = self._clock() + self._dma_ns
            room = max(0, MAX_HELD - len(self._leaving))
            self._leaving += [(due, burst) for burst in bursts[:room]]
            self.counters.bump("fault_slow_dma", sum([burst.count for burst in bursts[:room]]))
            if bursts[room:]:
                self.counters.bump("fault_slow_dma_full", sum([burst.count for burst in bursts[room:]]))
            return
        if bursts:
            self.inner.send(bursts)

    def receive(self, limit: int) -> list[RxBurst]:
        """Handle due events, then return what has arrived."""
        now = self._clock()
        for _ in range(_STEPS_PER_TURN):
            if not self._schedule or self._schedule[0][0] > now:
                break
            action = heapq.heappop(self._schedule)[2]
            with self._runtime.guard.around("fault"):
                action()
        while self._late and self._late[0][0] <= now:
            self._runtime.interrupt(heapq.heappop(self._late)[2])
        for qpn, status in list(self._failing.items()):
            if qpn not in self._nic.qps or device.fail_send(self._nic, qpn, status):
                del self._failing[qpn]
        self._release(now)
        bursts = self.inner.receive(limit)
        if self._down or self._nic.globals.dead:
            self.counters.bump("fault_port_down", _packets(bursts))
            return []
        if self._lost_peers:
            kept_back = [burst for burst in bursts if burst.flow.src not in self._lost_peers]
            self.counters.bump("fault_path_loss", _packets(bursts) - _packets(kept_back))
            bursts = kept_back
        if self._dma_ns or self._arriving:
            room = max(0, MAX_HELD - len(self._arriving))
            self._arriving += [(now + self._dma_ns, kept(burst)) for burst in bursts[:room]]
            if bursts[room:]:
                self.counters.bump("fault_slow_dma_full", _packets(bursts[room:]))
            bursts = []
            while self._arriving and self._arriving[0][0] <= now and len(bursts) < limit:
                bursts.append(self._arriving.popleft()[1])
        return bursts

    def _release(self, now: int) -> None:
        """Send bursts whose memory delay is over."""
        if self._leaving and self._leaving[0][0] <= now:
            due = []
            while self._leaving and self._leaving[0][0] <= now:
                due.append(self._leaving.popleft()[1])
            if not self._down:
                self.inner.send(due)

    def next_deadline_ns(self) -> int | None:
        """Return the next deadline, here or in the inner link."""
        mine = [queue[0][0] for queue in (self._schedule, self._late, self._leaving, self._arriving) if queue]
        inner = self.inner.next_deadline_ns()
        return min(mine if inner is None else [inner, *mine], default=None)


def _packets(bursts: Sequence[RxBurst]) -> int:
    return sum([burst.count for burst in bursts])


def _nothing() -> None:
    """Do nothing: only the deadline was needed."""


def _chain(link: Link) -> Iterable[Link]:
    """Yield a link and all inner links."""
    while True:
        yield link
        if not isinstance(link, Middleware):
            return
        link = link.inner


def wanted_by(link: Link) -> bool:
    """Return whether a fault script in this stack of links has events for the device."""
    return any(isinstance(each, FaultyLink) and each.has_events for each in _chain(link))


_EVENTS: dict[str, Callable[[DeviceFaults, dict[str, Any]], Undo | None]] = {
    "port-down": DeviceFaults._port_down,
    "port-state": DeviceFaults._port_state,
    "port-up": DeviceFaults._port_up,
    "flap": DeviceFaults._flap,
    "gid": DeviceFaults._gid,
    "pkey": DeviceFaults._pkey,
    "qp-error": DeviceFaults._qp_error,
    "srq-error": DeviceFaults._srq_error,
    "cq-overflow": DeviceFaults._cq_overflow,
    "completion-error": DeviceFaults._completion_error,
    "path-loss": DeviceFaults._path_loss,
    "slow-dma": DeviceFaults._slow_dma,
    "region-gone": DeviceFaults._region_gone,
    "interrupt-lost": DeviceFaults._interrupt_lost,
    "interrupt-late": DeviceFaults._interrupt_late,
    "async-event": DeviceFaults._async_event,
    "fatal": DeviceFaults._fatal,
    "kill": DeviceFaults._kill,
    "heal": DeviceFaults._heal,
}
