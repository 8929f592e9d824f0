"""The rdma_cm service for programs, sans I/O: IDs, port spaces and event channels on top of each port's CM agent.

One service covers all devices of a NIC process, or of a program with devices of its own. The caller identifies each
program by a key; requests and answers are the bytes of :mod:`rnic.spec.attach_cm`, so that a C library, a Python
program and a test use one boundary. Service IDs and the IP header in private data are those of annex A11.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from rnic.cm.agent import CmAgent
from rnic.cm.ids import (
    IPV4,
    MAPPED,
    NOWHERE,
    Channel,
    CmId,
    CmPort,
    EventSignal,
    Program,
    family,
    ip_header,
    local_parameters,
    pack_record,
    qp_attributes,
    remote_offer,
)
from rnic.cm.records import CmError, ConnectionEvent, ConnectionRecord
from rnic.cm.state_machine import Input, State
from rnic.spec import attach_cm as wire
from rnic.spec import cm
from rnic.wire.cm import IP_HEADER
from rnic.wire.cm_message import REJECT_REASONS

if TYPE_CHECKING:
    from rnic.device.nic import Nic

MAX_IDS = 16_384
"""Most IDs of one program."""
MAX_CHANNELS = 1_024
MAX_EVENTS = 65_536
"""Most events that wait on one channel."""
_MULTICAST_QPN = 0xFFFFFF
_WILDCARDS = (NOWHERE, MAPPED + bytes(4))
"""Wildcard addresses: of either family, and of IPv4."""
_LOOPBACK = bytes(15) + b"\x01"
_ADDRESS_FAMILY = -97
_NO_DEVICE = -19


class CmService:
    """IDs and channels of all programs.

    Args:
        rng: port numbers, and the connection managers' communication IDs, come from it.
    """

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self._ports: dict[str, CmPort] = {}
        self._clients: dict[Hashable, Program] = {}
        self._now_ns = 0
        self._synchronous_id: CmId | None = None
        """The ID whose next event answers the current request."""
        self._synchronous_event = b""

    # ------------------------------------------------------------------------------------ devices

    def add_device(self, name: str, nic: Nic) -> None:
        """Manage the connections of a new device."""
        agent = CmAgent(nic.gsi, random.Random(self._random.getrandbits(64)), nic.counters)
        nic.gsi.agent = agent
        port = self._ports[name] = CmPort(name, nic, agent)
        for client in self._clients.values():
            for cm_id in [cm_id for cm_id in client.ids.values() if cm_id.wildcard]:
                self._bind_on(cm_id, port)

    def _bind_on(self, cm_id: CmId, port: CmPort) -> None:
        """Bind a wildcard ID on a device that came later, unless its port is taken there."""
        if port not in self._usable_ports(cm_id.client) or not _covers(cm_id, port):
            return
        try:
            self._assign_port(cm_id, [port], cm_id.src_port)
        except OSError:
            port.agent.counters.bump("cm_late_listeners_refused")
            return
        if cm_id.backlog is not None:
            self._listen_on(cm_id, port)

    def remove_device(self, name: str) -> None:
        """Report the removal of a device to the IDs that were bound to it."""
        port = self._ports.pop(name, None)
        if port is None:
            return
        port.nic.gsi.agent = None
        for client in self._clients.values():
            for cm_id in client.ids.values():
                # the port is free on a later device of the same name
                cm_id.bound = [bound for bound in cm_id.bound if bound is not port]
                cm_id.listeners = [pair for pair in cm_id.listeners if pair[0] is not port]
            for cm_id in [cm_id for cm_id in client.ids.values() if cm_id.port is port]:
                cm_id.connection = None
                cm_id.port = None
                self._emit(cm_id, cm.EVENT_DEVICE_REMOVAL)

    # ------------------------------------------------------------------------------------ programs

    def request(self, key: Hashable, body: bytes, make_signal: Callable[[], EventSignal], now_ns: int) -> bytes:
        """Execute one request of a program.

        Args:
            key: identifies the program.
            body: :data:`~rnic.spec.attach_cm.CM_REQUEST`.
            make_signal: called for a new event channel; the signal that it returns is raised once for each event.
            now_ns: the time.

        Returns:
            :data:`~rnic.spec.attach_cm.CM_RECORD`.

        Raises:
            OSError: with the errno and a message.
        """
        self._now_ns = now_ns
        fields = wire.CM_REQUEST.unpack(body)
        data = body[wire.CM_REQUEST["private"].byte :][: min(fields["private_bytes"], wire.MAX_PRIVATE)]
        client = self._clients.setdefault(key, Program())
        op = fields["op"]
        try:
            if op == wire.CM_OPEN:
                names = frozenset(filter(None, data.decode(errors="replace").split(",")))
                if fields["flags"] & wire.CM_MORE:
                    names |= client.devices or frozenset()
                client.devices = names or None
                return pack_record(id=0)
            if op == wire.CM_CHANNEL:
                return self._open_channel(client, make_signal)
            if op == wire.CM_CLOSE_CHANNEL:
                return self._close_channel(client, fields["channel"])
            if op == wire.CM_CREATE:
                return self._create(client, fields)
            if op == wire.CM_GET_EVENT:
                return self._get_events(client, fields["channel"], fields["value"])
            handler = _HANDLERS.get(op)
            if handler is None:
                raise OSError(errno.ENOSYS, f"CM request {op} is unknown")
            cm_id = client.ids.get(fields["id"])
            if cm_id is None:
                raise OSError(errno.EINVAL, f"CM ID {fields['id']} is not there")
            if op in _SYNCHRONOUS and fields["flags"] & wire.CM_TELL:
                self._synchronous_id = cm_id
            handler(self, cm_id, fields, data)
            return b"" if op == wire.CM_DESTROY else self._synchronous_event or self._describe(cm_id)
        except CmError as error:
            raise OSError(error.errno, str(error)) from None
        finally:
            self._synchronous_id, self._synchronous_event = None, b""

    def remove_program(self, key: Hashable, now_ns: int) -> None:
        """Destroy the IDs and channels of a program that has ended."""
        self._now_ns = now_ns
        client = self._clients.pop(key, None)
        if client is not None:
            for channel in client.channels.values():
                channel.events.clear()  # otherwise destroying each ID would search all events
            for cm_id in list(client.ids.values()):
                self._destroy(cm_id)
            for channel in client.channels.values():
                channel.signal.close()

    def _open_channel(self, client: Program, make_signal: Callable[[], EventSignal]) -> bytes:
        if len(client.channels) >= MAX_CHANNELS:
            raise OSError(errno.ENOMEM, f"a program has at most {MAX_CHANNELS} event channels")
        client.last += 1
        client.channels[client.last] = Channel(client.last, make_signal())
        return pack_record(id=client.last)

    def _close_channel(self, client: Program, number: int) -> bytes:
        channel = self._channel(client, number)
        channel.events.clear()  # their IDs are destroyed; each would search all events
        for cm_id in [cm_id for cm_id in client.ids.values() if cm_id.channel is channel]:
            self._destroy(cm_id)
        client.channels.pop(number).signal.close()
        return pack_record(id=number)

    @staticmethod
    def _channel(client: Program, number: int) -> Channel:
        channel = client.channels.get(number)
        if channel is None:
            raise OSError(errno.EINVAL, f"event channel {number} is not there")
        return channel

    def _create(self, client: Program, fields: dict[str, int]) -> bytes:
        if fields["port_space"] not in cm.PORT_SPACES:
            raise OSError(errno.EPROTONOSUPPORT, f"port space {fields['port_space']:#x} is unknown")
        return self._describe(self._new(client, self._channel(client, fields["channel"]), fields["port_space"], fields))

    @staticmethod
    def _new(client: Program, channel: Channel, port_space: int, fields: dict[str, int]) -> CmId:
        if len(client.ids) >= MAX_IDS:
            raise OSError(errno.ENOMEM, f"a program has at most {MAX_IDS} CM IDs: destroy some")
        client.last += 1
        cm_id = client.ids[client.last] = CmId(client.last, client, channel, port_space, fields["qp_type"])
        return cm_id

    # ------------------------------------------------------------------------------------- events

    def _emit(self, cm_id: CmId, event: int, status: int = 0, private: bytes = b"", **more: int) -> None:
        channel = cm_id.channel
        if cm_id is self._synchronous_id:
            self._synchronous_event = self._describe(cm_id, event=event, status=status, private=private, **more)
            return
        if len(channel.events) >= MAX_EVENTS:
            return
        channel.events.append((cm_id, self._describe(cm_id, event=event, status=status, private=private, **more)))
        channel.signal()

    def _get_events(self, client: Program, number: int, most: int) -> bytes:
        events = self._channel(client, number).events
        count = min(len(events), max(1, min(most, wire.CM_MOST_EVENTS)))
        taken = [events.popleft() for _ in range(count)]
        for cm_id, _ in taken:
            if cm_id.connection is not None:  # the first event of a passive ID is its connection request
                CmAgent.release_backlog(cm_id.connection)
        return b"".join([event for _, event in taken]) or pack_record(id=number)

    def _describe(
        self, cm_id: CmId, event: int = wire.CM_NO_EVENT, status: int = 0, private: bytes = b"", **more: int
    ) -> bytes:
        """Return the record of an ID, with everything that a program may query."""
        values = {
            "id": cm_id.number,
            "src": int.from_bytes(cm_id.src, "little"),
            "dst": int.from_bytes(cm_id.dst, "little"),
            "src_port": cm_id.src_port,
            "dst_port": cm_id.dst_port,
            "port_space": cm_id.port_space,
            "qp_type": cm_id.qp_type,
            "min_rnr_timer": cm.MIN_RNR_TIMER,
            "ack_timeout": cm.ACK_TIMEOUT,
        }
        if cm_id.port is not None:
            values["device"] = int.from_bytes(cm_id.port.name.encode(), "little")
            values["path_mtu"] = cm_id.port.nic.gsi.mtu_code
        connection = cm_id.connection
        if connection is not None:
            values |= qp_attributes(connection, cm_id.passive)
        return pack_record(event=event, status=status & 0xFFFF_FFFF, private=private, **(values | more))

    # ----------------------------------------------------------------------------------- addresses

    def _usable_ports(self, client: Program) -> Iterable[CmPort]:
        return [port for name, port in self._ports.items() if client.devices is None or name in client.devices]

    def _port_at(self, client: Program, gid: bytes) -> CmPort:
        for port in self._usable_ports(client):
            if port.gid == gid:
                return port
        raise OSError(errno.EADDRNOTAVAIL, "no device of this program has this address: see rnic exec --addr")

    def _bind(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        """Bind to one or all addresses, and to a given or free port."""
        if cm_id.bound or cm_id.wildcard:
            raise OSError(errno.EINVAL, "the ID is bound already")
        src = self._unless_loopback(cm_id.client, fields["src"].to_bytes(16, "little"))
        cm_id.reuse = bool(fields["flags"] & wire.CM_REUSEADDR)
        cm_id.afonly = family(src) == IPV4 or bool(fields["flags"] & wire.CM_AFONLY)
        if src in _WILDCARDS:
            self._reserve_wildcard(cm_id, src, fields["src_port"])
            return
        port = self._port_at(cm_id.client, src)
        self._reserve_port(cm_id, src, [port], fields["src_port"])
        cm_id.port = port

    def _unless_loopback(self, client: Program, src: bytes) -> bytes:
        """Return the wildcard for a loopback address that no device has, as Linux does: libfabric binds to it."""
        if any(port.gid == src for port in self._usable_ports(client)):
            return src
        if src.startswith(MAPPED + b"\x7f"):
            return MAPPED + bytes(4)
        return NOWHERE if src == _LOOPBACK else src

    def _reserve_wildcard(self, cm_id: CmId, src: bytes, number: int) -> None:
        """Reserve a port number on all devices, and on those that come later."""
        cm_id.src = src
        ports = [port for port in self._usable_ports(cm_id.client) if _covers(cm_id, port)]
        self._reserve_port(cm_id, src, ports, number)
        cm_id.wildcard = True

    def _reserve_port(self, cm_id: CmId, src: bytes, ports: list[CmPort], number: int) -> None:
        """Reserve a port number at an address, on devices; 0 takes any free port."""
        space = cm_id.port_space
        if not number:
            span = cm.LAST_DYNAMIC_PORT - cm.FIRST_DYNAMIC_PORT + 1
            first = self._random.randrange(span)
            number = next(
                (
                    port
                    for step in range(span)
                    if not any(
                        (space, port := cm.FIRST_DYNAMIC_PORT + (first + step) % span) in device.bound
                        for device in ports
                    )
                ),
                0,
            )
            if not number:
                raise OSError(errno.EADDRNOTAVAIL, "no port number is free")
        before, cm_id.src = cm_id.src, src
        try:
            self._assign_port(cm_id, ports, number)
        except OSError:
            cm_id.src = before
            raise

    @staticmethod
    def _check_port(cm_id: CmId, ports: list[CmPort], number: int, reuse: bool) -> None:
        """Raise if another ID has the port: EADDRINUSE at the same address, else, as Linux does, EADDRNOTAVAIL."""
        holders = [other for device in ports for other in device.bound.get((cm_id.port_space, number), ())]
        if cm_id.src in _WILDCARDS:  # also IDs that are bound to no device
            holders += [
                other
                for other in cm_id.client.ids.values()
                if other.wildcard and (other.port_space, other.src_port) == (cm_id.port_space, number)
            ]
        for other in holders:
            if error := _clash(cm_id, other, reuse):
                raise OSError(error, f"port {number} is taken")

    def _assign_port(self, cm_id: CmId, ports: list[CmPort], number: int) -> None:
        space = cm_id.port_space
        self._check_port(cm_id, ports, number, cm_id.reuse)
        cm_id.src_port = number
        for device in ports:
            device.bound.setdefault((space, number), []).append(cm_id)
            cm_id.bound.append(device)

    def _release_port(self, cm_id: CmId) -> None:
        for device in cm_id.bound:
            holders = device.bound.get((cm_id.port_space, cm_id.src_port), [])
            if cm_id in holders:
                holders.remove(cm_id)
                if not holders:
                    del device.bound[cm_id.port_space, cm_id.src_port]
        cm_id.bound.clear()

    def _resolve_addr(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        if cm_id.connection is not None or cm_id.backlog is not None:
            raise OSError(errno.EINVAL, "the ID is connected or listens already")
        dst, src = fields["dst"].to_bytes(16, "little"), fields["src"].to_bytes(16, "little")
        if cm_id.port is None:
            if src in (NOWHERE, MAPPED + bytes(4)):
                self._emit(cm_id, cm.EVENT_ADDR_ERROR, _NO_DEVICE)
                return
            try:
                cm_id.port = self._port_at(cm_id.client, src)
            except OSError:
                self._emit(cm_id, cm.EVENT_ADDR_ERROR, _NO_DEVICE)
                return
        if family(dst) != family(cm_id.port.gid):
            self._emit(cm_id, cm.EVENT_ADDR_ERROR, _ADDRESS_FAMILY)
            return
        cm_id.wildcard = False  # it sends through this device now
        cm_id.src, cm_id.dst, cm_id.dst_port = cm_id.port.gid, dst, fields["dst_port"]
        if not cm_id.bound:
            self._reserve_port(cm_id, cm_id.src, [cm_id.port], fields["src_port"])
        self._emit(cm_id, cm.EVENT_ADDR_RESOLVED)

    def _resolve_route(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        self._port_of(cm_id)
        self._emit(cm_id, cm.EVENT_ROUTE_RESOLVED)

    @staticmethod
    def _port_of(cm_id: CmId) -> CmPort:
        if cm_id.port is None:
            raise OSError(errno.EINVAL, "the ID is bound to no device: resolve an address first")
        return cm_id.port

    # ---------------------------------------------------------------------------------- connections

    def _listen(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        if cm_id.backlog is not None or cm_id.connection is not None:
            raise OSError(errno.EINVAL, "the ID listens or is connected already")
        if not cm_id.bound and not cm_id.wildcard:
            self._reserve_wildcard(cm_id, NOWHERE, fields["src_port"])
        if cm_id.reuse:  # an ID that listens no longer shares its port
            self._check_port(cm_id, cm_id.bound, cm_id.src_port, False)
            cm_id.reuse = False
        cm_id.backlog = fields["value"]
        try:
            for port in cm_id.bound:
                self._listen_on(cm_id, port)
        except CmError:
            self._unlisten(cm_id)
            raise

    def _listen_on(self, cm_id: CmId, port: CmPort) -> None:
        """Listen on one device."""
        number = cm.service_id(cm_id.port_space, cm_id.src_port)
        cm_id.listeners.append(
            (port, port.agent.listen(number, partial(self.on_request, cm_id, port), cm_id.backlog or 0))
        )

    @staticmethod
    def _unlisten(cm_id: CmId) -> None:
        for port, listener in cm_id.listeners:
            port.agent.unlisten(listener)
        cm_id.listeners.clear()
        cm_id.backlog = None

    def on_request(self, listening: CmId, port: CmPort, event: ConnectionEvent) -> None:
        """Make an ID for a request to a listening ID, and report it."""
        connection = event.connection
        header = IP_HEADER.unpack(event.private)
        known = header["version"] == 0 and header["ip_version"] == family(connection.peer)
        if not known or not self._make_room(listening.client) or len(listening.channel.events) >= MAX_EVENTS:
            reason = cm.REJ_NO_RESOURCES if known else cm.REJ_UNSUPPORTED
            port.agent.request(connection, Input.REJECT, port.nic.now_ns, status=reason)
            return
        kind = wire.QP_UD if connection.datagram else wire.QP_UC if connection.transport else wire.QP_RC
        cm_id = self._new(listening.client, listening.channel, listening.port_space, {"qp_type": kind})
        cm_id.port, cm_id.connection, cm_id.passive = port, connection, True
        cm_id.src, cm_id.src_port = port.gid, listening.src_port
        cm_id.dst, cm_id.dst_port = connection.peer, header["src_port"]
        connection.handler = partial(self.on_event, cm_id)
        data = event.private[IP_HEADER.size :]
        self._emit(cm_id, cm.EVENT_CONNECT_REQUEST, 0, data, listen_id=listening.number, **remote_offer(connection))

    def _make_room(self, client: Program) -> bool:
        """Destroy IDs of withdrawn requests if necessary; return whether there is room for an ID."""
        if len(client.ids) >= MAX_IDS:
            for cm_id in list(client.ids.values()):
                if cm_id.passive and not cm_id.accepted and cm_id.connection and cm_id.connection.state is State.CLOSED:
                    self._destroy(cm_id)
        return len(client.ids) < MAX_IDS

    def on_event(self, cm_id: CmId, event: ConnectionEvent) -> None:
        """Report an event of an ID's connection.

        Events of a request that the program has not accepted are dropped: as on Linux, its accept then fails. The
        program has not set up these IDs yet, and would not expect their events.
        """
        if cm_id.passive and not cm_id.accepted:
            return
        connection = event.connection
        more = {}
        if event.event == cm.EVENT_CONNECT_RESPONSE:
            more = remote_offer(connection)
        has_private = event.event in (cm.EVENT_CONNECT_RESPONSE, cm.EVENT_REJECTED) or (
            connection.datagram and event.status >= 0  # any SIDR_REP ends the exchange
        )
        self._emit(cm_id, event.event, event.status, event.private if has_private else b"", **more)

    def _connect(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        port = self._port_of(cm_id)
        if cm_id.connection is not None and cm_id.connection.state is not State.CLOSED:
            raise OSError(errno.EINVAL, "the ID is connected already")
        if cm_id.dst == NOWHERE:
            raise OSError(errno.EINVAL, "the ID has no peer: resolve its address first")
        cm_id.connection = port.agent.connect(
            cm_id.dst,
            cm.service_id(cm_id.port_space, cm_id.dst_port),
            partial(self.on_event, cm_id),
            self._now_ns,
            local=local_parameters(fields),
            private=ip_header(cm_id.src, cm_id.src_port, cm_id.dst) + data,
            datagram=cm_id.qp_type == wire.QP_UD,
            transport=cm.TRANSPORT_UC if cm_id.qp_type == wire.QP_UC else cm.TRANSPORT_RC,
            traffic_class=fields["tos"],
            ack_timeout=min(fields["ack_timeout"] or cm.ACK_TIMEOUT, 31),
        )

    def _request(self, cm_id: CmId, what: Input, data: bytes = b"", status: int = 0) -> None:
        if cm_id.connection is None:
            raise OSError(errno.EINVAL, "the ID is not connected")
        self._port_of(cm_id).agent.request(cm_id.connection, what, self._now_ns, data, status)

    def _accept(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        if cm_id.connection is None:
            raise OSError(errno.EINVAL, "the ID has nothing to accept")
        if _was_withdrawn(cm_id):
            raise OSError(
                errno.EINVAL, f"the peer has given up: it took its request back ({_reject_reason(cm_id.connection)})"
            )
        if (cm_id.connection.state, Input.ACCEPT) in _ACCEPTABLE:
            psn = cm_id.connection.local.psn  # the program used this PSN to bring its queue pair to RTR
            cm_id.connection.local = local_parameters(fields)
            cm_id.connection.local.psn = psn
        self._request(cm_id, Input.ACCEPT, data)
        cm_id.accepted = True

    def _reject(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        usual = cm.SIDR_REJECTED if cm_id.qp_type == wire.QP_UD else cm.REJ_CONSUMER_DEFINED
        self._request(cm_id, Input.REJECT, data, fields["status"] or usual)

    def _establish(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        self._request(cm_id, Input.ESTABLISH, data)

    def _disconnect(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        self._request(cm_id, Input.DISCONNECT, data)

    def _notify(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        self._request(cm_id, Input.COMM_EST)

    def _join(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        self._port_of(cm_id)
        self._emit(
            cm_id,
            cm.EVENT_MULTICAST_JOIN,
            dst=fields["dst"],
            dst_port=fields["dst_port"],
            qpn=_MULTICAST_QPN,
            qkey=cm.UDP_QKEY,
            context=fields["context"],
        )

    def _leave(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        """Do nothing: the program's library attaches and detaches queue pairs."""

    def _query(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        """Answer with the ID's record; its ``status`` is the reason if the peer has withdrawn its request."""
        if cm_id.connection is not None and _was_withdrawn(cm_id):
            self._synchronous_event = self._describe(cm_id, status=cm_id.connection.status)

    def _migrate(self, cm_id: CmId, fields: dict[str, int], data: bytes) -> None:
        channel = self._channel(cm_id.client, fields["channel"])
        if channel is cm_id.channel:
            return
        left, cm_id.channel = cm_id.channel, channel
        for event in [left.events.popleft() for _ in range(len(left.events))]:
            if event[0] is cm_id:
                left.signal.withdraw()
                channel.events.append(event)
                channel.signal()
            else:
                left.events.append(event)

    def _destroy(self, cm_id: CmId, fields: dict[str, int] | None = None, data: bytes = b"") -> None:
        cm_id.client.ids.pop(cm_id.number, None)
        self._unlisten(cm_id)
        self._release_port(cm_id)
        connection, cm_id.connection = cm_id.connection, None
        if connection is not None and cm_id.port is not None:
            cm_id.port.agent.request(connection, Input.DESTROY, self._now_ns)
        channel = cm_id.channel
        for event in [channel.events.popleft() for _ in range(len(channel.events))]:
            if event[0] is cm_id:
                channel.signal.withdraw()
            elif wire.CM_RECORD.get(event[1], "listen_id") == cm_id.number:
                channel.signal.withdraw()
                self._destroy_unreported(event[0])
            else:
                channel.events.append(event)

    def _destroy_unreported(self, child: CmId) -> None:
        """Destroy the ID of a request that was not reported yet when its listener was destroyed."""
        child.client.ids.pop(child.number, None)
        if child.connection is not None and child.port is not None:
            child.port.agent.request(child.connection, Input.DESTROY, self._now_ns)
            child.connection = None


def _was_withdrawn(cm_id: CmId) -> bool:
    """Return whether the peer withdrew its request before the program accepted it."""
    return (
        cm_id.passive and not cm_id.accepted and cm_id.connection is not None and cm_id.connection.state is State.CLOSED
    )


def _reject_reason(connection: ConnectionRecord) -> str:
    """Return the reason of the last REJ, in words."""
    return f"{REJECT_REASONS.get(connection.status, 'unknown')}, reason {connection.status}"


def _covers(cm_id: CmId, port: CmPort) -> bool:
    """Return whether the wildcard address of an ID covers this device's."""
    return family(port.gid) == family(cm_id.src) or not (cm_id.afonly or family(cm_id.src) == IPV4)


def _clash(cm_id: CmId, other: CmId, reuse: bool) -> int:
    """Return the errno if two IDs cannot share a port, else 0; the rules are those of Linux's cma.c."""
    if cm_id is other or (reuse and other.reuse):
        return 0
    if cm_id.afonly and other.afonly and family(cm_id.src) != family(other.src):
        return 0
    if cm_id.src in _WILDCARDS or other.src in _WILDCARDS:
        return errno.EADDRNOTAVAIL
    return errno.EADDRINUSE if cm_id.src == other.src else 0


_ACCEPTABLE = frozenset({(state, Input.ACCEPT) for state in (State.REQ_RCVD, State.MRA_REQ_SENT, State.SIDR_REQ_RCVD)})
_SYNCHRONOUS = frozenset({wire.CM_RESOLVE_ADDR, wire.CM_RESOLVE_ROUTE})
_HANDLERS: dict[int, Callable[[CmService, CmId, dict[str, int], bytes], None]] = {
    wire.CM_DESTROY: CmService._destroy,
    wire.CM_BIND: CmService._bind,
    wire.CM_RESOLVE_ADDR: CmService._resolve_addr,
    wire.CM_RESOLVE_ROUTE: CmService._resolve_route,
    wire.CM_LISTEN: CmService._listen,
    wire.CM_CONNECT: CmService._connect,
    wire.CM_ACCEPT: CmService._accept,
    wire.CM_ESTABLISH: CmService._establish,
    wire.CM_REJECT: CmService._reject,
    wire.CM_DISCONNECT: CmService._disconnect,
    wire.CM_NOTIFY: CmService._notify,
    wire.CM_MIGRATE: CmService._migrate,
    wire.CM_QUERY: CmService._query,
    wire.CM_JOIN: CmService._join,
    wire.CM_LEAVE: CmService._leave,
}
