"""What rdma_cm keeps for programs: IDs, event channels, bound ports; and the fields of what programs are told of them.

:mod:`rnic.cm.service` works on these records; this module does nothing by itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rnic.cm.agent import CmAgent
from rnic.cm.records import Connection, Listener, Parameters
from rnic.spec import attach_cm as wire
from rnic.wire.cm import IP_HEADER

if TYPE_CHECKING:
    from rnic.device.nic import Nic

MAPPED = bytes(10) + b"\xff\xff"
NOWHERE = bytes(16)
IPV4, IPV6 = 4, 6


class EventSignal(Protocol):
    """Tells a program that an event waits."""

    def __call__(self) -> None:
        """One more event waits."""

    def withdraw(self) -> None:
        """One event less waits: it went before it was fetched."""

    def close(self) -> None:
        """The channel is closed."""


@dataclass(eq=False, slots=True)
class CmPort:
    """A device and its connection manager."""

    name: str
    nic: Nic
    agent: CmAgent
    bound: dict[tuple[int, int], list[CmId]] = field(default_factory=dict)
    """IDs by port space and port."""

    @property
    def gid(self) -> bytes:
        """The device's first GID."""
        return self.nic.config.gid_table[0]


@dataclass(eq=False, slots=True)
class Channel:
    """An event channel of a program."""

    number: int
    signal: EventSignal
    events: deque[tuple[CmId, bytes]] = field(default_factory=deque)


@dataclass(eq=False, slots=True)
class CmId:
    """One ``rdma_cm_id`` of a program."""

    number: int
    client: Program
    channel: Channel
    port_space: int
    qp_type: int
    src: bytes = NOWHERE
    dst: bytes = NOWHERE
    src_port: int = 0
    dst_port: int = 0
    reuse: bool = False
    port: CmPort | None = None
    """Its device, once it is bound to one."""
    bound: list[CmPort] = field(default_factory=list)
    """Devices whose port ``src_port`` it holds."""
    everywhere: bool = False
    """It is bound to all addresses, those of devices that come later too."""
    listeners: list[tuple[CmPort, Listener]] = field(default_factory=list)
    backlog: int | None = None
    """Requests that may wait on each device, 0 for the usual number; ``None`` where it does not listen."""
    connection: Connection | None = None
    passive: bool = False
    accepted: bool = False
    """Of a passive one: its program has accepted, and hears from then on what becomes of it."""


@dataclass(eq=False, slots=True)
class Program:
    """A program: its channels and IDs, by their numbers."""

    devices: frozenset[str] | None = None
    """Names of those that it may use; all without."""
    channels: dict[int, Channel] = field(default_factory=dict)
    ids: dict[int, CmId] = field(default_factory=dict)
    last: int = 0


def family(gid: bytes) -> int:
    """IP version of an address that is written as a GID."""
    return IPV4 if gid.startswith(MAPPED) else IPV6


def ip_header(src: bytes, src_port: int, dst: bytes) -> bytes:
    """The 36 bytes that private data to an RDMA IP CM service begin with; addresses as GIDs."""
    version = family(dst)
    strip = len(MAPPED) if version == IPV4 else 0
    return IP_HEADER.pack(
        {
            "ip_version": version,
            "src_port": src_port,
            "src": int.from_bytes(src[strip:], "big"),
            "dst": int.from_bytes(dst[strip:], "big"),
        }
    )


def record(private: bytes = b"", event: int = wire.CM_NO_EVENT, **values: int) -> bytes:
    """:data:`~rnic.spec.attach_cm.CM_RECORD`, what is not named as zero."""
    out = bytearray(wire.CM_RECORD.pack({"event": event, "private_bytes": len(private), **values}))
    at = wire.CM_RECORD["private"].byte
    out[at : at + len(private)] = private
    return bytes(out)


def parameters_of(said: dict[str, int]) -> Parameters:
    """What a program says of its queue pair in CONNECT or ACCEPT, cut to the width of each field."""
    return Parameters(
        qpn=said["qpn"] & 0xFFFFFF,
        qkey=said["qkey"],
        responder_resources=said["responder_resources"],
        initiator_depth=said["initiator_depth"],
        flow_control=said["flow_control"] & 1,
        retry_count=said["retry_count"] & 7,
        rnr_retry_count=said["rnr_retry_count"] & 7,
        srq=said["srq"] & 1,
    )


def offer_of(connection: Connection) -> dict[str, int]:
    """What the peer says of itself, as seen from here: its depth is what this side answers, and the other way round."""
    remote = connection.remote
    return {
        "qpn": remote.qpn,
        "responder_resources": remote.initiator_depth,
        "initiator_depth": remote.responder_resources,
        "flow_control": remote.flow_control,
        "retry_count": remote.retry_count,
        "rnr_retry_count": remote.rnr_retry_count,
        "srq": remote.srq,
    }


def queue_pair_of(connection: Connection, passive: bool) -> dict[str, int]:
    """What the attributes of an ID's queue pair come from."""
    local, remote = connection.local, connection.remote
    depth, resources = local.initiator_depth, local.responder_resources
    if not passive:
        depth, resources = min(depth, remote.responder_resources), min(resources, remote.initiator_depth)
    return {
        "qpn": remote.qpn,
        "qkey": remote.qkey,
        # each message says the PSN that its sender expects first
        "sq_psn": remote.psn,
        "rq_psn": local.psn,
        "responder_resources": resources,
        "initiator_depth": depth,
        "retry_count": (remote if passive else local).retry_count,
        "rnr_retry_count": remote.rnr_retry_count,
        "srq": remote.srq,
        "path_mtu": connection.mtu_code,
        "ack_timeout": connection.ack_timeout,
        "tos": connection.traffic_class,
    }


__all__ = [
    "IPV4",
    "IPV6",
    "MAPPED",
    "NOWHERE",
    "Channel",
    "CmId",
    "CmPort",
    "EventSignal",
    "Program",
    "family",
    "ip_header",
    "offer_of",
    "parameters_of",
    "queue_pair_of",
    "record",
]
