"""Messages of communication management (IBA vol. 1, 12.6 to 12.11): the 232 bytes after the MAD header.

Connection setup is not on the data path, so the generic codec of the tables is fast enough. Reserved fields are sent as
zero and not checked. ``PRIVATE`` is the offset of each message's private data, which extends to the end of the
datagram.
"""

from __future__ import annotations

from typing import NamedTuple

from rnic.spec.layout import Field, Layout, bits, half, octet, wide, word
from rnic.wire.mad import (
    CLASS_CM,
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
    MAD,
    MAD_BYTES,
    METHOD_SEND,
    Mad,
)

CM_CLASS_VERSION = 2
BODY_BYTES = MAD_BYTES - MAD.size

_LOCAL = word("local_comm_id", 0, "the sender's communication ID")
_REMOTE = word("remote_comm_id", 4, "the receiver's communication ID")


def _message(name: str, clause: str, *fields: Field) -> Layout:
    return Layout(name, BODY_BYTES, "big", f"IBA vol. 1, {clause}", fields)


REQ = _message(
    "CM REQ",
    "12.6.5",
    _LOCAL,
    wide("service_id", 8, "service ID"),
    wide("ca_guid", 16, "the sender's CA GUID"),
    word("qkey", 28, "Q_Key"),
    bits("qpn", 32, 31, 8, "the sender's QP number"),
    bits("responder_resources", 32, 7, 0, "READs and atomics that the sender accepts outstanding"),
    bits("initiator_depth", 36, 7, 0, "READs and atomics that the sender has outstanding"),
    bits("remote_cm_timeout", 40, 7, 3, "response timeout for the receiver, 4.096 us << code"),
    bits("transport", 40, 2, 1, "transport service type: 0 RC, 1 UC"),
    bits("flow_control", 40, 0, 0, "the sender's CA does end-to-end flow control"),
    bits("psn", 44, 31, 8, "starting PSN: of the first packet that the sender expects"),
    bits("local_cm_timeout", 44, 7, 3, "response timeout for the sender"),
    bits("retry_count", 44, 2, 0, "retry count for the receiver"),
    half("pkey", 48, "P_Key"),
    bits("path_mtu", 48, 15, 12, "path MTU code"),
    bits("rnr_retry_count", 48, 10, 8, "RNR retry count for the receiver"),
    bits("max_cm_retries", 48, 7, 4, "retries of CM messages"),
    bits("srq", 48, 3, 3, "the sender uses a shared receive queue"),
    half("primary_local_lid", 52, "0xFFFF on RoCE"),
    half("primary_remote_lid", 54, "0xFFFF on RoCE"),
    wide("primary_local_gid", 56, "the sender's GID", 16),
    wide("primary_remote_gid", 72, "the receiver's GID", 16),
    bits("flow_label", 88, 31, 12, "flow label of the path"),
    bits("packet_rate", 88, 5, 0, "static rate"),
    octet("traffic_class", 92, "traffic class"),
    octet("hop_limit", 93, "hop limit"),
    bits("sl", 92, 15, 12, "service level"),
    bits("subnet_local", 92, 11, 11, "the path stays in the subnet"),
    bits("ack_timeout", 92, 7, 3, "local ACK timeout for the receiver"),
)
MRA = _message(
    "CM MRA",
    "12.6.6",
    _LOCAL,
    _REMOTE,
    bits("message", 8, 31, 30, "received message: 0 REQ, 1 REP, 2 LAP"),
    bits("service_timeout", 8, 23, 19, "time to the response from now on"),
)
REJ = _message(
    "CM REJ",
    "12.6.7",
    _LOCAL,
    _REMOTE,
    bits("message", 8, 31, 30, "rejected message: 0 REQ, 1 REP, 2 neither"),
    bits("info_length", 8, 23, 17, "bytes of additional information"),
    bits("reason", 8, 15, 0, "reason"),
    wide("ca_guid", 12, "additional information of a timeout: the sender's CA GUID"),
)
REP = _message(
    "CM REP",
    "12.6.8",
    _LOCAL,
    _REMOTE,
    word("qkey", 8, "Q_Key"),
    bits("qpn", 12, 31, 8, "the sender's QP number"),
    bits("psn", 20, 31, 8, "starting PSN: of the first packet that the sender expects"),
    octet("responder_resources", 24, "READs and atomics that the sender accepts outstanding"),
    octet("initiator_depth", 25, "READs and atomics that the sender has outstanding"),
    bits("ack_delay", 24, 15, 11, "target ACK delay"),
    bits("failover", 24, 10, 9, "failover accepted"),
    bits("flow_control", 24, 8, 8, "the sender's CA does end-to-end flow control"),
    bits("rnr_retry_count", 24, 7, 5, "RNR retry count for the receiver"),
    bits("srq", 24, 4, 4, "the sender uses a shared receive queue"),
    wide("ca_guid", 28, "the sender's CA GUID"),
)
RTU = _message("CM RTU", "12.6.9", _LOCAL, _REMOTE)
DREQ = _message("CM DREQ", "12.6.10", _LOCAL, _REMOTE, bits("qpn", 8, 31, 8, "the receiver's QP number"))
DREP = _message("CM DREP", "12.6.11", _LOCAL, _REMOTE)
LAP = _message("CM LAP", "12.8.1", _LOCAL, _REMOTE)
APR = _message(
    "CM APR", "12.8.2", _LOCAL, _REMOTE, octet("info_length", 8, "additional information"), octet("status", 9, "status")
)
SIDR_REQ = _message(
    "CM SIDR_REQ",
    "12.11.1",
    word("request_id", 0, "pairs the answer with the request"),
    half("pkey", 4, "P_Key"),
    wide("service_id", 8, "service ID"),
)
SIDR_REP = _message(
    "CM SIDR_REP",
    "12.11.2",
    word("request_id", 0, "as asked"),
    octet("status", 4, "0 success, 1 not supported, 2 rejected, 3 no QP"),
    octet("info_length", 5, "bytes of additional information"),
    bits("qpn", 8, 31, 8, "QP number of the service"),
    wide("service_id", 12, "as asked"),
    word("qkey", 20, "Q_Key of the service"),
)

MESSAGES: dict[int, Layout] = {
    CM_REQ: REQ,
    CM_MRA: MRA,
    CM_REJ: REJ,
    CM_REP: REP,
    CM_RTU: RTU,
    CM_DREQ: DREQ,
    CM_DREP: DREP,
    CM_LAP: LAP,
    CM_APR: APR,
    CM_SIDR_REQ: SIDR_REQ,
    CM_SIDR_REP: SIDR_REP,
}
"""Layouts by attribute ID."""

PRIVATE: dict[int, int] = {
    CM_REQ: 140,
    CM_MRA: 10,
    CM_REJ: 84,
    CM_REP: 36,
    CM_RTU: 8,
    CM_DREQ: 12,
    CM_DREP: 8,
    CM_LAP: 64,
    CM_APR: 84,
    CM_SIDR_REQ: 16,
    CM_SIDR_REP: 96,
}
"""Offset of the private data, by attribute ID."""

IP_HEADER = Layout(
    "RDMA IP CM header",
    36,
    "big",
    "IBA vol. 1, annex A11",
    (
        octet("version", 0, "major and minor version, 0"),
        bits("ip_version", 0, 23, 20, "4 or 6"),
        half("src_port", 2, "the sender's port"),
        wide("src", 4, "the sender's address; IPv4 in the last four bytes", 16),
        wide("dst", 20, "the receiver's address", 16),
    ),
)
"""Header at the start of the private data in a REQ or SIDR_REQ to an RDMA IP CM service."""


class Message(NamedTuple):
    """One parsed message."""

    attr: int
    tid: int
    fields: dict[str, int]
    private: bytes


def private_bytes(attr: int) -> int:
    """Return the number of bytes of private data that a message carries."""
    return BODY_BYTES - PRIVATE[attr]


def pack(attr: int, tid: int, fields: dict[str, int], private: bytes = b"") -> bytes:
    """Return the whole datagram, 256 bytes.

    Raises:
        ValueError: a value does not fit its field, or the private data is too long.
    """
    room = private_bytes(attr)
    if len(private) > room:
        raise ValueError(f"{len(private)} bytes of private data: a {MESSAGES[attr].name} carries {room}")
    head = Mad(
        base_version=1, mgmt_class=CLASS_CM, class_version=CM_CLASS_VERSION, method=METHOD_SEND, tid=tid, attr_id=attr
    )
    return head.pack() + MESSAGES[attr].pack(fields)[: PRIVATE[attr]] + private.ljust(room, b"\0")


def parse(datagram: bytes | memoryview) -> Message | None:
    """Parse a datagram; ``None`` if it is not a message of communication management. Never raises."""
    if len(datagram) != MAD_BYTES:
        return None
    head = Mad.parse(datagram)
    layout = MESSAGES.get(head.attr_id)
    known = (head.base_version, head.mgmt_class, head.class_version, head.method)
    if layout is None or known != (1, CLASS_CM, CM_CLASS_VERSION, METHOD_SEND):
        return None
    body = bytes(datagram[MAD.size :])
    return Message(head.attr_id, head.tid, layout.unpack(body), body[PRIVATE[head.attr_id] :])
