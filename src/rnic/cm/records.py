"""What the connection manager keeps: connections, listeners, what both sides say of themselves, and what owners hear.

:mod:`rnic.cm.agent` works on these records; this module does nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rnic.cm.state_machine import State
from rnic.spec import cm


class Port(Protocol):
    """What the connection manager needs of the port."""

    @property
    def guid(self) -> int:
        """Node GUID."""

    @property
    def gid(self) -> bytes:
        """16 bytes."""

    @property
    def mtu_code(self) -> int:
        """Active path MTU."""

    @property
    def pkey(self) -> int:
        """P_Key of the path."""

    def send(self, datagram: bytes, gid: bytes, traffic_class: int) -> None:
        """Send 256 bytes to the QP1 of a GID."""


class CmError(Exception):
    """The request does not fit the state, or a limit was reached. The errno says which."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.errno = code


@dataclass(slots=True)
class Parameters:
    """What one side says of itself in REQ or REP. ``initiator_depth`` and ``responder_resources`` are the sender's."""

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
class News:
    """Something that an owner is told."""

    event: int
    connection: Connection
    status: int = 0
    """Reason of a REJ, status of a SIDR_REP, or a negative errno."""
    private: bytes = b""


Tell = Callable[[News], None]


@dataclass(slots=True, eq=False)
class Listener:
    """Somebody who listens on a service ID."""

    service_id: int
    tell: Tell
    backlog: int
    waiting: int = 0
    """Requests that nobody has seen, accepted or rejected."""


@dataclass(slots=True, eq=False)
class Connection:
    """One communication ID and what is known of its peer."""

    local_id: int
    peer: bytes
    """The peer's GID, which all of its datagrams come from."""
    service_id: int
    tell: Tell | None = None
    listener: Listener | None = None
    """Who was asked, of a passive one."""
    queued: bool = False
    """It has a place in the listener's backlog."""
    state: State = State.IDLE
    datagram: bool = False
    """It resolves a service ID only."""
    remote_id: int = 0
    tid: int = 0
    transport: int = cm.TRANSPORT_RC
    mtu_code: int = 1
    traffic_class: int = 0
    ack_timeout: int = cm.ACK_TIMEOUT
    local: Parameters = field(default_factory=Parameters)
    remote: Parameters = field(default_factory=Parameters)
    private: bytes = b""
    """What this side says with its next message."""
    received: bytes = b""
    """Private data of the message received last."""
    reply: dict[str, int] = field(default_factory=dict)
    """The REP received last."""
    status: int = 0
    """What the next REJ or SIDR_REP says, or what was received."""
    peer_timeout: int = cm.RESPONSE_TIMEOUT
    retries: int = cm.MAX_CM_RETRIES
    tries: int = 0
    last: bytes = b""
    said_ns: int = 0
    """When ``last`` was sent first."""
    sent_ns: int = 0
    """And when it was sent last."""
    deadline_ns: int | None = None
    expires: bool = False
    """The deadline ends a time of waiting."""


@dataclass(slots=True)
class Pace:
    """How a peer answers: when it did last, and when the newest message was sent that it has answered."""

    heard_ns: int = -1
    newest_ns: int = -1


def said_of(fields: dict[str, int]) -> Parameters:
    """What a REQ or REP says of its sender."""
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


__all__ = ["CmError", "Connection", "Listener", "News", "Pace", "Parameters", "Port", "Tell", "said_of"]
