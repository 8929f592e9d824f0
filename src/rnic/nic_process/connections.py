"""The connections of programs to the NIC process: admission, messages in order, and their end."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator

from rnic.nic_process.accept import Refusal
from rnic.nic_process.bounded_work import ArenaCorrupt
from rnic.nic_process.client import Client, close_all
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.devices import ConnectionManager, DeviceTable
from rnic.nic_process.handlers import Handlers
from rnic.spec import attach
from rnic.spec.errors import RnicError
from rnic.trace.guard import Guard

MAX_CLIENTS = 1024
_MAX_REFUSED = 32
"""Maximum number of programs refused because the process is full whose HELLO was not answered yet."""
_UCRED = struct.Struct("3i")
_INT_BYTES = 4


class Connections:
    """Reads and answers the messages of all clients.

    Args:
        clients: clients by descriptor; only this object adds and removes them.
        devices: the process's devices.
        handlers: answer messages.
        selector: polls the connections.
        cm: manages connections; ``None`` for none.
        guard: gets internal errors; its counters have ``slots_given_up``.
        on_drop: called after a client's descriptors were closed.
    """

    def __init__(
        self,
        clients: dict[int, Client],
        devices: DeviceTable,
        handlers: Handlers,
        selector: selectors.BaseSelector,
        cm: ConnectionManager | None,
        guard: Guard,
        on_drop: Callable[[], None],
    ) -> None:
        self._clients = clients
        self._devices = devices
        self._handlers = handlers
        self._selector = selector
        self._cm = cm
        self._guard = guard
        self._on_drop = on_drop
        self.last_drop = time.monotonic()
        """Time when the last client left, in seconds."""
        self.has_garbage = False
        """True if a context was dropped whose memory is still mapped, since its queue pairs form reference cycles."""

    def add(self, sock: socket.socket, refusal: Refusal | None) -> None:
        """Make a client of a new connection, or close it if it belongs to another user."""
        pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if uid != os.geteuid():
            sock.close()
            return
        refused = [client for client in self._clients.values() if client.refusal is not None]
        if refusal is None and len(self._clients) - len(refused) >= MAX_CLIENTS:
            refusal = errno.EUSERS, f"it serves {MAX_CLIENTS} connections: end programs that no longer need it"
        if refusal is not None and len(refused) >= _MAX_REFUSED:
            self.drop(refused[0])
        sock.setblocking(False)
        client = Client(sock, pid, refusal)
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._guarded_read(client))
        self._clients[sock.fileno()] = client

    def _guarded_read(self, client: Client) -> None:
        try:
            self.read(client)
        except Exception as error:  # noqa: BLE001 - the last guard
            self._guard.caught("message", error, f"program {client.pid}")
            self.drop(client)

    def read(self, client: Client) -> None:
        """Read one message of a client, and answer it."""
        fds: list[int] = []
        flags = 0
        try:
            data, control, flags, _ = client.sock.recvmsg(
                attach.MAX_MESSAGE, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except (OSError, MemoryError):
            data, control = b"", []
        try:
            for level, kind, payload in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    _add_descriptors(payload, fds)
        except MemoryError:
            data = b""
        if len(data) < attach.HEADER.size:
            close_all(fds)
            self.drop(client)
            return
        kind, token = struct.unpack_from("<II", data)
        out: list[int] = []
        made: list[Descriptor] = []
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
        except (RnicError, ValueError, OverflowError, RecursionError) as error:  # the last comes from nested JSON
            code, body = errno.EINVAL, str(error).encode()
        except ArenaCorrupt as error:  # the arena may be another program's
            _close_made(made)
            made = []
            self.drop_corrupt(error)
            code, body = errno.EIO, b"a program had written nonsense into its slot, and has lost it: ask again"
        except BaseException:
            _close_made(made)
            raise
        finally:
            close_all(fds)
        try:
            if client.sock.fileno() in self._clients:
                self._devices.watch_client(client)
            socket.send_fds(client.sock, [struct.pack("<III", kind, token, code) + body], [] if code else out)
        except (OSError, MemoryError):  # the client is gone, does not read its answers, or there is no memory for one
            self.drop(client)
        finally:
            _close_made(made)
        if client.refusal is not None:
            self.drop(client)

    def drop_corrupt(self, error: ArenaCorrupt) -> None:
        """Drop the client whose arena is corrupt."""
        self._guard.counters.bump("slots_given_up")
        for client in [client for client in self._clients.values() if client.slot is error.owner]:
            self.drop(client)

    @contextlib.contextmanager
    def _releasing(self, client: Client) -> Iterator[None]:
        """Do one step of a client's release; an error in it does not prevent the other steps."""
        with contextlib.suppress(ArenaCorrupt), self._guard.around("release", f"program {client.pid}"):
            if client.slot is None:
                yield
            else:
                with client.slot.work:
                    yield

    def drop(self, client: Client) -> None:
        """Release everything that a client has, and close its connection; a second call does nothing."""
        if self._clients.pop(client.sock.fileno(), None) is None:
            return
        self.last_drop = time.monotonic()
        devices = self._devices
        with self._releasing(client):
            self._selector.unregister(client.sock)
        client.sock.close()
        if self._cm is not None:
            with self._releasing(client):
                self._cm.remove_program(client, time.monotonic_ns())
        if client.runtime is not None and client.uar is not None:
            with self._releasing(client):
                client.runtime.nic.unmap_uar(client.uar)
                client.runtime.kick()
            with self._releasing(client):
                devices.watch_client(client)
            for vector, fire in client.vectors.items():
                if client.runtime.handlers.get(vector) is fire:  # the number may be another client's by now
                    del client.runtime.handlers[vector]
                with self._releasing(client):
                    fire()  # wake threads that still sleep on it
                fire.close()
        if client.device:
            with self._releasing(client):
                devices.on_context(client, False)
        if client.device in devices and client.slot is None:
            devices[client.device].bypass.without_slot.pop(client.pid, None)
        if client.slot is not None:
            devices.unwatch_slot(client.slot)
            with self._releasing(client):
                devices[client.device].bypass.release_slot(client.slot)
        if client.lines is not None:
            client.lines.close()
        if client.capture is not None:
            with self._releasing(client):
                client.capture.close()
        if client.memory is not None:
            with self._releasing(client):
                client.memory.close()
            self.has_garbage = True
        for name in client.added:
            # a device on an arbitrary free port cannot be found by another program
            if name in devices and devices[name].port == 0 and not devices.in_use(name):
                with self._releasing(client):
                    devices.remove(name)
        client.release()
        self._on_drop()


def _add_descriptors(payload: bytes, fds: list[int]) -> None:
    """Add the descriptors of a control message; close them if there is no memory."""
    before = len(fds)
    try:
        fds += memoryview(payload[: len(payload) & -_INT_BYTES]).cast("i")
    except MemoryError:
        del fds[before:]
        for fd in memoryview(payload[: len(payload) & -_INT_BYTES]).cast("i"):  # there may be memory again
            os.close(fd)
        raise


def _close_made(made: list[Descriptor]) -> None:
    for each in made:
        each.close()


__all__ = ["MAX_CLIENTS", "Connections"]
