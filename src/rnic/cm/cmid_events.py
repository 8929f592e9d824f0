"""Companion classes of :class:`rnic.cm.cmid.CMID`: addresses, events and their channels, connection parameters."""

from __future__ import annotations

import socket
from errno import EINVAL, EPROTONOSUPPORT
from types import TracebackType
from typing import Any

from rnic.cm import cm_enums as ce
from rnic.cm.cm_connection import CmConnectError
from rnic.cm.line_socket import tcp_port
from rnic.cm.manager import Event, EventChannel, Manager
from rnic.cm.work_queue import wait_event
from rnic.spec.errors import VerbsError
from rnic.verbs.attrs import GID
from rnic.verbs.context import Context

MOST_PRIVATE = 255
"""Most private data that librdmacm's length byte allows; each message has room for less, and checks it."""


class Place:
    """An address and a port: ``gid`` of 16 bytes, the address as ``text``, ``port`` in rdma_cm's port space."""

    def __init__(self, host: str, service: int | str | None) -> None:
        self.port = tcp_port(host, 0 if service is None else service, 0)
        try:
            found = socket.getaddrinfo(host, self.port, type=socket.SOCK_DGRAM)[0]
        except (OSError, UnicodeError) as error:
            raise CmConnectError(f"cannot look up {host}: {getattr(error, 'strerror', None) or error}") from None
        self.family: int = found[0]
        self.sockaddr: Any = found[4]
        self.text = str(found[4][0])
        self.gid: bytes = GID(self.text.partition("%")[0]).raw


class AddrInfo:
    """Addresses on which a :class:`~rnic.cm.cmid.CMID` listens, or to which it connects.

    Args:
        src: own address, a name or an IP address. A NIC is made on it in this process, unless there is one.
        dst: the peer's address.
        src_service: own port.
        dst_service: the peer's port.
        port_space: ``RDMA_PS_TCP`` (also 0) or ``RDMA_PS_UDP``.
        flags: ``RAI_PASSIVE`` for a listener.
        udp_port: UDP port of the NIC, 4791 by default; peers must have the same. Not in pyverbs.
        context: use this opened device, such as ``rnic.open(addr)`` gives one of the NIC process. Not in pyverbs.

    Raises:
        CmConnectError: an address cannot be resolved.
        VerbsError: EPROTONOSUPPORT for another port space, EINVAL without an address that is needed.
    """

    def __init__(
        self,
        src: str | None = None,
        dst: str | None = None,
        src_service: int | str | None = None,
        dst_service: int | str | None = None,
        port_space: int = 0,
        flags: int = 0,
        *,
        udp_port: int | None = None,
        context: Context | None = None,
    ) -> None:
        self.port_space = checked_port_space(port_space)
        self.passive = bool(flags & ce.RAI_PASSIVE)
        self.src = None if src is None else Place(src, src_service)
        self.dst = None if dst is None else Place(dst, dst_service)
        self.udp_port = udp_port
        self.context = context
        if self.passive and self.src is None:
            raise VerbsError(EINVAL, "AddrInfo with RAI_PASSIVE has no src: give the address to listen on")
        if not self.passive and self.src is None and self.dst is None:
            raise VerbsError(EINVAL, "AddrInfo has neither src nor dst: give the peer's address as dst")

    def close(self) -> None:
        """Do nothing; for pyverbs compatibility."""


def checked_port_space(port_space: int) -> int:
    """Return a supported port space, TCP for 0; raise ``VerbsError`` for another."""
    if port_space not in (0, ce.RDMA_PS_TCP, ce.RDMA_PS_UDP):
        raise VerbsError(
            EPROTONOSUPPORT,
            f"port space {port_space:#x} is not supported: use RDMA_PS_TCP or RDMA_PS_UDP, or librdmacm's own under"
            " rnic exec",
        )
    return port_space or ce.RDMA_PS_TCP


class ConnParam:
    """The parameters of a connection.

    Args:
        resources: READs and atomics that this side answers at a time.
        depth: READs and atomics that this side has outstanding at a time.
        flow_control: for pyverbs compatibility; credits are always on.
        retry: retries.
        rnr_retry: retries after RNR.
        srq: the program's own queue pair uses a shared receive queue.
        qp_num: number of the program's own queue pair, if the CMID has none.
    """

    def __init__(
        self,
        resources: int = 1,
        depth: int = 1,
        flow_control: int = 0,
        retry: int = 5,
        rnr_retry: int = 5,
        srq: int = 0,
        qp_num: int = 0,
    ) -> None:
        for name, value, most in (
            ("resources", resources, 0xFF),
            ("depth", depth, 0xFF),
            ("retry", retry, 7),
            ("rnr_retry", rnr_retry, 7),
            ("qp_num", qp_num, 0xFFFFFF),
        ):
            if not 0 <= value <= most:
                raise VerbsError(EINVAL, f"{name}={value} is out of range; use 0 to {most}")
        self.qpn = qp_num
        self.private_data = b""
        self.fields = {
            "responder_resources": resources,
            "initiator_depth": depth,
            "flow_control": int(bool(flow_control)),
            "retry_count": retry,
            "rnr_retry_count": rnr_retry,
            "srq": int(bool(srq)),
        }

    def set_private_data(self, data: bytes | str) -> None:
        """Set the private data for the peer.

        Args:
            data: bytes; text becomes UTF-8. Each message has room for some of the 255 bytes that a length byte holds.
        """
        data = data.encode() if isinstance(data, str) else bytes(data)
        if len(data) > MOST_PRIVATE:
            raise VerbsError(EINVAL, f"private data of {len(data)} bytes: at most {MOST_PRIVATE}")
        self.private_data = data


class CMEventChannel:
    """The channel of CMIDs' events; a CMID that works synchronously has one of its own."""

    def __init__(self) -> None:
        self.closed = False
        self._channels: dict[Manager, EventChannel] = {}
        self.ids: dict[tuple[Manager, int], Any] = {}
        """CMIDs by their manager and number."""

    def number_at(self, manager: Manager) -> int:
        """Return the channel's number in a device's connection manager."""
        self._check()
        channel = self._channels.get(manager)
        if channel is None:
            channel = self._channels[manager] = manager.channel()
        return channel.number

    def _check(self) -> None:
        if self.closed:
            raise VerbsError(EINVAL, "the event channel is closed; open a new one")

    def filenos(self) -> list[int]:
        """Return descriptors that are readable while events wait, or when a device is gone."""
        found = []
        for manager, channel in list(self._channels.items()):
            found += [channel.fileno(), *manager.hangup_filenos()]
        return found

    def get_event(self) -> tuple[Manager, Event] | None:
        """Return the next event with its manager, or ``None``."""
        for manager, channel in list(self._channels.items()):
            event = channel.get_event()
            if event is not None:
                return manager, event
        return None

    def wait(self, devices: list[Context]) -> tuple[Manager, Event]:
        """Wait for the next event; return it with its manager.

        Raises:
            VerbsError: EINVAL if no event can ever come, or the channel is closed, possibly by another thread.
        """

        def take() -> tuple[Manager, Event] | None:
            found = self.get_event()
            if found is None:
                self._check()
                if not self._channels:
                    raise VerbsError(EINVAL, "no CMID of this event channel has an address: no event can come")
                for ctx in devices:
                    ctx.driver.check()
                    ctx.driver.rest()
            return found

        event = wait_event(take, self.filenos, None)
        assert event is not None  # without a timeout
        return event

    def close(self) -> None:
        """Close the channel and the CMIDs whose events come here; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        for each in list(self.ids.values()):
            each.close()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def __enter__(self) -> CMEventChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class CMEvent:
    """The next event of a channel; the constructor waits for it.

    Args:
        channel: the channel to wait on.

    Raises:
        VerbsError: EINVAL if no event can ever come, or the channel is closed.

    Attributes:
        event_type: ``RDMA_CM_EVENT_*``.
        status: reason of a rejection, or a negative errno; 0 for success.
        private_data: the peer's private data, zero-padded as in its message.
        about: CMID of the event, ``None`` if it is closed or not made yet. Not in pyverbs.
    """

    def __init__(self, channel: CMEventChannel) -> None:
        self.channel = channel
        contexts = {each.context: None for each in channel.ids.values() if each.context is not None}
        self.manager, self.event = channel.wait(list(contexts))
        self.about = channel.ids.get((self.manager, self.event.number))
        self.event_type = self.event.event if self.about is None else self.about.handle_event(self.event)
        self.status = self.event.status
        self.private_data = self.event.private

    def event_str(self) -> str:
        """Return the event's name, as ``rdma_event_str`` does."""
        return ce.EVENT_NAMES.get(self.event_type, f"unknown event {self.event_type}")

    def ack_cm_event(self) -> None:
        """Do nothing; for pyverbs compatibility."""

    close = ack_cm_event


__all__ = ["AddrInfo", "CMEvent", "CMEventChannel", "ConnParam"]
