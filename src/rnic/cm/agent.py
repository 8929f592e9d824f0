"""The connection manager of one port, sans I/O: what comes and goes on QP1, and what the owners ask for.

It keeps communication IDs and drives :data:`rnic.cm.state_machine.TABLE` for each. Datagrams come from
:meth:`CmAgent.receive`, go by the :class:`Port` that it was given, and time is handed in. Whatever arrives costs a
counter at most: memory is bounded by :data:`MAX_CONNECTIONS` and each listener's backlog.

The backlog is Linux's: it bounds the requests that nobody has looked at, whether they are answered or not. A REQ beyond
it is dropped and not answered, so that its sender's repetition finds a place; a SIDR_REQ beyond it is rejected.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from rnic.cm.message_fields import compose, compose_timeout
from rnic.cm.pending_requests import HeldRequests
from rnic.cm.records import CmError, Connection, Listener, News, Pace, Parameters, Port, Tell, said_of
from rnic.cm.state_machine import TABLE, Do, Input, State
from rnic.spec import cm
from rnic.trace.counters import Counters
from rnic.wire import cm as wire
from rnic.wire.mad import (
    CM_APR,
    CM_DREP,
    CM_DREQ,
    CM_LAP,
    CM_MRA,
    CM_REJ,
    CM_REP,
    CM_REQ,
    CM_RTU,
    CM_SIDR_REP,
    CM_SIDR_REQ,
)

MAX_CONNECTIONS = 16_384
MAX_BACKLOG = 1_024
DEFAULT_BACKLOG = MAX_BACKLOG
"""As Linux has it."""
_FIRST_TRY = 16
"""The first repetition comes after this part of the time that the peer may take, each further one after twice that:
a lost datagram is made good soon, and a peer that is slow is not flooded."""
_HOLD_TURNS = 4
_MRA_OF_REP = 1
_COMM_ID_BITS = 32
_MOST_PACES = 1_024
_STALE_TIMES, _STALE_AT_LEAST = 2, 64
"""Deadlines that were moved stay in the queue, up to so many times the connections, and so many more."""


_REQUEST_ID = {CM_REQ: "local_comm_id", CM_SIDR_REQ: "request_id"}
"""What asks for a connection or a service, and by which field its sender tells one from the next."""
_DATAGRAM_EXPECTED = frozenset({CM_SIDR_REP})
_INPUTS = {
    CM_REJ: Input.RX_REJ,
    CM_REP: Input.RX_REP,
    CM_RTU: Input.RX_RTU,
    CM_DREQ: Input.RX_DREQ,
    CM_DREP: Input.RX_DREP,
    CM_SIDR_REP: Input.RX_SIDR_REP,
}
_LIVE = frozenset({State.ESTABLISHED, State.DREQ_SENT})


class CmAgent:
    """The connection manager of one port.

    Args:
        port: sends datagrams.
        rng: communication IDs, transaction IDs and PSNs come from it.
        counters: where messages and drops are counted, as ``cm_*``.
    """

    def __init__(self, port: Port, rng: random.Random, counters: Counters) -> None:
        self.port = port
        self.counters = counters
        self.connections: dict[int, Connection] = {}
        self.listeners: dict[int, Listener] = {}
        self._random = rng
        self._by_remote: dict[tuple[bytes, int, bool], Connection] = {}
        """Passive ones, by the peer's GID and its communication or request ID."""
        self._by_qpn: dict[tuple[bytes, int], Connection] = {}
        """Connected ones, by the peer's GID and QP number."""
        self._deadlines: list[tuple[int, int]] = []
        self._paces: dict[tuple[bytes, State], Pace] = {}
        """How each peer answers, by its GID and the state in which its answer is waited for."""
        self._held = HeldRequests()
        self._now_ns = 0

    # -------------------------------------------------------------------------------- owners' side

    def listen(self, service_id: int, tell: Tell, backlog: int = DEFAULT_BACKLOG) -> Listener:
        """Listen on a service ID; ``tell`` gets each request. :class:`CmError` (EADDRINUSE) where it is taken."""
        if service_id in self.listeners:
            raise CmError(98, f"service ID {service_id:#x} is taken")
        listener = Listener(service_id, tell, min(backlog, MAX_BACKLOG) if backlog > 0 else DEFAULT_BACKLOG)
        self.listeners[service_id] = listener
        return listener

    def unlisten(self, listener: Listener) -> None:
        """Listen no more; requests that wait for an answer stay their owners'."""
        if self.listeners.get(listener.service_id) is listener:
            del self.listeners[listener.service_id]
            self._held.leave(listener.service_id)

    def connect(
        self,
        peer: bytes,
        service_id: int,
        tell: Tell,
        now_ns: int,
        *,
        local: Parameters | None = None,
        private: bytes = b"",
        datagram: bool = False,
        transport: int = cm.TRANSPORT_RC,
        traffic_class: int = 0,
        ack_timeout: int = cm.ACK_TIMEOUT,
    ) -> Connection:
        """Send REQ, or SIDR_REQ for ``datagram``, to a peer's service ID.

        Args:
            peer: its GID.
            service_id: 64 bits.
            tell: gets what becomes of it.
            now_ns: the time.
            local: what REQ says of this side; its PSN is chosen here.
            private: private data, with the IP header where the service wants one.
            datagram: resolve a service ID.
            transport: ``TRANSPORT_*``.
            traffic_class: of the path.
            ack_timeout: local ACK timeout of the queue pairs.

        Raises:
            CmError: ENOMEM with too many connections, EINVAL for private data that is too long.
        """
        if len(private) > wire.private_bytes(CM_SIDR_REQ if datagram else CM_REQ):
            raise CmError(22, f"{len(private)} bytes of private data are too many")
        connection = self._new(peer, service_id)
        connection.tell = tell
        connection.local = local or Parameters()
        connection.local.psn = self._random.getrandbits(24)
        connection.private = private
        connection.datagram = datagram
        connection.transport = transport
        connection.traffic_class = traffic_class
        connection.ack_timeout = ack_timeout
        connection.mtu_code = self.port.mtu_code
        connection.tid = self._random.getrandbits(64)
        self._step(connection, Input.RESOLVE if datagram else Input.CONNECT, now_ns)
        return connection

    def request(self, connection: Connection, what: Input, now_ns: int, private: bytes = b"", status: int = 0) -> None:
        """An owner's request: ACCEPT, ESTABLISH, REJECT, DISCONNECT, DATA or ABANDON.

        ``private`` goes with the message that it sends, ``status`` is the reason of a rejection.

        Raises:
            CmError: EINVAL where the state does not allow it, or the private data is too long.
        """
        if (connection.state, what) not in TABLE:
            raise CmError(22, f"a connection in state {connection.state.name} cannot {what.name.lower()}")
        answers = CM_SIDR_REP if connection.datagram else _ANSWERS.get(what, CM_RTU)
        if len(private) > wire.private_bytes(answers):
            raise CmError(22, f"{len(private)} bytes of private data are too many")
        if status > (0xFF if connection.datagram else 0xFFFF):
            raise CmError(22, f"status={status} is too large for a {wire.MESSAGES[answers].name}")
        connection.private = private
        connection.status = status
        if what is Input.ABANDON:
            connection.tell = None
            connection.status = status or (cm.SIDR_REJECTED if connection.datagram else cm.REJ_CONSUMER_DEFINED)
        self.taken(connection)
        self._step(connection, what, now_ns)

    @staticmethod
    def taken(connection: Connection) -> None:
        """The owner has seen the request: its place in the backlog is free. A second call does nothing."""
        if connection.queued and connection.listener is not None:
            connection.queued = False
            connection.listener.waiting -= 1

    # -------------------------------------------------------------------------------- port's side

    def receive(self, datagram: bytes | memoryview, source: bytes, now_ns: int) -> None:
        """A datagram of 256 bytes that came to QP1 from a GID. It never raises for what is in it."""
        message = wire.parse(datagram)
        if message is None:
            self.counters.bump("drop_bad_mad")
            return
        self.counters.bump(f"cm_rx_{_NAMES[message.attr]}")
        self._now_ns = now_ns
        if message.attr in _REQUEST_ID:
            self._receive_request(message, source, now_ns)
        else:
            self._receive_other(message, source, now_ns)

    def next_deadline_ns(self) -> int | None:
        """When :meth:`handle_timers` wants to be called."""
        ours, held = self._next_of_connections(), self._held.next_deadline_ns(self.listeners)
        return ours if held is None else held if ours is None else min(ours, held)

    def _next_of_connections(self) -> int | None:
        heap = self._deadlines
        while heap:
            deadline, local_id = heap[0]
            connection = self.connections.get(local_id)
            if connection is not None and connection.deadline_ns == deadline:
                return deadline
            heapq.heappop(heap)
        return None

    def handle_timers(self, now_ns: int) -> None:
        """Handle the deadlines that have come."""
        self._now_ns = now_ns
        self._held.release(self.listeners, now_ns, lambda message, source: self._take_request(message, source, now_ns))
        while (deadline := self._next_of_connections()) is not None and deadline <= now_ns:
            connection = self.connections[heapq.heappop(self._deadlines)[1]]
            connection.deadline_ns = None
            if connection.expires:
                self._step(connection, Input.EXPIRE, now_ns)
            elif self._is_under_way(connection, now_ns):
                self._arm(connection)
            elif connection.tries > connection.retries:
                self.counters.bump("cm_timeouts")
                self._step(connection, Input.EXHAUSTED, now_ns)
            else:
                self.counters.bump("cm_repeats")
                self._step(connection, Input.RESEND, now_ns)

    def view(self) -> dict[str, Any]:
        """Services and connections, as :func:`rnic.device.inspect.connections` has them."""
        return {
            "services": sorted(self.listeners),
            "connections": [
                {
                    "id": connection.local_id,
                    "remote_id": connection.remote_id,
                    "state": connection.state.name,
                    "peer": connection.peer.hex(),
                    "service": connection.service_id,
                    "qpn": connection.local.qpn,
                    "remote_qpn": connection.remote.qpn,
                }
                for connection in self.connections.values()
            ],
        }

    # ----------------------------------------------------------------------------------- messages

    def _known(self, message: wire.Message, source: bytes) -> Connection | None:
        """The connection that a request was for, where it has come before."""
        datagram = message.attr == CM_SIDR_REQ
        return self._by_remote.get((source, message.fields[_REQUEST_ID[message.attr]], datagram))

    def _receive_request(self, message: wire.Message, source: bytes, now_ns: int) -> None:
        served = message.fields["service_id"] in self.listeners or self._known(message, source) is not None
        if served or not self._held.hold(message, source, now_ns):
            self._take_request(message, source, now_ns)

    def _take_request(self, message: wire.Message, source: bytes, now_ns: int) -> None:
        known = self._known(message, source)
        if known is not None:
            self._input(known, Input.RX_SIDR_REQ if known.datagram else Input.RX_REQ, now_ns)
        elif message.attr == CM_SIDR_REQ:
            self._take_sidr_req(message, source)
        else:
            self._take_req(message, source, now_ns)

    def _take_req(self, message: wire.Message, source: bytes, now_ns: int) -> None:
        fields = message.fields
        listener = self.listeners.get(fields["service_id"])
        stale = self._by_qpn.get((source, fields["qpn"]))
        reason = 0
        if listener is None:
            reason = cm.REJ_INVALID_SERVICE_ID
        elif fields["transport"] not in (cm.TRANSPORT_RC, cm.TRANSPORT_UC):
            reason = cm.REJ_INVALID_TRANSPORT_TYPE
        elif fields["primary_local_gid"] != int.from_bytes(source, "big") or fields[
            "primary_remote_gid"
        ] != int.from_bytes(self.port.gid, "big"):
            reason = cm.REJ_INVALID_GID
        elif not 1 <= fields["path_mtu"] <= self.port.mtu_code:
            reason = cm.REJ_INVALID_MTU
        elif stale is not None and stale.state in _LIVE:
            self._input(stale, Input.STALE, now_ns)
            reason = cm.REJ_STALE_CONN
        if reason:
            self._refuse(message, source, cm.REJECTED_REQ, reason)
            return
        assert listener is not None
        if self._is_full(listener):
            self.counters.bump("cm_backlog_full")
            return
        connection = self._new(source, fields["service_id"])
        connection.state = State.REQ_RCVD
        connection.local.psn = self._random.getrandbits(24)
        connection.remote_id = fields["local_comm_id"]
        connection.tid = message.tid
        connection.transport = fields["transport"]
        connection.mtu_code = fields["path_mtu"]
        connection.traffic_class = fields["traffic_class"]
        connection.ack_timeout = fields["ack_timeout"]
        connection.remote = said_of(fields)
        connection.peer_timeout = fields["local_cm_timeout"]
        connection.retries = fields["max_cm_retries"]
        connection.received = message.private
        self._announce(connection, listener)

    def _take_sidr_req(self, message: wire.Message, source: bytes) -> None:
        fields = message.fields
        listener = self.listeners.get(fields["service_id"])
        if listener is None or self._is_full(listener):
            status = cm.SIDR_UNSUPPORTED if listener is None else cm.SIDR_REJECTED
            said = {"request_id": fields["request_id"], "status": status, "service_id": fields["service_id"]}
            self._send(wire.pack(CM_SIDR_REP, message.tid, said), source, 0, CM_SIDR_REP)
            return
        connection = self._new(source, fields["service_id"])
        connection.state = State.SIDR_REQ_RCVD
        connection.datagram = True
        connection.remote_id = fields["request_id"]
        connection.tid = message.tid
        connection.received = message.private
        self._announce(connection, listener)

    def _is_full(self, listener: Listener) -> bool:
        """Whether there is no room for one more request."""
        return listener.waiting >= listener.backlog or len(self.connections) >= MAX_CONNECTIONS

    def _announce(self, connection: Connection, listener: Listener) -> None:
        self._by_remote[connection.peer, connection.remote_id, connection.datagram] = connection
        connection.listener = listener
        connection.queued = True
        listener.waiting += 1
        connection.tell = listener.tell
        listener.tell(News(cm.EVENT_CONNECT_REQUEST, connection, 0, connection.received))

    def _receive_other(self, message: wire.Message, source: bytes, now_ns: int) -> None:
        fields = message.fields
        mine = fields["request_id"] if message.attr in _DATAGRAM_EXPECTED else fields["remote_comm_id"]
        connection = self.connections.get(mine)
        if connection is not None and connection.peer != source:
            connection = None
        if connection is None and message.attr == CM_REJ and not mine:
            # who gives up before it knows our ID says its own
            connection = self._by_remote.get((source, fields["local_comm_id"], False))
        if connection is None:
            self._unknown(message, source)
            return
        self._answered(connection, now_ns)
        what = _INPUTS.get(message.attr)
        if message.attr == CM_MRA:
            what = Input.RX_MRA_REP if fields["message"] == _MRA_OF_REP else Input.RX_MRA_REQ
        elif message.attr == CM_LAP:
            said = {"local_comm_id": mine, "remote_comm_id": fields["local_comm_id"], "status": cm.APR_UNSUPPORTED}
            self._send(wire.pack(CM_APR, message.tid, said), source, connection.traffic_class, CM_APR)
            return
        if what is None or not self._fits(connection, message):
            self.counters.bump("cm_unexpected")
            return
        if (connection.state, what) in TABLE:
            connection.received = message.private
            if what is Input.RX_REJ:
                connection.status = fields["reason"]
            elif message.attr == CM_MRA:
                connection.peer_timeout = fields["service_timeout"]
            elif what is Input.RX_REP:
                connection.reply = fields
            elif what is Input.RX_SIDR_REP:
                connection.status = fields["status"]
                connection.remote.qpn, connection.remote.qkey = fields["qpn"], fields["qkey"]
        self._input(connection, what, now_ns)

    @staticmethod
    def _fits(connection: Connection, message: wire.Message) -> bool:
        """Whether a message is of this connection's kind, and from the ID that it knows."""
        if connection.datagram or message.attr == CM_SIDR_REP:
            return connection.datagram and message.attr == CM_SIDR_REP and message.tid == connection.tid
        if message.attr == CM_DREQ and message.fields["qpn"] != connection.local.qpn:
            return False
        return connection.remote_id in (0, message.fields["local_comm_id"])

    def _unknown(self, message: wire.Message, source: bytes) -> None:
        """A message to no communication ID of ours: the peer hears of it where it waits."""
        self.counters.bump("cm_unknown_id")
        fields = message.fields
        if message.attr == CM_DREQ:
            said = {"local_comm_id": fields["remote_comm_id"], "remote_comm_id": fields["local_comm_id"]}
            self._send(wire.pack(CM_DREP, message.tid, said), source, 0, CM_DREP)
        elif message.attr == CM_REP:
            self._refuse(message, source, cm.REJECTED_REP, cm.REJ_INVALID_COMM_ID)

    def _refuse(self, message: wire.Message, source: bytes, about: int, reason: int) -> None:
        """REJ by nobody: for a message that no communication ID was made for."""
        said = {
            "local_comm_id": message.fields.get("remote_comm_id", 0),
            "remote_comm_id": message.fields["local_comm_id"],
            "message": about,
            "reason": reason,
        }
        self.counters.bump(f"cm_rejected_{reason}")
        self._send(wire.pack(CM_REJ, message.tid, said), source, 0, CM_REJ)

    # ------------------------------------------------------------------------------------- steps

    def _input(self, connection: Connection, what: Input, now_ns: int) -> None:
        if (connection.state, what) in TABLE:
            self._step(connection, what, now_ns)
        else:
            self.counters.bump("cm_unexpected")

    def _step(self, connection: Connection, what: Input, now_ns: int) -> None:
        self._now_ns = now_ns
        before = connection.state
        connection.state, actions = TABLE[before, what]
        if connection.state in _LIVE and connection.remote.qpn:
            self._by_qpn[connection.peer, connection.remote.qpn] = connection
        elif before in _LIVE:
            self._forget_qpn(connection)
        if connection.state is State.CLOSED:
            self._forget(connection)
        for action in actions:
            _ACTIONS[action](self, connection)

    def _new(self, peer: bytes, service_id: int) -> Connection:
        if len(self.connections) >= MAX_CONNECTIONS:
            raise CmError(12, f"this port has {MAX_CONNECTIONS} connections: disconnect some")
        while (local_id := self._random.getrandbits(_COMM_ID_BITS)) in self.connections or not local_id:
            pass
        connection = self.connections[local_id] = Connection(local_id, peer, service_id)
        return connection

    def _forget(self, connection: Connection) -> None:
        self.connections.pop(connection.local_id, None)
        connection.deadline_ns = None
        key = connection.peer, connection.remote_id, connection.datagram
        if self._by_remote.get(key) is connection:
            del self._by_remote[key]
        self._forget_qpn(connection)

    def _forget_qpn(self, connection: Connection) -> None:
        key = connection.peer, connection.remote.qpn
        if self._by_qpn.get(key) is connection:
            del self._by_qpn[key]

    # ------------------------------------------------------------------------------------ actions

    def _send(self, datagram: bytes, gid: bytes, traffic_class: int, attr: int) -> None:
        self.counters.bump(f"cm_tx_{_NAMES[attr]}")
        self.port.send(datagram, gid, traffic_class)

    def _say(self, connection: Connection, attr: int) -> None:
        """Send a message of a connection, and keep it to be repeated."""
        connection.last = compose(connection, self.port, attr)
        connection.tries = 1
        connection.said_ns = connection.sent_ns = self._now_ns
        self._send(connection.last, connection.peer, connection.traffic_class, attr)

    def _send_rej_timeout(self, connection: Connection) -> None:
        connection.last = compose_timeout(connection, self.port)
        connection.tries = 1
        self._send(connection.last, connection.peer, connection.traffic_class, CM_REJ)

    def _send_dreq(self, connection: Connection) -> None:
        connection.tid = self._random.getrandbits(64)
        self._say(connection, CM_DREQ)

    def _repeat(self, connection: Connection) -> None:
        self.counters.bump("cm_tx_repeated")
        connection.tries += 1
        connection.sent_ns = self._now_ns
        self.port.send(connection.last, connection.peer, connection.traffic_class)

    def _wait(self, connection: Connection, delay_ns: int, expires: bool = False) -> None:
        connection.expires = expires
        connection.deadline_ns = self._now_ns + delay_ns
        heap = self._deadlines
        heapq.heappush(heap, (connection.deadline_ns, connection.local_id))
        if len(heap) > _STALE_TIMES * len(self.connections) + _STALE_AT_LEAST:  # a peer may move its deadline for ever
            heap[:] = [
                (each.deadline_ns, each.local_id) for each in self.connections.values() if each.deadline_ns is not None
            ]
            heapq.heapify(heap)

    @staticmethod
    def _turn_ns(connection: Connection) -> int:
        """How long a message and its answer may take."""
        return cm.code_ns(min(connection.peer_timeout, cm.RESPONSE_TIMEOUT)) + 2 * cm.code_ns(cm.PACKET_LIFETIME)

    def _arm(self, connection: Connection) -> None:
        self._wait(connection, self._try_ns(connection))

    def _try_ns(self, connection: Connection) -> int:
        """After how long without an answer a message is repeated."""
        whole = self._turn_ns(connection)
        return min(whole, (whole // _FIRST_TRY) << max(0, connection.tries - 1))

    def _answered(self, connection: Connection, now_ns: int) -> None:
        """A peer has said something of a connection that it knows."""
        paces = self._paces
        key = connection.peer, connection.state
        pace = paces.get(key)
        if pace is None:
            if len(paces) >= _MOST_PACES:
                paces.clear()  # they come again with the next answers
            pace = paces[key] = Pace()
        pace.heard_ns = now_ns
        pace.newest_ns = max(pace.newest_ns, connection.said_ns)

    def _is_under_way(self, connection: Connection, now_ns: int) -> bool:
        """Whether a message is to be answered yet, and not lost: its peer works through what was said before.

        A peer that gets a hundred requests at once takes its time for the last, and each repetition would take some
        more of it. It takes them in their order: once it has answered a later one this one was lost. One that has been
        silent since is asked again, and so is any that has had all the time that it may take.
        """
        pace = self._paces.get((connection.peer, connection.state))
        if pace is None or now_ns - connection.sent_ns >= self._turn_ns(connection):
            return False
        since = now_ns - self._try_ns(connection)
        return pace.heard_ns > max(connection.sent_ns, since) and pace.newest_ns < connection.said_ns

    def _stop(self, connection: Connection) -> None:
        connection.deadline_ns = None

    def _take_rep(self, connection: Connection) -> None:
        """The first REP says who the peer is; those after it change nothing."""
        connection.remote_id = connection.reply["local_comm_id"]
        connection.remote = said_of(connection.reply)
        connection.remote.retry_count = connection.local.retry_count

    def _tell(self, connection: Connection, event: int, status: int = 0) -> None:
        if connection.tell is not None:
            connection.tell(News(event, connection, status, connection.received))

    def _tell_sidr(self, connection: Connection) -> None:
        event = cm.EVENT_UNREACHABLE if connection.status else cm.EVENT_ESTABLISHED
        self._tell(connection, event, connection.status)


_TIMED_OUT = -110
_Act = Callable[[CmAgent, Connection], None]


def _news(event: int, status: int = 0) -> _Act:
    return lambda agent, connection: agent._tell(connection, event, status)


def _says(attr: int) -> _Act:
    return lambda agent, connection: agent._say(connection, attr)


_ACTIONS: dict[Do, _Act] = {
    Do.SEND_REQ: _says(CM_REQ),
    Do.SEND_REP: _says(CM_REP),
    Do.SEND_RTU: _says(CM_RTU),
    Do.SEND_MRA: _says(CM_MRA),
    Do.SEND_REJ: _says(CM_REJ),
    Do.SEND_REJ_TIMEOUT: CmAgent._send_rej_timeout,
    Do.SEND_DREQ: CmAgent._send_dreq,
    Do.SEND_DREP: _says(CM_DREP),
    Do.SEND_SIDR_REQ: _says(CM_SIDR_REQ),
    Do.SEND_SIDR_REP: _says(CM_SIDR_REP),
    Do.REPEAT: CmAgent._repeat,
    Do.ARM: CmAgent._arm,
    Do.EXTEND: lambda agent, connection: agent._wait(
        connection, cm.code_ns(connection.peer_timeout) + 2 * cm.code_ns(cm.PACKET_LIFETIME)
    ),
    Do.LINGER: lambda agent, connection: agent._wait(connection, cm.code_ns(cm.PACKET_LIFETIME + 1), expires=True),
    Do.HOLD: lambda agent, connection: agent._wait(connection, _HOLD_TURNS * agent._turn_ns(connection), expires=True),
    Do.STOP: CmAgent._stop,
    Do.TAKE_REP: CmAgent._take_rep,
    Do.TELL_RESPONSE: _news(cm.EVENT_CONNECT_RESPONSE),
    Do.TELL_ESTABLISHED: _news(cm.EVENT_ESTABLISHED),
    Do.TELL_REJECTED: lambda agent, connection: agent._tell(connection, cm.EVENT_REJECTED, connection.status),
    Do.TELL_UNREACHABLE: _news(cm.EVENT_UNREACHABLE, _TIMED_OUT),
    Do.TELL_CONNECT_ERROR: _news(cm.EVENT_CONNECT_ERROR, _TIMED_OUT),
    Do.TELL_DISCONNECTED: _news(cm.EVENT_DISCONNECTED),
    Do.TELL_TIMEWAIT_EXIT: _news(cm.EVENT_TIMEWAIT_EXIT),
    Do.TELL_SIDR: CmAgent._tell_sidr,
}


_ANSWERS = {Input.ACCEPT: CM_REP, Input.REJECT: CM_REJ, Input.DISCONNECT: CM_DREQ}
_NAMES = {attr: layout.name.removeprefix("CM ").lower() for attr, layout in wire.MESSAGES.items()}
