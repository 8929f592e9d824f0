"""Records of rdma_cm: programs with their IDs and event channels, devices with their bound ports.

:mod:`rnic.cm.service` works on these records; this module does nothing by itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rnic.cm.agent import CmAgent
from rnic.cm.records import ConnectionRecord, Parameters, ServiceListener
from rnic.spec import attach_cm as wire
from rnic.wire.cm import IP_HEADER

if TYPE_CHECKING:
    from rnic.device.nic import Nic

MAPPED = bytes(10) + b"\xff\xff"
NOWHERE = bytes(16)
IPV4, IPV6 = 4, 6


class EventSignal(Protocol):
    """Signals waiting events to a program, once per event."""

    def __call__(self) -> None:
        """Signal one more event."""

    def withdraw(self) -> None:
        """Withdraw the signal of an event that was dropped before the program read it."""

    def close(self) -> None:
        """Close the signal with its channel."""


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
        """The GID of the device's address."""
        return self.nic.config.gid


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
    afonly: bool = False
    """RDMA_OPTION_ID_AFONLY: bound for one address family only."""
    port: CmPort | None = None
    """Device to which the ID is bound, if any."""
    bound: list[CmPort] = field(default_factory=list)
    """Devices on which the ID has reserved port ``src_port``."""
    wildcard: bool = False
    """True if the ID is bound to all addresses, including those of later devices."""
    listeners: list[tuple[CmPort, ServiceListener]] = field(default_factory=list)
    backlog: int | None = None
    """Requests that may wait on each device, 0 for the default; ``None`` if the ID does not listen."""
    connection: ConnectionRecord | None = None
    passive: bool = False
    accepted: bool = False
    """True if the program has accepted this passive ID; only then are its events reported."""


@dataclass(eq=False, slots=True)
class Program:
    """A program with its channels and IDs, by their numbers."""

    devices: frozenset[str] | None = None
    """Names of the devices that the program may use; ``None`` for all."""
    channels: dict[int, Channel] = field(default_factory=dict)
    ids: dict[int, CmId] = field(default_factory=dict)
    last: int = 0


def family(gid: bytes) -> int:
    """Return the IP version of an address in GID form."""
    return IPV4 if gid.startswith(MAPPED) else IPV6


def ip_header(src: bytes, src_port: int, dst: bytes) -> bytes:
    """Return the 36-byte header of private data to an RDMA IP CM service (annex A11); addresses are GIDs."""
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


def pack_record(private: bytes = b"", event: int = wire.CM_NO_EVENT, **values: int) -> bytes:
    """Pack :data:`~rnic.spec.attach_cm.CM_RECORD`; fields that are not named are 0."""
    out = bytearray(wire.CM_RECORD.pack({"event": event, "private_bytes": len(private), **values}))
    at = wire.CM_RECORD["private"].byte
    out[at : at + len(private)] = private
    return bytes(out)


def local_parameters(fields: dict[str, int]) -> Parameters:
    """Return a program's parameters in CONNECT or ACCEPT, cut to the width of each field."""
    return Parameters(
        qpn=fields["qpn"] & 0xFFFFFF,
        qkey=fields["qkey"],
        responder_resources=fields["responder_resources"],
        initiator_depth=fields["initiator_depth"],
        flow_control=fields["flow_control"] & 1,
        retry_count=fields["retry_count"] & 7,
        rnr_retry_count=fields["rnr_retry_count"] & 7,
        srq=fields["srq"] & 1,
    )


def remote_offer(connection: ConnectionRecord) -> dict[str, int]:
    """Return the peer's parameters as seen from this side: its initiator depth becomes responder resources here."""
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


def qp_attributes(connection: ConnectionRecord, passive: bool) -> dict[str, int]:
    """Return the values from which the attributes of an ID's queue pair are set."""
    local, remote = connection.local, connection.remote
    depth, resources = local.initiator_depth, local.responder_resources
    if not passive:
        depth, resources = min(depth, remote.responder_resources), min(resources, remote.initiator_depth)
    return {
        "qpn": remote.qpn,
        "qkey": remote.qkey,
        # REQ and REP carry the starting PSN that their sender expects
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
    "local_parameters",
    "pack_record",
    "qp_attributes",
    "remote_offer",
]
