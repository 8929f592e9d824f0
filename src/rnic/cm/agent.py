"""The connection manager of one port, sans I/O: messages on QP1, and requests of the connections' owners.

It holds communication IDs and drives :data:`rnic.cm.state_machine.TABLE` for each. Datagrams come in through
:meth:`CmAgent.receive` and go out through a :class:`Port`; time is passed in. A bad message only increments a counter:
memory is bounded by :data:`MAX_CONNECTIONS` and each listener's backlog.

The backlog works as on Linux: it bounds the requests that their owner has not seen, answered or not. A REQ beyond it
is dropped without an answer, so that a retransmitted REQ may find room; a SIDR_REQ beyond it is rejected.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from rnic.cm.message_fields import build_message, build_timeout_rej
from rnic.cm.pending_requests import PendingRequests
from rnic.cm.records import (
    CmError,
    ConnectionEvent,
    ConnectionRecord,
    EventHandler,
    Parameters,
    PeerResponses,
    Port,
    ServiceListener,
    parameters_from,
)
from rnic.cm.state_machine import TABLE, Action, Input, State
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
"""Default backlog of a listener, as on Linux."""
_FIRST_RETRY_PART = 16
"""The first retransmission comes after the response timeout divided by this; each further delay is twice the one
before. A lost datagram is replaced soon, and a slow peer is not flooded."""
_KEEP_TIMEOUTS = 4
_MRA_OF_REP = 1
_COMM_ID_BITS = 32
_MAX_PEERS = 1_024
_STALE_TIMES, _STALE_AT_LEAST = 2, 64
"""Outdated deadlines stay in the heap: at most this many times the number of connections, plus this many."""


_REQUEST_ID = {CM_REQ: "local_comm_id", CM_SIDR_REQ: "request_id"}
"""Requests, and the field by which their sender identifies them."""
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
        counters: count messages and drops, as ``cm_*``.
    """

    def __init__(self, port: Port, rng: random.Random, counters: Counters) -> None:
        self.port = port
        self.counters = counters
        self.connections: dict[int, ConnectionRecord] = {}
        self.listeners: dict[int, ServiceListener] = {}
        self._random = rng
        self._by_remote: dict[tuple[bytes, int, bool], ConnectionRecord] = {}
        """Passive connections by the peer's GID and its communication or request ID."""
        self._by_qpn: dict[tuple[bytes, int], ConnectionRecord] = {}
        """Established connections by the peer's GID and QP number."""
        self._deadlines: list[tuple[int, int]] = []
        self._responses: dict[tuple[bytes, State], PeerResponses] = {}
        """Responses by the peer's GID and the state in which this side waits for them."""
        self._pending = PendingRequests()
        self._now_ns = 0

    # ----------------------------------------------------------------------------- requests of owners

    def listen(self, service_id: int, handler: EventHandler, backlog: int = DEFAULT_BACKLOG) -> ServiceListener:
        """Listen on a service ID; ``handler`` gets each request. Raise :class:`CmError` (EADDRINUSE) if taken."""
        if service_id in self.listeners:
            raise CmError(98, f"service ID {service_id:#x} is taken")
        listener = ServiceListener(service_id, handler, min(backlog, MAX_BACKLOG) if backlog > 0 else DEFAULT_BACKLOG)
        self.listeners[service_id] = listener
        return listener

    def unlisten(self, listener: ServiceListener) -> None:
        """Stop listening; their owners still answer pending requests."""
        if self.listeners.get(listener.service_id) is listener:
            del self.listeners[listener.service_id]
            self._pending.listener_closed(listener.service_id)

    def connect(
        self,
        peer: bytes,
        service_id: int,
        handler: EventHandler,
        now_ns: int,
        *,
        local: Parameters | None = None,
        private: bytes = b"",
        datagram: bool = False,
        transport: int = cm.TRANSPORT_RC,
        traffic_class: int = 0,
        ack_timeout: int = cm.ACK_TIMEOUT,
    ) -> ConnectionRecord:
        """Send REQ, or SIDR_REQ for ``datagram``, to a peer's service ID.

        Args:
            peer: its GID.
            service_id: 64 bits.
            handler: gets the connection's events.
            now_ns: the time.
            local: this side's parameters in REQ; the PSN is chosen here.
            private: private data, with the IP header if the service expects one.
            datagram: resolve a service ID.
            transport: ``TRANSPORT_*``.
            traffic_class: of the path.
            ack_timeout: local ACK timeout of the queue pairs.

        Raises:
            CmError: ENOMEM for too many connections, EINVAL for private data that is too long.
        """
        if len(private) > wire.private_bytes(CM_SIDR_REQ if datagram else CM_REQ):
            raise CmError(22, f"{len(private)} bytes of private data are too many")
        connection = self._allocate(peer, service_id)
        connection.handler = handler
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

    def request(
        self, connection: ConnectionRecord, what: Input, now_ns: int, private: bytes = b"", status: int = 0
    ) -> None:
        """Execute an owner's request: ACCEPT, ESTABLISH, REJECT, DISCONNECT, COMM_EST or DESTROY.

        ``private`` is the private data of the message that it sends, ``status`` the reason of a rejection.

        Raises:
            CmError: EINVAL if the state does not allow it, or the private data is too long.
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
        if what is Input.DESTROY:
            connection.handler = None
            connection.status = status or (cm.SIDR_REJECTED if connection.datagram else cm.REJ_CONSUMER_DEFINED)
        self.release_backlog(connection)
        self._step(connection, what, now_ns)

    @staticmethod
    def release_backlog(connection: ConnectionRecord) -> None:
        """Free a request's backlog entry once its owner has seen it. A second call does nothing."""
        if connection.queued and connection.listener is not None:
            connection.queued = False
            connection.listener.waiting -= 1

    # ----------------------------------------------------------------------------- packets and timers

    def receive(self, datagram: bytes | memoryview, source: bytes, now_ns: int) -> None:
        """Receive a datagram of 256 bytes sent to QP1 from a GID. Never raises, whatever the datagram contains."""
        message = wire.parse(datagram)
        if message is None:
            self.counters.bump("drop_bad_mad")
            return
        self.counters.bump(f"cm_rx_{_NAMES[message.attr]}")
        self._now_ns = now_ns
        if message.attr in _REQUEST_ID:
            self._receive_request(message, source, now_ns)
        else:
            self._receive_reply(message, source, now_ns)

    def next_deadline_ns(self) -> int | None:
        """Return when to call :meth:`handle_timers`."""
        ours, held = self._next_of_connections(), self._pending.next_deadline_ns(self.listeners)
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
        """Handle the deadlines that are due."""
        self._now_ns = now_ns
        self._pending.release(
            self.listeners, now_ns, lambda message, source: self._handle_request(message, source, now_ns)
        )
        while (deadline := self._next_of_connections()) is not None and deadline <= now_ns:
            connection = self.connections[heapq.heappop(self._deadlines)[1]]
            connection.deadline_ns = None
            if connection.expires:
                self._step(connection, Input.EXPIRE, now_ns)
            elif self._peer_is_busy(connection, now_ns):
                self._arm(connection)
            elif connection.tries > connection.retries:
                self.counters.bump("cm_timeouts")
                self._step(connection, Input.RETRIES_EXCEEDED, now_ns)
            else:
                self.counters.bump("cm_repeats")
                self._step(connection, Input.RESEND, now_ns)

    def view(self) -> dict[str, Any]:
        """Return services and connections as :func:`rnic.device.inspect.connections` shows them."""
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

    def _find_duplicate(self, message: wire.Message, source: bytes) -> ConnectionRecord | None:
        """Return the connection of a request that has already arrived, else ``None``."""
        datagram = message.attr == CM_SIDR_REQ
        return self._by_remote.get((source, message.fields[_REQUEST_ID[message.attr]], datagram))

    def _receive_request(self, message: wire.Message, source: bytes, now_ns: int) -> None:
        served = message.fields["service_id"] in self.listeners or self._find_duplicate(message, source) is not None
        if served or not self._pending.hold(message, source, now_ns):
            self._handle_request(message, source, now_ns)

    def _handle_request(self, message: wire.Message, source: bytes, now_ns: int) -> None:
        known = self._find_duplicate(message, source)
        if known is not None:
            self._input(known, Input.RX_SIDR_REQ if known.datagram else Input.RX_REQ, now_ns)
        elif message.attr == CM_SIDR_REQ:
            self._handle_sidr_req(message, source)
        else:
            self._handle_req(message, source, now_ns)

    def _handle_req(self, message: wire.Message, source: bytes, now_ns: int) -> None:
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
            self._reject(message, source, cm.REJECTED_REQ, reason)
            return
        assert listener is not None
        if self._is_full(listener):
            self.counters.bump("cm_backlog_full")
            return
        connection = self._allocate(source, fields["service_id"])
        connection.state = State.REQ_RCVD
        connection.local.psn = self._random.getrandbits(24)
        connection.remote_id = fields["local_comm_id"]
        connection.tid = message.tid
        connection.transport = fields["transport"]
        connection.mtu_code = fields["path_mtu"]
        connection.traffic_class = fields["traffic_class"]
        connection.ack_timeout = fields["ack_timeout"]
        connection.remote = parameters_from(fields)
        connection.peer_timeout = fields["local_cm_timeout"]
        connection.retries = fields["max_cm_retries"]
        connection.received = message.private
        self._report_request(connection, listener)

    def _handle_sidr_req(self, message: wire.Message, source: bytes) -> None:
        fields = message.fields
        listener = self.listeners.get(fields["service_id"])
        if listener is None or self._is_full(listener):
            status = cm.SIDR_UNSUPPORTED if listener is None else cm.SIDR_REJECTED
            said = {"request_id": fields["request_id"], "status": status, "service_id": fields["service_id"]}
            self._send(wire.pack(CM_SIDR_REP, message.tid, said), source, 0, CM_SIDR_REP)
            return
        connection = self._allocate(source, fields["service_id"])
        connection.state = State.SIDR_REQ_RCVD
        connection.datagram = True
        connection.remote_id = fields["request_id"]
        connection.tid = message.tid
        connection.received = message.private
        self._report_request(connection, listener)

    def _is_full(self, listener: ServiceListener) -> bool:
        """Return whether there is no room for one more request."""
        return listener.waiting >= listener.backlog or len(self.connections) >= MAX_CONNECTIONS

    def _report_request(self, connection: ConnectionRecord, listener: ServiceListener) -> None:
        self._by_remote[connection.peer, connection.remote_id, connection.datagram] = connection
        connection.listener = listener
        connection.queued = True
        listener.waiting += 1
        connection.handler = listener.handler
        listener.handler(ConnectionEvent(cm.EVENT_CONNECT_REQUEST, connection, 0, connection.received))

    def _receive_reply(self, message: wire.Message, source: bytes, now_ns: int) -> None:
        fields = message.fields
        mine = fields["request_id"] if message.attr in _DATAGRAM_EXPECTED else fields["remote_comm_id"]
        connection = self.connections.get(mine)
        if connection is not None and connection.peer != source:
            connection = None
        if connection is None and message.attr == CM_REJ and not mine:
            # a peer that times out before it knows our ID sends its own
            connection = self._by_remote.get((source, fields["local_comm_id"], False))
        if connection is None:
            self._reject_unknown_id(message, source)
            return
        self._note_response(connection, now_ns)
        what = _INPUTS.get(message.attr)
        if message.attr == CM_MRA:
            what = Input.RX_MRA_REP if fields["message"] == _MRA_OF_REP else Input.RX_MRA_REQ
        elif message.attr == CM_LAP:
            said = {"local_comm_id": mine, "remote_comm_id": fields["local_comm_id"], "status": cm.APR_UNSUPPORTED}
            self._send(wire.pack(CM_APR, message.tid, said), source, connection.traffic_class, CM_APR)
            return
        if what is None or not self._matches(connection, message):
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
    def _matches(connection: ConnectionRecord, message: wire.Message) -> bool:
        """Return whether a message is of this connection's kind and from the peer's ID."""
        if connection.datagram or message.attr == CM_SIDR_REP:
            return connection.datagram and message.attr == CM_SIDR_REP and message.tid == connection.tid
        if message.attr == CM_DREQ and message.fields["qpn"] != connection.local.qpn:
            return False
        return connection.remote_id in (0, message.fields["local_comm_id"])

    def _reject_unknown_id(self, message: wire.Message, source: bytes) -> None:
        """Count a message to an unknown communication ID, and answer it if the peer expects an answer."""
        self.counters.bump("cm_unknown_id")
        fields = message.fields
        if message.attr == CM_DREQ:
            said = {"local_comm_id": fields["remote_comm_id"], "remote_comm_id": fields["local_comm_id"]}
            self._send(wire.pack(CM_DREP, message.tid, said), source, 0, CM_DREP)
        elif message.attr == CM_REP:
            self._reject(message, source, cm.REJECTED_REP, cm.REJ_INVALID_COMM_ID)

    def _reject(self, message: wire.Message, source: bytes, about: int, reason: int) -> None:
        """Send REJ for a message without a communication ID here."""
        said = {
            "local_comm_id": message.fields.get("remote_comm_id", 0),
            "remote_comm_id": message.fields["local_comm_id"],
            "message": about,
            "reason": reason,
        }
        self.counters.bump(f"cm_rejected_{reason}")
        self._send(wire.pack(CM_REJ, message.tid, said), source, 0, CM_REJ)

    # ------------------------------------------------------------------------------------- steps

    def _input(self, connection: ConnectionRecord, what: Input, now_ns: int) -> None:
        if (connection.state, what) in TABLE:
            self._step(connection, what, now_ns)
        else:
            self.counters.bump("cm_unexpected")

    def _step(self, connection: ConnectionRecord, what: Input, now_ns: int) -> None:
        self._now_ns = now_ns
        before = connection.state
        connection.state, actions = TABLE[before, what]
        if connection.state in _LIVE and connection.remote.qpn:
            self._by_qpn[connection.peer, connection.remote.qpn] = connection
        elif before in _LIVE:
            self._remove_qpn(connection)
        if connection.state is State.CLOSED:
            self._remove(connection)
        for action in actions:
            _ACTIONS[action](self, connection)

    def _allocate(self, peer: bytes, service_id: int) -> ConnectionRecord:
        if len(self.connections) >= MAX_CONNECTIONS:
            raise CmError(12, f"this port has {MAX_CONNECTIONS} connections: disconnect some")
        while (local_id := self._random.getrandbits(_COMM_ID_BITS)) in self.connections or not local_id:
            pass
        connection = self.connections[local_id] = ConnectionRecord(local_id, peer, service_id)
        return connection

    def _remove(self, connection: ConnectionRecord) -> None:
        self.connections.pop(connection.local_id, None)
        connection.deadline_ns = None
        key = connection.peer, connection.remote_id, connection.datagram
        if self._by_remote.get(key) is connection:
            del self._by_remote[key]
        self._remove_qpn(connection)

    def _remove_qpn(self, connection: ConnectionRecord) -> None:
        key = connection.peer, connection.remote.qpn
        if self._by_qpn.get(key) is connection:
            del self._by_qpn[key]

    # ------------------------------------------------------------------------------------ actions

    def _send(self, datagram: bytes, gid: bytes, traffic_class: int, attr: int) -> None:
        self.counters.bump(f"cm_tx_{_NAMES[attr]}")
        self.port.send(datagram, gid, traffic_class)

    def _send_message(self, connection: ConnectionRecord, attr: int) -> None:
        """Send a message of a connection, and keep it for retransmission."""
        connection.last_message = build_message(connection, self.port, attr)
        connection.tries = 1
        connection.first_sent_ns = connection.last_sent_ns = self._now_ns
        self._send(connection.last_message, connection.peer, connection.traffic_class, attr)

    def _send_rej_timeout(self, connection: ConnectionRecord) -> None:
        connection.last_message = build_timeout_rej(connection, self.port)
        connection.tries = 1
        self._send(connection.last_message, connection.peer, connection.traffic_class, CM_REJ)

    def _send_dreq(self, connection: ConnectionRecord) -> None:
        connection.tid = self._random.getrandbits(64)
        self._send_message(connection, CM_DREQ)

    def _resend(self, connection: ConnectionRecord) -> None:
        self.counters.bump("cm_tx_repeated")
        connection.tries += 1
        connection.last_sent_ns = self._now_ns
        self.port.send(connection.last_message, connection.peer, connection.traffic_class)

    def _set_deadline(self, connection: ConnectionRecord, delay_ns: int, expires: bool = False) -> None:
        connection.expires = expires
        connection.deadline_ns = self._now_ns + delay_ns
        heap = self._deadlines
        heapq.heappush(heap, (connection.deadline_ns, connection.local_id))
        if len(heap) > _STALE_TIMES * len(self.connections) + _STALE_AT_LEAST:  # peers move deadlines
            heap[:] = [
                (each.deadline_ns, each.local_id) for each in self.connections.values() if each.deadline_ns is not None
            ]
            heapq.heapify(heap)

    @staticmethod
    def _response_timeout_ns(connection: ConnectionRecord) -> int:
        """Return how long a message and its answer may take."""
        return cm.code_ns(min(connection.peer_timeout, cm.RESPONSE_TIMEOUT)) + 2 * cm.code_ns(cm.PACKET_LIFETIME)

    def _arm(self, connection: ConnectionRecord) -> None:
        self._set_deadline(connection, self._retry_delay_ns(connection))

    def _retry_delay_ns(self, connection: ConnectionRecord) -> int:
        """Return the time without an answer after which to retransmit a message."""
        whole = self._response_timeout_ns(connection)
        return min(whole, (whole // _FIRST_RETRY_PART) << max(0, connection.tries - 1))

    def _note_response(self, connection: ConnectionRecord, now_ns: int) -> None:
        """Note a peer's response on a connection."""
        responses = self._responses
        key = connection.peer, connection.state
        response = responses.get(key)
        if response is None:
            if len(responses) >= _MAX_PEERS:
                responses.clear()  # the next responses refill it
            response = responses[key] = PeerResponses()
        response.response_ns = now_ns
        response.answered_ns = max(response.answered_ns, connection.first_sent_ns)

    def _peer_is_busy(self, connection: ConnectionRecord, now_ns: int) -> bool:
        """Return whether the peer is still busy with earlier messages, so that this one is not lost.

        A peer that gets a hundred requests at once needs time to reach the last; retransmissions would slow it down. It
        answers in order: once it has answered a later request, this one was lost. A message is retransmitted if the
        peer has been silent since it was sent, and in any case after its response timeout.
        """
        response = self._responses.get((connection.peer, connection.state))
        if response is None or now_ns - connection.last_sent_ns >= self._response_timeout_ns(connection):
            return False
        since = now_ns - self._retry_delay_ns(connection)
        return (
            response.response_ns > max(connection.last_sent_ns, since)
            and response.answered_ns < connection.first_sent_ns
        )

    def _stop(self, connection: ConnectionRecord) -> None:
        connection.deadline_ns = None

    def _record_rep(self, connection: ConnectionRecord) -> None:
        """Record the peer's ID and parameters from the first REP; later REPs change nothing."""
        connection.remote_id = connection.reply["local_comm_id"]
        connection.remote = parameters_from(connection.reply)
        connection.remote.retry_count = connection.local.retry_count

    def _report(self, connection: ConnectionRecord, event: int, status: int = 0) -> None:
        if connection.handler is not None:
            connection.handler(ConnectionEvent(event, connection, status, connection.received))

    def _report_sidr(self, connection: ConnectionRecord) -> None:
        event = cm.EVENT_UNREACHABLE if connection.status else cm.EVENT_ESTABLISHED
        self._report(connection, event, connection.status)


_TIMED_OUT = -110
_Do = Callable[[CmAgent, ConnectionRecord], None]


def _reports(event: int, status: int = 0) -> _Do:
    return lambda agent, connection: agent._report(connection, event, status)


def _sends(attr: int) -> _Do:
    return lambda agent, connection: agent._send_message(connection, attr)


_ACTIONS: dict[Action, _Do] = {
    Action.SEND_REQ: _sends(CM_REQ),
    Action.SEND_REP: _sends(CM_REP),
    Action.SEND_RTU: _sends(CM_RTU),
    Action.SEND_MRA: _sends(CM_MRA),
    Action.SEND_REJ: _sends(CM_REJ),
    Action.SEND_REJ_TIMEOUT: CmAgent._send_rej_timeout,
    Action.SEND_DREQ: CmAgent._send_dreq,
    Action.SEND_DREP: _sends(CM_DREP),
    Action.SEND_SIDR_REQ: _sends(CM_SIDR_REQ),
    Action.SEND_SIDR_REP: _sends(CM_SIDR_REP),
    Action.REPEAT: CmAgent._resend,
    Action.ARM: CmAgent._arm,
    Action.EXTEND: lambda agent, connection: agent._set_deadline(
        connection, cm.code_ns(connection.peer_timeout) + 2 * cm.code_ns(cm.PACKET_LIFETIME)
    ),
    Action.START_TIMEWAIT: lambda agent, connection: agent._set_deadline(
        connection, cm.code_ns(cm.PACKET_LIFETIME + 1), expires=True
    ),
    Action.KEEP_ANSWER: lambda agent, connection: agent._set_deadline(
        connection, _KEEP_TIMEOUTS * agent._response_timeout_ns(connection), expires=True
    ),
    Action.STOP: CmAgent._stop,
    Action.RECORD_REP: CmAgent._record_rep,
    Action.REPORT_RESPONSE: _reports(cm.EVENT_CONNECT_RESPONSE),
    Action.REPORT_ESTABLISHED: _reports(cm.EVENT_ESTABLISHED),
    Action.REPORT_REJECTED: lambda agent, connection: agent._report(connection, cm.EVENT_REJECTED, connection.status),
    Action.REPORT_UNREACHABLE: _reports(cm.EVENT_UNREACHABLE, _TIMED_OUT),
    Action.REPORT_CONNECT_ERROR: _reports(cm.EVENT_CONNECT_ERROR, _TIMED_OUT),
    Action.REPORT_DISCONNECTED: _reports(cm.EVENT_DISCONNECTED),
    Action.REPORT_TIMEWAIT_EXIT: _reports(cm.EVENT_TIMEWAIT_EXIT),
    Action.REPORT_SIDR: CmAgent._report_sidr,
}


_ANSWERS = {Input.ACCEPT: CM_REP, Input.REJECT: CM_REJ, Input.DISCONNECT: CM_DREQ}
_NAMES = {attr: layout.name.removeprefix("CM ").lower() for attr, layout in wire.MESSAGES.items()}
