"""The NIC process: one for each user, serving all that user's programs and any number of local addresses.

Contract and numbers are :mod:`rnic.spec.attach`'s. One thread does everything: rounds over the devices and slots
(:mod:`rnic.nic_process.devices`), doorbells, messages (:mod:`rnic.nic_process.connections`). It sleeps in ``epoll``
while there is nothing to do.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import math
import os
import select
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path

from rnic.device.nic import Nic
from rnic.mem.order import fence, store32
from rnic.nic_process.accept import Acceptor
from rnic.nic_process.bounded_work import ArenaCorrupt, WorkWatchdog
from rnic.nic_process.bypass_programs import REPAIR_NS
from rnic.nic_process.bypass_slot import CHECK_NS, all_attended, wait_or_idle
from rnic.nic_process.client import Client
from rnic.nic_process.connections import Connections
from rnic.nic_process.devices import ConnectionManager, DeviceTable
from rnic.nic_process.explain import Writer
from rnic.nic_process.handlers import Handlers
from rnic.nic_process.idle_backoff import SPIN_ROUNDS, IdleBackoff
from rnic.nic_process.netlink import NetlinkSockets
from rnic.nic_process.sysfs_tree import SysfsTree
from rnic.nic_process.sysfs_view import make_view
from rnic.nic_process.umad import UmadFiles
from rnic.nic_process.wake_sockets import WakeSockets
from rnic.runtime.directory import ProcessError
from rnic.runtime.loop import Runtime
from rnic.runtime.report import LOGGER, log_report
from rnic.runtime.sched_slice import shorten
from rnic.spec import attach
from rnic.spec.errors import RnicError
from rnic.spec.rounds import BUDGET
from rnic.trace.counters import Counters
from rnic.trace.guard import Guard

_ASLEEP_AT = attach.WINDOW["asleep"].byte
_MESSAGES_EVERY_NS = 300_000
"""Longest time that a message waits, however busy the devices are or however long empty rounds take."""
_BUSY_NS = 5_000_000
"""A program that rang a doorbell within this time is busy."""
_SHARED_BUDGET = 15
"""Packets that a device sends in one round while several programs are busy."""
_DRAIN_ROUNDS = 64
_DRAIN_BURSTS = 4
_ERROR_PAUSE_S = 0.01
"""Pause of the loop after an iteration that raised: the next one may raise again at once."""
_MAX_WAKEUPS = 64
"""Wake-ups that are drained at once: programs cannot keep the loop here."""
_EXACT_S = 0.1
"""Longest sleep with microsecond precision, used if a device is on a simulated fabric."""
_SELECT_DESCRIPTORS = 1_024
"""Descriptors from this number up are too large for ``select``."""
_CHECK_S = CHECK_NS / 1e9


class NicProcess:
    """Serves one runtime directory.

    Args:
        directory: for socket and lock.
        make: makes a device of an address, a UDP port and options.
        cm: connection manager on the devices' QP1, if any.
        handed: lock and socket, if ``rnic exec`` made them (:mod:`rnic.nic_process.launch`).
    """

    def __init__(
        self,
        directory: Path,
        make: Callable[[str, int | None, dict[str, object]], Runtime],
        cm: ConnectionManager | None = None,
        handed: tuple[int, socket.socket] | None = None,
    ) -> None:
        self.directory = directory
        self._lock, listener = handed or (
            os.open(directory / attach.LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600),
            None,
        )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ProcessError(
                f"a NIC process runs already in {directory}: programs use that one, `rnic top` shows it;"
                " end it first, or give another RNIC_RUNTIME_DIR"
            ) from None
        self.watchdog = WorkWatchdog()
        """Bounds work on the arenas of bypass slots."""
        self.counters = Counters()
        """Counters of the process itself, shown with those of every device."""
        self.guard = Guard(self.counters, log_report)
        self.clients: dict[int, Client] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self.wake = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        """The process sleeps on the first; programs wake it by the second. An eventfd does not work here: programs
        check by inode whether a descriptor is still the same file, and all eventfds share one inode."""
        self._selector.register(self._woken, selectors.EVENT_READ, self._on_wake)
        path = directory / attach.SOCKET_NAME
        if listener is None:
            path.unlink(missing_ok=True)
        self.sysfs = SysfsTree(directory)
        """The tree that programs see under ``/sys`` and ``/dev``."""
        sockets = WakeSockets(self._selector)
        self.devices = DeviceTable(make, self.clients, sockets, self.sysfs, cm, self.watchdog, self.guard)
        self.explanations = Writer()
        """Explains failures to programs' users."""
        self.netlink = NetlinkSockets(self.devices, self._selector, self.guard)
        self.handlers = Handlers(
            self.devices, self.clients, cm, self.wake.fileno(), self.counters, self.explanations, self.netlink
        )
        self.umad = UmadFiles(self.devices, self._selector, self.guard)
        self.handlers.table[attach.MSG_UMAD] = self.umad.handle
        self.connections = Connections(
            self.clients, self.devices, self.handlers, self._selector, cm, self.guard, self._on_drop
        )
        self.acceptor = Acceptor(path, self._selector, self.connections.add, self.guard, listener)
        self._stopped = False
        self._shared = False
        """True while several programs are busy."""
        self._polled_ns = 0
        """Time of the last poll for messages."""

    def adopt(self, sock: socket.socket, names: list[str]) -> None:
        """Serve the program that started this process, beginning with its queued requests.

        Args:
            sock: its connection.
            names: the devices that must exist then; they get a view of the device paths.

        Raises:
            ProcessError: a device could not be created.
        """
        self.connections.add(sock, None)
        client = self.clients[sock.fileno()]
        waiting = select.poll()
        waiting.register(sock, select.POLLIN)
        while client in self.clients.values() and waiting.poll(0):
            self.connections.read(client)
        missing = [name for name in names if name not in self.devices]
        if missing and client in self.clients.values():
            raise ProcessError(f"device {missing[0]} could not be made")
        if names:
            try:
                make_view(self.directory, names)
            except OSError as error:
                LOGGER.warning("device paths: %s: the program is shown none", error)

    def _on_wake(self) -> None:
        for _ in range(_MAX_WAKEUPS):
            try:
                if self._woken.recv(1, socket.MSG_DONTWAIT):
                    continue
                # a program shut it down: from now on timers detect doorbells
                self._selector.unregister(self._woken)
                LOGGER.warning("a program shut down the socket that wakes the NIC process: timers wake it now")
            except BlockingIOError:
                pass
            except OSError as error:  # a program changed the socket in another way
                LOGGER.warning("the socket that wakes the NIC process: %s", error.strerror)
            return

    def _on_drop(self) -> None:
        self.acceptor.refill_spares()

    def _doorbells(self) -> bool:
        rung = False
        for client in tuple(self.clients.values()):
            if client.window is not None:
                try:
                    if client.take_doorbells():
                        client.doorbell_ns = time.monotonic_ns()
                        rung = True
                except Exception as error:  # noqa: BLE001 - the last guard
                    self.guard.caught("doorbell", error, f"program {client.pid}")
                    self.connections.drop(client)
        return rung

    def _round(self) -> bool:
        did = self._doorbells()
        budget = self._budget()
        for runtime in self.devices.runtimes():
            runtime.budget = budget
            try:
                did |= runtime._round(runtime.clock())
                if did:
                    self._drain()
            except Exception as error:  # noqa: BLE001 - the last guard
                self.guard.caught("round", error, runtime.nic.config.name)
        for client in [client for client in self.clients.values() if client.slot is not None]:
            try:
                did |= self._serve_slot(client)
            except Exception as error:  # noqa: BLE001 - the last guard
                self.guard.caught("round", error, f"program {client.pid}")
                self.connections.drop(client)
        return did

    def _serve_slot(self, client: Client) -> bool:
        """Do this process's share of the work on a slot; return whether there was any."""
        slot = client.slot
        assert slot is not None
        now = time.monotonic_ns()
        with slot.work:
            rung = bool(slot.runtime.nic.resources.doorbells.rung)  # when its slot was given back
            if slot.served or rung or len(slot.runtime.link.filenos()) > 1:
                did = slot.serve()
                self.devices.give_back(slot)
                if did is not None:
                    return did
                if slot.served:
                    return False
            if now < slot.check_at_ns and not slot.has_waiting:
                return False
            slot.check_at_ns = now + CHECK_NS
            self.devices[client.device].bypass.repair(now)
            return slot.serve_if_idle(now)

    def _budget(self) -> int:
        """Return the packets of a round: few while several programs post, since each waits for the others' round."""
        since = time.monotonic_ns() - _BUSY_NS
        self._shared = sum([client.doorbell_ns > since for client in self.clients.values()]) > 1
        return _SHARED_BUDGET if self._shared else BUDGET

    def _counters_of(self, nic: Nic) -> dict[str, int] | None:
        """Return the counters of a device with those of its slots."""
        return self.devices[nic.config.name].bypass.inspect("counters")

    def _drain(self) -> None:
        """Receive what one device sent to another before more is sent: unacknowledged services would lose it."""
        for runtime in self.devices.runtimes():
            for _ in range(_DRAIN_ROUNDS if runtime.by_socket else 0):
                bursts = runtime.receive(_DRAIN_BURSTS)
                now = runtime.clock()
                for burst in bursts:
                    runtime.nic.receive(burst, now)
                if not bursts:
                    break

    def _set_asleep(self, value: int) -> None:
        for client in self.clients.values():
            if client.window is not None:
                store32(client.window, _ASLEEP_AT, value)
        if value:
            fence()  # programs store their doorbell, then load whether the NIC sleeps

    def _sleep_time(self) -> float:
        """Return how many seconds the loop may sleep."""
        clients = [client for client in self.clients.values() if client.slot is not None]
        # this also bounds the wait of a program that forgot its fence
        shortest = max(0.0, (self.sysfs.due_ns - time.monotonic_ns()) / 1e9)
        if self.devices.struck:
            return 0.0
        if any(client.slot.has_waiting for client in clients if client.slot is not None):
            return 0.001
        for client in clients:
            try:
                shortest = min(shortest, self._time_until_due(client))
            except Exception as error:  # noqa: BLE001 - the last guard
                self.guard.caught("round", error, f"program {client.pid}")
                self.connections.drop(client)
        for runtime in self.devices.runtimes():
            shortest = min(shortest, runtime.seconds_until_due())
        return shortest

    @staticmethod
    def _time_until_due(client: Client) -> float:
        """Return the seconds until a slot that is served here has something to do; infinity for others."""
        slot = client.slot
        if slot is None or not slot.served:
            return math.inf
        with slot.work:
            if slot.runtime.nic.has_work():
                return 0.0
            deadline = slot.runtime.nic.next_deadline_ns()
            return math.inf if deadline is None else max(0, deadline - slot.runtime.clock()) / 1e9

    def serve(self, idle_exit: float | None = None, spins: int = SPIN_ROUNDS) -> None:
        """Serve until stopped, or until no program has been connected for ``idle_exit`` seconds.

        Args:
            idle_exit: seconds; ``None`` forever.
            spins: empty rounds before it sleeps.
        """
        shorten()
        backoff = IdleBackoff(spins)
        with self.watchdog:
            while True:
                try:
                    if not self._iterate(backoff, idle_exit):
                        return
                except ArenaCorrupt as error:
                    self.connections.drop_corrupt(error)
                except Exception as error:  # noqa: BLE001 - the last guard
                    self.guard.caught("turn", error)
                    time.sleep(_ERROR_PAUSE_S)

    def stop(self) -> None:
        """Make :meth:`serve` return soon; for signal handlers, which must not raise in the middle of other work."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self.wake.send(b"\0", socket.MSG_DONTWAIT)

    def _iterate(self, backoff: IdleBackoff, idle_exit: float | None) -> bool:
        """Run one round, then poll messages or sleep; return false once it is time to exit."""
        if self._stopped:
            return False
        self.acceptor.retry()
        self._record()
        if self.devices.struck:
            self._happen()
        if time.monotonic_ns() >= self.sysfs.due_ns:
            with self.guard.around("paths"):
                nics = [runtime.nic for runtime in self.devices.runtimes()]
                self.sysfs.refresh(nics, time.monotonic_ns(), self._counters_of)
        if self._round():
            backoff.idle = 0
            if time.monotonic_ns() - self._polled_ns > _MESSAGES_EVERY_NS:
                self._dispatch(0)
            if self._shared:
                os.sched_yield()  # the program that was just served may need this core for its next request
            return True
        if backoff.keep_polling():
            now = time.monotonic_ns()
            if not backoff.yield_core() and (backoff.idle == 1 or now - self._polled_ns > _MESSAGES_EVERY_NS):
                self._dispatch(0)
            return True
        if self.connections.has_garbage:
            self.connections.has_garbage = False
            gc.collect()
        self._set_asleep(1)
        try:
            if not self._doorbells():
                self._sleep(self._sleep_time())
        finally:
            self._set_asleep(0)
        return idle_exit is None or bool(self.clients) or time.monotonic() - self.connections.last_drop <= idle_exit

    def _record(self) -> float:
        """Write packets recorded by programs to files if it is time; return the seconds until the next time."""
        now = time.monotonic_ns()
        shortest = math.inf
        for name, device in self.devices.items():
            with self.guard.around("capture", name):
                due = device.bypass.captures.drain_if_due(now)
                shortest = shortest if due is None else min(shortest, due / 1e9)
        return shortest

    def _happen(self) -> None:
        """Apply events of fault scripts that are due, or whose verbs have been answered."""
        while self.devices.struck:
            name, event = self.devices.struck.popleft()
            device = self.devices.get(name)
            if device is None:
                continue
            try:
                self.handlers.happen(device, event)
            except (OSError, RnicError) as error:  # its object does not exist, or a program was stopped
                device.runtime.nic.counters.bump("fault_event_missed")
                LOGGER.warning("fault event %s of %s: %s", event.name, name, error)

    def _sleep(self, timeout: float) -> None:
        """Sleep until something arrives, or for ``timeout`` seconds; wake up to serve slots of idle programs."""
        slots = [client.slot for client in self.clients.values() if client.slot is not None and not client.slot.served]
        timeout = min(timeout, self._record())
        end = time.monotonic() + timeout
        while slots and timeout > _CHECK_S:
            idle = wait_or_idle(self._selector.fileno(), slots, min(timeout, REPAIR_NS / 1e9))
            if self._handle(self._selector.select(0)) or (idle and not all_attended(slots)):
                return
            for device in self.devices.values():
                device.bypass.repair(time.monotonic_ns())
            timeout = end - time.monotonic()
        self._dispatch(max(0.0, timeout))

    def _dispatch(self, timeout: float) -> None:
        """Handle messages and new connections that arrive within ``timeout`` seconds."""
        if 0 < timeout < _EXACT_S and self._needs_exact_sleep():  # the selector rounds up to milliseconds
            select.select((self._selector,), (), (), timeout)
            timeout = 0
        self._handle(self._selector.select(timeout))

    def _needs_exact_sleep(self) -> bool:
        """Return whether a device is on a simulated fabric, and ``select`` can wait for messages."""
        on_fabric = not all(runtime.by_socket for runtime in self.devices.runtimes())
        return on_fabric and self._selector.fileno() < _SELECT_DESCRIPTORS

    def _handle(self, ready: list[tuple[selectors.SelectorKey, int]]) -> bool:
        for key, _ in ready:
            if key.data is not None:
                key.data()
        self._polled_ns = time.monotonic_ns()
        return bool(ready)

    def close(self) -> None:
        """Close everything, and mark every window as closed."""
        self.sysfs.close()  # while this process still has the lock
        for client in self.clients.values():
            if client.window is not None:
                store32(client.window, attach.WINDOW["alive"].byte, 0)
        for client in list(self.clients.values()):
            self.connections.drop(client)
        with contextlib.suppress(FileNotFoundError):
            (self.directory / attach.SOCKET_NAME).unlink()
        self.netlink.close()
        self.umad.close()
        self._selector.close()
        self.acceptor.close()
        self.wake.close()
        self._woken.close()
        self.devices.close()
        os.close(self._lock)  # after the devices, so that the next NIC process finds their addresses free
        self.explanations.close()
