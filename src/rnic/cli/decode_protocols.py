"""The protocols that ``rnic decode`` decodes completely: RoCEv2, its predecessors, and RC Link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from rnic.rclink import packet as rclink_packet
from rnic.rclink import pretty as rclink_pretty
from rnic.rclink.drops import RcLinkDrop
from rnic.rclink.header import Rh
from rnic.rclink.numbers import ICRC_BYTES, RH_BYTES, TYPE1_UDP_PORT, TYPE2_UDP_PORT
from rnic.spec.drops import DropReason
from rnic.wire import packet as roce_packet
from rnic.wire import pretty as roce_pretty
from rnic.wire.bth import Bth
from rnic.wire.cm_message import CmMessage
from rnic.wire.dissect import INFINIBAND, ROCE, ROCE_LEAST, ROCE_V1, Frame
from rnic.wire.header import Header
from rnic.wire.infiniband import IbFlow
from rnic.wire.opcode import NOT_DECODED

RCLINK = "RC Link"


@dataclass(frozen=True, slots=True)
class Protocol:
    """Functions that decode packets of one kind."""

    kind: str
    least: int
    """Length of the shortest UDP payload, in bytes."""
    headers: Callable[[memoryview], list[Header]]
    name: Callable[[memoryview], str]
    """Returns the name of a UDP payload of at least one byte."""
    describe: Callable[[memoryview], str]
    """Describes such a payload in one line."""
    payload_bytes: Callable[[memoryview], int]
    icrc_ok: Callable[[Frame], bool | None]
    drop: Callable[[Frame], Enum | None]
    """Returns why a NIC would drop a whole packet before it looks up the QP, or ``None``."""


def _roce_drop(frame: Frame) -> DropReason | None:
    parsed = roce_packet.parse(frame.payload)
    if not isinstance(parsed, DropReason) or (parsed is DropReason.BAD_OPCODE and frame.payload[0] in NOT_DECODED):
        return None
    return parsed


def _roce_line(payload: memoryview) -> str:
    parsed = roce_packet.parse(payload)
    found = roce_pretty.headers(payload)
    if isinstance(parsed, roce_packet.Packet) and payload[0] not in NOT_DECODED:
        words = roce_pretty.describe(parsed)
    else:
        words = roce_pretty.opcode_name(payload[0])
        words += "".join(f" qp=0x{bth.dqpn:06x} psn={bth.psn}" for bth in found if isinstance(bth, Bth))
    message = next((header for header in found if isinstance(header, CmMessage)), None)
    return words if message is None else f"{words} {roce_pretty.describe_cm(message)}"


def _rclink_line(payload: memoryview) -> str:
    header = next(iter(rclink_pretty.headers(payload)), None)
    words = [rclink_pretty.name(payload)]
    if header is not None:
        words += [f"{name}={text(header, name)}" for name in ("dest_qp", "psn")]
    return " ".join([*words, f"[{rclink_pretty.payload_bytes(payload)}]"])


def _rclink_drop(frame: Frame) -> RcLinkDrop | None:
    if frame.flow is not None and not isinstance(frame.flow, IbFlow):
        # a port that the user names carries TYPE1, unless it is TYPE2's port
        port = TYPE1_UDP_PORT if frame.flow.dport == TYPE2_UDP_PORT else frame.flow.dport
        kind = rclink_packet.classify(frame.flow, port)
        if kind != "TYPE1":
            return RcLinkDrop[kind]
    parsed = rclink_packet.parse(frame.payload)
    return parsed if isinstance(parsed, RcLinkDrop) else None


def _rclink_icrc_ok(frame: Frame) -> bool | None:
    if frame.flow is None or isinstance(frame.flow, IbFlow) or not frame.complete:
        return None
    return rclink_packet.icrc_ok(frame.payload, frame.flow, frame.ident, frame.frag)


def _infiniband(kind: str) -> Protocol:
    """Return the protocol of packets that start with a BTH, whatever precedes it."""
    return Protocol(
        kind,
        ROCE_LEAST,
        roce_pretty.headers,
        lambda payload: roce_pretty.opcode_name(payload[0]),
        _roce_line,
        roce_pretty.payload_bytes,
        lambda frame: frame.icrc_ok,
        _roce_drop,
    )


PROTOCOLS = {
    ROCE: _infiniband(ROCE),
    ROCE_V1: _infiniband(ROCE_V1),
    INFINIBAND: _infiniband(INFINIBAND),
    RCLINK: Protocol(
        RCLINK,
        RH_BYTES + ICRC_BYTES,
        rclink_pretty.headers,
        rclink_pretty.name,
        _rclink_line,
        rclink_pretty.payload_bytes,
        _rclink_icrc_ok,
        _rclink_drop,
    ),
}


def text(header: Header, name: str) -> str:
    """Format one field's value for display."""
    return rclink_pretty.text(header, name) if isinstance(header, Rh) else roce_pretty.text(header, name)
