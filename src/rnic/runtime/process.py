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
import json
import mmap
import os
import re
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rnic.device.config import gid_from_address
from rnic.device.inspect import look
from rnic.device.nic import Nic
from rnic.device.resources import Resources
from rnic.link.base import Link, parse_address
from rnic.link.fault_events import from_words
from rnic.mem.order import fence, store32
from rnic.rings.queue_block import BLOCK_BYTES
from rnic.runtime.client import Client, Fire, close_all, drain
from rnic.runtime.directory import ProcessError
from rnic.runtime.loop import BUDGET, Runtime
from rnic.runtime.paths import PathTree
from rnic.runtime.program import CopiedMemory, ProgramMemory
from rnic.runtime.report import log_report
from rnic.runtime.watching import TAP, devices
from rnic.spec import attach, attach_cm
from rnic.spec import commands as cmd
from rnic.spec.errors import RnicError
from rnic.spec.limits import MAX_EQS, ROCE_UDP_PORT
from rnic.trace.counters import Counters
from rnic.trace.guard import Guard

_PAGE = attach.PAGE_BYTES
_RUNG_AT = _PAGE
_ASLEEP_AT = attach.WINDOW["asleep"].byte
_U32 = struct.Struct("<I")
_UCRED = struct.Struct("3i")
_COMMAND = struct.Struct("<HHIQI4x")
SPIN_ROUNDS = 30
"""Empty rounds before the NIC process sleeps; fewer where it sees that somebody wants its core."""
_YIELD_IS_LONG_NS = 20_000
MAX_CLIENTS = 1024
_MOST_REFUSED = 32
"""Programs that came to a process that is full, and are yet to be told so."""
_SPARE_DESCRIPTORS = 8
"""Kept back, so that who comes when there are no more can be told."""
_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_ACCEPT_PAUSE_S = 0.05
MAX_DEVICES = 256
_MESSAGES_EVERY_NS = 300_000
"""However busy the devices are, a program's message waits about so long."""
_AT_WORK_NS = 5_000_000
"""A program that rang a doorbell within this time is at work."""
_SHARED_BUDGET = 15
"""Packets that a device sends in one round while several programs are at work."""
_DRAIN_ROUNDS = 64
_DRAIN_BURSTS = 4
_AFTER_OWN_ERROR_S = 0.01
"""Seconds that the loop keeps off a turn that raised: it may raise again at once."""
_NAME = re.compile(r"rnic(0|[1-9]\d{0,2})", re.ASCII)
_CHOSEN = ("faults", "capture", "congestion")
"""What programs may choose of a device that they ask for."""
_ADD_KINDS = {"address": str, "port": int, "name": str, **dict.fromkeys(_CHOSEN, str)}
_LONGEST_SLEEP = 0.05
"""Seconds; a program that forgot its fence waits no longer."""


_REQUEST_BYTES = attach.REQUEST_BYTES | attach_cm.REQUEST_BYTES


class Manager(Protocol):
    """Who manages connections on the devices' QP1 (:class:`rnic.cm.service.CmService`)."""

    def came(self, name: str, nic: Nic, /) -> None:
        """A device is there."""

    def went(self, name: str, /) -> None:
        """A device is gone."""

    def request(self, key: Client, body: bytes, make_bell: Callable[[], Fire], now_ns: int, /) -> bytes:
        """A program's request; ``OSError`` with words where it is refused."""

    def gone(self, key: Client, now_ns: int, /) -> None:
        """A program has ended."""


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
        manager: Manager | None = None,
    ) -> None:
        self.directory = directory
        self.make = make
        self.manager = manager
        self.devices: dict[str, Runtime] = {}
        self._options: dict[str, dict[str, object]] = {}
        self._ports: dict[str, int | None] = {}
        """The UDP port that was asked for with each device."""
        self._kept: set[str] = set()
        self.clients: dict[int, Client] = {}
        self.counters = Counters()
        """What the process itself counts; shown with every device's."""
        self.guard = Guard(self.counters, log_report)
        self._selector = selectors.DefaultSelector()
        self._spare = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_SPARE_DESCRIPTORS)]
        self._accept_again = 0.0
        """When to look again for programs that came while there were no descriptors; 0 while they are looked for."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        self._lock = os.open(directory / attach.LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ProcessError(f"a NIC process runs already in {directory}") from None
        path = directory / attach.SOCKET_NAME
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._guarded_accept)
        self._watched: set[int] = set()
        self._litter = False
        """A context was dropped whose memory is still mapped: its queue pairs are cycles of objects."""
        self.paths = PathTree(directory)
        """What programs see under ``/sys`` and ``/dev``."""
        self._last_user = time.monotonic()
        self._stopped = False
        self._shared = False
        """Several programs are at work."""
        self._looked_ns = 0
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
            other = [key for key in _CHOSEN if options.get(key) != self._options[name].get(key)]
            if other and not self._in_use(name):
                self._remove(name)
            elif asked := [key for key in other if options.get(key)]:
                raise ProcessError(
                    f"device {name} at {address} runs already without this {asked[0]} setting:"
                    " use another address, or wait until its users are gone"
                )
        taken = {used for used in self.devices if self._in_use(used)}
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
            self._options[name] = options
            self._ports[name] = port
            self._watch(runtime.link)
            with self.guard.around("paths"):
                self.paths.add(runtime.nic)
            if self.manager is not None:
                self.manager.came(name, runtime.nic)
        if client is None:
            self._kept.add(name)
        else:
            client.added.add(name)
        return name

    def _find(self, address: str, port: int | None) -> str | None:
        for name, runtime in self.devices.items():
            config = runtime.nic.config
            if config.address == parse_address(address) and config.port == (ROCE_UDP_PORT if port is None else port):
                return name
        return None

    def _in_use(self, name: str) -> bool:
        runtime = self.devices[name]
        users = self.clients.values()
        return name in self._kept or any(user.runtime is runtime or name in user.added for user in users)

    def _remove(self, name: str) -> None:
        runtime = self.devices.pop(name)
        del self._ports[name], self._options[name]
        with self.guard.around("paths"):
            self.paths.remove(name)
        if self.manager is not None:
            with self.guard.around("release", name):
                self.manager.went(name)
        for fd in runtime.link.filenos():
            if fd in self._watched:
                self._watched.discard(fd)
                self._selector.unregister(fd)
        runtime.close()

    def _watch(self, link: Link) -> None:
        for fd in link.filenos():
            if fd not in self._watched:
                self._watched.add(fd)
                self._selector.register(fd, selectors.EVENT_READ, None)

    # ---------------------------------------------------------------------------------- connections

    def _woken(self) -> None:
        drain(self._wake)

    def _guarded_accept(self) -> None:
        with self.guard.around("accept"):
            self._accept()

    def _accept(self) -> None:
        refusal: tuple[int, str] | None = None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _OUT_OF:
                raise
            self.counters.bump("accepts_without_descriptors")
            if self._spare:
                os.close(self._spare.pop())
                with contextlib.suppress(OSError):
                    sock, _ = self._listener.accept()
                    refusal = error.errno, f"it has no more descriptors ({error.strerror}): raise its `ulimit -n`"
            if refusal is None:
                # who waits stays in the listener's queue, which would else wake this loop again and again
                self._selector.unregister(self._listener)
                self._accept_again = time.monotonic() + _ACCEPT_PAUSE_S
                return
        try:
            self._greet(sock, refusal)
        except BaseException:
            sock.close()
            raise

    def _greet(self, sock: socket.socket, refusal: tuple[int, str] | None) -> None:
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
        if refusal is not None and len(refused) >= _MOST_REFUSED:
            self._drop(refused[0])
        sock.setblocking(False)
        client = Client(sock, pid, _RUNG_AT, refusal)
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._guarded_read(client))
        self.clients[sock.fileno()] = client

    def _descriptors_are_back(self) -> None:
        """Something was closed: fill up what is kept back, and take up who came meanwhile."""
        with contextlib.suppress(OSError):
            while len(self._spare) < _SPARE_DESCRIPTORS:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        if self._accept_again and (self._spare or time.monotonic() > self._accept_again):
            self._accept_again = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ, self._guarded_accept)

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
            code, body = 0, self._message(client, kind, data[attach.HEADER.size :], fds, out)
        except MemoryError:
            code, body = errno.ENOMEM, b"the NIC process has no memory for it"
        except OSError as error:
            code, body = error.errno or errno.EIO, str(error.strerror or error).encode()
        except (RnicError, ValueError, OverflowError, RecursionError) as error:  # the last of nested JSON
            code, body = errno.EINVAL, str(error).encode()
        except BaseException:
            close_all(made)
            raise
        finally:
            close_all(fds)
        try:
            socket.send_fds(client.sock, [struct.pack("<III", kind, token, code) + body], [] if code else out)
        except OSError:  # gone, or it does not read its answers
            self._drop(client)
        close_all(made)
        if client.refusal is not None:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if self.clients.pop(client.sock.fileno(), None) is None:
            return
        self._last_user = time.monotonic()
        around = self.guard.around
        whose = f"program {client.pid}"
        with around("release", whose):
            self._selector.unregister(client.sock)
        client.sock.close()
        if self.manager is not None:
            with around("release", whose):
                self.manager.gone(client, time.monotonic_ns())
        if client.runtime is not None and client.uar is not None:
            with around("release", whose):
                client.runtime.nic.unmap_uar(client.uar)
                client.runtime.kick()
            for vector, fire in client.vectors.items():
                if client.runtime.handlers.get(vector) is fire:  # the number may be another's by now
                    del client.runtime.handlers[vector]
                with around("release", whose):
                    fire()  # who sleeps on it learns that nobody will fire it any more
                fire.close()
        if client.memory is not None:
            with around("release", whose):
                client.memory.close()
            self._litter = True
        for name in client.added:
            # nobody finds a device again whose port was any free one
            if self._ports.get(name) == 0 and not self._in_use(name):
                with around("release", whose):
                    self._remove(name)
        self._descriptors_are_back()

    def _message(self, client: Client, kind: int, body: bytes, fds: list[int], out: list[int]) -> bytes:
        least, most = _REQUEST_BYTES.get(kind, (0, attach.MAX_MESSAGE))
        if not least <= len(body) <= most:
            raise OSError(
                errno.EINVAL, f"message kind {kind} has {len(body)} bytes of body: {least} to {most} are right"
            )
        if kind == attach.MSG_HELLO:
            return self._hello(client, body)
        if not client.greeted:
            raise OSError(errno.EPROTO, "HELLO comes first")
        handler = {
            attach.MSG_LIST: self._list,
            attach.MSG_OPEN: self._open,
            attach.MSG_COMMAND: self._command,
            attach.MSG_VECTOR: self._vector,
            attach.MSG_SHARE: self._share,
            attach.MSG_UNSHARE: self._unshare,
            attach.MSG_ADD: self._add,
            attach.MSG_INFO: self._info,
            attach.MSG_FAULT: self._fault,
            attach_cm.MSG_CM: self._manage,
        }.get(kind)
        if handler is None:
            raise OSError(errno.ENOSYS, f"message kind {kind} is unknown")
        return handler(client, body, fds, out)

    def _hello(self, client: Client, body: bytes) -> bytes:
        hello = attach.HELLO.unpack(body)
        if hello["magic"] != attach.MAGIC or hello["version"] != attach.VERSION:
            raise OSError(
                errno.EPROTO,
                f"the library speaks version {hello['version']} of the process boundary and NIC process {os.getpid()}"
                f" version {attach.VERSION}: install one rnic and end the old NIC process",
            )
        if client.refusal is not None:
            code, why = client.refusal
            raise OSError(code, f"NIC process {os.getpid()} is full: {why}")
        client.greeted = True
        return struct.pack("<III", attach.VERSION, os.getpid(), len(self.devices))

    def _list(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        records = []
        for name, runtime in self.devices.items():
            config = runtime.nic.config
            if runtime.nic.globals.dead:
                continue  # gone, until it appears anew
            records.append(
                name.encode().ljust(16, b"\0")
                + gid_from_address(config.address)
                + config.guid.to_bytes(8, "big")
                + struct.pack("<HHI", config.port, config.mtu, runtime.nic.globals.port_state)
            )
        return b"".join(records)

    def _add(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        wanted = json.loads(body)
        if not isinstance(wanted, dict) or not isinstance(wanted.get("address"), str):
            raise OSError(errno.EINVAL, "ADD takes a JSON object with an address")
        for name, value in wanted.items():
            kind = _ADD_KINDS.get(name)
            if kind is None:
                raise OSError(errno.EINVAL, f"ADD: {name!r} is nothing that a program may choose of a device")
            if value is not None and type(value) is not kind:
                raise OSError(errno.EINVAL, f"ADD: {name}={value!r} is no {kind.__name__}")
        if wanted.get("port") is not None and not 0 <= wanted["port"] <= 0xFFFF:
            raise OSError(errno.EINVAL, f"port={wanted['port']} is no UDP port: 0 to 65535 are")
        name = wanted.pop("name", None)
        if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise OSError(errno.EINVAL, f"ADD: name={name!r} is no device's: rnic0 to rnic{MAX_DEVICES - 1} are")
        if sum(map(self._in_use, self.devices)) >= MAX_DEVICES:
            raise OSError(errno.ENOSPC, f"a NIC process has at most {MAX_DEVICES} devices")
        return self.add(wanted["address"], wanted.get("port"), wanted, client, name).encode().ljust(16, b"\0")

    def _open(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        name = body[:16].split(b"\0", 1)[0].decode()
        runtime = self.devices.get(name)
        if runtime is None:
            raise OSError(errno.ENODEV, f"device {name!r} is not there; there are: {', '.join(self.devices)}")
        if runtime.nic.globals.dead:
            raise OSError(errno.ENODEV, f"device {name!r} has failed and is gone: it may appear anew")
        if client.uar is not None or len(fds) != 1:
            raise OSError(errno.EINVAL, "OPEN comes once, with one descriptor")
        memory = self._memory_of(client, fds[0], attach.OPEN.get(body, "mode"), attach.OPEN.get(body, "copier"))
        try:
            return self._map_window(client, runtime, memory, out)
        except BaseException:
            memory.close()
            raise

    @staticmethod
    def _memory_of(client: Client, fd: int, mode: int, copier: int) -> ProgramMemory | CopiedMemory:
        """The program's memory by the descriptor that it brought, which stays open for whoever holds it."""
        if mode not in (attach.DMA_PROC_MEM, attach.DMA_COPIER):
            raise OSError(errno.EINVAL, f"DMA mode {mode} is unknown")
        held = os.dup(fd)
        try:
            if mode == attach.DMA_COPIER:
                return CopiedMemory(held, client.pid, copier)
            return ProgramMemory(held, client.pid)
        except PermissionError:
            os.close(held)
            raise OSError(
                errno.EACCES,
                f"the NIC process may not look into program {client.pid} (ptrace rules):"
                " unset RNIC_DMA, so that a thread of the program copies",
            ) from None
        except BaseException:
            os.close(held)
            raise

    def _map_window(
        self, client: Client, runtime: Runtime, memory: ProgramMemory | CopiedMemory, out: list[int]
    ) -> bytes:
        blocks = runtime.nic.resources.uar_blocks
        blocks_at = _RUNG_AT + -(-blocks // _PAGE) * _PAGE
        size = blocks_at + blocks * BLOCK_BYTES
        fd = os.memfd_create("rnic window", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        client.made.append(fd)
        os.ftruncate(fd, size)
        # the program may not take away what the NIC writes to
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        window = mmap.mmap(fd, size)
        window[: attach.WINDOW.size] = attach.WINDOW.pack(
            {"magic": attach.MAGIC, "version": attach.VERSION, "blocks": blocks, "alive": 1}
        )
        client.uar = runtime.nic.map_uar(memory, memoryview(window)[blocks_at:], client.pid)
        client.runtime, client.memory, client.window = runtime, memory, window
        out += [fd, self._wake]
        return struct.pack("<IIQQQ", blocks, BLOCK_BYTES, size, _RUNG_AT, blocks_at)

    def _command(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        op, op_modifier, in_modifier, _, inbox_bytes = _COMMAND.unpack_from(body)
        if client.runtime is None or client.uar is None:
            raise OSError(errno.ENODEV, "no device is open on this connection")
        # the message may be looked at before the doorbells that the program rang before it
        if client.window is not None and self._doorbells_of(client, client.window, client.runtime.nic.resources):
            client.runtime.kick()
        inbox = body[_COMMAND.size : _COMMAND.size + inbox_bytes]
        result = client.runtime.nic.command(client.uar, op, in_modifier, op_modifier, inbox)
        if result.status == cmd.ST_OK and (op, in_modifier) == (cmd.ALLOC_RES, cmd.RES_UAR_BLOCK):
            client.rung_end = max(client.rung_end, _RUNG_AT + result.out_param + 1)
        client.runtime.kick()
        return struct.pack("<IIQ", result.status, len(result.outbox), result.out_param) + result.outbox

    def _info(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """What ``body`` asks for, ``DEVICE WHAT``, as JSON in a memfd: ``null`` where there is no such thing.

        Beside the views of :func:`rnic.device.inspect.look` there are ``tap`` (:meth:`rnic.runtime.tap.Tap.answer`)
        and, of no device, ``devices`` (:func:`rnic.runtime.watching.devices`).
        """
        name, _, what = body.decode().partition(" ")
        if what == "devices":
            return self._inform(client, devices(self.devices, list(self.clients.values())), out)
        runtime = self.devices.get(name) if name else next(iter(self.devices.values()), None)
        if runtime is None:
            raise OSError(errno.ENODEV, f"device {name!r} is not there; there are: {', '.join(self.devices) or 'none'}")
        if what.startswith(TAP):
            return self._inform(client, runtime.tap().answer(what.removeprefix(TAP)), out)
        seen = look(runtime.nic, what)
        if seen is not None and what == "counters":
            seen |= {name: seen.get(name, 0) + count for name, count in self.counters.items()}
        return self._inform(client, seen, out)

    @staticmethod
    def _inform(client: Client, seen: object, out: list[int]) -> bytes:
        text = json.dumps(seen).encode()
        fd = os.memfd_create("rnic info", os.MFD_CLOEXEC)
        client.made.append(fd)
        with open(os.dup(fd), "wb") as file:
            file.write(text)
        out.append(fd)
        return attach.INFO_REPLY.pack({"bytes": len(text)})

    def _fault(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Let something happen to a device; the answer is what holds there now, as JSON."""
        wanted = json.loads(body)
        if not isinstance(wanted, dict) or not isinstance(wanted.get("event"), list):
            raise OSError(errno.EINVAL, "FAULT takes a JSON object with a device and an event")
        name, event = wanted.get("device") or next(iter(self.devices), ""), wanted["event"]
        if not isinstance(name, str):
            raise OSError(errno.EINVAL, f"FAULT takes a JSON object with a device and an event: {name!r} is no device")
        runtime = self.devices.get(name)
        if runtime is None:
            raise OSError(errno.ENODEV, f"device {name!r} is not there; there are: {', '.join(self.devices) or 'none'}")
        faults = runtime.faults()
        faults.kill = _die
        if event:
            faults.happen(from_words(event))
        return json.dumps(faults.state()).encode()

    def _manage(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """A request to the connection manager."""
        if self.manager is None:
            raise OSError(errno.EOPNOTSUPP, "this NIC process manages no connections")

        def make_bell() -> Fire:
            fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
            out.append(fd)
            return Fire(fd)

        return self.manager.request(client, body, make_bell, time.monotonic_ns())

    def _vector(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        vector = _U32.unpack(body)[0]
        if client.runtime is None or vector >= MAX_EQS:
            raise OSError(errno.EINVAL, f"vector {vector} is out of range")
        eq = client.runtime.nic.resources.eqs.get(vector)
        if eq is None or eq.uar is not client.uar:
            raise OSError(errno.EINVAL, f"vector {vector} is no event queue of this context")
        old = client.vectors.pop(vector, None)
        if old is not None:
            old.close()
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        client.vectors[vector] = client.runtime.handlers[vector] = Fire(fd)
        out.append(fd)
        return b""

    def _share(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        if client.memory is None or len(fds) != 1:
            raise OSError(errno.EINVAL, "SHARE needs an open device and one descriptor")
        va, length, offset, writable = struct.unpack_from("<QQQI", body)
        client.memory.share(va, length, fds[0], offset, bool(writable))
        return b""

    def _unshare(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        if client.memory is not None:
            client.memory.unshare(struct.unpack_from("<Q", body)[0])
        return b""

    # ----------------------------------------------------------------------------------------- loop

    def _doorbells(self) -> bool:
        rung = False
        for client in tuple(self.clients.values()):
            if client.window is not None and client.runtime is not None:
                try:
                    if self._doorbells_of(client, client.window, client.runtime.nic.resources):
                        client.rang_ns = time.monotonic_ns()
                        rung = True
                except Exception as error:  # noqa: BLE001 - the last guard
                    self.guard.caught("doorbell", error, f"program {client.pid}")
                    self._drop(client)
        return rung

    @staticmethod
    def _doorbells_of(client: Client, window: mmap.mmap, resources: Resources) -> bool:
        rung = False
        at = window.find(b"\x01", _RUNG_AT, client.rung_end)
        while at >= 0:
            window[at] = 0
            block = at - _RUNG_AT
            queue = resources.blocks.get(block)
            if queue is not None and queue.regs.uar is client.uar:
                resources.doorbells.ring(block)
            rung = True
            at = window.find(b"\x01", at + 1, client.rung_end)
        if rung:
            fence()  # the bytes are clear before the registers are read: whoever rings from now on is heard again
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
        return did

    def _budget(self) -> int:
        """Packets of a round: few while several programs post, since each waits for the end of the others' round."""
        since = time.monotonic_ns() - _AT_WORK_NS
        self._shared = sum([client.rang_ns > since for client in self.clients.values()]) > 1
        return _SHARED_BUDGET if self._shared else BUDGET

    def _drain(self) -> None:
        """Take what one device sent to another before more is sent: unacknowledged services would lose it."""
        for runtime in self.devices.values():
            for _ in range(_DRAIN_ROUNDS):
                bursts = runtime.receive(_DRAIN_BURSTS)
                now = runtime.clock()
                for burst in bursts:
                    runtime.nic.receive(burst, now)
                if len(bursts) < _DRAIN_BURSTS:
                    break

    def _set_asleep(self, value: int) -> None:
        for client in self.clients.values():
            if client.window is not None:
                store32(client.window, _ASLEEP_AT, value)
        if value:
            fence()  # programs store their doorbell, then look whether the NIC sleeps

    def _timeout(self) -> float:
        shortest = _LONGEST_SLEEP
        for runtime in self.devices.values():
            now = runtime.clock()
            for deadline in (runtime.nic.next_deadline_ns(), runtime.link.next_deadline_ns()):
                if deadline is not None:
                    shortest = min(shortest, max(0, deadline - now) / 1e9)
            if runtime.nic.has_work():
                return 0.0
        return shortest

    def serve(self, idle_exit: float | None = None, spins: int = SPIN_ROUNDS) -> None:
        """Serve until stopped, or until the last user has been gone for ``idle_exit`` seconds.

        Args:
            idle_exit: seconds; ``None`` for ever.
            spins: empty rounds before it sleeps.
        """
        pace = _Pace(spins)
        while True:
            try:
                if not self._turn(pace, idle_exit):
                    return
            except Exception as error:  # noqa: BLE001 - the last guard
                self.guard.caught("turn", error)
                time.sleep(_AFTER_OWN_ERROR_S)

    def stop(self) -> None:
        """Have :meth:`serve` return soon. For signal handlers: raising there would end whatever runs just then."""
        self._stopped = True
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def _turn(self, pace: _Pace, idle_exit: float | None) -> bool:
        """One round, and messages or sleep as they are due; false once it is time to end."""
        if self._stopped:
            return False
        if self._accept_again:
            self._descriptors_are_back()
        if time.monotonic_ns() >= self.paths.due_ns:
            with self.guard.around("paths"):
                self.paths.refresh([runtime.nic for runtime in self.devices.values()], time.monotonic_ns())
        if self._round():
            pace.idle = 0
            if time.monotonic_ns() - self._looked_ns > _MESSAGES_EVERY_NS:
                self._dispatch(0)
            if self._shared:
                os.sched_yield()  # who was just served may be on this core, and its next request is waited for
            return True
        pace.idle += 1
        if pace.idle < pace.spin:
            began = time.monotonic_ns()
            os.sched_yield()
            if time.monotonic_ns() - began > _YIELD_IS_LONG_NS:
                pace.spin = 0  # somebody wants this core, perhaps the very program that is waited for
            elif pace.idle == 1:
                self._dispatch(0)
            return True
        pace.spin = min(pace.spin + 1, pace.spins)
        if self._litter:
            self._litter = False
            gc.collect()
        self._set_asleep(1)
        try:
            if not self._doorbells():
                self._dispatch(self._timeout())
        finally:
            self._set_asleep(0)
        return idle_exit is None or bool(self.clients) or time.monotonic() - self._last_user <= idle_exit

    def _dispatch(self, timeout: float) -> None:
        """Handle what has come, after at most ``timeout`` seconds: messages and programs that attach."""
        for key, _ in self._selector.select(timeout):
            if key.data is not None:
                key.data()
        self._looked_ns = time.monotonic_ns()

    def close(self) -> None:
        """Close everything, and say so in every window."""
        self.paths.close()  # while the lock says that they are ours
        for client in self.clients.values():
            if client.window is not None:
                store32(client.window, attach.WINDOW["alive"].byte, 0)
        for client in list(self.clients.values()):
            self._drop(client)
        with contextlib.suppress(FileNotFoundError):
            (self.directory / attach.SOCKET_NAME).unlink()
        self._selector.close()
        self._listener.close()
        os.close(self._wake)
        os.close(self._lock)
        close_all(self._spare)
        for runtime in self.devices.values():
            runtime.close()


def _die() -> None:
    """As ``kill -9`` does it: nobody is told, nothing is written back."""
    os.kill(os.getpid(), signal.SIGKILL)


class _Pace:
    """How busy the loop has been lately."""

    def __init__(self, spins: int) -> None:
        self.spins = spins
        self.spin = spins
        self.idle = 0
