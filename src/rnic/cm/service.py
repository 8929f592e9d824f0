"""What rdma_cm gives programs, sans I/O: IDs, port spaces, event channels, over the ports' connection managers.

One service stands beside all devices of a NIC process, or of a program that has its own. Programs are told apart by a
key of the caller's; requests and answers are the bytes of :mod:`rnic.spec.attach_cm`, so that a C library, a Python
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
    offer_of,
    parameters_of,
    queue_pair_of,
    record,
)
from rnic.cm.records import CmError, Connection, News
from rnic.cm.state_machine import Input, State
from rnic.spec import attach_cm as wire
from rnic.spec import cm
from rnic.wire.cm import IP_HEADER
from rnic.wire.cm_message import REJECT_REASONS

if TYPE_CHECKING:
    from rnic.device.nic import Nic

MAX_IDS = 16_384
"""IDs of one program."""
MAX_CHANNELS = 1_024
MAX_EVENTS = 65_536
"""Events that wait on one channel."""
_MULTICAST_QPN = 0xFFFFFF
_EVERYWHERE = (NOWHERE, MAPPED + bytes(4))
"""Addresses that stand for all: of either family, and of IPv4."""
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
        self._asker: CmId | None = None
        """Whose event is the answer to its request."""
        self._told = b""

    # ------------------------------------------------------------------------------------ devices

    def add_device(self, name: str, nic: Nic) -> None:
        """A device is there: manage its connections from now on."""
        agent = CmAgent(nic.gsi, random.Random(self._random.getrandbits(64)), nic.counters)
        nic.gsi.agent = agent
        port = self._ports[name] = CmPort(name, nic, agent)
        for client in self._clients.values():
            for each in [each for each in client.ids.values() if each.everywhere]:
                self._spread(each, port)

    def _spread(self, each: CmId, port: CmPort) -> None:
        """Bind an ID that is bound to all addresses on a device that came later; where the port is taken there, not."""
        if port not in self._usable(each.client) or not _within(each.src, port):
            return
        try:
            self._take(each, [port], each.src_port)
        except OSError:
            port.agent.counters.bump("cm_late_listeners_refused")
            return
        if each.backlog is not None:
            self._hear(each, port)

    def remove_device(self, name: str) -> None:
        """A device is gone; IDs that were bound to it hear of it."""
        port = self._ports.pop(name, None)
        if port is None:
            return
        port.nic.gsi.agent = None
        for client in self._clients.values():
            for each in client.ids.values():
                # its number is free on a device of the same name that comes later
                each.bound = [bound for bound in each.bound if bound is not port]
                each.listeners = [pair for pair in each.listeners if pair[0] is not port]
            for each in [each for each in client.ids.values() if each.port is port]:
                each.connection = None
                each.port = None
                self._emit(each, cm.EVENT_DEVICE_REMOVAL)

    # ------------------------------------------------------------------------------------ programs

    def request(self, key: Hashable, body: bytes, make_signal: Callable[[], EventSignal], now_ns: int) -> bytes:
        """One request of a program.

        Args:
            key: which program.
            body: :data:`~rnic.spec.attach_cm.CM_REQUEST`.
            make_signal: called for a new event channel; the signal that it returns rings once for each event.
            now_ns: the time.

        Returns:
            :data:`~rnic.spec.attach_cm.CM_RECORD`.

        Raises:
            OSError: with the errno, and words that say what is wrong.
        """
        self._now_ns = now_ns
        said = wire.CM_REQUEST.unpack(body)
        data = body[wire.CM_REQUEST["private"].byte :][: min(said["private_bytes"], wire.MAX_PRIVATE)]
        client = self._clients.setdefault(key, Program())
        op = said["op"]
        try:
            if op == wire.CM_OPEN:
                names = frozenset(filter(None, data.decode(errors="replace").split(",")))
                if said["flags"] & wire.CM_MORE:
                    names |= client.devices or frozenset()
                client.devices = names or None
                return record(id=0)
            if op == wire.CM_CHANNEL:
                return self._open_channel(client, make_signal)
            if op == wire.CM_CLOSE_CHANNEL:
                return self._close_channel(client, said["channel"])
            if op == wire.CM_CREATE:
                return self._create(client, said)
            if op == wire.CM_GET_EVENT:
                return self._get_events(client, said["channel"], said["value"])
            handler = _HANDLERS.get(op)
            if handler is None:
                raise OSError(errno.ENOSYS, f"CM request {op} is unknown")
            each = client.ids.get(said["id"])
            if each is None:
                raise OSError(errno.EINVAL, f"CM ID {said['id']} is not there")
            if op in _TOLD_AT_ONCE and said["flags"] & wire.CM_TELL:
                self._asker = each
            handler(self, each, said, data)
            return b"" if op == wire.CM_DESTROY else self._told or self._describe(each)
        except CmError as error:
            raise OSError(error.errno, str(error)) from None
        finally:
            self._asker, self._told = None, b""

    def remove_program(self, key: Hashable, now_ns: int) -> None:
        """A program has ended: so do its IDs."""
        self._now_ns = now_ns
        client = self._clients.pop(key, None)
        if client is not None:
            for channel in client.channels.values():
                channel.events.clear()  # or each ID would look through all of them
            for each in list(client.ids.values()):
                self._destroy(each)
            for channel in client.channels.values():
                channel.signal.close()

    def _open_channel(self, client: Program, make_signal: Callable[[], EventSignal]) -> bytes:
        if len(client.channels) >= MAX_CHANNELS:
            raise OSError(errno.ENOMEM, f"a program has at most {MAX_CHANNELS} event channels")
        client.last += 1
        client.channels[client.last] = Channel(client.last, make_signal())
        return record(id=client.last)

    def _close_channel(self, client: Program, number: int) -> bytes:
        channel = self._channel(client, number)
        channel.events.clear()  # all are of IDs that go, each of which would look through them
        for each in [each for each in client.ids.values() if each.channel is channel]:
            self._destroy(each)
        client.channels.pop(number).signal.close()
        return record(id=number)

    @staticmethod
    def _channel(client: Program, number: int) -> Channel:
        channel = client.channels.get(number)
        if channel is None:
            raise OSError(errno.EINVAL, f"event channel {number} is not there")
        return channel

    def _create(self, client: Program, said: dict[str, int]) -> bytes:
        if said["port_space"] not in cm.PORT_SPACES:
            raise OSError(errno.EPROTONOSUPPORT, f"port space {said['port_space']:#x} is unknown")
        return self._describe(self._new(client, self._channel(client, said["channel"]), said["port_space"], said))

    @staticmethod
    def _new(client: Program, channel: Channel, port_space: int, said: dict[str, int]) -> CmId:
        if len(client.ids) >= MAX_IDS:
            raise OSError(errno.ENOMEM, f"a program has at most {MAX_IDS} CM IDs: destroy some")
        client.last += 1
        each = client.ids[client.last] = CmId(client.last, client, channel, port_space, said["qp_type"])
        return each

    # ------------------------------------------------------------------------------------- events

    def _emit(self, each: CmId, event: int, status: int = 0, private: bytes = b"", **more: int) -> None:
        channel = each.channel
        if each is self._asker:
            self._told = self._describe(each, event=event, status=status, private=private, **more)
            return
        if len(channel.events) >= MAX_EVENTS:
            return
        channel.events.append((each, self._describe(each, event=event, status=status, private=private, **more)))
        channel.signal()

    def _get_events(self, client: Program, number: int, most: int) -> bytes:
        events = self._channel(client, number).events
        count = min(len(events), max(1, min(most, wire.CM_MOST_EVENTS)))
        taken = [events.popleft() for _ in range(count)]
        for each, _ in taken:
            if each.connection is not None:  # the first event of a request is that it came
                CmAgent.taken(each.connection)
        return b"".join([event for _, event in taken]) or record(id=number)

    def _describe(
        self, each: CmId, event: int = wire.CM_NO_EVENT, status: int = 0, private: bytes = b"", **more: int
    ) -> bytes:
        """Everything that a program may want to know of an ID."""
        values = {
            "id": each.number,
            "src": int.from_bytes(each.src, "little"),
            "dst": int.from_bytes(each.dst, "little"),
            "src_port": each.src_port,
            "dst_port": each.dst_port,
            "port_space": each.port_space,
            "qp_type": each.qp_type,
            "min_rnr_timer": cm.MIN_RNR_TIMER,
            "ack_timeout": cm.ACK_TIMEOUT,
        }
        if each.port is not None:
            values["device"] = int.from_bytes(each.port.name.encode(), "little")
            values["path_mtu"] = each.port.nic.gsi.mtu_code
        connection = each.connection
        if connection is not None:
            values |= queue_pair_of(connection, each.passive)
        return record(event=event, status=status & 0xFFFF_FFFF, private=private, **(values | more))

    # ----------------------------------------------------------------------------------- addresses

    def _usable(self, client: Program) -> Iterable[CmPort]:
        return [port for name, port in self._ports.items() if client.devices is None or name in client.devices]

    def _at(self, client: Program, gid: bytes) -> CmPort:
        for port in self._usable(client):
            if port.gid == gid:
                return port
        raise OSError(errno.EADDRNOTAVAIL, "no device of this program has this address: see rnic exec --addr")

    def _bind(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        """Bind to an address (or all), and a port (or any)."""
        if each.bound or each.everywhere:
            raise OSError(errno.EINVAL, "the ID is bound already")
        src = self._unless_loopback(each.client, said["src"].to_bytes(16, "little"))
        each.reuse = bool(said["flags"] & wire.CM_REUSEADDR)
        if src in _EVERYWHERE:
            self._hold_everywhere(each, src, said["src_port"])
            return
        each.port = self._at(each.client, src)
        each.src = src
        self._hold(each, [each.port], said["src_port"])

    def _unless_loopback(self, client: Program, src: bytes) -> bytes:
        """A loopback address that no device has stands for all, as Linux has it: libfabric's servers bind to it."""
        if any(port.gid == src for port in self._usable(client)):
            return src
        if src.startswith(MAPPED + b"\x7f"):
            return MAPPED + bytes(4)
        return NOWHERE if src == _LOOPBACK else src

    def _hold_everywhere(self, each: CmId, src: bytes, number: int) -> None:
        """Take a port number on all devices, and on those that will come."""
        ports = [port for port in self._usable(each.client) if _within(src, port)]
        self._hold(each, ports, number)
        each.src, each.everywhere = src, True

    def _hold(self, each: CmId, ports: list[CmPort], number: int) -> None:
        """Take a port number on devices."""
        space = each.port_space
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
        self._take(each, ports, number)

    @staticmethod
    def _take(each: CmId, ports: list[CmPort], number: int) -> None:
        space = each.port_space
        for device in ports:
            if any(not (each.reuse and other.reuse) for other in device.bound.get((space, number), ())):
                raise OSError(errno.EADDRINUSE, f"port {number} is taken")
        each.src_port = number
        for device in ports:
            device.bound.setdefault((space, number), []).append(each)
            each.bound.append(device)

    def _release(self, each: CmId) -> None:
        for device in each.bound:
            holders = device.bound.get((each.port_space, each.src_port), [])
            if each in holders:
                holders.remove(each)
                if not holders:
                    del device.bound[each.port_space, each.src_port]
        each.bound.clear()

    def _resolve_addr(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        if each.connection is not None or each.backlog is not None:
            raise OSError(errno.EINVAL, "the ID is connected or listens already")
        dst, src = said["dst"].to_bytes(16, "little"), said["src"].to_bytes(16, "little")
        if each.port is None:
            if src in (NOWHERE, MAPPED + bytes(4)):
                self._emit(each, cm.EVENT_ADDR_ERROR, _NO_DEVICE)
                return
            try:
                each.port = self._at(each.client, src)
            except OSError:
                self._emit(each, cm.EVENT_ADDR_ERROR, _NO_DEVICE)
                return
        if family(dst) != family(each.port.gid):
            self._emit(each, cm.EVENT_ADDR_ERROR, _ADDRESS_FAMILY)
            return
        each.everywhere = False  # it leaves by this one
        each.src, each.dst, each.dst_port = each.port.gid, dst, said["dst_port"]
        if not each.bound:
            self._hold(each, [each.port], said["src_port"])
        self._emit(each, cm.EVENT_ADDR_RESOLVED)

    def _resolve_route(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        self._port_of(each)
        self._emit(each, cm.EVENT_ROUTE_RESOLVED)

    @staticmethod
    def _port_of(each: CmId) -> CmPort:
        if each.port is None:
            raise OSError(errno.EINVAL, "the ID is bound to no device: resolve an address first")
        return each.port

    # ---------------------------------------------------------------------------------- connections

    def _listen(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        if each.backlog is not None or each.connection is not None:
            raise OSError(errno.EINVAL, "the ID listens or is connected already")
        if not each.bound and not each.everywhere:
            self._hold_everywhere(each, NOWHERE, said["src_port"])
        each.backlog = said["value"]
        try:
            for port in each.bound:
                self._hear(each, port)
        except CmError:
            self._unlisten(each)
            raise

    def _hear(self, each: CmId, port: CmPort) -> None:
        """Listen on one device."""
        number = cm.service_id(each.port_space, each.src_port)
        each.listeners.append((port, port.agent.listen(number, partial(self.arrived, each, port), each.backlog or 0)))

    @staticmethod
    def _unlisten(each: CmId) -> None:
        for port, listener in each.listeners:
            port.agent.unlisten(listener)
        each.listeners.clear()
        each.backlog = None

    def arrived(self, listening: CmId, port: CmPort, news: News) -> None:
        """A request came in for a listening ID."""
        connection = news.connection
        header = IP_HEADER.unpack(news.private)
        known = header["version"] == 0 and header["ip_version"] == family(connection.peer)
        if not known or not self._has_room(listening.client) or len(listening.channel.events) >= MAX_EVENTS:
            reason = cm.REJ_NO_RESOURCES if known else cm.REJ_UNSUPPORTED
            port.agent.request(connection, Input.REJECT, self._time(port), status=reason)
            return
        kind = wire.QP_UD if connection.datagram else wire.QP_UC if connection.transport else wire.QP_RC
        each = self._new(listening.client, listening.channel, listening.port_space, {"qp_type": kind})
        each.port, each.connection, each.passive = port, connection, True
        each.src, each.src_port = port.gid, listening.src_port
        each.dst, each.dst_port = connection.peer, header["src_port"]
        connection.tell = partial(self.happened, each)
        data = news.private[IP_HEADER.size :]
        self._emit(each, cm.EVENT_CONNECT_REQUEST, 0, data, listen_id=listening.number, **offer_of(connection))

    def _has_room(self, client: Program) -> bool:
        """Whether a program may have an ID more: those of requests that it left until their peers gave up make way."""
        if len(client.ids) >= MAX_IDS:
            for each in list(client.ids.values()):
                if each.passive and not each.accepted and each.connection and each.connection.state is State.CLOSED:
                    self._destroy(each)
        return len(client.ids) < MAX_IDS

    def happened(self, each: CmId, news: News) -> None:
        """News of an ID's connection.

        A program hears nothing of a request that it has not accepted: as with Linux, its accept then fails. Events of
        IDs that it has yet to set up would confuse it.
        """
        if each.passive and not each.accepted:
            return
        connection = news.connection
        more = {}
        if news.event == cm.EVENT_CONNECT_RESPONSE:
            more = offer_of(connection)
        said = news.event in (cm.EVENT_CONNECT_RESPONSE, cm.EVENT_REJECTED) or (
            connection.datagram and news.status >= 0  # SIDR_REP, whatever it says
        )
        self._emit(each, news.event, news.status, news.private if said else b"", **more)

    @staticmethod
    def _time(port: CmPort) -> int:
        return port.nic.now_ns

    def _connect(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        port = self._port_of(each)
        if each.connection is not None and each.connection.state is not State.CLOSED:
            raise OSError(errno.EINVAL, "the ID is connected already")
        if each.dst == NOWHERE:
            raise OSError(errno.EINVAL, "the ID has no peer: resolve its address first")
        each.connection = port.agent.connect(
            each.dst,
            cm.service_id(each.port_space, each.dst_port),
            partial(self.happened, each),
            self._now_ns,
            local=parameters_of(said),
            private=ip_header(each.src, each.src_port, each.dst) + data,
            datagram=each.qp_type == wire.QP_UD,
            transport=cm.TRANSPORT_UC if each.qp_type == wire.QP_UC else cm.TRANSPORT_RC,
            traffic_class=said["tos"],
            ack_timeout=min(said["ack_timeout"] or cm.ACK_TIMEOUT, 31),
        )

    def _request(self, each: CmId, what: Input, data: bytes = b"", status: int = 0) -> None:
        if each.connection is None:
            raise OSError(errno.EINVAL, "the ID is not connected")
        self._port_of(each).agent.request(each.connection, what, self._now_ns, data, status)

    def _accept(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        if each.connection is None:
            raise OSError(errno.EINVAL, "the ID has nothing to accept")
        if _taken_back(each):
            raise OSError(errno.EINVAL, f"the peer has given up: it took its request back ({_why(each.connection)})")
        if (each.connection.state, Input.ACCEPT) in _ACCEPTABLE:
            psn = each.connection.local.psn  # the program has made its queue pair ready with it
            each.connection.local = parameters_of(said)
            each.connection.local.psn = psn
        self._request(each, Input.ACCEPT, data)
        each.accepted = True

    def _reject(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        usual = cm.SIDR_REJECTED if each.qp_type == wire.QP_UD else cm.REJ_CONSUMER_DEFINED
        self._request(each, Input.REJECT, data, said["status"] or usual)

    def _establish(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        self._request(each, Input.ESTABLISH, data)

    def _disconnect(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        self._request(each, Input.DISCONNECT, data)

    def _notify(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        self._request(each, Input.DATA)

    def _join(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        self._port_of(each)
        self._emit(
            each,
            cm.EVENT_MULTICAST_JOIN,
            dst=said["dst"],
            dst_port=said["dst_port"],
            qpn=_MULTICAST_QPN,
            qkey=cm.UDP_QKEY,
            context=said["context"],
        )

    def _leave(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        """Nothing is kept of a membership: the program's library attaches and detaches queue pairs."""

    def _query(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        """The answer says all; of a request that its peer took back, the reason as ``status``."""
        if each.connection is not None and _taken_back(each):
            self._told = self._describe(each, status=each.connection.status)

    def _migrate(self, each: CmId, said: dict[str, int], data: bytes) -> None:
        channel = self._channel(each.client, said["channel"])
        if channel is each.channel:
            return
        left, each.channel = each.channel, channel
        for event in [left.events.popleft() for _ in range(len(left.events))]:
            if event[0] is each:
                left.signal.withdraw()
                channel.events.append(event)
                channel.signal()
            else:
                left.events.append(event)

    def _destroy(self, each: CmId, said: dict[str, int] | None = None, data: bytes = b"") -> None:
        each.client.ids.pop(each.number, None)
        self._unlisten(each)
        self._release(each)
        connection, each.connection = each.connection, None
        if connection is not None and each.port is not None:
            each.port.agent.request(connection, Input.ABANDON, self._now_ns)
        channel = each.channel
        for event in [channel.events.popleft() for _ in range(len(channel.events))]:
            if event[0] is each:
                channel.signal.withdraw()
            elif wire.CM_RECORD.get(event[1], "listen_id") == each.number:
                channel.signal.withdraw()
                self._destroy_unseen(event[0])
            else:
                channel.events.append(event)

    def _destroy_unseen(self, child: CmId) -> None:
        """An ID that its program never heard of, since who listened for it is gone."""
        child.client.ids.pop(child.number, None)
        if child.connection is not None and child.port is not None:
            child.port.agent.request(child.connection, Input.ABANDON, self._now_ns)
            child.connection = None


def _taken_back(each: CmId) -> bool:
    """Whether it is a request whose peer gave up before the program accepted."""
    return each.passive and not each.accepted and each.connection is not None and each.connection.state is State.CLOSED


def _why(connection: Connection) -> str:
    """What the last REJ gave as its reason."""
    return f"{REJECT_REASONS.get(connection.status, 'unknown')}, reason {connection.status}"


def _within(src: bytes, port: CmPort) -> bool:
    """Whether an address that stands for all stands for this device's."""
    return src == NOWHERE or family(port.gid) == IPV4


_ACCEPTABLE = frozenset({(state, Input.ACCEPT) for state in (State.REQ_RCVD, State.MRA_REQ_SENT, State.SIDR_REQ_RCVD)})
_TOLD_AT_ONCE = frozenset({wire.CM_RESOLVE_ADDR, wire.CM_RESOLVE_ROUTE})
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
