"""Device events on command: what lasts, what heals, what comes by the clock, and what stands between NIC and link.

The events are :mod:`rnic.link.fault_events`'s, what they do to a device :mod:`rnic.device.faults`'s. Whoever drives a
:class:`~rnic.runtime.loop.Runtime` needs to know nothing of them: they are a link in front of its link.
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
from rnic.link.fault_events import ALL, EVENTS, FaultEvent, TimedEvent, make_event
from rnic.link.faults import FaultyLink
from rnic.link.middleware import Middleware
from rnic.link.packets import kept
from rnic.spec.errors import VerbsError
from rnic.spec.opcodes import RC
from rnic.spec.ports import PORT_ACTIVE
from rnic.wire.bursts import RxBurst, TxBurst

if TYPE_CHECKING:
    from rnic.device.nic import Nic
    from rnic.runtime.loop import Runtime

MAX_PENDING = 1 << 16
"""Events that may wait for their time, and interrupts."""
MAX_LASTING = 1 << 12
"""Events that may last at a time."""
MAX_HELD = 1 << 12
"""Bursts that slow memory may keep back in each direction; what comes beyond is lost."""
_STEPS_PER_TURN = 64
"""Events that one turn lets happen, however many are due: others want their turn too."""
Undo = Callable[[], object]


class _Layers:
    """Values of one thing, one on top of another: of those that still last, the newest is in force.

    ``store`` puts a value in force and returns the one before.
    """

    def __init__(self, store: Callable[[Any], Any]) -> None:
        self._store = store
        self._lowest: Any = None
        self._held: dict[object, Any] = {}

    def put(self, value: object) -> Undo:
        """Put a value on top; what is returned takes it away, wherever it lies by then."""
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
    """What happens to one running device. Get it by :meth:`rnic.runtime.loop.Runtime.faults`.

    Everything runs under the runtime's lock. Packets that it takes away are counted as ``fault_port_down``,
    ``fault_path_loss`` and ``fault_slow_dma`` (those that find no room to wait in as ``fault_slow_dma_full``),
    interrupts as ``fault_interrupt_lost`` and ``fault_interrupt_late``, events as ``fault_event_NAME``.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.link)
        self._runtime = runtime
        self._nic = runtime.nic
        self._clock = runtime.clock
        self._began_ns = runtime.clock()
        self.kill: Undo | None = None
        """Ends the NIC process at once; ``None`` where the device is in its program's own process."""
        self._down = 0
        """What holds the port down: it is up at 0."""
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
        """Interrupts that come late: when, a serial number, the vector."""
        self._failing: dict[int, int] = {}
        """Status that the next send of a queue pair completes with."""
        self._schedule: list[tuple[int, int, Undo]] = []
        self._serial = 0
        self._lasting: dict[int, tuple[str, Undo]] = {}
        """What holds now, by serial number: its name, and what heals it."""
        for link in _chain(runtime.link):
            if isinstance(link, FaultyLink):
                link.struck = self._soon
                for timed in link.timed:
                    self._at(self._began_ns + timed.at_ns, partial(self._tick, timed, 1))

    # -------------------------------------------------------------------------------------- commands

    def do(self, name: str, *values: object, **by_name: object) -> None:
        """Let an event happen now: ``do("port-down", "2s")``, or by name, ``do("flap", times=3, down="5ms")``.

        ``for`` is a keyword of Python: by name it is ``for_``.

        Raises:
            ValueError: no such event, or a value missing or out of range (:func:`rnic.link.fault_events.make_event`).
            VerbsError: EINVAL where what it names is not there, EBUSY for a region with windows.
        """
        self.happen(make_event(name, *values, **by_name))

    def happen(self, event: FaultEvent) -> None:
        """Let an event happen now; raises VerbsError as :meth:`do`."""
        runtime = self._runtime
        with runtime.lock:
            self._happen(event)
            runtime.process_pending()

    def state(self) -> dict[str, Any]:
        """What holds now and what is to come, for people and JSON."""
        now = self._clock()
        return {
            "device": self._nic.config.name,
            "port": "active" if self._nic.globals.port_state == PORT_ACTIVE else "down",
            "dead": self._nic.globals.dead,
            "lasting": [name for name, _ in self._lasting.values()],
            "pending": [round((due - now) / 1e9, 6) for due, _, _ in sorted(self._schedule, key=lambda each: each[:2])],
            "failing": {str(qpn): status for qpn, status in self._failing.items()},
        }

    def _soon(self, event: FaultEvent) -> None:
        """A rule of the fault script struck, perhaps in the middle of a turn: the event comes with the next round."""
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
        """An event of a script: what it names may be gone, or not there yet."""
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
        """``undo`` ends it: after ``for_ns``, or when everything is healed."""
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

    def _hold_port(self) -> Undo:
        self._down += 1
        self._nic.set_link(False)

        def undo() -> None:
            self._down -= 1
            if not self._down:
                self._nic.set_link(self.inner.up)

        return undo

    def _port_up(self, told: dict[str, Any]) -> None:
        self._end_all("port-down", "flap")

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
        except VerbsError:  # one has windows: then none goes
            undo()
            raise
        return undo

    def _interrupt_lost(self, told: dict[str, Any]) -> Undo | None:
        self._interrupts_lost += told["times"]
        if self._interrupts_lost > told["times"]:
            return None  # the one that lasts grows

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
        """Undo what lasts, the newest first, and forget what was still to come, scripts included.

        Interrupts that were delayed come now, since nothing else would wake their waiters.
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
    def up(self) -> bool:
        """Whether the interface is up, and the port not held down."""
        return not self._down and self.inner.up

    def lets_pass(self, vector: int) -> bool:
        """Whether an interrupt reaches the driver now; one that is late comes by itself."""
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
        """Pass on what the port, its paths and the memory let through."""
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
        """Let happen what is due, then give what has arrived."""
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
            self.counters.bump("fault_port_down", len(bursts))
            return []
        if self._lost_peers:
            kept_back = [burst for burst in bursts if burst.flow.src not in self._lost_peers]
            self.counters.bump("fault_path_loss", len(bursts) - len(kept_back))
            bursts = kept_back
        if self._dma_ns or self._arriving:
            room = max(0, MAX_HELD - len(self._arriving))
            self._arriving += [(now + self._dma_ns, kept(burst)) for burst in bursts[:room]]
            if bursts[room:]:
                self.counters.bump("fault_slow_dma_full", len(bursts[room:]))
            bursts = []
            while self._arriving and self._arriving[0][0] <= now and len(bursts) < limit:
                bursts.append(self._arriving.popleft()[1])
        return bursts

    def _release(self, now: int) -> None:
        """Send what the memory gave at last."""
        if self._leaving and self._leaving[0][0] <= now:
            due = []
            while self._leaving and self._leaving[0][0] <= now:
                due.append(self._leaving.popleft()[1])
            if not self._down:
                self.inner.send(due)

    def next_deadline_ns(self) -> int | None:
        """When something happens by itself, here or in the inner link."""
        mine = [queue[0][0] for queue in (self._schedule, self._late, self._leaving, self._arriving) if queue]
        inner = self.inner.next_deadline_ns()
        return min(mine if inner is None else [inner, *mine], default=None)


def _chain(link: Link) -> Iterable[Link]:
    """A link and all that stand behind it."""
    while True:
        yield link
        if not isinstance(link, Middleware):
            return
        link = link.inner


def wanted_by(link: Link) -> bool:
    """Whether a fault script in this stack of links has events for the device."""
    return any(isinstance(each, FaultyLink) and each.has_events for each in _chain(link))


_EVENTS: dict[str, Callable[[DeviceFaults, dict[str, Any]], Undo | None]] = {
    "port-down": DeviceFaults._port_down,
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
    "fatal": DeviceFaults._fatal,
    "kill": DeviceFaults._kill,
    "heal": DeviceFaults._heal,
}
