"""A Python program's way to the connection manager of its device: requests, and events on descriptors of their own.

A device in this process gets a connection manager here, the first time that one is wanted; a NIC process has one.
Both take the same bytes (:mod:`rnic.spec.attach_cm`).
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import threading
import weakref
from dataclasses import dataclass
from errno import EBUSY, EMFILE, ENODEV, EOPNOTSUPP
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from rnic.cm.service import CmService
from rnic.nic_process.client import EventFd
from rnic.runtime.attach import Connection, connect
from rnic.runtime.driver import LocalDriver
from rnic.runtime.loop import Runtime
from rnic.runtime.remote import RemoteDriver
from rnic.spec import attach_cm as wire
from rnic.spec.errors import VerbsError
from rnic.verbs.context import Context

_PRIVATE_AT = wire.CM_REQUEST["private"].byte
_ANSWER_AT = wire.CM_RECORD["private"].byte
_SIGN = 1 << 31

_services: WeakKeyDictionary[Runtime, CmService] = WeakKeyDictionary()
"""Connection managers of this process's own devices."""
_managers: WeakKeyDictionary[Context, Manager] = WeakKeyDictionary()
_live: WeakSet[Manager] = WeakSet()
_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Event:
    """What a program is told.

    Attributes:
        event: ``EVENT_*`` of :mod:`rnic.spec.cm`.
        status: reason of a rejection, or a negative errno.
        number: the ID that it is about.
        fields: all that :data:`~rnic.spec.attach_cm.CM_RECORD` says.
        private: the peer's private data, with the zeros that its message was filled up with.
    """

    event: int
    status: int
    number: int
    fields: dict[str, int]
    private: bytes


class _Way(Protocol):
    """How requests reach the connection manager."""

    def ask(self, body: bytes) -> tuple[bytes, list[int]]:
        """The answer, and descriptors that came with it."""

    def lifelines(self) -> list[int]:
        """Descriptors that become readable when it goes."""

    def close(self) -> None:
        """The program has ended, as far as it can see."""

    def forget(self) -> None:
        """This process is a child of the one that has the way: that keeps it."""


class _Here:
    """Of a device in this process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        with _lock:
            service = _services.get(runtime)
            if service is None:
                if runtime.nic.gsi.agent is not None:
                    raise VerbsError(EBUSY, f"the connections of {runtime.nic.config.name} are managed elsewhere")
                service = _services[runtime] = CmService(random.Random(secrets.randbits(256)))
                with runtime.lock:
                    service.add_device(runtime.nic.config.name, runtime.nic)
        self._service = service

    def ask(self, body: bytes) -> tuple[bytes, list[int]]:
        made: list[int] = []

        def make_signal() -> EventFd:
            fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
            made.append(os.dup(fd))
            return EventFd(fd)

        runtime = self._runtime
        with runtime.lock:
            answer = self._service.request(self, body, make_signal, runtime.clock())
        runtime.kick()
        return answer, made

    def lifelines(self) -> list[int]:
        return []

    def close(self) -> None:
        runtime = self._runtime
        with runtime.lock:
            self._service.remove_program(self, runtime.clock())
        runtime.kick()

    def forget(self) -> None:
        pass  # all of it is memory, which the child has a copy of


class _There:
    """Of a device in the NIC process, over a connection of its own."""

    def __init__(self, driver: RemoteDriver) -> None:
        path = Path(driver.connection.sock.getpeername())
        connection = connect(path.parent)
        if connection is None:
            raise driver.connection.end()
        self._connection: Connection = connection

    def ask(self, body: bytes) -> tuple[bytes, list[int]]:
        return self._connection.ask(wire.MSG_CM, body)

    def lifelines(self) -> list[int]:
        return [self._connection.sock.fileno()]

    def close(self) -> None:
        self._connection.close()

    def forget(self) -> None:
        self._connection.forget()


class Manager:
    """One context's way to its connection manager; :func:`manager_of` makes it. Threads may use it at the same time.

    Raises:
        VerbsError: EOPNOTSUPP for a device that is neither in this process nor in a NIC process.
    """

    def __init__(self, ctx: Context) -> None:
        driver = ctx.driver
        if isinstance(driver, LocalDriver):
            self._way: _Way = _Here(driver.runtime)
        elif isinstance(driver, RemoteDriver):
            self._way = _There(driver)
        else:
            raise VerbsError(EOPNOTSUPP, f"device {driver.name} has no connection manager that this program can reach")
        self._ctx = weakref.ref(ctx)
        self._name = driver.name
        self._closed = False
        _live.add(self)
        self.ask(wire.CM_OPEN, driver.name.encode())
        ctx.add_child(self)

    def ask(self, op: int, private: bytes = b"", **fields: int) -> dict[str, int]:
        """One request; what the answer says, nothing for a few. :class:`VerbsError` where it is refused."""
        answer, fds = self._request(op, private, fields)
        _close_all(fds)
        return wire.CM_RECORD.unpack(answer) if answer else {}

    def _request(self, op: int, private: bytes, fields: dict[str, int]) -> tuple[bytes, list[int]]:
        if self._closed:
            raise VerbsError(ENODEV, f"device {self._name} is closed: open it again")
        body = bytearray(wire.CM_REQUEST.pack({"op": op, "private_bytes": len(private), **fields}))
        body[_PRIVATE_AT : _PRIVATE_AT + len(private)] = private
        try:
            return self._way.ask(bytes(body))
        except VerbsError:
            raise
        except OSError as error:
            raise VerbsError(error.errno or ENODEV, str(error.strerror)) from None

    def channel(self) -> EventChannel:
        """A new event channel."""
        answer, fds = self._request(wire.CM_CHANNEL, b"", {})
        if len(fds) != 1:
            _close_all(fds)
            raise VerbsError(EMFILE, "no descriptor came for an event channel: raise `ulimit -n`")
        return EventChannel(self, wire.CM_RECORD.get(answer, "id"), fds[0])

    def event(self, channel: int) -> Event | None:
        """The next event of a channel, if one waits."""
        answer, _ = self._request(wire.CM_GET_EVENT, b"", {"channel": channel})
        said = wire.CM_RECORD.unpack(answer)
        if said["event"] == wire.CM_NO_EVENT:
            return None
        status = (said["status"] ^ _SIGN) - _SIGN
        private = answer[_ANSWER_AT : _ANSWER_AT + said["private_bytes"]]
        return Event(said["event"], status, said["id"], said, private)

    def lifelines(self) -> list[int]:
        """Descriptors that become readable when the device goes; the next request then says so."""
        return self._way.lifelines()

    def close(self) -> None:
        """Let go of all IDs and channels; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        ctx = self._ctx()
        if ctx is not None:
            ctx.drop_child(self)
            _managers.pop(ctx, None)
        self._way.close()

    def forget(self) -> None:
        """This process is a child of the one that has the context: its IDs and channels are that one's alone."""
        self._closed = True
        self._way.forget()


_channels: WeakSet[EventChannel] = WeakSet()


class EventChannel:
    """A descriptor that is readable as often as events wait."""

    def __init__(self, manager: Manager, number: int, fd: int) -> None:
        self.number = number
        self._manager = manager
        self._fd = fd
        self._lock = threading.RLock()
        """A descriptor that one thread reads is not closed by another: its number may be another's the next moment."""
        _channels.add(self)

    def fileno(self) -> int:
        """For ``poll`` and event loops; below 0 once it is closed."""
        return self._fd

    def take(self) -> Event | None:
        """The next event, if one waits; none does once it is closed."""
        with self._lock:
            while self._fd >= 0:
                try:
                    os.eventfd_read(self._fd)
                except BlockingIOError:
                    return None
                event = self._manager.event(self.number)
                if event is not None:
                    return event
        return None

    def close(self) -> None:
        """Close it, and with it the IDs whose events come here; a second call does nothing."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            with contextlib.suppress(VerbsError):  # the device has gone, and all IDs with it
                self._manager.ask(wire.CM_CLOSE_CHANNEL, channel=self.number)
            os.close(fd)


def manager_of(ctx: Context) -> Manager:
    """The way of a context to its connection manager."""
    with _lock:
        manager = _managers.get(ctx)
        if manager is None:
            manager = _managers[ctx] = Manager(ctx)
        return manager


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _after_fork() -> None:
    """A child must not keep its parent's connection to the NIC process open when the parent dies."""
    global _lock  # noqa: PLW0603 - the name is what everybody takes it by
    _lock = threading.RLock()  # a thread that is not there may have held the other
    for channel in list(_channels):
        channel._lock = threading.RLock()
    for manager in list(_live):
        manager.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


__all__ = ["Event", "EventChannel", "Manager", "manager_of"]
