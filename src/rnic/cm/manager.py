"""A Python program's interface to the connection manager of its device: requests, and event channels.

For a device in this process, the connection manager is created here on first use; a NIC process has its own. Both
take the same bytes (:mod:`rnic.spec.attach_cm`).
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

from rnic.cm.rc_connection import REMOTE_RIGHTS
from rnic.cm.service import CmService
from rnic.link.own_fd import OwnFd
from rnic.nic_process.client import EventFd
from rnic.runtime.attach import ProcessConnection, connect
from rnic.runtime.driver import LocalDriver
from rnic.runtime.loop import Runtime
from rnic.runtime.remote import RemoteDriver
from rnic.spec import attach_cm as wire
from rnic.spec import cm
from rnic.spec.errors import VerbsError
from rnic.verbs.attrs import GID, AHAttr, GlobalRoute, QPAttr
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
    """An event of an ID.

    Attributes:
        event: ``EVENT_*`` of :mod:`rnic.spec.cm`.
        status: reason of a rejection, or a negative errno.
        number: number of the event's ID.
        fields: fields of :data:`~rnic.spec.attach_cm.CM_RECORD`.
        private: the peer's private data, zero-padded as in its message.
    """

    event: int
    status: int
    number: int
    fields: dict[str, int]
    private: bytes


class _Transport(Protocol):
    """Carries requests to the connection manager."""

    def request(self, body: bytes) -> tuple[bytes, list[int]]:
        """Send a request; return the answer and the descriptors that came with it."""

    def hangup_filenos(self) -> list[int]:
        """Return descriptors that become readable when the connection manager is gone."""

    def close(self) -> None:
        """Destroy the program's IDs and channels."""

    def forget(self) -> None:
        """Leave everything to the parent of this process, which made it."""


class _LocalTransport:
    """Transport to the connection manager of a device in this process."""

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

    def request(self, body: bytes) -> tuple[bytes, list[int]]:
        made: list[int] = []

        def make_signal() -> EventFd:
            signal = EventFd.semaphore()
            made.append(os.dup(signal.fd))
            return signal

        runtime = self._runtime
        with runtime.lock:
            answer = self._service.request(self, body, make_signal, runtime.clock())
        runtime.kick()
        return answer, made

    def hangup_filenos(self) -> list[int]:
        return []

    def close(self) -> None:
        runtime = self._runtime
        with runtime.lock:
            self._service.remove_program(self, runtime.clock())
        runtime.kick()

    def forget(self) -> None:
        pass  # nothing to close: the child has a copy of all this memory


class _ProcessTransport:
    """Transport to the NIC process, over a connection of its own."""

    def __init__(self, driver: RemoteDriver) -> None:
        path = Path(driver.connection.sock.getpeername())
        connection = connect(path.parent)
        if connection is None:
            raise driver.connection.mark_ended()
        self._connection: ProcessConnection = connection

    def request(self, body: bytes) -> tuple[bytes, list[int]]:
        return self._connection.request(wire.MSG_CM, body, may_lack=True)

    def hangup_filenos(self) -> list[int]:
        return [self._connection.sock.fileno()]

    def close(self) -> None:
        self._connection.close()

    def forget(self) -> None:
        self._connection.forget()


class Manager:
    """One context's access to the connection manager; :func:`manager_of` makes it. It is thread-safe.

    Raises:
        VerbsError: EOPNOTSUPP for a device that is neither in this process nor in a NIC process.
    """

    def __init__(self, ctx: Context) -> None:
        driver = ctx.driver
        if isinstance(driver, LocalDriver):
            self._transport: _Transport = _LocalTransport(driver.runtime)
        elif isinstance(driver, RemoteDriver):
            self._transport = _ProcessTransport(driver)
        else:
            raise VerbsError(EOPNOTSUPP, f"device {driver.name} has no connection manager that this program can reach")
        self._ctx = weakref.ref(ctx)
        self._name = driver.name
        self._closed = False
        _live.add(self)
        self.request(wire.CM_OPEN, driver.name.encode())
        ctx.add_child(self)

    def request(self, op: int, private: bytes = b"", **fields: int) -> dict[str, int]:
        """Execute one request; return the fields of the answer, if any. Raise :class:`VerbsError` if refused."""
        answer, fds = self._request(op, private, fields)
        _close_all(fds)
        return wire.CM_RECORD.unpack(answer) if answer else {}

    def _request(self, op: int, private: bytes, fields: dict[str, int]) -> tuple[bytes, list[int]]:
        if self._closed:
            raise VerbsError(ENODEV, f"device {self._name} is closed: open it again")
        body = bytearray(wire.CM_REQUEST.pack({"op": op, "private_bytes": len(private), **fields}))
        body[_PRIVATE_AT : _PRIVATE_AT + len(private)] = private
        try:
            return self._transport.request(bytes(body))
        except VerbsError:
            raise
        except OSError as error:
            raise VerbsError(error.errno or ENODEV, str(error.strerror)) from None

    def channel(self) -> EventChannel:
        """Make an event channel."""
        answer, fds = self._request(wire.CM_CHANNEL, b"", {})
        number = wire.CM_RECORD.get(answer, "id")
        if len(fds) != 1:
            _close_all(fds)
            self.request(wire.CM_CLOSE_CHANNEL, channel=number)
            raise VerbsError(EMFILE, "no descriptor came for an event channel: raise `ulimit -n`")
        return EventChannel(self, number, fds[0])

    def create_id(self, channel: int, port_space: int = cm.PS_TCP, qp_type: int = wire.QP_RC) -> int:
        """Create an ID whose events come to a channel; return its number."""
        return self.request(wire.CM_CREATE, channel=channel, port_space=port_space, qp_type=qp_type)["id"]

    def get_event(self, channel: int) -> Event | None:
        """Return the next event of a channel, or ``None``."""
        answer, _ = self._request(wire.CM_GET_EVENT, b"", {"channel": channel})
        fields = wire.CM_RECORD.unpack(answer)
        if fields["event"] == wire.CM_NO_EVENT:
            return None
        status = (fields["status"] ^ _SIGN) - _SIGN
        private = answer[_ANSWER_AT : _ANSWER_AT + fields["private_bytes"]]
        return Event(fields["event"], status, fields["id"], fields, private)

    def qp_attr(self, number: int, udp_port: int) -> QPAttr:
        """Return the attributes for RTR and RTS of a connection's queue pair, as both sides negotiated them."""
        fields = self.request(wire.CM_QUERY, id=number)
        attr = QPAttr()
        attr.qp_access_flags = REMOTE_RIGHTS
        attr.path_mtu = fields["path_mtu"]
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = fields["qpn"], fields["rq_psn"], fields["sq_psn"]
        attr.max_dest_rd_atomic, attr.max_rd_atomic = fields["responder_resources"], fields["initiator_depth"]
        attr.min_rnr_timer, attr.timeout = fields["min_rnr_timer"], fields["ack_timeout"]
        attr.retry_cnt, attr.rnr_retry = fields["retry_count"], fields["rnr_retry_count"]
        ctx = self._ctx()
        own = 0 if ctx is None else ctx.gid_index
        route = GlobalRoute(GID(fields["dst"].to_bytes(16, "little")), own, traffic_class=fields["tos"])
        attr.ah_attr = AHAttr(route, udp_dport=udp_port)
        return attr

    def hangup_filenos(self) -> list[int]:
        """Return descriptors that become readable when the device is gone; the next request then raises."""
        return self._transport.hangup_filenos()

    def close(self) -> None:
        """Destroy all IDs and channels; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        ctx = self._ctx()
        if ctx is not None:
            ctx.drop_child(self)
            _managers.pop(ctx, None)
        self._transport.close()

    def forget(self) -> None:
        """Leave all IDs and channels to the parent of this process."""
        self._closed = True
        self._transport.forget()


_channels: WeakSet[EventChannel] = WeakSet()


class EventChannel:
    """An event channel: its descriptor is readable once per waiting event."""

    def __init__(self, manager: Manager, number: int, fd: int) -> None:
        self.number = number
        self._manager = manager
        self._own = OwnFd(fd, private=False)
        self._lock = threading.RLock()
        """Held while the descriptor is read: another thread might close it, and the kernel might reuse its number."""
        _channels.add(self)

    def fileno(self) -> int:
        """Return the descriptor for ``poll`` and event loops; negative once closed."""
        return self._own.fd

    def get_event(self) -> Event | None:
        """Return the next event, or ``None``; always ``None`` once closed."""
        with self._lock:
            while self._own.valid():
                try:
                    os.eventfd_read(self._own.fd)
                except BlockingIOError:
                    return None
                event = self._manager.get_event(self.number)
                if event is not None:
                    return event
        return None

    def close(self) -> None:
        """Close the channel and the IDs whose events come here; a second call does nothing."""
        with self._lock:
            if self._own.fd < 0:
                return
            with contextlib.suppress(VerbsError):  # the device is gone, and all IDs with it
                self._manager.request(wire.CM_CLOSE_CHANNEL, channel=self.number)
            self._own.close()


def manager_of(ctx: Context) -> Manager:
    """Return the connection manager of a context's device."""
    with _lock:
        manager = _managers.get(ctx)
        if manager is None:
            manager = _managers[ctx] = Manager(ctx)
        return manager


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _after_fork() -> None:
    """Close the parent's connections to the NIC process in a child, so that none stays open when the parent dies."""
    global _lock  # noqa: PLW0603 - all users take it by its name
    _lock = threading.RLock()  # a thread that the child does not have may hold the old one
    for channel in list(_channels):
        channel._lock = threading.RLock()
    for manager in list(_live):
        manager.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


__all__ = ["Event", "EventChannel", "Manager", "manager_of"]
