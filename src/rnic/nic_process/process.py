"""The NIC process: one for each user, serving all that user's programs and any number of local addresses.

Contract and numbers are :mod:`rnic.spec.attach`'s. One thread does everything: rounds over the devices, looks for
rung doorbells, messages; it sleeps in ``epoll`` when there is nothing to do.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import gc
import math
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rnic.device.nic import Nic
from rnic.link.base import parse_address
from rnic.mem.order import fence, store32
from rnic.nic_process.accept import Acceptor, Refusal
from rnic.nic_process.bounded_work import ArenaCorrupt, WorkWatchdog
from rnic.nic_process.bypass_programs import REPAIR_NS, BypassPrograms
from rnic.nic_process.bypass_slot import CHECK_NS, BypassSlot, all_attended, wait_or_idle
from rnic.nic_process.client import Client, close_all, drain
from rnic.nic_process.handlers import DEVICE_OPTIONS, MAX_DEVICES, ConnectionManager, Handlers
from rnic.nic_process.idle_backoff import SPIN_ROUNDS, IdleBackoff
from rnic.nic_process.sysfs_tree import SysfsTree
from rnic.nic_process.wake_sockets import WakeSockets
from rnic.runtime.directory import ProcessError
from rnic.runtime.loop import Runtime
from rnic.runtime.report import log_report
from rnic.runtime.sched_slice import shorten
from rnic.spec import attach
from rnic.spec.errors import RnicError
from rnic.spec.limits import ROCE_UDP_PORT
from rnic.spec.rounds import BUDGET
from rnic.trace.counters import Counters
from rnic.trace.guard import Guard

_ASLEEP_AT = attach.WINDOW["asleep"].byte
_UCRED = struct.Struct("3i")
MAX_CLIENTS = 1024
_MAX_REFUSED = 32
"""Programs that came to a process that is full, and are yet to be told so."""
_MESSAGES_EVERY_NS = 300_000
"""However busy the devices are, or however long empty rounds take, a program's message waits about so long."""
_BUSY_NS = 5_000_000
"""A program that rang a doorbell within this time is at work."""
_SHARED_BUDGET = 15
"""Packets that a device sends in one round while several programs are at work."""
_DRAIN_ROUNDS = 64
_DRAIN_BURSTS = 4
_ERROR_PAUSE_S = 0.01
"""Seconds that the loop keeps off a turn that raised: it may raise again at once."""
_CHECK_S = CHECK_NS / 1e9


class NicProcess:
    """Serves one runtime directory.

    Args:
        directory: for socket and lock.
        make: makes a device of an address, a UDP port and options.
        manager: manages connections on the devices' QP1; without one there is none.
    """

    def __init__(
        self,
        directory: Path,
        make: Callable[[str, int | None, dict[str, object]], Runtime],
        manager: ConnectionManager | None = None,
    ) -> None:
        self.directory = directory
        self.make = make
        self.cm = manager
        self.devices: dict[str, Runtime] = {}
        self._options: dict[str, dict[str, object]] = {}
        self._ports: dict[str, int | None] = {}
        """The UDP port that was asked for with each device."""
        self.bypass: dict[str, BypassPrograms] = {}
        """The slots of each device."""
        self.watchdog = WorkWatchdog()
        """With what programs wrote into the arenas of their slots."""
        self._pinned: set[str] = set()
        self.clients: dict[int, Client] = {}
        self.on_context: Callable[[Client, bool], None] = lambda client, came: None
        """Hears of each context that a program opened, and of its end."""
        self._handlers = Handlers(self)
        self.counters = Counters()
        """What the process itself counts; shown with every device's."""
        self.guard = Guard(self.counters, log_report)
        self._selector = selectors.DefaultSelector()
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self.wake, selectors.EVENT_READ, self._on_wake)
        self._lock = os.open(directory / attach.LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ProcessError(
                f"a NIC process runs already in {directory}: programs use that one, `rnic top` shows it;"
                " end it first, or give another RNIC_RUNTIME_DIR"
            ) from None
        path = directory / attach.SOCKET_NAME
        path.unlink(missing_ok=True)
        self._acceptor = Acceptor(path, self._selector, self._add_client, self.guard)
        self._sockets = WakeSockets(self._selector)
        self._has_garbage = False
        """A context was dropped whose memory is still mapped: its queue pairs are cycles of objects."""
        self.sysfs = SysfsTree(directory)
        """What programs see under ``/sys`` and ``/dev``."""
        self._last_user = time.monotonic()
        self._stopped = False
        self._shared = False
        """Several programs are at work."""
        self._polled_ns = 0
        """When messages were looked for last."""

    # ------------------------------------------------------------------------------------- devices

    def add(
        self,
        address: str,
        port: int | None,
        options: dict[str, object],
        client: Client | None = None,
        wanted: str | None = None,
    ) -> str:
        """A device for a local address: the one there is, if there is one.

        One that nobody uses is made anew for other options, so that what one program asked for ends with it; and
        what nobody uses any more goes, so that names are the same whatever ran before.

        Args:
            address: local IP address.
            port: UDP port; ``None`` for 4791, 0 for any free one, on a device of its own.
            options: as :func:`rnic.cli.serve.make_runtime` takes them.
            client: who asks; it counts as a user from now on. The process itself is one for ever.
            wanted: its name, if that is free.

        Raises:
            ProcessError: others use the device, without what is asked for.
        """
        name = self._find(address, port)
        if name is not None:
            other = [key for key in DEVICE_OPTIONS if options.get(key) != self._options[name].get(key)]
            if other and not self.in_use(name):
                self._remove(name)
            elif asked := [key for key in other if options.get(key)]:
                raise ProcessError(
                    f"device {name} at {address} runs already without this {asked[0]} setting:"
                    " use another address, or wait until its users are gone"
                )
        taken = {used for used in self.devices if self.in_use(used)}
        free = next(free for number in range(MAX_DEVICES + 1) if (free := f"rnic{number}") not in taken)
        if wanted is not None and wanted not in taken:
            free = wanted
        if name in self.devices and name not in taken and name != free:
            self._remove(name)
        if name not in self.devices:
            name = free
            runtime = self.make(address, port, {**options, "name": name})
            for left in self.devices.keys() - taken:
                self._remove(left)
            self.devices[name] = runtime
            self.bypass[name] = BypassPrograms(runtime, self.watchdog)
            self._options[name] = options
            self._ports[name] = port
            self._sockets.watch(runtime)
            with self.guard.around("paths"):
                self.sysfs.add(runtime.nic)
            if self.cm is not None:
                self.cm.add_device(name, runtime.nic)
        if client is None:
            self._pinned.add(name)
        else:
            client.added.add(name)
        return name

    def _find(self, address: str, port: int | None) -> str | None:
        for name, runtime in self.devices.items():
            config = runtime.nic.config
            if config.address == parse_address(address) and config.port == (ROCE_UDP_PORT if port is None else port):
                return name
        return None

    def in_use(self, name: str) -> bool:
        """Whether anybody uses a device, or may find it: the process itself, or a program."""
        users = self.clients.values()
        return name in self._pinned or any(user.device == name or name in user.added for user in users)

    def _remove(self, name: str) -> None:
        runtime = self.devices.pop(name)
        del self._ports[name], self._options[name]
        with self.guard.around("paths"):
            self.sysfs.remove(name)
        if self.cm is not None:
            with self.guard.around("release", name):
                self.cm.remove_device(name)
        self._sockets.unwatch(runtime)
        self.bypass.pop(name).close()
        runtime.close()

    def take_over(self, name: str) -> None:
        """Take all packets of a device here, since somebody looks at them or delays them.

        Raises:
            OSError: EBUSY: a program was stopped in the midst of its work.
        """
        for slot in self.bypass[name].slots.values():
            slot.take_over()
            self._watch_slot(slot)

    def _update_watches(self, client: Client) -> None:
        """A program may have joined groups, or left them."""
        if client.slot is not None:
            self._watch_slot(client.slot)
        elif client.runtime is not None:
            self._sockets.watch(client.runtime)

    def _watch_slot(self, slot: BypassSlot) -> None:
        """Look at the sockets of a slot that its program does not: of multicast groups, or all of them."""
        self._sockets.watch(slot.runtime, 0 if slot.served else 1)

    # ---------------------------------------------------------------------------------- connections

    def _on_wake(self) -> None:
        drain(self.wake)

    def _add_client(self, sock: socket.socket, refusal: Refusal | None) -> None:
        """Take a new connection up as a client; one of another user is closed."""
        pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if uid != os.geteuid():
            sock.close()
            return
        refused = [client for client in self.clients.values() if client.refusal is not None]
        if refusal is None and len(self.clients) - len(refused) >= MAX_CLIENTS:
            refusal = (
                errno.EUSERS,
                f"it serves {MAX_CLIENTS} connections: end programs that need it no more",
            )
        if refusal is not None and len(refused) >= _MAX_REFUSED:
            self._drop(refused[0])
        sock.setblocking(False)
        client = Client(sock, pid, refusal)
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._guarded_read(client))
        self.clients[sock.fileno()] = client

    def _guarded_read(self, client: Client) -> None:
        try:
            self._read(client)
        except Exception as error:  # noqa: BLE001 - the last guard
            self.guard.caught("message", error, f"program {client.pid}")
            self._drop(client)

    def _read(self, client: Client) -> None:
        fds: list[int] = []
        flags = 0
        try:
            data, control, flags, _ = client.sock.recvmsg(
                attach.MAX_MESSAGE, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, control = b"", []
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
                fds += numbers
        if len(data) < attach.HEADER.size:
            close_all(fds)
            self._drop(client)
            return
        kind, token = struct.unpack_from("<II", data)
        out: list[int] = []
        made: list[int] = []
        client.made = made
        try:
            if flags & socket.MSG_CTRUNC:
                raise OSError(
                    errno.EMFILE, f"NIC process {os.getpid()} has no descriptors left for yours: raise its `ulimit -n`"
                )
            code, body = 0, self._handlers.handle(client, kind, data[attach.HEADER.size :], fds, out)
        except MemoryError:
            code, body = errno.ENOMEM, b"the NIC process has no memory for it"
        except OSError as error:
            code, body = error.errno or errno.EIO, str(error.strerror or error).encode()
        except (RnicError, ValueError, OverflowError, RecursionError) as error:  # the last of nested JSON
            code, body = errno.EINVAL, str(error).encode()
        except ArenaCorrupt as error:  # who asks need not be who error it
            close_all(made)
            made = []
            self._drop_corrupt(error)
            code, body = errno.EIO, b"a program had written nonsense into its slot, and has lost it: ask again"
        except BaseException:
            close_all(made)
            raise
        finally:
            close_all(fds)
            if client.sock.fileno() in self.clients:
                self._update_watches(client)
        try:
            socket.send_fds(client.sock, [struct.pack("<III", kind, token, code) + body], [] if code else out)
        except OSError:  # gone, or it does not read its answers
            self._drop(client)
        close_all(made)
        if client.refusal is not None:
            self._drop(client)

    def _drop_corrupt(self, error: ArenaCorrupt) -> None:
        """A program's arena leads nowhere: it has lost its connection."""
        self.counters.bump("slots_given_up")
        for client in [client for client in self.clients.values() if client.slot is error.owner]:
            self._drop(client)

    @contextlib.contextmanager
    def _releasing(self, client: Client) -> Iterator[None]:
        """A step of a client's end: what it leaves undone hinders no other."""
        with contextlib.suppress(ArenaCorrupt), self.guard.around("release", f"program {client.pid}"):
            if client.slot is None:
                yield
            else:
                with client.slot.work:
                    yield

    def _drop(self, client: Client) -> None:
        if self.clients.pop(client.sock.fileno(), None) is None:
            return
        self._last_user = time.monotonic()
        with self._releasing(client):
            self._selector.unregister(client.sock)
        client.sock.close()
        if self.cm is not None:
            with self._releasing(client):
                self.cm.remove_program(client, time.monotonic_ns())
        if client.runtime is not None and client.uar is not None:
            with self._releasing(client):
                client.runtime.nic.unmap_uar(client.uar)
                client.runtime.kick()
            with self._releasing(client):
                self._update_watches(client)
            for vector, fire in client.vectors.items():
                if client.runtime.handlers.get(vector) is fire:  # the number may be another's by now
                    del client.runtime.handlers[vector]
                with self._releasing(client):
                    fire()  # who sleeps on it learns that nobody will fire it any more
                fire.close()
        if client.device:
            with self._releasing(client):
                self.on_context(client, False)
        if client.device in self.bypass and client.slot is None:
            self.bypass[client.device].without_slot.pop(client.pid, None)
        if client.slot is not None:
            self._sockets.unwatch(client.slot.runtime)
            with self._releasing(client):
                self.bypass[client.device].release_slot(client.slot)
        if client.memory is not None:
            with self._releasing(client):
                client.memory.close()
            self._has_garbage = True
        for name in client.added:
            # nobody finds a device again whose port was any free one
            if self._ports.get(name) == 0 and not self.in_use(name):
                with self._releasing(client):
                    self._remove(name)
        self._acceptor.refill_spares()

    # ----------------------------------------------------------------------------------------- loop

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
                    self._drop(client)
        return rung

    def _round(self) -> bool:
        did = self._doorbells()
        budget = self._budget()
        for runtime in self.devices.values():
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
                self._drop(client)
        return did

    def _serve_slot(self, client: Client) -> bool:
        """What of a slot is this process's to do; whether anything was."""
        slot = client.slot
        assert slot is not None
        now = time.monotonic_ns()
        with slot.work:
            if slot.served or len(slot.runtime.link.filenos()) > 1:
                did = slot.serve()
                if did is not None:
                    return did
                if slot.served:
                    return False
            if now < slot.check_at_ns and not slot.has_waiting:
                return False
            slot.check_at_ns = now + CHECK_NS
            self.bypass[client.device].repair(now)
            return slot.serve_if_idle(now)

    def _budget(self) -> int:
        """Packets of a round: few while several programs post, since each waits for the end of the others' round."""
        since = time.monotonic_ns() - _BUSY_NS
        self._shared = sum([client.doorbell_ns > since for client in self.clients.values()]) > 1
        return _SHARED_BUDGET if self._shared else BUDGET

    def _counters_of(self, nic: Nic) -> dict[str, int] | None:
        """The counters of a device with those of its slots."""
        return self.bypass[nic.config.name].inspect("counters")

    def _drain(self) -> None:
        """Take what one device sent to another before more is sent: unacknowledged services would lose it."""
        for runtime in self.devices.values():
            for _ in range(_DRAIN_ROUNDS):
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
            fence()  # programs store their doorbell, then look whether the NIC sleeps

    def _sleep_time(self) -> float:
        clients = [client for client in self.clients.values() if client.slot is not None]
        # a program that forgot its fence waits no longer, either
        shortest = max(0.0, (self.sysfs.due_ns - time.monotonic_ns()) / 1e9)
        if any(client.slot.has_waiting for client in clients if client.slot is not None):
            return 0.001
        for client in clients:
            try:
                shortest = min(shortest, self._time_until_due(client))
            except Exception as error:  # noqa: BLE001 - the last guard
                self.guard.caught("round", error, f"program {client.pid}")
                self._drop(client)
        for runtime in self.devices.values():
            now = runtime.clock()
            for deadline in (runtime.nic.next_deadline_ns(), runtime.link.next_deadline_ns()):
                if deadline is not None:
                    shortest = min(shortest, max(0, deadline - now) / 1e9)
            if runtime.nic.has_work():
                return 0.0
        return shortest

    @staticmethod
    def _time_until_due(client: Client) -> float:
        """Seconds until a slot that is served here has something to do; without end for others."""
        slot = client.slot
        if slot is None or not slot.served:
            return math.inf
        with slot.work:
            if slot.runtime.nic.has_work():
                return 0.0
            deadline = slot.runtime.nic.next_deadline_ns()
            return math.inf if deadline is None else max(0, deadline - slot.runtime.clock()) / 1e9

    def serve(self, idle_exit: float | None = None, spins: int = SPIN_ROUNDS) -> None:
        """Serve until stopped, or until the last user has been gone for ``idle_exit`` seconds.

        Args:
            idle_exit: seconds; ``None`` for ever.
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
                    self._drop_corrupt(error)
                except Exception as error:  # noqa: BLE001 - the last guard
                    self.guard.caught("turn", error)
                    time.sleep(_ERROR_PAUSE_S)

    def stop(self) -> None:
        """Have :meth:`serve` return soon. For signal handlers: raising there would end whatever runs just then."""
        self._stopped = True
        with contextlib.suppress(OSError):
            os.eventfd_write(self.wake, 1)

    def _iterate(self, backoff: IdleBackoff, idle_exit: float | None) -> bool:
        """One round, and messages or sleep as they are due; false once it is time to end."""
        if self._stopped:
            return False
        self._acceptor.retry()
        if time.monotonic_ns() >= self.sysfs.due_ns:
            with self.guard.around("paths"):
                nics = [runtime.nic for runtime in self.devices.values()]
                self.sysfs.refresh(nics, time.monotonic_ns(), self._counters_of)
        if self._round():
            backoff.idle = 0
            if time.monotonic_ns() - self._polled_ns > _MESSAGES_EVERY_NS:
                self._dispatch(0)
            if self._shared:
                os.sched_yield()  # who was just served may be on this core, and its next request is waited for
            return True
        if backoff.keep_polling():
            now = time.monotonic_ns()
            if not backoff.yield_core() and (backoff.idle == 1 or now - self._polled_ns > _MESSAGES_EVERY_NS):
                self._dispatch(0)
            return True
        if self._has_garbage:
            self._has_garbage = False
            gc.collect()
        self._set_asleep(1)
        try:
            if not self._doorbells():
                self._sleep(self._sleep_time())
        finally:
            self._set_asleep(0)
        return idle_exit is None or bool(self.clients) or time.monotonic() - self._last_user <= idle_exit

    def _sleep(self, timeout: float) -> None:
        """Until something comes, or for ``timeout`` seconds; awake for more than a look only if a slot wants it."""
        slots = [client.slot for client in self.clients.values() if client.slot is not None and not client.slot.served]
        end = time.monotonic() + timeout
        while slots and timeout > _CHECK_S:
            quiet = wait_or_idle(self._selector.fileno(), slots, min(timeout, REPAIR_NS / 1e9))
            if self._handle(self._selector.select(0)) or (quiet and not all_attended(slots)):
                return
            for group in self.bypass.values():
                group.repair(time.monotonic_ns())
            timeout = end - time.monotonic()
        self._dispatch(max(0.0, timeout))

    def _dispatch(self, timeout: float) -> None:
        """Handle what has come, after at most ``timeout`` seconds: messages and programs that attach."""
        self._handle(self._selector.select(timeout))

    def _handle(self, came: list[tuple[selectors.SelectorKey, int]]) -> bool:
        for key, _ in came:
            if key.data is not None:
                key.data()
        self._polled_ns = time.monotonic_ns()
        return bool(came)

    def close(self) -> None:
        """Close everything, and say so in every window."""
        self.sysfs.close()  # while the lock says that they are ours
        for client in self.clients.values():
            if client.window is not None:
                store32(client.window, attach.WINDOW["alive"].byte, 0)
        for client in list(self.clients.values()):
            self._drop(client)
        with contextlib.suppress(FileNotFoundError):
            (self.directory / attach.SOCKET_NAME).unlink()
        self._selector.close()
        self._acceptor.close()
        os.close(self.wake)
        os.close(self._lock)
        for name, runtime in self.devices.items():
            self.bypass[name].close()
            runtime.close()
