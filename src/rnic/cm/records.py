"""Records of the connection manager: connections, listeners, parameters of both sides, and events for owners.

:mod:`rnic.cm.agent` works on these records; this module does nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rnic.cm.state_machine import State
from rnic.spec import cm


class Port(Protocol):
    """A port, as the connection manager sees it."""

    @property
    def guid(self) -> int:
        """Node GUID."""

    @property
    def gid(self) -> bytes:
        """GID of the port, 16 bytes."""

    @property
    def mtu_code(self) -> int:
        """Code of the active path MTU."""

    @property
    def pkey(self) -> int:
        """P_Key of the path."""

    def send(self, datagram: bytes, gid: bytes, traffic_class: int) -> None:
        """Send a MAD of 256 bytes to the QP1 of a GID."""


class CmError(Exception):
    """The request does not fit the state, or a limit was reached. The errno says which."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.errno = code


@dataclass(slots=True)
class Parameters:
    """The sender's parameters in REQ or REP (IBA 12.6.5 and 12.6.8), including its own resources and depth."""

    qpn: int = 0
    psn: int = 0
    qkey: int = 0
    responder_resources: int = 0
    initiator_depth: int = 0
    flow_control: int = 0
    retry_count: int = 7
    rnr_retry_count: int = 7
    srq: int = 0


@dataclass(slots=True)
class ConnectionEvent:
    """An event for the owner of a connection or a listener."""

    event: int
    connection: ConnectionRecord
    status: int = 0
    """Reason of a REJ, status of a SIDR_REP, or a negative errno."""
    private: bytes = b""


EventHandler = Callable[[ConnectionEvent], None]


@dataclass(slots=True, eq=False)
class ServiceListener:
    """A listener on a service ID."""

    service_id: int
    handler: EventHandler
    backlog: int
    waiting: int = 0
    """Requests that the listener's owner has not seen, accepted or rejected yet."""


@dataclass(slots=True, eq=False)
class ConnectionRecord:
    """One communication ID (IBA 12.9) and what is known of its peer."""

    local_id: int
    peer: bytes
    """The peer's GID, the source of all its datagrams."""
    service_id: int
    handler: EventHandler | None = None
    listener: ServiceListener | None = None
    """The listener that the request was for, on the passive side."""
    queued: bool = False
    """True if the request counts against the listener's backlog."""
    state: State = State.IDLE
    datagram: bool = False
    """True for service ID resolution (SIDR) only."""
    remote_id: int = 0
    tid: int = 0
    transport: int = cm.TRANSPORT_RC
    mtu_code: int = 1
    traffic_class: int = 0
    ack_timeout: int = cm.ACK_TIMEOUT
    local: Parameters = field(default_factory=Parameters)
    remote: Parameters = field(default_factory=Parameters)
    private: bytes = b""
    """Private data of the next message sent."""
    received: bytes = b""
    """Private data of the message received last."""
    reply: dict[str, int] = field(default_factory=dict)
    """The REP received last."""
    status: int = 0
    """Reason or status of the next REJ or SIDR_REP sent, or of the one received."""
    peer_timeout: int = cm.RESPONSE_TIMEOUT
    retries: int = cm.MAX_CM_RETRIES
    tries: int = 0
    last_message: bytes = b""
    first_sent_ns: int = 0
    """Time of the first transmission of ``last_message``."""
    last_sent_ns: int = 0
    """Time of the last transmission of ``last_message``."""
    deadline_ns: int | None = None
    expires: bool = False
    """True if the state expires at the deadline; else the last message is retransmitted then."""


@dataclass(slots=True)
class PeerResponses:
    """Time of a peer's last response, and send time of the newest message that it has answered."""

    response_ns: int = -1
    answered_ns: int = -1


def parameters_from(fields: dict[str, int]) -> Parameters:
    """Return the sender's parameters from the fields of a REQ or REP."""
    return Parameters(
        fields["qpn"],
        fields["psn"],
        fields["qkey"],
        fields["responder_resources"],
        fields["initiator_depth"],
        fields["flow_control"],
        fields.get("retry_count", 0),
        fields["rnr_retry_count"],
        fields["srq"],
    )


__all__ = [
    "CmError",
    "ConnectionEvent",
    "ConnectionRecord",
    "EventHandler",
    "Parameters",
    "PeerResponses",
    "Port",
    "ServiceListener",
    "parameters_from",
]
